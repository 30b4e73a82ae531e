-- in_quarantine: whether the last change of a gate call's quarantine put its tool into quarantine; false if a person has
-- decided the call since. quarantine_at: the time of that change. Twin of migrations/postgres/0028_gate_quarantine.sql.

alter table agent_task add column in_quarantine integer;
alter table agent_task add column quarantine_at integer;
