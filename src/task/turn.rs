//! The journal, read item by item: where each call stands, which questions are open, what the model said last.
//! Nothing here decides what happens next; that is `step.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::decision::{Action, Decision, Then};
use super::id::{CallId, RequestId};
use super::item::{CloseReason, Fact, Item, Outcome, Turn};
use super::request::{Asked, RequestKind};
use super::standing::{Approval, Phase, Standing, Start, UNKNOWN};
use super::status::{RequestStatus, TaskStatus};
use super::suspects::Suspects;
use super::time::Time;
use super::tool_spec::Effect;
use super::verdict::{Judgement, OnExpiry, Verdict};

/// An open question.
#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    /// As it was asked.
    pub asked: Asked,
    /// Who approved which call so far.
    pub approvals: BTreeMap<CallId, Vec<String>>,
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
    pub calls: Vec<Standing>,
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
    pub suspects: Suspects,
    /// Items up to here are in doubt; 0 is none.
    pub doubted_seq: i64,
    /// The last user message is.
    pub message_doubted: bool,
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
            suspects: Suspects::default(),
            doubted_seq: 0,
            message_doubted: false,
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
    pub fn call(&self, id: CallId) -> Option<&Standing> {
        self.calls.iter().find(|standing| standing.call.tool_call_id == id)
    }

    /// The open question of that id.
    #[must_use]
    pub fn open(&self, id: RequestId) -> Option<&Open> {
        self.open.iter().find(|open| open.asked.request_id == id)
    }

    /// The calls that have no result.
    pub fn unfinished(&self) -> impl Iterator<Item = &Standing> {
        self.calls.iter().filter(|standing| !matches!(standing.phase, Phase::Done(_)))
    }

    /// Reads the next item.
    pub fn apply(&mut self, item: &Item) {
        self.suspects.apply(&item.fact, &self.calls);
        match &item.fact {
            Fact::TaskStatus { status, .. } => self.status_changed(*status, item.at),
            Fact::UserMessage { groups, .. } => {
                self.last = Last::User;
                self.turns_since_message = 0;
                self.ran = Duration::ZERO;
                self.running_since = self.running_since.map(|_| item.at);
                self.groups.clone_from(groups);
                self.calls.iter_mut().for_each(Standing::passed_over);
                self.message_doubted = item.seq <= self.doubted_seq;
            }
            Fact::AssistantMessage(turn) => self.answered(turn, item.seq <= self.doubted_seq),
            Fact::Judged { tool_call_id, judgement, effect } => self.judged(*tool_call_id, judgement, *effect),
            Fact::InterventionRequested(asked) => self.asked(asked),
            Fact::Decision { request_id, decision } => {
                self.decided(*request_id, decision);
                self.vouched(decision, item.seq > self.doubted_seq);
            }
            Fact::RequestClosed { request_id, status, reason } => self.closed(*request_id, *status, *reason),
            Fact::ToolStarted { tool_call_id, attempt, timeout_ms, replica, .. } => {
                let start = Start {
                    at: item.at,
                    attempt: *attempt,
                    timeout: Duration::from_millis(*timeout_ms),
                    replica: replica.clone(),
                };
                if let Some(standing) = self.call_mut(*tool_call_id) {
                    standing.attempts = *attempt;
                    standing.start = Some(start.clone());
                    standing.phase = Phase::Started(start);
                }
            }
            Fact::ToolResult(result) => {
                if let Some(standing) = self.call_mut(result.tool_call_id) {
                    standing.phase = Phase::Done(result.outcome);
                }
            }
            Fact::LateResult(_) | Fact::SubAgentStarted { .. } => {}
        }
    }

    /// These facts, the last ones applied, are committed: their moment is the database's, not the one they were made at.
    pub fn committed<'f>(&mut self, facts: impl Iterator<Item = &'f Fact>, at: Time) {
        for fact in facts {
            if let Fact::TaskStatus { .. } | Fact::UserMessage { .. } = fact {
                self.running_since = self.running_since.map(|_| at);
            }
            if let Fact::ToolStarted { tool_call_id, .. } = fact
                && let Some(standing) = self.call_mut(*tool_call_id)
                && let Some(start) = &mut standing.start
            {
                start.at = at;
                if let Phase::Started(known) = &mut standing.phase {
                    known.at = at;
                }
            }
        }
    }

    fn call_mut(&mut self, id: CallId) -> Option<&mut Standing> {
        self.calls.iter_mut().find(|standing| standing.call.tool_call_id == id)
    }

    fn status_changed(&mut self, status: TaskStatus, at: Time) {
        if let Some(since) = self.running_since.take() {
            self.ran += at.since(since);
        }
        if status == TaskStatus::Running {
            self.running_since = Some(at);
        }
        if status.is_terminal() {
            self.ending = None;
        }
        self.status = Some(status);
    }

    fn answered(&mut self, turn: &Turn, doubted: bool) {
        self.calls.retain(|standing| !matches!(standing.phase, Phase::Done(_)));
        self.responded.clear();
        self.calls.extend(turn.tool_calls.iter().map(|call| Standing {
            call: call.clone(),
            turn: turn.turn,
            phase: Phase::New,
            judgement: None,
            effect: Effect::Once,
            approval: None,
            attempts: 0,
            start: None,
            of_doubted_turn: doubted,
            vouched: false,
        }));
        self.turns += 1;
        self.turns_since_message += 1;
        self.last = Last::Model(turn.clone());
    }

    fn judged(&mut self, id: CallId, judgement: &Judgement, effect: Effect) {
        let Some(standing) = self.call_mut(id) else { return };
        let reason = || judgement.reason.clone().unwrap_or_else(|| "No reason is given.".to_owned());
        let started = matches!(standing.phase, Phase::Started(_));
        standing.phase = match judgement.verdict {
            // It may have happened already: a later "no" keeps it from being repeated, and does not undo it.
            Verdict::Deny | Verdict::Invalid if started => Phase::Refused(Outcome::Unknown, UNKNOWN.to_owned()),
            // Nor may it be repeated any more: it stays as it is, and a human is asked what became of it.
            Verdict::Allow | Verdict::Hold | Verdict::Human if started && !effect.repeatable() => {
                standing.phase.clone()
            }
            Verdict::Allow => Phase::Allowed,
            Verdict::Hold => Phase::Held(judgement.terms.clone().unwrap_or_default()),
            Verdict::Human => Phase::Human(judgement.terms.clone().unwrap_or_default()),
            Verdict::Deny => Phase::Refused(Outcome::Denied, format!("A rule refused this call: {}", reason())),
            Verdict::Invalid => Phase::Refused(Outcome::Invalid, format!("This call was not run: {}", reason())),
        };
        standing.effect = effect;
        standing.approval = None;
        standing.vouched = false;
        standing.judgement = Some(judgement.clone());
    }

    fn asked(&mut self, asked: &Asked) {
        for call in asked.own_calls() {
            if let Some(standing) = self.call_mut(call.tool_call_id) {
                standing.phase = match asked.kind {
                    RequestKind::Reconcile => Phase::Doubtful(asked.request_id),
                    RequestKind::Approval
                    | RequestKind::Guidance
                    | RequestKind::Credentials
                    | RequestKind::Confirmation
                    | RequestKind::ExternalResult => Phase::Asked(asked.request_id),
                };
            }
        }
        self.open.push(Open { asked: asked.clone(), approvals: BTreeMap::new() });
    }

    fn decided(&mut self, id: RequestId, decision: &Decision) {
        let Some(place) = self.open.iter().position(|open| open.asked.request_id == id) else { return };
        for (call, answer) in &decision.decisions {
            self.call_decided(place, *call, decision, answer.action, answer.reason.as_ref(), answer.result.as_ref());
        }
        if decision.closes {
            self.open.remove(place);
            self.responded.push(id);
            if let Some(then) = decision.then.filter(|then| *then != Then::Continue) {
                self.ending = Some(then);
            }
        }
    }

    /// One person's answer to one call of an open question.
    fn call_decided(
        &mut self,
        place: usize,
        id: CallId,
        decision: &Decision,
        action: Action,
        reason: Option<&String>,
        result: Option<&Value>,
    ) {
        let Some(open) = self.open.get_mut(place) else { return };
        let (request, kind) = (open.asked.request_id, open.asked.kind);
        let reason = reason.or(decision.reason.as_ref()).map_or(String::new(), |reason| format!(" Reason: {reason}"));
        let phase = match action {
            Action::Approve | Action::Retry => {
                let by = open.approvals.entry(id).or_default();
                by.push(decision.by.clone());
                let required = open.asked.required();
                let enough = decision.closes || u32::try_from(by.len()).unwrap_or(u32::MAX) >= required;
                let shown = open.asked.own_calls().find(|call| call.tool_call_id == id);
                enough.then(|| {
                    Phase::Approved(Approval {
                        request_id: open.asked.request_id,
                        by: by.clone(),
                        terms: open.asked.terms.clone(),
                        digest: shown.map(|call| call.digest.clone()).unwrap_or_default(),
                        rule: shown.and_then(|call| call.rule.clone()),
                    })
                })
            }
            Action::Reject if kind == RequestKind::Reconcile => Some(Phase::Refused(
                Outcome::Failed,
                format!(
                    "Nobody knows whether this call took effect. A human was asked and said not to count on it.{reason}"
                ),
            )),
            Action::Reject => {
                let doubted = self.calls.iter().find(|standing| standing.call.tool_call_id == id);
                let said = "A human rejected this call";
                let text = doubted.map_or(said.to_owned(), |standing| standing.not_run(said, "; it was not run."));
                Some(Phase::Refused(Outcome::Rejected, format!("{text}{reason}")))
            }
            Action::Respond => {
                let text = match result.or(decision.result.as_ref()).or(decision.response.as_ref()) {
                    Some(Value::String(text)) => text.clone(),
                    Some(other) => other.to_string(),
                    None => String::new(),
                };
                Some(Phase::Refused(Outcome::Responded, text))
            }
            Action::Edit | Action::Mixed => None,
        };
        let (Some(phase), Some(standing)) = (phase, self.call_mut(id)) else { return };
        if !standing.is_asked_by(request) {
            // What the user has gone on from is over, whatever is answered.
            return;
        }
        let name = standing.call.name.clone();
        if let Phase::Approved(approval) = &phase {
            standing.approval = Some(approval.clone());
        }
        standing.phase = phase;
        self.suspects.cleared(&name);
    }

    fn closed(&mut self, id: RequestId, status: RequestStatus, reason: CloseReason) {
        let Some(place) = self.open.iter().position(|open| open.asked.request_id == id) else { return };
        let open = self.open.remove(place);
        if status == RequestStatus::Expired && open.asked.terms.on_expiry == OnExpiry::Cancel {
            self.ending = Some(Then::Cancel);
        }
        for call in open.asked.own_calls() {
            let Some(standing) = self.call_mut(call.tool_call_id) else { continue };
            if !standing.is_asked_by(id) {
                continue;
            }
            standing.phase = match (reason, open.asked.kind) {
                (CloseReason::ToolChanged, _) => Phase::New,
                (CloseReason::Expired, RequestKind::Reconcile) => Phase::Refused(
                    Outcome::Unknown,
                    "The outcome of this call is unknown; a human was asked and nobody answered in time.".to_owned(),
                ),
                (CloseReason::Expired, _) => Phase::Refused(
                    Outcome::Expired,
                    standing
                        .not_run("Nobody decided in time", ", so this call was not run. No human has said no to it."),
                ),
                // Nothing is known yet: a failed task that goes on asks again. (What ends for good gives it a result.)
                (CloseReason::Canceled, RequestKind::Reconcile) => match standing.start.clone() {
                    Some(start) => Phase::Started(start),
                    None => Phase::New,
                },
                (_, RequestKind::Reconcile) => Phase::Refused(Outcome::Unknown, standing.unknown()),
                (CloseReason::Superseded | CloseReason::Canceled | CloseReason::AnsweredLate, _) => {
                    Phase::Refused(Outcome::Withdrawn, "This call was withdrawn before anybody decided.".to_owned())
                }
            };
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}
