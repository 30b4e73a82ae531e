-- Tasks that a worker may claim, now or later, in the order of their turns; so agent_task has no index on columns that
-- most commits change. Differs from migrations/sqlite/0011_claimable_task.sql, because such an index costs SQLite little.
-- A task has a row while it is queued, leased or asleep (parked with a wake_at); the row is written under the task's lock.
-- due_at: 0 if queued, else the end of the lease or of the sleep. A renewed lease may end later than due_at says.
-- alone: the task is to be driven alone (fruitless >= 2). It may say so after a new item.

set local lock_timeout = '2s';

create table claimable_task (
    task_id uuid not null primary key,
    tenant text collate "C" not null,
    user_id text collate "C" not null,
    due_at bigint not null,
    alone boolean not null
);

create index claimable_task_queued on claimable_task (tenant, user_id, task_id) where due_at = 0 and not alone;
create index claimable_task_due on claimable_task (due_at) where due_at > 0 and not alone;
create index claimable_task_alone on claimable_task (due_at, task_id) where alone;

insert into claimable_task (task_id, tenant, user_id, due_at, alone)
select task_id, tenant, user_id, case phase when 'leased' then lease_until when 'parked' then wake_at else 0 end,
    fruitless >= 2
  from agent_task where phase <> 'parked' or wake_at is not null;

drop index agent_task_claimable;
