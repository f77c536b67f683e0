"""The nginx example: what it must say and, where nginx is installed, that streams pass it event by event."""

import asyncio
import getpass
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import URL

from backend.settings import Settings
from tests.support.chat_client import PASSWORD, Client
from tests.support.fake_llm import FakeLLM, hang_after, text
from tests.support.server import ROOT, ServerProcess, free_port
from tests.support.waiting import until

EXAMPLE = (ROOT / "deploy" / "nginx.conf").read_text()
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
WORDS = ["one ", "two ", "three ", "four ", "five "]


@pytest.mark.parametrize(
    "setting",
    [
        "proxy_http_version 1.1",
        'proxy_set_header Connection ""',
        "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for",
        "proxy_buffering off",
        "proxy_cache off",
        "gzip off",
        "proxy_next_upstream off",
    ],
)
def test_what_streams_need_is_set(setting: str) -> None:
    assert f"\n    {setting};\n" in EXAMPLE


def test_the_proxy_waits_longer_than_a_model_call_and_takes_every_upload() -> None:
    settings = Settings(_env_file=None)  # type: ignore[call-arg]
    read_timeout = re.search(r"proxy_read_timeout (\d+)s;", EXAMPLE)
    body_size = re.search(r"client_max_body_size (\d+)m;", EXAMPLE)
    assert read_timeout is not None
    assert int(read_timeout[1]) > settings.llm_total_seconds
    assert body_size is not None
    assert int(body_size[1]) * 1024 * 1024 > settings.max_upload_bytes + 65_536


def _configuration(home: Path, upstream: int, plain: int, secure: int, buffering: str) -> str:
    """The example with other ports, certificate and ``buffering``, in a main file that writes to ``home`` only."""
    replaced = EXAMPLE
    for old, new in (
        ("server 127.0.0.1:8000;", f"server 127.0.0.1:{upstream};"),
        ("listen 80;", f"listen 127.0.0.1:{plain};"),
        ("listen 443 ssl http2;", f"listen 127.0.0.1:{secure} ssl http2;"),
        ("proxy_buffering off;", f"proxy_buffering {buffering};"),
        ("/etc/ssl/certs/citewire.pem", str(home / "citewire.pem")),
        ("/etc/ssl/private/citewire.key", str(home / "citewire.key")),
    ):
        assert replaced.count(old) == 1, old
        replaced = replaced.replace(old, new)
    paths = "".join(
        f"  {kind}_temp_path {home / kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"daemon off;\nuser {getpass.getuser()};\nworker_processes 1;\n"
        f"error_log {home / 'error.log'} info;\npid {home / 'nginx.pid'};\n"
        f"events {{}}\nhttp {{\n  access_log {home / 'access.log'};\n{paths}{replaced}}}\n"
    )


def _certificate(home: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=citewire.example.com"
    subprocess.run(
        [*command.split(), "-keyout", home / "citewire.key", "-out", home / "citewire.pem"],
        check=True,
        capture_output=True,
    )


@asynccontextmanager
async def proxied(home: Path, upstream: int, buffering: str) -> AsyncIterator[tuple[str, str]]:
    """nginx with the example in front of the server at ``upstream``; gives the plain and the secure address."""
    assert NGINX is not None
    home.chmod(0o755)
    _certificate(home)
    plain, secure = free_port(), free_port()
    (home / "nginx.conf").write_text(_configuration(home, upstream, plain, secure, buffering))
    arguments = ["-p", str(home), "-e", str(home / "error.log"), "-c", str(home / "nginx.conf")]
    process = await asyncio.create_subprocess_exec(NGINX, *arguments)

    async def listening() -> bool:
        assert process.returncode is None, (home / "error.log").read_text()
        try:
            async with httpx.AsyncClient() as http:
                return (await http.get(f"http://127.0.0.1:{plain}/")).status_code == 301
        except httpx.TransportError:
            return False

    try:
        await until(listening)
        yield f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{secure}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest.fixture
async def behind_nginx(
    request: pytest.FixtureRequest, tmp_path: Path, data_dir: Path, database_url: URL, redis_url: str
) -> AsyncIterator[tuple[Client, FakeLLM, str]]:
    """A signed-in client that speaks to the server through nginx, the model behind it, and the plain address.

    The parameter is ``proxy_buffering``, by default as in the example.
    """
    async with FakeLLM() as llm:
        env = {
            "LLM_BASE_URL": llm.base_url,
            "LLM_MODEL": "fake",
            "TRUSTED_PROXIES": "127.0.0.1",
            "LOGIN_RATE_PER_MINUTE": "3",
        }
        async with (
            ServerProcess(data_dir, database_url=database_url, redis_url=redis_url, env=env) as server,
            proxied(tmp_path, server.port, getattr(request, "param", "off")) as (plain, secure),
            httpx.AsyncClient(base_url=secure, verify=False, timeout=60) as http,
        ):
            answer = await http.post("/auth/register", json={"username": "ada", "password": PASSWORD})
            assert answer.status_code == 200, answer.text
            http.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
            yield Client(http, "ada"), llm, plain


@needs_nginx
@pytest.mark.parametrize(
    "behind_nginx",
    [pytest.param("off", id="example"), pytest.param("on", id="header alone")],
    indirect=True,
)
async def test_a01_a_word_is_seen_before_the_model_says_the_next(
    behind_nginx: tuple[Client, FakeLLM, str],
) -> None:
    client, llm, _ = behind_nginx
    # Each answer falls silent for good after its last word: what is seen then was held by nobody.
    for count in range(1, len(WORDS) + 1):
        llm.script(hang_after(count, "".join(WORDS)))
        said = "".join(WORDS[:count]).rstrip()
        async with client.stream("How long?", f"s{count}") as stream:
            assert stream.response.headers["content-type"].startswith("text/event-stream")
            await stream.until_text(said)
            assert not stream.done
            for after in (0, 1):  # a replay passes alike, whole and from a cursor on
                async with client.follow(stream.run_id, after) as second:
                    await second.until_text(said)
                    assert not second.done
            if count == 1:  # signs of life pass as well while the model is silent
                await stream.until(lambda seen: seen.raw.count(b": ping\n\n") >= 2)
            await client.stop(stream.run_id)
            await stream.end()
            assert stream.done
        assert (await client.replay(stream.run_id)).events == stream.events
    assert llm.violations == []


@needs_nginx
async def test_what_is_no_stream_passes_with_the_address_of_the_client(
    behind_nginx: tuple[Client, FakeLLM, str],
) -> None:
    client, llm, plain = behind_nginx
    llm.script(text("".join(WORDS)))
    answer = await client.post("/chat", {"message": "How long?"})
    assert answer.json()["response"].strip() == "".join(WORDS).strip()
    content = b"A line that is long enough to count.\n" * 60_000  # 2 MB: more than nginx takes by default
    sent = await client.http.post("/documents/upload", files={"file": ("large.bin", content)})
    assert sent.status_code == 415, sent.text
    async with httpx.AsyncClient() as http:
        moved = await http.get(f"{plain}/sessions?limit=5")
    assert (moved.status_code, moved.headers["location"]) == (301, "https://127.0.0.1/sessions?limit=5")

    async def sign_in(forwarded: str) -> int:
        wrong = {"username": "ada", "password": "not the password"}
        return (await client.post("/auth/login", wrong, headers={"X-Forwarded-For": forwarded})).status_code

    # The proxy appends 127.0.0.1, which is trusted, so the entry before it counts: another address, another count.
    assert [await sign_in("203.0.113.1") for _ in range(4)] == [401, 401, 401, 429]
    assert await sign_in("203.0.113.2") == 401
