//! A process of the real binary with its own port. The process can be started, killed, frozen, and
//! restarted at the same port.

use std::fs::File;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::pause;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

/// The configuration, the port and the log of a replica. They stay the same when the replica's
/// process is started again.
#[derive(Clone, Debug)]
pub struct Replica {
    pub config: PathBuf,
    pub port: u16,
    /// Settings of `failpoint.rs` for all processes of the replica.
    pub settings: &'static str,
    /// The file that receives the standard error of all processes of the replica.
    pub log: PathBuf,
}

/// One process of a replica. It is killed when this value is dropped.
pub struct Process {
    child: Child,
    url: String,
}

impl Replica {
    pub fn new(config: PathBuf) -> Self {
        let port = free_port();
        Self {
            log: config.with_file_name(format!("{port}.log")),
            config,
            port,
            settings: "",
        }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn start(&self, failpoints: &str) -> Process {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
        let child = Command::new(binary())
            .args(["serve", "--config"])
            .arg(&self.config)
            .args(["--listen", &format!("127.0.0.1:{}", self.port)])
            .env(
                "HOLDPOINT_FAILPOINTS",
                format!("{};{failpoints}", self.settings),
            )
            .env("TOKIO_WORKER_THREADS", "2")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Process {
            child,
            url: self.url(),
        }
    }

    /// Starts a process with these failpoints, and returns once it is ready.
    pub async fn serve(&self, failpoints: &str, http: &reqwest::Client) -> Process {
        let mut process = self.start(failpoints);
        assert!(process.ready(http).await, "{}", self.last_log_lines());
        process
    }

    pub fn last_log_lines(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }
}

impl Process {
    /// Waits until the process is ready, is frozen or has ended. Returns `false` if it has ended.
    pub async fn ready(&mut self, http: &reqwest::Client) -> bool {
        while self.child.try_wait().unwrap().is_none() {
            let asked = http
                .get(format!("{}/readyz", self.url))
                .timeout(Duration::from_secs(1))
                .send()
                .await;
            if asked.is_ok_and(|reply| reply.status() == 200) {
                return true;
            }
            if self.frozen() {
                return true;
            }
            pause().await;
        }
        false
    }

    pub fn signal(&self, signal: Signal) {
        // A process that has ended by itself has no id any more.
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills the process as `kill -9` does, and waits for its end.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    pub async fn ended(&mut self) -> ExitStatus {
        self.child.wait().await.unwrap()
    }

    pub fn is_over(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Returns whether a signal has stopped the process.
    pub fn frozen(&self) -> bool {
        let Some(pid) = self.pid() else { return false };
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
            .unwrap_or_default();
        stat.rsplit_once(')')
            .is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    }

    pub fn pid(&self) -> Option<Pid> {
        self.child
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?))
    }
}

/// Returns the path of the program under test. The variable `HOLDPOINT_TEST_BINARY` can name a
/// broken program, to check that these tests fail.
fn binary() -> PathBuf {
    std::env::var_os("HOLDPOINT_TEST_BINARY")
        .map_or_else(|| env!("CARGO_BIN_EXE_holdpoint").into(), PathBuf::from)
}

/// Returns a free port below the system's ephemeral ports. No outgoing connection gets such a port,
/// so the port stays free while its replica is down. No other test process gets the port before
/// this process ends.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static RESERVATIONS: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    let own = std::process::id().wrapping_mul(389);
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(10_000 + own.wrapping_add(step.wrapping_mul(7)) % 20_000).unwrap();
        let Some(reservation) = reserve(port) else {
            continue;
        };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            RESERVATIONS.lock().unwrap().push(reservation);
            return port;
        }
    }
}

/// Reserves a port among the test processes: takes an abstract socket whose name contains the port.
/// The system frees the name when the process ends. Returns `None` if the name is taken.
fn reserve(port: u16) -> Option<UnixListener> {
    let name = SocketAddr::from_abstract_name(format!("holdpoint-test-port-{port}")).unwrap();
    UnixListener::bind_addr(&name).ok()
}

#[expect(
    clippy::disallowed_methods,
    reason = "kills come at chosen times, whatever the service does"
)]
pub async fn within(time: Duration) {
    tokio::time::sleep(time).await;
}
