"""questions back: what a run asks its user, and which question it answers"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("asked_hitl", postgresql.JSONB(none_as_null=True), nullable=True))
    op.add_column("runs", sa.Column("taken_hitl", postgresql.JSONB(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "taken_hitl")
    op.drop_column("runs", "asked_hitl")
