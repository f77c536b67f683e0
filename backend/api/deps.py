"""What routes may ask for: the services of this process, who asks, and in which language."""

import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, cast
from uuid import UUID

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BeforeValidator
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.requests import HTTPConnection, Request

from backend.api.config import ApiConfig, Network
from backend.auth.config import AuthConfig
from backend.auth.service import AuthService
from backend.catalogue import Language, choose_language
from backend.chat.service import ChatService
from backend.chat.thread_files import ThreadFiles
from backend.errors import NotFound, Unauthorized
from backend.infra.cache import Cache
from backend.infra.rate_limit import RateLimiter
from backend.knowledge.service import KnowledgeBase
from backend.schemas.auth import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the process is made of; the lifespan yields it as ``{"services": Services(…)}``."""

    engine: AsyncEngine
    cache: Cache
    rate_limiter: RateLimiter
    auth: AuthService
    chat: ChatService
    files: ThreadFiles
    knowledge: KnowledgeBase
    api_config: ApiConfig
    auth_config: AuthConfig


def services_of(connection: HTTPConnection) -> Services:
    """The services that the lifespan put into the state of this connection."""
    return cast(Services, connection.state.services)


async def get_services(request: Request) -> Services:
    """:func:`services_of` as a dependency."""
    return services_of(request)


def bearer_token(connection: HTTPConnection) -> str:
    """The token of the ``Authorization`` header, the only place it may be in. Raises :class:`Unauthorized`."""
    values = connection.headers.getlist("authorization")
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized
    return token.strip()


async def authenticate(connection: HTTPConnection) -> Principal:
    """Who asks, read once a request. Raises :class:`Unauthorized`."""
    known = getattr(connection.state, "principal", None)
    if isinstance(known, Principal):
        return known
    principal = await services_of(connection).auth.authenticate(bearer_token(connection))
    connection.state.principal = principal
    return principal


# Declares the scheme in OpenAPI; the header itself is read by `bearer_token`, as in the middleware.
_bearer = HTTPBearer(auto_error=False, description="The `access_token` of login or register.")


async def get_principal(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Principal:
    """:func:`authenticate` as a dependency."""
    return await authenticate(request)


async def get_language(request: Request) -> Language:
    """The language of texts for people, by ``Accept-Language``."""
    return choose_language(request.headers.get("accept-language"))


async def get_client_address(request: Request) -> str:
    """:func:`client_address` as a dependency."""
    return client_address(request, services_of(request).api_config.trusted_proxies)


def client_address(connection: HTTPConnection, trusted_proxies: tuple[str, ...]) -> str:
    """The address to count requests by; an IPv6 client is its /64, because it owns all of it.

    ``X-Forwarded-For`` is read from the right and only through proxies that are trusted; what a client wrote further
    left is never believed.
    """
    peer = connection.client.host if connection.client else ""
    hops = [peer]
    if trusted_proxies:
        forwarded = ",".join(connection.headers.getlist("x-forwarded-for"))
        hops += [hop.strip() for hop in reversed(forwarded.split(","))]
    networks = _networks(trusted_proxies)
    address = "unknown"
    for hop in hops:
        try:
            parsed = ipaddress.ip_address(hop)
        except ValueError:
            break
        address = _countable(parsed)
        if not any(parsed in network for network in networks):
            break
    return address


@lru_cache(maxsize=16)
def _networks(proxies: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(proxy) for proxy in proxies)


def _countable(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)


def path_id(value: str) -> UUID:
    """The id in a path. One that is no id is as unknown as any: raises :class:`NotFound`."""
    try:
        return UUID(value)
    except ValueError as error:
        raise NotFound from error


PathId = Annotated[UUID, BeforeValidator(path_id)]
CurrentServices = Annotated[Services, Depends(get_services)]
CurrentUser = Annotated[Principal, Depends(get_principal)]
CurrentLanguage = Annotated[Language, Depends(get_language)]
ClientAddress = Annotated[str, Depends(get_client_address)]
