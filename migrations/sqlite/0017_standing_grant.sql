-- Approvals that also let later calls of their rule through. Twin of migrations/postgres/0017_standing_grant.sql.

-- Written with the decision that gives it; `used` grows in the commits that start its calls.
create table standing_grant (
    grant_id blob not null primary key,
    tenant text not null,
    owner text not null,
    root_task_id blob not null,
    scope text not null check (scope in ('task', 'owner')),
    agent text not null,
    tool text not null,
    rule text not null,
    basis text not null,
    given_by text not null,
    via text,
    given_groups text not null,
    door text,
    task_id blob not null,
    seq integer not null,
    request_id blob not null,
    created_at integer not null,
    expires_at integer not null,
    uses integer not null,
    used integer not null check (used >= 0 and used <= uses),
    revoked_at integer,
    revoked_by text
) strict;

create index standing_grant_covering on standing_grant (tenant, basis, owner, grant_id);
create index standing_grant_tenant on standing_grant (tenant, grant_id);
create index standing_grant_over on standing_grant (expires_at);
