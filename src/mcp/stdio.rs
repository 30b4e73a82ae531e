//! Runs an MCP server as a child process of a guard process. Shell tools run their commands under
//! the same kind of guard. Invariant: `McpOutcome::NotSent` means that no byte of the call's
//! message was written.

mod session;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::session::{Session, late_answer, unwritten_reason};
use super::child::Child;
use super::child::WriteFailure::{MaybeSent, NotSent};
use super::client::{LIST_TIMED_OUT, LIST_TIMEOUT, McpCall, McpOutcome, ToolListing};
use super::content::outcome;
use super::listing::Pages;
use super::wire::{Revision, RpcAnswer, RpcRequest, initialized, is_stateless, server_info};
use crate::net::{NO_ANSWER_IN_TIME, NOT_PERMITTED};
use crate::secret::{Redactor, Secret};
use crate::task::elicitation::Resume;
use crate::tool::guard;
use crate::tool::shell::GuardCommand;
use crate::world::complete_by;

/// How long the service goes on waiting for the answer after a call has timed out.
const LATE_ANSWER_TIMEOUT: Duration = Duration::from_mins(10);
/// The minimum of the time limit for the answer to `initialize`. The time limit is the server's
/// `timeout`, but at least this long, because a program such as `npx` may download the server
/// first.
const MIN_START_TIMEOUT: Duration = Duration::from_mins(1);
/// The maximum pause after a failed start.
const MAX_PAUSE: Duration = Duration::from_mins(1);
/// The number of consecutive failed starts after which the server counts as down.
const FAILURES_UNTIL_DOWN: u32 = 5;
/// The error text if the child ended before the request was written.
const PROCESS_ENDED: &str = "its process had ended";
/// The error text if a message was not written completely before its timeout. The child did not
/// read it, or the message waited for the writes of other messages or for the start of the child.
const BUSY: &str = "its process did not read its input in time";
const ANSWER_LOST: &str = "its process ended before it answered";
/// The error text if the service shuts down before the child has started.
const CLOSED: &str = "it is not started while the service shuts down";
/// The error text for a start whose future was dropped before the start had succeeded or failed.
const GIVEN_UP: &str = "its start was given up";

/// The program with its arguments (not empty), the working directory, and the environment.
pub(super) type ServerCommand = (
    Vec<Secret<String>>,
    String,
    BTreeMap<String, Secret<String>>,
);

/// The time limits of a server. Tests use shorter limits.
#[derive(Clone, Copy, Debug)]
struct TimeLimits {
    /// The maximum time for the server's answer to `initialize`.
    start: Duration,
    /// The maximum time for listing all tools, after the server has been initialized.
    list: Duration,
    /// The maximum time for the answer to `server/discover`, which older servers may never give.
    probe: Duration,
    /// After the timeout of a call, `Stdio::check` sends a request to find out whether the server
    /// still responds. This is the maximum time for the answer to that request.
    alive: Duration,
    /// The same after a late list of tools: a server may be slow to make its first list, and may
    /// read nothing else meanwhile.
    after_list: Duration,
    /// The pause after the first failed start. Each further failure doubles the pause, up to
    /// [`MAX_PAUSE`].
    pause: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self {
            start: MIN_START_TIMEOUT,
            list: LIST_TIMEOUT,
            probe: Duration::from_secs(5),
            alive: Duration::from_secs(10),
            after_list: MIN_START_TIMEOUT,
            pause: Duration::from_secs(1),
        }
    }
}

#[derive(Debug)]
pub(super) struct Stdio {
    name: String,
    command: ServerCommand,
    guard: GuardCommand,
    hint: Option<Revision>,
    limits: TimeLimits,
    /// Locked while a child starts, so that concurrent calls share one start.
    running: Mutex<Running>,
    /// [`Stdio::close`] cancels this token before it locks `running`. A start in progress holds
    /// that lock, and ends as soon as this token is canceled.
    closed: CancellationToken,
    /// Tracks the checks whether the child still answers after a timeout. The tracker is closed, so
    /// its `wait` returns once no check is pending.
    pub(super) checks: TaskTracker,
    ids: AtomicU64,
    changes: watch::Sender<u64>,
    /// Redacts the name of a program that cannot be started, and the lines of the child's standard
    /// error before they are logged.
    redactor: Arc<Redactor>,
    /// Whether the lines of the child's standard error are logged. If false, the lines are dropped,
    /// and the metric `mcp_dropped` counts them.
    logs_stderr: bool,
}

#[derive(Debug, Default)]
struct Running {
    session: Option<Session>,
    failures: u32,
    failed_at: Option<Instant>,
    /// The reason of the last failed start.
    reason: String,
}

impl Stdio {
    pub(super) fn new(
        name: &str,
        command: ServerCommand,
        hint: Option<Revision>,
        timeout: Duration,
        changes: watch::Sender<u64>,
        (redactor, logs_stderr): (Arc<Redactor>, bool),
    ) -> Self {
        let checks = TaskTracker::new();
        checks.close();
        Self {
            name: name.to_owned(),
            command,
            guard: GuardCommand::default(),
            hint,
            limits: TimeLimits {
                start: timeout.max(MIN_START_TIMEOUT),
                ..TimeLimits::default()
            },
            running: Mutex::default(),
            closed: CancellationToken::new(),
            checks,
            ids: AtomicU64::new(0),
            changes,
            redactor,
            logs_stderr,
        }
    }

    pub(super) async fn list(&self) -> Result<ToolListing, String> {
        match self.list_once().await {
            // Listing has no effect on the server. If the child ended before the answer, the list
            // is requested once more.
            Err(why) if why == ANSWER_LOST || why == PROCESS_ENDED => self.list_once().await,
            listed => listed,
        }
    }

    async fn list_once(&self) -> Result<ToolListing, String> {
        let session = self.session().await?;
        let within = self.limits.list;
        let listed = tokio::time::timeout(within, self.pages(session.clone())).await;
        let listed = listed.unwrap_or_else(|_| Err(LIST_TIMED_OUT.to_owned()));
        let is_late = |why: &String| why == LIST_TIMED_OUT || why == NO_ANSWER_IN_TIME;
        // A server may execute one request at a time, so a call in flight may delay the list. In
        // this case, no check is needed here: a call that times out starts a check itself.
        if listed.as_ref().is_err_and(is_late) && !session.child.has_calls() {
            self.check(session, None);
        }
        listed
    }

    async fn pages(&self, session: Session) -> Result<ToolListing, String> {
        let mut pages = Pages::default();
        loop {
            let page = pages.id();
            let mut request = RpcRequest::new(&page, "tools/list");
            request.params.extend(pages.cursor());
            let answer = self.ask(&session, request, self.limits.list).await?;
            if !pages.add(answer)? {
                return Ok(pages.listing(session.revision, session.server));
            }
        }
    }

    /// Sends one request of an attempt at a call, and waits for the answer. `request_index` counts
    /// the requests of the attempt from 0. Request 0 is sent only if `call.permit` holds right
    /// before its first byte. A later request needs no permit, because request 0 has already sent
    /// the call. It is sent only before the end of `within`, because the attempt ends then.
    pub(super) async fn call(
        &self,
        call: &McpCall<'_>,
        resume: Option<&Resume>,
        within: Duration,
        request_index: u32,
    ) -> McpOutcome {
        // The time `within` begins now, or at the permit's decision if that comes later.
        let (earliest_end, mut restarted) = (Instant::now() + within, false);
        loop {
            let session = match self.session_for(request_index, earliest_end).await {
                Ok(session) => session,
                Err(why) => return McpOutcome::NotSent(why),
            };
            // The number makes the id unique. Without it, a late answer to an earlier attempt could
            // be taken for the answer to this request.
            let number = self.ids.fetch_add(1, Ordering::Relaxed);
            let id = format!("{}#{number}", call.request_id(request_index));
            let text = call.request(&id, resume).text(session.revision);
            let mut pending = session.child.expect(&id);
            let Some(decided) = call.permit.decided().await else {
                return McpOutcome::NotSent(NOT_PERMITTED.to_owned());
            };
            let _in_flight = Arc::clone(&session.child.calls);
            let (until, mut refused) = (earliest_end.max(decided + within), false);
            let may_send = || {
                refused = request_index == 0 && !call.permit.holds();
                !refused && (request_index == 0 || Instant::now() < until)
            };
            match session.child.write(&text, until, may_send).await {
                Ok(()) => {}
                Err(MaybeSent) => {
                    self.check(session, Some(&id));
                    return McpOutcome::Unknown(ANSWER_LOST.to_owned());
                }
                Err(NotSent) if refused => return McpOutcome::NotSent(NOT_PERMITTED.to_owned()),
                Err(NotSent) if restarted || Instant::now() >= until => {
                    return McpOutcome::NotSent(unwritten_reason(until));
                }
                Err(NotSent) => {
                    restarted = true;
                    continue;
                }
            }
            return match complete_by(until, pending.answer()).await {
                Some(Some(answer)) => {
                    call.store_raw_result(&answer, pending.raw.as_deref(), call.redactor);
                    outcome(answer, call.redactor)
                }
                Some(None) => McpOutcome::Unknown(ANSWER_LOST.to_owned()),
                None => {
                    let declined = resume.map_or_else(Vec::new, |resume| resume.declined.clone());
                    let late = late_answer(pending, call.redactor.clone(), declined);
                    call.late.put(Box::pin(late));
                    self.check(session, Some(&id));
                    McpOutcome::Unknown(NO_ANSWER_IN_TIME.to_owned())
                }
            };
        }
    }

    /// Ends the running child, or a start in progress. Every later start fails.
    pub(super) async fn close(&self) {
        self.closed.cancel();
        let session = self.running.lock().await.session.take();
        if let Some(session) = session {
            session.child.end().await;
        }
    }

    /// Returns the running child, or starts a new child. First waits for the pending checks of the
    /// running child (see [`Self::check`]): it may be hung, and a call that is sent to it meanwhile
    /// would be lost.
    ///
    /// # Errors
    /// Fails if no child is running and none can be started now. The error is the reason.
    async fn session(&self) -> Result<Session, String> {
        self.checks.wait().await;
        let mut running = self.running.lock().await;
        if let Some(session) = &running.session
            && !session.child.has_ended()
        {
            return Ok(session.clone());
        }
        if let Some(ended) = running.session.take() {
            ended.child.end().await;
        }
        let pause = self.limits.pause * 2_u32.saturating_pow(running.failures.saturating_sub(1));
        let pause = pause.min(MAX_PAUSE);
        if running.failed_at.is_some_and(|at| at.elapsed() < pause) {
            return Err(format!(
                "it did not start ({}), and is started again later",
                running.reason
            ));
        }
        // The failure is counted before the start, so that a start whose future is dropped also
        // counts as a failure.
        running.failures = running.failures.saturating_add(1);
        running.failed_at = Some(Instant::now());
        GIVEN_UP.clone_into(&mut running.reason);
        if running.failures >= FAILURES_UNTIL_DOWN {
            self.observe(false);
        }
        let started = tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(CLOSED.to_owned()),
            started = self.start() => started,
        };
        match started {
            Ok(session) => {
                self.observe(true);
                *running = Running {
                    session: Some(session.clone()),
                    ..Running::default()
                };
                Ok(session)
            }
            Err(why) => {
                running.failed_at = Some(Instant::now());
                running.reason.clone_from(&why);
                tracing::warn!(
                    server = self.name,
                    why,
                    "an MCP server could not be started"
                );
                Err(why)
            }
        }
    }

    /// Returns the child for a request of an attempt, as [`Self::session`] does for request 0. For a
    /// later request, starts no child, because the start could take longer than the attempt. Waits
    /// for a start in progress until the end of the attempt (`until`).
    ///
    /// # Errors
    /// Fails if there is no such child. The error is the reason.
    async fn session_for(&self, request_index: u32, until: Instant) -> Result<Session, String> {
        if request_index == 0 {
            return self.session().await;
        }
        let running = timeout_at(until, self.running.lock()).await;
        let session = running.map_err(|_| BUSY)?.session.clone();
        let session = session.filter(|session| !session.child.has_ended());
        session.ok_or_else(|| PROCESS_ENDED.to_owned())
    }

    async fn start(&self) -> Result<Session, String> {
        let (program, working_dir, environment) = &self.command;
        let environment = environment.iter();
        let order = guard::Order {
            program: program.iter().map(|text| text.reveal().clone()).collect(),
            working_dir: working_dir.clone(),
            environment: environment
                .map(|(name, value)| (name.clone(), value.reveal().clone()))
                .collect(),
            ..guard::Order::default()
        };
        let log = self.logs_stderr.then(|| Arc::clone(&self.redactor));
        let changes = self.changes.clone();
        let child = Child::start(&self.guard, &self.name, &order, changes, log)
            .await
            .map_err(|why| self.redactor.redact(&why).into_owned())?;
        let session_of = |revision| Session {
            child: Arc::clone(&child),
            revision,
            server: Value::Null,
        };
        let close_on_drop = child.closing_on_drop();
        let begun = self.begin(session_of).await;
        if begun.is_ok() {
            close_on_drop.disarm();
        }
        begun
    }

    /// Finds out which revision the server speaks. For an older revision, initializes a session.
    async fn begin(&self, session_of: impl Fn(Revision) -> Session) -> Result<Session, String> {
        let newest = session_of(Revision::July2026);
        let discovered = if self.hint.is_none_or(Revision::is_stateless) {
            self.discover(&newest).await
        } else {
            Ok(None)
        };
        let was_silent = discovered.is_err();
        if let Ok(Some(begun)) = discovered {
            return Ok(begun);
        }
        let older = session_of(Revision::November2025);
        let within = self.limits.start;
        let answer = self.ask(&older, RpcRequest::initialize(""), within).await;
        let (revision, server) = match answer.and_then(initialized) {
            Ok(begun) => begun,
            // Perhaps the server speaks only the stateless revision (2026-07-28). The code above
            // skips `discover` if `hint` is an older revision, and `discover` fails if the server
            // is not ready yet.
            Err(why) => return self.discover(&newest).await.ok().flatten().ok_or(why),
        };
        let begun = Session {
            revision,
            server,
            ..older
        };
        let done = RpcRequest::notification("notifications/initialized").text(revision);
        let until = Instant::now() + within;
        let wrote = begun.child.write(&done, until, || true).await;
        wrote.map_err(|_| unwritten_reason(until))?;
        // Perhaps the server was still starting when it was silent.
        if was_silent && let Ok(Some(discovered)) = self.discover(&newest).await {
            return Ok(discovered);
        }
        Ok(begun)
    }

    /// Returns the session if the server speaks the stateless revision (2026-07-28); otherwise
    /// `None`.
    ///
    /// # Errors
    /// Fails if the server does not answer, which says nothing about its revision.
    async fn discover(&self, newest: &Session) -> Result<Option<Session>, String> {
        let request = RpcRequest::new("", "server/discover");
        let answer = self.ask(newest, request, self.limits.probe).await?;
        Ok(is_stateless(&answer).then(|| Session {
            server: server_info(&answer),
            ..newest.clone()
        }))
    }

    /// Sends a request that calls no tool, under a fresh id. Waits at most `within` for the answer.
    async fn ask(
        &self,
        session: &Session,
        request: RpcRequest<'_>,
        within: Duration,
    ) -> Result<RpcAnswer, String> {
        let id = self.fresh_id(request.method);
        let request = RpcRequest {
            id: Some(&id),
            ..request
        };
        session.ask(&request, within).await
    }

    fn fresh_id(&self, method: &str) -> String {
        format!("{method}-{}", self.ids.fetch_add(1, Ordering::Relaxed))
    }

    fn observe(&self, up: bool) {
        let server = self.name.as_str();
        tracing::info!(target: "holdpoint::metric", metric = "mcp_server_up", server, change = i64::from(up));
    }
}

#[cfg(test)]
mod tests;
