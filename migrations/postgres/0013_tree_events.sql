-- no-transaction
-- Events of trees with sub-agents, by their numbers. Twin of migrations/sqlite/0013_tree_events.sql.
-- Every other event has the number of its item, and is found by the journal's key.

create unique index concurrently if not exists agent_task_item_tree on agent_task_item (root_task_id, event_number) where event_number <> seq;
