//! The lines to Postgres: which idle connection may be used, and how one comes back to its pool. Nothing here waits for
//! a dead line longer than a pulse.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio::time::{Instant, timeout};

/// How long a connection may take to say that it lives.
const PULSE: Duration = Duration::from_millis(500);
/// A connection that was idle longer is asked whether it lives before it is used.
const STALE: Duration = Duration::from_secs(10);

/// When a connection was last found broken: those that were idle then have probably died with it. They are asked before
/// they are used, so that one crash of the server does not fail a statement for each of them; and where the one did not
/// even answer, they are replaced unasked, so that nobody waits for each of them in turn.
#[derive(Debug, Default)]
pub(super) struct Breaks {
    broken: Mutex<Option<Instant>>,
    silent: Mutex<Option<Instant>>,
}

impl Breaks {
    /// Another one was found broken, by this error.
    pub(super) fn another(&self, error: &sqlx::Error) {
        let now = Some(Instant::now());
        *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = now;
        if matches!(error, sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut) {
            *self.silent.lock().unwrap_or_else(PoisonError::into_inner) = now;
        }
    }

    /// Whether an idle connection may be used.
    ///
    /// # Errors
    /// It does not answer, and is thrown away.
    pub(super) async fn alive(
        &self,
        connection: &mut sqlx::PgConnection,
        idle_for: Duration,
    ) -> Result<bool, sqlx::Error> {
        if during(&self.silent, idle_for) {
            return Ok(false);
        }
        if idle_for < STALE && !during(&self.broken, idle_for) {
            return Ok(true);
        }
        let pulse = timeout(PULSE, sqlx::Connection::ping(connection)).await;
        let pulse = pulse.unwrap_or_else(|_| Err(timed_out()));
        if let Err(error) = &pulse {
            self.another(error);
        }
        pulse.map(|()| true)
    }
}

/// Whether that moment lies in the time from then to now.
fn during(moment: &Mutex<Option<Instant>>, idle_for: Duration) -> bool {
    moment.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|last| last.elapsed() <= idle_for)
}

/// No answer came in time.
pub(super) fn timed_out() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())
}

/// A connection on loan. The pool asks each one that comes back whether it lives, and would wait for ever for one whose
/// line is dead; here it waits as long as a pulse, and the place is free again.
pub(super) struct CheckedOut(pub(super) Option<PoolConnection<Postgres>>);

impl CheckedOut {
    /// Throws it away.
    pub(super) fn lose(mut self) {
        drop(self.0.take().map(PoolConnection::detach));
    }
}

impl Drop for CheckedOut {
    fn drop(&mut self) {
        let Some(mut connection) = self.0.take() else { return };
        let back = connection.return_to_pool();
        #[expect(clippy::disallowed_methods, reason = "what the pool itself would do, with an end")]
        tokio::spawn(timeout(PULSE, back));
    }
}
