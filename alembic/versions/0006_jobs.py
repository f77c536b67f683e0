"""uploads and deletions as jobs"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Uuid(), nullable=True),
        sa.Column("visibility", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("document_id", sa.Uuid(), nullable=False),
        sa.Column("version_id", sa.Uuid(), nullable=True),
        sa.Column("status", sa.Text(), server_default=sa.text("'pending'"), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("percent", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("total_chunks", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("processed_chunks", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("generation", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("warnings", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("kind in ('upload', 'delete')", name=op.f("ck_jobs_kind")),
        sa.CheckConstraint("status in ('pending', 'running', 'completed', 'failed')", name=op.f("ck_jobs_status")),
        sa.CheckConstraint("visibility in ('shared', 'private')", name=op.f("ck_jobs_visibility")),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name=op.f("fk_jobs_owner_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    active = sa.text("status in ('pending', 'running')")
    op.create_index("ix_jobs_due", "jobs", ["due_at"], postgresql_where=active)
    op.create_index("ix_jobs_owner", "jobs", ["owner_id", "kind", sa.text("id desc")])
    op.create_index("ix_jobs_version_id", "jobs", ["version_id"])


def downgrade() -> None:
    op.drop_table("jobs")
