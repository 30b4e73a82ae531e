//! Defines SQL statements in the dialects of both engines. Most are written once, with the macro
//! `sql!`, which replaces the few expressions that differ. Any other statement is an explicit
//! [`Sql`], with a comment that says why its texts for Postgres and `SQLite` differ.

/// One SQL statement, with a text for each database engine.
#[derive(Clone, Copy, Debug)]
pub struct Sql {
    /// The text for Postgres.
    pub postgres: &'static str,
    /// The text for `SQLite`.
    pub sqlite: &'static str,
    /// Whether the statement finds every row by its key. If so, Postgres plans the statement only
    /// once, because such a plan stays good when the tables grow.
    pub by_key: bool,
}

impl Sql {
    /// Makes a statement that is used on Postgres alone.
    pub(super) const fn on_postgres(postgres: &'static str) -> Self {
        Self {
            postgres,
            sqlite: "",
            by_key: false,
        }
    }

    /// Makes a statement that is used on `SQLite` alone.
    pub(super) const fn on_sqlite(sqlite: &'static str) -> Self {
        Self {
            postgres: "",
            sqlite,
            by_key: false,
        }
    }

    /// Marks a statement that finds every row by its key. Postgres plans such a statement once,
    /// because planning at each execution would cost more than the execution itself.
    pub(super) const fn by_key(self) -> Self {
        Self {
            by_key: true,
            ..self
        }
    }
}

/// The list of the types in `task::event_name::REQUEST_CHANGES`, as a part of a statement's text.
macro_rules! request_changes {
    () => {
        "('request.decided', 'request.expired', 'request.withdrawn')"
    };
}
pub(super) use request_changes;

/// Makes a statement for both engines from literals, which both engines share, and placeholders.
/// `n` is the number of a parameter:
/// - `(now n)`: the current time in microseconds; parameter `n` must be `Value::Now`;
/// - `(any n type)`: the condition that the value of the preceding expression is in the list `$n`;
/// - `(none n type)`: the condition that the list `$n` is empty;
/// - `(people t n k)`: a subquery with one column, `user_id`: the spellings of a user id in the
///   tenant `$t` (see `users.rs`). Parameters `n` and `k` must be those of `users::spelled`. The
///   subquery also returns the non-ASCII spellings whose key (the folded form) is not stored yet.
///   These may belong to other people, so the caller must drop the rows of other people;
/// - `(spelled t n k)`: after an expression, the condition that its value is in `(people t n k)`;
/// - `(asker_until "c")`: the column `asker_until` of the task `t`. On Postgres, the value is 0
///   instead if all of this holds: the condition `c` is true for the row, another process stored
///   the end of a wait, and the wait is over or that process is gone (see `asker_lock.rs`);
/// - `(skip_locked)`: after a `limit`, takes the lock of each row that the subquery selects, and skips
///   the rows that another transaction has locked. On `SQLite`, which has no row locks, empty;
/// - `(task)`: the columns of a task that several statements read (see `task_columns.rs`). The
///   statement must join the item that set the task's status, with the alias `s`. A statement with
///   several rows for a task may join `s` only to the row from which the caller reads the task;
/// - `(request)`: the columns of a request that several statements read;
/// - `(of_request)`: the condition that `i` is an item of the request `r`: the item that opened it,
///   a decision, or the item that closed it. The items are in the journal of the request's task,
///   from `seq` to `closed_seq` of the request. `closed_seq` is null while the request is open, and
///   for a request that a version before migration 0031 closed;
/// - `(claimed_delivery)`: the columns of a claimed delivery (see `deliveries.rs`);
/// - `(request_changes)`: the list of the types in `task::event_name::REQUEST_CHANGES`;
/// - `(first_of_changes)`: the rest of a statement that returns the number of a change's first
///   event. The statement must begin with the recursive common table expression
///   `back (root_task_id, event_number, change_id)`, whose first query selects one or several
///   events of the change. The rest walks back from these events to the first;
/// - `(fitting_tasks n)`: the rest of a statement that begins with a common table expression `page`
///   of ids. The statement reads the first rows of `page` whose sizes add up to at most `$n` bytes,
///   and always the first row.
///
/// On Postgres, `(now n)` becomes a subquery: Postgres evaluates it once, and can search an index
/// with its result.
macro_rules! sql {
    (@pg [$($out:tt)*]) => { concat!($($out)*) };
    (@pg [$($out:tt)*] (now $n:literal) $($rest:tt)*) => {
        sql!(@pg [$($out)* "(select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $", $n, "::bigint)",] $($rest)*)
    };
    (@pg [$($out:tt)*] (any $n:literal $kind:ident) $($rest:tt)*) => {
        sql!(@pg [$($out)* "= any($", $n, "::", stringify!($kind), "[])",] $($rest)*)
    };
    (@pg [$($out:tt)*] (none $n:literal $kind:ident) $($rest:tt)*) => {
        sql!(@pg [$($out)* "cardinality($", $n, "::", stringify!($kind), "[]) = 0",] $($rest)*)
    };
    (@pg [$($out:tt)*] (people $tenant:literal $names:literal $keys:literal) $($rest:tt)*) => {
        sql!(@pg [$($out)* "(select unnest($", $names, "::text[]) as user_id
            union select spelling from user_spelling where tenant = $", $tenant, " and folded = any($", $keys, "::text[])
            union select spelling from user_spelling where tenant = $", $tenant, " and folded is null
                and (octet_length(spelling) <> char_length(spelling) or lower(spelling collate \"C\") = any($", $keys, "::text[])))",] $($rest)*)
    };
    (@pg [$($out:tt)*] (spelled $tenant:literal $names:literal $keys:literal) $($rest:tt)*) => {
        sql!(@pg [$($out)* "= any(array",] (people $tenant $names $keys) ")" $($rest)*)
    };
    (@pg [$($out:tt)*] (asker_until $condition:literal) $($rest:tt)*) => {
        // Postgres evaluates the branches of a `case` in order, but the operands of `or` in any
        // order. So the attempt to take the lock has a branch of its own, the last. Postgres
        // reaches this branch only if another process stored the presence and its time has not
        // passed.
        //
        // The maximum of `asker_until` means that the result or a permit was delivered. The first
        // branch returns the maximum for any `asker_owner`: a replica of an older version stores
        // the maximum without a change of `asker_owner`, which may belong to an earlier presence.
        sql!(@pg [$($out)* "case when not ", $condition, " or t.asker_owner is null or t.asker_until = 9223372036854775807
                or t.asker_owner::text = current_setting('holdpoint.process', true) then t.asker_until
            when t.asker_until <= (extract(epoch from clock_timestamp()) * 1000000)::bigint then 0
            when pg_try_advisory_xact_lock_shared(t.asker_owner) then 0 else t.asker_until end as asker_until",] $($rest)*)
    };
    (@pg [$($out:tt)*] (skip_locked) $($rest:tt)*) => {
        sql!(@pg [$($out)* "for update skip locked",] $($rest)*)
    };
    (@lite [$($out:tt)*] (skip_locked) $($rest:tt)*) => { sql!(@lite [$($out)*] $($rest)*) };
    (@lite [$($out:tt)*] (asker_until $condition:literal) $($rest:tt)*) => {
        sql!(@lite [$($out)* "t.asker_until",] $($rest)*)
    };
    (@$engine:ident [$($out:tt)*] (task) $($rest:tt)*) => {
        sql!(@$engine [$($out)* $crate::store::task_columns::read_columns!(), ", ",]
            (asker_until "(s.seq is not null)") ", s.body as status_body" $($rest)*)
    };
    (@$engine:ident [$($out:tt)*] (request) $($rest:tt)*) => {
        sql!(@$engine [$($out)* "r.request_id, r.task_id, r.root_task_id, r.tenant, t.user_id as owner, t.session_id,
            t.agent_path, r.status, r.created_at, r.expires_at, r.seq as asked_seq, i.seq, i.at, i.body,
            (select doubted_at from database_identity where id = 1) as doubted_at",] $($rest)*)
    };
    (@$engine:ident [$($out:tt)*] (of_request) $($rest:tt)*) => {
        sql!(@$engine [$($out)* "i.task_id = r.task_id and i.seq between r.seq and coalesce(r.closed_seq, 9223372036854775807)
            and i.request_id = r.request_id",] $($rest)*)
    };
    (@$engine:ident [$($out:tt)*] (request_changes) $($rest:tt)*) => {
        sql!(@$engine [$($out)* $crate::store::sql::request_changes!(),] $($rest)*)
    };
    (@$engine:ident [$($out:tt)*] (claimed_delivery) $($rest:tt)*) => {
        sql!(@$engine [$($out)* $crate::store::deliveries::claimed_columns!(),] $($rest)*)
    };
    (@$engine:ident [$($out:tt)*] (first_of_changes) $($rest:tt)*) => {
        sql!(@$engine [$($out)* "union
        select b.root_task_id, b.event_number - 1, b.change_id
          from back b left join agent_task_item i
            on i.task_id = b.root_task_id and i.seq = b.event_number - 1 and i.event_number = i.seq
           and i.change_id = b.change_id
          left join agent_task_item j
            on j.root_task_id = b.root_task_id and j.event_number = b.event_number - 1 and j.event_number <> j.seq
           and j.change_id = b.change_id
         where coalesce(i.seq, j.seq) is not null
     )
     select event_number from back order by event_number limit 1",] $($rest)*)
    };
    (@$engine:ident [$($out:tt)*] (fitting_tasks $bytes:literal) $($rest:tt)*) => {
        sql!(@$engine [$($out)* ", sized (task_id, size) as (
            select p.task_id, octet_length(t.metadata) + coalesce(octet_length(s.body), 0) + case
                when t.open_requests = 0 then 0
                else coalesce((select sum(octet_length(i.body))
                   from intervention_request r join agent_task_item i on ",] (of_request) "
                  where r.root_task_id = t.root_task_id and coalesce(r.status, '') = 'pending'
                    and (t.parent_task_id is null or r.task_id = t.task_id)), 0) end
              from page p join agent_task t on t.task_id = p.task_id
              left join agent_task_item s on s.task_id = t.task_id and s.seq = t.status_seq
         ),
         summed (task_id, size, upto, found) as (
            select task_id, size, sum(size) over (order by task_id desc), count(*) over () from sized
         )
         select " (task) ", p.found
           from summed p join agent_task t on t.task_id = p.task_id
           left join agent_task_item s on s.task_id = t.task_id and s.seq = t.status_seq
          where p.upto <= $" $bytes " or p.upto = p.size order by t.task_id desc" $($rest)*)
    };
    (@pg [$($out:tt)*] $part:literal $($rest:tt)*) => { sql!(@pg [$($out)* $part,] $($rest)*) };
    (@lite [$($out:tt)*]) => { concat!($($out)*) };
    (@lite [$($out:tt)*] (now $n:literal) $($rest:tt)*) => { sql!(@lite [$($out)* "$", $n,] $($rest)*) };
    (@lite [$($out:tt)*] (any $n:literal uuid) $($rest:tt)*) => {
        sql!(@lite [$($out)* "in (select unhex(value) from json_each($", $n, "))",] $($rest)*)
    };
    (@lite [$($out:tt)*] (any $n:literal text) $($rest:tt)*) => {
        sql!(@lite [$($out)* "in (select value from json_each($", $n, "))",] $($rest)*)
    };
    (@lite [$($out:tt)*] (people $tenant:literal $names:literal $keys:literal) $($rest:tt)*) => {
        sql!(@lite [$($out)* "(select value as user_id from json_each($", $names, ")
            union select spelling from user_spelling where tenant = $", $tenant, " and folded in (select value from json_each($", $keys, "))
            union select spelling from user_spelling where tenant = $", $tenant, " and folded is null
                and (length(cast(spelling as blob)) <> length(spelling)
                    or lower(spelling) in (select value from json_each($", $keys, "))))",] $($rest)*)
    };
    (@lite [$($out:tt)*] (spelled $tenant:literal $names:literal $keys:literal) $($rest:tt)*) => {
        sql!(@lite [$($out)* "in ",] (people $tenant $names $keys) $($rest)*)
    };
    (@lite [$($out:tt)*] (none $n:literal $kind:ident) $($rest:tt)*) => {
        sql!(@lite [$($out)* "json_array_length($", $n, ") = 0",] $($rest)*)
    };
    (@lite [$($out:tt)*] $part:literal $($rest:tt)*) => { sql!(@lite [$($out)* $part,] $($rest)*) };
    ($($part:tt)*) => {
        $crate::store::sql::Sql { postgres: sql!(@pg [] $($part)*), sqlite: sql!(@lite [] $($part)*), by_key: false }
    };
}
pub(super) use sql;

#[cfg(test)]
mod tests {
    use crate::task::event_name::REQUEST_CHANGES;

    #[test]
    fn list_of_request_changes_in_statements_has_every_type() {
        let types = REQUEST_CHANGES.map(|name| format!("'{name}'"));
        assert_eq!(request_changes!(), format!("({})", types.join(", ")));
    }
}
