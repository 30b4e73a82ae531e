//! Checks the headline for every decision and every status of the calls.

mod calls;
mod decisions;

use std::collections::BTreeMap;

use serde_json::json;

use super::super::history::RequestHistory;
use super::headline;
use crate::http::openapi::sample;
use crate::http::pages::language::Language;
use crate::http::pages::translations::Translations;
use crate::store::RequestRow;
use crate::task::decision::{Action, CallAnswer, Consequence};
use crate::task::id::{CallId, RequestId};
use crate::task::item::{CloseReason, Fact, FinishReason, Item, Outcome, ToolResult, Turn, Usage};
use crate::task::request::RequestKind;
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::time::Time;
use crate::task::verdict::OnExpiry;

const OUTCOMES: [Outcome; 10] = [
    Outcome::Succeeded,
    Outcome::Failed,
    Outcome::Invalid,
    Outcome::Denied,
    Outcome::Rejected,
    Outcome::Responded,
    Outcome::Expired,
    Outcome::Withdrawn,
    Outcome::Canceled,
    Outcome::Unknown,
];

fn own(row: &RequestRow, index: usize) -> CallId {
    row.spec.pending_tool_calls[index].tool_call_id
}

/// Returns `row` after bob has answered each call of the request with `action`.
fn decided(mut row: RequestRow, action: Action) -> RequestRow {
    let calls: Vec<CallId> = row.spec.own_calls().map(|call| call.tool_call_id).collect();
    row.answers = sample::answer("bob", action, &calls, true)
        .into_iter()
        .collect();
    row.status = RequestStatus::Resumed;
    row
}

fn then(mut row: RequestRow, then: Consequence) -> RequestRow {
    row.answers.last_mut().unwrap().1.then = Some(then);
    row
}

fn read(row: &RequestRow, facts: Vec<Fact>) -> RequestHistory {
    let mut history = RequestHistory::new(row);
    for (seq, fact) in (row.asked_seq + 1..).zip(facts) {
        history.apply(&Item {
            seq,
            at: Time(0),
            fact,
        });
    }
    history
}

fn say(row: &RequestRow, facts: Vec<Fact>) -> String {
    let history = read(row, facts);
    let chinese = headline(
        row,
        Some(&history),
        Translations::for_language(Language::Chinese),
    )
    .unwrap();
    assert!(
        chinese.ends_with('。') && !chinese.contains(['{', '}']),
        "{chinese}"
    );
    let english = headline(
        row,
        Some(&history),
        Translations::for_language(Language::English),
    )
    .unwrap();
    assert!(
        english.ends_with('.') && !english.contains(['{', '}']),
        "{english}"
    );
    english
}

fn started(tool_call_id: CallId) -> Fact {
    let (name, digest, replica) = (String::new(), String::new(), String::new());
    Fact::ToolStarted {
        tool_call_id,
        name,
        digest,
        attempt: 1,
        timeout_ms: 1,
        replica,
        grant: None,
    }
}

fn result(tool_call_id: CallId, outcome: Outcome, http_status: Option<u16>) -> ToolResult {
    ToolResult {
        tool_call_id,
        name: String::new(),
        outcome,
        content: String::new(),
        http_status,
        suspect: false,
        reported: false,
    }
}

fn ended(call: CallId, outcome: Outcome) -> Fact {
    Fact::ToolResult(result(call, outcome, None))
}

fn status(status: TaskStatus) -> Fact {
    Fact::TaskStatus {
        status,
        error: None,
        output: None,
    }
}

fn model_answers() -> Fact {
    Fact::AssistantMessage(Turn {
        turn: 2,
        text: None,
        tool_calls: Vec::new(),
        finish_reason: FinishReason::Stop,
        usage: Usage::default(),
        raw: json!(null),
    })
}

/// Returns the [`Fact`] that opens a later request of kind `kind` about the same calls.
fn asked_again(row: &RequestRow, kind: RequestKind) -> Fact {
    let mut asked = row.spec.clone();
    (asked.request_id, asked.kind) = (RequestId(uuid::Uuid::from_u128(99)), kind);
    Fact::InterventionRequested(asked)
}

fn answered_again(row: &RequestRow, action: Action, leave: bool) -> Fact {
    let mut decision = decided(row.clone(), action).answers.pop().unwrap().1;
    decision
        .decisions
        .values_mut()
        .for_each(|answer| answer.leave = leave);
    Fact::Decision {
        request_id: RequestId(uuid::Uuid::from_u128(99)),
        decision,
    }
}

fn closed(row: &RequestRow, status: RequestStatus, reason: CloseReason) -> Fact {
    Fact::RequestClosed {
        request_id: row.spec.request_id,
        status,
        reason,
    }
}

#[test]
fn open_request_has_no_headline_of_a_decision() {
    let row = sample::request();
    assert_eq!(
        headline(&row, None, Translations::for_language(Language::English)),
        None
    );
    let late = RequestRow {
        expired: true,
        ..row
    };
    assert_eq!(
        headline(&late, None, Translations::for_language(Language::English)).unwrap(),
        "No answer came in time."
    );
}

#[test]
fn request_is_settled_only_when_the_agent_knows_a_certain_result() {
    let row = decided(sample::request(), Action::Approve);
    let call = own(&row, 0);
    let settled = |facts: Vec<Fact>| read(&row, facts).is_settled();
    assert!(!settled(vec![]) && !settled(vec![started(call), ended(call, Outcome::Succeeded)]));
    assert!(settled(vec![
        ended(call, Outcome::Succeeded),
        model_answers()
    ]));
    assert!(
        !settled(vec![ended(call, Outcome::Unknown), model_answers()]),
        "a late result may come"
    );
    assert!(
        !settled(vec![ended(call, Outcome::Canceled), model_answers()]),
        "a late result may come"
    );
}

/// For each kind of request, action, and outcome of the calls, there is a headline in both
/// languages. The headline of a single approved call is different for each outcome.
#[test]
fn every_closed_request_and_call_outcome_has_its_own_headline() {
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for kind in RequestKind::ALL {
        for action in sample::of_kind(kind).spec.actions(1) {
            for outcome in OUTCOMES {
                for count in [1, 3] {
                    let mut row = sample::of_kind(kind);
                    let call = row.spec.pending_tool_calls[0].clone();
                    row.spec.pending_tool_calls.extend((1..count).map(|more| {
                        let tool_call_id = CallId(uuid::Uuid::from_u128(0x500 + more));
                        crate::task::request::CallSpec {
                            tool_call_id,
                            ..call.clone()
                        }
                    }));
                    let row = decided(row, action);
                    let facts: Vec<Fact> = row
                        .spec
                        .own_calls()
                        .map(|call| ended(call.tool_call_id, outcome))
                        .collect();
                    let said = say(&row, facts);
                    assert!(
                        headline(&row, None, Translations::for_language(Language::English))
                            .unwrap()
                            .contains("bob"),
                        "{said}"
                    );
                    if count == 1 && kind == RequestKind::Approval && action == Action::Approve {
                        seen.entry(said).or_default().push(format!("{outcome:?}"));
                    }
                }
            }
        }
    }
    assert_eq!(seen.len(), OUTCOMES.len(), "{seen:?}");
}
