-- What people filled in, sealed: nothing here can be read without a key of the configuration. One row for each name and
-- task, the latest answer's; it ends with its task, or at expires_at. Twin of migrations/sqlite/0005_credential.sql.

create table credential (
    task_id uuid not null references agent_task (task_id),
    name text not null,
    tenant text not null,
    root_task_id uuid not null,
    request_id uuid not null,
    key_id text not null,
    sealed text not null,
    created_at bigint not null,
    expires_at bigint,
    primary key (task_id, name)
);

create index credential_over on credential (expires_at) where expires_at is not null;
