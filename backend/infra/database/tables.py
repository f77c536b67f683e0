"""Every table. Rows never leave the repository that reads them."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Sequence, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from backend.infra.database.base import Base, Id, Json, OptionalTimestamp, Timestamp

session_version = Sequence("session_version_seq", metadata=Base.metadata)
"""Versions of sessions come from one sequence, so a deleted and re-made session never repeats one."""


class User(Base):
    """An account.

    ``token_version`` is part of every token; raising it revokes them. ``sessions_version`` is raised by every change
    of the list of sessions, so that a cached list can be told from a stale one.
    """

    __tablename__ = "users"
    __table_args__ = (
        UniqueConstraint("username"),
        CheckConstraint("role in ('admin', 'user')", name="role"),
    )
    id: Mapped[Id]
    username: Mapped[str]
    password_hash: Mapped[str]
    role: Mapped[str]
    token_version: Mapped[int] = mapped_column(server_default=text("1"))
    disabled: Mapped[bool] = mapped_column(server_default=text("false"))
    sessions_version: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    created_at: Mapped[Timestamp]


class ChatSession(Base):
    """A conversation. Its key for a client is ``(user_id, session_id)``; ``id`` is the row id that names the thread."""

    __tablename__ = "chat_sessions"
    __table_args__ = (
        UniqueConstraint("user_id", "session_id"),
        Index("ix_chat_sessions_recent", "user_id", text("updated_at desc"), text("id desc")),
        CheckConstraint("title_source in ('rule', 'user', 'model')", name="title_source"),
    )
    id: Mapped[Id]
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    session_id: Mapped[str]
    title: Mapped[str | None]
    title_source: Mapped[str | None]
    meta: Mapped[Json] = mapped_column("metadata")
    thread_state: Mapped[Json]
    version: Mapped[int] = mapped_column(BigInteger, session_version, server_default=session_version.next_value())
    message_count: Mapped[int] = mapped_column(server_default=text("0"))
    last_seq: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    created_at: Mapped[Timestamp]
    updated_at: Mapped[Timestamp]


class ChatMessage(Base):
    """One message. ``seq`` orders the messages of a session; wall time never does."""

    __tablename__ = "chat_messages"
    __table_args__ = (
        UniqueConstraint("session_row_id", "seq"),
        CheckConstraint("type in ('human', 'ai', 'system')", name="type"),
        CheckConstraint("status in ('pending', 'completed', 'stopped', 'failed', 'interrupted')", name="status"),
        Index("ix_chat_messages_run_id", "run_id"),
    )
    id: Mapped[Id]
    session_row_id: Mapped[UUID] = mapped_column(ForeignKey("chat_sessions.id", ondelete="CASCADE"))
    seq: Mapped[int] = mapped_column(BigInteger)
    type: Mapped[str]
    content: Mapped[str]
    status: Mapped[str] = mapped_column(server_default=text("'completed'"))
    run_id: Mapped[UUID | None]
    rag_trace: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    citations: Mapped[list[Any]] = mapped_column(JSONB, server_default=text("'[]'::jsonb"))
    usage: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    finish_reason: Mapped[str | None]
    flags: Mapped[list[Any]] = mapped_column(JSONB, server_default=text("'[]'::jsonb"))
    attachments: Mapped[list[Any]] = mapped_column(JSONB, server_default=text("'[]'::jsonb"))
    created_at: Mapped[Timestamp]


class Run(Base):
    """One turn being produced or produced. The partial unique index is what makes one running run a session true.

    ``asked_hitl`` is the question back that the turn ended with. ``taken_hitl`` is the pending question that the turn
    answers, as it stood with the session, to be put back unless the turn completes.
    """

    __tablename__ = "runs"
    __table_args__ = (
        UniqueConstraint("session_row_id", "client_message_id"),
        Index("uq_runs_running", "session_row_id", unique=True, postgresql_where=text("status = 'running'")),
        Index("ix_runs_lease", "lease_expires_at", postgresql_where=text("status = 'running'")),
        Index("ix_runs_user_running", "user_id", postgresql_where=text("status = 'running'")),
        CheckConstraint("status in ('running', 'completed', 'stopped', 'failed', 'interrupted')", name="status"),
    )
    id: Mapped[Id]
    session_row_id: Mapped[UUID] = mapped_column(ForeignKey("chat_sessions.id", ondelete="CASCADE"))
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    status: Mapped[str] = mapped_column(server_default=text("'running'"))
    client_message_id: Mapped[str | None]
    request_hash: Mapped[str]
    worker_id: Mapped[str]
    epoch: Mapped[int] = mapped_column(server_default=text("1"))
    lease_expires_at: Mapped[datetime]
    stop_requested: Mapped[bool] = mapped_column(server_default=text("false"))
    human_message_id: Mapped[UUID]
    message_id: Mapped[UUID]
    language: Mapped[str] = mapped_column(server_default=text("'en'"))
    error: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    finish_reason: Mapped[str | None]
    asked_hitl: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    taken_hitl: Mapped[Any] = mapped_column(JSONB(none_as_null=True), nullable=True)
    last_seq: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    created_at: Mapped[Timestamp]
    finished_at: Mapped[OptionalTimestamp]


class RunEvents(Base):
    """A batch of a run's events: ``events`` is their JSON, one line each, in the order of ``seq``."""

    __tablename__ = "run_events"
    run_id: Mapped[UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    first_seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    last_seq: Mapped[int] = mapped_column(BigInteger)
    events: Mapped[str]
    created_at: Mapped[Timestamp]


class Document(Base):
    """A named document. ``current_version_id`` is the version that answers; null until one was ready.

    The owner is null for what came with the install; that is shared.
    """

    __tablename__ = "documents"
    __table_args__ = (
        CheckConstraint("visibility in ('shared', 'private')", name="visibility"),
        CheckConstraint("visibility = 'shared' or owner_id is not null", name="owner"),
        Index("uq_documents_shared", "filename", unique=True, postgresql_where=text("visibility = 'shared'")),
        Index(
            "uq_documents_private",
            "owner_id",
            "filename",
            unique=True,
            postgresql_where=text("visibility = 'private'"),
        ),
    )
    id: Mapped[Id]
    owner_id: Mapped[UUID | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    visibility: Mapped[str]
    filename: Mapped[str]
    file_type: Mapped[str]
    current_version_id: Mapped[UUID | None]
    created_at: Mapped[Timestamp]


class DocumentVersion(Base):
    """One uploaded content of a document."""

    __tablename__ = "document_versions"
    __table_args__ = (
        UniqueConstraint("document_id", "version"),
        CheckConstraint("status in ('processing', 'ready', 'failed')", name="status"),
    )
    id: Mapped[Id]
    document_id: Mapped[UUID] = mapped_column(ForeignKey("documents.id", ondelete="CASCADE"))
    version: Mapped[int]
    sha256: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str] = mapped_column(server_default=text("'processing'"))
    code: Mapped[str | None]
    pages: Mapped[int | None]
    chunk_count: Mapped[int] = mapped_column(server_default=text("0"))
    created_at: Mapped[Timestamp]


class Chunk(Base):
    """A piece of a version: level 1 large, 2 middle, 3 leaf. Only leaves are indexed."""

    __tablename__ = "chunks"
    __table_args__ = (
        Index("ix_chunks_version_id", "version_id", "level", "ordinal"),
        Index("ix_chunks_parent_id", "parent_id"),
        CheckConstraint("level between 1 and 3", name="level"),
    )
    id: Mapped[UUID] = mapped_column(primary_key=True)
    version_id: Mapped[UUID] = mapped_column(ForeignKey("document_versions.id", ondelete="CASCADE"))
    level: Mapped[int]
    parent_id: Mapped[UUID | None]
    root_id: Mapped[UUID | None]
    ordinal: Mapped[int]
    page_number: Mapped[int | None]
    heading: Mapped[str | None]
    text: Mapped[str]


class PurgeOutbox(Base):
    """What a committed deletion still has to remove outside Postgres (index rows, files); swept until empty."""

    __tablename__ = "purge_outbox"
    id: Mapped[Id]
    kind: Mapped[str]
    target: Mapped[str]
    created_at: Mapped[Timestamp]


class Job(Base):
    """An upload or a deletion that a worker carries out step by step.

    ``step`` is the one that is worked on, or was when the job ended. ``due_at`` is when a worker may take it: the end
    of the lease of a running one, the end of a pause of a pending one. ``generation`` names the index that holds the
    first ``processed_chunks`` leaves.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint("kind in ('upload', 'delete')", name="kind"),
        CheckConstraint("status in ('pending', 'running', 'completed', 'failed')", name="status"),
        CheckConstraint("visibility in ('shared', 'private')", name="visibility"),
        Index("ix_jobs_due", "due_at", postgresql_where=text("status in ('pending', 'running')")),
        Index("ix_jobs_owner", "owner_id", "kind", text("id desc")),
        Index("ix_jobs_version_id", "version_id"),
    )
    id: Mapped[Id]
    kind: Mapped[str]
    owner_id: Mapped[UUID | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    visibility: Mapped[str]
    filename: Mapped[str]
    document_id: Mapped[UUID]
    version_id: Mapped[UUID | None]
    status: Mapped[str] = mapped_column(server_default=text("'pending'"))
    step: Mapped[str]
    percent: Mapped[int] = mapped_column(server_default=text("0"))
    total_chunks: Mapped[int] = mapped_column(server_default=text("0"))
    processed_chunks: Mapped[int] = mapped_column(server_default=text("0"))
    generation: Mapped[str | None]
    attempts: Mapped[int] = mapped_column(server_default=text("0"))
    worker_id: Mapped[str | None]
    due_at: Mapped[Timestamp]
    cancel_requested: Mapped[bool] = mapped_column(server_default=text("false"))
    code: Mapped[str | None]
    warnings: Mapped[list[Any]] = mapped_column(JSONB, server_default=text("'[]'::jsonb"))
    created_at: Mapped[Timestamp]
    updated_at: Mapped[Timestamp]


class Collection(Base):
    """A named set of documents of one user, to ask about."""

    __tablename__ = "collections"
    __table_args__ = (UniqueConstraint("owner_id", "name"),)
    id: Mapped[Id]
    owner_id: Mapped[UUID] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    name: Mapped[str]
    created_at: Mapped[Timestamp]


class CollectionDocument(Base):
    """A document in a collection."""

    __tablename__ = "collection_documents"
    __table_args__ = (Index("ix_collection_documents_document_id", "document_id"),)
    collection_id: Mapped[UUID] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"), primary_key=True)
    document_id: Mapped[UUID] = mapped_column(ForeignKey("documents.id", ondelete="CASCADE"), primary_key=True)
