-- The newest change of a tool's quarantine in one user's session at a gate. Twin of migrations/postgres/0029_quarantined_calls.sql.

create index agent_task_quarantine on agent_task (tenant, agent, user_id, session_id, call_tool, quarantine_at, in_quarantine) where quarantine_at is not null;
