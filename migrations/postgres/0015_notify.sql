-- Messages about what was committed. Twin of migrations/sqlite/0015_notify.sql.

-- A commit of which messages may have to be sent: its change, and the change's first event. Removed once the change's
-- deliveries are there. notice_id is the id of the change, so notices are found in the order of their commits.
create table notice (
    notice_id uuid not null primary key,
    root_task_id uuid not null,
    change_id uuid not null,
    event_number bigint not null
);

-- One message to one address: due, then sent, dead or dropped; due again after a failure. It holds no address, URL, text
-- or secret. No index has a column that a claim changes.
create table delivery (
    delivery_id uuid not null primary key,
    tenant text not null,
    target text not null,
    person text not null,
    type text not null,
    root_task_id uuid not null,
    change_id uuid not null,
    event_number bigint not null,
    request_id uuid,
    state text not null check (state in ('due', 'sent', 'dead', 'dropped')),
    due_at bigint not null,
    lease_until bigint,
    attempts bigint not null,
    last_at bigint,
    last_status bigint,
    last_problem text,
    last_milliseconds bigint,
    reference text,
    created_at bigint not null,
    ended_at bigint
) with (fillfactor = 70);

create unique index delivery_once on delivery (target, person, change_id, event_number, type);
create index delivery_due on delivery (target, due_at, delivery_id) where state = 'due';
create index delivery_request on delivery (request_id) where reference is not null;
create index delivery_over on delivery (ended_at) where state <> 'due';
create index delivery_tenant on delivery (tenant, delivery_id);
