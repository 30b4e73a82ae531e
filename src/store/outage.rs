//! Logs outages of the database. A failure to reach the database is logged at most once in ten
//! seconds. If a failure was logged, a further line is logged when the database answers again. Each
//! line has the database's location, and the lines about failures also have the reason. A statement
//! that fails because of an outage has no log line of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;

use super::settings::{DatabaseAddress, OpenError, Settings};
use crate::world::{Clock, Locked};

/// The minimum time between two lines about failures, even of different outages. So a database that
/// fails and recovers in quick succession does not flood the log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Logs when the database cannot be reached, and when it answers again.
pub struct Outage {
    database: String,
    clock: Arc<dyn Clock>,
    /// Whether an outage is going on. If this is false, `answered` returns without locking `log`.
    is_ongoing: AtomicBool,
    log: Locked<OutageLog>,
}

#[derive(Default)]
struct OutageLog {
    /// The start of the outage, by the machine's uptime; `None` if the database is reachable.
    since: Option<Duration>,
    is_logged: bool,
    /// The machine's uptime when the last line about a failure was logged.
    last_logged: Option<Duration>,
}

impl std::fmt::Debug for Outage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Outage({})", self.database)
    }
}

impl Outage {
    /// Creates a tracker for the database that these settings name.
    #[must_use]
    pub fn new(settings: &Settings, clock: Arc<dyn Clock>) -> Self {
        Self {
            database: settings.location(),
            clock,
            is_ongoing: AtomicBool::new(false),
            log: Locked::default(),
        }
    }

    /// Whether the last attempt to reach the database failed.
    pub(super) fn is_ongoing(&self) -> bool {
        self.is_ongoing.load(Ordering::Relaxed)
    }

    /// Records a failed attempt to reach the database, and logs it at most once in ten seconds.
    pub fn failed(&self, reason: &str) {
        let now = self.clock.uptime();
        let mut log = self.log.lock();
        self.is_ongoing.store(true, Ordering::Relaxed);
        let since = *log.since.get_or_insert(now);
        if log
            .last_logged
            .is_some_and(|last| now.saturating_sub(last) < LOG_INTERVAL)
        {
            return;
        }
        (log.last_logged, log.is_logged) = (Some(now), true);
        let seconds = now.saturating_sub(since).as_secs_f64();
        tracing::warn!(database = %self.database, reason, seconds, "the database cannot be reached");
    }

    /// Records that the database answered. If the outage was logged, logs its end.
    pub fn answered(&self) {
        if !self.is_ongoing.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut log = self.log.lock();
        let (since, is_logged) = (log.since.take(), std::mem::take(&mut log.is_logged));
        if let (Some(since), true) = (since, is_logged) {
            let seconds = self.clock.uptime().saturating_sub(since).as_secs_f64();
            tracing::info!(database = %self.database, seconds, "the database answers again");
        }
    }

    pub(super) fn unavailable(&self, reason: &str) -> OpenError {
        OpenError::Unavailable {
            database: self.database.clone(),
            reason: reason.to_owned(),
        }
    }
}

impl Settings {
    /// Returns the database's location: host and port, a socket's folder, or a file. Never returns
    /// the URL, which may hold a password.
    fn location(&self) -> String {
        match self.address() {
            Some(DatabaseAddress::Postgres(url)) => match url.parse::<PgConnectOptions>() {
                Ok(options) => match options.get_socket() {
                    Some(socket) => socket.display().to_string(),
                    None => format!("{}:{}", options.get_host(), options.get_port()),
                },
                Err(_) => "postgres".to_owned(),
            },
            Some(DatabaseAddress::Sqlite(file)) => file.to_owned(),
            None => "none".to_owned(),
        }
    }
}

/// Returns the reason why the database was not reached, in the words of the system, the driver or
/// the server.
pub(super) fn reason(error: &sqlx::Error) -> String {
    if let sqlx::Error::Io(error) = error {
        let late = error.kind() == std::io::ErrorKind::TimedOut;
        if late {
            "no answer in time".to_owned()
        } else {
            error.to_string()
        }
    } else if let sqlx::Error::Database(error) = error {
        error.message().to_owned()
    } else if let sqlx::Error::PoolTimedOut = error {
        "no connection in time".to_owned()
    } else {
        error.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;
    use crate::task::time::Time;
    use crate::world::captured::Captured;

    /// A clock whose time changes only when a test sets it.
    #[derive(Default)]
    struct Still(Locked<Duration>);

    #[async_trait::async_trait]
    impl Clock for Still {
        fn now(&self) -> Time {
            Time(0)
        }

        fn uptime(&self) -> Duration {
            *self.0.lock()
        }

        async fn sleep(&self, _: Duration) {}
    }

    fn settings(url: &str) -> Settings {
        Settings {
            url: Secret::new(url.to_owned()),
            ..Settings::default()
        }
    }

    /// Returns the lines that are logged while `steps` run, without their times.
    fn lines(steps: impl FnOnce()) -> Vec<String> {
        let captured = Captured::default();
        let printing = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_target(false);
        tracing::subscriber::with_default(printing.with_writer(captured.writer()).finish(), steps);
        captured
            .text()
            .lines()
            .map(|line| line.trim().to_owned())
            .collect()
    }

    #[test]
    fn outage_is_logged_once_then_every_10_seconds_and_once_when_it_ends() {
        let clock = Arc::new(Still::default());
        let outage = Outage::new(
            &settings("postgres://u:hunter2@db.internal:6000/d"),
            Arc::<Still>::clone(&clock),
        );
        let at = |seconds: u64| *clock.0.lock() = Duration::from_secs(seconds);
        let said = lines(|| {
            outage.answered();
            for second in 0..25 {
                at(second);
                outage.failed("Connection refused");
            }
            outage.answered();
            outage.answered();
        });
        let cannot = |seconds: u64| {
            format!(
                "WARN the database cannot be reached database=db.internal:6000 reason=\"Connection refused\" seconds={seconds}.0"
            )
        };
        let back =
            "INFO the database answers again database=db.internal:6000 seconds=24.0".to_owned();
        assert_eq!(said, [cannot(0), cannot(10), cannot(20), back]);
    }

    #[test]
    fn flapping_database_writes_no_line_for_each_outage() {
        let clock = Arc::new(Still::default());
        let outage = Outage::new(&settings("sqlite://h.db"), Arc::<Still>::clone(&clock));
        let said = lines(|| {
            for _ in 0..100 {
                outage.failed("gone");
                outage.answered();
            }
        });
        assert_eq!(said.len(), 2, "{said:?}");
    }

    #[test]
    fn place_is_a_host_a_socket_or_a_file_and_never_the_url() {
        for (url, place) in [
            ("postgres://u:hunter2@db.internal/d", "db.internal:5432"),
            ("postgres://u:hunter2@[::1]:7/d", "[::1]:7"),
            ("postgres://u@%2Frun%2Fpg/d?password=hunter2", "/run/pg"),
            ("postgres:///d?host=/run/pg&password=hunter2", "/run/pg"),
            ("sqlite:///var/lib/h.db", "/var/lib/h.db"),
            ("mysql://u:hunter2@h/d", "none"),
        ] {
            assert_eq!(settings(url).location(), place, "{url}");
        }
    }
}
