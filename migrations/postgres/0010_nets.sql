-- Foreign keys, triggers and checks that Postgres evaluates in every statement go, but for one check per table: the
-- statements that write compare the same themselves. The tests put them back (tests/support/nets.sql).
-- Differs from migrations/sqlite/0010_nets.sql, because these cost SQLite next to nothing.

set local lock_timeout = '2s';

alter table intervention_request drop constraint intervention_request_task_id_fkey;
alter table request_approver drop constraint request_approver_request_id_fkey;
alter table decision drop constraint decision_request_id_fkey;
alter table credential drop constraint credential_task_id_fkey;

drop trigger agent_task_end on agent_task;
drop function agent_task_refuse_end();
drop trigger intervention_request_end on intervention_request;
drop function intervention_request_refuse_end();

alter table agent_task
    drop constraint agent_task_status_check,
    drop constraint agent_task_phase_check,
    drop constraint agent_task_counters,
    drop constraint agent_task_lease,
    drop constraint agent_task_parent;
