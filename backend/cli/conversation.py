"""One conversation at a time: entered, asked, followed, renamed, deleted."""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import httpx

from backend.cli.answer import Answer
from backend.cli.client import ServerRefused, answer_of, connect
from backend.cli.credentials import Credentials
from backend.cli.following import (
    STREAM_SILENCE_SECONDS,
    TextView,
    follow,
    print_question,
    print_sources,
)
from backend.cli.output import complain, console, one_line, plain
from backend.cli.run import Run
from backend.cli.session_files import SessionFiles

SHOWN_MESSAGES = 4
"""Of the history, when a conversation is entered."""
_ID = re.compile(r"[A-Za-z0-9._:-]{1,120}")
Json = dict[str, Any]


class Conversation:
    """The conversation that the user is in. Every call may raise :class:`ServerRefused`, :class:`ServerUnreachable`."""

    def __init__(self, credentials: Credentials, collections: Sequence[str] = ()) -> None:
        self._credentials = credentials
        self._collections = collections
        self.files = SessionFiles(credentials)
        self._session_id = ""
        self._listed: list[str] = []
        self._hitl: Json | None = None
        self._citations: list[Json] = []

    @property
    def session_id(self) -> str:
        """The conversation's id."""
        return self._session_id

    def newest(self) -> str | None:
        """The id of the newest conversation."""
        sessions = self._sessions(limit=1)
        return sessions[0]["session_id"] if sessions else None

    def enter(self, session_id: str) -> None:
        """Go into a conversation: the last messages, and the answer that is being written, to its end."""
        if not _is_id(session_id):
            complain("an id has letters, digits and . _ : - only, at most 120")
            return
        with self._client() as client:
            page = answer_of(client.get(f"/sessions/{session_id}", params={"limit": SHOWN_MESSAGES}))
        self._session_id, self._hitl, self._citations = session_id, page["hitl"], []
        messages = page["messages"]
        console.print(f"{'Conversation' if messages else 'New conversation'} {session_id}", style="dim")
        running = messages[-1] if messages and messages[-1]["status"] == "pending" else None
        asked = messages[-1] if self._hitl is not None and messages[-1]["finish_reason"] == "clarification" else None
        for message in messages:
            if message is not running and message is not asked:
                self._show(message)
        if running is not None and running["run_id"] is not None:
            with self._client() as client:
                self._follow(Run.attach(client, running["run_id"]))
        elif self._hitl is not None:
            print_question(self._hitl)

    def ask(self, question: str) -> None:
        """Ask, and show the answer. The number of an option answers a question back."""
        options: list[str] = self._hitl["options"] if self._hitl is not None else []
        if question.isdecimal() and 1 <= int(question) <= len(options):
            question = options[int(question) - 1]
        try:
            with self._client() as client:
                self._follow(Run.ask(client, question, self._session_id, self._collections))
        except ServerRefused as error:
            if error.code != "run_active":
                raise
            complain("an answer is being written here; ask again when it has ended")
            self.enter(self._session_id)

    def dismiss(self) -> None:
        """Let a question back wait no longer: what is typed next is a new question."""
        if self._hitl is None:
            console.print("no question waits for an answer")
            return
        with self._client() as client:
            answer_of(client.post(f"/sessions/{self._session_id}/hitl/dismiss"))
        self._hitl = None
        console.print("the question waits no longer", style="dim")

    def list_sessions(self) -> None:
        """The newest conversations, numbered for :meth:`switch` and :meth:`delete`."""
        sessions = self._sessions(limit=50)
        self._listed = [item["session_id"] for item in sessions]
        for number, item in enumerate(sessions, start=1):
            mark = "*" if item["session_id"] == self._session_id else " "
            when = datetime.fromisoformat(item["updated_at"]).astimezone()
            title = one_line(item["title"] or item["session_id"])
            console.print(f"{mark}{number:>3}. {when:%Y-%m-%d %H:%M}  {title}")
        if not sessions:
            console.print("no conversations yet")

    def switch(self, wanted: str) -> None:
        """Enter the conversation of that number in the last list, or of that id."""
        session_id = self._chosen(wanted)
        if session_id is not None:
            self.enter(session_id)

    def rename(self, title: str) -> None:
        """Give this conversation a title."""
        if not title:
            complain("/rename TITLE")
            return
        with self._client() as client:
            info = answer_of(client.patch(f"/sessions/{self._session_id}", json={"title": title}))
        console.print(one_line(f"renamed: {info['title']}"), style="dim")

    def delete(self, wanted: str) -> bool:
        """Delete a conversation, this one when none is named; True when it was this one."""
        session_id = self._chosen(wanted) if wanted else self._session_id
        if session_id is None:
            return False
        with self._client() as client:
            answer_of(client.delete(f"/sessions/{session_id}"))
        console.print(f"deleted: {session_id}", style="dim")
        return session_id == self._session_id

    def show_sources(self) -> None:
        """The sources of the last answer once more."""
        print_sources(self._citations)
        if not self._citations:
            console.print("the last answer has no sources")

    @contextmanager
    def _client(self) -> Generator[httpx.Client]:
        with connect(self._credentials, read_seconds=STREAM_SILENCE_SECONDS) as client:
            yield client

    def _sessions(self, *, limit: int) -> list[Json]:
        with self._client() as client:
            return answer_of(client.get("/sessions", params={"limit": limit}))["sessions"]

    def _chosen(self, wanted: str) -> str | None:
        if wanted.isdecimal() and 1 <= int(wanted) <= len(self._listed):
            return self._listed[int(wanted) - 1]
        if _is_id(wanted) and not wanted.isdecimal():
            return wanted
        complain("name a conversation by its number in /sessions, or by its id")
        return None

    def _follow(self, run: Run) -> None:
        answer, view = Answer(self._session_id), TextView()
        try:
            follow(run, answer, view)
        finally:
            view.end(answer)
        self._hitl, self._citations = answer.hitl, answer.citations
        if answer.status == "stopped":
            console.print("stopped", style="dim")
        elif answer.error is not None:
            complain(f"{answer.error['content']} ({answer.error['code']})")
        if answer.message_id is not None:
            console.print(f"\nhow it was found: citewire trace {one_line(answer.message_id)}", style="dim")

    def _show(self, message: Json) -> None:
        if message["type"] == "human":
            console.print(plain(f"› {message['content']}"), style="bold")
            return
        console.print(plain(message["content"]))
        if message["status"] not in {"completed", "pending"}:
            console.print(message["status"], style="dim")
        self._citations = message["citations"]
        print_sources(self._citations)


def _is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None and text not in {".", ".."}
