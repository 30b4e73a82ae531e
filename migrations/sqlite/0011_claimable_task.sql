-- Indexes for the turns of claims. Differs from migrations/postgres/0011_claimable_task.sql, because an index on columns
-- that change costs SQLite little, so it needs no table.
-- lease_until is left out on purpose: renewing a lease must not touch an index.

create index agent_task_queued on agent_task (tenant, user_id, task_id) where phase = 'queued' and fruitless < 2;
create index agent_task_leased on agent_task (task_id) where phase = 'leased';
create index agent_task_asleep on agent_task (wake_at) where wake_at is not null;
create index agent_task_alone on agent_task (task_id) where fruitless >= 2;

drop index agent_task_claimable;
