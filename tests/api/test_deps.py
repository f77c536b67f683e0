"""Whose address counts."""

import pytest
from starlette.requests import HTTPConnection

from backend.api.deps import client_address

PROXIES = ("10.0.0.0/8", "fd00::1")


def _connection(peer: str | None, *forwarded: str) -> HTTPConnection:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    return HTTPConnection({"type": "http", "headers": headers, "client": (peer, 1) if peer is not None else None})


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("192.0.2.1", (), "192.0.2.1"),
        ("192.0.2.1", ("198.51.100.9",), "192.0.2.1"),
        ("10.0.0.1", ("198.51.100.9",), "198.51.100.9"),
        ("10.0.0.1", ("1.2.3.4, 198.51.100.9, 10.9.9.9",), "198.51.100.9"),
        ("10.0.0.1", ("1.2.3.4", "198.51.100.9"), "198.51.100.9"),
        ("10.0.0.1", (), "10.0.0.1"),
        ("10.0.0.1", ("nonsense",), "10.0.0.1"),
        ("10.0.0.1", ("1.2.3.4, nonsense",), "10.0.0.1"),
        ("fd00::1", ("2001:db8:1:2:3::4",), "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", (), "192.0.2.7"),
        (None, ("198.51.100.9",), "unknown"),
        ("", (), "unknown"),
    ],
)
def test_the_nearest_address_that_is_no_proxy_counts(
    peer: str | None, forwarded: tuple[str, ...], address: str
) -> None:
    assert client_address(_connection(peer, *forwarded), PROXIES) == address


def test_without_trusted_proxies_the_header_is_ignored() -> None:
    assert client_address(_connection("10.0.0.1", "198.51.100.9"), ()) == "10.0.0.1"
