//! The headline of a request's page: the decision about the request, and the current status of the
//! request's calls. The headline is a pure function of the request's answers and history.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{CallStatus, RequestHistory};
use super::kind::kind_part;
use crate::http::pages::layout::visible;
use crate::http::pages::translations::{Translations, fill};
use crate::store::RequestRow;
use crate::task::decision::{Action, Consequence};
use crate::task::id::CallId;
use crate::task::item::CloseReason;
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::verdict::OnExpiry;

/// Returns the headline of a closed request; `None` for an open request. Without a history, the
/// headline leaves out the status of the calls.
#[must_use]
pub(crate) fn headline(
    row: &RequestRow,
    history: Option<&RequestHistory>,
    words: &Translations,
) -> Option<String> {
    let (head, tail) = match row.status {
        RequestStatus::Pending if row.expired => {
            return Some(format!("{}{}", words.head_expired, words.full_stop));
        }
        RequestStatus::Pending => return None,
        RequestStatus::Responded | RequestStatus::Resumed => decided_headline(row, history, words),
        RequestStatus::Expired => (
            words.head_expired.to_owned(),
            expiry_text(row, history, words),
        ),
        RequestStatus::Withdrawn => withdrawn_headline(row, history, words),
    };
    Some(head + &tail)
}

/// Returns the id of each call that the request decides, and the action of the last answer about
/// the call. The action is `None` for a call without an answer.
fn actions_by_call(row: &RequestRow) -> Vec<(CallId, Option<Action>)> {
    let last = |call| {
        let mut answers = row.answers.iter().rev();
        answers.find_map(|(_, answer)| Some(answer.decisions.get(&call)?.action))
    };
    let calls = row.spec.own_calls().map(|call| call.tool_call_id);
    calls.map(|call| (call, last(call))).collect()
}

fn decided_headline(
    row: &RequestRow,
    history: Option<&RequestHistory>,
    words: &Translations,
) -> (String, String) {
    let answers = actions_by_call(row);
    let actions: BTreeSet<Option<Action>> = answers.iter().map(|(_, action)| *action).collect();
    let action = match actions.into_iter().collect::<Vec<_>>().as_slice() {
        [Some(action)] => *action,
        _ => Action::Mixed,
    };
    let names: Vec<String> = deciders(row, action).into_iter().map(visible).collect();
    let head = fill(
        decision_text(row, action, words),
        &[("by", &names.join(words.between))],
    );
    let then = row.answers.last().and_then(|(_, answer)| answer.then);
    let cancellation = then.and_then(|then| cancellation_text(row, then, words));
    let tail = match (history, answers.as_slice()) {
        _ if action == Action::Reject && cancellation.is_some() => {
            cancellation.unwrap_or_default().to_owned()
        }
        (None, _) => words.full_stop.to_owned(),
        (Some(history), [(call, _)]) if lets_call_run(row, action) => {
            single_call_text(row, history.call_status(*call), words)
        }
        (Some(history), several) if several.len() == 1 || action == Action::Reject => {
            agent_informed_text(history, words).to_owned()
        }
        (Some(history), several) => {
            several_calls_text(history, several, words) + cancellation.unwrap_or(words.full_stop)
        }
    };
    (head, tail)
}

/// Returns whether an answer with `action` lets the only call of a request run. If true, the end of
/// the headline is the status of the call. If false, the end of the headline says whether the agent
/// has received the answer.
fn lets_call_run(row: &RequestRow, action: Action) -> bool {
    match action {
        Action::Approve | Action::Edit | Action::Retry => !row.spec.kind.is_yes_or_no(),
        Action::Respond => row.spec.kind.takes_secrets() && !asked_by_agent(row),
        Action::Reject | Action::Mixed => false,
    }
}

/// Returns whether the agent itself asked the question by calling a tool for questions. Such a call
/// never runs.
#[must_use]
pub(crate) fn asked_by_agent(row: &RequestRow) -> bool {
    row.spec
        .own_calls()
        .any(|call| row.spec.kind.tool() == Some(call.name.as_str()))
}

/// Returns the people who answered with `action`, each once, in the order of their answers. For
/// `Mixed`, returns everybody who answered.
fn deciders(row: &RequestRow, action: Action) -> Vec<&str> {
    let mut names = Vec::new();
    for (_, answer) in &row.answers {
        let counts =
            action == Action::Mixed || answer.decisions.values().any(|call| call.action == action);
        if counts && !names.contains(&answer.by.as_str()) {
            names.push(answer.by.as_str());
        }
    }
    names
}

fn decision_text(row: &RequestRow, action: Action, words: &Translations) -> &'static str {
    let part = kind_part(row.spec.kind, words);
    let confirms = row.spec.kind.is_yes_or_no();
    match action {
        Action::Approve if confirms => words.head_confirmed,
        Action::Respond if confirms && is_confirmed(row) => words.head_confirmed,
        Action::Respond => part.responded,
        Action::Reject => part.rejected,
        Action::Approve => words.head_approved,
        Action::Edit if is_approval(row) => words.head_edited,
        Action::Edit => words.head_changed,
        Action::Retry => words.head_again,
        Action::Mixed => words.head_decided,
    }
}

fn is_confirmed(row: &RequestRow) -> bool {
    let last = row.answers.last();
    let response = last.and_then(|(_, answer)| answer.response.as_ref());
    response.is_some_and(|response| response["confirmed"] == true)
}

/// Returns whether every edit is also an approval of the edited call. The stored answer decides
/// this: the later history of the call does not show who has approved the edited arguments.
fn is_approval(row: &RequestRow) -> bool {
    let answers = row.answers.iter();
    let mut calls = answers.flat_map(|(_, answer)| answer.decisions.values());
    calls.all(|answer| answer.action != Action::Edit || answer.leave)
}

fn cancellation_text(
    row: &RequestRow,
    then: Consequence,
    words: &Translations,
) -> Option<&'static str> {
    match then {
        Consequence::Continue => None,
        Consequence::Cancel if row.task_id == row.root_task_id => Some(words.then_was_canceled),
        Consequence::Cancel => Some(words.then_was_canceled_sub),
        Consequence::CancelRoot => Some(words.then_was_canceled_root),
    }
}

fn agent_informed_text(history: &RequestHistory, words: &Translations) -> &'static str {
    match history.final_status {
        _ if history.model_has_results() => words.agent_was_told,
        Some(TaskStatus::Failed) => words.task_failed_before_agent_told,
        Some(_) => words.task_canceled_before_agent_told,
        None => words.agent_will_be_told,
    }
}

fn expiry_text(row: &RequestRow, history: Option<&RequestHistory>, words: &Translations) -> String {
    let cancellation = (row.spec.terms.on_expiry == OnExpiry::Cancel)
        .then(|| cancellation_text(row, Consequence::Cancel, words))
        .flatten();
    let answers = actions_by_call(row);
    let has_no_answers = answers.iter().all(|(_, action)| action.is_none());
    let outcome_unknown = row.spec.kind.properties().outcome_unknown;
    match history {
        Some(history) if !has_no_answers && answers.len() > 1 => {
            several_calls_text(history, &answers, words) + cancellation.unwrap_or(words.full_stop)
        }
        Some(history) if outcome_unknown && cancellation.is_none() => {
            let status = answers.first().map(|(call, _)| history.call_status(*call));
            let status = status.filter(|status| *status != CallStatus::Waiting);
            single_call_text(row, status.unwrap_or(CallStatus::Unknown), words)
        }
        Some(history) => cancellation
            .unwrap_or_else(|| agent_informed_text(history, words))
            .to_owned(),
        None => cancellation.unwrap_or(words.full_stop).to_owned(),
    }
}

fn withdrawn_headline(
    row: &RequestRow,
    history: Option<&RequestHistory>,
    words: &Translations,
) -> (String, String) {
    let full_stop = words.full_stop.to_owned();
    let Some((history, reason)) = history.and_then(|known| Some((known, known.closed?))) else {
        return (words.head_withdrawn.to_owned(), full_stop);
    };
    let (head, call_continues) = match reason {
        CloseReason::Superseded => (words.head_superseded, false),
        CloseReason::Canceled if history.status_at_close == Some(TaskStatus::Failed) => {
            (words.head_task_failed, false)
        }
        CloseReason::Canceled => (words.head_task_canceled, false),
        CloseReason::ToolChanged => (words.head_tool_changed, true),
        CloseReason::AnsweredLate => (words.head_answered_late, true),
        CloseReason::Expired => (words.head_expired, false),
    };
    let answers = actions_by_call(row);
    let tail = match answers.as_slice() {
        _ if !call_continues => full_stop,
        [(call, _)] => single_call_text(row, history.call_status(*call), words),
        several => several_calls_text(history, several, words) + words.full_stop,
    };
    (head.to_owned(), tail)
}

/// Returns the end of the headline for one call: the call's status.
fn single_call_text(row: &RequestRow, status: CallStatus, words: &Translations) -> String {
    if let CallStatus::Failed(Some(code)) = status {
        fill(words.after_failed_with, &[("status", &code)])
    } else if status == CallStatus::Waiting && row.spec.kind.properties().outcome_unknown {
        words.after_waiting_again.to_owned()
    } else {
        status_texts(status, words).0.to_owned()
    }
}

/// Returns the end of the headline for several calls: the number of calls in each status.
fn several_calls_text(
    history: &RequestHistory,
    calls: &[(CallId, Option<Action>)],
    words: &Translations,
) -> String {
    let mut counts: BTreeMap<CallStatus, usize> = BTreeMap::new();
    for (call, action) in calls {
        let status = match (history.call_status(*call), action) {
            (CallStatus::Waiting, Some(Action::Reject)) => CallStatus::Rejected,
            (CallStatus::Waiting, Some(Action::Respond)) => CallStatus::Responded,
            (CallStatus::Failed(_), _) => CallStatus::Failed(None),
            (status, _) => status,
        };
        *counts.entry(status).or_default() += 1;
    }
    let parts: Vec<String> = counts
        .into_iter()
        .map(|(status, count)| fill(status_texts(status, words).1, &[("count", &count)]))
        .collect();
    format!("{}{}", words.colon, parts.join(words.between))
}

/// Returns the end of the headline for one call with this status, and the text that counts the
/// calls with this status.
fn status_texts(status: CallStatus, words: &Translations) -> (&'static str, &'static str) {
    match status {
        CallStatus::Ran => (words.after_ran, words.count_ran),
        CallStatus::Failed(_) => (words.after_failed, words.count_failed),
        CallStatus::RanLate => (words.after_ran_late, words.count_ran_late),
        CallStatus::FailedLate => (words.after_failed_late, words.count_failed_late),
        CallStatus::Running => (words.after_running, words.count_running),
        CallStatus::Released => (words.after_released, words.count_released),
        CallStatus::Waiting => (words.after_waiting, words.count_waiting),
        CallStatus::AskedAgain => (words.after_asked_again, words.count_asked_again),
        CallStatus::NeedsLogin => (words.after_needs_login, words.count_needs_login),
        CallStatus::AwaitsResult => (words.after_awaits_result, words.count_awaits_result),
        CallStatus::AnsweredLater => (words.after_answered_later, words.count_answered_later),
        CallStatus::Reconciling => (words.after_reconciling, words.count_reconciling),
        CallStatus::Unknown => (words.after_unknown, words.count_unknown),
        CallStatus::Responded => (words.after_responded, words.count_responded),
        CallStatus::Rejected => (words.after_rejected, words.count_rejected),
        CallStatus::Denied => (words.after_denied, words.count_denied),
        CallStatus::Invalid => (words.after_invalid, words.count_invalid),
        CallStatus::Expired => (words.after_expired, words.count_expired),
        CallStatus::Withdrawn => (words.after_withdrawn, words.count_withdrawn),
        CallStatus::Canceled => (words.after_canceled, words.count_canceled),
        CallStatus::Abandoned => (words.after_abandoned, words.count_abandoned),
    }
}

#[cfg(test)]
mod tests;
