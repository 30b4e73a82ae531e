//! `holdpoint gate`: asks a running service whether a call may run. Invariant: a failure of this
//! process never allows a call. The work of `call` and `hook` runs in a separate thread. If this
//! thread panics, the main thread survives and ends the process with exit code 2. A hook that hangs
//! also ends with exit code 2. If a hook's input says that the call has already run, nothing is
//! left to block, so the hook ends with exit code 0 even after a failure.

use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::value::RawValue;

use super::{OK, USAGE_ERROR, print, print_error};
use crate::asker::client::{
    AskError, AskerReport, AskerVerdict, GateClient, MAX_OVERTIME, ProposedCall, ServiceAnswer,
    ServiceDecision,
};
use crate::asker::hook::{self, BLOCK_EXIT_CODE, HookAnswer, HookOptions, Host};
use crate::asker::hook_input::{HookInput, MAX_INPUT_BYTES, MAX_REPORT_INPUT_BYTES};
use crate::asker::{self, AskerSettings};
use crate::config::environment::Environment;
use crate::config::layers::NOT_UTF_8;
use crate::world::random_bytes;

/// The exit code for a call that will not run.
const DENIED: u8 = 10;
/// The exit code for a call that is not decided yet.
const PENDING: u8 = 11;
/// The time that a hook may run beyond its wait for a decision. It exceeds the time that its
/// requests take, because a hook that has an answer must print it. The hosts end a hook later
/// (`TIMEOUT_MARGIN_SECONDS` in `asker/print.rs`).
const GRACE: Duration = MAX_OVERTIME.saturating_add(Duration::from_secs(2));
/// The maximum time for which a hook waits for a decision. By default, the coding agents end a hook
/// after 600 s.
const MAX_WAIT: Duration = Duration::from_mins(9);
/// The maximum number of attempts to send a report, one second apart.
const MAX_REPORT_ATTEMPTS: usize = 5;
/// The maximum length of an idempotency key, as the service accepts it.
const MAX_KEY_BYTES: usize = 255;
/// The variables that [`AskerSettings::read`] reads.
const VARIABLES: [&str; 4] = [
    "HOLDPOINT_URL",
    "HOLDPOINT_KEY",
    "HOLDPOINT_GATE",
    "HOLDPOINT_WAIT",
];

/// The commands of an asker, a client that asks at a gate whether a call may run. They read
/// `HOLDPOINT_URL`, `HOLDPOINT_KEY`, `HOLDPOINT_GATE` and `HOLDPOINT_WAIT`, but no configuration.
#[derive(Debug, Subcommand)]
pub(super) enum GateCommand {
    /// Answer a coding agent's hook: read the hook's JSON from standard input, and print the
    /// answer.
    Hook(HookOptions),
    /// Ask whether a call may run. Exit codes without a command to run: 0 allow, 10 deny, 11
    /// pending, 2 error. The exit code of an allowed call is also 2 if you get neither a permit to
    /// run the call nor the result of a successful run by the service.
    Call(CallOptions),
    /// Print the settings that make a coding agent run the hook for every tool call.
    Print {
        /// The coding agent that reads the settings.
        host: Host,
    },
}

#[derive(Debug, Args)]
pub(super) struct CallOptions {
    /// The name of the tool.
    tool: String,
    /// The arguments as a JSON object, or `-` for standard input.
    #[arg(default_value = "{}")]
    arguments: String,
    /// The idempotency key: proposals with the same key are the same call. Without a key, the
    /// command continues an equal earlier call if no process has received the answer to that call
    /// and no process waits for the answer.
    #[arg(long, value_parser = parse_key)]
    key: Option<String>,
    /// Your own name for the conversation that the call belongs to. Default: `gate`.
    #[arg(long)]
    session: Option<String>,
    /// How long to wait for a person; default: `HOLDPOINT_WAIT`, else 50s.
    #[arg(long, value_parser = asker::parse_wait)]
    wait: Option<Duration>,
    /// The reason for the call, shown to people as unverified.
    #[arg(long, default_value = "")]
    context: String,
    /// The command to run if the call is allowed. Its exit status is reported as the outcome.
    #[arg(last = true)]
    command: Vec<String>,
}

/// Parses an idempotency key. White space at the ends of a header does not arrive at the service.
/// So a key with such white space would name one call in the proposal and none in the report.
fn parse_key(text: &str) -> Result<String, String> {
    let has_length = (1..=MAX_KEY_BYTES).contains(&text.len());
    if has_length && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "expected 1 to {MAX_KEY_BYTES} visible ASCII characters, without spaces"
    ))
}

/// Reads the settings of the asker. A variable that is not UTF-8 is an error: if it counted as
/// unset, the key could go to the default URL, or another gate could judge the call.
fn read_settings(environment: &Environment) -> Result<AskerSettings, String> {
    match VARIABLES
        .into_iter()
        .find(|name| environment.is_undecodable(name))
    {
        Some(name) => Err(format!("{name}: {NOT_UTF_8}")),
        None => AskerSettings::read(|name| environment.variable(name)),
    }
}

pub(super) fn run(command: GateCommand, environment: &Environment) -> u8 {
    let settings = read_settings(environment);
    let ended = match command {
        // `answer_hook` decides by the hook's input whether a failure blocks the call.
        GateCommand::Hook(options) => return answer_hook(options, settings),
        GateCommand::Print { host } => settings.map(|settings| {
            let wait = settings.wait.min(MAX_WAIT);
            print(&asker::print::settings(host, wait))
        }),
        GateCommand::Call(options) => settings.and_then(|settings| {
            run_in_thread(None, move || propose(&options, settings))
                .unwrap_or_else(|| Err("the command failed inside".to_owned()))
        }),
    };
    ended.unwrap_or_else(|why| print_error(USAGE_ERROR, why))
}

/// Runs `work` in a new thread, and returns its result. Returns `None` if the thread cannot be
/// started, if `work` panics, or if `work` takes longer than `within`.
fn run_in_thread<T: Send + 'static>(
    within: Option<Duration>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let started = std::thread::Builder::new().spawn(move || {
        let _ = sender.send(work());
    });
    started.ok()?;
    match within {
        Some(within) => receiver.recv_timeout(within).ok(),
        None => receiver.recv().ok(),
    }
}

fn answer_hook(options: HookOptions, settings: Result<AskerSettings, String>) -> u8 {
    let wait = settings
        .as_ref()
        .map_or(Duration::ZERO, |settings| settings.wait.min(MAX_WAIT));
    let is_after_call = Arc::new(AtomicBool::new(false));
    let known_after = Arc::clone(&is_after_call);
    let answer = run_in_thread(Some(wait + GRACE), move || {
        hook_answer(options, settings, wait, &known_after)
    });
    let answer = answer
        .unwrap_or_else(|| Err("there was no answer in time, or the hook failed".to_owned()))
        .unwrap_or_else(|why| {
            if is_after_call.load(Ordering::SeqCst) {
                HookAnswer::unreported(&why)
            } else {
                HookAnswer::blocked(&why)
            }
        });
    let _ = std::io::stderr().write_all(answer.stderr.as_bytes());
    if answer.stdout.is_empty() || (!is_stdout_null() && print(&answer.stdout) == OK) {
        return answer.exit_code;
    }
    // Standard output is closed or cannot be written, so the coding agent does not get the answer.
    // The exit code must therefore block the call.
    let text = answer.stdout.trim_end();
    let why = format!("standard output does not take the answer: {text}");
    print_error(BLOCK_EXIT_CODE, HookAnswer::blocked(&why).stderr)
}

/// Whether standard output is `/dev/null`. Rust opens `/dev/null` in the place of a standard output
/// that is closed, so a write to it succeeds although the answer is lost.
fn is_stdout_null() -> bool {
    let stdout = rustix::fs::fstat(std::io::stdout());
    let null = rustix::fs::stat("/dev/null");
    matches!((stdout, null), (Ok(stdout), Ok(null)) if stdout.st_rdev == null.st_rdev)
}

/// Reads the hook's input and returns the answer to it. Sets `is_after_call` as soon as the input
/// says that the call has already run.
fn hook_answer(
    options: HookOptions,
    settings: Result<AskerSettings, String>,
    wait: Duration,
    is_after_call: &AtomicBool,
) -> Result<HookAnswer, String> {
    let bytes = read_standard_input(MAX_REPORT_INPUT_BYTES)?;
    let text = String::from_utf8_lossy(&bytes);
    let text = if HookInput::is_after_call(&text) {
        is_after_call.store(true, Ordering::SeqCst);
        text.into_owned()
    } else {
        checked_input(bytes)?
    };
    let client = client(settings?)?;
    runtime()?.block_on(hook::answer(&client, options, wait, &text))
}

/// Returns the first `max_bytes` bytes of standard input, and one more byte if there is more input,
/// so that the caller can refuse an input that is too long.
fn read_standard_input(max_bytes: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let max_bytes = u64::try_from(max_bytes).unwrap_or(u64::MAX);
    let read = std::io::stdin()
        .lock()
        .take(max_bytes.saturating_add(1))
        .read_to_end(&mut bytes);
    read.map_err(|error| format!("standard input cannot be read: {error}"))?;
    Ok(bytes)
}

fn checked_input(bytes: Vec<u8>) -> Result<String, String> {
    if bytes.len() > MAX_INPUT_BYTES {
        return Err(format!(
            "standard input is longer than {MAX_INPUT_BYTES} bytes"
        ));
    }
    String::from_utf8(bytes).map_err(|_| "standard input is not UTF-8".to_owned())
}

fn client(settings: AskerSettings) -> Result<GateClient, String> {
    let runner = random_name()?;
    GateClient::new(settings, runner).map_err(|error| error.to_string())
}

fn random_name() -> Result<String, String> {
    let bytes = random_bytes::<16>().map_err(|error| error.to_string())?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let built = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    built.map_err(|error| error.to_string())
}

fn propose(options: &CallOptions, settings: AskerSettings) -> Result<u8, String> {
    let arguments = match options.arguments.as_str() {
        "-" => checked_input(read_standard_input(MAX_INPUT_BYTES)?)?,
        written => written.to_owned(),
    };
    let arguments: &RawValue = serde_json::from_str(arguments.trim())
        .map_err(|error| format!("the arguments are not JSON: {error}"))?;
    let key = match &options.key {
        Some(key) => key.clone(),
        None => format!("call-{}", random_name()?),
    };
    let wait = options.wait.unwrap_or(settings.wait);
    let (client, runtime) = (client(settings)?, runtime()?);
    let call = ProposedCall {
        gate: client.gate(),
        tool: &options.tool,
        arguments,
        session_id: options.session.as_deref(),
        context: &options.context,
        // Without `--key`, a repeated command continues the equal call of an earlier command.
        attach: options.key.is_none(),
    };
    let verdict = runtime.block_on(client.ask(&call, &key, wait));
    let verdict = verdict.map_err(|error| error.to_string())?;
    match (verdict.answer.decision, options.command.is_empty()) {
        (ServiceDecision::Allow, false) => {
            let mut runner = Runner {
                client: &client,
                runtime: &runtime,
                key: &key,
            };
            runner.run(&verdict, &options.command)
        }
        (ServiceDecision::Allow, true) if is_success(&verdict.answer) => {
            Ok(print_verdict(&verdict, options, OK))
        }
        // The call is allowed, but this process may not run it: the call has failed or has run
        // before, or another process has its permit. The exit code is not 0, because after exit
        // code 0 a script could run the call a second time.
        (ServiceDecision::Allow, true) => Ok(print_verdict(&verdict, options, USAGE_ERROR)),
        (ServiceDecision::Deny, _) => Ok(print_verdict(&verdict, options, DENIED)),
        (ServiceDecision::Pending, _) => Ok(print_verdict(&verdict, options, PENDING)),
    }
}

/// Whether an allowed call is a success for the caller: the caller has a permit to run the call, or
/// the service has run the call successfully.
fn is_success(answer: &ServiceAnswer) -> bool {
    let is_run_here = answer.result.is_some() && answer.outcome.as_deref() == Some("succeeded");
    answer.permit.is_some() || is_run_here
}

/// Prints the verdict's message to standard error, and returns `code`. If there is no command to
/// run, also prints the verdict to standard output. If standard output cannot be written, returns
/// [`USAGE_ERROR`] instead of `code`.
fn print_verdict(verdict: &AskerVerdict, options: &CallOptions, code: u8) -> u8 {
    let url = match (&verdict.answer.decision, &verdict.answer.request) {
        (ServiceDecision::Pending, Some(request)) => format!(" {}", request.url),
        (ServiceDecision::Allow | ServiceDecision::Deny | ServiceDecision::Pending, _) => {
            String::new()
        }
    };
    print_error(code, format!("{}{url}", verdict.answer.message_with_end()));
    if options.command.is_empty() && print(&format!("{}\n", verdict.text)) != OK {
        return USAGE_ERROR;
    }
    code
}

struct Runner<'r> {
    client: &'r GateClient,
    runtime: &'r tokio::runtime::Runtime,
    key: &'r str,
}

impl Runner<'_> {
    fn run(&mut self, verdict: &AskerVerdict, command: &[String]) -> Result<u8, String> {
        let answer = &verdict.answer;
        let Some(permit) = &answer.permit else {
            let why = if answer.result.is_some() && !answer.is_responded() {
                "The command was not run: the service runs this tool itself, and the call has ended"
            } else {
                "The command was not run, because there is no permit for it"
            };
            return Err(format!("{why}: {}", answer.message_with_end()));
        };
        if answer.edited {
            let why = "The command was not run: a person changed the arguments.";
            return self.report_failure(answer, "failed", why.to_owned());
        }
        let Some((program, arguments)) = command.split_first() else {
            return Err("There is no command.".to_owned());
        };
        let spawned = Command::new(program)
            .args(arguments)
            .env("IDEMPOTENCY_KEY", &permit.idempotency_key)
            .stdin(Stdio::inherit())
            .spawn();
        let ended = match spawned {
            Ok(mut child) => child.wait(),
            Err(error) => {
                let why = format!("The command could not be started: {error}");
                return self.report_failure(answer, "failed", why);
            }
        };
        match ended {
            Ok(status) => Ok(self.report_exit(answer, status)),
            // `wait` fails if this process has inherited an ignored SIGCHLD. The command was
            // started, so it may have had its effect.
            Err(error) => {
                let why = format!("The command was started, but its end is not known: {error}");
                self.report_failure(answer, "unknown", why)
            }
        }
    }

    /// Reports `outcome` with the reason `why`. Returns `why` as the error.
    fn report_failure(
        &self,
        answer: &ServiceAnswer,
        outcome: &'static str,
        why: String,
    ) -> Result<u8, String> {
        self.report(answer, outcome, &why);
        Err(why)
    }

    /// Reports how the command ended. Returns the exit code that a shell would return.
    fn report_exit(&self, answer: &ServiceAnswer, status: ExitStatus) -> u8 {
        match (status.code(), status.signal()) {
            (Some(0), _) => {
                self.report(answer, "succeeded", "exit code 0");
                OK
            }
            (Some(code), _) => {
                self.report(answer, "failed", &format!("exit code {code}"));
                u8::try_from(code).unwrap_or(1)
            }
            // A killed command may have had its effect, so the outcome is unknown.
            (None, signal) => {
                let signal = signal.unwrap_or_default();
                self.report(answer, "unknown", &format!("ended by signal {signal}"));
                u8::try_from(128 + signal).unwrap_or(1)
            }
        }
    }

    /// Reports the outcome of the call. Retries only while the service cannot be reached.
    fn report(&self, answer: &ServiceAnswer, outcome: &'static str, content: &str) {
        if answer.is_only_counted() {
            return;
        }
        let report = AskerReport {
            key: self.key,
            outcome,
            content: Some(content),
        };
        for attempt in 1..=MAX_REPORT_ATTEMPTS {
            match self.runtime.block_on(self.client.report(&report)) {
                Ok(()) => return,
                Err(AskError::Unreachable(_)) if attempt < MAX_REPORT_ATTEMPTS => {
                    std::thread::sleep(Duration::from_secs(1));
                }
                Err(error) => {
                    print_error(OK, format!("The outcome was not reported: {error}"));
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_panics_or_hangs_has_no_result() {
        let minute = Some(Duration::from_mins(1));
        assert_eq!(run_in_thread(minute, || 7), Some(7));
        assert_eq!(run_in_thread(minute, || panic!("inside")), None::<u8>);
        assert_eq!(run_in_thread(None, || panic!("inside")), None::<u8>);
        let hangs = || std::thread::park();
        assert_eq!(run_in_thread(Some(Duration::ZERO), hangs), None);
    }
}
