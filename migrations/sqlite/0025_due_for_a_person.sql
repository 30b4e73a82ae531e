-- The due deliveries of one entry to one person or room. A claim of gathered deliveries reads them alone, however many are
-- due for other people. Twin of migrations/postgres/0025_due_for_a_person.sql.

create index delivery_recipient on delivery (target, tenant, person, due_at, delivery_id) where state = 'due';
