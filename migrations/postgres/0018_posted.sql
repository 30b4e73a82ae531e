-- Messages that are changed after they were posted. Twin of migrations/sqlite/0018_posted.sql.

-- The deliveries of one message, by the receiver's id of the message. No statement looked for them by request.
create index delivery_posted on delivery (target, reference) where reference is not null;
drop index delivery_request;
