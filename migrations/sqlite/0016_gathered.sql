-- Messages to people. Twin of migrations/postgres/0016_gathered.sql.

-- How the message of a delivery is sent, as its entry in the configuration had it.
alter table delivery add column channel text not null default 'webhook';

-- When the next message of an entry may go to a person or a room (person is empty then). A sender that gathers moves
-- next_at before it claims the person's deliveries: of two senders one does.
create table gathered (
    target text not null,
    tenant text not null,
    person text not null,
    next_at integer not null,
    primary key (target, tenant, person)
) strict, without rowid;
