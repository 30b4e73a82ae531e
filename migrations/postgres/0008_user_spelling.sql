-- Every spelling of a user's id that is stored and that case folding or normalization may change: how ids are compared is
-- a setting, which the database cannot apply. The key (folded) is filled in by the service. Spellings of lower-case ASCII
-- are their own key and are not kept. The triggers hold for whichever version of the service writes. An idempotency key is
-- one person's, however the id is spelt. Twin of migrations/sqlite/0008_user_spelling.sql.

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

alter table idempotency add column person text;
