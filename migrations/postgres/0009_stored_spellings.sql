-- The spellings that are there already, after the triggers of 0008 are committed, so that no writer waits for the
-- search: it jumps from name to name along the indexes, and takes the time of the number of names, not of rows.
-- Twin of migrations/sqlite/0009_stored_spellings.sql.

set local lock_timeout = '2s';

insert into user_spelling (tenant, spelling)
with recursive seen (tenant, name) as (
    (select tenant, user_id from agent_task where parent_task_id is null order by tenant, user_id limit 1)
    union all
    select n.tenant, n.user_id from seen s cross join lateral (
        select t.tenant, t.user_id from agent_task t
         where t.parent_task_id is null and (t.tenant, t.user_id) > (s.tenant, s.name)
         order by t.tenant, t.user_id limit 1) n
)
select tenant, name from seen where user_spelling_changes(name) on conflict do nothing;

insert into user_spelling (tenant, spelling)
with recursive seen (tenant, kind, name) as (
    (select tenant, kind, name from request_approver order by tenant, kind, name limit 1)
    union all
    select n.tenant, n.kind, n.name from seen s cross join lateral (
        select a.tenant, a.kind, a.name from request_approver a
         where (a.tenant, a.kind, a.name) > (s.tenant, s.kind, s.name)
         order by a.tenant, a.kind, a.name limit 1) n
)
select tenant, name from seen where kind <> 'group' and user_spelling_changes(name) on conflict do nothing;

insert into user_spelling (tenant, spelling)
with recursive seen (tenant, name) as (
    (select tenant, user_id from decision order by tenant, user_id limit 1)
    union all
    select n.tenant, n.user_id from seen s cross join lateral (
        select d.tenant, d.user_id from decision d
         where (d.tenant, d.user_id) > (s.tenant, s.name)
         order by d.tenant, d.user_id limit 1) n
)
select tenant, name from seen where user_spelling_changes(name) on conflict do nothing;

insert into user_spelling (tenant, spelling)
with recursive seen (tenant, name) as (
    (select tenant, user_id from idempotency order by tenant, user_id limit 1)
    union all
    select n.tenant, n.user_id from seen s cross join lateral (
        select i.tenant, i.user_id from idempotency i
         where (i.tenant, i.user_id) > (s.tenant, s.name)
         order by i.tenant, i.user_id limit 1) n
)
select tenant, name from seen where user_spelling_changes(name) on conflict do nothing;

create unique index idempotency_person on idempotency (tenant, person, path, key) where person is not null;
