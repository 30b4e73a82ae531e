//! The state of a task ([`Progress`]), read from the journal item by item: the state of each call,
//! the open requests, the model's last answer. `step.rs` decides the next step from this state.

use std::collections::BTreeMap;
use std::time::Duration;

use super::call_state::{CallState, Phase, Start, UNKNOWN};
use super::decision::{Action, Decision, Then, Vote};
use super::grant::{GrantScope, GrantUse};
use super::id::{CallId, GrantId, RequestId, TaskId};
use super::item::{Fact, Item, Outcome, ToolResult, Turn};
use super::quarantine::Quarantine;
use super::rejections::{RejectedCall, RejectedCalls};
use super::request::RequestSpec;
use super::status::TaskStatus;
use super::time::Time;
use super::tool_spec::{Effect, ToolKind};
use super::verdict::{Judgement, Verdict};

/// An open request with the answers so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    /// The request as it was opened.
    pub asked: RequestSpec,
    /// Time of the commit that opened the request.
    pub asked_at: Time,
    /// Approvals so far, by call.
    pub approvals: BTreeMap<CallId, Vec<Vote>>,
    /// Actions of the decided calls, by call.
    pub decided: BTreeMap<CallId, Action>,
    /// The consequence that an answer so far named for a rejection.
    pub then: Option<Then>,
}

/// The last message of the conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Last {
    /// No message yet.
    Nothing,
    /// A user message.
    User,
    /// A turn of the model, with or without calls.
    Model(Turn),
}

/// State of a task after the items read so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The last status; `None` before the first item.
    pub status: Option<TaskStatus>,
    /// All calls without a result and all calls of the last turn, in the model's order.
    pub calls: Vec<CallState>,
    /// The open requests, oldest first.
    pub open: Vec<Open>,
    /// Requests of the last turn whose decision may not have taken effect yet.
    pub responded: Vec<RequestId>,
    /// Set once a decision or a deadline has ended the task (with `CancelRoot`: its tree), until
    /// the task's terminal status is in the journal.
    pub ending: Option<Then>,
    /// The conversation's last message.
    pub last: Last,
    /// Number of model answers over the task's life.
    pub turns: u32,
    /// Number of model answers since the last user message.
    pub turns_since_message: u32,
    /// Running time since the last user message, up to the last pause.
    pub ran: Duration,
    /// Start of the running time that `ran` does not include yet; `None` while the task is not
    /// Running.
    pub running_since: Option<Time>,
    /// The owner's groups, as of the last user message.
    pub groups: Vec<String>,
    /// Quarantined tools: no rule lets them run.
    pub quarantine: Quarantine,
    /// Calls rejected since the last user message.
    pub rejections: RejectedCalls,
    /// Standing decisions for this tree that were given since the last user message, after the
    /// uncertain history.
    pub grants: Vec<GrantId>,
    /// Whether a person provided a credential since the task last ended.
    pub filled_in: bool,
    /// Number of calls refused since the last user message because they repeat a rejected call.
    pub repeats: u32,
    /// `seq` of the last item of the uncertain history; 0 where the history is certain.
    pub uncertain_seq: i64,
    /// Whether the last user message belongs to the uncertain history.
    pub message_uncertain: bool,
    /// Whether this is a sub-agent's task: its messages come from its parent, not from the user.
    pub of_sub_agent: bool,
    /// Number of open requests of the tree's other tasks.
    pub elsewhere: usize,
    /// Number of calls handed to sub-agents since the last user message.
    pub starts_since_message: u32,
    /// Number of calls handed to sub-agents over the task's life.
    pub starts: u32,
    /// Why a decision or a deadline has canceled the task, or is about to. The text is a clause
    /// without a full stop.
    pub canceled_for: Option<String>,
}

impl Progress {
    /// Returns the state before the first item.
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
            grants: Vec::new(),
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

    /// Builds the state after a whole journal without uncertain history.
    #[must_use]
    pub fn of(items: &[Item]) -> Self {
        Self::replay(items, None)
    }

    /// Returns the call with this id, if it has no result or is of the last turn.
    #[must_use]
    pub fn call(&self, id: CallId) -> Option<&CallState> {
        self.calls
            .iter()
            .find(|state| state.call.tool_call_id == id)
    }

    /// Returns the number of attempts at the call with this id; 0 for an unknown call.
    #[must_use]
    pub fn attempts(&self, id: CallId) -> u32 {
        self.call(id).map_or(0, |state| state.attempts)
    }

    /// Returns the request with this id, if it is open.
    #[must_use]
    pub fn open(&self, id: RequestId) -> Option<&Open> {
        self.open.iter().find(|open| open.asked.request_id == id)
    }

    /// Returns the calls without a result.
    pub fn unfinished(&self) -> impl Iterator<Item = &CallState> {
        self.calls
            .iter()
            .filter(|state| !matches!(state.phase, Phase::Done(_)))
    }

    /// Applies the journal's next item.
    pub fn apply(&mut self, item: &Item) {
        self.quarantine.apply(&item.fact, &self.calls);
        match &item.fact {
            Fact::TaskStatus { status, .. } => self.status_changed(*status, item.at),
            Fact::UserMessage { groups, .. } => self.user_spoke(groups, item),
            Fact::AssistantMessage(turn) => self.answered(turn, item.seq <= self.uncertain_seq),
            Fact::Judged {
                tool_call_id,
                judgement,
                effect,
                performer,
            } => {
                self.judged(*tool_call_id, judgement, *effect, *performer);
            }
            Fact::InterventionRequested(asked) => self.asked(asked, item.at),
            Fact::Decision {
                request_id,
                decision,
            } => {
                self.decided(*request_id, decision);
                let known = item.seq > self.uncertain_seq;
                self.vouched(decision, known);
                self.granted(decision, known);
            }
            Fact::RequestClosed {
                request_id,
                status,
                reason,
            } => self.closed(*request_id, *status, *reason),
            Fact::ToolStarted {
                tool_call_id,
                attempt,
                timeout_ms,
                replica,
                grant,
                ..
            } => {
                let start = Start {
                    at: item.at,
                    attempt: *attempt,
                    timeout: Duration::from_millis(*timeout_ms),
                    replica: replica.clone(),
                };
                self.started(*tool_call_id, start, *grant);
            }
            Fact::ToolResult(result) => {
                if let Some(state) = self.call_mut(result.tool_call_id) {
                    state.phase = Phase::Done(result.outcome);
                }
            }
            Fact::SubAgentStarted {
                tool_call_id,
                child_task_id,
                ..
            } => self.delegated(*tool_call_id, *child_task_id),
            Fact::LateResult(result) => self.came_late(result),
        }
    }

    /// Applies a late result. If the asker of a gate call has the permit and reports that the
    /// outcome is unknown, the report ends the attempt.
    fn came_late(&mut self, result: &ToolResult) {
        if let Some(state) = self.call_mut(result.tool_call_id)
            && matches!(&state.phase, Phase::Started(start) if start.is_elsewhere())
        {
            state.given_back = result.outcome == Outcome::Unknown;
        }
    }

    /// Keeps the standing decisions for the tree that `decision` gives, if `decision` came after
    /// the uncertain history (`known`).
    fn granted(&mut self, decision: &Decision, known: bool) {
        let given = decision.grants().map(|(_, grant)| grant);
        let given = given.filter(|grant| known && grant.scope == GrantScope::Task);
        self.grants.extend(given.map(|grant| grant.grant_id));
    }

    fn user_spoke(&mut self, groups: &[String], item: &Item) {
        self.last = Last::User;
        self.groups = groups.to_vec();
        self.calls.iter_mut().for_each(CallState::passed_over);
        if !self.of_sub_agent {
            self.rejections.forget();
            self.grants.clear();
            self.message_uncertain = item.seq <= self.uncertain_seq;
            self.counts_anew(item.at);
        }
    }

    fn started(&mut self, call: CallId, start: Start, grant: Option<GrantUse>) {
        if let Some(state) = self.call_mut(call) {
            state.used_grant = grant.map(|used| used.grant_id).or(state.used_grant);
            state.attempts = start.attempt;
            state.start = Some(start.clone());
            state.given_back = false;
            state.phase = Phase::Started(start);
        }
    }

    fn delegated(&mut self, call: CallId, child: TaskId) {
        self.starts_since_message += 1;
        self.starts += 1;
        if let Some(state) = self.call_mut(call) {
            state.phase = Phase::Delegated(child);
        }
    }

    /// Restarts the counts of the limits: the user has sent the tree a message.
    pub(super) fn counts_anew(&mut self, at: Time) {
        self.turns_since_message = 0;
        self.starts_since_message = 0;
        self.repeats = 0;
        self.ran = Duration::ZERO;
        self.running_since = self.running_since.map(|_| at);
    }

    /// Sets the times of `facts`, the last facts applied, to `at`, the time of their commit. Until
    /// then they have preliminary times.
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
        self.calls
            .iter_mut()
            .find(|state| state.call.tool_call_id == id)
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
        self.calls
            .retain(|state| !matches!(state.phase, Phase::Done(_)));
        self.responded.clear();
        self.calls
            .extend(turn.tool_calls.iter().map(|call| CallState {
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
                given_back: false,
                elicited: None,
                of_uncertain_turn: uncertain,
                vouched: false,
                used_grant: None,
            }));
        self.turns += 1;
        self.turns_since_message += 1;
        self.last = Last::Model(turn.clone());
    }

    fn judged(&mut self, id: CallId, judgement: &Judgement, effect: Effect, performer: ToolKind) {
        let repeated = judgement
            .repeats
            .map(|call| no_again(self.rejections.of(call)));
        self.repeats += u32::from(repeated.is_some());
        let Some(state) = self.call_mut(id) else {
            return;
        };
        let reason = || {
            judgement
                .reason
                .clone()
                .unwrap_or_else(|| "No reason is given.".to_owned())
        };
        let started = matches!(state.phase, Phase::Started(_));
        state.phase = match judgement.verdict {
            // The call may have run already: a later refusal prevents a repetition and undoes
            // nothing.
            Verdict::Deny | Verdict::Invalid if started => {
                Phase::Settled(Outcome::Unknown, UNKNOWN.to_owned())
            }
            // The new verdict does not refuse the call, but the call has started and must not
            // happen twice: it stays started, and a person is asked about its outcome.
            Verdict::Allow | Verdict::Hold | Verdict::Human if started && !effect.repeatable() => {
                state.phase.clone()
            }
            Verdict::Allow => Phase::Allowed,
            Verdict::Hold => Phase::Held(judgement.terms.clone().unwrap_or_default()),
            Verdict::Human => Phase::Human(judgement.terms.clone().unwrap_or_default()),
            Verdict::Deny if let Some(text) = repeated => Phase::Settled(Outcome::Rejected, text),
            Verdict::Deny => Phase::Settled(
                Outcome::Denied,
                format!("A rule refused this call: {}", reason()),
            ),
            Verdict::Invalid => Phase::Settled(
                Outcome::Invalid,
                format!("This call was not run: {}", reason()),
            ),
        };
        state.effect = effect;
        state.performer = performer;
        state.approval = None;
        state.vouched = false;
        state.judgement = Some(judgement.clone());
    }
}

/// Returns the result that the model sees for a call that repeats a rejected call. `no` is the
/// rejection.
fn no_again(no: Option<&RejectedCall>) -> String {
    let reason = no
        .and_then(|no| no.reason.as_ref())
        .map_or(String::new(), |reason| format!(" Reason: {reason}"));
    format!(
        "A human has rejected this same call; it was not run, and asking again does not help.{reason}"
    )
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}
