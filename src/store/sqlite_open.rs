//! Opens a `SQLite` file: locks it, makes it private to its owner, and migrates or checks its
//! schema.

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rusqlite::{OptionalExtension as _, TransactionBehavior};

use super::db::DatabaseEngine;
use super::open::{SQLITE, Schema, is_older, migrations};
use super::settings::{OpenError, Settings};
use super::sqlite::SqliteFile;

/// Opens the file and locks it against other processes. The lock lasts until the returned [`File`]
/// is dropped.
pub(super) async fn open(
    file: &Path,
    settings: &Settings,
    schema: Schema,
) -> Result<(DatabaseEngine, File), OpenError> {
    let shown = file.display().to_string();
    let failed = |why: String| OpenError::File {
        file: shown.clone(),
        why,
    };
    let file = canonical(file).map_err(|error| failed(error.to_string()))?;
    let lock = lock(&file, &shown)?;
    private(&file).map_err(|error| failed(error.to_string()))?;
    let opened = SqliteFile::new(&file, settings.acquire_timeout);
    let opened = opened.map_err(|error| failed(error.to_string()))?;
    opened
        .with_writer(move |connection| Ok(migrate_sqlite(connection, schema)))
        .await
        .map_err(|failure| failed(failure.error.to_string()))??;
    Ok((DatabaseEngine::Sqlite(opened), lock))
}

/// Migrates the file's schema if it is older than this binary needs. Refuses an older schema if
/// `schema` is [`Schema::Check`], and always refuses a newer schema. The applied migrations are
/// recorded in sqlx's table, as on Postgres.
fn migrate_sqlite(connection: &mut rusqlite::Connection, schema: Schema) -> Result<(), OpenError> {
    let failed = |error: rusqlite::Error| OpenError::Migration(error.to_string());
    let exists = connection.table_exists(None, MIGRATIONS).map_err(failed)?;
    let found: i64 = if exists {
        connection
            .query_row(APPLIED, [], |row| row.get(0))
            .map_err(failed)?
    } else {
        0
    };
    if !is_older(found, SQLITE, schema)? {
        return Ok(());
    }
    // Each commit waits for the disk, so a single transaction applies all migrations. It is an
    // immediate transaction for the reason given at `SqliteFile::write`.
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(failed)?;
    transaction
        .execute_batch(CREATE_MIGRATIONS)
        .map_err(failed)?;
    for migration in migrations(SQLITE) {
        let version = migration.version;
        let applied = transaction
            .query_row(CHECKSUM, [version], |row| row.get::<_, Vec<u8>>(0))
            .optional()
            .map_err(failed)?;
        match applied {
            Some(checksum) if checksum == *migration.checksum => continue,
            Some(_) => {
                let why = format!("migration {version} was applied with another text");
                return Err(OpenError::Migration(why));
            }
            None => {}
        }
        transaction
            .execute_batch(migration.sql.as_str())
            .map_err(failed)?;
        let row = (version, &*migration.description, &*migration.checksum);
        transaction.execute(RECORD_MIGRATION, row).map_err(failed)?;
    }
    transaction.commit().map_err(failed)
}

const MIGRATIONS: &str = "_sqlx_migrations";
const APPLIED: &str = "select coalesce(max(version), 0) from _sqlx_migrations";
const CHECKSUM: &str = "select checksum from _sqlx_migrations where version = $1";
const CREATE_MIGRATIONS: &str = "create table if not exists _sqlx_migrations (
    version bigint primary key, description text not null, installed_on timestamp not null default current_timestamp,
    success boolean not null, checksum blob not null, execution_time bigint not null)";
const RECORD_MIGRATION: &str =
    "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
    values ($1, $2, true, $3, 0)";

/// Creates the file if it is missing. Returns the file's path without symbolic links, so that every
/// link to the file leads to the same lock file.
///
/// Does not open an existing file, because another store of this process may use it. When a process
/// closes any descriptor of a file, the system releases all POSIX locks that the process holds on
/// the file. These include the locks of the other store's connections.
fn canonical(file: &Path) -> std::io::Result<PathBuf> {
    match std::fs::canonicalize(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .open(file)?;
            std::fs::canonicalize(file)
        }
        found => found,
    }
}

/// Locks the file `<database>.lock`. The operating system releases the lock when the process ends,
/// even after a crash. `shown` is the path of the database as it was configured.
fn lock(file: &Path, shown: &str) -> Result<File, OpenError> {
    let path = beside(file, ".lock");
    let failed = |why: String| OpenError::File {
        file: path.display().to_string(),
        why,
    };
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|error| failed(error.to_string()))?;
    match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Held(shown.to_owned())),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Fails if the file is a folder or cannot be written. Gives read and write access to the file's
/// owner alone. If the files `-wal` and `-shm` exist, gives them the same mode. Otherwise, `SQLite`
/// later creates them with the mode of the file.
fn private(file: &Path) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(file)?;
    for path in [file.to_owned(), beside(file, "-wal"), beside(file, "-shm")] {
        match std::fs::set_permissions(&path, Permissions::from_mode(0o600)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}
