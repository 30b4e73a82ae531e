-- Tasks, their journals, the questions to humans and their answers. Twin of migrations/sqlite/0001_foundation.sql.
-- Moments are microseconds since 1970 (UTC). JSON is kept as text: the bytes that were digested are the bytes stored.

create table agent_version (
    digest text not null primary key,
    definition text not null,
    created_at bigint not null
);

-- One row per task; busy, open_requests and the sums of usage are over its own subtree.
-- phase: queued (any worker may take it), leased (until lease_until), parked (until something happens, or wake_at).
create table agent_task (
    task_id uuid not null primary key,
    root_task_id uuid not null,
    parent_task_id uuid,
    parent_call_id uuid,
    tenant text not null,
    user_id text not null,
    session_id text not null,
    agent text not null,
    agent_version text not null,
    agent_path text not null,
    metadata text not null,
    status text not null check (status in ('Running', 'Paused', 'Completed', 'Failed', 'Canceled')),
    status_seq bigint not null,
    version bigint not null,
    last_seq bigint not null,
    next_event bigint not null,
    busy bigint not null,
    open_requests bigint not null,
    prompt_tokens bigint not null,
    completion_tokens bigint not null,
    total_tokens bigint not null,
    model_calls bigint not null,
    phase text not null check (phase in ('queued', 'leased', 'parked')),
    lease_owner text,
    lease_until bigint,
    wake_at bigint,
    takeovers bigint not null,
    created_at bigint not null,
    updated_at bigint not null,
    constraint agent_task_counters check (busy >= 0 and open_requests >= 0),
    constraint agent_task_paused check (status <> 'Paused' or (open_requests > 0 and busy = 0)),
    constraint agent_task_lease check ((phase = 'leased') = (lease_owner is not null and lease_until is not null)),
    constraint agent_task_parent check ((parent_task_id is null) = (root_task_id = task_id))
) with (fillfactor = 70);

create index agent_task_owner on agent_task (tenant, user_id, task_id) where parent_task_id is null;
create index agent_task_children on agent_task (root_task_id, parent_task_id) where parent_task_id is not null;
-- lease_until is left out on purpose: renewing a lease must not touch an index.
create index agent_task_claimable on agent_task (task_id) where phase <> 'parked' or wake_at is not null;

create function agent_task_refuse_end() returns trigger language plpgsql as $$
begin
    raise exception 'an ended task changes only to Running, and only with a new item' using errcode = 'check_violation';
end
$$;

create trigger agent_task_end before update on agent_task for each row
    when (old.status in ('Completed', 'Failed', 'Canceled') and new.status <> old.status
        and (new.status <> 'Running' or new.last_seq <= old.last_seq))
    execute function agent_task_refuse_end();

-- The journal. event_number is the item's number in its root's stream.
create table agent_task_item (
    task_id uuid not null,
    seq bigint not null,
    root_task_id uuid not null,
    event_number bigint not null,
    change_id uuid not null,
    type text not null,
    role text not null,
    at bigint not null,
    request_id uuid,
    body text not null,
    primary key (task_id, seq)
);

create unique index agent_task_item_event on agent_task_item (root_task_id, event_number);
create index agent_task_item_request on agent_task_item (request_id) where request_id is not null;

-- A question. What was asked is the item (task_id, seq); call_id is the call that asks (the first it decides).
create table intervention_request (
    request_id uuid not null primary key,
    task_id uuid not null references agent_task (task_id),
    seq bigint not null,
    root_task_id uuid not null,
    tenant text not null,
    kind text not null,
    status text not null check (status in ('pending', 'responded', 'resumed', 'expired', 'withdrawn')),
    required bigint not null,
    call_id uuid,
    created_at bigint not null,
    expires_at bigint
) with (fillfactor = 80);

create index intervention_request_open on intervention_request (tenant, request_id) where status = 'pending';
create index intervention_request_deadline on intervention_request (expires_at) where status = 'pending' and expires_at is not null;
create index intervention_request_root on intervention_request (root_task_id);

create function intervention_request_refuse_end() returns trigger language plpgsql as $$
begin
    raise exception 'a request goes from pending to one end and does not come back' using errcode = 'check_violation';
end
$$;

create trigger intervention_request_end before update on intervention_request for each row
    when (old.status <> 'pending' and new.status <> old.status and not (old.status = 'responded' and new.status = 'resumed'))
    execute function intervention_request_refuse_end();

-- Who may decide: kind owner, user or group; the owner by his id.
create table request_approver (
    tenant text not null,
    kind text not null check (kind in ('owner', 'user', 'group')),
    name text not null,
    request_id uuid not null references intervention_request (request_id),
    primary key (tenant, kind, name, request_id)
);

-- Who answered which call. What was answered is the item (task_id, seq). At most one answer of a call is final.
create table decision (
    tenant text not null,
    user_id text not null,
    request_id uuid not null references intervention_request (request_id),
    tool_call_id uuid not null,
    action text not null,
    final boolean not null,
    task_id uuid not null,
    seq bigint not null,
    at bigint not null,
    primary key (tenant, user_id, request_id, tool_call_id)
);

create unique index decision_final on decision (request_id, tool_call_id) where final;

create table idempotency (
    tenant text not null,
    user_id text not null,
    path text not null,
    key text not null,
    body_digest text not null,
    task_id uuid not null,
    request_id uuid,
    created_at bigint not null,
    primary key (tenant, user_id, path, key)
);
