-- Whether the lease at hand was used, and how many were used without a new item. Twin of
-- migrations/postgres/0007_fruitless.sql.
-- begun: the task is worked on under its present lease, not merely claimed.
-- fruitless: leases since its last item that ran out after the work had begun.

alter table agent_task add column begun integer not null default 0 check (begun in (0, 1));
alter table agent_task add column fruitless integer not null default 0;
