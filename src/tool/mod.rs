//! Performs a call. One trait, one file for each kind; `human`, `agent` and `external` tools are specs only, the
//! engine performs them.

pub mod arguments;
mod builtin;
pub mod catalog;
mod closing;
pub mod credential;
pub mod external;
pub mod guard;
pub mod http;
pub mod names;
mod output;
pub mod schema;
pub mod shell;
pub mod url_template;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use serde_json::Value;

use crate::task::id::{CallId, TaskId};
use crate::task::tool_spec::ToolSpec;

/// Something that performs a call.
#[async_trait]
pub trait Tool: Send + Sync {
    /// What is known of it.
    fn spec(&self) -> &ToolSpec;

    /// Performs one attempt, and never repeats by itself. Bounded by the tool's timeout.
    async fn call(&self, call: &Invocation) -> ToolAnswer;
}

/// Whether a call may still be sent. Each tool asks it once, at the last moment before anything leaves or begins.
#[derive(Clone)]
pub struct Leave(Arc<dyn Fn() -> bool + Send + Sync>);

impl Leave {
    /// As this says.
    #[must_use]
    pub fn of(given: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(given))
    }

    /// Whether it may be sent now.
    #[must_use]
    pub fn is_given(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for Leave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leave")
    }
}

/// What is said of a call that had no leave any more.
const NO_LEAVE: &str = "the task was canceled, or it took too long";

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
    /// Whether it may still be sent.
    pub leave: Leave,
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
