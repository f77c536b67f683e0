"""Collections: named sets of documents to ask about. Each belongs to one user."""

from fastapi import APIRouter

from backend.api.deps import CurrentLanguage, CurrentServices, CurrentUser, PathId
from backend.api.errors import COMMON_ERRORS, error_responses
from backend.catalogue import say
from backend.schemas.collection import (
    CollectionAdd,
    CollectionDeleteResponse,
    CollectionInfo,
    CollectionList,
    CollectionNamed,
)
from backend.schemas.documents import DocumentListResponse

router = APIRouter(prefix="/collections", tags=["collections"], responses=COMMON_ERRORS)


@router.post("", responses=error_responses("name_taken", "too_large"))
async def create(body: CollectionNamed, user: CurrentUser, services: CurrentServices) -> CollectionInfo:
    """Make an empty collection."""
    return await services.knowledge.collections.create(user.id, body.name)


@router.get("")
async def collections(user: CurrentUser, services: CurrentServices) -> CollectionList:
    """One's own, by name."""
    return CollectionList(collections=await services.knowledge.collections.of_user(user.id))


@router.patch("/{collection_id}", responses=error_responses("not_found", "name_taken"))
async def rename(
    collection_id: PathId, body: CollectionNamed, user: CurrentUser, services: CurrentServices
) -> CollectionInfo:
    """Give a collection another name."""
    return await services.knowledge.collections.rename(user.id, collection_id, body.name)


@router.delete("/{collection_id}", responses=error_responses("not_found"))
async def delete(
    collection_id: PathId, user: CurrentUser, language: CurrentLanguage, services: CurrentServices
) -> CollectionDeleteResponse:
    """Delete a collection; its documents stay."""
    await services.knowledge.collections.delete(user.id, collection_id)
    return CollectionDeleteResponse(collection_id=collection_id, message=say("collection_deleted", language))


@router.get("/{collection_id}/documents", responses=error_responses("not_found"))
async def documents(collection_id: PathId, user: CurrentUser, services: CurrentServices) -> DocumentListResponse:
    """The documents in a collection, newest first."""
    return DocumentListResponse(documents=await services.knowledge.list_collected(user, collection_id))


@router.post("/{collection_id}/documents", responses=error_responses("not_found", "too_large"))
async def add(
    collection_id: PathId, body: CollectionAdd, user: CurrentUser, services: CurrentServices
) -> CollectionInfo:
    """Put documents in, all or none; a collection holds 1,000 at most."""
    return await services.knowledge.collections.add(user.id, collection_id, body.document_ids)


@router.delete("/{collection_id}/documents/{document_id}", responses=error_responses("not_found"))
async def remove(
    collection_id: PathId, document_id: PathId, user: CurrentUser, services: CurrentServices
) -> CollectionInfo:
    """Take a document out."""
    return await services.knowledge.collections.remove(user.id, collection_id, document_id)
