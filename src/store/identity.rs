//! Finds out whether the database is a restored backup or a promoted standby. In both cases, the
//! end of the database's history may be lost, and calls that seem not to have run may have run.
//! `SQLite` has no identity, so its operator must report a restore.
//!
//! Invariant: before a pooled connection is used, its server's identity is compared with the
//! identity in the row of `database_identity`. If the identities differ, the replica stores in this
//! row the new identity and the time up to which the history is uncertain. Every replica reads this
//! time from the row.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgArguments, Postgres};
use sqlx::query::Query;
use sqlx::{Connection as _, PgConnection};
use tokio::time::Instant;

use super::Store;
use super::db::{DatabaseEngine, Db, DbFailure, Sql, Value, sql};
use super::record::{Record as _, record};
use super::settings::OpenError;
use crate::task::time::Time;
use crate::world::Locked;

/// Selects two identities: the server's (`server_identity`) and the stored (`recorded_identity`).
/// The server's identity consists of system identifier, timeline and database oid; it is null on a
/// standby. The timeline comes from the current WAL position, because right after a promotion the
/// last checkpoint still has the old timeline. The oid is included, because a dump of the database
/// may be loaded into the same server: the identity of this copy differs only in the oid.
///
/// `READ_IDENTITY`, `READ_HIDDEN_IDENTITY` and `RECORD_IDENTITY` are for Postgres only and run on a
/// connection before its first use.
const READ_IDENTITY: &str = "
select case when not pg_is_in_recovery() then s.system_identifier::text || '/'
            || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '/' || d.oid::text end as server_identity,
       k.identity as recorded_identity, k.doubted_at
  from pg_control_system() s join pg_database d on d.datname = current_database()
  left join database_identity k on k.id = 1";

/// Like `READ_IDENTITY`, for servers that do not reveal their identity. All of them get the same
/// identity, so a restore or a promotion of such a server goes unnoticed.
const READ_HIDDEN_IDENTITY: &str = "
select case when not pg_is_in_recovery() then 'untold' end as server_identity, k.identity as recorded_identity, k.doubted_at
  from (select 1) s left join database_identity k on k.id = 1";

/// Records the server's identity. If a different identity was recorded before, the history up to
/// now becomes uncertain. The server's clock may be behind the newest times in the database, so
/// `greatest` also takes the newest `updated_at` of all tasks. The new `doubted_at` is later than
/// the stored one, so the comparison with `ChangeRows::history_fence` tells the new history from
/// the stored one. It may not tell the new history from one that this database has lost entirely.
/// Several connections may find a new identity at the same time. Because the statement locks the
/// row first, the first connection updates the row while the others wait. The others then find the
/// identity recorded, and need not read all tasks.
const RECORD_IDENTITY: &str = "
with mine as materialized (
    select id from database_identity where id = 1 and identity is distinct from $1 for update
)
update database_identity k set identity = $1, doubted_at = case when k.identity is not null then greatest(k.doubted_at + 1,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint, (select max(updated_at) from agent_task))
       else k.doubted_at end
  from mine where k.id = mine.id";

/// Marks the history up to now as uncertain, because its end may be lost. Used when the operator
/// reports a restore.
const MARK_RESTORED: Sql = sql!(
    "update database_identity set doubted_at = (select max(m.at) from (select " (now 1) " as at
        union all select updated_at from agent_task union all select doubted_at + 1 from database_identity) m)
      where id = 1 returning doubted_at"
);

const READ_UNCERTAIN_UNTIL: Sql = sql!("select doubted_at from database_identity where id = 1");

pub(super) const STATEMENTS: &[Sql] = &[
    Sql::on_postgres(READ_IDENTITY),
    Sql::on_postgres(READ_HIDDEN_IDENTITY),
    Sql::on_postgres(RECORD_IDENTITY),
    MARK_RESTORED,
    READ_UNCERTAIN_UNTIL,
];

record! {
    struct Identities {
        server_identity: Option<String>,
        recorded_identity: Option<String>,
        doubted_at: Option<i64>,
    }
}

/// The age from which a connection is replaced if it was opened before the last known change of the
/// history.
const MIN_AGE: Duration = Duration::from_secs(5);

/// The time up to which the history is uncertain, as this process last read it. After a restore or
/// a promotion, the end of this history may be missing.
#[derive(Clone, Debug, Default)]
pub(super) struct UncertainUntil {
    /// The time in microseconds; 0 if the history is certain.
    at: Arc<AtomicI64>,
    /// The moment of the last change of `at`; `None` before the first change. A connection that was
    /// opened before this moment may lead to another server than a new connection.
    pub(super) changed_at: Arc<Locked<Option<Instant>>>,
}

impl UncertainUntil {
    /// Sets the time that a new connection has read. It may be earlier than the known time, because
    /// a new connection leads to the server that is in use now: the operator may have returned to a
    /// former server, or promoted a standby that lacks the later time and whose clock is behind. If
    /// the later time stayed, this process would start no more calls. If a former server still
    /// answers beside the new one, the earlier time stays only until the next new connection to the
    /// new server. Commits do not depend on this value, because each server compares its own time.
    fn set(&self, at: Option<i64>) {
        let at = at.unwrap_or(0);
        if self.at.swap(at, Ordering::SeqCst) != at {
            self.record_change();
        }
    }

    /// Raises the time to that of a journal. An earlier time changes nothing, because the journal
    /// may have been read on a connection that still leads to a former server.
    fn raise(&self, read: Option<Time>) {
        let at = read.unwrap_or_default().0;
        if self.at.fetch_max(at, Ordering::SeqCst) < at {
            self.record_change();
        }
    }

    /// Whether the time has changed since a connection of this age was opened. False for a young
    /// connection: while two servers with different histories answer, each new connection may
    /// change the time again. Connections are then replaced at most once in `MIN_AGE`.
    pub(super) fn has_changed_since_opening(&self, age: Duration) -> bool {
        let changed_at = *self.changed_at.lock();
        age >= MIN_AGE && changed_at.is_some_and(|changed_at| changed_at.elapsed() <= age)
    }

    fn record_change(&self) {
        *self.changed_at.lock() = Some(Instant::now());
    }

    fn get(&self) -> Option<Time> {
        Some(self.at.load(Ordering::SeqCst))
            .filter(|at| *at > 0)
            .map(Time)
    }
}

/// Compares the identity of a new connection's server with the recorded identity. If the two
/// differ, records the server's identity. If the caller drops this future before it has ended, the
/// identity may stay unrecorded.
///
/// # Errors
/// Fails if the server does not answer, or is a standby. The connection must then not be used.
#[expect(
    clippy::disallowed_methods,
    reason = "before `Db` exists, on the connection that is compared"
)]
pub(super) async fn compare(
    connection: &mut PgConnection,
    uncertain_until: &UncertainUntil,
) -> Result<(), sqlx::Error> {
    let mut found = read_identity(connection).await?;
    let Some(server_identity) = found.server_identity.take() else {
        return Err(sqlx::Error::Protocol(
            "the server is a standby that was not promoted".to_owned(),
        ));
    };
    if found.recorded_identity.as_ref() == Some(&server_identity) {
        uncertain_until.set(found.doubted_at);
        return Ok(());
    }
    if found.recorded_identity.is_some() {
        tracing::warn!(
            "the database is a restored backup or a promoted standby: calls that may have run need a decision"
        );
    } else if server_identity == "untold" {
        tracing::warn!(
            "the database server has no identity: start with --restored after a restore or a promotion"
        );
    }
    execute_without_time_limit(
        connection,
        sqlx::query(RECORD_IDENTITY).bind(server_identity),
    )
    .await?;
    uncertain_until.set(read_identity(connection).await?.doubted_at);
    Ok(())
}

/// Like [`compare`], but records nothing, so it takes no longer than a short read. For a new
/// connection, a pool calls this function first, and calls [`compare`] only if this function fails.
/// The relay of notifications (`relay.rs`) never calls [`compare`], because the relay's time to
/// connect is limited. If the server's identity is new, the relay's connection fails. A pooled
/// connection records the identity, and the relay connects again later.
///
/// # Errors
/// Fails if the server does not answer, is a standby, or has an identity that is not recorded.
pub(super) async fn require_recorded(
    connection: &mut PgConnection,
    uncertain_until: &UncertainUntil,
) -> Result<(), sqlx::Error> {
    let found = read_identity(connection).await?;
    if found.server_identity.is_none() || found.server_identity != found.recorded_identity {
        return Err(sqlx::Error::Protocol(
            "the server's identity is not recorded yet".to_owned(),
        ));
    }
    uncertain_until.set(found.doubted_at);
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "before `Db` exists, on the connection that is compared"
)]
async fn read_identity(connection: &mut PgConnection) -> Result<Identities, sqlx::Error> {
    let row = match sqlx::query(READ_IDENTITY).fetch_one(&mut *connection).await {
        // Hosted servers do not always reveal their identity: the function `pg_control_system` is
        // not permitted, does not exist, or is not supported.
        Err(sqlx::Error::Database(error))
            if matches!(error.code().as_deref(), Some("42501" | "42883" | "0A000")) =>
        {
            sqlx::query(READ_HIDDEN_IDENTITY)
                .fetch_one(connection)
                .await
        }
        other => other,
    };
    Identities::from_postgres(&row?)
}

/// Runs a statement without a time limit, because `RECORD_IDENTITY` and `MARK_RESTORED` read all
/// tasks.
#[expect(
    clippy::disallowed_methods,
    reason = "the time limit belongs to the connection, not to `Db`"
)]
async fn execute_without_time_limit(
    connection: &mut PgConnection,
    statement: Query<'static, Postgres, PgArguments>,
) -> Result<(), sqlx::Error> {
    let mut tx = connection.begin().await?;
    sqlx::query("set local statement_timeout = 0")
        .execute(&mut *tx)
        .await?;
    statement.execute(&mut *tx).await?;
    tx.commit().await
}

/// Reads the time up to which the history is uncertain, right after the database was opened. If the
/// operator reported a restore (`restored`), first sets this time to now.
///
/// # Errors
/// Fails with `Unavailable` if the database does not answer, or is a standby. Fails with `Refused`
/// if the statement fails for another reason.
pub(super) async fn load_uncertain_until(db: &Db, restored: bool) -> Result<(), OpenError> {
    let failed = |failure: DbFailure| {
        if !failure.sent || failure.is_result_lost() {
            db.outage.unavailable(&failure.error.reason())
        } else {
            tracing::warn!(error = %failure.error, "the database's identity could not be read");
            OpenError::Refused(failure.error.to_string())
        }
    };
    if restored {
        restore(db).await.map_err(failed)?;
        tracing::warn!(
            "the operator reported a restored database: calls that may have run need a decision"
        );
    }
    let read = db
        .one::<Option<i64>>(READ_UNCERTAIN_UNTIL, Vec::new())
        .await;
    db.uncertain_until.set(read.map_err(failed)?.flatten());
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "as `execute_without_time_limit`")]
async fn restore(db: &Db) -> Result<(), DbFailure> {
    let DatabaseEngine::Postgres { lists, .. } = &db.engine else {
        db.count_written(MARK_RESTORED, vec![Value::Now]).await?;
        return Ok(());
    };
    let mut checked_out = lists.get().await.map_err(DbFailure::unsent)?;
    let connection = checked_out.connection().map_err(DbFailure::unsent)?;
    let offset = db.offset.load(Ordering::Relaxed);
    execute_without_time_limit(connection, sqlx::query(MARK_RESTORED.postgres).bind(offset))
        .await
        .map_err(DbFailure::sent)?;
    checked_out.put_back();
    Ok(())
}

impl Store {
    /// Whether this process knows that the database does not answer. Makes no query.
    #[must_use]
    pub fn is_known_unreachable(&self) -> bool {
        self.db().outage.is_ongoing()
    }

    /// Returns the time up to which the history is uncertain; `None` if the history is certain. A
    /// restore or the promotion of a standby makes the history uncertain: calls that ran before
    /// this time may be missing in their tasks' journals.
    ///
    /// This method makes no query. It returns the time that this process has read last, and on
    /// Postgres each new connection reads the time again. A driver keeps the time that it has read
    /// with a task's journal. If this method returns a later time right before the driver sends a
    /// tool call, the driver reads the journal again.
    #[must_use]
    pub fn history_uncertain_until(&self) -> Option<Time> {
        self.db().uncertain_until.get()
    }

    /// Takes over the `history_uncertain_until` of a journal, if it is later than the time that
    /// this process knows.
    pub fn learn_uncertain_until(&self, read: Option<Time>) {
        self.db().uncertain_until.raise(read);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_time_is_raised_by_a_journal_and_set_by_a_new_connection() {
        let known = UncertainUntil::default();
        let has_changed = || known.changed_at.lock().take().is_some();
        let at = |micros| Some(Time(micros));
        known.set(None);
        assert!(!has_changed());
        for (read, then, changes) in [
            (at(5), at(5), true),
            (at(3), at(5), false),
            (None, at(5), false),
        ] {
            known.raise(read);
            assert_eq!((known.get(), has_changed()), (then, changes), "{read:?}");
        }
        for (read, changes) in [(at(5), false), (at(4), true), (None, true)] {
            known.set(read.map(|time| time.0));
            assert_eq!((known.get(), has_changed()), (read, changes), "{read:?}");
        }
    }
}
