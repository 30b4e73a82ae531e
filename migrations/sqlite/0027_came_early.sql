-- 1 if an attempt at the delivery came, or comes, sooner than the backoff says. Such a delivery does not end after its
-- attempts while it is young. Twin of migrations/postgres/0027_came_early.sql.

alter table delivery add column came_early integer not null default 0;
