//! The guard of one shell command: a process of its own (`holdpoint __guard`), so that the command
//! ends even if the service is killed. The guard reads an [`Order`] from standard input and runs
//! the order's command in a separate process group. The guard kills this group at the timeout, when
//! the guard's input closes, and when the command has ended (to stop background processes). If the
//! order has a program, such as an MCP server, `relay.rs` runs the program instead.
//!
//! Invariant: the guard signals the group before it reaps the group's leader. As long as the leader
//! is not reaped, no other group can get the group's number.
//!
//! The guard reports the group before the command begins. The service concludes from the report:
//!
//! - No group was reported: the command never ran.
//! - A group was reported: the service can kill this group even if the guard was killed.
//! - A group was reported, and the rest of the report is missing: the outcome is unknown.
//! - The report is complete: the report says exactly what happened.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process_group, setrlimit, waitid,
};
use rustix::thread::{
    CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities,
};
use serde::{Deserialize, Serialize};

use crate::world::Locked;

/// The first line of the guard's output, before the report.
pub(crate) const GREETING: &str = "holdpoint guard 1";
const MAX_ORDER_BYTES: u32 = 8 * 1024 * 1024;
/// The variables that shells export by themselves.
const SHELL_VARIABLES: [&str; 3] = ["PWD", "OLDPWD", "SHLVL"];
/// How long the guard waits for the last output after it has killed the group. The wait has a
/// limit, because a process outside the group may hold the pipe open.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

mod relay;

/// The input of a guard: the command to run, and how to run it. `environment` may hold secrets.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The command for `/bin/sh`; unused if `program` is not empty.
    pub(crate) command: String,
    /// A program with its arguments. If this list is not empty, the program runs instead of
    /// `command`, without a timeout and connected to the guard's input, output and standard error.
    pub(crate) program: Vec<String>,
    pub(crate) working_dir: String,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) timeout_ms: u64,
    /// For each output (stdout and stderr), the maximum number of bytes that the guard passes on.
    pub(crate) keep: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GuardLine {
    /// The command is about to begin. The command leads the process group with this number.
    Started(i32),
    /// The command could not be started, for this reason.
    NotStarted(String),
    /// The command has ended. After this line, the guard writes the command's two outputs; `stdout`
    /// and `stderr` give the lengths.
    Over {
        end: CommandEnd,
        stdout: OutputHeader,
        stderr: OutputHeader,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CommandEnd {
    Code(i32),
    /// The command was ended by this signal, which the guard did not send.
    Signal(i32),
    /// The guard killed the command at the command's timeout.
    Timeout,
}

/// Describes an output (standard output or standard error) that follows [`GuardLine::Over`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OutputHeader {
    /// The number of bytes that follow.
    pub(super) bytes: usize,
    /// Whether the bytes that follow are the complete output.
    pub(super) complete: bool,
}

enum GuardSignal {
    InputClosed,
    Exited,
    Drained,
}

#[derive(Default)]
struct CapturedOutput {
    bytes: Vec<u8>,
    /// Whether `bytes` holds only the start of the output.
    is_truncated: bool,
}

/// Runs the guard `holdpoint __guard`, which reads an [`Order`] from standard input. Returns the
/// exit code: 0, or 1 if the guard failed.
#[must_use]
pub(crate) fn guard_main() -> i32 {
    // The command runs as the guard's user. If the guard were dumpable, the command could read the
    // secrets in the order from the guard's memory.
    let _ = super::shell::make_undumpable();
    let _ = drop_tracing_capabilities();
    // A core would hold the environment of the command or program, which may have secrets. With
    // the limit 0, the kernel writes no core file, but it still pipes the core to a program that
    // `core_pattern` names. With the limit 1, it does neither.
    let none = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    let _ = setrlimit(Resource::Core, none);
    match guard(io::stdin(), &mut io::stdout()) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

/// Removes the capabilities to read the memory and the environment of undumpable processes from
/// this thread's bounding set and inheritable set. The children that this thread starts then lack
/// these capabilities, even if the service runs as root. Fails if a capability cannot be removed.
fn drop_tracing_capabilities() -> io::Result<()> {
    // `SYS_PTRACE` is the capability for ptrace. Linux also lets a process with `PERFMON` or
    // `SYS_ADMIN` read another process's memory.
    let dropped = [
        CapabilitySet::SYS_PTRACE,
        CapabilitySet::PERFMON,
        CapabilitySet::SYS_ADMIN,
    ];
    let mut own = capabilities(None)?;
    for capability in dropped {
        remove_capability_from_bounding_set(capability)?;
        own.inheritable.remove(capability);
    }
    Ok(set_capabilities(None, own)?)
}

/// Reads one order from `input` and runs the order's command or program. Fails if the order cannot
/// be read, if a thread that watches the command or program cannot be started, or if the report
/// cannot be written.
pub(super) fn guard(
    mut input: impl Read + Send + 'static,
    output: &mut impl Write,
) -> io::Result<()> {
    let order = read_order(&mut input)?;
    output.write_all(format!("{GREETING}\n").as_bytes())?;
    if !order.program.is_empty() {
        return relay::relay(&order, input, output);
    }
    let mut shell = Command::new("/bin/sh");
    shell.args(shell_arguments(&order));
    let mut child = match spawn(&mut shell, &order, Stdio::piped()) {
        Ok(child) => child,
        Err(error) => {
            let why = format!("the command could not be started in its working directory: {error}");
            return write_line(output, &GuardLine::NotStarted(why));
        }
    };
    let began = Instant::now();
    let pid = pid_of(&child)?;
    let watched = watch(&mut child, pid, input, order.keep);
    let started = write_line(output, &GuardLine::Started(pid.as_raw_nonzero().get()))
        .and_then(|()| let_run(&mut child));
    let (events, stdout, stderr) = match (watched, started) {
        (Ok(watched), Ok(())) => watched,
        (Err(error), _) | (_, Err(error)) => {
            end_group(pid, &mut child)?;
            return Err(error);
        }
    };
    let timeout = Duration::from_millis(order.timeout_ms);
    let mut drained = 0;
    let timed_out = loop {
        match events.recv_timeout(timeout.saturating_sub(began.elapsed())) {
            Ok(GuardSignal::Drained) => drained += 1,
            Ok(GuardSignal::Exited) => break false,
            Ok(GuardSignal::InputClosed) => {
                end_group(pid, &mut child)?;
                return Ok(());
            }
            Err(_) => break true,
        }
    };
    let status = end_group(pid, &mut child)?;
    wait_until_drained(&events, drained);
    let end = if timed_out {
        CommandEnd::Timeout
    } else {
        command_end(status)
    };
    report(output, end, &stdout, &stderr)
}

/// Returns the arguments of a shell that runs a script with the order's command as `$0`.
///
/// The script first waits for one line, so that the guard can report the process group before the
/// command begins. Then it replaces itself with the command (`exec`), which gets empty input. Each
/// of the two shells exports variables of its own. So the script and the command both begin by
/// unsetting the variables that the order does not name. The command keeps `PWD` as a variable that
/// is not exported.
fn shell_arguments(order: &Order) -> [String; 3] {
    let is_named = |name: &str| order.environment.contains_key(name);
    let unnamed = SHELL_VARIABLES.into_iter().filter(|name| !is_named(name));
    let unset = unnamed.fold("unset _go".to_owned(), |unset, name| unset + " " + name);
    let beginning = if is_named("PWD") {
        unset.clone()
    } else {
        format!(r#"set -- "$PWD"; {unset}; PWD=$1; shift"#)
    };
    [
        "-c".to_owned(),
        format!(r#"read -r _go && {unset} && exec /bin/sh -c "$0" </dev/null"#),
        // The beginning has no line of its own, so that the shell's messages have the right line
        // numbers.
        format!("{beginning}; {}", order.command),
    ]
}

fn pid_of(child: &Child) -> io::Result<Pid> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn read_order(input: &mut impl Read) -> io::Result<Order> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > MAX_ORDER_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; usize::try_from(length).unwrap_or_default()];
    input.read_exact(&mut text)?;
    serde_json::from_slice(&text).map_err(io::Error::from)
}

/// Encodes an order for the guard: the length in four bytes, then JSON. Fails if the order is too
/// long.
pub(crate) fn encode_order(order: &Order) -> io::Result<Vec<u8>> {
    let text = serde_json::to_vec(order)?;
    let length = u32::try_from(text.len())
        .ok()
        .filter(|length| *length <= MAX_ORDER_BYTES)
        .ok_or(io::ErrorKind::InvalidInput)?;
    Ok([length.to_be_bytes().as_slice(), &text].concat())
}

/// Starts a command in a process group of its own, in the environment of an order.
fn spawn(command: &mut Command, order: &Order, stderr: Stdio) -> io::Result<Child> {
    command
        .env_clear()
        .envs(&order.environment)
        .current_dir(&order.working_dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .process_group(0)
        .spawn()
}

fn let_run(child: &mut Child) -> io::Result<()> {
    child
        .stdin
        .take()
        .ok_or(io::ErrorKind::BrokenPipe)?
        .write_all(b"\n")
}

/// The events of a command, and the kept parts of its standard output and standard error.
type WatchHandles = (
    Receiver<GuardSignal>,
    Arc<Locked<CapturedOutput>>,
    Arc<Locked<CapturedOutput>>,
);

fn watch(
    child: &mut Child,
    pid: Pid,
    mut input: impl Read + Send + 'static,
    keep: usize,
) -> io::Result<WatchHandles> {
    let (sender, events) = channel();
    let stdout = drain(child.stdout.take(), keep, sender.clone())?;
    let stderr = drain(child.stderr.take(), keep, sender.clone())?;
    send_exit(pid, sender.clone())?;
    thread::Builder::new().spawn(move || {
        let _ = io::copy(&mut input, &mut io::sink());
        let _ = sender.send(GuardSignal::InputClosed);
    })?;
    Ok((events, stdout, stderr))
}

/// Sends [`GuardSignal::Exited`] once a process has ended. Does not reap the process, so that the
/// process id stays taken until the group is killed.
fn send_exit(pid: Pid, sender: Sender<GuardSignal>) -> io::Result<()> {
    thread::Builder::new().spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
        let _ = sender.send(GuardSignal::Exited);
    })?;
    Ok(())
}

fn drain(
    from: Option<impl Read + Send + 'static>,
    keep: usize,
    done: Sender<GuardSignal>,
) -> io::Result<Arc<Locked<CapturedOutput>>> {
    let kept = Arc::new(Locked::new(CapturedOutput::default()));
    let shared = Arc::clone(&kept);
    thread::Builder::new().spawn(move || {
        let mut buffer = [0; 16 * 1024];
        let mut from = from;
        while let Some(pipe) = &mut from {
            let read = match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => buffer.get(..read).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let mut kept = shared.lock();
            let kept_len = keep.saturating_sub(kept.bytes.len()).min(read.len());
            kept.bytes
                .extend_from_slice(read.get(..kept_len).unwrap_or_default());
            kept.is_truncated |= kept_len < read.len();
        }
        let _ = done.send(GuardSignal::Drained);
    })?;
    Ok(kept)
}

/// Waits until both outputs of the killed group have ended, at most for [`DRAIN_TIMEOUT`].
/// `drained` is the number of outputs that have ended already.
fn wait_until_drained(events: &Receiver<GuardSignal>, mut drained: u32) {
    let until = Instant::now() + DRAIN_TIMEOUT;
    while drained < 2 {
        match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(GuardSignal::Drained) => drained += 1,
            Ok(GuardSignal::Exited | GuardSignal::InputClosed) => {}
            Err(_) => break,
        }
    }
}

/// Kills the group while the unreaped leader still holds the group's number. Then reaps the leader,
/// and returns the leader's exit status.
fn end_group(pid: Pid, child: &mut Child) -> io::Result<ExitStatus> {
    // An error means that the group is already empty.
    let _ = kill_process_group(pid, Signal::KILL);
    child.wait()
}

fn command_end(status: ExitStatus) -> CommandEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => CommandEnd::Code(code),
        (None, signal) => CommandEnd::Signal(signal.unwrap_or_default()),
    }
}

fn write_line(output: &mut impl Write, line: &GuardLine) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    output.write_all(&text)?;
    output.flush()
}

fn report(
    output: &mut impl Write,
    end: CommandEnd,
    stdout: &Locked<CapturedOutput>,
    stderr: &Locked<CapturedOutput>,
) -> io::Result<()> {
    let stdout = std::mem::take(&mut *stdout.lock());
    let stderr = std::mem::take(&mut *stderr.lock());
    let stream = |kept: &CapturedOutput| OutputHeader {
        bytes: kept.bytes.len(),
        complete: !kept.is_truncated,
    };
    write_line(
        output,
        &GuardLine::Over {
            end,
            stdout: stream(&stdout),
            stderr: stream(&stderr),
        },
    )?;
    output.write_all(&stdout.bytes)?;
    output.write_all(&stderr.bytes)?;
    output.flush()
}
