//! The pool of connections to Postgres. A connection is checked before use in two cases: it was
//! idle for long, or another connection broke during its idle time. The check of a dead connection
//! ends after `PING_TIMEOUT`. A connection is replaced without a check if another connection did
//! not answer in time during its idle time.

use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{self, Metrics, Object, PoolError, QueueMode, RecycleError, RecycleResult};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout};

use super::identity::{self, UncertainUntil};
use super::settings::{OpenError, Settings};
use crate::world::Locked;

const PING_TIMEOUT: Duration = Duration::from_millis(500);
const CHECK_AFTER_IDLE: Duration = Duration::from_secs(10);

/// The age at which a connection is replaced, so that changes of the server's settings take effect.
const MAX_CONNECTION_AGE: Duration = Duration::from_mins(30);
/// The pause after the first failed attempt to open a connection. The pause doubles with each
/// further failure, up to `MAX_RETRY_PAUSE`.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(10);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The times of the last failures of connections, of two kinds. A connection that was idle at such
/// a time has probably died, too.
/// - `broken`: the last time at which a connection was found broken. The pool pings a connection
///   that was idle at this time before its next use. So after a crash of the server, pings find
///   the other dead connections before a statement fails on them.
/// - `silent`: the last time at which a connection did not answer in time. If a connection was idle
///   at this time, the pool replaces it without a ping, so that no statement waits for pings of
///   several dead connections in turn.
#[derive(Debug, Default)]
pub(super) struct ConnectionFailures {
    broken: Locked<Option<Instant>>,
    silent: Locked<Option<Instant>>,
}

impl ConnectionFailures {
    /// Records a broken connection. If `error` is a timeout, also records that the connection did
    /// not answer in time.
    pub(super) fn record_failure(&self, error: &sqlx::Error) {
        let now = Some(Instant::now());
        *self.broken.lock() = now;
        if matches!(error, sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut) {
            *self.silent.lock() = now;
        }
    }

    /// Whether a connection that was idle for `idle_for` may be used. If another connection did not
    /// answer in time during this idle time, returns `false` without a ping. Otherwise, if another
    /// connection broke during the idle time, or if the idle time is at least `CHECK_AFTER_IDLE`,
    /// sends a ping, and returns whether the connection answers.
    async fn is_usable(&self, connection: &mut PgConnection, idle_for: Duration) -> bool {
        if is_within(&self.silent, idle_for) {
            return false;
        }
        if idle_for < CHECK_AFTER_IDLE && !is_within(&self.broken, idle_for) {
            return true;
        }
        let ping = timeout(PING_TIMEOUT, connection.ping()).await;
        let ping = ping.unwrap_or_else(|_| Err(timed_out()));
        if let Err(error) = &ping {
            self.record_failure(error);
        }
        ping.is_ok()
    }
}

/// Whether `moment` is set, and at most `idle_for` ago.
fn is_within(moment: &Locked<Option<Instant>>, idle_for: Duration) -> bool {
    let last = *moment.lock();
    last.is_some_and(|last| last.elapsed() <= idle_for)
}

pub(super) fn timed_out() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())
}

/// A pool of connections to Postgres with the same settings. A connection returns to the pool after
/// a complete answer, or, if the answer is an error, after a ping. A connection is closed if it
/// broke, if its server accepts no writes any more, if it does not answer the ping, if the
/// statement's future was dropped, if the history has changed since it was opened (see
/// [`UncertainUntil::has_changed_since_opening`]), or once it is older than `MAX_CONNECTION_AGE`.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    connections: managed::Pool<PostgresConnector>,
    timeout: Duration,
    /// How long the pool waits for the answer to a statement whose future was dropped.
    statement_limit: Duration,
}

#[derive(Debug)]
pub(super) enum ConnectFailure {
    Retryable,
    Refused(sqlx::Error),
}

#[derive(Debug)]
pub(super) struct PostgresConnector {
    pub(super) options: PgConnectOptions,
    pub(super) connection_failures: Arc<ConnectionFailures>,
    pub(super) uncertain_until: UncertainUntil,
}

impl managed::Manager for PostgresConnector {
    type Type = PgConnection;
    type Error = ConnectFailure;

    async fn create(&self) -> Result<PgConnection, ConnectFailure> {
        // The future is boxed, because the future of every statement contains this future, and
        // would otherwise be large.
        Box::pin(async {
            let mut connection = self.options.connect().await.map_err(|error| {
                if is_transient(&error) {
                    ConnectFailure::Retryable
                } else {
                    ConnectFailure::Refused(error)
                }
            })?;
            let uncertain_until = self.uncertain_until.clone();
            let recorded = identity::require_recorded(&mut connection, &uncertain_until).await;
            if recorded.is_ok() {
                return Ok(connection);
            }
            // The server may have a new identity, which `compare` must record. To record it,
            // `compare` reads all tasks, which may take longer than `get` waits. So `compare` runs
            // in a separate Tokio task, which continues when `get` drops this future. A later
            // attempt then finds the identity recorded.
            let compared = Handle::current().spawn(async move {
                identity::compare(&mut connection, &uncertain_until).await?;
                Ok::<_, sqlx::Error>(connection)
            });
            let compared = compared.await;
            let compared = compared.unwrap_or_else(|error| Err(sqlx::Error::Io(error.into())));
            compared.map_err(|error| {
                tracing::debug!(%error, "a new connection cannot be used");
                ConnectFailure::Retryable
            })
        })
        .await
    }

    async fn recycle(
        &self,
        connection: &mut PgConnection,
        metrics: &Metrics,
    ) -> RecycleResult<ConnectFailure> {
        let age = metrics.age();
        if age >= MAX_CONNECTION_AGE {
            return Err(RecycleError::message("too old"));
        }
        if self.uncertain_until.has_changed_since_opening(age) {
            return Err(RecycleError::message("opened before a promotion"));
        }
        let failures = &self.connection_failures;
        if failures.is_usable(connection, metrics.last_used()).await {
            return Ok(());
        }
        Err(RecycleError::message("perhaps dead"))
    }
}

impl Pool {
    /// Creates a pool of at most `size` connections, which are opened when they are needed.
    pub(super) fn new(
        connect: PostgresConnector,
        size: u32,
        settings: &Settings,
    ) -> Result<Self, OpenError> {
        let connections = managed::Pool::builder(connect)
            .max_size(usize::try_from(size).unwrap_or(1))
            .queue_mode(QueueMode::Lifo)
            .build();
        Ok(Self {
            connections: connections.map_err(|error| OpenError::Refused(error.to_string()))?,
            timeout: settings.acquire_timeout,
            statement_limit: settings.statement_limit(),
        })
    }

    /// Takes an idle connection, or opens a new connection. After a temporary failure, tries again
    /// until the pool's `timeout` has passed. A failure is temporary if the server does not accept
    /// connections at the moment, if it has no free connection, or if `identity::compare` failed
    /// for the new connection.
    pub(super) async fn get(&self) -> Result<CheckedOut, sqlx::Error> {
        let acquire = async {
            let mut pause = MIN_RETRY_PAUSE;
            loop {
                match self.connections.get().await {
                    Ok(connection) => {
                        return Ok(CheckedOut {
                            connection: Some(connection),
                            statement_limit: self.statement_limit,
                        });
                    }
                    Err(PoolError::Backend(ConnectFailure::Retryable)) => {
                        sleep_until(Instant::now() + pause).await;
                        pause = (pause * 2).min(MAX_RETRY_PAUSE);
                    }
                    Err(PoolError::Backend(ConnectFailure::Refused(error))) => return Err(error),
                    Err(_) => return Err(sqlx::Error::PoolClosed),
                }
            }
        };
        let result = timeout(self.timeout, acquire).await;
        result.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    /// Gives out no further connections, and closes the idle connections.
    pub(super) async fn close(&self) {
        let idle = self.connections.retain(|_, _| false).removed;
        self.connections.close();
        for connection in idle {
            let _ = timeout(PING_TIMEOUT, connection.close()).await;
        }
    }
}

/// Whether the server that refused this connection may soon accept another connection.
fn is_transient(error: &sqlx::Error) -> bool {
    if let sqlx::Error::Database(error) = error {
        return error.is_transient_in_connect_phase();
    }
    matches!(error, sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// A connection taken from its pool. [`CheckedOut::put_back`] returns it. If the `CheckedOut` is
/// dropped instead, the connection is closed once the server has answered the running statement, at
/// the latest after `statement_limit`.
pub(super) struct CheckedOut {
    connection: Option<Object<PostgresConnector>>,
    statement_limit: Duration,
}

impl CheckedOut {
    pub(super) fn connection(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        let connection = self.connection.as_mut().ok_or(sqlx::Error::PoolClosed)?;
        Ok(connection)
    }

    /// Returns the connection to its pool. The caller must have read the server's last answer
    /// completely.
    pub(super) fn put_back(mut self) {
        drop(self.connection.take());
    }

    /// Returns the connection to its pool after an error of the server, once a ping has read the
    /// rest of the server's answer. If the ping fails, the connection is closed.
    pub(super) async fn put_back_after_error(mut self) {
        if let Some(connection) = &mut self.connection
            && matches!(timeout(PING_TIMEOUT, connection.ping()).await, Ok(Ok(())))
        {
            self.put_back();
        }
    }

    pub(super) fn close(mut self) {
        if let Some(connection) = self.connection.take() {
            drop(Object::take(connection));
        }
    }
}

impl Drop for CheckedOut {
    /// If the statement's future was dropped, the server still runs the statement. So the
    /// connection counts as part of the pool until the answer comes or `statement_limit` ends.
    /// Otherwise, clients that disconnect could make the pool open more connections than its
    /// maximum.
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        let mut closing = Closing(Some(connection));
        let limit = self.statement_limit;
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                if let Some(connection) = &mut closing.0 {
                    let _ = timeout(limit, connection.ping()).await;
                }
            });
        }
    }
}

/// A connection that leaves its pool when this value is dropped. A runtime that shuts down drops
/// the tasks that it is given, and the pool would take the connection back although its statement
/// still runs.
struct Closing(Option<Object<PostgresConnector>>);

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(Object::take(connection));
        }
    }
}

#[cfg(test)]
mod tests {
    use deadpool::managed::Manager as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    // Messages of the protocol of Postgres.
    const AUTHENTICATION_OK: &[u8] = b"R\0\0\0\x08\0\0\0\0";
    const READY_FOR_QUERY: &[u8] = b"Z\0\0\0\x05I";
    const SYNC: &[u8; 5] = b"S\0\0\0\x04";

    const SHORT: Duration = Duration::from_secs(9);
    const LONG: Duration = Duration::from_secs(11);

    /// Connects to a server whose part the test plays. Returns the pool's connector, the
    /// connection, and the server's end of the connection.
    async fn connected() -> (PostgresConnector, PgConnection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("postgres://u@{address}/d?sslmode=disable");
        let options: PgConnectOptions = url.parse().unwrap();
        let accepts = async {
            let (mut server, _) = listener.accept().await.unwrap();
            let length = server.read_u32().await.unwrap();
            let mut startup = vec![0; usize::try_from(length).unwrap() - 4];
            server.read_exact(&mut startup).await.unwrap();
            let answer = [AUTHENTICATION_OK, READY_FOR_QUERY].concat();
            server.write_all(&answer).await.unwrap();
            server
        };
        let (connection, server) = tokio::join!(options.connect(), accepts);
        let connector = PostgresConnector {
            options,
            connection_failures: Arc::default(),
            uncertain_until: UncertainUntil::default(),
        };
        (connector, connection.unwrap(), server)
    }

    fn idle_for(time: Duration) -> Metrics {
        Metrics {
            recycled: std::time::Instant::now().checked_sub(time),
            ..Metrics::default()
        }
    }

    /// Before a promotion, the connection may have been opened to the server that was in use then.
    /// The last case is the one of two servers that answer in turn.
    #[tokio::test]
    async fn connection_opened_before_a_known_promotion_is_replaced_but_not_over_and_over() {
        let (connector, mut connection, _server) = connected().await;
        let now = std::time::Instant::now();
        let known_for = |time| Instant::now().checked_sub(Duration::from_secs(time));
        for (changed_at, age, is_replaced) in [
            (None, 90, false),
            (known_for(60), 90, true),
            (known_for(60), 30, false),
            (known_for(0), 1, false),
        ] {
            *connector.uncertain_until.changed_at.lock() = changed_at;
            let metrics = Metrics {
                created: now.checked_sub(Duration::from_secs(age)).unwrap(),
                recycled: Some(now),
                ..Metrics::default()
            };
            let used = connector.recycle(&mut connection, &metrics).await;
            assert_eq!(used.is_err(), is_replaced, "{changed_at:?}, {age} s old");
        }
    }

    #[tokio::test]
    async fn connection_that_was_idle_for_over_10_seconds_is_pinged_before_use() {
        let (connector, mut connection, mut server) = connected().await;
        // The call succeeds without a ping. A ping would fail, because the server does not answer
        // yet.
        let used = connector.recycle(&mut connection, &idle_for(SHORT)).await;
        assert!(used.is_ok());
        let long = idle_for(LONG);
        let pongs = async {
            let mut ping = [0; SYNC.len()];
            server.read_exact(&mut ping).await.unwrap();
            assert_eq!(&ping, SYNC);
            server.write_all(READY_FOR_QUERY).await.unwrap();
        };
        let (used, ()) = tokio::join!(connector.recycle(&mut connection, &long), pongs);
        assert!(used.is_ok());
    }

    #[tokio::test]
    async fn idle_connection_that_the_server_has_closed_is_not_used_and_has_the_others_pinged() {
        let (connector, mut connection, server) = connected().await;
        drop(server);
        let used = connector.recycle(&mut connection, &idle_for(SHORT)).await;
        assert!(used.is_ok(), "it is not pinged yet");
        let used = connector.recycle(&mut connection, &idle_for(LONG)).await;
        assert!(used.is_err());
        // A connection has just failed, so `other` is pinged even after a short idle time.
        let (_, mut other, server) = connected().await;
        drop(server);
        let used = connector.recycle(&mut other, &idle_for(SHORT)).await;
        assert!(used.is_err());
    }
}
