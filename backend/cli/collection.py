"""``citewire collection``: named sets of documents, to ask about with ``--collection``."""

from typing import Annotated, Any

import httpx
import typer

from backend.cli.client import ServerRefused, answer_of, connect, explained
from backend.cli.credentials import ConfigDirOption, TokenOption, UrlOption, resolve
from backend.cli.output import confirm, console, fail, one_line

Json = dict[str, Any]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the collection, or its id.")]
DocumentsArgument = Annotated[
    list[str], typer.Argument(metavar="DOCUMENT...", help="Names of documents as the library has them, or their ids.")
]
CollectionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--collection", metavar="NAME", help="Ask about the documents of this collection alone; may be repeated."
    ),
]

collection = typer.Typer(no_args_is_help=True, help="Named sets of documents, to ask about with --collection.")


@collection.command("list")
def list_collections(url: UrlOption = None, token: TokenOption = None, config_dir: ConfigDirOption = None) -> None:
    """Your collections, each with the number of its documents."""
    with explained(), connect(resolve(url, token, config_dir)) as client:
        found = _collections(client)
    for one in found:
        console.print(f"{one['document_count']:>5}  {one_line(one['name'])}")
    if not found:
        console.print("no collections yet")


@collection.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the collection; you have each name once.")],
    url: UrlOption = None,
    token: TokenOption = None,
    config_dir: ConfigDirOption = None,
) -> None:
    """Make an empty collection."""
    with explained(), connect(resolve(url, token, config_dir)) as client:
        made = answer_of(client.post("/collections", json={"name": name}))
    console.print(one_line(f"made: {made['name']}"))


@collection.command()
def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: UrlOption = None,
    token: TokenOption = None,
    config_dir: ConfigDirOption = None,
) -> None:
    """Delete a collection; its documents stay."""
    with explained(), connect(resolve(url, token, config_dir)) as client:
        chosen = _chosen(client, name)
        if not yes:
            confirm(f"Delete the collection {chosen['name']}? Its documents stay.")
        answer_of(client.delete(f"/collections/{chosen['collection_id']}"))
    console.print(one_line(f"deleted: {chosen['name']}"))


@collection.command()
def add(
    name: NameArgument,
    documents: DocumentsArgument,
    url: UrlOption = None,
    token: TokenOption = None,
    config_dir: ConfigDirOption = None,
) -> None:
    """Put documents in, all or none."""
    with explained(), connect(resolve(url, token, config_dir)) as client:
        chosen = _chosen(client, name)
        ids = _document_ids(answer_of(client.get("/documents"))["documents"], documents, "in the library")
        path = f"/collections/{chosen['collection_id']}/documents"
        _tell(answer_of(client.post(path, json={"document_ids": ids})))


@collection.command()
def remove(
    name: NameArgument,
    documents: DocumentsArgument,
    url: UrlOption = None,
    token: TokenOption = None,
    config_dir: ConfigDirOption = None,
) -> None:
    """Take documents out; they stay in the library."""
    with explained(), connect(resolve(url, token, config_dir)) as client:
        chosen = _chosen(client, name)
        path = f"/collections/{chosen['collection_id']}/documents"
        for document_id in _document_ids(answer_of(client.get(path))["documents"], documents, "in the collection"):
            chosen = answer_of(client.delete(f"{path}/{document_id}"))
    _tell(chosen)


def _collections(client: httpx.Client) -> list[Json]:
    return answer_of(client.get("/collections"))["collections"]


def _chosen(client: httpx.Client, name: str) -> Json:
    """The collection of that name or, when none has it, of that id. Raises :class:`ServerRefused`."""
    found = _collections(client)
    for key in ("name", "collection_id"):
        for one in found:
            if one[key] == name.strip():
                return one
    raise ServerRefused(404, "not_found", f"you have no collection {name}")


def _document_ids(documents: list[Json], wanted: list[str], where: str) -> list[str]:
    """The ids of the documents that are named, each once; otherwise one line and exit code 1."""
    ids: dict[str, None] = {}
    for name in wanted:
        found = [one["document_id"] for one in documents if name in {one["filename"], one["document_id"]}]
        if not found:
            fail(f"there is no document {name} {where}")
        if len(found) > 1:
            fail(f"{len(found)} documents have the name {name}; give an id: {', '.join(found)}")
        ids[found[0]] = None
    return list(ids)


def _tell(info: Json) -> None:
    console.print(one_line(f"{info['name']}: {info['document_count']} documents"))
