//! The questions of one message to a person or a room. Each channel makes its own body of them.
//!
//! Invariant: a digest holds no text of an agent, and arguments only in the tools' summaries.

use crate::store::RequestRow;
use crate::task::event_name::{EXPIRING, WAITING};
use crate::task::id::RequestId;
use crate::task::request::RequestKind;
use crate::task::time::Time;

/// The most questions that a message lists.
pub(super) const LISTED: usize = 20;

/// The questions of one message to a person or a room.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Digest {
    /// Why the message is sent.
    pub(super) reason: Reason,
    /// The questions that are listed, the oldest first; [`LISTED`] at most.
    pub(super) questions: Vec<Question>,
    /// The number of further questions that are not listed.
    pub(super) more: u64,
    /// The address of the inbox; `None` where the recipient could not sign in.
    pub(super) inbox: Option<String>,
}

/// Why a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The questions are new.
    New,
    /// The questions' deadlines are near.
    Expiring,
    /// The questions have waited for some time.
    Waiting,
}

/// A question as a message shows it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Question {
    pub(super) request_id: RequestId,
    pub(super) kind: RequestKind,
    /// The names of its tools, each once.
    pub(super) tools: Vec<String>,
    /// The name of the agent that asks.
    pub(super) agent: String,
    /// The rule's own message, written by the operator.
    pub(super) message: Option<String>,
    /// When the question was asked.
    pub(super) created_at: Time,
    /// Its deadline, if it has one.
    pub(super) expires_at: Option<Time>,
    /// The address of the request's page, where the reader has to sign in.
    pub(super) url: String,
    /// The recipient's own link; `None` for a room, and where there are no links.
    pub(super) link: Option<String>,
    /// The summaries of its first calls; empty unless the entry asks for them.
    pub(super) summaries: Vec<String>,
}

impl Reason {
    /// The reason of a message of this type.
    pub(super) fn of(kind: &str) -> Self {
        match kind {
            EXPIRING => Self::Expiring,
            WAITING => Self::Waiting,
            _ => Self::New,
        }
    }
}

/// The most summaries of a question.
const SUMMARIES: usize = 3;

impl Question {
    /// The question of a request, with its page, the recipient's own link, and the summaries of its
    /// calls if the entry asks for them.
    pub(super) fn of(
        request: &RequestRow,
        url: String,
        link: Option<String>,
        summaries: bool,
    ) -> Self {
        let asked = &request.asked;
        let mut tools: Vec<String> = Vec::new();
        for call in asked.own_calls() {
            if !tools.contains(&call.name) {
                tools.push(call.name.clone());
            }
        }
        let first = asked
            .own_calls()
            .take(if summaries { SUMMARIES } else { 0 });
        Self {
            request_id: asked.request_id,
            kind: asked.kind,
            tools,
            agent: request.agent_path.last().cloned().unwrap_or_default(),
            message: asked.terms.message.clone(),
            created_at: request.created_at,
            expires_at: request.expires_at,
            url,
            link,
            summaries: first.map(|call| call.summary.clone()).collect(),
        }
    }
}
