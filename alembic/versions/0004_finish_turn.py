"""the end of a turn in one round trip

A change of the end is a function of another name, as for the claim.
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

FINISH = """
create function finish_turn_1(
    p_user uuid, p_session_row uuid, p_run uuid, p_message uuid, p_worker text, p_status text, p_error jsonb,
    p_finish_reason text, p_asks jsonb, p_last_seq bigint, p_content text, p_trace jsonb, p_citations jsonb,
    p_usage jsonb, p_flags jsonb, p_events_first bigint, p_events_last bigint, p_events text
) returns table (new_version bigint, old_version bigint, place bigint, written_at timestamptz)
language plpgsql as $$
#variable_conflict use_column
declare
    pending jsonb;
begin
    -- The lock of every transaction that writes a user's sessions.
    perform 1 from users where id = p_user for no key update;
    if not found then
        return;
    end if;
    update runs set
        status = p_status, error = p_error, finish_reason = p_finish_reason, asked_hitl = p_asks, last_seq = p_last_seq,
        finished_at = now()
    where id = p_run and status = 'running' and worker_id = p_worker
    returning taken_hitl into pending;
    if not found then
        return;
    end if;
    -- What the turn asks waits for an answer if it completed; else what it was to answer does so again, as it was.
    if p_status = 'completed' then
        pending := p_asks;
    end if;
    update users set sessions_version = nextval('session_version_seq') where id = p_user;
    update chat_sessions set
        version = nextval('session_version_seq'), updated_at = clock_timestamp(),
        metadata = case when pending is null then metadata
                        else metadata || jsonb_build_object('pending_hitl', pending) end
    where id = p_session_row
    returning version, old.version into new_version, old_version;
    update chat_messages set
        content = p_content, status = p_status, rag_trace = p_trace, citations = p_citations, usage = p_usage,
        finish_reason = p_finish_reason, flags = p_flags
    where id = p_message
    returning seq, created_at into place, written_at;
    if p_events is not null then
        insert into run_events (run_id, first_seq, last_seq, events)
        values (p_run, p_events_first, p_events_last, p_events)
        on conflict (run_id, first_seq) do update set last_seq = excluded.last_seq, events = excluded.events;
    end if;
    return next;
end
$$
"""


def upgrade() -> None:
    op.execute(FINISH)


def downgrade() -> None:
    op.execute("drop function finish_turn_1")
