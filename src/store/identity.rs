//! Finds out whether the database is a restored backup or a promoted standby. Such a database has
//! lost the end of its history: calls that seem not to have run may have run. Invariant: a pooled
//! connection is used only after its server's identity was compared with the identity in the row of
//! `database_identity`. A replica that finds another identity stores in that row the time up to
//! which the history is uncertain, and every replica reads it there. `SQLite` has no identity:
//! there the operator reports a restore.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use sqlx::postgres::{PgArguments, Postgres};
use sqlx::query::Query;
use sqlx::{Connection as _, PgConnection};

use super::Store;
use super::db::{Db, Engine, Failure, Sql, Value, sql};
use super::record::{Record as _, record};
use super::settings::OpenError;
use crate::task::time::Time;

/// Selects the server's identity (`told`: system identifier, timeline and database oid; null on a
/// standby) and the recorded identity (`kept`). The timeline is taken from the current WAL
/// position, because the last checkpoint still has the old timeline right after a promotion. The
/// database's oid distinguishes a database from a dump of it that was loaded into the same server.
///
/// `TOLD`, `HIDDEN` and `OTHER` are for Postgres only and run on a connection before its first use.
const TOLD: &str = "
select case when not pg_is_in_recovery() then s.system_identifier::text || '/'
            || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '/' || d.oid::text end as told,
       k.identity as kept, k.doubted_at
  from pg_control_system() s join pg_database d on d.datname = current_database()
  left join database_identity k on k.id = 1";

/// Like `TOLD`, for a server that does not reveal its identity: all such servers count as the same.
const HIDDEN: &str = "
select case when not pg_is_in_recovery() then 'untold' end as told, k.identity as kept, k.doubted_at
  from (select 1) s left join database_identity k on k.id = 1";

/// Records the server's identity. If a different identity was recorded before, the history up to
/// now becomes uncertain. `greatest` also takes the stored timestamps, in case the server's clock
/// is behind them. The row is locked first: if several connections find the difference at the same
/// time, only the first one reads all tasks.
const OTHER: &str = "
with mine as materialized (
    select id from database_identity where id = 1 and identity is distinct from $1 for update
)
update database_identity k set identity = $1, doubted_at = case when k.identity is not null then greatest(k.doubted_at,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint, (select max(updated_at) from agent_task))
       else k.doubted_at end
  from mine where k.id = mine.id";

/// Makes the history up to now uncertain, because the operator says that the database was restored.
const RESTORED: Sql = sql!(
    "update database_identity set doubted_at = (select max(m.at) from (select " (now 1) " as at
        union all select updated_at from agent_task union all select doubted_at from database_identity) m)
      where id = 1 returning doubted_at"
);

const DOUBTED: Sql = sql!("select doubted_at from database_identity where id = 1");

pub(super) const STATEMENTS: &[Sql] = &[
    Sql {
        postgres: TOLD,
        sqlite: "",
        by_key: false,
    },
    Sql {
        postgres: HIDDEN,
        sqlite: "",
        by_key: false,
    },
    Sql {
        postgres: OTHER,
        sqlite: "",
        by_key: false,
    },
    RESTORED,
    DOUBTED,
];

record! {
    struct Compared {
        told: Option<String>,
        kept: Option<String>,
        doubted_at: Option<i64>,
    }
}

record! {
    struct Doubted {
        doubted_at: Option<i64>,
    }
}

/// The time up to which the history is uncertain, as this process last read it; 0 if the history is
/// certain.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubt(Arc<AtomicI64>);

impl Doubt {
    fn found(&self, at: Option<i64>) {
        self.0.store(at.unwrap_or(0), Ordering::SeqCst);
    }

    fn at(&self) -> Option<Time> {
        Some(self.0.load(Ordering::SeqCst))
            .filter(|at| *at > 0)
            .map(Time)
    }
}

/// Compares the identity of the server behind a new connection with the recorded identity, and
/// records the server's identity if the two differ.
///
/// # Errors
/// The server cannot be asked, or is a standby: then the connection must not be used.
#[expect(
    clippy::disallowed_methods,
    reason = "before there is a door, on the connection that is compared"
)]
pub(super) async fn compare(
    connection: &mut PgConnection,
    doubt: &Doubt,
) -> Result<(), sqlx::Error> {
    let mut found = told(connection).await?;
    let Some(told) = found.told.take() else {
        return Err(sqlx::Error::Protocol(
            "the server is a standby that was not promoted".to_owned(),
        ));
    };
    if found.kept.as_ref() == Some(&told) {
        doubt.found(found.doubted_at);
        return Ok(());
    }
    if found.kept.is_some() {
        tracing::warn!(
            "the database is a restored backup or a promoted standby: calls that may have run need a decision"
        );
    } else if told == "untold" {
        tracing::warn!(
            "the database server has no identity: start with --restored after a restore or a promotion"
        );
    }
    unhurried(connection, sqlx::query(OTHER).bind(told)).await?;
    doubt.found(self::told(connection).await?.doubted_at);
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "before there is a door, on the connection that is compared"
)]
async fn told(connection: &mut PgConnection) -> Result<Compared, sqlx::Error> {
    let row = match sqlx::query(TOLD).fetch_one(&mut *connection).await {
        // The function is not permitted, does not exist, or is not supported: hosted servers do not
        // always reveal their identity.
        Err(sqlx::Error::Database(error))
            if matches!(error.code().as_deref(), Some("42501" | "42883" | "0A000")) =>
        {
            sqlx::query(HIDDEN).fetch_one(connection).await
        }
        other => other,
    };
    Compared::from_postgres(&row?)
}

/// Runs a statement without a time limit. For `OTHER` and `RESTORED`, which read all tasks.
#[expect(
    clippy::disallowed_methods,
    reason = "the time limit belongs to the connection, and is not the door's"
)]
async fn unhurried(
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
/// operator says that the database was `restored`, that time is set to now before it is read.
///
/// # Errors
/// `Unavailable` when the database does not answer, or is a standby; `Refused` otherwise.
pub(super) async fn settle(db: &Db, restored: bool) -> Result<(), OpenError> {
    let failed = |failure: Failure| {
        if !failure.sent || failure.lost() {
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
    let row: Option<Doubted> = db.one(DOUBTED, Vec::new()).await.map_err(failed)?;
    db.doubt.found(row.and_then(|row| row.doubted_at));
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "as `unhurried`")]
async fn restore(db: &Db) -> Result<(), Failure> {
    let Engine::Postgres { lists, .. } = &db.engine else {
        return db
            .write::<Doubted>(RESTORED, vec![Value::Now])
            .await
            .map(|_| ());
    };
    let mut taken = lists.get().await.map_err(Failure::unsent)?;
    let connection = taken.connection().map_err(Failure::unsent)?;
    let offset = db.offset.load(Ordering::Relaxed);
    unhurried(connection, sqlx::query(RESTORED.postgres).bind(offset))
        .await
        .map_err(Failure::sent)?;
    taken.put_back();
    Ok(())
}

impl Store {
    /// Returns the time up to which the history is uncertain; `None` if it is certain. Needs no
    /// query, because the value is updated whenever a connection is opened. A driver whose journal
    /// was read when the value was smaller must read the journal again before it starts a tool
    /// call.
    #[must_use]
    pub fn history_uncertain_until(&self) -> Option<Time> {
        self.db().doubt.at()
    }
}
