//! Makes digests. A digest has the questions of one message to a person or a room. Each channel
//! writes its message from the digest.
//!
//! Invariant: a digest contains no text that an agent wrote, with one exception: the operator's
//! templates may put arguments of a call into the summary of the call.

use crate::store::RequestRow;
use crate::task::event_name::{REQUEST_EXPIRING, REQUEST_WAITING};
use crate::task::id::RequestId;
use crate::task::request::RequestKind;
use crate::task::time::Time;

pub(super) const MAX_LISTED_QUESTIONS: usize = 20;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Digest {
    pub(super) reason: Reason,
    /// The listed questions, the oldest first; [`MAX_LISTED_QUESTIONS`] at most.
    pub(super) questions: Vec<DigestQuestion>,
    /// The number of questions that are not listed.
    pub(super) unlisted: u64,
    /// The URL of the inbox; `None` if the recipient cannot sign in.
    pub(super) inbox: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The message is about new questions.
    New,
    /// The message reminds of questions whose deadlines are near.
    Expiring,
    /// The message reminds of questions that have been open for the entry's `after`.
    Waiting,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct DigestQuestion {
    pub(super) request_id: RequestId,
    pub(super) kind: RequestKind,
    /// The names of the question's tools, each once. A name that the configuration does not have is
    /// left out.
    pub(super) tools: Vec<String>,
    /// Whether the question is also about a tool whose name the configuration does not have.
    pub(super) has_unlisted_tool: bool,
    pub(super) agent: String,
    /// The operator's message of the rule that held the call; `None` if the rule has no message, or
    /// if a tool's server asks the question.
    pub(super) message: Option<String>,
    pub(super) created_at: Time,
    /// The deadline of the request; `None` if the request has no deadline.
    pub(super) expires_at: Option<Time>,
    /// The URL of the request's page, which asks the reader to sign in.
    pub(super) url: String,
    /// The person's own sealed link. `None` in a message to a room, or if links are not configured.
    pub(super) link: Option<String>,
    /// The summaries of the question's first calls; empty if the entry does not ask for summaries.
    pub(super) summaries: Vec<String>,
}

impl Digest {
    /// Returns the number of all questions, listed or not.
    pub(super) fn question_count(&self) -> u64 {
        let listed = u64::try_from(self.questions.len()).unwrap_or(u64::MAX);
        self.unlisted.saturating_add(listed)
    }

    /// Removes the summaries of all questions. Returns whether there were any.
    pub(super) fn remove_summaries(&mut self) -> bool {
        let questions = self.questions.iter_mut();
        let removed = questions.map(|question| question.summaries.drain(..).count());
        removed.sum::<usize>() > 0
    }
}

impl Reason {
    pub(super) fn from_message_type(kind: &str) -> Self {
        match kind {
            REQUEST_EXPIRING => Self::Expiring,
            REQUEST_WAITING => Self::Waiting,
            _ => Self::New,
        }
    }
}

const MAX_SUMMARIES: usize = 3;

impl DigestQuestion {
    /// Makes the question of a request. `url` is the address of the request's page. `link` is the
    /// recipient's own link. `with_summaries` says whether the entry shows the summaries of calls.
    pub(super) fn from_request(
        request: &RequestRow,
        url: String,
        link: Option<String>,
        with_summaries: bool,
    ) -> Self {
        let spec = &request.spec;
        let (mut tools, mut has_unlisted_tool) = (Vec::new(), false);
        for call in spec.own_calls() {
            match call.operator_name().map(str::to_owned) {
                Some(name) if tools.contains(&name) => {}
                Some(name) => tools.push(name),
                None => has_unlisted_tool = true,
            }
        }
        let first = spec
            .own_calls()
            .take(if with_summaries { MAX_SUMMARIES } else { 0 });
        Self {
            request_id: spec.request_id,
            kind: spec.kind,
            tools,
            has_unlisted_tool,
            agent: request.agent_path.last().cloned().unwrap_or_default(),
            message: spec.operator_message().map(str::to_owned),
            created_at: request.created_at,
            expires_at: request.expires_at,
            url,
            link,
            summaries: first
                .filter_map(|call| call.operator_summary().map(str::to_owned))
                .collect(),
        }
    }

    /// Returns the names of the question's tools. `unlisted` comes last, once, for all tools whose
    /// names the configuration does not have.
    pub(super) fn tool_names<'q>(&'q self, unlisted: &'q str) -> impl Iterator<Item = &'q str> {
        let tools = self.tools.iter().map(String::as_str);
        tools.chain(self.has_unlisted_tool.then_some(unlisted))
    }
}
