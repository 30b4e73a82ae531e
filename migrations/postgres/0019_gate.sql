-- Calls at a gate. Twin of migrations/sqlite/0019_gate.sql.
-- call_tool, call_key: the tool and the identity of a call to which an equal call may attach.
-- asker_until: the call's asker waits until then; 0 once it has left, 9223372036854775807 once the result was delivered.
-- No index has asker_until, because every ask changes it.
-- gate, gate_user: the gate of the call that the request is about, and its asker. They repeat columns of agent_task,
-- because an index of agent_task that knows the pending calls would have the status, which most commits change.

set local lock_timeout = '2s';

alter table agent_task add column call_tool text, add column call_key text, add column asker_until bigint;
alter table intervention_request add column gate text, add column gate_user text;
