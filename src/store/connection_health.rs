//! The health of Postgres connections: checks an idle connection before it is used, and returns a
//! connection to its pool. Neither waits for a dead connection longer than `PULSE`.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio::time::{Instant, timeout};

/// The timeout of the liveness check.
const PULSE: Duration = Duration::from_millis(500);
/// A connection that has been idle for longer is checked before it is used.
const STALE: Duration = Duration::from_secs(10);

/// The last times at which a connection was found broken, and at which a connection did not answer
/// in time. Connections that were idle at such a time have probably died too. If a connection was
/// broken, the idle ones are checked before use, so that a crash of the server does not fail one
/// statement per connection. If a connection was silent, they are replaced unchecked, so that no
/// statement waits for each of them in turn.
#[derive(Debug, Default)]
pub(super) struct Breaks {
    broken: Mutex<Option<Instant>>,
    silent: Mutex<Option<Instant>>,
}

impl Breaks {
    /// Records a connection found broken by this error.
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
    /// The connection did not answer and must be discarded.
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

/// Whether `moment` lies within the last `idle_for`.
fn during(moment: &Mutex<Option<Instant>>, idle_for: Duration) -> bool {
    moment
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_some_and(|last| last.elapsed() <= idle_for)
}

/// The error for an answer that did not come in time.
pub(super) fn timed_out() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())
}

/// A connection taken from its pool. The pool checks each returned connection and would wait
/// forever if the connection is dead. This type ends that check after `PULSE`.
pub(super) struct CheckedOut(pub(super) Option<PoolConnection<Postgres>>);

impl CheckedOut {
    /// Discards the connection.
    pub(super) fn lose(mut self) {
        drop(self.0.take().map(PoolConnection::detach));
    }
}

impl Drop for CheckedOut {
    fn drop(&mut self) {
        let Some(mut connection) = self.0.take() else {
            return;
        };
        let back = connection.return_to_pool();
        #[expect(
            clippy::disallowed_methods,
            reason = "what the pool itself would do, with an end"
        )]
        tokio::spawn(timeout(PULSE, back));
    }
}
