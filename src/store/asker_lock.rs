//! On Postgres, ends the presence of an asker when the process that stored the presence ends. An
//! asker is the client that waits for the verdict on a gate call. Its presence is stored in
//! `asker_until`, the time until which it waits.
//!
//! Each process has a random number, new at each start. The Postgres session of the process's relay
//! (`relay.rs`) holds an advisory lock with this number as the key. Postgres releases the lock when
//! the session ends. A commit that stores `asker_until` also stores the number, in `asker_owner`.
//!
//! A query that reads an `asker_until` in the future tries to take the lock with the key
//! `asker_owner` (see `sql.rs`). If the query gets the lock, the process with this number no longer
//! holds it, so the query returns 0 as `asker_until`: the presence counts as ended. For a presence
//! of its own process, a query does not try the lock. A query knows the number of its own process
//! from the setting `holdpoint.process`, which each Postgres session of the process has.
//!
//! While the relay of a process has no Postgres session, the lock is free, so other replicas treat
//! the presences of this process as ended. These presences count again as soon as the relay has
//! taken the lock in a new session. A commit that the process makes without the lock stores no
//! number. A presence without a number lasts until `asker_until`, even if the process ends earlier.

use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::postgres::PgListener;
use tokio::time::timeout;

use super::db::Sql;
use super::relay::{Disconnected, TIMEOUT};
use crate::world::{NoRandomness, random_bytes};

/// Takes the lock if it is free. An earlier session of this process may still hold the lock, or a
/// query of another process may hold it for a moment to find out whether it is free.
///
/// The statement takes the lock only if the session's setting `holdpoint.process` is the number of
/// this process. In a session of a pooler that assigns connections by transaction, this setting is
/// missing. Such a session would keep the lock after the end of this process.
///
/// The statement has no text for `SQLite`, because only one process uses a `SQLite` file.
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

    /// Returns a setting for each Postgres session of this process: the name of the setting, and
    /// the number of this process as its value.
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

    /// Tries to take the lock in the session of `listener`, unless that session holds it already.
    /// Fails only if the connection fails or does not answer in time.
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
