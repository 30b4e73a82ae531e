-- Which database this is, as the server tells it, and until when its history may be missing. Twin of
-- migrations/sqlite/0002_identity.sql. One row, always there; what is null was never told, or never happened.

create table database_identity (
    id bigint not null primary key check (id = 1),
    identity text,
    doubted_at bigint
);

insert into database_identity (id) values (1);
