//! Calls that agents propose at a gate and run elsewhere, or have run here. Such a call is a root
//! task of one turn whose model is somebody else, so the journal, the requests and the guarantees
//! are those of every task. Invariant: an approved call starts only while its asker is there.

mod ask;
mod attach;
mod call;
mod look;
mod presence;
mod propose;
mod report;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use self::ask::GateAnswer;
pub use self::call::{CallState, Decision, GateCall, Permit};
pub use self::look::AskerNow;
pub(in crate::engine) use self::presence::Askers;
pub use self::presence::Delivery;
pub use self::report::{OutcomeReport, ReportedOutcome};
use super::{FieldError, Refusal};
use crate::store::RequestRow;
use crate::task::id::TaskId;

/// The path under which the keys of gate calls are stored, whatever surface they came by.
pub(crate) const KEY_PATH: &str = "/v1/gate/calls";

/// The session of a call that names none: a fresh one would never equal that of a repeated call.
pub(crate) const DEFAULT_SESSION: &str = "gate";

/// A call as an agent proposes it. The surface has checked shapes and sizes.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// The name of the gate; `None` is the only gate that is open to the caller.
    pub gate: Option<String>,
    /// The name of the tool.
    pub tool: String,
    /// The arguments, to the byte as they came.
    pub arguments_text: String,
    /// The caller's session; `None` is the session `gate`.
    pub session_id: Option<String>,
    /// The agent's own words about the call, unverified.
    pub context: String,
    /// JSON text of an object, for rules and for the caller.
    pub metadata: String,
    /// How the call is recognized when it is proposed again.
    pub identity: Identity,
    /// The process that runs the call, if it names itself.
    pub runner: Option<String>,
    /// How long the asker waits for the verdict.
    pub wait: Duration,
    /// How long the asker counts as present after the wait, because it asks again by itself.
    pub returns_within: Duration,
    /// For the request that the call waits for.
    pub progress: Progress,
}

/// A place where an ask shows the request that its call waits for.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<Option<Box<RequestRow>>>>);

impl Progress {
    /// The request that the call waits for, if it waits for one.
    #[must_use]
    pub fn request(&self) -> Option<Box<RequestRow>> {
        let shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shown.clone()
    }

    fn show(&self, request: Option<Box<RequestRow>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = request;
    }
}

/// How a proposed call is recognized as an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// By the asker, the session, the tool and the arguments as a JSON value.
    Value,
    /// By the asker, the session, the tool and the bytes of the arguments: these bytes go on.
    Bytes,
    /// By a key of the caller, and if `attach`, by the value where the key is new.
    Key {
        /// The key.
        key: String,
        /// Whether an equal call of another key is continued.
        attach: bool,
    },
    /// Not at all: the call is a new one.
    New,
    /// By the id of the call, which an earlier answer named.
    Call(TaskId),
}

/// Why a gate gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum GateRefusal {
    /// As for every command.
    #[error(transparent)]
    Command(#[from] Refusal),
    /// `call_in_hand`: another runner has the permit.
    #[error("another runner has the permit of this call")]
    InHand(Box<GateCall>),
    /// `call_settled`: the call has another outcome.
    #[error("the call is settled")]
    Settled(Box<GateCall>),
    /// `too_many`: the caller has as many pending calls as the gate permits.
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
