"""One question on the server: asked once, followed over cut connections to its end, stopped on demand."""

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Self

import httpx

from backend.cli.client import ServerRefused, ServerUnreachable, check
from backend.cli.events import StreamCut, StreamUnreadable, read_events

RESUME_SECONDS = 60.0
"""How long a stream may bring nothing new before it is given up; a restarted server ends its runs well before."""
_PAUSE_SECONDS = (0.1, 0.3, 1.0, 2.0)
_PASSING = frozenset({502, 503, 504})


class Run:
    """A question and the run that answers it. ``events`` may be called again after an interruption."""

    def __init__(self, client: httpx.Client, *, body: dict[str, Any] | None, run_id: str | None) -> None:
        self.run_id = run_id
        self.resumed = 0
        """How often the connection was cut and taken up again."""
        self._client = client
        self._body = body
        self._cursor = 0

    @classmethod
    def ask(cls, client: httpx.Client, question: str, session_id: str, collections: Sequence[str] = ()) -> Self:
        """A new question, about the documents of these collections; without any about all."""
        message = os.fsencode(question).decode("utf-8", "replace")  # bytes of a terminal that are no text
        # With the key the question can be sent again when no answer came: it is asked once all the same.
        key = str(uuid.uuid4())
        body: dict[str, Any] = {"message": message, "session_id": session_id, "client_message_id": key}
        return cls(client, body=body | ({"collections": list(collections)} if collections else {}), run_id=None)

    @classmethod
    def attach(cls, client: httpx.Client, run_id: str) -> Self:
        """A run that was begun before, from its first event on."""
        return cls(client, body=None, run_id=run_id)

    def events(self) -> Iterator[dict[str, Any]]:
        """What comes after the events seen so far, to the end of the run.

        Raises :class:`ServerRefused`, and :class:`ServerUnreachable` or the transport's own error when there is no
        connection at first or none again within ``RESUME_SECONDS``.
        """
        progress, cuts = time.monotonic(), 0
        while True:
            try:
                for event in self._connection():
                    progress, cuts = time.monotonic(), 0
                    yield event
                return
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if self.run_id is None and self.resumed == 0:
                    raise  # nothing was asked yet
            except ServerRefused as error:
                if error.status not in _PASSING or (self.run_id is None and self.resumed == 0):
                    raise
            except (httpx.TransportError, StreamCut):
                pass  # taken up at the cursor below, until RESUME_SECONDS pass without progress
            except StreamUnreadable as error:
                raise ServerUnreachable("the server's answer cannot be read; check its address") from error
            if time.monotonic() - progress > RESUME_SECONDS:
                raise ServerUnreachable("the connection was lost; the answer goes on at the server, in its session")
            time.sleep(_PAUSE_SECONDS[min(cuts, len(_PAUSE_SECONDS) - 1)])
            self.resumed += 1
            cuts += 1

    def stop(self) -> None:
        """End the run with the text so far; without effect when it has ended or was never accepted."""
        if self.run_id is not None:
            check(self._client.post(f"/chat/runs/{self.run_id}/stop"))

    def _connection(self) -> Iterator[dict[str, Any]]:
        """The events of one connection above the cursor."""
        if self.run_id is None:
            request = self._client.build_request("POST", "/chat/stream", json=self._body)
        else:
            path = f"/chat/runs/{self.run_id}/stream"
            request = self._client.build_request("GET", path, params={"after": self._cursor})
        response = self._client.send(request, stream=True)
        try:
            if not response.is_success:
                response.read()
                check(response)
            self.run_id = self.run_id or response.headers.get("X-Run-Id")
            for event in read_events(response.iter_raw()):
                # A gap that was repaired by the stored text ends where the next event begins.
                if event["seq"] > self._cursor or event["type"] == "gap":
                    self._cursor = event["seq"]
                    yield event
        finally:
            response.close()
