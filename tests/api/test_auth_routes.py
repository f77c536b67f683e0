"""Register, login, me, password over HTTP."""

import httpx
import pytest
from sqlalchemy import text

from backend.api.deps import Services
from backend.auth.config import AuthConfig
from backend.infra.database.engine import transaction
from tests.api.conftest import INVITE, PASSWORD, bearer

CREDENTIALS = {"username": "alice", "password": PASSWORD}


async def test_register_login_me_password(client: httpx.AsyncClient) -> None:
    registered = await client.post("/auth/register", json=CREDENTIALS)
    assert registered.status_code == 200
    body = registered.json()
    assert set(body) == {"access_token", "token_type", "username", "role"}
    assert (body["token_type"], body["username"], body["role"]) == ("bearer", "alice", "admin")
    login = await client.post("/auth/login", json=CREDENTIALS)
    assert login.status_code == 200
    token = login.json()["access_token"]
    me = await client.get("/auth/me", headers=bearer(token))
    assert me.json() == {"username": "alice", "role": "admin"}
    changed = await client.post("/auth/password", json={"old": PASSWORD, "new": "another horse"}, headers=bearer(token))
    assert changed.status_code == 200
    assert (await client.get("/auth/me", headers=bearer(token))).status_code == 401
    assert (await client.get("/auth/me", headers=bearer(changed.json()["access_token"]))).status_code == 200
    assert (await client.post("/auth/login", json=CREDENTIALS)).status_code == 401


async def test_refusals_have_their_codes(client: httpx.AsyncClient, token: str) -> None:
    taken = await client.post("/auth/register", json=CREDENTIALS)
    assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
    uninvited = await client.post(
        "/auth/register", json={"username": "bob", "password": PASSWORD, "role": "admin", "admin_code": "no"}
    )
    assert (uninvited.status_code, uninvited.json()["code"]) == (403, "forbidden")
    invited = await client.post(
        "/auth/register", json={"username": "bob", "password": PASSWORD, "role": "admin", "admin_code": INVITE}
    )
    assert (invited.status_code, invited.json()["role"]) == (200, "admin")
    wrong_old = await client.post(
        "/auth/password", json={"old": "not my password", "new": PASSWORD}, headers=bearer(token)
    )
    assert (wrong_old.status_code, wrong_old.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer x.y.z"},
        {"Authorization": "Basic YWxpY2U6cGFzc3dvcmQ="},
        {"Cookie": "access_token=x"},
    ],
)
async def test_no_valid_token_is_unauthorized(client: httpx.AsyncClient, header: dict[str, str]) -> None:
    answer = await client.get("/auth/me", headers=header)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_two_authorization_headers_are_refused(client: httpx.AsyncClient, token: str) -> None:
    value = f"Bearer {token}"
    answer = await client.get("/auth/me", headers=[("Authorization", value), ("Authorization", value)])
    assert answer.status_code == 401


async def test_j07_a_token_in_the_query_is_refused(client: httpx.AsyncClient, token: str) -> None:
    for name in ("access_token", "token", "Access_Token", "authorization", "jwt"):
        assert (await client.get("/auth/me", params={name: token})).status_code == 401
        both = await client.get("/auth/me", params={name: token}, headers=bearer(token))
        assert (both.status_code, both.json()["code"]) == (401, "unauthorized")
        assert token not in both.text


async def test_j08_unknown_name_and_wrong_password_look_the_same(client: httpx.AsyncClient, token: str) -> None:
    answers = []
    for name in ("alice", "nobody", "nobody else", "\u200b"):
        answer = await client.post(
            "/auth/login", json={"username": name, "password": "wrong horse"}, headers={"X-Request-Id": "fixed"}
        )
        answers.append((answer.status_code, answer.content, sorted(answer.headers.items())))
    assert answers[0][0] == 401
    assert answers.count(answers[0]) == len(answers)


@pytest.mark.parametrize("extra", ["user_id", "id", "is_admin", "created_at", "status", "owner", "token_version"])
async def test_j14_unknown_keys_are_refused(client: httpx.AsyncClient, token: str, extra: str) -> None:
    for path, body in (
        ("/auth/register", {"username": "bob", "password": PASSWORD}),
        ("/auth/login", CREDENTIALS),
        ("/auth/password", {"old": PASSWORD, "new": "another horse"}),
    ):
        answer = await client.post(path, json={**body, extra: "1"}, headers=bearer(token))
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_error")
    assert (await client.get("/auth/me", headers=bearer(token))).status_code == 200


async def test_j14_a_role_cannot_be_asked_for(client: httpx.AsyncClient, token: str) -> None:
    asked = await client.post("/auth/register", json={"username": "bob", "password": PASSWORD, "role": "user"})
    assert asked.json()["role"] == "user"
    for role in ("root", "ADMIN", "", 1, ["admin"]):
        body = {"username": "eve", "password": PASSWORD, "role": role}
        assert (await client.post("/auth/register", json=body)).status_code == 422
    login = await client.post("/auth/login", json={"username": "bob", "password": PASSWORD, "role": "admin"})
    assert login.status_code == 422


@pytest.mark.parametrize("name", ["{{7*7}}", "{0.__class__}", "%s", "${PATH}", "';--", "{detail}"])
async def test_j16_a_name_is_literal_text(client: httpx.AsyncClient, token: str, name: str) -> None:
    registered = await client.post("/auth/register", json={"username": name, "password": name + PASSWORD})
    assert registered.json()["username"] == name.casefold()
    me = await client.get("/auth/me", headers=bearer(registered.json()["access_token"]))
    assert me.json()["username"] == name.casefold()


async def test_d01_nul_and_surrogates_in_credentials(client: httpx.AsyncClient, services: Services) -> None:
    raw = b'{"username": "al\\u0000ice\\ud800", "password": "correct\\u0000 horse \\udfff"}'
    headers = {"Content-Type": "application/json"}
    registered = await client.post("/auth/register", content=raw, headers=headers)
    assert (registered.status_code, registered.json()["username"]) == (200, "alice\ufffd")
    assert (await client.post("/auth/login", content=raw, headers=headers)).status_code == 200
    async with transaction(services.engine) as connection:
        names = list((await connection.execute(text("select username from users"))).scalars())
    assert names == ["alice\ufffd"]


@pytest.mark.parametrize(
    "username", ["", " ", "a b", "a" * 65, "\u200b", "a\u202eb", "\u3164", "\u0000", "new\nline", "\U000e0041"]
)
async def test_names_that_cannot_be_seen_are_refused(client: httpx.AsyncClient, username: str) -> None:
    answer = await client.post("/auth/register", json={"username": username, "password": PASSWORD})
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_error")
    assert answer.json()["errors"][0]["loc"] == ["body", "username"]


@pytest.mark.parametrize("password", ["", "short12", "x" * 1025])
async def test_passwords_out_of_bounds_are_refused(client: httpx.AsyncClient, password: str) -> None:
    answer = await client.post("/auth/register", json={"username": "alice", "password": password})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["body", "password"]


class TestRateLimits:
    @pytest.fixture
    def auth_config(self) -> AuthConfig:
        return AuthConfig(login_rate_per_minute=3, register_rate_per_minute=2)

    async def test_j08_logins_are_limited_by_name_and_address(self, client: httpx.AsyncClient, token: str) -> None:
        wrong = {"username": "alice", "password": "wrong horse"}
        statuses = [(await client.post("/auth/login", json=wrong)).status_code for _ in range(4)]
        assert statuses == [401, 401, 401, 429]
        respelled = await client.post("/auth/login", json={"username": " ALICE", "password": PASSWORD})
        assert (respelled.status_code, respelled.json()["code"]) == (429, "rate_limited")
        assert 1 <= int(respelled.headers["Retry-After"]) <= 21
        unknown = {"username": "nobody", "password": "wrong horse"}
        statuses = [(await client.post("/auth/login", json=unknown)).status_code for _ in range(4)]
        assert statuses == [401, 401, 401, 429]

    async def test_registrations_are_limited_by_address(self, client: httpx.AsyncClient) -> None:
        statuses = [
            (await client.post("/auth/register", json={"username": f"u{n}", "password": PASSWORD})).status_code
            for n in range(3)
        ]
        assert statuses == [200, 200, 429]

    async def test_an_address_in_a_header_is_not_believed(self, client: httpx.AsyncClient) -> None:
        statuses = [
            (
                await client.post(
                    "/auth/register",
                    json={"username": f"u{n}", "password": PASSWORD},
                    headers={"X-Forwarded-For": f"10.0.0.{n}"},
                )
            ).status_code
            for n in range(3)
        ]
        assert statuses == [200, 200, 429]
