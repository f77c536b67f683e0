"""what a thread keeps between turns: read by the claim, written by the end

Functions of another name, as ADR 0010 says. ``new_uploads`` in the thread's state is what was uploaded since the last
message: the claim moves it to the message that it accepts.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

CLAIM = """
create function claim_turn_2(
    p_user uuid, p_session text, p_title text, p_message text, p_language text, p_key text, p_hash text, p_hitl_id text,
    p_worker text, p_lease double precision, p_max_runs bigint, p_run uuid, p_human uuid, p_answer uuid
) returns table (
    outcome text, run uuid, human uuid, answer uuid, hash text, session_row uuid, new_version bigint,
    old_version bigint, place bigint, given_title text, meta jsonb, written_at timestamptz,
    thread jsonb, session_title text, uploads jsonb
) language plpgsql as $$
#variable_conflict use_column
declare
    s chat_sessions%rowtype;
    known runs%rowtype;
    pending jsonb;
    fresh jsonb;
begin
    -- The lock of every transaction that writes a user's sessions: from here on what is read stays true.
    perform 1 from users where id = p_user for no key update;
    if not found then
        return query select 'unauthorized', p_run, p_human, p_answer, p_hash, p_user, 0::bigint, 0::bigint, 0::bigint,
            null::text, null::jsonb, now(), null::jsonb, null::text, null::jsonb;
        return;
    end if;
    select * into s from chat_sessions where user_id = p_user and session_id = p_session for update;
    if s.id is not null then
        select * into known from runs where session_row_id = s.id and client_message_id = p_key;
        outcome := case when known.id is not null then 'known' end;
        if outcome is null then
            select * into known from runs where session_row_id = s.id and status = 'running';
            outcome := case when known.id is not null then 'run_active' end;
        end if;
    end if;
    pending := s.metadata -> 'pending_hitl';
    if outcome is null and p_hitl_id is not null and pending ->> 'id' is distinct from p_hitl_id then
        outcome := 'stale_hitl';
    end if;
    if outcome is null and p_max_runs <= (select count(*) from runs where user_id = p_user and status = 'running') then
        outcome := 'too_many_runs';
    end if;
    if outcome is not null then
        return query select outcome, known.id, known.human_message_id, known.message_id, known.request_hash, s.id,
            s.version, s.version, s.last_seq, null::text, s.metadata, now(), null::jsonb, null::text, null::jsonb;
        return;
    end if;

    outcome := 'claimed';
    fresh := case when jsonb_typeof(s.thread_state -> 'new_uploads') = 'array' then s.thread_state -> 'new_uploads' end;
    update users set sessions_version = nextval('session_version_seq') where id = p_user;
    if s.id is null then
        insert into chat_sessions (user_id, session_id, title, title_source, last_seq, message_count)
        values (p_user, p_session, p_title, 'rule', 2, 2)
        returning id, version, last_seq into session_row, new_version, place;
    else
        update chat_sessions set
            version = nextval('session_version_seq'), updated_at = clock_timestamp(),
            last_seq = last_seq + 2, message_count = message_count + 2, metadata = metadata - 'pending_hitl',
            thread_state = case when fresh is null then thread_state else thread_state - 'new_uploads' end,
            title = coalesce(title, p_title), title_source = case when title is null then 'rule' else title_source end
        where id = s.id
        returning id, version, last_seq into session_row, new_version, place;
    end if;
    insert into runs (id, session_row_id, user_id, client_message_id, request_hash, worker_id, lease_expires_at,
                      human_message_id, message_id, language, taken_hitl)
    values (p_run, session_row, p_user, p_key, p_hash, p_worker, now() + make_interval(secs => p_lease),
            p_human, p_answer, p_language, pending);
    insert into chat_messages (id, session_row_id, seq, type, content, status, run_id, attachments)
    values (p_human, session_row, place - 1, 'human', p_message, 'completed', p_run, coalesce(fresh, '[]')),
           (p_answer, session_row, place, 'ai', '', 'pending', p_run, '[]');
    return query select outcome, p_run, p_human, p_answer, p_hash, session_row, new_version, coalesce(s.version, 0),
        place - 1, case when s.title is null then p_title end, coalesce(s.metadata, '{}'), now(),
        coalesce(s.thread_state, '{}') - 'new_uploads', coalesce(s.title, p_title), fresh;
end
$$
"""

FINISH = """
create function finish_turn_2(
    p_user uuid, p_session_row uuid, p_run uuid, p_message uuid, p_worker text, p_status text, p_error jsonb,
    p_finish_reason text, p_asks jsonb, p_last_seq bigint, p_content text, p_trace jsonb, p_citations jsonb,
    p_usage jsonb, p_flags jsonb, p_events_first bigint, p_events_last bigint, p_events text, p_thread jsonb
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
    -- The turn's keys only: those of another release stay, and so do the uploads, which their routes write.
    update chat_sessions set
        version = nextval('session_version_seq'), updated_at = clock_timestamp(),
        thread_state = case when p_thread is null then thread_state else thread_state || p_thread end,
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
    op.execute(CLAIM)
    op.execute(FINISH)


def downgrade() -> None:
    op.execute("drop function finish_turn_2")
    op.execute("drop function claim_turn_2")
