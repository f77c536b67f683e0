"""Files as a browser gets them: to be saved, never to be run (J09)."""

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import BinaryIO
from urllib.parse import quote

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from backend.infra.media import served_type

CHUNK_BYTES = 64 * 1024
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "Accept-Ranges": "bytes",
}


class _FileResponse(StreamingResponse):
    """Closes the file, also when nothing of it could be sent."""

    def __init__(self, content: BinaryIO, start: int, end: int, status: int, headers: dict[str, str]) -> None:
        super().__init__(_chunks(content, start, end), status, headers)
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._content.close()


def attachment(
    filename: str, content: BinaryIO, size: int, mime_type: str = "application/octet-stream", *, asked: str | None
) -> StreamingResponse:
    """``content`` of ``size`` bytes, which the response closes; of it the one range that the header ``asked`` for."""
    start, end = _range(asked, size) or (0, size)
    headers = {
        **_HEADERS,
        "Content-Length": str(end - start),
        "Content-Disposition": f"attachment; filename*=utf-8''{quote(filename, safe='')}",
        "Content-Type": served_type(mime_type),
    }
    part = end - start < size
    if part:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return _FileResponse(content, start, end, 206 if part else 200, headers)


def _range(asked: str | None, size: int) -> tuple[int, int] | None:
    """The one range of a header, as ``[start, end)``; ``None`` when the whole file is to be sent, which RFC 9110 (14.2)
    allows for several ranges and for what is none."""
    match = _RANGE.fullmatch((asked or "").strip())
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last else size)
    return (start, end) if start < end else None


async def _chunks(content: BinaryIO, start: int, end: int) -> AsyncGenerator[bytes]:
    await asyncio.to_thread(content.seek, start)
    while start < end and (chunk := await asyncio.to_thread(content.read, min(CHUNK_BYTES, end - start))):
        start += len(chunk)
        yield chunk
