-- no-transaction
-- Pending reconcile requests about one user's calls at a gate. Twin of migrations/sqlite/0032_reconcile_requests.sql.

create index concurrently if not exists intervention_request_reconcile on intervention_request (tenant, gate, gate_user, request_id) where status = 'pending' and kind = 'reconcile' and gate is not null;
