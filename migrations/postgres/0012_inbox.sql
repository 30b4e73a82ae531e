-- Open requests by who may decide them, for lists of a person's requests. Twin of migrations/sqlite/0012_inbox.sql.
-- A row of request_approver is here as long as its request is pending.

create table inbox (
    tenant text not null,
    kind text not null,
    name text not null,
    request_id uuid not null,
    primary key (tenant, kind, name, request_id)
);

-- Found by equality only. A btree would be in the order of a list, and a plan could walk it past everybody's requests.
create index inbox_request on inbox using hash (request_id);

insert into inbox (tenant, kind, name, request_id)
select a.tenant, a.kind, a.name, a.request_id
  from request_approver a join intervention_request r on r.request_id = a.request_id where r.status = 'pending';
