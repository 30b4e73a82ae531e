-- The items of a request are in its task's journal, from seq to closed_seq, which is null while the request is open. So the
-- journal needs no index on request_id. Replicas of an older version still search by request_id while they run beside the
-- new ones: their reads of requests are slow until they end. Twin of migrations/sqlite/0031_request_items.sql.

set local lock_timeout = '2s';

alter table intervention_request add column closed_seq bigint;
drop index agent_task_item_request;
