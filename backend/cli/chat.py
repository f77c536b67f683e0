"""``citewire chat``: a conversation at the terminal."""

import sys
import uuid
from contextlib import suppress
from typing import Annotated

import typer

from backend.cli.client import ServerRefused, ServerUnreachable, explained
from backend.cli.collection import CollectionOption
from backend.cli.conversation import Conversation
from backend.cli.credentials import ConfigDirOption, TokenOption, UrlOption, resolve
from backend.cli.output import complain, console, errors

with suppress(ImportError):  # some builds of Python have none; then a line is edited as the terminal does it
    import readline as readline

PROMPT = "› "
HELP = """\
/sessions           your conversations, newest first
/switch NUMBER|ID   go on with another one
/new [ID]           begin a new one
/rename TITLE       name this one
/delete [NUMBER|ID] delete one, by default this one
/dismiss            do not answer a question back, ask about something else
/sources            what the numbers in the last answer mean
/attach FILE…       put files into this conversation, for the assistant to read or look at
/files              the files of this conversation; what the assistant made is numbered
/save NUMBER|NAME [FOLDER]  save a file that the assistant made
/detach NAME        take one of your files out of this conversation
/help               this list
/quit               leave, as Ctrl-D does
Ctrl-C stops an answer and keeps what there is of it; a second Ctrl-C leaves the answer to the server.
A line that begins with // is a question that begins with /."""


def chat(
    session: Annotated[
        str | None, typer.Option(help="The conversation; by default the newest one, with its answer if one is running.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Begin a new conversation.")] = False,
    collection: CollectionOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    config_dir: ConfigDirOption = None,
) -> None:
    """Talk about the documents. /help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves."""
    with explained():
        conversation = Conversation(resolve(url, token, config_dir), collection or ())
        conversation.enter(new_id() if new else session or conversation.newest() or new_id())
    console.print("/help lists the commands", style="dim")
    while (line := _read()) is not None:
        try:
            if not _obey(conversation, line):
                break
        except (ServerRefused, ServerUnreachable) as error:
            complain(str(error))
            if isinstance(error, ServerRefused) and error.status == 401:
                raise typer.Exit(1) from None
        except KeyboardInterrupt:
            errors.print("\nleft; the answer goes on at the server: /switch shows it", style="dim")


def new_id() -> str:
    """The id of a conversation that does not exist yet."""
    return f"cli-{uuid.uuid4()}"


def _read() -> str | None:
    """The next line without white space around it; None at the end. Ctrl-C gives up the line that is being typed."""
    while True:
        try:
            return input(PROMPT if sys.stdin.isatty() else "").strip()
        except EOFError:
            console.print()
            return None
        except KeyboardInterrupt:
            errors.print("\nCtrl-D leaves", style="dim")


def _obey(conversation: Conversation, line: str) -> bool:
    """Do what a line says; False when it says to leave."""
    if not line.startswith("/") or line.startswith("//"):
        if line:
            conversation.ask(line.removeprefix("/"))
        return True
    command, _, argument = line.partition(" ")
    argument = argument.strip()
    match command:
        case "/sessions":
            conversation.list_sessions()
        case "/switch":
            conversation.switch(argument)
        case "/new":
            conversation.enter(argument or new_id())
        case "/rename":
            conversation.rename(argument)
        case "/delete":
            if conversation.delete(argument):
                conversation.enter(new_id())
        case "/dismiss":
            conversation.dismiss()
        case "/sources":
            conversation.show_sources()
        case "/attach":
            conversation.files.attach(conversation.session_id, argument)
        case "/files":
            conversation.files.show(conversation.session_id)
        case "/save":
            conversation.files.save(conversation.session_id, argument)
        case "/detach":
            conversation.files.detach(conversation.session_id, argument)
        case "/help":
            console.print(HELP)
        case "/quit" | "/exit":
            return False
        case _:
            complain(f"there is no command {command}; /help lists them")
    return True
