-- What people filled in, sealed: nothing here can be read without a key of the configuration. One row for each name and
-- task, the latest answer's; it ends with its task, or at expires_at. Twin of migrations/postgres/0005_credential.sql.

create table credential (
    task_id blob not null references agent_task (task_id),
    name text not null,
    tenant text not null,
    root_task_id blob not null,
    request_id blob not null,
    key_id text not null,
    sealed text not null,
    created_at integer not null,
    expires_at integer,
    primary key (task_id, name)
) strict;

create index credential_over on credential (expires_at) where expires_at is not null;
