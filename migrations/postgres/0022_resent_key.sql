-- The number of deliveries that a POST under this key made due; null for the key of a command on a task. Twin of
-- migrations/sqlite/0022_resent_key.sql.

set local lock_timeout = '2s';

alter table idempotency add column resent bigint;
