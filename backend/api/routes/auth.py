"""Accounts: register, sign in, who am I, new password."""

import hashlib

from fastapi import APIRouter

from backend.api.deps import ClientAddress, CurrentServices, CurrentUser
from backend.api.errors import COMMON_ERRORS, error_responses
from backend.auth.service import SignedIn
from backend.schemas.auth import (
    LoginRequest,
    MeResponse,
    PasswordRequest,
    RegisterRequest,
    TokenResponse,
    fold_username,
)

router = APIRouter(prefix="/auth", tags=["auth"], responses=COMMON_ERRORS)


@router.post("/register", responses=error_responses("forbidden", "name_taken", "too_large", "rate_limited"))
async def register(body: RegisterRequest, services: CurrentServices, address: ClientAddress) -> TokenResponse:
    """Make an account. The first one of an install is admin; later admins need the invite code."""
    await services.rate_limiter.check(f"register:{address}", services.auth_config.register_rate_per_minute)
    signed_in = await services.auth.register(body.username, body.password, role=body.role, admin_code=body.admin_code)
    return _token_response(signed_in)


@router.post("/login", responses=error_responses("too_large", "rate_limited"))
async def login(body: LoginRequest, services: CurrentServices, address: ClientAddress) -> TokenResponse:
    """Sign in. A wrong name and a wrong password look the same."""
    key = f"login:{address}:{_name_key(body.username)}"
    await services.rate_limiter.check(key, services.auth_config.login_rate_per_minute)
    return _token_response(await services.auth.login(body.username, body.password))


@router.get("/me")
async def me(user: CurrentUser) -> MeResponse:
    """The account behind the token."""
    return MeResponse(username=user.username, role=user.role)


@router.post("/password", responses=error_responses("forbidden", "too_large", "rate_limited"))
async def change_password(body: PasswordRequest, user: CurrentUser, services: CurrentServices) -> TokenResponse:
    """Set a new password. Every token of the account ends; the answer holds a new one."""
    await services.rate_limiter.check(f"password:{user.id}", services.auth_config.login_rate_per_minute)
    return _token_response(await services.auth.change_password(user, body.old, body.new))


def _token_response(signed_in: SignedIn) -> TokenResponse:
    who = signed_in.principal
    return TokenResponse(access_token=signed_in.access_token, username=who.username, role=who.role)


def _name_key(username: str) -> str:
    """All spellings of one account count together; the name itself does not go into Redis."""
    return hashlib.sha256(fold_username(username).encode(errors="replace")).hexdigest()[:32]
