//! The operator's database settings, and the reasons why a store could not be opened.

use std::net::IpAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use crate::secret::Secret;
use crate::task::units::duration_text;
use crate::world::{Mistakes, NoRandomness};

/// The database that keeps the service's state.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Database")]
pub struct Settings {
    /// The database: `sqlite://<file>` or `postgres://user@host/db`. Default:
    /// `sqlite://holdpoint.db`, a file beside the configuration. A Postgres URL may set `sslmode`:
    /// `disable` and `allow` use no TLS; `prefer` (the default) uses TLS if the server offers it,
    /// and `require` always, both without a check of the server's certificate; `verify-ca` checks
    /// the certificate, and `verify-full` also its host name. Another value is a mistake.
    /// `sslrootcert` is a file of authorities that `verify-ca` and `verify-full` trust besides the
    /// public ones; with another `sslmode` it has no effect. `sslcert` and `sslkey` are the
    /// client's own certificate and its key. Unknown parameters are ignored. A `sqlite://` URL
    /// takes no parameters. Relative paths in the URL, such as that of `sslrootcert`, are relative
    /// to the configuration file.
    pub url: Secret<String>,
    /// The maximum number of connections to Postgres. The service uses up to six (on one or two
    /// processors up to five) even if this number is lower.
    pub max_connections: u32,
    /// How long a statement waits for a free connection; at most `24d`.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub acquire_timeout: Duration,
    /// How long one statement may run; at most `24d`.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub statement_timeout: Duration,
    /// Whether `serve` applies the migrations at start.
    pub migrate: bool,
    /// Whether a Postgres that may lose confirmed commits is accepted with a warning. If false,
    /// opening such a database fails with [`OpenError::Unsafe`].
    #[serde(skip)]
    pub unsafe_ok: bool,
    /// Whether the operator declares that the database is a restored backup. The store cannot
    /// always detect a restored backup.
    #[serde(skip)]
    pub restored: bool,
    /// The maximum time to connect to a Postgres and to check it when the store is opened. Does not
    /// limit migrations.
    #[serde(skip)]
    pub open_timeout: Duration,
    /// The number of writers on Postgres, at least 1. Only tests choose another number than the
    /// default.
    #[serde(skip)]
    pub writers: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            url: Secret::new("sqlite://holdpoint.db".to_owned()),
            max_connections: 32,
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(10),
            migrate: true,
            unsafe_ok: false,
            restored: false,
            open_timeout: Duration::MAX,
            writers: default_writers(),
        }
    }
}

/// Returns the number of writers on Postgres that suits this machine. A small number is best:
/// changes that are queued during a write share the next statement and its commit, and so cost less
/// than with a statement for each change.
fn default_writers() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if processors > 2 { 2 } else { 1 }
}

/// How long this process waits beyond the server's statement timeout, for an answer that may still
/// be in transit.
const NETWORK_ALLOWANCE: Duration = Duration::from_secs(2);

/// The upper bound of `acquire_timeout` and `statement_timeout`. `SQLite` keeps the former, and
/// Postgres the latter, as a number of milliseconds below 2^31. `rusqlite` panics at a longer time.
const MAX_TIMEOUT: Duration = Duration::from_hours(24 * 24);

pub(super) enum DatabaseAddress<'a> {
    /// The URL of the Postgres database.
    Postgres(&'a str),
    /// The path of the file.
    Sqlite(&'a str),
}

impl Settings {
    /// Adds the errors and warnings about these settings to `mistakes`. Never shows the URL,
    /// because it may hold a password.
    pub fn check(&self, mistakes: &mut Mistakes) {
        match self.address() {
            Some(DatabaseAddress::Postgres(url)) => match url.parse::<PgConnectOptions>() {
                Ok(options) if !is_verified(&options) => {
                    let detail = "this server is off loopback, and nothing proves that it is the one you mean: \
                                      end the URL in `?sslmode=verify-full`";
                    mistakes.warn(&["database", "url"], detail);
                }
                Ok(_) => {}
                Err(_) => mistakes.add(&["database", "url"], "is not a valid postgres:// URL"),
            },
            Some(DatabaseAddress::Sqlite(file)) => {
                if file.is_empty() || file.starts_with(':') || file.contains('?') {
                    mistakes.add(
                        &["database", "url"],
                        "names no file: write sqlite://holdpoint.db",
                    );
                }
            }
            None => mistakes.add(
                &["database", "url"],
                "begins neither with sqlite:// nor with postgres://",
            ),
        }
        if self.max_connections == 0 {
            mistakes.add(&["database", "max_connections"], "is at least 1");
        }
        for (name, time) in [
            ("acquire_timeout", self.acquire_timeout),
            ("statement_timeout", self.statement_timeout),
        ] {
            if time < Duration::from_millis(1) {
                mistakes.add(&["database", name], "is at least 1ms");
            }
            if time > MAX_TIMEOUT {
                mistakes.add(&["database", name], "expected `24d` at most");
            }
        }
    }

    /// Returns the time limit for each statement, including the time on the network.
    pub(super) fn statement_limit(&self) -> Duration {
        self.statement_timeout + NETWORK_ALLOWANCE
    }

    pub(super) fn address(&self) -> Option<DatabaseAddress<'_>> {
        let url = self.url.reveal();
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Some(DatabaseAddress::Postgres(url));
        }
        let file = url
            .strip_prefix("sqlite://")
            .or_else(|| url.strip_prefix("sqlite:"))?;
        Some(DatabaseAddress::Sqlite(file))
    }
}

/// Whether no other server can impersonate the configured server: it is on this machine, or its
/// certificate is verified.
fn is_verified(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    let address = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    let here = options.get_socket().is_some()
        || host == "localhost"
        || address.is_ok_and(|ip| ip.is_loopback());
    here || matches!(options.get_ssl_mode(), PgSslMode::VerifyFull)
}

/// The reason why a store could not be opened. The error never contains the URL.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL names no supported database.
    #[error("database.url names no database")]
    Url,
    /// Another process has locked the `SQLite` file.
    #[error("{0} is held by another process: one process at a time may serve a SQLite file")]
    Held(String),
    /// The `SQLite` file cannot be opened, or is not a database.
    #[error("{file} cannot be opened: {why}")]
    File {
        /// The path of the file.
        file: String,
        /// The error of the system or of `SQLite`.
        why: String,
    },
    /// The database does not answer. A later attempt may succeed.
    #[error("the database at {database} cannot be reached: {reason}")]
    Unavailable {
        /// The location: host and port, a socket's folder, or a file.
        database: String,
        /// The reason why the database was not reached.
        reason: String,
    },
    /// The database answers but refuses the connection or a statement, for example because of a
    /// wrong password, because the database does not exist, or because the disk is full.
    #[error("the database refuses: {0}")]
    Refused(String),
    /// Postgres may lose confirmed commits, because the setting named here is off.
    #[error(
        "Postgres runs with {0}=off and may lose what it confirmed: turn it on, or start with --unsafe"
    )]
    Unsafe(&'static str),
    /// The encoding of the Postgres database lacks characters of texts: it is neither `UTF8` nor
    /// `SQL_ASCII`.
    #[error(
        "the encoding of the database is not UTF8, so it cannot store every text: create the database \
         with `encoding 'UTF8' locale 'C' template template0`"
    )]
    Encoding,
    /// A newer version of this program has migrated the schema.
    #[error(
        "the schema (migration {found}) is newer than this version knows ({known}): start a newer version"
    )]
    Newer {
        /// The database's last migration.
        found: i64,
        /// This binary's last migration.
        known: i64,
    },
    /// The schema is older than this binary needs, and this start may not migrate it.
    #[error(
        "the schema (migration {found}) is older than this version needs ({known}): run `holdpoint migrate`"
    )]
    Older {
        /// The database's last migration; 0 if none.
        found: i64,
        /// This binary's last migration.
        known: i64,
    },
    /// A migration could not lock a table in time.
    #[error(
        "a migration waits for a table that another transaction holds, such as a running backup: \
         start again when that transaction has ended"
    )]
    TableInUse,
    /// A migration failed, with the error of the database or of the migrator.
    #[error("a migration failed: {0}")]
    Migration(String),
    /// The system provides no random bytes. Without them, this process cannot choose its number,
    /// the key of its advisory lock (see `asker_lock.rs`).
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_name_the_key_and_never_the_url() {
        let wrong = Settings {
            url: Secret::new("mysql://root:hunter2@x/y".to_owned()),
            max_connections: 0,
            acquire_timeout: Duration::ZERO,
            ..Settings::default()
        };
        let mut mistakes = Mistakes::default();
        wrong.check(&mut mistakes);
        let places: Vec<String> = mistakes
            .found
            .iter()
            .map(|mistake| mistake.place.join("."))
            .collect();
        assert_eq!(
            places,
            [
                "database.url",
                "database.max_connections",
                "database.acquire_timeout"
            ]
        );
        assert!(!format!("{mistakes:?}").contains("hunter2"));
    }

    #[test]
    fn timeout_beyond_the_bound_of_its_database_is_a_mistake() {
        let acquire = |acquire_timeout| Settings {
            acquire_timeout,
            ..Settings::default()
        };
        let statement = |statement_timeout| Settings {
            statement_timeout,
            ..Settings::default()
        };
        for (hours, expected) in [
            (24 * 24, None),
            (24 * 24 + 1, Some("expected `24d` at most")),
        ] {
            let time = Duration::from_hours(hours);
            for settings in [acquire(time), statement(time)] {
                let mut mistakes = Mistakes::default();
                settings.check(&mut mistakes);
                let found = mistakes.found.first();
                let detail = found.map(|mistake| mistake.detail.as_str());
                assert_eq!(detail, expected, "{settings:?}");
            }
        }
    }

    #[test]
    fn default_and_postgres_urls_are_accepted() {
        for url in [
            "sqlite://holdpoint.db",
            "sqlite:/var/lib/x.db",
            "postgres://u@h/d",
            "postgresql:///d?host=/tmp",
        ] {
            let mut mistakes = Mistakes::default();
            Settings {
                url: Secret::new(url.to_owned()),
                ..Settings::default()
            }
            .check(&mut mistakes);
            assert!(mistakes.is_empty(), "{url}: {mistakes:?}");
        }
    }
}
