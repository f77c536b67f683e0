"""What a stream belongs to is taken away while it runs: its session, or its account."""

import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from backend.auth.repository import AccountRepository
from tests.acceptance.test_deletion import MARKER
from tests.chaos.rig import WORDS, Trial
from tests.support.chat_client import PASSWORD, Client
from tests.support.fake_llm import text

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def tables_with_marker(trial: Trial) -> set[str]:
    tables = [row[0] for row in await trial.at.sql("select tablename from pg_tables where schemaname = 'public'")]
    found = set[str]()
    for table in tables:
        query = f"select count(*) from {table} t where strpos(t::text, :marker) > 0"
        if (await trial.at.sql(query, marker=MARKER))[0][0]:
            found.add(table)
    return found


async def test_session_deleted(trial: Trial, alice: tuple[Client, Client]):
    """A session is deleted on the other worker while its answer streams"""
    here, there = alice
    trial.at.llm.script(text(f"{MARKER} " * 400, delay=0.02))
    async with here.stream(f"{MARKER}?") as stream, there.follow(stream.run_id) as elsewhere:
        wanted = trial.random.randrange(1, 20)
        await stream.until(lambda got: got.text.count(MARKER) >= wanted)
        await elsewhere.until(lambda got: MARKER in got.text)
        assert (await there.http.delete("/sessions/s")).status_code == 200
        await stream.end()
        await elsewhere.end()
    await trial.at.llm.chats[-1].ended.wait()
    assert trial.at.llm.chats[-1].closed_by_client
    assert await tables_with_marker(trial) == set()
    for client in alice:
        assert await client.messages() == []
        assert (await client.get("/sessions")).json()["sessions"] == []
        assert (await client.get(f"/chat/runs/{stream.run_id}")).status_code == 404
        assert (await client.get(f"/chat/runs/{stream.run_id}/stream")).status_code == 404
    trial.at.llm.script(text("new"))
    assert (await there.ask("new")).text == "new"
    await trial.check(turns=1)


async def set_disabled(trial: Trial, name: str, disabled: bool) -> None:
    """As ``citewire user disable`` does it, beside the servers."""
    engine = create_async_engine(trial.at.database, poolclass=NullPool)
    await AccountRepository(engine).set_disabled(name, disabled)
    await engine.dispose()


async def test_user_disabled(trial: Trial, alice: tuple[Client, Client]):
    """A user is disabled while the answer streams"""
    here, there = alice
    trial.at.llm.default = text(WORDS, delay=0.1)
    async with here.stream() as stream, there.follow(stream.run_id) as elsewhere:
        await stream.until_text("two")
        await elsewhere.until_text("one")
        await set_disabled(trial, here.name, True)
        for client in alice:
            for answer in (
                await client.get("/sessions"),
                await client.get(f"/chat/runs/{stream.run_id}/stream"),
                await client.post("/chat", {"message": "more", "session_id": "t"}),
                await client.post(f"/chat/runs/{stream.run_id}/stop"),
            ):
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        await stream.end()
        await elsewhere.end()
    assert stream.text == elsewhere.text == WORDS, "what was accepted is answered"
    login = {"username": here.name, "password": PASSWORD}
    assert (await there.post("/auth/login", login)).status_code == 401
    await set_disabled(trial, here.name, False)
    token = (await there.post("/auth/login", login)).json()["access_token"]
    there.http.headers["Authorization"] = f"Bearer {token}"
    assert [item["content"] for item in await there.messages()] == ["How long?", WORDS]
    await trial.check(stream, elsewhere, turns=1)
