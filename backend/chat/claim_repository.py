"""The claim of a turn: one statement, for it lies between a question and its first token.

The function is in the database (alembic, ``claim_turn_1``): within one statement it takes the user's lock first and
only then reads what decides, which no single query can.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast

from sqlalchemy import BigInteger, DateTime, String, Uuid, bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection
from uuid_utils.compat import uuid7

from backend.chat.records import RunRef, StoredMessage, TurnClaim
from backend.schemas.chat import MessageInfo

Outcome = Literal["claimed", "known", "run_active", "stale_hitl", "too_many_runs", "unauthorized"]


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of a claim. Only ``claimed`` has written anything.

    ``ref`` is the run: the new one, the one that has the key (``known``, with the hash of its request), or the one that
    runs in the session (``run_active``). ``title`` is set if this turn gave it; ``meta`` is as it was before.
    """

    outcome: Outcome
    ref: RunRef
    request_hash: str | None
    version: int
    previous_version: int
    first_seq: int
    title: str | None
    meta: dict[str, Any]
    written_at: datetime


_CLAIM = (
    text(
        """
        select * from claim_turn_1(
            :user, :session, :title, :message, :language, :key, :hash, :hitl_id,
            :worker, :lease, :max_runs, :run, :human, :answer
        )
        """
    )
    .bindparams(*(bindparam(name, type_=Uuid) for name in ("user", "run", "human", "answer")))
    .columns(
        outcome=String,
        run=Uuid,
        human=Uuid,
        answer=Uuid,
        hash=String,
        session_row=Uuid,
        new_version=BigInteger,
        old_version=BigInteger,
        place=BigInteger,
        given_title=String,
        meta=JSONB,
        written_at=DateTime(timezone=True),
    )
)


async def claim_turn(connection: AsyncConnection, claim: TurnClaim) -> Claimed:
    """Accept the turn, or say why not: session, run with a fresh lease, human message and pending answer."""
    values = {
        "user": claim.user_id,
        "session": claim.session_id,
        "title": claim.title,
        "message": claim.message,
        "language": claim.language,
        "key": claim.client_message_id,
        "hash": claim.request_hash,
        "hitl_id": claim.hitl_id,
        "worker": claim.worker_id,
        "lease": claim.lease_seconds,
        "max_runs": claim.max_runs_per_user,
        "run": uuid7(),
        "human": uuid7(),
        "answer": uuid7(),
    }
    row = (await connection.execute(_CLAIM, values)).one()
    return Claimed(
        cast("Outcome", row.outcome),
        RunRef(row.run, claim.user_id, row.session_row, claim.session_id, row.human, row.answer),
        row.hash,
        row.new_version,
        row.old_version,
        row.place,
        row.given_title,
        row.meta or {},
        row.written_at,
    )


def turn_messages(claimed: Claimed, message: str) -> list[StoredMessage]:
    """The two messages of a claimed turn as they were stored."""
    ref = claimed.ref
    common: dict[str, Any] = {"timestamp": claimed.written_at, "run_id": str(ref.run_id)}
    human = MessageInfo(type="human", content=message, id=str(ref.human_message_id), status="completed", **common)
    answer = MessageInfo(type="ai", content="", id=str(ref.message_id), status="pending", **common)
    return [StoredMessage(claimed.first_seq, human), StoredMessage(claimed.first_seq + 1, answer)]
