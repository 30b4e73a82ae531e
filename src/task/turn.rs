//! The journal, read item by item: where each call stands, which questions are open, what the model said last.
//! Nothing here decides what happens next; that is `step.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::call_state::{CallState, Phase, Start, UNKNOWN};
use super::decision::{Action, Then, Vote};
use super::id::{CallId, RequestId};
use super::item::{Fact, Item, Outcome, Turn};
use super::quarantine::Quarantine;
use super::rejections::{RejectedCall, RejectedCalls};
use super::request::RequestSpec;
use super::status::TaskStatus;
use super::time::Time;
use super::tool_spec::{Effect, ToolKind};
use super::verdict::{Judgement, Verdict};

/// An open question.
#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    /// As it was asked.
    pub asked: RequestSpec,
    /// When.
    pub asked_at: Time,
    /// Who approved which call so far.
    pub approvals: BTreeMap<CallId, Vec<Vote>>,
    /// How each call was decided that is.
    pub decided: BTreeMap<CallId, Action>,
    /// What was said to follow a rejection of one of its calls.
    pub then: Option<Then>,
}

/// What the last message of the conversation is.
#[derive(Clone, Debug, PartialEq)]
pub enum Last {
    /// There is none.
    Nothing,
    /// The user's.
    User,
    /// The model's, with or without calls.
    Model(Turn),
}

/// A journal as far as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The last status; `None` before the first item.
    pub status: Option<TaskStatus>,
    /// Every call that has no result, and all of the last turn, in the model's order.
    pub calls: Vec<CallState>,
    /// The open questions, in the order they were asked.
    pub open: Vec<Open>,
    /// Requests of the last turn whose decision may not have taken effect yet.
    pub responded: Vec<RequestId>,
    /// A human ended the task (or, with `CancelRoot`, its tree), and the journal does not say so yet.
    pub ending: Option<Then>,
    /// The last message.
    pub last: Last,
    /// Answers of the model, for life.
    pub turns: u32,
    /// Answers of the model since the last user message.
    pub turns_since_message: u32,
    /// Time spent running since the last user message, up to the last pause.
    pub ran: Duration,
    /// Since when it runs.
    pub running_since: Option<Time>,
    /// The owner's groups as of his last message.
    pub groups: Vec<String>,
    /// Tools that no rule lets run for now.
    pub quarantine: Quarantine,
    /// Calls that a human said no to since the last user message.
    pub rejections: RejectedCalls,
    /// A credential was filled in since the task last ended.
    pub filled_in: bool,
    /// Calls since then that were refused for being the same as one of those.
    pub repeats: u32,
    /// Items up to here are in doubt; 0 is none.
    pub uncertain_seq: i64,
    /// The last user message is.
    pub message_uncertain: bool,
    /// It is a sub-agent's: what its parent tells it is no word of the user.
    pub of_sub_agent: bool,
    /// Questions that other tasks of its tree have open.
    pub elsewhere: usize,
    /// Sub-agents that it started since the last user message.
    pub starts_since_message: u32,
    /// Those that it ever started.
    pub starts: u32,
    /// Why it is being canceled, or was, where a human's answer or a deadline did it: half a sentence.
    pub canceled_for: Option<String>,
}

impl Progress {
    /// Before the first item.
    #[must_use]
    pub fn new() -> Self {
        Self {
            status: None,
            calls: Vec::new(),
            open: Vec::new(),
            responded: Vec::new(),
            ending: None,
            last: Last::Nothing,
            turns: 0,
            turns_since_message: 0,
            ran: Duration::ZERO,
            running_since: None,
            groups: Vec::new(),
            quarantine: Quarantine::default(),
            rejections: RejectedCalls::default(),
            repeats: 0,
            filled_in: false,
            uncertain_seq: 0,
            message_uncertain: false,
            of_sub_agent: false,
            elsewhere: 0,
            starts_since_message: 0,
            starts: 0,
            canceled_for: None,
        }
    }

    /// A whole journal.
    #[must_use]
    pub fn of(items: &[Item]) -> Self {
        let mut progress = Self::new();
        for item in items {
            progress.apply(item);
        }
        progress
    }

    /// The call of that id, if it has no result or is of the last turn.
    #[must_use]
    pub fn call(&self, id: CallId) -> Option<&CallState> {
        self.calls.iter().find(|state| state.call.tool_call_id == id)
    }

    /// The open question of that id.
    #[must_use]
    pub fn open(&self, id: RequestId) -> Option<&Open> {
        self.open.iter().find(|open| open.asked.request_id == id)
    }

    /// The calls that have no result.
    pub fn unfinished(&self) -> impl Iterator<Item = &CallState> {
        self.calls.iter().filter(|state| !matches!(state.phase, Phase::Done(_)))
    }

    /// Reads the next item.
    pub fn apply(&mut self, item: &Item) {
        self.quarantine.apply(&item.fact, &self.calls);
        match &item.fact {
            Fact::TaskStatus { status, .. } => self.status_changed(*status, item.at),
            Fact::UserMessage { groups, .. } => {
                self.last = Last::User;
                self.groups.clone_from(groups);
                self.calls.iter_mut().for_each(CallState::passed_over);
                if !self.of_sub_agent {
                    self.rejections.forget();
                    self.message_uncertain = item.seq <= self.uncertain_seq;
                    self.counts_anew(item.at);
                }
            }
            Fact::AssistantMessage(turn) => self.answered(turn, item.seq <= self.uncertain_seq),
            Fact::Judged { tool_call_id, judgement, effect, performer } => {
                self.judged(*tool_call_id, judgement, *effect, *performer);
            }
            Fact::InterventionRequested(asked) => self.asked(asked, item.at),
            Fact::Decision { request_id, decision } => {
                self.decided(*request_id, decision);
                self.vouched(decision, item.seq > self.uncertain_seq);
            }
            Fact::RequestClosed { request_id, status, reason } => self.closed(*request_id, *status, *reason),
            Fact::ToolStarted { tool_call_id, attempt, timeout_ms, replica, .. } => {
                let start = Start {
                    at: item.at,
                    attempt: *attempt,
                    timeout: Duration::from_millis(*timeout_ms),
                    replica: replica.clone(),
                };
                if let Some(state) = self.call_mut(*tool_call_id) {
                    state.attempts = *attempt;
                    state.start = Some(start.clone());
                    state.phase = Phase::Started(start);
                }
            }
            Fact::ToolResult(result) => {
                if let Some(state) = self.call_mut(result.tool_call_id) {
                    state.phase = Phase::Done(result.outcome);
                }
            }
            Fact::SubAgentStarted { tool_call_id, child_task_id, .. } => {
                self.starts_since_message += 1;
                self.starts += 1;
                if let Some(state) = self.call_mut(*tool_call_id) {
                    state.phase = Phase::Delegated(*child_task_id);
                }
            }
            Fact::LateResult(_) => {}
        }
    }

    /// The user has said something new to the tree: limits count from here.
    pub(super) fn counts_anew(&mut self, at: Time) {
        self.turns_since_message = 0;
        self.starts_since_message = 0;
        self.repeats = 0;
        self.ran = Duration::ZERO;
        self.running_since = self.running_since.map(|_| at);
    }

    /// These facts, the last ones applied, are committed: their moment is the database's, not the one they were made at.
    pub fn committed<'f>(&mut self, facts: impl Iterator<Item = &'f Fact>, at: Time) {
        for fact in facts {
            if let Fact::TaskStatus { .. } | Fact::UserMessage { .. } = fact {
                self.running_since = self.running_since.map(|_| at);
            }
            if let Fact::ToolStarted { tool_call_id, .. } = fact
                && let Some(state) = self.call_mut(*tool_call_id)
                && let Some(start) = &mut state.start
            {
                start.at = at;
                if let Phase::Started(known) = &mut state.phase {
                    known.at = at;
                }
            }
        }
    }

    pub(super) fn call_mut(&mut self, id: CallId) -> Option<&mut CallState> {
        self.calls.iter_mut().find(|state| state.call.tool_call_id == id)
    }

    fn status_changed(&mut self, status: TaskStatus, at: Time) {
        if let Some(since) = self.running_since.take() {
            self.ran += at.since(since);
        }
        if status == TaskStatus::Running {
            self.running_since = Some(at);
            self.canceled_for = None;
        }
        if status.is_terminal() {
            self.filled_in = false;
            self.ending = None;
        }
        self.status = Some(status);
    }

    fn answered(&mut self, turn: &Turn, uncertain: bool) {
        self.calls.retain(|state| !matches!(state.phase, Phase::Done(_)));
        self.responded.clear();
        self.calls.extend(turn.tool_calls.iter().map(|call| CallState {
            call: call.clone(),
            edited: None,
            turn: turn.turn,
            phase: Phase::New,
            judgement: None,
            effect: Effect::Once,
            performer: ToolKind::default(),
            approval: None,
            attempts: 0,
            start: None,
            of_uncertain_turn: uncertain,
            vouched: false,
        }));
        self.turns += 1;
        self.turns_since_message += 1;
        self.last = Last::Model(turn.clone());
    }

    fn judged(&mut self, id: CallId, judgement: &Judgement, effect: Effect, performer: ToolKind) {
        let repeated = judgement.repeats.map(|call| no_again(self.rejections.of(call)));
        self.repeats += u32::from(repeated.is_some());
        let Some(state) = self.call_mut(id) else { return };
        let reason = || judgement.reason.clone().unwrap_or_else(|| "No reason is given.".to_owned());
        let started = matches!(state.phase, Phase::Started(_));
        state.phase = match judgement.verdict {
            // It may have happened already: a later "no" keeps it from being repeated, and does not undo it.
            Verdict::Deny | Verdict::Invalid if started => Phase::Settled(Outcome::Unknown, UNKNOWN.to_owned()),
            // Nor may it be repeated any more: it stays as it is, and a human is asked what became of it.
            Verdict::Allow | Verdict::Hold | Verdict::Human if started && !effect.repeatable() => state.phase.clone(),
            Verdict::Allow => Phase::Allowed,
            Verdict::Hold => Phase::Held(judgement.terms.clone().unwrap_or_default()),
            Verdict::Human => Phase::Human(judgement.terms.clone().unwrap_or_default()),
            Verdict::Deny if let Some(text) = repeated => Phase::Settled(Outcome::Rejected, text),
            Verdict::Deny => Phase::Settled(Outcome::Denied, format!("A rule refused this call: {}", reason())),
            Verdict::Invalid => Phase::Settled(Outcome::Invalid, format!("This call was not run: {}", reason())),
        };
        state.effect = effect;
        state.performer = performer;
        state.approval = None;
        state.vouched = false;
        state.judgement = Some(judgement.clone());
    }
}

/// What the model is told of a call that a human has said no to before.
fn no_again(no: Option<&RejectedCall>) -> String {
    let reason = no.and_then(|no| no.reason.as_ref()).map_or(String::new(), |reason| format!(" Reason: {reason}"));
    format!("A human has rejected this same call; it was not run, and asking again does not help.{reason}")
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}
