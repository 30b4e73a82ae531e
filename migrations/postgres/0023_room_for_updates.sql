-- More room on the pages of agent_task, so that the updates of many tasks at once touch no index. Differs from
-- migrations/sqlite/0023_room_for_updates.sql, because SQLite updates rows in place.

set local lock_timeout = '2s';

alter table agent_task set (fillfactor = 60);
