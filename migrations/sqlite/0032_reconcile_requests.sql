-- Pending reconcile requests about one user's calls at a gate. Twin of migrations/postgres/0032_reconcile_requests.sql.

create index intervention_request_reconcile on intervention_request (tenant, gate, gate_user, request_id) where status = 'pending' and kind = 'reconcile' and gate is not null;
