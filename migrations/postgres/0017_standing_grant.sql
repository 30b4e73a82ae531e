-- Approvals that also let later calls of their rule through. Twin of migrations/sqlite/0017_standing_grant.sql.

-- Written with the decision that gives it; `used` grows in the commits that start its calls. No index has a column that a use changes.
create table standing_grant (
    grant_id uuid not null primary key,
    tenant text not null,
    owner text not null,
    root_task_id uuid not null,
    scope text not null check (scope in ('task', 'owner')),
    agent text not null,
    tool text not null,
    rule text not null,
    basis text not null,
    given_by text not null,
    via text,
    given_groups text not null,
    door text,
    task_id uuid not null,
    seq bigint not null,
    request_id uuid not null,
    created_at bigint not null,
    expires_at bigint not null,
    uses bigint not null,
    used bigint not null check (used >= 0 and used <= uses),
    revoked_at bigint,
    revoked_by text
) with (fillfactor = 70);

create index standing_grant_covering on standing_grant (tenant, basis, owner, grant_id);
create index standing_grant_tenant on standing_grant (tenant, grant_id);
create index standing_grant_over on standing_grant (expires_at);
