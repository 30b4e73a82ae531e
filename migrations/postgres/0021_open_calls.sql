-- no-transaction
-- Pending requests about one user's calls at a gate. Twin of migrations/sqlite/0021_open_calls.sql.

create index concurrently if not exists intervention_request_gate on intervention_request (tenant, gate, gate_user, request_id) where status = 'pending' and gate is not null;
