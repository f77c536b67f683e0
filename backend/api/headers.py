"""The headers that every answer carries."""

from starlette.datastructures import MutableHeaders

_SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_CSP = "default-src 'none'; frame-ancestors 'none'"
_PAGES = ("/docs", "/redoc")


def add_headers(headers: MutableHeaders, request_id: str, path: str) -> None:
    """Set ``X-Request-Id``, and the security headers that the route has not set itself."""
    headers["X-Request-Id"] = request_id
    for name, value in _SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    if not path.startswith(_PAGES):  # the API's own documentation loads scripts
        headers.setdefault("Content-Security-Policy", _CSP)
