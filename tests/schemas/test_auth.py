"""Usernames and bodies with secrets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from backend.schemas.auth import LoginRequest, RegisterRequest, fold_username, normalize_username


@given(st.text(max_size=80))
def test_a_normalized_name_is_its_own_normal_form(text: str) -> None:
    try:
        name = normalize_username(text)
    except ValueError:
        return
    assert normalize_username(name) == name == fold_username(text)
    assert 1 <= len(name) <= 64
    assert name.isprintable()
    assert " " not in name


@given(st.text(alphabet="abcXYZ0189._-@", min_size=1, max_size=64))
def test_plain_names_pass_in_any_case(text: str) -> None:
    assert normalize_username(text) == text.lower()
    assert normalize_username(f" {text.upper()} ") == text.lower()


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a\tb", "\u200b", "a\u200d", "\u3164", "\u2800", "\ud800", "x" * 65, "ﬃ" * 22]
)
def test_names_that_cannot_be_seen_or_are_too_long(name: str) -> None:
    with pytest.raises(ValueError, match="must"):
        normalize_username(name)


def test_a_body_never_shows_its_secrets() -> None:
    body = RegisterRequest.model_validate({"username": "a", "password": "kanarie-1", "admin_code": "kanarie-2"})
    assert "kanarie" not in repr(body) + str(body) + body.model_dump_json()
    with pytest.raises(ValidationError) as caught:
        LoginRequest.model_validate({"username": "a", "password": ["kanarie"]})
    assert "kanarie" not in str(caught.value)
