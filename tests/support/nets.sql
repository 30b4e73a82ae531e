-- The constraints that the product's schema on Postgres does without, so that a mistake of a statement fails a test.

alter table intervention_request add foreign key (task_id) references agent_task (task_id);
alter table request_approver add foreign key (request_id) references intervention_request (request_id);
alter table decision add foreign key (request_id) references intervention_request (request_id);
alter table credential add foreign key (task_id) references agent_task (task_id);

alter table agent_task
    add constraint agent_task_status_check check (status in ('Running', 'Paused', 'Completed', 'Failed', 'Canceled')),
    add constraint agent_task_phase_check check (phase in ('queued', 'leased', 'parked')),
    add constraint agent_task_counters check (busy >= 0 and open_requests >= 0),
    add constraint agent_task_lease check ((phase = 'leased') = (lease_owner is not null and lease_until is not null)),
    add constraint agent_task_parent check ((parent_task_id is null) = (root_task_id = task_id));

alter table standing_grant add constraint standing_grant_scope_check check (scope in ('task', 'owner'));

create function agent_task_refuse_end() returns trigger language plpgsql as $$
begin
    raise exception 'an ended task changes only to Running, and only with a new item' using errcode = 'check_violation';
end
$$;

create trigger agent_task_end before update on agent_task for each row
    when (old.status in ('Completed', 'Failed', 'Canceled') and new.status <> old.status
        and (new.status <> 'Running' or new.last_seq <= old.last_seq))
    execute function agent_task_refuse_end();

create function intervention_request_refuse_end() returns trigger language plpgsql as $$
begin
    raise exception 'a request goes from pending to one end and does not come back' using errcode = 'check_violation';
end
$$;

create trigger intervention_request_end before update on intervention_request for each row
    when (old.status <> 'pending' and new.status <> old.status and not (old.status = 'responded' and new.status = 'resumed'))
    execute function intervention_request_refuse_end();

alter table inbox add foreign key (request_id) references intervention_request (request_id);

-- A request is in the inbox as long as it is pending.
create function request_is_in_inbox() returns trigger language plpgsql as $$
begin
    perform 1 from intervention_request r where r.request_id = new.request_id
       and (r.status = 'pending') <> exists (select 1 from inbox i where i.request_id = r.request_id);
    if found then
        raise exception 'the inbox disagrees with the status' using errcode = 'check_violation';
    end if;
    return null;
end
$$;

create constraint trigger request_inbox after insert or update on intervention_request deferrable initially deferred
    for each row execute function request_is_in_inbox();

-- The update that closes a request says which item closes it.
create function intervention_request_refuse_close() returns trigger language plpgsql as $$
begin
    raise exception 'a closed request has no closed_seq' using errcode = 'check_violation';
end
$$;

create trigger intervention_request_close before update on intervention_request for each row
    when (old.status = 'pending' and new.status <> 'pending' and new.closed_seq is null)
    execute function intervention_request_refuse_close();

-- The items of a request are in its task's journal, from seq to closed_seq.
create function item_is_of_request() returns trigger language plpgsql as $$
begin
    perform 1 from intervention_request r where r.request_id = new.request_id
       and not (r.task_id = new.task_id and new.seq between r.seq and coalesce(r.closed_seq, new.seq));
    if found then
        raise exception 'no read of the request finds its item' using errcode = 'check_violation';
    end if;
    return null;
end
$$;

create constraint trigger agent_task_item_of_request after insert on agent_task_item deferrable initially deferred
    for each row when (new.request_id is not null) execute function item_is_of_request();

-- A task that is to be claimed now or later has a row in claimable_task, whose due_at is not later than the task's.
create function agent_task_is_claimable() returns trigger language plpgsql as $$
begin
    perform 1 from agent_task t left join claimable_task c on c.task_id = t.task_id
      where t.task_id = new.task_id and (t.phase <> 'parked' or t.wake_at is not null)
        and coalesce(c.due_at > case t.phase when 'leased' then t.lease_until when 'parked' then t.wake_at else 0 end, true);
    if found then
        raise exception 'a task that no claim would find' using errcode = 'check_violation';
    end if;
    return null;
end
$$;

create constraint trigger agent_task_claimable after insert or update on agent_task deferrable initially deferred
    for each row execute function agent_task_is_claimable();
