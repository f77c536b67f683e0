"""Files on their way into the library: several at once, each sent and its job watched to the end."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from backend.cli.client import ServerRefused, answer_of
from backend.cli.files import Found

FIRST_LOOK_SECONDS, LOOK_SECONDS = 0.05, 1.0
"""Between two looks at a job; the wait doubles from the first to the second."""
AWAY_SECONDS = 60.0
"""For so long a server that has answered before may be away, as it is when it starts anew."""
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Added:
    """The document answers. ``unchanged``: it did before, with these bytes."""

    chunks: int
    unchanged: bool


class NotAdded(Exception):
    """The file is not in the library. ``code`` is the server's, or ``unreadable`` for one that cannot be sent."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class _Stopped(Exception):
    """The command ends; the job goes on without it."""


class Uploads:
    """A context in which at most ``parallel`` files are under way. Leaving it ends the watching, not the jobs.

    ``ended`` is called once a file, as they end, by one thread at a time.
    """

    def __init__(
        self, client: httpx.Client, form: dict[str, str], parallel: int, ended: Callable[[Found], None]
    ) -> None:
        self._client = client
        self._form = form
        self._ended = ended
        self._one_at_a_time = threading.Lock()
        self._stop = threading.Event()
        self._fatal: Exception | None = None
        self._reached = False
        self._pool = ThreadPoolExecutor(parallel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def results(self, found: Sequence[Found]) -> Iterator[tuple[Found, Added | NotAdded]]:
        """What became of each, in that order. Raises what concerns every other file too."""
        pending: list[tuple[Found, Future[Added | NotAdded]]] = [
            (item, self._pool.submit(self._result, item)) for item in found
        ]
        for item, future in pending:
            try:
                yield item, future.result()
            except _Stopped:
                assert self._fatal is not None
                raise self._fatal from None

    def _result(self, item: Found) -> Added | NotAdded:
        try:
            result = self._add(item)
        except NotAdded as error:
            result = error
        except (ServerRefused, httpx.TransportError) as error:
            self._fatal = self._fatal or error
            self._stop.set()  # the others would get the same answer
            raise
        with self._one_at_a_time:
            self._ended(item)
        return result

    def _add(self, item: Found) -> Added:
        if item.problem is not None:
            raise NotAdded(item.problem.code, item.problem.text)
        try:
            job_id = self._patiently(lambda: self._send(item))["job_id"]
            return self._watch(job_id)
        except OSError as error:
            raise NotAdded("unreadable", error.strerror or type(error).__name__) from error
        except ServerRefused as error:
            if error.status == 401:
                raise
            raise NotAdded(error.code, error.detail) from error

    def _send(self, item: Found) -> dict[str, Any]:
        with item.path.open("rb") as file:
            files = {"file": (item.name, file)}
            return answer_of(self._client.post("/documents/upload/async", files=files, data=self._form))

    def _watch(self, job_id: str) -> Added:
        wait = FIRST_LOOK_SECONDS
        while True:
            job = self._patiently(lambda: answer_of(self._client.get(f"/documents/upload/jobs/{job_id}")))
            if job["status"] == "failed":
                raise NotAdded(job["code"] or "failed", job["error"] or "")
            if job["status"] == "completed":
                # Of a document that has these bytes already the job is made complete, and never changed.
                return Added(int(job["processed_chunks"]), unchanged=job["created_at"] == job["updated_at"])
            self._pause(wait)
            wait = min(wait * 2, LOOK_SECONDS)

    def _patiently(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The answer, asked for again while the server is away. Sending a file again gives the job that is there."""
        until = time.monotonic() + AWAY_SECONDS
        while True:
            self._pause(0)
            try:
                answer = ask()
            except httpx.TransportError:
                if not self._reached or time.monotonic() > until:
                    raise
            except ServerRefused as error:
                if error.status != 503 or time.monotonic() > until:
                    raise
            else:
                self._reached = True
                return answer
            self._pause(RETRY_SECONDS)

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _Stopped
