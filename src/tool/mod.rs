//! Performs the calls of tools. Each kind of tool has its own file. `http` and `shell` implement
//! the trait [`Tool`]. The module `crate::mcp` implements the trait for tools of MCP servers. The
//! files `human`, `agent` and `external` do not implement the trait, because the engine itself
//! handles the calls of these tools.

pub(crate) mod agent;
pub(crate) mod arguments;
mod builtin;
pub mod catalog;
pub(crate) mod credential;
pub(crate) mod external;
pub(crate) mod guard;
pub(crate) mod headers;
pub(crate) mod http;
pub(crate) mod human;
pub(crate) mod mcp;
pub(crate) mod names;
pub(crate) mod output;
mod redacted_answer;
pub(crate) mod schema;
mod schema_rewriter;
pub(crate) mod shell;
mod template;
pub(crate) mod url_template;

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

pub use self::credential::Credentials;
use crate::secret::Redactor;
use crate::task::elicitation::{Elicitation, Resume};
use crate::task::id::{CallId, TaskId};
use crate::task::tool_spec::ToolSpec;
use crate::world::Locked;

/// Performs the calls of one tool.
#[async_trait]
pub trait Tool: Send + Sync {
    fn spec(&self) -> &ToolSpec;

    /// Returns the reason why a call with these arguments can never be sent; `None` if the call can
    /// be sent. The reason quotes no value of the arguments.
    fn refusal_reason(&self, _arguments: &Value) -> Option<String> {
        None
    }

    /// Returns the address of a call as a person sees it, without credentials and without a query.
    /// `None` if the tool knows no address that is more specific than the spec's `target`.
    fn address(&self, _arguments: &Value) -> Option<String> {
        None
    }

    /// Whether [`Tool::call`] may begin before the permit to send the call is decided. If true, the
    /// tool makes its connection, waits for the decision, and then sends the call if the permit
    /// holds. After the decision, the tool has its full timeout for the call.
    fn connects_first(&self) -> bool {
        false
    }

    /// Returns the semaphore that limits the concurrent attempts in this process; `None` if there
    /// is no limit. The driver acquires the semaphore before it commits the start of the call,
    /// because the time between this commit and the sending of the call is limited.
    fn slots(&self) -> Option<Arc<Semaphore>> {
        None
    }

    /// Returns the difference between the tool's reviewed definition and the definition that the
    /// tool's server showed to this task last; `None` if no difference is known.
    fn definition_change(&self, _task: TaskId) -> Option<DefinitionChange> {
        None
    }

    /// Whether the tool's server may ask people a question while it performs a call.
    fn may_ask(&self) -> bool {
        false
    }

    /// Whether the result of [`Tool::definition_change`] may be out of date. If so, the caller must
    /// run [`Tool::prepare`] before its next action for the call:
    ///
    /// - The caller judges the call for the first time, or shows it in a reconcile request. `start`
    ///   is `None`.
    /// - The caller starts the call, or stores a person's decision that lets the call start.
    ///   `start` is the reason why the call may start.
    fn is_stale(&self, _start: Option<StartReason>) -> bool {
        false
    }

    /// Compares the tool's reviewed definition with the definition at the tool's server, unless the
    /// last comparison is recent enough. [`Tool::definition_change`] then returns the difference.
    ///
    /// # Errors
    /// Fails if the definitions could not be compared. The error is the reason, for the model.
    /// After an error, the call must not start.
    async fn prepare(
        &self,
        _start: Option<StartReason>,
        _task: TaskId,
        _credentials: &Credentials,
    ) -> Result<(), String> {
        Ok(())
    }

    /// Performs one attempt within the tool's timeout. The engine decides whether another attempt
    /// follows.
    async fn call(&self, call: &Invocation) -> ToolAnswer;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartReason {
    /// A rule or a standing decision allows the call.
    Allowed,
    /// A person's decision lets the call start. The decision is stored or is about to be stored.
    Approved,
}

/// A difference between a tool's present definition at its server and the reviewed definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionChange {
    /// A digest over the reviewed and the present definition. It replaces [`ToolSpec::definition`]
    /// in the digests of the tool's calls, so a further change of the tool changes these digests.
    pub definition: String,
    /// The explanation for an approver, in whole sentences.
    pub reason: String,
    /// Whether the tool's calls are refused. If not, they are held for approval.
    pub denied: bool,
}

impl DefinitionChange {
    /// Returns the spec with the definition of `change`; the spec itself if there is no change.
    pub(crate) fn applied_to(spec: &ToolSpec, change: Option<Self>) -> Cow<'_, ToolSpec> {
        match change {
            None => Cow::Borrowed(spec),
            Some(change) => Cow::Owned(ToolSpec {
                definition: change.definition,
                ..spec.clone()
            }),
        }
    }
}

/// One attempt at a call.
#[derive(Clone, Debug)]
pub struct Invocation {
    pub tenant: String,
    /// The user id of the task's owner.
    pub owner: String,
    pub task_id: TaskId,
    /// The id of the call. All attempts at the call have this id, which is also sent as the
    /// `Idempotency-Key`.
    pub call_id: CallId,
    /// Whether another attempt may follow if this attempt's outcome is lost. True for the first
    /// attempt at a repeatable call, false for every other attempt.
    pub may_be_lost: bool,
    /// The JSON of the arguments, exactly as the policy judged it and approvers saw it.
    pub arguments_text: String,
    /// `arguments_text`, as parsed by `arguments.rs`.
    pub arguments: Value,
    /// The approvers, joined by commas; `None` without an approval.
    pub decided_by: Option<String>,
    /// The W3C trace context (`traceparent`) to pass on.
    pub traceparent: String,
    pub permit: AttemptPermit,
    /// The task's credentials, for the references in the tool's configuration.
    pub credentials: Credentials,
    /// The state that the tool's server asked to get back, and the answers to the server's latest
    /// questions. `None` if the server has asked no question during this call.
    pub resume: Option<Resume>,
    /// The cell for an answer that comes after the timeout.
    pub late: LateAnswerCell,
    /// The cell for the result exactly as the tool's server wrote it.
    pub raw: RawResultCell,
}

impl Invocation {
    /// Returns a redactor for `known` (the configuration's secrets) and for all credentials of the
    /// task's tree, including credentials that the tool does not use.
    pub(crate) fn redactor<'r>(&self, known: &'r Redactor) -> Cow<'r, Redactor> {
        if self.credentials.is_empty() && !self.credentials.has_others() {
            return Cow::Borrowed(known);
        }
        Cow::Owned(known.merged_with(&self.credentials.redactor()))
    }
}

/// A future that waits for an answer after the attempt's timeout. The future returns `None` if the
/// outcome stays unknown.
pub type LateAnswer = BoxFuture<'static, Option<ToolAnswer>>;

/// The cell for the late answer to an attempt that ended by its timeout. The tool fills the cell
/// with a future that goes on waiting for the answer. The cell stays empty if the attempt ended
/// before its timeout, or if its answer can no longer arrive.
pub type LateAnswerCell = ResultCell<LateAnswer>;

/// The cell for the text of an attempt's result, exactly as an MCP server wrote it. The cell stays
/// empty if this text contains a secret. The asker of a gate call gets this text. The text is not
/// stored: the journal keeps only the text for the model.
pub type RawResultCell = ResultCell<Arc<str>>;

/// A cell in which a tool leaves one value in addition to its [`ToolAnswer`]. Clones share the
/// value.
pub struct ResultCell<T>(Arc<Locked<Option<T>>>);

impl<T> ResultCell<T> {
    pub fn put(&self, value: T) {
        *self.0.lock() = Some(value);
    }

    #[must_use]
    pub fn take(&self) -> Option<T> {
        self.0.lock().take()
    }
}

impl<T> Clone for ResultCell<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for ResultCell<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> std::fmt::Debug for ResultCell<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResultCell")
    }
}

/// The permit to send one attempt. The permit is decided when the commit of the call's start has
/// succeeded or failed. The tool checks the permit right before it sends the first byte. A tool
/// that sends over a connection makes the connection before this check. The permit is refused in
/// three cases:
///
/// - The commit of the start failed.
/// - The task was canceled.
/// - The task's lease or the time limit for sending ran out, for example because the process was
///   suspended.
#[derive(Clone)]
pub struct AttemptPermit {
    decided: watch::Receiver<Option<Permission>>,
    awaited: Arc<Notify>,
    refused: Arc<AtomicBool>,
}

/// Decides a permit. If this value is dropped without a decision, the permit is refused.
pub struct PermitDecision {
    sender: watch::Sender<Option<Permission>>,
    awaited: Arc<Notify>,
}

#[derive(Clone)]
struct Permission {
    at: Instant,
    may_send: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl PermitDecision {
    /// Permits the attempt as long as `may_send` returns true.
    pub fn permit_while(&self, may_send: impl Fn() -> bool + Send + Sync + 'static) {
        self.sender.send_replace(Some(Permission {
            at: Instant::now(),
            may_send: Arc::new(may_send),
        }));
    }

    /// Returns once the attempt has made its connection and waits for the permit. Also returns if
    /// the attempt ends without a connection.
    pub(crate) async fn awaited(&self) {
        self.awaited.notified().await;
    }
}

impl AttemptPermit {
    /// Returns an undecided permit, and the value that decides it.
    #[must_use]
    pub fn undecided() -> (PermitDecision, Self) {
        let (sender, decided) = watch::channel(None);
        let awaited = Arc::new(Notify::new());
        let permit = Self {
            decided,
            awaited: Arc::clone(&awaited),
            refused: Arc::default(),
        };
        (PermitDecision { sender, awaited }, permit)
    }

    /// Returns a decided permit that holds as long as `may_send` returns true.
    #[cfg(test)]
    pub(crate) fn permitted_while(may_send: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let (decision, permit) = Self::undecided();
        decision.permit_while(may_send);
        permit
    }

    /// Waits until the permit is decided. Returns the time of the decision; `None` if the
    /// [`PermitDecision`] was dropped undecided.
    pub async fn decided(&self) -> Option<Instant> {
        self.awaited.notify_one();
        let mut decided = self.decided.clone();
        let found = decided.wait_for(Option::is_some).await.ok()?;
        found.as_ref().map(|decided| decided.at)
    }

    /// Ends the wait of [`PermitDecision::awaited`], because the attempt has ended.
    pub(crate) fn end_wait(&self) {
        self.awaited.notify_one();
    }

    /// Whether the attempt may be sent now. The caller must call this function right before it
    /// sends the first byte. If the result is `false`, the caller must send nothing.
    #[must_use]
    pub fn holds(&self) -> bool {
        let decided = self.decided.borrow().clone();
        let holds = decided.is_some_and(|decided| (decided.may_send)());
        self.refused.store(!holds, Ordering::SeqCst);
        holds
    }

    /// Whether the last call of [`AttemptPermit::holds`] returned `false`.
    #[must_use]
    pub fn was_refused(&self) -> bool {
        self.refused.load(Ordering::SeqCst)
    }
}

impl std::fmt::Debug for AttemptPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AttemptPermit")
    }
}

/// The outcome of an attempt. The texts in it are redacted, of bounded length and without U+0000.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolAnswer {
    /// The tool answered with success.
    Succeeded {
        /// The text for the model.
        content: String,
        /// The status of an HTTP tool's answer; `None` for other tools.
        http_status: Option<u16>,
    },
    /// The call failed: the tool says so.
    Failed {
        /// The text for the model.
        content: String,
        /// The status of an HTTP tool's answer; `None` for other tools.
        http_status: Option<u16>,
    },
    /// Nothing was sent in this attempt, so the attempt provably had no effect. An earlier attempt
    /// at the call may have had one.
    NotSent {
        /// The text for the model.
        content: String,
    },
    /// The tool reported an error, possibly after the call had an effect.
    Suspect {
        /// The text for the model.
        content: String,
    },
    /// The call was sent or may have been sent, and its outcome is unknown.
    Unknown {
        /// The problem, in words for a person and without a URL.
        problem: String,
    },
    /// The tool's server asks a person. The attempt is over; the next attempt continues the call.
    /// The engine, not the tool, sets the member `round`.
    Elicitation(Box<Elicitation>),
}

impl ToolAnswer {
    /// Returns a failure without an HTTP status.
    pub(crate) fn failed(content: String) -> Self {
        Self::Failed {
            content,
            http_status: None,
        }
    }
}

/// Performs an attempt, and records the outcome and the duration as metrics. If the permit to send
/// the call is decided after the attempt has begun, the duration begins with that decision.
pub(crate) async fn measure_attempt(
    tool: &str,
    permit: &AttemptPermit,
    attempt: impl Future<Output = ToolAnswer>,
) -> ToolAnswer {
    let began = Instant::now();
    let answer = attempt.await;
    let began = permit.decided().await.map_or(began, |at| at.max(began));
    let outcome = match answer {
        ToolAnswer::Succeeded { .. } => "succeeded",
        ToolAnswer::Failed { .. } | ToolAnswer::NotSent { .. } | ToolAnswer::Suspect { .. } => {
            "failed"
        }
        ToolAnswer::Unknown { .. } => "unknown",
        ToolAnswer::Elicitation(_) => "asked",
    };
    let seconds = began.elapsed().as_secs_f64();
    tracing::info!(target: "holdpoint::metric", metric = "tool_call", tool, outcome, seconds);
    answer
}
