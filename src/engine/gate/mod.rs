//! A gate judges calls that agents outside this service propose. The agent runs such a call itself,
//! or lets this service run the call. A gate call is stored as a root task, so it has a journal,
//! requests and guarantees like any other task. The task has one turn, which no model wrote. A
//! surface is a protocol by which calls are proposed: the REST API, MCP, or the protocol of a
//! gateway. The asker of a call is the client that waits for the verdict. Invariant: an approved
//! call starts only while its asker waits.

mod ask;
mod attach;
mod call;
mod claim_limit;
mod drive;
mod max_open;
mod message;
mod presence;
mod propose;
mod read_call;
mod report;
mod tool_quarantine;
mod versions;

use std::sync::Arc;
use std::time::Duration;

pub use self::ask::GateAnswer;
pub use self::call::{GateCall, GateDecision, GateState, Permit, Repetition};
pub use self::claim_limit::ClaimLimit;
pub(in crate::engine) use self::max_open::OpenCallLocks;
pub use self::presence::ResultDelivery;
pub use self::read_call::AskerStatus;
pub use self::report::{OutcomeReport, ReportedOutcome};
use super::{Engine, Refusal};
use crate::store::RequestRow;
use crate::task::id::TaskId;
use crate::task::request::RequestKind;
use crate::task::status::RequestStatus;
use crate::task::verdict::Approvers;
use crate::world::Locked;

/// The text about a call that was started and has no outcome yet.
pub(crate) const UNDER_WAY: &str = "The call is under way.";
/// The warning about a call that was started, if its outcome is not known.
pub(crate) const MAY_HAVE_RUN: &str = "It may have run. Do not repeat it.";

/// The session id of a proposal that names no session. The id is fixed, so that a repeated call is
/// recognized.
const DEFAULT_SESSION: &str = "gate";

/// The gates of an engine. Clients propose calls, read them and report their outcomes here.
#[derive(Clone, Copy, Debug)]
pub struct Gates<'e> {
    engine: &'e Arc<Engine>,
}

impl Engine {
    #[must_use]
    pub fn gates(self: &Arc<Self>) -> Gates<'_> {
        Gates { engine: self }
    }
}

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
    /// The agent's own explanation of the call, or the rest of a request that a gateway asks about.
    /// Shown to approvers as unverified.
    pub context: String,
    /// JSON text of an object, for rules and for readers of the task.
    pub metadata: String,
    pub identity: Identity,
    /// The asker's name for the process that runs the call. By this name, the process can get its
    /// permit again after it has lost its connection.
    pub runner: Option<String>,
    /// The maximum time that the asker waits for the verdict.
    pub wait: Duration,
    /// The minimum time for which the asker waits for the driver that it has started, even if
    /// `wait` is shorter. A quick tool of this service returns its result within this time.
    pub run_wait: Duration,
    /// The time after `wait` in which the asker still counts as waiting, because it asks again by
    /// itself. Zero for a client that does not ask again by itself.
    pub returns_within: Duration,
    /// A cell in which `Gates::ask` shows the request that the call waits for.
    pub progress: AskProgress,
}

impl Proposal {
    fn session(&self) -> &str {
        self.session_id.as_deref().unwrap_or(DEFAULT_SESSION)
    }
}

/// A cell for the open request that a proposed call waits for. `Gates::ask` writes the cell while it
/// waits. The MCP endpoint of this service reads the cell, and tells the client about the request.
#[derive(Clone, Debug, Default)]
pub struct AskProgress(Arc<Locked<Option<AwaitedRequest>>>);

/// The parts of a request that a waiting client is told. The whole row would take several KiB for
/// each client that waits.
#[derive(Clone, Debug)]
pub struct AwaitedRequest {
    pub kind: RequestKind,
    pub approvers: Approvers,
}

impl AskProgress {
    /// Returns the open request that `Gates::ask` has written last. `None` if the call has no
    /// request so far, or if its last request is closed, for example while the call runs.
    #[must_use]
    pub fn request(&self) -> Option<AwaitedRequest> {
        self.0.lock().clone()
    }

    fn show(&self, request: Option<&RequestRow>) {
        let open = request.filter(|request| request.status == RequestStatus::Pending);
        *self.0.lock() = open.map(|request| AwaitedRequest {
            kind: request.spec.kind,
            approvers: request.spec.terms.approvers.clone(),
        });
    }
}

/// Says which earlier call a proposed call repeats, if any. An earlier call that was proposed as
/// `CallOrKey`, or as `Key` without `attach`, is repeated only by a proposal that names it by key
/// or id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// If an earlier call of the same owner, session and tool has arguments that are equal as JSON
    /// values, the proposal repeats that call.
    Value,
    /// If an earlier call of the same owner, session and tool has arguments of the same bytes and
    /// the same `rest`, the proposal repeats that call. Used for gateways, which forward the
    /// client's own bytes after the verdict.
    Bytes {
        /// The hash of the part of the client's request that an approval covers besides the tool
        /// and the arguments: the place to which the gateway forwards the request, and the members
        /// of the request that hold more input.
        rest: String,
        /// Whether [`Proposal::context`] shows that part cut. Such a call may run if the rules
        /// allow it, but it is not held for people, who would not see what they approve.
        is_cut: bool,
    },
    /// The proposal repeats the call that was proposed with the same idempotency key.
    Key {
        key: String,
        /// If `false`, a proposal with a new key is a new call. If `true`, a proposal with a new
        /// key may repeat an earlier call that is equal as described at `Value`. The earlier call
        /// must have been proposed as `Value`, as `Call`, as `New`, or as `Key` with `attach` set.
        attach: bool,
    },
    /// The proposal repeats no call.
    New,
    /// The proposal names an earlier call by the id of its task, which the client got in an earlier
    /// answer. If caller, gate, session, tool and arguments are the same, the proposal repeats that
    /// call. Otherwise, the gate ignores the id and treats the proposal as `Value`.
    Call(TaskId),
    /// The proposal names an earlier call by the id of its task, as described at `Call`, and has an
    /// idempotency key. If the id names no call of the caller, the gate ignores the id and treats
    /// the proposal as `Key` without `attach`.
    CallOrKey { task: TaskId, key: String },
}

impl Identity {
    /// Returns the id by which the proposal names its call; `None` if it has no id.
    fn task(&self) -> Option<TaskId> {
        match self {
            Self::Call(task) | Self::CallOrKey { task, .. } => Some(*task),
            Self::Value | Self::Bytes { .. } | Self::Key { .. } | Self::New => None,
        }
    }

    /// Returns the idempotency key of the proposal; `None` if it has no key.
    fn key(&self) -> Option<&str> {
        match self {
            Self::Key { key, .. } | Self::CallOrKey { key, .. } => Some(key),
            Self::Value | Self::Bytes { .. } | Self::New | Self::Call(_) => None,
        }
    }

    /// Whether the proposal has an idempotency key and can continue only a call that it names by
    /// this key or by an id.
    fn has_own_key(&self) -> bool {
        self.key().is_some() && self.is_new_if_unknown()
    }

    /// Whether the proposal is always a new call if its key and id name no earlier call. If
    /// `false`, such a proposal may continue an equal earlier call.
    fn is_new_if_unknown(&self) -> bool {
        match self {
            Self::Key { attach, .. } => !attach,
            Self::New | Self::CallOrKey { .. } => true,
            Self::Value | Self::Bytes { .. } | Self::Call(_) => false,
        }
    }
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
    /// `call_settled`: the report contradicts an earlier report, or is about a call that was
    /// settled without a permit.
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
