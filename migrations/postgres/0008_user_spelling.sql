-- Every spelling of a user's id that is stored and that case folding or normalization may change: how ids are compared is
-- a setting, which the database cannot apply. The key (folded) is filled in by the service. Spellings of lower-case ASCII
-- are their own key and are not kept. The triggers hold for whichever version of the service writes. An idempotency key is
-- one person's, however the id is spelt. Twin of migrations/sqlite/0008_user_spelling.sql.
--
-- Who writes waits while this runs, so what is there already is found by jumping from name to name along the indexes:
-- the time is that of the number of names, not of rows.

set local lock_timeout = '2s';

create table user_spelling (
    tenant text not null,
    spelling text not null,
    folded text,
    primary key (tenant, spelling)
);

create index user_spelling_folded on user_spelling (tenant, folded);
create index user_spelling_unfolded on user_spelling (spelling) where folded is null;

create function user_spelling_changes(name text) returns boolean language sql immutable as $$
    select name collate "C" ~ '[A-Z]' or octet_length(name) <> char_length(name)
$$;

create function user_spelling_keep() returns trigger language plpgsql as $$
begin
    insert into user_spelling (tenant, spelling) values (new.tenant, to_jsonb(new) ->> tg_argv[0]) on conflict do nothing;
    return null;
end
$$;

create trigger agent_task_spelling after insert on agent_task for each row
    when (user_spelling_changes(new.user_id)) execute function user_spelling_keep('user_id');
create trigger request_approver_spelling after insert on request_approver for each row
    when (new.kind <> 'group' and user_spelling_changes(new.name)) execute function user_spelling_keep('name');
create trigger decision_spelling after insert on decision for each row
    when (user_spelling_changes(new.user_id)) execute function user_spelling_keep('user_id');
create trigger idempotency_spelling after insert on idempotency for each row
    when (user_spelling_changes(new.user_id)) execute function user_spelling_keep('user_id');

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

alter table idempotency add column person text;

create unique index idempotency_person on idempotency (tenant, person, path, key) where person is not null;
