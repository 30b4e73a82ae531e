-- Every spelling of a user's id that is stored and that case folding or normalization may change: how ids are compared is
-- a setting, which the database cannot apply. The key (folded) is filled in by the service. Spellings of lower-case ASCII
-- are their own key and are not kept. The triggers hold for whichever version of the service writes. An idempotency key is
-- one person's, however the id is spelt. Twin of migrations/postgres/0008_user_spelling.sql.

create table user_spelling (
    tenant text not null,
    spelling text not null,
    folded text,
    primary key (tenant, spelling)
) strict;

create index user_spelling_folded on user_spelling (tenant, folded);
create index user_spelling_unfolded on user_spelling (spelling) where folded is null;

create trigger agent_task_spelling after insert on agent_task for each row
    when new.user_id glob '*[^!-@[-~]*'
begin
    insert into user_spelling (tenant, spelling) values (new.tenant, new.user_id) on conflict do nothing;
end;

create trigger request_approver_spelling after insert on request_approver for each row
    when new.kind <> 'group' and new.name glob '*[^!-@[-~]*'
begin
    insert into user_spelling (tenant, spelling) values (new.tenant, new.name) on conflict do nothing;
end;

create trigger decision_spelling after insert on decision for each row
    when new.user_id glob '*[^!-@[-~]*'
begin
    insert into user_spelling (tenant, spelling) values (new.tenant, new.user_id) on conflict do nothing;
end;

create trigger idempotency_spelling after insert on idempotency for each row
    when new.user_id glob '*[^!-@[-~]*'
begin
    insert into user_spelling (tenant, spelling) values (new.tenant, new.user_id) on conflict do nothing;
end;

alter table idempotency add column person text;
