-- At most one check per table, as in 0010_nets.sql: the service knows only the two scopes. The tests put this check back
-- (tests/support/nets.sql). Differs from migrations/sqlite/0030_one_check.sql, because checks cost SQLite next to nothing.

set local lock_timeout = '2s';

alter table standing_grant drop constraint standing_grant_scope_check;
