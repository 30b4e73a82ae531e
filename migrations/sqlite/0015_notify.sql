-- Messages about what was committed. Twin of migrations/postgres/0015_notify.sql.

-- A commit of which messages may have to be sent: its change, and the change's first event. Removed once the change's
-- deliveries are there. notice_id is the id of the change, so notices are found in the order of their commits.
create table notice (
    notice_id blob not null primary key,
    root_task_id blob not null,
    change_id blob not null,
    event_number integer not null
) strict, without rowid;

-- One message to one address: due, then sent, dead or dropped; due again after a failure. It holds no address, URL, text
-- or secret.
create table delivery (
    delivery_id blob not null primary key,
    tenant text not null,
    target text not null,
    person text not null,
    type text not null,
    root_task_id blob not null,
    change_id blob not null,
    event_number integer not null,
    request_id blob,
    state text not null check (state in ('due', 'sent', 'dead', 'dropped')),
    due_at integer not null,
    lease_until integer,
    attempts integer not null,
    last_at integer,
    last_status integer,
    last_problem text,
    last_milliseconds integer,
    reference text,
    created_at integer not null,
    ended_at integer
) strict;

create unique index delivery_once on delivery (target, person, change_id, event_number, type);
create index delivery_due on delivery (target, due_at, delivery_id) where state = 'due';
create index delivery_request on delivery (request_id) where reference is not null;
create index delivery_over on delivery (ended_at) where state <> 'due';
create index delivery_tenant on delivery (tenant, delivery_id);
