//! A gate judges calls that agents outside this service propose. The agent runs such a call itself,
//! or lets this service run the call. A gate call is stored as a root task with one turn, which no
//! model of this service wrote. A gate call therefore has a journal, requests and guarantees like
//! any other task. A surface is a protocol by which calls are proposed: the REST API, MCP, or the
//! protocol of a gateway. Invariant: an approved call starts only while its asker waits.

mod ask;
mod attach;
mod call;
mod presence;
mod propose;
mod read_call;
mod report;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use self::ask::GateAnswer;
pub use self::call::{GateCall, GateDecision, GateState, Permit};
pub(in crate::engine) use self::presence::AwaitedCalls;
pub use self::presence::Delivery;
pub use self::read_call::AskerStatus;
pub use self::report::{OutcomeReport, ReportedOutcome};
use super::{FieldError, Refusal};
use crate::store::RequestRow;
use crate::task::id::TaskId;

/// The path under which idempotency keys of gate calls are stored. The path is the same for all
/// surfaces (protocols such as REST and MCP), so that a key names the same call at each surface.
pub(crate) const KEY_PATH: &str = "/v1/gate/calls";

/// The session id of a proposal that names no session. If each such proposal got a fresh id
/// instead, a repeated call would not be recognized.
pub(crate) const DEFAULT_SESSION: &str = "gate";

/// A call as an agent proposes it. The surface (the REST API, MCP or the protocol of a gateway) has
/// checked the shape and the size of each field.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// The name of the gate; `None` stands for the only gate that is open to the caller.
    pub gate: Option<String>,
    pub tool: String,
    /// The arguments as the agent sent them, byte by byte.
    pub arguments_text: String,
    /// The caller's session id; `None` stands for the session `gate`.
    pub session_id: Option<String>,
    /// The agent's own explanation of the call, shown to approvers as unverified.
    pub context: String,
    /// JSON text of an object, for rules and for readers of the task.
    pub metadata: String,
    /// Determines which earlier call this proposal repeats, if any.
    pub identity: Identity,
    /// The name of the process that runs the call, if the asker gave one. If this process loses its
    /// connection, it can get its permit again by this name.
    pub runner: Option<String>,
    /// The maximum time that the asker waits for the verdict.
    pub wait: Duration,
    /// The time after `wait` during which the asker still counts as waiting. It is above zero for a
    /// client that asks again by itself.
    pub returns_within: Duration,
    /// The cell for the request that the call waits for. The surface can read the cell while the
    /// client waits for the verdict.
    pub progress: AskProgress,
}

/// A cell for the request that a proposed call waits for. `Engine::ask` writes the cell, so that
/// the surface, such as the REST API, can show the request meanwhile.
#[derive(Clone, Debug, Default)]
pub struct AskProgress(Arc<Mutex<Option<Box<RequestRow>>>>);

impl AskProgress {
    /// Returns the request that the call waits for; `None` if `Engine::ask` has written none.
    #[must_use]
    pub fn request(&self) -> Option<Box<RequestRow>> {
        let shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shown.clone()
    }

    fn show(&self, request: Option<Box<RequestRow>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = request;
    }
}

/// Determines whether a proposed call is recognized as an earlier call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The earlier call must have the same owner, session and tool, and arguments that are equal as
    /// JSON values.
    Value,
    /// The earlier call must have the same owner, session and tool, and the same bytes of
    /// arguments. Used by protocols in which the client's own bytes are forwarded.
    Bytes,
    /// The earlier call must have the same idempotency key. With `attach`, a proposal with a new
    /// key may also continue an earlier call that is equal as `Value` requires.
    Key {
        key: String,
        /// Whether the proposal may continue an equal call that has another key or no key.
        attach: bool,
    },
    /// The call is never recognized, so each proposal is a new call.
    New,
    /// The earlier call is the call of this task. The client got the task's id in an earlier
    /// answer. If the task's call differs from the proposed call, the proposal is new.
    Call(TaskId),
}

/// The reason why a gate gave no verdict.
#[derive(Debug, thiserror::Error)]
pub enum GateRefusal {
    /// A refusal that any command can return.
    #[error(transparent)]
    Command(#[from] Refusal),
    /// `call_in_hand`: another runner has the permit.
    #[error("another runner has the permit of this call")]
    InHand(Box<GateCall>),
    /// `call_settled`: the report differs from the stored outcome.
    #[error("the call is settled")]
    Settled(Box<GateCall>),
    /// `too_many`: the caller has as many pending calls as the gate's `max_open`.
    #[error("too many calls of this user wait at the gate")]
    TooManyOpen,
}

impl From<crate::store::ReadError> for GateRefusal {
    fn from(error: crate::store::ReadError) -> Self {
        Self::Command(error.into())
    }
}

impl GateRefusal {
    fn invalid(pointer: &str, detail: &str) -> Self {
        Self::Command(Refusal::Invalid(vec![FieldError {
            pointer: pointer.to_owned(),
            detail: detail.to_owned(),
        }]))
    }
}
