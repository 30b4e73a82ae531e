-- Copies into each row of an inbox the values that tell whether its request waits for a person. A list then reads no
-- other table for most requests. The columns are null in rows of an older version. Twin of migrations/postgres/0024_inbox_terms.sql.

-- Whether the first answer closes the request: it asks about one call at most and requires one approval.
alter table intervention_request add column one_answer integer;

alter table inbox add column owner text;
alter table inbox add column expires_at integer;
alter table inbox add column one_answer integer;
