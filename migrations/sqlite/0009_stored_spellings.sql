-- The spellings that are there already. On Postgres the triggers of 0008 are committed first, so that no writer waits.
-- Twin of migrations/postgres/0009_stored_spellings.sql.

insert into user_spelling (tenant, spelling)
select tenant, user_id from agent_task where user_id glob '*[^!-@[-~]*'
union
select tenant, name from request_approver where kind <> 'group' and name glob '*[^!-@[-~]*'
union
select tenant, user_id from decision where user_id glob '*[^!-@[-~]*'
union
select tenant, user_id from idempotency where user_id glob '*[^!-@[-~]*';

create unique index idempotency_person on idempotency (tenant, person, path, key) where person is not null;
