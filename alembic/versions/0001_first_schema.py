"""first schema"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(sa.schema.CreateSequence(sa.Sequence("session_version_seq")))
    op.create_table(
        "purge_outbox",
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_purge_outbox")),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("token_version", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("disabled", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("sessions_version", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("role in ('admin', 'user')", name=op.f("ck_users_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("username", name=op.f("uq_users_username")),
    )
    op.create_table(
        "chat_sessions",
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("title_source", sa.Text(), nullable=True),
        sa.Column(
            "metadata", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.Column(
            "thread_state",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("nextval('session_version_seq')"), nullable=False),
        sa.Column("message_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("title_source in ('rule', 'user', 'model')", name=op.f("ck_chat_sessions_title_source")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_chat_sessions_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chat_sessions")),
        sa.UniqueConstraint("user_id", "session_id", name=op.f("uq_chat_sessions_user_id_session_id")),
    )
    op.create_index(
        "ix_chat_sessions_recent",
        "chat_sessions",
        ["user_id", sa.literal_column("updated_at desc"), sa.literal_column("id desc")],
        unique=False,
    )
    op.create_table(
        "documents",
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("owner_id", sa.Uuid(), nullable=True),
        sa.Column("visibility", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("file_type", sa.Text(), nullable=False),
        sa.Column("current_version_id", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("visibility = 'shared' or owner_id is not null", name=op.f("ck_documents_owner")),
        sa.CheckConstraint("visibility in ('shared', 'private')", name=op.f("ck_documents_visibility")),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name=op.f("fk_documents_owner_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_documents")),
    )
    op.create_index(
        "uq_documents_private",
        "documents",
        ["owner_id", "filename"],
        unique=True,
        postgresql_where=sa.text("visibility = 'private'"),
    )
    op.create_index(
        "uq_documents_shared", "documents", ["filename"], unique=True, postgresql_where=sa.text("visibility = 'shared'")
    )
    op.create_table(
        "chat_messages",
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("session_row_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default=sa.text("'completed'"), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("rag_trace", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column(
            "citations", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'::jsonb"), nullable=False
        ),
        sa.Column("usage", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column(
            "flags", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'::jsonb"), nullable=False
        ),
        sa.Column(
            "attachments",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'[]'::jsonb"),
            nullable=False,
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "status in ('pending', 'completed', 'stopped', 'failed', 'interrupted')",
            name=op.f("ck_chat_messages_status"),
        ),
        sa.CheckConstraint("type in ('human', 'ai', 'system')", name=op.f("ck_chat_messages_type")),
        sa.ForeignKeyConstraint(
            ["session_row_id"], ["chat_sessions.id"], name=op.f("fk_chat_messages_session_row_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chat_messages")),
        sa.UniqueConstraint("session_row_id", "seq", name=op.f("uq_chat_messages_session_row_id_seq")),
    )
    op.create_index("ix_chat_messages_run_id", "chat_messages", ["run_id"], unique=False)
    op.create_table(
        "document_versions",
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("document_id", sa.Uuid(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), server_default=sa.text("'processing'"), nullable=False),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("pages", sa.Integer(), nullable=True),
        sa.Column("chunk_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("status in ('processing', 'ready', 'failed')", name=op.f("ck_document_versions_status")),
        sa.ForeignKeyConstraint(
            ["document_id"], ["documents.id"], name=op.f("fk_document_versions_document_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_document_versions")),
        sa.UniqueConstraint("document_id", "version", name=op.f("uq_document_versions_document_id_version")),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("session_row_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("status", sa.Text(), server_default=sa.text("'running'"), nullable=False),
        sa.Column("client_message_id", sa.Text(), nullable=True),
        sa.Column("request_hash", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stop_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("human_message_id", sa.Uuid(), nullable=False),
        sa.Column("message_id", sa.Uuid(), nullable=False),
        sa.Column("language", sa.Text(), server_default=sa.text("'en'"), nullable=False),
        sa.Column("error", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("last_seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status in ('running', 'completed', 'stopped', 'failed', 'interrupted')", name=op.f("ck_runs_status")
        ),
        sa.ForeignKeyConstraint(
            ["session_row_id"], ["chat_sessions.id"], name=op.f("fk_runs_session_row_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_runs_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint(
            "session_row_id", "client_message_id", name=op.f("uq_runs_session_row_id_client_message_id")
        ),
    )
    op.create_index(
        "ix_runs_lease", "runs", ["lease_expires_at"], unique=False, postgresql_where=sa.text("status = 'running'")
    )
    op.create_index(
        "ix_runs_user_running", "runs", ["user_id"], unique=False, postgresql_where=sa.text("status = 'running'")
    )
    op.create_index(
        "uq_runs_running", "runs", ["session_row_id"], unique=True, postgresql_where=sa.text("status = 'running'")
    )
    op.create_table(
        "chunks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("version_id", sa.Uuid(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("parent_id", sa.Uuid(), nullable=True),
        sa.Column("root_id", sa.Uuid(), nullable=True),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("page_number", sa.Integer(), nullable=True),
        sa.Column("heading", sa.Text(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.CheckConstraint("level between 1 and 3", name=op.f("ck_chunks_level")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["document_versions.id"], name=op.f("fk_chunks_version_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chunks")),
    )
    op.create_index("ix_chunks_parent_id", "chunks", ["parent_id"], unique=False)
    op.create_index("ix_chunks_version_id", "chunks", ["version_id", "level", "ordinal"], unique=False)
    op.create_table(
        "run_events",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_events_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "first_seq", name=op.f("pk_run_events")),
    )


def downgrade() -> None:
    op.drop_table("run_events")
    op.drop_index("ix_chunks_version_id", table_name="chunks")
    op.drop_index("ix_chunks_parent_id", table_name="chunks")
    op.drop_table("chunks")
    op.drop_index("uq_runs_running", table_name="runs", postgresql_where=sa.text("status = 'running'"))
    op.drop_index("ix_runs_user_running", table_name="runs", postgresql_where=sa.text("status = 'running'"))
    op.drop_index("ix_runs_lease", table_name="runs", postgresql_where=sa.text("status = 'running'"))
    op.drop_table("runs")
    op.drop_table("document_versions")
    op.drop_index("ix_chat_messages_run_id", table_name="chat_messages")
    op.drop_table("chat_messages")
    op.drop_index("uq_documents_shared", table_name="documents", postgresql_where=sa.text("visibility = 'shared'"))
    op.drop_index("uq_documents_private", table_name="documents", postgresql_where=sa.text("visibility = 'private'"))
    op.drop_table("documents")
    op.drop_index("ix_chat_sessions_recent", table_name="chat_sessions")
    op.drop_table("chat_sessions")
    op.drop_table("users")
    op.drop_table("purge_outbox")
    op.execute(sa.schema.DropSequence(sa.Sequence("session_version_seq")))
