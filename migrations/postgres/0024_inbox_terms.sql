-- Copies into each row of an inbox the values that tell whether its request waits for a person. A list then reads no
-- other table for most requests. The columns are null in rows of an older version. Twin of migrations/sqlite/0024_inbox_terms.sql.

set local lock_timeout = '2s';

-- Whether the first answer closes the request: it asks about one call at most and requires one approval.
alter table intervention_request add column one_answer boolean;

alter table inbox
    add column owner text,
    add column expires_at bigint,
    add column one_answer boolean;
