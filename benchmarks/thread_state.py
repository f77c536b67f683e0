"""What a conversation with files carries from turn to turn: bytes in its row, and how often an image is paid for.

Each turn uploads a table and a photo anew, looks at the photo, writes a report, hands it over, and ends.
"""

import argparse
import asyncio
import io
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from sqlalchemy import text as sql
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from backend.infra.embedded.postgres import embedded_postgres
from benchmarks.harness import Target, ask, client, figures, register, report
from tests.support.fake_llm import FakeLLM, Reply, Request, text, tool_calls
from tests.support.server import ServerProcess

TURNS, WARM = 200, 10
PHOTO, REPORT = "/mnt/user-data/uploads/photo.png", "/mnt/user-data/outputs/report.md"
_ROW = """
select octet_length(thread_state::text), octet_length(metadata::text), pg_column_size(s.*)
from chat_sessions s where session_id = 's'
"""


def play(request: Request) -> Reply:
    """Looks and writes, hands over, answers: three calls a turn."""
    asked = max(at for at, message in enumerate(request.messages) if _said(message))
    steps = sum(1 for message in request.messages[asked:] if message.get("tool_calls"))
    if steps == 0:
        return tool_calls(
            ("view_image", {"path": PHOTO}), ("write_file", {"path": REPORT, "content": "# Report\n\nA photo.\n"})
        )
    return tool_calls(("present_files", {"paths": [REPORT]})) if steps == 1 else text("Done.")


def _said(message: dict[str, Any]) -> bool:
    return message["role"] == "user" and isinstance(message["content"], str)


def photo(pixels: int = 512) -> bytes:
    """A picture that does not compress."""
    image = Image.frombytes("RGB", (pixels, pixels), random.Random(1).randbytes(3 * pixels * pixels))
    made = io.BytesIO()
    image.save(made, "PNG")
    return made.getvalue()


async def row_bytes(engine: AsyncEngine) -> tuple[int, int, int]:
    """Of the session's row: the thread's state, the metadata, the whole row as it is stored."""
    async with engine.connect() as connection:
        state, meta, row = (await connection.execute(sql(_ROW))).one()
        return int(state), int(meta), int(row)


async def upload(http: httpx.AsyncClient, target: Target, picture: bytes) -> None:
    """Both files; they replace those of the turn before."""
    files = [("file", ("table.csv", b"a,b\n1,2\n")), ("file", ("photo.png", picture))]
    answer = await http.post(f"{target.url}/sessions/s/uploads", headers=target.headers, files=files)
    answer.raise_for_status()


async def run(data_dir: Path, llm: FakeLLM, turns: int) -> list[tuple[int, int, int]]:
    """The bytes of the row after each turn."""
    env = {"LLM_BASE_URL": llm.base_url, "LLM_MODEL": "scripted", "LLM_API_KEY": "none", "LOG_LEVEL": "warning"}
    limits = {"CHAT_RATE_PER_MINUTE": "0", "MODEL_TITLES": "false"}
    found: list[tuple[int, int, int]] = []
    picture = photo()
    async with ServerProcess(data_dir, env={**env, **limits}) as server, client() as http:
        with embedded_postgres(data_dir) as url:
            engine = create_async_engine(url)
            headers = {"Authorization": f"Bearer {await register(server.url)}"}
            target = Target("citewire", server.url, "/chat/stream", headers, server.pid)
            for _ in range(turns):
                await upload(http, target, picture)
                await ask(http, target, "s", "What does the photo show?")
                found.append(await row_bytes(engine))
            await engine.dispose()
    return found


async def main(turns: int) -> None:
    """One conversation."""
    data_dir = Path(tempfile.mkdtemp(prefix="citewire-bench-"))
    data_dir.chmod(0o711)
    try:
        async with FakeLLM(default=play) as llm:
            found = await run(data_dir, llm, turns)
            images = llm.images
            assert llm.violations == []
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)
    states = [state for state, _, _ in found]
    report(
        "thread_state",
        "the bytes of a turn's state are the same after every turn; an image is in one call of its turn",
        state_bytes=figures(states, 0),
        state_growth_after_warm_up=states[-1] - states[min(WARM, len(states)) - 1],
        row_bytes={"first": found[0][2], "last": found[-1][2]},
        calls=len(images),
        calls_with_an_image=sum(1 for count in images if count),
        images_a_turn=round(sum(images) / turns, 3),
        turns=turns,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    asyncio.run(main(parser.parse_args().turns))
