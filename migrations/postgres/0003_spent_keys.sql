-- Keys that are over are found by their age. Those of answers to requests last as long as the request. Twin of
-- migrations/sqlite/0003_spent_keys.sql.

create index idempotency_spent on idempotency (created_at) where request_id is null;
