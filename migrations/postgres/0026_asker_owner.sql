-- The number of the process that stored asker_until, while the asker waits. A session of the process holds the advisory
-- lock with this number: if no session holds the lock, the process is gone, and so is the asker. Null: the presence lasts
-- until asker_until. Twin of migrations/sqlite/0026_asker_owner.sql, whose column stays null.

set local lock_timeout = '2s';

alter table agent_task add column asker_owner bigint;
