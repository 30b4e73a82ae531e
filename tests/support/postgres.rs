//! A throwaway Postgres: one cluster per test run, one migrated template in it, one database per test.
//!
//! `TEST_DATABASE_URL` names a server to use instead (its user may create databases). The cluster listens on a unix
//! socket only, keeps fsync on (a store refuses to open without), never runs as root, and is ended and removed by a
//! detached watcher when the process that runs the tests is gone, however it ended.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use holdpoint::store::{Settings, Store};
use holdpoint::world::SystemClock;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

const TEMPLATE: &str = "holdpoint_template";

/// A migrated, empty database of its own; dropped with this value.
pub struct TestDatabase {
    /// Its URL.
    pub url: String,
    admin: String,
    name: String,
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (admin, name) = (self.admin.clone(), self.name.clone());
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(run(&admin, format!("drop database if exists \"{name}\" with (force)")));
        });
        // A test that failed has said why already.
        let _ = dropped.join();
    }
}

/// A fresh database.
pub async fn database() -> TestDatabase {
    let name = format!("t_{}", unique());
    if let Some(admin) = std::env::var_os("TEST_DATABASE_URL") {
        let admin = admin.into_string().unwrap();
        run(&admin, format!("create database \"{name}\"")).await;
        let url = other_database(&admin, &name);
        migrate(&url).await;
        return TestDatabase { url, admin, name };
    }
    let cluster = shared_cluster().await;
    run(&cluster.url("postgres"), format!("create database \"{name}\" template {TEMPLATE}")).await;
    TestDatabase { url: cluster.url(&name), admin: cluster.url("postgres"), name }
}

/// A name that nobody else has.
#[expect(clippy::disallowed_methods, reason = "tests may be surprised")]
pub fn unique() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}

/// Runs one statement on a connection of its own.
pub async fn run(url: &str, sql: String) {
    let mut connection = PgConnection::connect(url).await.expect("the test server answers");
    connection.execute(AssertSqlSafe(sql)).await.expect("the statement is right");
    let _ = connection.close().await;
}

async fn migrate(url: &str) {
    let settings = Settings { url: url.to_owned(), unsafe_ok: true, ..Settings::default() };
    Store::migrate(&settings, Arc::new(SystemClock)).await.expect("the migrations run");
}

fn other_database(url: &str, name: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, None), |(base, query)| (base, Some(query)));
    let server = base.find("://").and_then(|at| base[at + 3..].find('/').map(|slash| &base[..at + 3 + slash]));
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/{name}{query}", server.unwrap_or(base))
}

/// A running server in a folder of its own.
pub struct Cluster {
    folder: PathBuf,
}

impl Cluster {
    /// The URL of one of its databases.
    pub fn url(&self, database: &str) -> String {
        let socket = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{socket}/{database}")
    }

    /// Makes and starts one; `watched` is the process after whose end it goes away. The options are postgres's own.
    pub fn start(folder: &Path, options: &str, watched: u32) -> Self {
        own(folder);
        let mut init = command(&bin().join("initdb"), folder, user());
        init.args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "-D"]);
        done(init.arg(folder.join("data")));
        Self::resume(folder, options, watched)
    }

    /// Starts one on what is in its folder already.
    pub fn resume(folder: &Path, options: &str, watched: u32) -> Self {
        let (data, log) = (folder.join("data"), folder.join("log"));
        let options = format!("-k {} -c listen_addresses='' -c max_connections=300 {options}", folder.display());
        let mut start = command(&bin().join("pg_ctl"), folder, user());
        done(start.args(["-s", "-w", "-D"]).arg(&data).arg("-l").arg(&log).arg("-o").arg(options).arg("start"));
        watch(folder, watched);
        Self { folder: folder.to_owned() }
    }

    /// A base backup into another folder; of a standby, it says so to the server that is started there.
    pub fn backup(&self, folder: &Path, standby: bool) {
        own(folder);
        let mut backup = command(&bin().join("pg_basebackup"), folder, user());
        backup.args(["--username=postgres", "--checkpoint=fast", "--no-sync", "--host"]).arg(&self.folder);
        backup.arg("-D").arg(folder.join("data"));
        if standby {
            backup.arg("-R");
        }
        done(&mut backup);
    }

    /// Ends it as a power cut would.
    pub fn cut(&self) {
        self.control(&["-m", "immediate", "stop"]);
    }

    /// A standby becomes the server.
    pub fn promote(&self) {
        self.control(&["promote"]);
    }

    fn control(&self, arguments: &[&str]) {
        let mut control = command(&bin().join("pg_ctl"), &self.folder, user());
        done(control.args(["-s", "-w", "-D"]).arg(self.folder.join("data")).args(arguments));
    }
}

/// A folder that only the server's user sees.
fn own(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
    if let Some((uid, gid)) = user() {
        chown(folder, Some(uid), Some(gid)).unwrap();
    }
}

/// One cluster for all processes of a test run (nextest starts one for each test).
async fn shared_cluster() -> Cluster {
    let parent = std::os::unix::process::parent_id();
    let folder = std::env::temp_dir().join(format!("holdpoint-pg-{parent}"));
    let lock = File::create(std::env::temp_dir().join(format!("holdpoint-pg-{parent}.lock"))).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let ready = folder.join("ready");
    if ready.exists() {
        return Cluster { folder };
    }
    // What an earlier run with the same number left half made.
    let _ = fs::remove_dir_all(&folder);
    let cluster = Cluster::start(&folder, "", parent);
    run(&cluster.url("postgres"), format!("create database {TEMPLATE}")).await;
    migrate(&cluster.url(TEMPLATE)).await;
    File::create(ready).unwrap();
    cluster
}

/// Ends the server and removes its folder when the watched process is gone.
fn watch(folder: &Path, watched: u32) {
    let script = format!(
        "while kill -0 {watched} 2>/dev/null; do sleep 1; done
         kill -INT $(head -n 1 '{0}/data/postmaster.pid') 2>/dev/null
         while [ -e '{0}/data/postmaster.pid' ]; do sleep 0.1; done
         rm -rf '{0}' '{0}.lock'",
        folder.display()
    );
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(script).process_group(0).current_dir("/");
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    drop(shell.spawn().expect("sh starts"));
}

fn command(program: &Path, folder: &Path, user: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null());
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    command
}

fn done(command: &mut Command) {
    // Into a file, not a pipe: the server inherits it and would keep a pipe open for ever.
    let said = tempfile::tempfile().unwrap();
    command.stdout(said.try_clone().unwrap()).stderr(said.try_clone().unwrap());
    let status = command.status().expect("a program of Postgres starts");
    if !status.success() {
        let mut text = String::new();
        let mut said = said;
        std::io::Seek::rewind(&mut said).unwrap();
        std::io::Read::read_to_string(&mut said, &mut text).unwrap();
        panic!("{} failed: {text}", command.get_program().display());
    }
}

/// Postgres refuses to run as root: then its own user runs it.
fn user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = ["postgres", "nobody"].iter().find_map(|name| {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    Some(found.expect("Postgres does not run as root: there must be a user `postgres` (apt-get install postgresql)"))
}

/// Where the programs are: beside the `initdb` of PATH (links followed), or where Debian puts them.
fn bin() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let named = std::env::split_paths(&path).filter_map(|folder| {
        let real = fs::canonicalize(folder.join("initdb")).ok()?;
        Some(real.parent()?.to_owned())
    });
    let mut debian: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .collect();
    debian.sort();
    named
        .chain(debian.into_iter().rev())
        .find(|folder| ["initdb", "pg_ctl", "postgres"].iter().all(|program| folder.join(program).exists()))
        .expect(
            "The tests need Postgres 13 or newer: install it (apt-get install postgresql), \
             or set TEST_DATABASE_URL to a server whose user may create databases",
        )
}
