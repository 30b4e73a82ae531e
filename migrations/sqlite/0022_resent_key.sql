-- The number of deliveries that a POST under this key made due; null for the key of a command on a task. Twin of
-- migrations/postgres/0022_resent_key.sql.

alter table idempotency add column resent integer;
