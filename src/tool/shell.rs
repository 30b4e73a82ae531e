//! Shell tools. A command runs with `/bin/sh -c` under a guard (`guard.rs`), which is a second
//! process of this program.
//!
//! Invariant: the command ends with the call, even if the service is killed or the call is dropped.
//! The command's environment has only the variables that the operator named.
//!
//! The guard reports the command's process group before the command begins. If the guard ends
//! without this report, the command never began. In any other case without a result, the outcome is
//! unknown.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{
    DumpableBehavior, Pid, Signal, getpgid, kill_process_group, set_dumpable_behavior,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::guard::{CommandEnd, GREETING, GuardLine, Order, OutputHeader, encode_order};
use super::{AttemptPermit, Invocation, Tool, ToolAnswer, measure_attempt, output};
use crate::net::NOT_PERMITTED;
use crate::secret::Redactor;
use crate::task::tool_spec::ToolSpec;
use crate::world::complete_within;

mod settings;

pub(crate) use self::settings::{Env, Settings};

/// How long the service waits for the guard's report after the command's timeout. The service then
/// waits as long again for the end of the guard, before it kills the guard.
const REPORT_GRACE: Duration = Duration::from_secs(5);
/// How long the guard may take to read its order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the JSON Schema of the arguments of a shell tool: one text, `command`.
#[must_use]
pub(crate) fn parameters() -> Value {
    json!({
        "type": "object",
        "properties": {"command": {"type": "string", "minLength": 1, "description": "The command, for /bin/sh -c."}},
        "required": ["command"],
    })
}

#[derive(Clone, Debug)]
pub(crate) struct GuardCommand {
    pub program: PathBuf,
    pub arguments: Vec<String>,
}

impl GuardCommand {
    /// Starts a guard process, which waits for an [`Order`] with the command to run.
    pub(crate) fn spawn(&self, stderr: Stdio) -> io::Result<Child> {
        // If this process has inherited an ignored SIGCHLD, the guard would inherit it, too, and
        // could not wait for the command. A caught signal is not inherited. tokio still catches the
        // signal after the drop.
        drop(signal(SignalKind::child())?);
        Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .process_group(0)
            .spawn()
    }
}

impl Default for GuardCommand {
    /// Returns the command line that starts this program again, even if the program's file has been
    /// replaced since.
    fn default() -> Self {
        let program = PathBuf::from("/proc/self/exe");
        let program = if program.exists() {
            program
        } else {
            std::env::current_exe().unwrap_or(program)
        };
        Self {
            program,
            arguments: vec!["__guard".to_owned()],
        }
    }
}

/// Forbids other processes of the same user to read the memory and the environment of this process
/// (`PR_SET_DUMPABLE` 0).
///
/// # Errors
/// Fails if the system refuses the change.
pub(crate) fn make_undumpable() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(io::Error::from)
}

pub(super) struct ShellTool {
    pub(super) spec: ToolSpec,
    pub(super) settings: Settings,
    pub(super) guard: GuardCommand,
    pub(super) redactor: Arc<Redactor>,
}

enum CommandOutcome {
    /// The command was not started, for this reason.
    NotStarted(String),
    /// The command has ended. For each output, the pair holds the first bytes, and `true` if they
    /// are the whole output.
    Ended {
        end: CommandEnd,
        stdout: (Vec<u8>, bool),
        stderr: (Vec<u8>, bool),
    },
    /// The command may have run, but no complete report arrived.
    Lost,
}

#[async_trait]
impl Tool for ShellTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, call: &Invocation) -> ToolAnswer {
        measure_attempt(&self.spec.name, &call.permit, self.attempt(call)).await
    }
}

impl ShellTool {
    async fn attempt(&self, call: &Invocation) -> ToolAnswer {
        let Some(command) = call.arguments.get("command").and_then(Value::as_str) else {
            return self.not_started("the argument `command` is missing");
        };
        let environment = match self.settings.fill_environment(&call.credentials) {
            Ok(environment) => environment,
            Err(why) => return self.not_started(&why),
        };
        let redactor = call.redactor(&self.redactor);
        let order = Order {
            command: command.to_owned(),
            program: Vec::new(),
            working_dir: self.settings.working_dir.clone(),
            environment,
            timeout_ms: u64::try_from(self.settings.timeout.as_millis()).unwrap_or(u64::MAX),
            keep: output::bytes_to_read(&redactor, self.settings.max_output),
        };
        match self.run(&order, &call.permit).await {
            CommandOutcome::NotStarted(why) => self.not_started(&redactor.redact(&why)),
            CommandOutcome::Ended {
                end,
                stdout,
                stderr,
            } => self.answer_of_ended(&redactor, end, &stdout, &stderr),
            CommandOutcome::Lost => self.unknown("was started, and its outcome is not known"),
        }
    }

    /// Starts a guard, hands it an order (the command to run), and waits for the guard's report.
    /// Dropping the future closes the guard's input, which ends the command.
    async fn run(&self, order: &Order, permit: &AttemptPermit) -> CommandOutcome {
        let Ok(mut guard) = self.guard.spawn(Stdio::null()) else {
            return CommandOutcome::NotStarted("its guard could not be started".to_owned());
        };
        let (Some(mut input), Some(report)) = (guard.stdin.take(), guard.stdout.take()) else {
            return CommandOutcome::NotStarted("its guard could not be started".to_owned());
        };
        let Ok(order_text) = encode_order(order) else {
            return CommandOutcome::NotStarted("the command is too long".to_owned());
        };
        if !permit.holds() {
            return CommandOutcome::NotStarted(NOT_PERMITTED.to_owned());
        }
        // The guard starts the command only after it has read the whole order. So if the order
        // cannot be handed over, the command has not started.
        let handed = tokio::time::timeout(ORDER_TIMEOUT, async {
            input.write_all(&order_text).await?;
            input.flush().await
        });
        if !matches!(handed.await, Ok(Ok(()))) {
            return CommandOutcome::NotStarted("its guard could not be started".to_owned());
        }
        let mut group = None;
        let reported = complete_within(
            self.settings.timeout + REPORT_GRACE,
            read_report(report, order.keep, &mut group),
        );
        let outcome = match reported.await {
            Some(Ok(outcome)) => outcome,
            // The guard ended before it reported the process group, so the command never began.
            Some(Err(_)) if group.is_none() => {
                CommandOutcome::NotStarted("its guard ended early".to_owned())
            }
            Some(Err(_)) | None => CommandOutcome::Lost,
        };
        drop(input);
        let may_run = matches!(outcome, CommandOutcome::Lost);
        end_guard(guard, group.filter(|_| may_run)).await;
        outcome
    }

    fn answer_of_ended(
        &self,
        redactor: &Redactor,
        end: CommandEnd,
        stdout: &(Vec<u8>, bool),
        stderr: &(Vec<u8>, bool),
    ) -> ToolAnswer {
        let max_limit = output::MAX_RESULT_BYTES - settings::NOTES_BYTES;
        let limit = self.settings.max_output.min(max_limit);
        let (out, out_cut) = output::clean(redactor, &stdout.0, stdout.1, limit);
        let (err, err_cut) = output::clean(redactor, &stderr.0, stderr.1, limit);
        // If the two outputs together exceed the limit, each output gets half of the limit, plus
        // the part of the other half that the other output does not use.
        let half = limit / 2;
        let err_limit = half.max(limit.saturating_sub(out.len()));
        let err_shown = crate::task::text::cut(&err, err_limit);
        let out_shown = crate::task::text::cut(&out, limit - err_shown.len());
        let cut = out_cut || err_cut || err_shown.len() < err.len() || out_shown.len() < out.len();
        let mut content = match end {
            CommandEnd::Code(code) => format!("exit code {code}"),
            CommandEnd::Signal(signal) => format!("ended by signal {signal}"),
            CommandEnd::Timeout => {
                return self.unknown(&format!(
                    "was killed at its timeout ({:?})",
                    self.settings.timeout
                ));
            }
        };
        for (label, text) in [("stdout", out_shown), ("stderr", err_shown)] {
            if !text.is_empty() {
                let _ = write!(content, "\n{label}:\n{}", text.trim_end_matches('\n'));
            }
        }
        if cut {
            let _ = write!(
                content,
                "\n[cut: there was more than {limit} bytes of output]"
            );
        }
        if end == CommandEnd::Code(0) {
            ToolAnswer::Succeeded {
                content,
                http_status: None,
            }
        } else {
            ToolAnswer::failed(content)
        }
    }

    fn not_started(&self, why: &str) -> ToolAnswer {
        let name = &self.spec.name;
        ToolAnswer::NotSent {
            content: format!("The tool `{name}` failed before the command was started: {why}."),
        }
    }

    fn unknown(&self, what: &str) -> ToolAnswer {
        let problem = format!(
            "The command of the tool `{}` {what}. It may have done some or all of it.",
            self.spec.name
        );
        ToolAnswer::Unknown { problem }
    }
}

async fn read_report(
    report: ChildStdout,
    keep: usize,
    group: &mut Option<i32>,
) -> io::Result<CommandOutcome> {
    let mut report = BufReader::new(
        report.take(
            u64::try_from(keep)
                .unwrap_or(u64::MAX / 4)
                .saturating_mul(2)
                + 64 * 1024,
        ),
    );
    let mut line = String::new();
    while line.trim_end() != GREETING {
        line.clear();
        if report.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    loop {
        line.clear();
        report.read_line(&mut line).await?;
        match serde_json::from_str(&line)? {
            GuardLine::Started(leader) => *group = Some(leader),
            GuardLine::NotStarted(why) => return Ok(CommandOutcome::NotStarted(why)),
            GuardLine::Over {
                end,
                stdout,
                stderr,
            } => {
                let stdout = read_stream(&mut report, stdout, keep).await?;
                let stderr = read_stream(&mut report, stderr, keep).await?;
                return Ok(CommandOutcome::Ended {
                    end,
                    stdout,
                    stderr,
                });
            }
        }
    }
}

async fn read_stream(
    report: &mut (impl tokio::io::AsyncRead + Unpin),
    stream: OutputHeader,
    keep: usize,
) -> io::Result<(Vec<u8>, bool)> {
    let mut bytes = vec![0; stream.bytes.min(keep)];
    report.read_exact(&mut bytes).await?;
    Ok((bytes, stream.complete))
}

/// Waits until a guard has ended, and kills the guard if it does not end within [`REPORT_GRACE`].
/// If `group` is given, then kills this process group. If the guard's report was lost, the command
/// may still run, so the caller passes the command's group.
async fn end_guard(mut guard: Child, group: Option<i32>) {
    if tokio::time::timeout(REPORT_GRACE, guard.wait())
        .await
        .is_err()
    {
        let _ = guard.start_kill();
        let _ = guard.wait().await;
    }
    if let Some(leader) = group {
        kill_orphans(leader);
    }
}

/// Kills the process group that a guard left behind. `leader` is the number of the group, which is
/// also the process id of the group's leader. The leader may have ended before the group.
pub(crate) fn kill_orphans(leader: i32) {
    let Some(leader) = Pid::from_raw(leader) else {
        return;
    };
    // While a group exists, no new process gets the group's number as its id. So if a process of
    // another group has this id, the orphans have ended, and there is nothing to kill.
    let is_reused = getpgid(Some(leader)).is_ok_and(|group| group != leader);
    if !is_reused {
        let _ = kill_process_group(leader, Signal::KILL);
    }
}

#[cfg(test)]
pub(crate) mod tests;
