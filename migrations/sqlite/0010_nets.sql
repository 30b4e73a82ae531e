-- Differs from migrations/postgres/0010_nets.sql, because foreign keys, triggers and checks cost SQLite next to nothing.

select 1;
