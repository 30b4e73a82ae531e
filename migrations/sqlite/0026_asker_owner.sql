-- The column stays null, because a single process uses the file and ends every presence when it opens the file. Twin of
-- migrations/postgres/0026_asker_owner.sql, whose column has the process that stored asker_until.

alter table agent_task add column asker_owner integer;
