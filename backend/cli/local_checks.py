"""What ``citewire doctor`` sees without asking any server: Python, options, directories, port."""

import difflib
import errno
import platform
import shlex
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
from dotenv import dotenv_values

from backend.auth.secret import SECRET_FILE, load_or_create_secret
from backend.cli.findings import Finding, failed, ok, warn
from backend.infra.files import DOCUMENTS, INDEX, THREADS
from backend.settings import Settings, SettingsError, load_settings

ENV_FILE = Path(".env")
LOW_DISK_BYTES = 1024**3
HTTP_SECONDS = 5.0
_PLATFORMS = {("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")}
_CLIENT_NAMES = {"CITEWIRE_URL", "CITEWIRE_TOKEN", "CITEWIRE_CONFIG_DIR"}


def check_platform() -> Finding:
    """Python and the machine."""
    text = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if (sys.platform, platform.machine()) not in _PLATFORMS:
        return warn("Python", f"{text}; the embedded servers and the built-in model are made for Linux and macOS arm64")
    return ok("Python", text)


def check_env_file() -> Iterator[Finding]:
    """Names in ``.env`` that no option has, and who may read it."""
    if not ENV_FILE.exists():
        yield ok(".env", "there is none; options come from the environment")
        return
    try:
        names = [name.upper() for name in dotenv_values(ENV_FILE, interpolate=False)]
        mode = ENV_FILE.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        yield failed(".env", f"cannot be read ({_reason(error)})", "ls -l .env")
        return
    known = {name.upper() for name in Settings.model_fields} | _CLIENT_NAMES
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            yield warn(".env", f"{name} is no option" + (f"; do you mean {near[0]}?" if near else ""))
    if mode & 0o077 and any(name.endswith(("_KEY", "_URL", "_CODE")) for name in names):
        yield warn(".env", "others on this machine may read it", "chmod 600 .env")
    yield ok(".env", f"{len(names)} options")


def check_settings() -> Settings | list[Finding]:
    """The options, or a finding for each that is wrong."""
    try:
        return load_settings(ENV_FILE)
    except SettingsError as error:
        return [
            failed("Options", problem, "set it right in .env; .env.example explains it") for problem in error.problems
        ]
    except (OSError, UnicodeDecodeError) as error:
        return [failed("Options", f".env cannot be read ({_reason(error)})", "ls -l .env")]


def check_data_dir(data_dir: Path) -> Iterator[Finding]:
    """A directory of ours that we can write, that nobody else can, and that has room."""
    what, place = "DATA_DIR", shlex.quote(str(data_dir))
    try:
        mode = data_dir.stat().st_mode
    except FileNotFoundError:
        yield ok(what, f"{data_dir} does not exist yet; the server makes it")
        return
    except OSError as error:
        yield failed(what, f"{data_dir}: {_reason(error)}", f"ls -ld {place}")
        return
    if not stat.S_ISDIR(mode):
        yield failed(what, f"{data_dir} is not a directory", f"mv {place} {place}.old")
        return
    try:
        with tempfile.TemporaryFile(dir=data_dir):
            pass
    except OSError as error:
        yield failed(what, f"{data_dir} cannot be written ({_reason(error)})", f"sudo chown -R $(id -un) {place}")
        return
    findings = [*_check_privacy(data_dir), *_check_room(data_dir)]
    yield from findings or [ok(what, f"{data_dir} is writable and private")]


def _check_privacy(data_dir: Path) -> Iterator[Finding]:
    if data_dir.stat().st_mode & stat.S_IWOTH:
        yield failed("DATA_DIR", f"everybody may write to {data_dir}", f"chmod o-w {shlex.quote(str(data_dir))}")
    for name in (DOCUMENTS, INDEX, THREADS):
        path = data_dir / name
        if not path.exists():
            continue
        place = shlex.quote(str(path))
        if not path.is_dir():
            yield failed("DATA_DIR", f"{path} is not a directory", f"mv {place} {place}.old")
        elif path.stat().st_mode & 0o077:
            yield warn("DATA_DIR", f"others on this machine may look into {path}", f"chmod 700 {place}")


def _check_room(data_dir: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(data_dir).free
    if free < LOW_DISK_BYTES:
        yield warn("DATA_DIR", f"{free // 1024**2} MiB are free", f"df -h {shlex.quote(str(data_dir))}")


def check_signing_key(settings: Settings) -> Finding:
    """The key of the tokens; one that was not made yet is not made here."""
    embedded = settings.database_url is None
    path = settings.data_dir / SECRET_FILE
    if embedded and settings.jwt_secret_key is None and not path.exists():
        return ok("Signing key", "the server makes it at its first start")
    remedy = "echo JWT_SECRET_KEY=$(openssl rand -base64 48) >> .env"
    if embedded and settings.jwt_secret_key is None:
        remedy = f"rm {shlex.quote(str(path))}"
    try:
        load_or_create_secret(settings.data_dir, settings.jwt_secret_key, embedded=embedded)
    except ValueError as error:
        return failed("Signing key", str(error), remedy)
    return ok("Signing key", "strong enough")


def check_port(settings: Settings) -> Finding:
    """Whether the server can listen, or does so already."""
    place = f"{settings.host}:{settings.port}"
    try:
        family, kind, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _who_listens(settings)
        return failed(
            "Port", f"cannot listen on {place} ({_reason(error)})", "citewire serve --host 127.0.0.1 --port 8000"
        )
    return ok("Port", f"{place} is free")


def _who_listens(settings: Settings) -> Finding:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    url = f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
    try:
        answer = httpx.get(f"{url}/health/ready", timeout=HTTP_SECONDS, trust_env=False).json()
        status, parts = answer["status"], answer["dependencies"]
        down = [name for name, state in parts.items() if state != "ok"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return failed(
            "Port", f"{settings.port} is used by another program", f"citewire serve --port {settings.port % 65535 + 1}"
        )
    if down:
        return warn("Port", f"Citewire answers at {url} and is {status}: {', '.join(down)}", "restart the server")
    return ok("Port", f"Citewire answers at {url}")


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
