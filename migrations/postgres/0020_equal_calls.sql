-- no-transaction
-- Equal calls of one user and session at a gate, by columns that never change. Twin of migrations/sqlite/0020_equal_calls.sql.

create index concurrently if not exists agent_task_call_key on agent_task (tenant, agent, user_id, session_id, call_tool, call_key, task_id) where call_key is not null;
