-- Whether the lease at hand was used, and how many were used without a new item. Twin of
-- migrations/sqlite/0007_fruitless.sql.
-- begun: the task is worked on under its present lease, not merely claimed.
-- fruitless: leases since its last item that ran out after the work had begun.

set local lock_timeout = '2s';

alter table agent_task add column begun boolean not null default false, add column fruitless bigint not null default 0;
