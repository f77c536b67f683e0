"""Errors become answers here and nowhere else: ``{"detail", "code", "request_id"}`` plus the fields of the code."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from backend.api.headers import add_headers
from backend.catalogue import choose_language, say
from backend.errors import HTTP_CODES, AppError, ValidationFailed
from backend.log import get_logger
from backend.metrics import REFUSALS
from backend.text import clean_json

MAX_ERRORS, MAX_LOC_PARTS, MAX_PART_CHARS, MAX_MSG_CHARS = 20, 8, 64, 200
_CODES = {401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
_log = get_logger(__name__)


class FieldError(BaseModel):
    """Where a request is wrong and how; never what it said there."""

    loc: list[str | int]
    msg: str


class ErrorBody(BaseModel):
    """Every error answer. ``code`` is stable; ``detail`` is for people, in the language asked for."""

    model_config = ConfigDict(extra="allow")

    detail: str
    code: Annotated[str, Field(json_schema_extra={"enum": [*sorted(HTTP_CODES)]})]
    request_id: str
    errors: list[FieldError] | None = Field(default=None, description="With `validation_error` only.")


def error_responses(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The ``responses=`` of a route that may answer with the errors ``codes``, by their statuses."""
    by_status: dict[int | str, list[str]] = {}
    for code in codes:
        by_status.setdefault(HTTP_CODES[code], []).append(code)
    return {status: _described(of_status) for status, of_status in sorted(by_status.items())}


def _described(codes: list[str]) -> dict[str, Any]:
    schema = {"properties": {"code": {"type": "string", "enum": codes}}}
    text = " ".join(f"`{code}`: {say(code)}" for code in codes)
    return {"model": ErrorBody, "description": text, "content": {"application/json": {"schema": schema}}}


COMMON_ERRORS = error_responses("validation_error", "storage_unavailable")
"""What any route that takes input and asks the database may answer."""


def request_id_of(connection: HTTPConnection) -> str:
    """The id that the outermost middleware gave this request."""
    return getattr(connection.state, "request_id", "")


def error_response(connection: HTTPConnection, error: AppError) -> Response:
    """The answer for ``error``; what is the server's own fault is logged with its cause."""
    if error.status >= 500:
        _log.warning("request_failed", code=error.code, exc_info=error)
    return _render(connection, error.status, error.code, error.fields, _headers_of(error))


def install_error_handlers(app: FastAPI) -> None:
    """Make ``app`` answer every error in the one form."""
    app.add_exception_handler(AppError, _on_app_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_unexpected)


async def _on_app_error(request: Request, error: Exception) -> Response:
    return error_response(request, cast(AppError, error))


async def _on_validation_error(request: Request, error: Exception) -> Response:
    failures = cast(Sequence[Mapping[str, Any]], cast(RequestValidationError, error).errors())
    return error_response(request, ValidationFailed(errors=[_field_error(item) for item in failures[:MAX_ERRORS]]))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    raised = cast(HTTPException, error)
    if raised.status_code >= 500:
        return await _on_unexpected(request, error)
    code = _CODES.get(raised.status_code)
    if code is None:  # what the framework could not parse
        return error_response(request, ValidationFailed())
    return _render(request, raised.status_code, code, {}, dict(raised.headers or {}))


async def _on_unexpected(request: Request, error: Exception) -> Response:
    # The request's log context is gone here (this handler is outside the middlewares), so the id is given,
    # and so are their headers.
    _log.error("request_crashed", request_id=request_id_of(request), exc_info=error)
    response = _render(request, 500, "internal_error", {}, {})
    add_headers(response.headers, request_id_of(request), request.scope["path"])
    return response


def _headers_of(error: AppError) -> dict[str, str]:
    headers: dict[str, str] = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def _render(
    connection: HTTPConnection, status: int, code: str, fields: Mapping[str, Any], headers: Mapping[str, str]
) -> Response:
    REFUSALS.labels(code).inc()
    language = choose_language(connection.headers.get("accept-language"))
    body = {"detail": say(code, language), "code": code, "request_id": request_id_of(connection)}
    # orjson writes NaN as null; texts of the client (keys in `loc`) may hold what JSON cannot carry.
    content = orjson.dumps(clean_json({**fields, **body}), default=str, option=orjson.OPT_NON_STR_KEYS)
    return Response(content, status, headers, media_type="application/json")


def _field_error(failure: Mapping[str, Any]) -> dict[str, Any]:
    loc = [part if isinstance(part, int) else str(part)[:MAX_PART_CHARS] for part in failure["loc"][:MAX_LOC_PARTS]]
    return {"loc": loc, "msg": str(failure["msg"]).removeprefix("Value error, ")[:MAX_MSG_CHARS]}
