"""Each experiment is a test, each repeat one of its parameters; without the plugin beside it runs its short form."""

import random
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack
from tests.chaos.plugin import SEED
from tests.chaos.rig import Trial, pair, whole
from tests.support.chat_client import Client

SHORT_SEED = 7


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat: ``--chaos-repeats``, those marked ``race`` more often; once in the short form."""
    if "repeat" not in metafunc.fixturenames:
        return
    repeats = metafunc.config.getoption("--chaos-repeats", 1)
    if metafunc.definition.get_closest_marker("race") is not None:
        repeats = max(repeats, metafunc.config.getoption("--chaos-races", 1))
    metafunc.parametrize("repeat", range(repeats), ids=[f"repeat{number}" for number in range(repeats)])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of each experiment the short form has the first and the last of its variants."""
    if SEED in config.stash:
        return
    variants: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            variants[item.nodeid.partition("[")[0]].append(item)
    left_out = {id(item) for same in variants.values() for item in same[1:-1]}
    items[:] = [item for item in items if id(item) not in left_out]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def workers(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    """The two workers of the experiments that need no other ones."""
    async with pair(postgres_url, valkey_url, f"chaos_{worker_id}") as made:
        yield made


@pytest.fixture
def seeded(request: pytest.FixtureRequest, repeat: int) -> random.Random:
    """Chance, the same for the same seed, experiment and repeat."""
    seed = request.config.stash.get(SEED, SHORT_SEED)
    return random.Random(f"{seed} {request.node.name}")


@pytest.fixture
def full(pytestconfig: pytest.Config) -> bool:
    return SEED in pytestconfig.stash


@pytest_asyncio.fixture(loop_scope="session")
async def trial(
    request: pytest.FixtureRequest, shared: Rack, seeded: random.Random, repeat: int, full: bool
) -> AsyncIterator[Trial]:
    """One repeat on the workers of the module's fixture ``shared``, which are whole and empty now."""
    await whole(shared)
    assert shared.peer is not None
    owner, other = (shared.server, shared.peer) if repeat % 2 == 0 else (shared.peer, shared.server)
    request.node.user_properties.append(("title", _title(request)))

    def note(name: str, value: float) -> None:
        request.node.user_properties.append((name, value))

    yield Trial(shared, owner, other, seeded, full, note)
    await shared.postgres.restore()
    await shared.redis.restore()


@pytest_asyncio.fixture(loop_scope="session")
async def shared(workers: Rack) -> Rack:
    return workers


@pytest_asyncio.fixture(loop_scope="session")
async def alice(trial: Trial) -> AsyncIterator[tuple[Client, Client]]:
    """An account at the owner and at the other worker."""
    async with trial.user() as both:
        yield both


def _title(request: pytest.FixtureRequest) -> str:
    """The first line of what the experiment says of itself, and its variant."""
    said = str(request.function.__doc__).strip().splitlines()[0].rstrip(".")
    words = [str(value) for name, value in request.node.callspec.params.items() if name != "repeat"]
    return f"{said}: {', '.join(words)}" if words else said
