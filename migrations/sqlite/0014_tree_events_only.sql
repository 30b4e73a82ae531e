-- Ends the index that agent_task_item_tree replaces. Twin of migrations/postgres/0014_tree_events_only.sql.

drop index agent_task_item_event;
