"""What the search is restricted to. All is checked again afterwards, so only a test of this alone sees it."""

from uuid import UUID

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.infra.database.tables import CollectionDocument
from backend.knowledge.service import KnowledgeBase
from backend.schemas.auth import Principal


async def document(library: KnowledgeBase, user: Principal, name: str) -> UUID:
    """The id of a new document, visible as it is by default."""
    await library.upload(user, name, b"The boat of the north tower is red.")
    return next(info.document_id for info in await library.list_documents(user) if info.filename == name)


async def test_j03_the_versions_of_a_collection_are_those_that_its_owner_may_see(
    library: KnowledgeBase, engine: AsyncEngine, admin: Principal, alice: Principal, bob: Principal
) -> None:
    shared, own = await document(library, admin, "shared.txt"), await document(library, bob, "own.txt")
    foreign = await document(library, alice, "foreign.txt")
    mine = (await library.collections.create(bob.id, "mine")).collection_id
    await library.collections.add(bob.id, mine, [shared, own])
    allowed = await library.collections.versions(bob.id, [mine])
    assert len(allowed) == 2
    async with engine.begin() as connection:  # as if it had got in
        await connection.execute(insert(CollectionDocument).values(collection_id=mine, document_id=foreign))
    assert await library.collections.versions(bob.id, [mine]) == allowed


async def test_j03_anothers_collection_has_no_versions_even_of_shared_documents(
    library: KnowledgeBase, admin: Principal, alice: Principal, bob: Principal
) -> None:
    shared = await document(library, admin, "shared.txt")
    hers = (await library.collections.create(alice.id, "hers")).collection_id
    await library.collections.add(alice.id, hers, [shared])
    assert len(await library.collections.versions(alice.id, [hers])) == 1
    assert await library.collections.versions(bob.id, [hers]) == set()
