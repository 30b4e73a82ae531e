//! Performs a call. One trait, one file for each kind; `human`, `agent` and `external` tools are specs only, the
//! engine performs them.

pub mod agent;
pub mod arguments;
mod builtin;
pub mod catalog;
mod closing;
pub mod credential;
pub mod external;
pub mod guard;
pub mod http;
pub mod human;
pub mod names;
mod output;
pub mod schema;
pub mod shell;
mod template;
pub mod url_template;

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use serde_json::Value;

use self::credential::Credentials;
use crate::secret::Redactor;
use crate::task::id::{CallId, TaskId};
use crate::task::tool_spec::ToolSpec;

/// Something that performs a call.
#[async_trait]
pub trait Tool: Send + Sync {
    /// What is known of it.
    fn spec(&self) -> &ToolSpec;

    /// Why no call with these arguments could ever be sent, if so; never quotes a value.
    fn refuses(&self, _arguments: &Value) -> Option<String> {
        None
    }

    /// Where a call with these arguments goes, for a person, where that is more than the spec's `target`. No credential
    /// and no query stands in it.
    fn address(&self, _arguments: &Value) -> Option<String> {
        None
    }

    /// Performs one attempt, and never repeats by itself. Bounded by the tool's timeout.
    async fn call(&self, call: &Invocation) -> ToolAnswer;
}

/// One attempt at a call.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// The tenant.
    pub tenant: String,
    /// The task's owner.
    pub owner: String,
    /// The task.
    pub task_id: TaskId,
    /// The call: also the `Idempotency-Key`, whichever attempt it is.
    pub call_id: CallId,
    /// The exact text that was judged and shown.
    pub arguments_text: String,
    /// The same, read once by `arguments.rs`.
    pub arguments: Value,
    /// Who approved it, when somebody had to.
    pub decided_by: Option<String>,
    /// W3C trace context to pass on.
    pub traceparent: String,
    /// Leave to send it.
    pub permit: SendPermit,
    /// What people have filled in for its task: what the tool's configuration refers to is filled in from here.
    pub credentials: Credentials,
}

impl Invocation {
    /// Looks for what the configuration keeps secret, and for every credential in hand, whether the tool took it or not.
    fn redactor<'r>(&self, known: &'r Redactor) -> Cow<'r, Redactor> {
        if self.credentials.is_empty() {
            return Cow::Borrowed(known);
        }
        Cow::Owned(known.and(&self.credentials.redactor()))
    }
}

/// Leave to send one attempt. Asked once, at the last moment before anything goes out (after a connection is made): a
/// process that was suspended meanwhile, or whose task was canceled, has it no more.
#[derive(Clone)]
pub struct SendPermit {
    given: Arc<dyn Fn() -> bool + Send + Sync>,
    refused: Arc<AtomicBool>,
}

impl SendPermit {
    /// As long as this says so.
    pub fn of(given: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { given: Arc::new(given), refused: Arc::default() }
    }

    /// Whether it may be sent now. Where it may not, nothing has been sent, and nothing may be.
    #[must_use]
    pub fn holds(&self) -> bool {
        let holds = (self.given)();
        self.refused.store(!holds, Ordering::SeqCst);
        holds
    }

    /// Whether it was asked for and refused.
    #[must_use]
    pub fn was_refused(&self) -> bool {
        self.refused.load(Ordering::SeqCst)
    }
}

impl std::fmt::Debug for SendPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Leave")
    }
}

/// What became of an attempt. Text is clean: no U+0000, no known secret, bounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolAnswer {
    /// A complete answer.
    Succeeded {
        /// What the model is shown.
        content: String,
        /// Of an HTTP tool.
        http_status: Option<u16>,
    },
    /// It answered that it failed, or provably never got there.
    Failed {
        /// What the model is shown.
        content: String,
        /// Of an HTTP tool that answered.
        http_status: Option<u16>,
    },
    /// It was sent (or may have been), and nobody knows what happened.
    Unknown {
        /// What went wrong, for a person: no URL.
        problem: String,
    },
}

/// Performs an attempt and counts it: its outcome and how long it took.
async fn metric(tool: &str, attempt: impl Future<Output = ToolAnswer>) -> ToolAnswer {
    let began = Instant::now();
    let answer = attempt.await;
    let outcome = match answer {
        ToolAnswer::Succeeded { .. } => "succeeded",
        ToolAnswer::Failed { .. } => "failed",
        ToolAnswer::Unknown { .. } => "unknown",
    };
    let seconds = began.elapsed().as_secs_f64();
    tracing::info!(target: "holdpoint::metric", metric = "tool_call", tool, outcome, seconds);
    answer
}
