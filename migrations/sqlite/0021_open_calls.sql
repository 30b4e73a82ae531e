-- Pending requests about one user's calls at a gate. Twin of migrations/postgres/0021_open_calls.sql.

create index intervention_request_gate on intervention_request (tenant, gate, gate_user, request_id) where status = 'pending' and gate is not null;
