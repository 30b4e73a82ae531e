-- One task for each call of a sub-agent, whatever crashes. Twin of migrations/sqlite/0006_sub_agent.sql.

create unique index agent_task_call on agent_task (parent_call_id) where parent_call_id is not null;
