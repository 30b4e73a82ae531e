-- in_quarantine: whether the last change of a gate call's quarantine put its tool into quarantine; false if a person has
-- decided the call since. quarantine_at: the time of that change. Twin of migrations/sqlite/0028_gate_quarantine.sql.

set local lock_timeout = '2s';

alter table agent_task add column in_quarantine boolean, add column quarantine_at bigint;
