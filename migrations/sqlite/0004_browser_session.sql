-- Sessions of browsers: one row each, found by SHA-256 of the token that only the browser has. The binding is SHA-256 of
-- the token and the key's hash together: it says nothing of the key, and fits no key but the one the session began with.
-- Twin of migrations/postgres/0004_browser_session.sql.

create table browser_session (
    token_sha256 text not null primary key,
    binding text not null,
    expires_at integer not null
) strict;

create index browser_session_over on browser_session (expires_at);
