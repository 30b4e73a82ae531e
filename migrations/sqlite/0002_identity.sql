-- Which database this is, as the server tells it, and until when its history may be missing. Twin of
-- migrations/postgres/0002_identity.sql. One row, always there; what is null was never told, or never happened.
-- A file does not tell which copy of itself it is: there only `serve --restored` says so.

create table database_identity (
    id integer not null primary key check (id = 1),
    identity text,
    doubted_at integer
) strict;

insert into database_identity (id) values (1);
