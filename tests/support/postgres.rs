//! A Postgres server for the tests. Each test run has one cluster with a migrated template. Each
//! test has its own database, a copy of the template. A test that crashes or freezes its server has
//! a [`PrivateCluster`].
//!
//! If `TEST_DATABASE_URL` is set, [`database`] uses the server of this URL and starts no cluster.
//! The URL's user must be allowed to create databases.
//!
//! A cluster listens only on a unix socket and never runs as root. It keeps fsync on, because
//! without `unsafe_ok` a store refuses a server that may lose commits. A detached watcher process
//! stops the cluster and removes its folder when the process that runs the tests has ended, even if
//! that process crashed.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use holdpoint::secret::Secret;
use holdpoint::store::{Settings, Store};
use holdpoint::world::SystemClock;
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

mod test_database;

pub use test_database::{TestDatabase, database, database_without_nets, empty_database};

const TEMPLATE: &str = "holdpoint_template";

#[expect(clippy::disallowed_methods, reason = "tests may be surprised")]
pub fn unique() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}

/// Runs one statement on a new connection.
pub async fn run(url: &str, sql: String) {
    run_each(url, vec![sql]).await;
}

/// Opens a connection and runs the statements on it, each in its own transaction.
async fn run_each(url: &str, statements: Vec<String>) {
    let mut connection = PgConnection::connect(url)
        .await
        .expect("the test server answers");
    for sql in statements {
        let done = connection.execute(AssertSqlSafe(sql)).await;
        done.expect("the statement is right");
    }
    let _ = connection.close().await;
}

/// The constraint triggers of `nets.sql` that check each row of a test's copies. They would take
/// most of the time of making many copies.
const SLOW_NETS: [(&str, &str); 3] = [
    ("agent_task", "agent_task_claimable"),
    ("agent_task_item", "agent_task_item_of_request"),
    ("intervention_request", "request_inbox"),
];

/// Runs statements without the checks of [`SLOW_NETS`], in one transaction.
pub async fn run_without_slow_nets(url: &str, sql: &str) {
    let each = |verb: &str| {
        SLOW_NETS
            .map(|(table, net)| format!("alter table {table} {verb} trigger {net};"))
            .concat()
    };
    run(url, format!("{}{sql};{}", each("disable"), each("enable"))).await;
}

/// Copies a database's only task and its request `count` times. The group `group` may decide the
/// copies. `members` is an SQL list of changes to the copied tasks: the name of a column, its new
/// value, the name of the next column, and so on. In a value, `ids.n` is the number of the copy. A
/// copy with a higher number has a higher id.
pub async fn copy_request(url: &str, count: u32, group: &str, members: &str) {
    let sql = format!("
        create temporary table ids as
            select (lpad(to_hex(1700000000000 + n), 12, '0') || '7' || substr(md5(n::text), 14))::uuid as id, n
              from generate_series(1, {count}) n;
        insert into agent_task select (x.t).* from (select jsonb_populate_record(t, jsonb_build_object(
            'task_id', ids.id, 'root_task_id', ids.id, {members})) as t from agent_task t, ids) x;
        insert into agent_task_item select (x.i).* from (select jsonb_populate_record(i, jsonb_build_object(
            'task_id', ids.id, 'root_task_id', ids.id, 'request_id', ids.id)) as i
            from agent_task_item i, ids where i.type = 'intervention_requested') x;
        insert into intervention_request select (x.r).* from (select jsonb_populate_record(r, jsonb_build_object(
            'request_id', ids.id, 'task_id', ids.id, 'root_task_id', ids.id)) as r from intervention_request r, ids) x;
        insert into request_approver select 'acme', 'group', '{group}', id from ids;
        insert into inbox select 'acme', 'group', '{group}', r.request_id, t.user_id, r.expires_at, r.one_answer
            from ids join intervention_request r on r.request_id = ids.id join agent_task t on t.task_id = r.task_id");
    run_without_slow_nets(url, &sql).await;
}

/// Migrates a database and adds the constraints of `nets.sql`.
async fn migrate(url: &str) {
    migrate_only(url).await;
    run(url, include_str!("nets.sql").to_owned()).await;
}

async fn migrate_only(url: &str) {
    let settings = Settings {
        url: Secret::new(url.to_owned()),
        unsafe_ok: true,
        ..Settings::default()
    };
    Store::migrate(&settings, Arc::new(SystemClock))
        .await
        .expect("the migrations run");
}

fn other_database(url: &str, name: &str) -> String {
    let (base, query) = url
        .split_once('?')
        .map_or((url, None), |(base, query)| (base, Some(query)));
    let server = base.find("://").and_then(|at| {
        base[at + 3..]
            .find('/')
            .map(|slash| &base[..at + 3 + slash])
    });
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/{name}{query}", server.unwrap_or(base))
}

pub struct Cluster {
    folder: PathBuf,
}

impl Cluster {
    pub fn url(&self, database: &str) -> String {
        let socket = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{socket}/{database}")
    }

    /// Returns the option that makes `create database` copy the template's files. Without this
    /// option, Postgres 15 and later copy the template through the write-ahead log, which takes
    /// twice the time. Older versions always copy the files and do not know the option.
    fn copy_strategy(&self) -> &'static str {
        let version = fs::read_to_string(self.folder.join("data/PG_VERSION")).unwrap();
        let version: u32 = version.trim().parse().unwrap();
        if version < 15 {
            ""
        } else {
            "strategy file_copy"
        }
    }

    /// Creates and starts a server, which ends when the process `watched` ends. `options` are
    /// command-line options of `postgres`.
    pub fn start(folder: &Path, options: &str, watched: u32) -> Self {
        own(folder);
        let mut init = command(&bin().join("initdb"), folder, user());
        init.args([
            "--no-sync",
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--no-locale",
            "-D",
        ]);
        must_succeed(init.arg(folder.join("data")));
        Self::resume(folder, options, watched)
    }

    /// Starts a server on the data that is already in its folder.
    pub fn resume(folder: &Path, options: &str, watched: u32) -> Self {
        // Postgres finds a deadlock before the `lock_timeout` of a writer ends it.
        let options = format!(
            "-k {} -c listen_addresses='' -c max_connections=300 -c deadlock_timeout=100ms {options}",
            folder.display()
        );
        // `up` reads the options from this file, also at a start after a crash.
        fs::write(folder.join("options"), &options).unwrap();
        let cluster = Self {
            folder: folder.to_owned(),
        };
        cluster.up();
        watch(folder, watched);
        cluster
    }

    fn up(&self) {
        let options = fs::read_to_string(self.folder.join("options")).unwrap();
        let mut start = self.control();
        must_succeed(
            start
                .args(["-w", "-t", "120", "-l"])
                .arg(self.folder.join("log"))
                .arg("-o")
                .arg(options)
                .arg("start"),
        );
    }

    fn control(&self) -> Command {
        let mut control = command(&bin().join("pg_ctl"), &self.folder, user());
        control.args(["-s", "-D"]).arg(self.folder.join("data"));
        control
    }

    /// Returns the server's process first, and then its children. Every session is a child.
    fn processes(&self) -> Vec<Pid> {
        let Ok(file) = fs::read_to_string(self.folder.join("data/postmaster.pid")) else {
            return Vec::new();
        };
        let server: i32 = file.lines().next().unwrap().parse().unwrap();
        let children = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // In `stat`, the name in parentheses may contain any character. The state and the
            // parent follow it.
            let parent = stat
                .rsplit_once(')')?
                .1
                .split_whitespace()
                .nth(1)?
                .to_owned();
            (parent == server.to_string()).then_some(pid)
        });
        std::iter::once(server)
            .chain(children)
            .filter_map(Pid::from_raw)
            .collect()
    }
}

/// A server for one test alone. The test may crash or freeze the server. The server ends when this
/// value is dropped, or at the latest when the test's process ends.
pub struct PrivateCluster {
    cluster: Cluster,
}

impl PrivateCluster {
    /// Creates and starts a server with an empty database, whose URL is `url("postgres")`.
    pub fn start() -> Self {
        Self::with("")
    }

    pub fn with(options: &str) -> Self {
        let folder = database_folder().join(format!("holdpoint-pg-{}", unique()));
        Self {
            cluster: Cluster::start(&folder, options, std::process::id()),
        }
    }

    pub fn url(&self, database: &str) -> String {
        self.cluster.url(database)
    }

    /// Returns the text of the server's log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.cluster.folder.join("log")).unwrap()
    }

    /// Stops the server at once (`-m immediate`). This cuts every session and writes no checkpoint.
    /// The next start restores the confirmed commits from the write-ahead log.
    pub fn crash(&self) {
        must_succeed(self.cluster.control().args(["-m", "immediate", "stop"]));
    }

    /// Starts the server after a crash. Returns once the server accepts connections.
    pub fn start_again(&self) {
        self.cluster.up();
    }

    /// Sends `SIGSTOP` to all processes of the server. The kernel still accepts connections, but
    /// the server never answers.
    pub fn freeze(&self) {
        // The first round misses a child that the server starts after `processes` has listed the
        // children. The first round also freezes the server, which then starts no more children,
        // so the second round freezes every missed child.
        for _ in 0..2 {
            self.signal(Signal::STOP);
        }
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        for pid in self.cluster.processes() {
            // The process may have ended since `processes` listed it.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for PrivateCluster {
    fn drop(&mut self) {
        self.thaw();
        if !self.cluster.processes().is_empty() {
            let _ = self
                .cluster
                .control()
                .args(["-m", "immediate", "stop"])
                .status();
        }
        let _ = fs::remove_dir_all(&self.cluster.folder);
    }
}

impl Cluster {
    /// Makes a base backup in another folder. If `standby` is true, a server that is started on
    /// this backup is a standby.
    pub fn backup(&self, folder: &Path, standby: bool) {
        own(folder);
        let mut backup = command(&bin().join("pg_basebackup"), folder, user());
        backup
            .args([
                "--username=postgres",
                "--checkpoint=fast",
                "--no-sync",
                "--host",
            ])
            .arg(&self.folder);
        backup.arg("-D").arg(folder.join("data"));
        if standby {
            backup.arg("-R");
        }
        must_succeed(&mut backup);
    }

    /// Stops the server at once (`-m immediate`), without a checkpoint.
    pub fn cut(&self) {
        must_succeed(self.control().args(["-w", "-m", "immediate", "stop"]));
    }

    pub fn promote(&self) {
        must_succeed(self.control().args(["-w", "promote"]));
    }

    /// Creates a user without privileges and a database that this user owns. Returns the database's
    /// URL, with this user.
    pub async fn unprivileged(&self, database: &str) -> String {
        let server = self.url("postgres");
        run(&server, "create role plain login".to_owned()).await;
        let sql = format!("create database {database} owner plain");
        run(&server, sql).await;
        self.url(database).replace("postgres@", "plain@")
    }
}

/// Returns the folder for databases. If `TMPDIR` is not set and `/dev/shm` has 3 GiB free, this is
/// `/dev/shm`. Otherwise it is the folder for temporary files.
///
/// `/dev/shm` is in memory, and the tests write much: creating a Postgres database copies 8 MB,
/// dropping it causes a checkpoint, and a commit of `SQLite` waits for the disk.
pub fn database_folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let has_room = rustix::fs::statvfs(memory)
        .is_ok_and(|free| free.f_bavail.saturating_mul(free.f_frsize) >= 3 << 30);
    if has_room && std::env::var_os("TMPDIR").is_none() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    }
}

/// Makes a folder that only the server's user can read.
fn own(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
    if let Some((uid, gid)) = user() {
        chown(folder, Some(uid), Some(gid)).unwrap();
    }
}

/// Returns the cluster of the test run. Nextest starts a process for each test, and the first
/// process that calls this function creates and starts the cluster.
async fn shared_cluster() -> Cluster {
    let parent = std::os::unix::process::parent_id();
    let place = database_folder();
    let folder = place.join(format!("holdpoint-pg-{parent}"));
    let lock = File::create(place.join(format!("holdpoint-pg-{parent}.lock"))).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let ready = folder.join("ready");
    if ready.exists() {
        return Cluster { folder };
    }
    // Removes the remnants of an earlier run whose nextest had the same process id.
    let _ = fs::remove_dir_all(&folder);
    let cluster = Cluster::start(&folder, "", parent);
    run(
        &cluster.url("postgres"),
        format!("create database {TEMPLATE}"),
    )
    .await;
    migrate(&cluster.url(TEMPLATE)).await;
    File::create(ready).unwrap();
    cluster
}

/// Starts a watcher, which ends the server and removes its folder once the process `watched` is
/// gone.
fn watch(folder: &Path, watched: u32) {
    let script = format!(
        "while kill -0 {watched} 2>/dev/null && [ -e '{0}' ]; do sleep 1; done
         server=$(head -n 1 '{0}/data/postmaster.pid' 2>/dev/null)
         # A frozen server takes the first signal once it goes on, and kills its children.
         if [ -n \"$server\" ]; then kill -QUIT $server; kill -CONT $server; fi 2>/dev/null
         while [ -n \"$server\" ] && kill -0 $server 2>/dev/null; do sleep 0.1; done
         rm -rf '{0}' '{0}.lock'",
        folder.display()
    );
    let mut shell = Command::new("/bin/sh");
    shell
        .arg("-c")
        .arg(script)
        .process_group(0)
        .current_dir("/");
    shell
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
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

fn must_succeed(command: &mut Command) {
    // The output goes into a file. A server that `command` starts inherits the descriptor of the
    // output. If it were a pipe, reading it to its end would wait until that server ends.
    let said = tempfile::tempfile().unwrap();
    command
        .stdout(said.try_clone().unwrap())
        .stderr(said.try_clone().unwrap());
    let status = command.status().expect("a program of Postgres starts");
    if !status.success() {
        let mut text = String::new();
        let mut said = said;
        std::io::Seek::rewind(&mut said).unwrap();
        std::io::Read::read_to_string(&mut said, &mut text).unwrap();
        panic!("{} failed: {text}", command.get_program().display());
    }
}

/// Returns the ids of the user and the group that run Postgres, which refuses to run as root.
/// Returns `None` if the test's own user is not root and runs Postgres itself.
fn user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = ["postgres", "nobody"].iter().find_map(|name| {
        let line = passwd
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    Some(found.expect("Postgres does not run as root: there must be a user `postgres` (apt-get install postgresql)"))
}

/// Returns the folder of Postgres' programs: the folder of the `initdb` in `PATH`, after symbolic
/// links are resolved. If `PATH` has no `initdb`, it is Debian's folder of the newest installed
/// version.
pub fn bin() -> PathBuf {
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
        .find(|folder| {
            ["initdb", "pg_ctl", "postgres"]
                .iter()
                .all(|program| folder.join(program).exists())
        })
        .expect(
            "The tests need Postgres 13 or newer: install it (apt-get install postgresql), \
             or set TEST_DATABASE_URL to a server whose user may create databases",
        )
}
