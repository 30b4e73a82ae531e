//! The headline of a request's page: how the request was decided, and the fate of its calls since.
//! It is a pure function of the request's answers and of the journal after the item that asked;
//! nothing of it is stored.

use std::collections::{BTreeMap, BTreeSet};

use super::kind::{fate_while_open, part};
use crate::http::pages::layout::visible;
use crate::http::pages::translations::{Translations, fill};
use crate::store::RequestRow;
use crate::task::decision::{Action, Then};
use crate::task::id::{CallId, RequestId};
use crate::task::item::{CloseReason, Fact, Item, Outcome, ToolResult};
use crate::task::request::RequestKind;
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::verdict::OnExpiry;

/// The fate of one call. The order of the variants is the order in which the fates of several calls
/// are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// It ran.
    Ran,
    /// It failed, maybe with the status of an HTTP tool's answer.
    Failed(Option<u16>),
    /// It ran, and its result came after the call was closed.
    RanLate,
    /// It failed, and its result came after the call was closed.
    FailedLate,
    /// An attempt or a sub-agent is running.
    Running,
    /// Neither an attempt nor a result is in the journal yet.
    Waiting,
    /// Another request asks whether it may run.
    AskedAgain,
    /// Another request asks for the login it needs.
    NeedsLogin,
    /// Another request asks for its result.
    AwaitsResult,
    /// A later request about it was answered; its result is not stored yet.
    AnsweredLater,
    /// Its outcome is unknown, and an open request asks for it.
    Doubtful,
    /// Its outcome is unknown.
    Unknown,
    /// A person gave its result.
    Responded,
    /// A person rejected it.
    Rejected,
    /// A rule refused it.
    Denied,
    /// It cannot run.
    Invalid,
    /// A question about it was not answered in time.
    Expired,
    /// Its request was withdrawn, or the user sent another message.
    Withdrawn,
    /// The task was canceled before the call ran, or while a sub-agent was running.
    Canceled,
    /// The task failed before the call ran.
    Abandoned,
}

/// The state of one call, as far as the journal was read.
#[derive(Clone, Debug, Default)]
struct Trace {
    at_work: bool,
    asked: Option<(RequestId, RequestKind)>,
    answered_later: bool,
    result: Option<(Outcome, Option<u16>)>,
    late: Option<Outcome>,
    told: bool,
}

/// The journal's facts after the item that asked a request.
#[derive(Clone, Debug)]
pub(crate) struct Aftermath {
    request: RequestId,
    calls: BTreeMap<CallId, Trace>,
    /// Why the request was closed without a decision.
    closed: Option<CloseReason>,
    /// The first final status of its task in or after that commit.
    ended_then: Option<TaskStatus>,
    /// The task's last status, where it is final.
    ended: Option<TaskStatus>,
}

impl Aftermath {
    /// The state before any item was read.
    #[must_use]
    pub fn new(row: &RequestRow) -> Self {
        let calls = row
            .asked
            .own_calls()
            .map(|call| (call.tool_call_id, Trace::default()))
            .collect();
        Self {
            request: row.asked.request_id,
            calls,
            closed: None,
            ended_then: None,
            ended: None,
        }
    }

    /// Reads the next item.
    pub fn apply(&mut self, item: &Item) {
        match &item.fact {
            Fact::TaskStatus { status, .. } => {
                self.ended = Some(*status).filter(|status| status.is_terminal());
                self.ended_then = self
                    .ended_then
                    .or(self.ended.filter(|_| self.closed.is_some()));
            }
            Fact::AssistantMessage(_) => {
                self.calls
                    .values_mut()
                    .for_each(|trace| trace.told |= trace.result.is_some());
            }
            Fact::InterventionRequested(asked) if asked.request_id != self.request => {
                for call in asked.own_calls() {
                    self.trace(call.tool_call_id, |trace| {
                        trace.asked = Some((asked.request_id, asked.kind))
                    });
                }
            }
            Fact::Decision {
                request_id,
                decision,
            } if *request_id != self.request => {
                for (call, answer) in decision
                    .decisions
                    .iter()
                    .filter(|(_, answer)| answer.settles())
                {
                    self.trace(*call, |trace| {
                        trace.asked = None;
                        trace.answered_later = !answer.leave;
                    });
                }
                if decision.closes {
                    self.over(*request_id);
                }
            }
            Fact::RequestClosed {
                request_id, reason, ..
            } if *request_id == self.request => {
                self.closed = Some(*reason);
            }
            Fact::RequestClosed { request_id, .. } => self.over(*request_id),
            Fact::ToolStarted { tool_call_id, .. } | Fact::SubAgentStarted { tool_call_id, .. } => {
                self.trace(*tool_call_id, |trace| {
                    *trace = Trace {
                        at_work: true,
                        ..Trace::default()
                    }
                });
            }
            Fact::ToolResult(ToolResult {
                tool_call_id,
                outcome,
                http_status,
                ..
            }) => {
                self.trace(*tool_call_id, |trace| {
                    trace.result = Some((*outcome, *http_status))
                });
            }
            Fact::LateResult(late) => {
                self.trace(late.tool_call_id, |trace| trace.late = Some(late.outcome))
            }
            Fact::InterventionRequested(_)
            | Fact::Decision { .. }
            | Fact::UserMessage { .. }
            | Fact::Judged { .. } => {}
        }
    }

    fn trace(&mut self, call: CallId, change: impl FnOnce(&mut Trace)) {
        if let Some(trace) = self.calls.get_mut(&call) {
            change(trace);
        }
    }

    fn over(&mut self, request: RequestId) {
        for trace in self.calls.values_mut() {
            trace.asked = trace.asked.filter(|(asked, _)| *asked != request);
        }
    }

    /// Whether no later item changes the headline: every call has a certain result, and the agent
    /// has every result.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.calls.values().all(|trace| {
            let uncertain = matches!(
                trace.result,
                None | Some((Outcome::Unknown | Outcome::Canceled, _))
            );
            trace.told && !uncertain
        })
    }

    fn fate(&self, call: CallId) -> Fate {
        let Some(trace) = self.calls.get(&call) else {
            return Fate::Waiting;
        };
        match (trace.late, trace.result) {
            (Some(Outcome::Succeeded), _) => Fate::RanLate,
            (Some(Outcome::Failed), _) => Fate::FailedLate,
            (_, Some((outcome, status))) => of_outcome(outcome, status),
            (_, None) => self.open_fate(trace),
        }
    }

    fn open_fate(&self, trace: &Trace) -> Fate {
        match (trace.asked.map(|(_, kind)| kind), self.ended) {
            (Some(kind), _) => fate_while_open(kind),
            (None, _) if trace.answered_later => Fate::AnsweredLater,
            (None, Some(_)) if trace.at_work => Fate::Unknown,
            (None, None) if trace.at_work => Fate::Running,
            (None, Some(TaskStatus::Failed)) => Fate::Abandoned,
            (None, Some(_)) => Fate::Canceled,
            (None, None) => Fate::Waiting,
        }
    }
}

fn of_outcome(outcome: Outcome, status: Option<u16>) -> Fate {
    match outcome {
        Outcome::Succeeded => Fate::Ran,
        Outcome::Failed => Fate::Failed(status),
        Outcome::Invalid => Fate::Invalid,
        Outcome::Denied => Fate::Denied,
        Outcome::Rejected => Fate::Rejected,
        Outcome::Responded => Fate::Responded,
        Outcome::Expired => Fate::Expired,
        Outcome::Withdrawn => Fate::Withdrawn,
        Outcome::Canceled => Fate::Canceled,
        Outcome::Unknown => Fate::Unknown,
    }
}

/// The headline of a request that is no longer open; `None` while it is. Without an aftermath it
/// leaves out the fate of the calls.
#[must_use]
pub(crate) fn headline(
    row: &RequestRow,
    aftermath: Option<&Aftermath>,
    words: &Translations,
) -> Option<String> {
    let said = match row.status {
        RequestStatus::Pending if row.expired => {
            return Some(format!("{}{}", words.head_expired, words.full_stop));
        }
        RequestStatus::Pending => return None,
        RequestStatus::Responded | RequestStatus::Resumed => decided(row, aftermath, words),
        RequestStatus::Expired => (
            words.head_expired.to_owned(),
            after_expiry(row, aftermath, words),
        ),
        RequestStatus::Withdrawn => withdrawn(row, aftermath, words),
    };
    Some(said.0 + &said.1)
}

/// Each own call with the answer that decided it, if one did.
fn answers(row: &RequestRow) -> Vec<(CallId, Option<Action>)> {
    let last = |call| {
        let mut given = row
            .answers
            .iter()
            .rev()
            .filter_map(|(_, answer)| answer.decisions.get(&call));
        given.next().map(|answer| answer.action)
    };
    row.asked
        .own_calls()
        .map(|call| (call.tool_call_id, last(call.tool_call_id)))
        .collect()
}

fn decided(
    row: &RequestRow,
    aftermath: Option<&Aftermath>,
    words: &Translations,
) -> (String, String) {
    let answers = answers(row);
    let actions: BTreeSet<Option<Action>> = answers.iter().map(|(_, action)| *action).collect();
    let action = match actions.into_iter().collect::<Vec<_>>().as_slice() {
        [Some(action)] => *action,
        _ => Action::Mixed,
    };
    let names: Vec<String> = deciders(row, action).into_iter().map(visible).collect();
    let head = fill(
        head(row, action, aftermath, words),
        &[("by", &names.join(words.between))],
    );
    let then = row.answers.last().and_then(|(_, answer)| answer.then);
    let ends = then.and_then(|then| ending(row, then, words));
    let tail = match (aftermath, answers.as_slice()) {
        _ if action == Action::Reject && ends.is_some() => ends.unwrap_or_default().to_owned(),
        (None, _) => words.full_stop.to_owned(),
        (Some(aftermath), [(call, _)]) if runs(row, action) => {
            after(row, aftermath.fate(*call), words)
        }
        (Some(aftermath), [_]) => told(aftermath, words).to_owned(),
        (Some(aftermath), _) if action == Action::Reject => told(aftermath, words).to_owned(),
        (Some(aftermath), several) => {
            counted(aftermath, several, words) + ends.unwrap_or(words.full_stop)
        }
    };
    (head, tail)
}

/// Whether an answer lets a call run, so that the headline tells the call's fate instead of whether
/// the agent has the answer.
fn runs(row: &RequestRow, action: Action) -> bool {
    match (row.asked.kind, action) {
        (RequestKind::Confirmation, _) => false,
        (RequestKind::Credentials, Action::Respond) => !of_agent(row),
        (_, Action::Approve | Action::Edit | Action::Retry) => true,
        (_, Action::Reject | Action::Respond | Action::Mixed) => false,
    }
}

/// Whether the agent itself asked, with a tool that is a question and never runs.
#[must_use]
pub(crate) fn of_agent(row: &RequestRow) -> bool {
    row.asked
        .own_calls()
        .any(|call| row.asked.kind.tool() == Some(call.name.as_str()))
}

/// The people whose answers count, each once, in the order of their answers.
fn deciders(row: &RequestRow, action: Action) -> Vec<&str> {
    let mut names = Vec::new();
    for (_, answer) in &row.answers {
        let counts =
            action == Action::Mixed || answer.decisions.values().any(|said| said.action == action);
        if counts && !names.contains(&answer.by.as_str()) {
            names.push(answer.by.as_str());
        }
    }
    names
}

fn head(
    row: &RequestRow,
    action: Action,
    aftermath: Option<&Aftermath>,
    words: &Translations,
) -> &'static str {
    let part = part(row.asked.kind, words);
    let confirms = row.asked.kind == RequestKind::Confirmation;
    match action {
        Action::Approve if confirms => words.head_confirmed,
        Action::Respond if confirms && confirmed(row) => words.head_confirmed,
        Action::Respond => part.responded,
        Action::Reject => part.rejected,
        Action::Approve => words.head_approved,
        Action::Edit if is_approval(row, aftermath) => words.head_edited,
        Action::Edit => words.head_changed,
        Action::Retry => words.head_again,
        Action::Mixed => words.head_decided,
    }
}

fn confirmed(row: &RequestRow) -> bool {
    let response = row
        .answers
        .last()
        .and_then(|(_, answer)| answer.response.as_ref());
    response
        .and_then(|response| response.get("confirmed"))
        .and_then(serde_json::Value::as_bool)
        == Some(true)
}

/// Whether the edits approved the new arguments; they do not where several people have to approve.
fn is_approval(row: &RequestRow, aftermath: Option<&Aftermath>) -> bool {
    let edits = row
        .answers
        .iter()
        .flat_map(|(_, answer)| answer.decisions.iter());
    let asked_again =
        |call| aftermath.is_some_and(|aftermath| aftermath.fate(call) == Fate::AskedAgain);
    row.asked.required() < 2
        && edits
            .filter(|(_, said)| said.action == Action::Edit)
            .all(|(call, _)| !asked_again(*call))
}

/// Says which task a rejection or an expiry canceled.
fn ending(row: &RequestRow, then: Then, words: &Translations) -> Option<&'static str> {
    match then {
        Then::Continue => None,
        Then::Cancel if row.task_id == row.root_task_id => Some(words.then_was_canceled),
        Then::Cancel => Some(words.then_was_canceled_sub),
        Then::CancelRoot => Some(words.then_was_canceled_root),
    }
}

/// Says whether the agent has the answer by now.
fn told(aftermath: &Aftermath, words: &Translations) -> &'static str {
    match aftermath.ended {
        _ if aftermath.calls.values().all(|trace| trace.told) => words.then_told,
        Some(TaskStatus::Failed) => words.then_failed_untold,
        Some(_) => words.then_ended_untold,
        None => words.then_not_told,
    }
}

fn after_expiry(row: &RequestRow, aftermath: Option<&Aftermath>, words: &Translations) -> String {
    let ends = (row.asked.terms.on_expiry == OnExpiry::Cancel)
        .then(|| ending(row, Then::Cancel, words))
        .flatten();
    let answers = answers(row);
    let nothing_said = answers.iter().all(|(_, action)| action.is_none());
    match aftermath {
        Some(aftermath) if !nothing_said && answers.len() > 1 => {
            counted(aftermath, &answers, words) + ends.unwrap_or(words.full_stop)
        }
        Some(aftermath) if row.asked.kind == RequestKind::Reconcile && ends.is_none() => {
            let fate = answers
                .first()
                .map_or(Fate::Unknown, |(call, _)| aftermath.fate(*call));
            after(
                row,
                if fate == Fate::Waiting {
                    Fate::Unknown
                } else {
                    fate
                },
                words,
            )
        }
        Some(aftermath) => ends.unwrap_or_else(|| told(aftermath, words)).to_owned(),
        None => ends.unwrap_or(words.full_stop).to_owned(),
    }
}

fn withdrawn(
    row: &RequestRow,
    aftermath: Option<&Aftermath>,
    words: &Translations,
) -> (String, String) {
    let full_stop = words.full_stop.to_owned();
    let Some((aftermath, reason)) = aftermath.and_then(|known| Some((known, known.closed?))) else {
        return (words.head_withdrawn.to_owned(), full_stop);
    };
    let (head, goes_on) = match reason {
        CloseReason::Superseded => (words.head_superseded, false),
        CloseReason::Canceled if aftermath.ended_then == Some(TaskStatus::Failed) => {
            (words.head_task_failed, false)
        }
        CloseReason::Canceled => (words.head_task_canceled, false),
        CloseReason::ToolChanged => (words.head_tool_changed, true),
        CloseReason::AnsweredLate => (words.head_answered_late, true),
        CloseReason::Expired => (words.head_expired, false),
    };
    let answers = answers(row);
    let tail = match answers.as_slice() {
        _ if !goes_on => full_stop,
        [(call, _)] => after(row, aftermath.fate(*call), words),
        several => counted(aftermath, several, words) + words.full_stop,
    };
    (head.to_owned(), tail)
}

/// The end of the headline of a single call: its fate.
fn after(row: &RequestRow, fate: Fate, words: &Translations) -> String {
    let tail = match fate {
        Fate::Ran => words.after_ran,
        Fate::Failed(Some(status)) => {
            return fill(words.after_failed_with, &[("status", &status.to_string())]);
        }
        Fate::Failed(None) => words.after_failed,
        Fate::RanLate => words.after_ran_late,
        Fate::FailedLate => words.after_failed_late,
        Fate::Running => words.after_running,
        Fate::Waiting if row.asked.kind == RequestKind::Reconcile => words.after_waiting_again,
        Fate::Waiting => words.after_waiting,
        Fate::AskedAgain => words.after_asked_again,
        Fate::NeedsLogin => words.after_needs_login,
        Fate::AwaitsResult => words.after_awaits_result,
        Fate::AnsweredLater => words.after_answered_later,
        Fate::Doubtful => words.after_doubtful,
        Fate::Unknown => words.after_unknown,
        Fate::Responded => words.after_responded,
        Fate::Rejected => words.after_rejected,
        Fate::Denied => words.after_denied,
        Fate::Invalid => words.after_invalid,
        Fate::Expired => words.after_expired,
        Fate::Withdrawn => words.after_withdrawn,
        Fate::Canceled => words.after_canceled,
        Fate::Abandoned => words.after_abandoned,
    };
    tail.to_owned()
}

/// The end of the headline of several calls: how many met each fate.
fn counted(
    aftermath: &Aftermath,
    calls: &[(CallId, Option<Action>)],
    words: &Translations,
) -> String {
    let mut counts: BTreeMap<Fate, usize> = BTreeMap::new();
    for (call, action) in calls {
        let fate = match (aftermath.fate(*call), action) {
            (Fate::Waiting, Some(Action::Reject)) => Fate::Rejected,
            (Fate::Waiting, Some(Action::Respond)) => Fate::Responded,
            (Fate::Failed(_), _) => Fate::Failed(None),
            (fate, _) => fate,
        };
        *counts.entry(fate).or_default() += 1;
    }
    let parts: Vec<String> = counts
        .into_iter()
        .map(|(fate, count)| fill(of_several(fate, words), &[("count", &count.to_string())]))
        .collect();
    format!("{}{}", words.colon, parts.join(words.between))
}

fn of_several(fate: Fate, words: &Translations) -> &'static str {
    match fate {
        Fate::Ran => words.count_ran,
        Fate::Failed(_) => words.count_failed,
        Fate::RanLate => words.count_ran_late,
        Fate::FailedLate => words.count_failed_late,
        Fate::Running => words.count_running,
        Fate::Waiting => words.count_waiting,
        Fate::AskedAgain => words.count_asked_again,
        Fate::NeedsLogin => words.count_needs_login,
        Fate::AwaitsResult => words.count_awaits_result,
        Fate::AnsweredLater => words.count_answered_later,
        Fate::Doubtful => words.count_doubtful,
        Fate::Unknown => words.count_unknown,
        Fate::Responded => words.count_responded,
        Fate::Rejected => words.count_rejected,
        Fate::Denied => words.count_denied,
        Fate::Invalid => words.count_invalid,
        Fate::Expired => words.count_expired,
        Fate::Withdrawn => words.count_withdrawn,
        Fate::Canceled => words.count_canceled,
        Fate::Abandoned => words.count_abandoned,
    }
}
