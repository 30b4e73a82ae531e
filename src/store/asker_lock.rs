//! Ends the stored presence of an asker together with the process that stored it, on Postgres. An
//! asker is the client that waits for the verdict on a gate call. Its presence is stored in
//! `asker_until`, the time until which it waits.
//!
//! Each process has a random number, new at each start. The Postgres session of its relay
//! (`relay.rs`) holds the advisory lock with this number, and Postgres releases the lock when the
//! session ends. A commit that stores `asker_until` also stores the number, in `asker_owner`. If a
//! query reads an `asker_until` in the future, the query tries to take the lock with the number in
//! `asker_owner` (see `sql.rs`). If no session holds this lock, the query returns 0 as
//! `asker_until`, so the presence counts as ended. A query does not try the lock of its own
//! process. The query recognizes the number, because each Postgres session of a process has the
//! process's number in the setting `holdpoint.process`.
//!
//! While the relay has no connection, other replicas treat the presences of this process as ended.
//! The presences count again as soon as the relay has taken the lock in a new session. A commit
//! that this process makes without the lock stores no number. A presence without a number lasts
//! until `asker_until`, even if this process ends earlier.

use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::postgres::PgListener;
use tokio::time::timeout;

use super::db::Sql;
use super::relay::{Disconnected, TIMEOUT};
use crate::world::{NoRandomness, random_bytes};

/// Takes the lock if it is free. The lock is not free while an earlier session of this process
/// still exists, or while a query of another process tries the lock. The setting
/// `holdpoint.process` of the session must be the number of this process. In the session of a
/// pooler that assigns connections by transaction, the setting is missing. Such a session outlives
/// this process and would keep the lock, so the statement does not take the lock in it.
///
/// The statement has no text for `SQLite`, because one process alone uses a `SQLite` file.
const TAKE: Sql = Sql {
    postgres: "select case current_setting('holdpoint.process', true) when $1::bigint::text
        then pg_try_advisory_lock($1::bigint) else false end as taken",
    sqlite: "",
    by_key: false,
};

pub(super) const STATEMENTS: &[Sql] = &[TAKE];

#[derive(Debug)]
pub(super) struct AskerLock {
    /// The random number of this process, which is the key of the advisory lock.
    key: i64,
    is_held: AtomicBool,
}

impl AskerLock {
    /// Gives this process a random number. Fails without randomness: if two processes had the same
    /// number, the presences of a dead process would last until the other process ends.
    pub(super) fn new() -> Result<Self, NoRandomness> {
        Ok(Self {
            key: i64::from_ne_bytes(random_bytes()?),
            is_held: AtomicBool::new(false),
        })
    }

    /// Returns the name and the value of the setting that tells each Postgres session of this
    /// process the number of the process.
    pub(super) fn parameter(&self) -> (&'static str, i64) {
        ("holdpoint.process", self.key)
    }

    /// Returns the `asker_owner` for a presence that this process stores now: the number of this
    /// process if it holds the lock, otherwise 0, which stands for null.
    pub(super) fn owner(&self) -> i64 {
        if self.is_held.load(Ordering::Relaxed) {
            self.key
        } else {
            0
        }
    }

    /// Takes the lock in the session of `listener`, unless that session holds it already.
    pub(super) async fn take(&self, listener: &mut PgListener) -> Result<(), Disconnected> {
        if self.is_held.load(Ordering::Relaxed) {
            return Ok(());
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "on the relay's own connection, which belongs to no pool"
        )]
        let taken = sqlx::query_scalar(TAKE.postgres)
            .bind(self.key)
            .fetch_one(listener);
        let Ok(Ok(is_held)) = timeout(TIMEOUT, taken).await else {
            return Err(Disconnected);
        };
        self.is_held.store(is_held, Ordering::Relaxed);
        Ok(())
    }

    /// Records that the lock is no longer held, because the session that held it is lost.
    pub(super) fn lose(&self) {
        self.is_held.store(false, Ordering::Relaxed);
    }
}
