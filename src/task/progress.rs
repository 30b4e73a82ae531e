//! The state of a task ([`Progress`]), built from the journal item by item. The state includes the
//! state of each call, the open requests and the model's last answer. `step.rs` decides the next
//! step from this state.

use std::collections::BTreeMap;
use std::time::Duration;

use super::call_state::{AttemptStart, CallState, OUTCOME_UNKNOWN_TEXT, Phase};
use super::decision::{Action, Consequence, Decision, Vote};
use super::grant::{GrantScope, GrantUse};
use super::id::{CallId, RequestId, TaskId};
use super::item::{Fact, Item, Outcome, ToolResult, Turn};
use super::rejections::{REPEATED_TEXT, RejectedCall};
use super::request::RequestSpec;
use super::status::TaskStatus;
use super::text::as_sentence;
use super::time::Time;
use super::tool_spec::{Effect, ToolKind};
use super::tree::SharedProgress;
use super::verdict::{Judgement, Verdict};

/// An open request with the answers so far.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestProgress {
    /// The request as it was opened.
    pub spec: RequestSpec,
    /// Time of the commit that opened the request.
    pub opened_at: Time,
    /// Approvals so far, by call.
    pub approvals: BTreeMap<CallId, Vec<Vote>>,
    /// The decided calls, each with the action that decided it.
    pub decided: BTreeMap<CallId, Action>,
    /// The consequence of a rejection for the task: the `then` of the last answer that has one.
    /// `None` if no answer has a `then`.
    pub then: Option<Consequence>,
}

/// The last message of the conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum LastMessage {
    /// No message yet.
    #[default]
    Nothing,
    /// A user message.
    User,
    /// A turn of the model, with or without calls.
    Model(Turn),
}

/// State of a task after the items read so far. The default is the state before the first item.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// The last status; `None` before the first item.
    pub status: Option<TaskStatus>,
    /// All calls without a result and all calls of the last turn, in the model's order.
    pub calls: Vec<CallState>,
    /// The open requests, oldest first.
    pub open: Vec<RequestProgress>,
    /// The requests of the last turn that a decision closed. Once no request blocks the turn, their
    /// decisions take effect, and the requests become `resumed`.
    pub responded: Vec<RequestId>,
    /// `Cancel` or `CancelRoot` if a decision or a deadline demands that the task ends. With
    /// `CancelRoot`, the other tasks of the tree end, too. `None` again once the task has ended.
    pub ending: Option<Consequence>,
    /// The conversation's last message.
    pub last_message: LastMessage,
    /// Number of model answers over the task's life.
    pub turns: u32,
    /// Number of model answers since the last user message.
    pub turns_since_message: u32,
    /// Running time since the last user message, up to the last pause.
    pub running_time: Duration,
    /// Start of the current run, which `running_time` does not include yet. `None` while the task
    /// is not `Running`, and while the root of its tree is `Paused`.
    pub running_since: Option<Time>,
    /// The owner's groups, as of the last user message.
    pub groups: Vec<String>,
    /// The state that all tasks of the tree share.
    pub shared: SharedProgress,
    /// Whether a person provided a credential since the task last ended.
    pub has_credential: bool,
    /// Number of calls that were refused because they repeat a rejected call, counted from the last
    /// user message.
    pub refused_repeats: u32,
    /// `seq` of the last item before the last restore of a backup or promotion of a standby; 0 if
    /// there is no such item. The restore or the promotion may have lost the items that followed
    /// this item. The uncertain history is this item and all items before it.
    pub uncertain_seq: i64,
    /// Whether this is a sub-agent's task, whose messages come from its parent and not from the
    /// user.
    pub is_sub_agent: bool,
    /// Number of open requests of the tree's other tasks.
    pub open_elsewhere: usize,
    /// Number of calls handed to sub-agents since the last user message.
    pub sub_agent_starts_since_message: u32,
    /// Number of calls handed to sub-agents over the task's life.
    pub sub_agent_starts: u32,
    /// The reason why a decision or a deadline cancels the task, as a clause without a full stop.
    /// `None` if neither cancels the task.
    pub cancel_reason: Option<String>,
}

impl Progress {
    /// Builds the state after all `items`. Every item counts as certain: `uncertain_seq` is 0.
    #[must_use]
    pub fn from_items(items: &[Item]) -> Self {
        Self::replay(items, None)
    }

    /// Returns the call with this id. `None` if the id is unknown, or if the call belongs to an
    /// earlier turn and has a result.
    #[must_use]
    pub fn call(&self, id: CallId) -> Option<&CallState> {
        self.calls
            .iter()
            .find(|state| state.call.tool_call_id == id)
    }

    /// Returns the request with this id, if it is open.
    #[must_use]
    pub fn open_request(&self, id: RequestId) -> Option<&RequestProgress> {
        self.open.iter().find(|open| open.spec.request_id == id)
    }

    /// Returns the calls without a result.
    pub fn unfinished(&self) -> impl Iterator<Item = &CallState> {
        self.calls
            .iter()
            .filter(|state| !matches!(state.phase, Phase::Done(_)))
    }

    /// Applies the journal's next item.
    pub fn apply(&mut self, item: &Item) {
        self.shared.quarantine.apply(item, &self.calls);
        match &item.fact {
            Fact::TaskStatus { status, .. } => self.apply_status(*status, item.at),
            Fact::UserMessage { groups, .. } => self.apply_user_message(groups, item),
            Fact::AssistantMessage(turn) => self.apply_turn(turn, item.seq <= self.uncertain_seq),
            Fact::Judged {
                tool_call_id,
                judgement,
                effect,
                performer,
            } => {
                self.apply_judgement(*tool_call_id, judgement, *effect, *performer);
            }
            Fact::InterventionRequested(spec) => self.apply_request(spec, item.at),
            Fact::Decision {
                request_id,
                decision,
            } => {
                self.apply_decision(*request_id, decision);
                let is_certain = item.seq > self.uncertain_seq;
                self.mark_certain_approvals(decision, is_certain);
                self.apply_grants(decision, is_certain);
            }
            Fact::RequestClosed {
                request_id,
                status,
                reason,
            } => self.apply_request_closed(*request_id, *status, *reason),
            Fact::ToolStarted {
                tool_call_id,
                attempt,
                timeout_ms,
                replica,
                grant,
                ..
            } => {
                let start = AttemptStart {
                    at: item.at,
                    attempt: *attempt,
                    timeout: Duration::from_millis(*timeout_ms),
                    replica: replica.clone(),
                };
                self.apply_start(*tool_call_id, start, *grant);
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
            } => self.apply_sub_agent_start(*tool_call_id, *child_task_id),
            Fact::LateResult(result) => self.apply_late_result(result),
        }
    }

    /// Applies a result that does not settle its call (see [`Fact::LateResult`]). If an asker runs
    /// the call and reports an unknown outcome, the attempt is over and no longer counts as in
    /// flight.
    fn apply_late_result(&mut self, result: &ToolResult) {
        if let Some(state) = self.call_mut(result.tool_call_id)
            && matches!(&state.phase, Phase::Started(start) if start.is_run_by_asker())
        {
            state.is_attempt_over = result.outcome == Outcome::Unknown;
        }
    }

    /// Keeps the standing decisions that `decision` gives for the tree, if `is_certain`. A decision
    /// in the uncertain history (see `uncertain_seq`) is not certain.
    fn apply_grants(&mut self, decision: &Decision, is_certain: bool) {
        let grants = decision.grants().into_iter();
        let grants = grants.filter(|grant| is_certain && grant.scope == GrantScope::Task);
        let ids = grants.map(|grant| grant.grant_id);
        self.shared.grants.extend(ids);
    }

    fn apply_user_message(&mut self, groups: &[String], item: &Item) {
        self.last_message = LastMessage::User;
        self.groups = groups.to_vec();
        self.calls
            .iter_mut()
            .for_each(CallState::apply_user_message);
        if !self.is_sub_agent {
            self.shared.rejections.clear();
            self.shared.grants.clear();
            self.shared.message_uncertain = item.seq <= self.uncertain_seq;
            self.reset_limit_counts(item.at);
        }
    }

    fn apply_start(&mut self, call: CallId, start: AttemptStart, grant: Option<GrantUse>) {
        if let Some(state) = self.call_mut(call) {
            state.used_grant = grant.map(|used| used.grant_id).or(state.used_grant);
            state.attempts = start.attempt;
            state.start = Some(start.clone());
            state.is_attempt_over = false;
            state.phase = Phase::Started(start);
        }
    }

    fn apply_sub_agent_start(&mut self, call: CallId, child: TaskId) {
        self.sub_agent_starts_since_message += 1;
        self.sub_agent_starts += 1;
        if let Some(state) = self.call_mut(call) {
            state.phase = Phase::Delegated(child);
        }
    }

    /// Resets the counts that are compared with the limits. `at` is the time of the user's message
    /// from which these counts begin.
    pub(super) fn reset_limit_counts(&mut self, at: Time) {
        self.turns_since_message = 0;
        self.sub_agent_starts_since_message = 0;
        self.refused_repeats = 0;
        self.running_time = Duration::ZERO;
        self.running_since = self.running_since.map(|_| at);
    }

    /// Corrects the times in the state after the commit of `facts`. The facts were applied before
    /// the commit, with an estimated time. `at`, the time of the commit, replaces the estimate.
    /// `facts` must be the last facts that were applied.
    pub fn set_commit_time<'f>(&mut self, facts: impl Iterator<Item = &'f Fact>, at: Time) {
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

    /// Adds the current run up to the time `at` to `running_time`, and ends the run.
    pub(super) fn stop_clock(&mut self, at: Time) {
        if let Some(since) = self.running_since.take() {
            self.running_time += at.since(since);
        }
    }

    fn apply_status(&mut self, status: TaskStatus, at: Time) {
        self.stop_clock(at);
        if status == TaskStatus::Running {
            self.running_since = Some(at);
            self.cancel_reason = None;
        }
        if status.is_terminal() {
            self.has_credential = false;
            self.ending = None;
        }
        self.status = Some(status);
    }

    fn apply_turn(&mut self, turn: &Turn, uncertain: bool) {
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
                is_attempt_over: false,
                asking_attempt: 0,
                elicitation: None,
                asking_definition: None,
                in_uncertain_history: uncertain,
                is_approval_certain: false,
                used_grant: None,
            }));
        self.turns += 1;
        self.turns_since_message += 1;
        self.last_message = LastMessage::Model(turn.clone());
    }

    fn apply_judgement(
        &mut self,
        id: CallId,
        judgement: &Judgement,
        effect: Effect,
        performer: ToolKind,
    ) {
        let repeated = judgement
            .repeats
            .map(|call| repeated_rejection_text(self.shared.rejections.of_call(call), judgement));
        self.refused_repeats += u32::from(repeated.is_some());
        let Some(state) = self.call_mut(id) else {
            return;
        };
        let reason = || {
            judgement
                .reason
                .clone()
                .unwrap_or_else(|| "No reason is given.".to_owned())
        };
        let unanswered = state
            .start
            .clone()
            .filter(|_| state.unanswered_attempts() > 0);
        state.phase = match (judgement.verdict, unanswered) {
            // An attempt without an answer may have taken effect. The refusal prevents a further
            // attempt, so the outcome of the call stays unknown.
            (Verdict::Deny | Verdict::Invalid, Some(_)) => {
                Phase::Settled(Outcome::Unknown, OUTCOME_UNKNOWN_TEXT.to_owned())
            }
            // An attempt without an answer may have taken effect, and the call must not take effect
            // twice. The call stays started, so that a person is asked about its outcome. A retry
            // that a person permitted before this judgement no longer counts.
            (Verdict::Allow | Verdict::Hold | Verdict::Human, Some(start))
                if !effect.is_repeatable() && start.attempt > state.asking_attempt =>
            {
                Phase::Started(start)
            }
            (Verdict::Allow, _) => Phase::Allowed,
            (Verdict::Hold, _) => Phase::Held(judgement.terms.clone().unwrap_or_default()),
            (Verdict::Human, _) => Phase::Human(judgement.terms.clone().unwrap_or_default()),
            (Verdict::Deny, _) if let Some(text) = repeated => {
                Phase::Settled(Outcome::Rejected, text)
            }
            (Verdict::Deny, _) => Phase::Settled(
                Outcome::Denied,
                format!("A rule refused this call: {}", reason()),
            ),
            (Verdict::Invalid, _) => Phase::Settled(
                Outcome::Invalid,
                format!("This call was not run: {}", reason()),
            ),
        };
        state.effect = effect;
        state.performer = performer;
        state.approval = None;
        state.is_approval_certain = false;
        state.judgement = Some(judgement.clone());
    }
}

/// Returns the result text of a call that repeats a rejected call. The text has the reason of
/// `rejection`. At a gate, the rejected call is in another task, so `rejection` is `None`, and the
/// text has the reason of `judgement`.
fn repeated_rejection_text(rejection: Option<&RejectedCall>, judgement: &Judgement) -> String {
    let Some(rejection) = rejection else {
        let rejected = as_sentence(judgement.reason.as_deref().unwrap_or(REPEATED_TEXT));
        return format!("{rejected} It was not run, and asking again does not help.");
    };
    let reason = rejection.reason.as_ref();
    let reason = reason.map_or(String::new(), |reason| format!(" Reason: {reason}"));
    format!("{REPEATED_TEXT}; it was not run, and asking again does not help.{reason}")
}
