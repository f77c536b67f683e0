"""Access tokens: what is not exactly ours is refused (case J05)."""

import base64
import hashlib
import hmac
import json
import secrets
import time
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.auth.tokens import MAX_TOKEN_CHARS, TokenCodec
from backend.errors import Unauthorized

SECRET = secrets.token_urlsafe(48)
USER = UUID("0190f3a0-0000-7000-8000-000000000001")
CODEC = TokenCodec(SECRET, expire_minutes=60)
NOW = int(time.time())
CLAIMS: dict[str, object] = {
    "sub": str(USER),
    "ver": 3,
    "iat": NOW,
    "exp": NOW + 3600,
    "iss": "citewire",
    "typ": "access",
}
HEADER: dict[str, object] = {"alg": "HS256", "typ": "JWT"}


def _segment(value: object) -> str:
    raw = value if isinstance(value, str) else json.dumps(value)
    return base64.urlsafe_b64encode(raw.encode()).rstrip(b"=").decode()


def _signed(payload: object, header: object = HEADER, key: str = SECRET, digest: str = "sha256") -> str:
    signing_input = f"{_segment(header)}.{_segment(payload)}"
    signature = hmac.new(key.encode(), signing_input.encode(), getattr(hashlib, digest)).digest()
    return f"{signing_input}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def _without(name: str) -> dict[str, object]:
    return {key: value for key, value in CLAIMS.items() if key != name}


def test_an_issued_token_is_read_back() -> None:
    claims = CODEC.read(CODEC.issue(USER, 3))
    assert (claims.user_id, claims.version) == (USER, 3)


def test_the_hand_made_token_of_these_tests_is_good() -> None:
    assert CODEC.read(_signed(CLAIMS)).user_id == USER


PUBLIC_KEY = "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----"

BAD = {
    "empty": "",
    "garbage": "abc",
    "two segments": "a.b",
    "four segments": _signed(CLAIMS) + ".x",
    "not base64": "!!!.???.***",
    "not ASCII": "é.é.é",
    "trailing newline": _signed(CLAIMS) + "\n",
    "cut signature": _signed(CLAIMS)[:-2],
    "no signature": _signed(CLAIMS).rsplit(".", 1)[0] + ".",
    "alg none": f"{_segment({'alg': 'none', 'typ': 'JWT'})}.{_segment(CLAIMS)}.",
    "alg None": f"{_segment({'alg': 'None', 'typ': 'JWT'})}.{_segment(CLAIMS)}.",
    "alg nOnE": f"{_segment({'alg': 'nOnE', 'typ': 'JWT'})}.{_segment(CLAIMS)}.",
    "alg none, signed": _signed(CLAIMS, {"alg": "none", "typ": "JWT"}),
    "alg HS384": _signed(CLAIMS, {"alg": "HS384", "typ": "JWT"}, digest="sha384"),
    "alg HS512": _signed(CLAIMS, {"alg": "HS512", "typ": "JWT"}, digest="sha512"),
    "alg RS256": _signed(CLAIMS, {"alg": "RS256", "typ": "JWT"}),
    "alg absent": _signed(CLAIMS, {"typ": "JWT"}),
    "alg list": _signed(CLAIMS, {"alg": ["HS256"], "typ": "JWT"}),
    "public key as secret": _signed(CLAIMS, key=PUBLIC_KEY),
    "other secret": _signed(CLAIMS, key=secrets.token_urlsafe(48)),
    "empty secret": _signed(CLAIMS, key=""),
    "kid": _signed(CLAIMS, {**HEADER, "kid": "../../dev/null"}),
    "jku": _signed(CLAIMS, {**HEADER, "jku": "https://evil.example/keys"}),
    "crit": _signed(CLAIMS, {**HEADER, "crit": ["exp"]}),
    "b64 false": _signed(CLAIMS, {**HEADER, "b64": False, "crit": ["b64"]}),
    "header typ": _signed(CLAIMS, {"alg": "HS256", "typ": "at+jwt"}),
    "deep header": _signed(CLAIMS, "[" * 400),
    "deep payload": _signed("[" * 500),
    "payload no object": _signed([1]),
    "repeated key": _signed(json.dumps(CLAIMS)[:-1] + f', "sub": "{uuid4()}"}}'),
    "repeated header key": _signed(CLAIMS, '{"alg":"HS256","typ":"JWT","alg":"HS256"}'),
    "exp past": _signed({**CLAIMS, "exp": NOW - 1}),
    "exp string": _signed({**CLAIMS, "exp": str(NOW + 3600)}),
    "exp float": _signed({**CLAIMS, "exp": NOW + 3600.5}),
    "exp null": _signed({**CLAIMS, "exp": None}),
    "exp infinite": _signed(json.dumps(CLAIMS).replace(str(NOW + 3600), "Infinity")),
    "exp list": _signed({**CLAIMS, "exp": [NOW + 3600]}),
    "iat future": _signed({**CLAIMS, "iat": NOW + 3000}),
    "iat string": _signed({**CLAIMS, "iat": str(NOW)}),
    "nbf future": _signed({**CLAIMS, "nbf": NOW + 3000}),
    "nbf past": _signed({**CLAIMS, "nbf": NOW - 3000}),
    "iss other": _signed({**CLAIMS, "iss": "someone"}),
    "iss list": _signed({**CLAIMS, "iss": ["citewire"]}),
    "aud": _signed({**CLAIMS, "aud": "citewire"}),
    "typ refresh": _signed({**CLAIMS, "typ": "refresh"}),
    "extra claim": _signed({**CLAIMS, "role": "admin"}),
    "ver string": _signed({**CLAIMS, "ver": "3"}),
    "ver bool": _signed({**CLAIMS, "ver": True}),
    "sub number": _signed({**CLAIMS, "sub": 1}),
    "sub no uuid": _signed({**CLAIMS, "sub": "1 or 1=1"}),
    "100 KB": _signed({**CLAIMS, "sub": "a" * 100_000}),
    "long and else right": _signed(json.dumps(CLAIMS) + " " * MAX_TOKEN_CHARS),
    **{f"no {name}": _signed(_without(name)) for name in CLAIMS},
}


@pytest.mark.parametrize("name", BAD)
def test_j05_anything_but_our_own_token_is_refused(name: str) -> None:
    with pytest.raises(Unauthorized):
        CODEC.read(BAD[name])


def test_j05_an_expired_token_is_refused() -> None:
    past = TokenCodec(SECRET, expire_minutes=5, now=lambda: datetime.now(UTC) - timedelta(minutes=6))
    with pytest.raises(Unauthorized):
        CODEC.read(past.issue(USER, 1))


def test_j05_a_huge_token_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwt, "decode", lambda *_, **__: pytest.fail("decoded"))
    with pytest.raises(Unauthorized):
        CODEC.read(BAD["100 KB"])


@given(st.text(max_size=200))
def test_j05_no_text_is_a_token(text: str) -> None:
    with pytest.raises(Unauthorized):
        CODEC.read(text)


@given(st.integers(min_value=0, max_value=400), st.integers(min_value=1, max_value=127))
def test_j05_one_changed_character_spoils_a_token(position: int, shift: int) -> None:
    token = CODEC.issue(USER, 3)
    position %= len(token)
    changed = token[:position] + chr((ord(token[position]) + shift) % 128) + token[position + 1 :]
    if position == len(token) - 1:  # the last character of a 32-byte signature carries two unused bits
        return
    with pytest.raises(Unauthorized):
        CODEC.read(changed)
