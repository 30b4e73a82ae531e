//! Opens the database: locks a `SQLite` file, connects, checks the server, and migrates or checks
//! the schema. After a successful start, no other process uses the `SQLite` file, and the database
//! has exactly the schema that this binary knows.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::PgConnectOptions;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, SqlSafeStr as _, SqlStr,
};

use super::asker_lock::AskerLock;
use super::connections::{ConnectionFailures, Pool, PostgresConnector, timed_out};
use super::db::{DatabaseEngine, Db, Sql, sql};
use super::identity::{self, UncertainUntil};
use super::outage::{self, Outage};
use super::settings::{DatabaseAddress, OpenError, Settings};
use super::sqlite_open;
use crate::world::{Clock, Locked};

include!(concat!(env!("OUT_DIR"), "/migrations.rs"));

/// How `open` treats an older schema. A newer schema is always refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Schema {
    Migrate,
    /// Migrates, for a command that ends after the migration. Does not record the identity of the
    /// server. The command and the service may use different Postgres roles, and the server may
    /// hide its identity from the role of the service. If the command recorded the identity, the
    /// service would read a different one, and would take the database for a restored backup.
    MigrateOnly,
    Check,
}

pub(super) async fn open(
    settings: &Settings,
    schema: Schema,
    clock: Arc<dyn Clock>,
) -> Result<Db, OpenError> {
    let uncertain_until = UncertainUntil::default();
    let connection_failures = Arc::new(ConnectionFailures::default());
    let outage = Outage::new(settings, Arc::clone(&clock));
    let asker_lock = AskerLock::new()?;
    let (engine, lock) = match settings.address() {
        Some(DatabaseAddress::Postgres(url)) => (
            postgres(
                options(url, &asker_lock)?,
                settings,
                schema,
                &clock,
                &outage,
                &connection_failures,
                &uncertain_until,
            )
            .await?,
            None,
        ),
        Some(DatabaseAddress::Sqlite(file)) => {
            let (engine, lock) = sqlite_open::open(Path::new(file), settings, schema).await?;
            (engine, Some(lock))
        }
        None => return Err(OpenError::Url),
    };
    Ok(Db {
        engine,
        clock,
        offset: AtomicI64::new(0),
        uncertain_until,
        statement_limit: settings.statement_limit(),
        connection_failures,
        outage,
        asker_lock,
        lock: Locked::new(lock),
    })
}

/// The planner settings for statements that are planned once, perhaps on empty tables. The settings
/// allow only nested loops over indexes, because such a plan stays good when the tables grow.
pub const PLANNED_ONCE: [(&str, &str); 6] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_material", "off"),
];

/// The settings of every pooled Postgres connection; writers have a shorter `lock_timeout`. A
/// statement that waits too long for a lock fails and can be repeated. The settings after
/// `lock_timeout` make the server end a session whose client has died or is cut off, so that the
/// session releases its locks.
const SESSION: [(&str, &str); 7] = [
    ("jit", "off"),
    ("lock_timeout", "2s"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("tcp_user_timeout", "10s"),
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "3"),
];

fn options(url: &str, asker_lock: &AskerLock) -> Result<PgConnectOptions, OpenError> {
    let options: PgConnectOptions = url.parse().map_err(|_| OpenError::Url)?;
    Ok(options
        .application_name("holdpoint")
        .disable_statement_logging()
        .options([asker_lock.parameter()]))
}

async fn postgres(
    options: PgConnectOptions,
    settings: &Settings,
    schema: Schema,
    clock: &Arc<dyn Clock>,
    outage: &Outage,
    connection_failures: &Arc<ConnectionFailures>,
    uncertain_until: &UncertainUntil,
) -> Result<DatabaseEngine, OpenError> {
    prepare_postgres(&options, settings, schema, clock, outage, uncertain_until).await?;
    let timeout = settings.statement_timeout.as_millis().to_string();
    let options = options
        .options(SESSION)
        .options([("statement_timeout", timeout)]);
    // `lists` gets a quarter of the connections, and each writer gets one. The probe and the relay
    // get one each, and `keyed` gets the rest.
    let lists = (settings.max_connections / 4).max(1);
    let keyed = settings
        .max_connections
        .saturating_sub(lists + settings.writers + 2)
        .max(1);
    let pool = |options: PgConnectOptions, size: u32| {
        let connect = PostgresConnector {
            options,
            connection_failures: Arc::clone(connection_failures),
            uncertain_until: uncertain_until.clone(),
        };
        Pool::new(connect, size, settings)
    };
    let planned_once = || options.clone().options(PLANNED_ONCE);
    let planned_anew = || {
        options
            .clone()
            .options([("plan_cache_mode", "force_custom_plan")])
    };
    Ok(DatabaseEngine::Postgres {
        // A batch that waits longer for a lock fails. The committer then sends its changes on
        // `keyed`, where `lock_timeout` is longer.
        writers: pool(
            planned_once().options([("lock_timeout", "500ms")]),
            settings.writers,
        )?,
        keyed: pool(planned_once(), keyed)?,
        lists: pool(planned_anew(), lists)?,
        probe: pool(planned_anew(), 1)?,
        relay: Box::new(planned_anew()),
    })
}

/// Checks the server, and migrates or checks the schema. Except with [`Schema::MigrateOnly`], also
/// compares the server's identity with the recorded identity, and records a new identity. Uses a
/// connection that belongs to no pool: recording reads all tasks, which may take longer than a pool
/// waits for a new connection. Here, recording has no time limit.
async fn prepare_postgres(
    options: &PgConnectOptions,
    settings: &Settings,
    schema: Schema,
    clock: &Arc<dyn Clock>,
    outage: &Outage,
    uncertain_until: &UncertainUntil,
) -> Result<(), OpenError> {
    let connected = connect(options, settings, outage);
    let connected = tokio::time::timeout(settings.open_timeout, connected).await;
    let mut connection = connected.map_err(|_| no_answer(outage))??;
    if schema != Schema::Check {
        lock_migrations(&mut connection, clock, outage).await?;
        drop_invalid_indexes(&mut connection)
            .await
            .map_err(|error| open_error(&error, outage))?;
    }
    migrate_postgres(&mut connection, schema, outage).await?;
    if schema != Schema::MigrateOnly {
        identity::compare(&mut connection, uncertain_until)
            .await
            .map_err(|error| outage.unavailable(&outage::reason(&error)))?;
    }
    let _ = connection.close().await;
    Ok(())
}

/// Connects to the server. Refuses a standby, a database that cannot store every text and, without
/// `unsafe_ok`, a server that may lose confirmed commits.
async fn connect(
    options: &PgConnectOptions,
    settings: &Settings,
    outage: &Outage,
) -> Result<sqlx::PgConnection, OpenError> {
    let connection = tokio::time::timeout(settings.acquire_timeout, options.connect()).await;
    let connection = connection.map_err(|_| no_answer(outage))?;
    let mut connection = connection.map_err(|error| open_error(&error, outage))?;
    let checked = async {
        check_primary(&mut connection, outage).await?;
        if !holds(&mut connection, KEEPS_UTF8, outage).await? {
            return Err(OpenError::Encoding);
        }
        check_durability(&mut connection, settings.unsafe_ok, outage).await
    };
    let checked = tokio::time::timeout(settings.statement_limit(), checked).await;
    checked.map_err(|_| no_answer(outage))??;
    Ok(connection)
}

fn no_answer(outage: &Outage) -> OpenError {
    outage.unavailable(&outage::reason(&timed_out()))
}

/// Refuses a standby, because its data may be stale and it accepts no writes.
async fn check_primary(
    connection: &mut sqlx::PgConnection,
    outage: &Outage,
) -> Result<(), OpenError> {
    if holds(connection, "select pg_is_in_recovery()", outage).await? {
        return Err(outage.unavailable("the server is a standby"));
    }
    Ok(())
}

/// Takes the advisory lock on migrations. Postgres releases the lock when the connection ends.
/// While another process holds the lock, this function tries again every 100 ms. A statement that
/// waits for the lock could cause a deadlock, because it would hold a snapshot. The process with
/// the lock may be building an index `concurrently`, and such a build waits until all older
/// snapshots are released.
async fn lock_migrations(
    connection: &mut sqlx::PgConnection,
    clock: &Arc<dyn Clock>,
    outage: &Outage,
) -> Result<(), OpenError> {
    while !holds(connection, TRY_LOCK, outage).await? {
        clock.sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

const TRY_LOCK: &str = "select pg_try_advisory_lock(7161402375501337)";

/// Drops invalid indexes. If a process dies while it builds an index `concurrently`, an invalid
/// index stays. The repeated migration would keep this index, because of `if not exists`. No other
/// process can be building an index now, because this process holds the lock on migrations.
async fn drop_invalid_indexes(connection: &mut sqlx::PgConnection) -> Result<(), sqlx::Error> {
    for (_, _, text) in POSTGRES {
        let index = text.split("concurrently if not exists ").nth(1);
        let Some(index) = index.and_then(|rest| rest.split_whitespace().next()) else {
            continue;
        };
        let invalid = format!(
            "select 1 from pg_index where indexrelid = to_regclass('{index}') and not indisvalid"
        );
        if !connection
            .fetch_all(AssertSqlSafe(invalid))
            .await?
            .is_empty()
        {
            let drop = format!("drop index concurrently {index}");
            connection.execute(AssertSqlSafe(drop)).await?;
        }
    }
    Ok(())
}

/// Refuses a server that may lose confirmed commits. After a crash, such a server could have
/// forgotten an approval, and the request would be open again, although the approved call has run.
/// With `unsafe_ok`, logs a warning instead.
async fn check_durability(
    connection: &mut sqlx::PgConnection,
    unsafe_ok: bool,
    outage: &Outage,
) -> Result<(), OpenError> {
    for (name, is_off) in [("fsync", FSYNC_OFF), ("synchronous_commit", COMMIT_OFF)] {
        if !holds(connection, is_off, outage).await? {
            continue;
        }
        if !unsafe_ok {
            return Err(OpenError::Unsafe(name));
        }
        tracing::warn!(
            setting = name,
            "Postgres may lose what it confirmed; work may be repeated after a crash"
        );
    }
    Ok(())
}

/// Whether the database can store every text. With `SQL_ASCII`, it stores the bytes of a text
/// unchanged, and this service sends UTF-8. All encodings but these two lack some characters. A
/// text with such a character, for example a model's answer, would end its task.
const KEEPS_UTF8: &str = "select current_setting('server_encoding') in ('UTF8', 'SQL_ASCII')";
const FSYNC_OFF: &str = "select current_setting('fsync') = 'off'";
const COMMIT_OFF: &str = "select current_setting('synchronous_commit') = 'off'";

/// Returns the `boolean` that a statement selects.
#[expect(
    clippy::disallowed_methods,
    reason = "before `Db` exists, on the one connection that checks and migrates"
)]
async fn holds(
    connection: &mut sqlx::PgConnection,
    sql: &'static str,
    outage: &Outage,
) -> Result<bool, OpenError> {
    let read = sqlx::query_scalar(sql).fetch_one(connection).await;
    read.map_err(|error| open_error(&error, outage))
}

type MigrationTexts = [(i64, &'static str, &'static str)];

pub(super) fn migrations(texts: &MigrationTexts) -> impl Iterator<Item = Migration> {
    texts.iter().map(|(number, name, text)| {
        let alone = text.starts_with("-- no-transaction");
        let text = SqlStr::from_static(text);
        Migration::new(*number, (*name).into(), MigrationType::Simple, text, alone)
    })
}

/// Whether a schema whose last migration is `found` must be migrated.
///
/// # Errors
/// [`OpenError::Newer`] if the schema is newer than this binary knows. [`OpenError::Older`] if the
/// schema is older and `schema` is [`Schema::Check`].
pub(super) fn is_older(
    found: i64,
    texts: &MigrationTexts,
    schema: Schema,
) -> Result<bool, OpenError> {
    let known = texts
        .iter()
        .map(|(number, _, _)| *number)
        .max()
        .unwrap_or(0);
    if found > known {
        return Err(OpenError::Newer { found, known });
    }
    if found < known && schema == Schema::Check {
        return Err(OpenError::Older { found, known });
    }
    Ok(found < known)
}

/// Returns `migration` with a `lock_timeout` for its transaction. Statements of running replicas
/// queue behind a migration that waits for their table, so this wait must be short. The checksum
/// stays the digest of the file. A migration without a transaction builds an index `concurrently`.
/// It gets no `lock_timeout`: it must wait until all older transactions have ended, and no
/// statement queues behind it.
fn with_lock_timeout(mut migration: Migration) -> Migration {
    if !migration.no_tx {
        let text = format!("set local lock_timeout = '2s';\n{}", migration.sql.as_str());
        migration.sql = AssertSqlSafe(text).into_sql_str();
    }
    migration
}

/// The code of Postgres' error after `lock_timeout`.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// Migrates an older schema, or refuses it if `schema` is [`Schema::Check`]. Always refuses a newer
/// schema. A caller that migrates must hold the advisory lock on migrations. A lost connection is
/// reported as an outage, so that a starting service waits for the server and then continues with
/// the next migration.
async fn migrate_postgres(
    connection: &mut sqlx::PgConnection,
    schema: Schema,
    outage: &Outage,
) -> Result<(), OpenError> {
    let migrations = migrations(POSTGRES).map(with_lock_timeout);
    let migrator = Migrator::with_migrations(migrations.collect());
    let failed = |error: MigrateError| {
        if let MigrateError::Execute(cause) | MigrateError::ExecuteMigration(cause, _) = &error {
            if is_outage(cause) {
                return outage.unavailable(&outage::reason(cause));
            }
            let code = cause.as_database_error().and_then(DatabaseError::code);
            if code.as_deref() == Some(LOCK_NOT_AVAILABLE) {
                return OpenError::TableInUse;
            }
        }
        OpenError::Migration(error.to_string())
    };
    let applied = match connection
        .list_applied_migrations(&migrator.table_name)
        .await
    {
        Ok(applied) => applied,
        // The table of migrations does not exist (42P01), so no migration was ever applied.
        Err(MigrateError::Execute(sqlx::Error::Database(error)))
            if error.code().as_deref() == Some("42P01") =>
        {
            Vec::new()
        }
        Err(error) => return Err(failed(error)),
    };
    let versions = applied.iter().map(|migration| migration.version);
    if is_older(versions.max().unwrap_or(0), POSTGRES, schema)? {
        migrator
            .run_direct(None, connection, false)
            .await
            .map_err(failed)?;
    }
    Ok(())
}

fn open_error(error: &sqlx::Error, outage: &Outage) -> OpenError {
    if let sqlx::Error::Database(inner) = error
        && !is_outage(error)
    {
        return OpenError::Refused(inner.message().to_owned());
    }
    outage.unavailable(&outage::reason(error))
}

/// The beginnings of the messages with which `PgBouncer`, in its present and earlier versions, says
/// that it or its server is down or stopping.
const POOLER_OUTAGES: [&str; 5] = [
    "server login has been failing",
    "client_login_timeout (server down)",
    "pgbouncer cannot connect to server",
    "pooler is shutting down",
    "server shutting down",
];

/// Whether a later attempt may succeed: the server is unreachable, starting, stopping or out of
/// resources. A pooler that cannot reach its server reports class 08. `PgBouncer` gives the code
/// 08P01 to each of its own errors, even to a wrong password, so for this code the message decides.
fn is_outage(error: &sqlx::Error) -> bool {
    if let sqlx::Error::Database(inner) = error {
        let code = inner.code().unwrap_or_default();
        return match &*code {
            "08P01" => POOLER_OUTAGES
                .iter()
                .any(|text| inner.message().starts_with(text)),
            code => ["08", "53", "57P"]
                .iter()
                .any(|class| code.starts_with(class)),
        };
    }
    matches!(error, sqlx::Error::Io(_) | sqlx::Error::Tls(_))
}

/// Ends the presence of all waiting askers when a `SQLite` file is opened, because the process that
/// served their connections has ended. After this, a new proposal of an equal call continues the
/// stored call. On Postgres, the presence of an asker ends together with the process that stored it
/// (see `asker_lock.rs`).
pub(super) const END_PRESENCE: Sql = sql!(
    "update agent_task set asker_until = 0
      where call_key is not null and asker_until > $1 and asker_until < 9223372036854775807
     returning task_id"
);

/// Expires the leases of all tasks when a `SQLite` file is opened, because the process that took
/// them has ended. The next claim of each of these tasks counts as a takeover.
pub(super) const EXPIRE_LEASES: Sql =
    sql!("update agent_task set lease_until = 0 where phase = 'leased' returning task_id");
