-- The items of a request are in its task's journal, from seq to closed_seq, which is null while the request is open. So the
-- journal needs no index on request_id. Twin of migrations/postgres/0031_request_items.sql.

alter table intervention_request add column closed_seq integer;
drop index agent_task_item_request;
