-- Ends the index that agent_task_item_tree replaces. Twin of migrations/sqlite/0014_tree_events_only.sql.

set local lock_timeout = '2s';

drop index agent_task_item_event;
