//! Creates the `SQLite` file of a test, and runs SQL on it.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdpoint::secret::Secret;
use holdpoint::store::{Settings, Store};
use holdpoint::world::SystemClock;
use rusqlite::{Connection, OpenFlags, Row};

use super::postgres::database_folder;

/// Creates a migrated, empty database in a folder of its own. Returns the folder and the database's
/// URL. The folder is removed when the returned `TempDir` is dropped.
pub async fn database() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir_in(database_folder()).unwrap();
    let file = folder.path().join("holdpoint.db");
    // Copying takes a tenth of the time of the migrations.
    fs::copy(template().await, &file).unwrap();
    (folder, format!("sqlite://{}", file.display()))
}

/// Returns the path of a migrated, empty database. Makes the file unless it is newer than this
/// program, because an older file may lack some of the program's migrations.
///
/// Each test runs in its own process, and several tests may make the file at the same time.
/// Therefore each test first makes a draft of its own and then renames it to the path. The name of
/// the file contains a hash of the repository's folder, because several clones of the repository
/// may share a target folder.
async fn template() -> PathBuf {
    let made_at = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut clone = DefaultHasher::new();
    env!("CARGO_MANIFEST_DIR").hash(&mut clone);
    let template = folder.join(format!("template-{:016x}.db", clone.finish()));
    if made_at(&template) > made_at(&std::env::current_exe().unwrap()) {
        return template;
    }
    fs::create_dir_all(folder).unwrap();
    let draft = tempfile::tempdir_in(folder).unwrap();
    let file = draft.path().join("template.db");
    let settings = Settings {
        url: Secret::new(format!("sqlite://{}", file.display())),
        ..Settings::default()
    };
    let migrated = Store::migrate(&settings, Arc::new(SystemClock)).await;
    migrated.expect("the migrations run");
    let journal = draft.path().join("template.db-wal");
    assert!(!journal.exists(), "the file alone is the database");
    fs::rename(&file, &template).unwrap();
    template
}

/// Opens the file of a `sqlite://` URL. The file must exist.
#[expect(clippy::disallowed_methods, reason = "tests look beside the store")]
pub fn connect(url: &str) -> Connection {
    let file = url.strip_prefix("sqlite://").unwrap();
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    connection.busy_timeout(Duration::from_secs(5)).unwrap();
    connection
}

/// Runs one statement and returns its rows. Binds no parameters, so each parameter is null.
pub fn rows<T>(
    connection: &Connection,
    sql: &str,
    read: impl FnMut(&Row) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare(sql)?.raw_query().mapped(read).collect()
}
