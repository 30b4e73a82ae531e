//! The headline for every decision and every fate of its calls.

use std::collections::BTreeMap;

use serde_json::json;

use super::headline::{Aftermath, headline};
use crate::http::openapi::sample;
use crate::http::pages::language::Language;
use crate::http::pages::translations::Translations;
use crate::store::RequestRow;
use crate::task::decision::{Action, CallAnswer, Then};
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
    row.asked.pending_tool_calls[index].tool_call_id
}

/// The request, decided by bob with this action for each of its calls.
fn decided(mut row: RequestRow, action: Action) -> RequestRow {
    let calls: Vec<CallId> = row
        .asked
        .own_calls()
        .map(|call| call.tool_call_id)
        .collect();
    row.answers = sample::answer("bob", action, &calls, true)
        .into_iter()
        .collect();
    row.status = RequestStatus::Resumed;
    row
}

fn then(mut row: RequestRow, then: Then) -> RequestRow {
    row.answers.last_mut().unwrap().1.then = Some(then);
    row
}

fn read(row: &RequestRow, facts: Vec<Fact>) -> Aftermath {
    let mut aftermath = Aftermath::new(row);
    for (seq, fact) in (row.asked_seq + 1..).zip(facts) {
        aftermath.apply(&Item {
            seq,
            at: Time(0),
            fact,
        });
    }
    aftermath
}

fn say(row: &RequestRow, facts: Vec<Fact>) -> String {
    let aftermath = read(row, facts);
    let chinese = headline(row, Some(&aftermath), Translations::of(Language::Chinese)).unwrap();
    assert!(
        chinese.ends_with('。') && !chinese.contains(['{', '}']),
        "{chinese}"
    );
    let english = headline(row, Some(&aftermath), Translations::of(Language::English)).unwrap();
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
    }
}

fn result(tool_call_id: CallId, outcome: Outcome, http_status: Option<u16>) -> ToolResult {
    ToolResult {
        tool_call_id,
        name: String::new(),
        outcome,
        content: String::new(),
        http_status,
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

/// A later request of that kind about the same calls.
fn asked_again(row: &RequestRow, kind: RequestKind) -> Fact {
    let mut asked = row.asked.clone();
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
        request_id: row.asked.request_id,
        status,
        reason,
    }
}

#[test]
fn open_request_has_no_headline_of_a_decision() {
    let row = sample::request();
    assert_eq!(
        headline(&row, None, Translations::of(Language::English)),
        None
    );
    let late = RequestRow {
        expired: true,
        ..row
    };
    assert_eq!(
        headline(&late, None, Translations::of(Language::English)).unwrap(),
        "Nobody answered in time."
    );
}

#[test]
fn approval_says_what_has_become_of_the_call() {
    let row = decided(sample::request(), Action::Approve);
    let call = own(&row, 0);
    let again = |kind| vec![asked_again(&row, kind)];
    let after = |facts: Vec<Fact>| say(&row, facts);
    assert_eq!(after(vec![]), "Approved by bob. It has not started yet.");
    assert_eq!(
        after(vec![started(call)]),
        "Approved by bob. It is running."
    );
    assert_eq!(
        after(vec![started(call), ended(call, Outcome::Succeeded)]),
        "Approved by bob, and it ran."
    );
    let failed = Fact::ToolResult(result(call, Outcome::Failed, Some(500)));
    assert_eq!(
        after(vec![started(call), failed]),
        "Approved by bob, but it failed: 500."
    );
    for (outcome, said) in [
        (Outcome::Failed, "Approved by bob, but it failed."),
        (
            Outcome::Invalid,
            "Approved by bob, but it is not valid and did not run.",
        ),
        (Outcome::Denied, "Approved by bob, but a rule refused it."),
        (
            Outcome::Rejected,
            "Approved by bob, but it was rejected later.",
        ),
        (
            Outcome::Responded,
            "Approved by bob. A person gave its result.",
        ),
        (
            Outcome::Expired,
            "Approved by bob, but a later question about it was not answered in time.",
        ),
        (Outcome::Withdrawn, "Approved by bob, but it was withdrawn."),
        (Outcome::Canceled, "Approved by bob, but it was canceled."),
        (
            Outcome::Unknown,
            "Approved by bob. What became of it is not known.",
        ),
    ] {
        assert_eq!(after(vec![ended(call, outcome)]), said);
    }
    assert_eq!(
        after([vec![started(call)], again(RequestKind::Reconcile)].concat()),
        "Approved by bob. What became of it is not known: a person is asked."
    );
    assert_eq!(
        after(again(RequestKind::Approval)),
        "Approved by bob. It is asked about again."
    );
    assert_eq!(
        after(again(RequestKind::Credentials)),
        "Approved by bob. It waits for a login."
    );
    assert_eq!(
        after(again(RequestKind::ExternalResult)),
        "Approved by bob. Its result is awaited from outside."
    );
    let lost = [started(call), status(TaskStatus::Failed)];
    assert_eq!(
        after(lost.to_vec()),
        "Approved by bob. What became of it is not known."
    );
    assert_eq!(
        after(vec![status(TaskStatus::Failed)]),
        "Approved by bob, but the task failed before it ran."
    );
    assert_eq!(
        after(vec![status(TaskStatus::Canceled)]),
        "Approved by bob, but it was canceled."
    );
    let retried = vec![status(TaskStatus::Failed), status(TaskStatus::Running)];
    assert_eq!(after(retried), "Approved by bob. It has not started yet.");
}

#[test]
fn later_request_about_the_call_counts_until_it_is_over() {
    let row = decided(sample::request(), Action::Approve);
    let call = own(&row, 0);
    let doubtful = || vec![started(call), asked_again(&row, RequestKind::Reconcile)];
    let after = |facts: Vec<Fact>| say(&row, [doubtful(), facts].concat());
    assert_eq!(
        after(vec![answered_again(&row, Action::Retry, true)]),
        "Approved by bob. It is running."
    );
    let told = answered_again(&row, Action::Respond, false);
    assert_eq!(
        after(vec![told.clone()]),
        "Approved by bob. A later question about it was answered."
    );
    assert_eq!(
        after(vec![told, ended(call, Outcome::Responded)]),
        "Approved by bob. A person gave its result."
    );
    let again = vec![
        answered_again(&row, Action::Retry, true),
        started(call),
        ended(call, Outcome::Succeeded),
    ];
    assert_eq!(after(again), "Approved by bob, and it ran.");
    let over = Fact::RequestClosed {
        request_id: RequestId(uuid::Uuid::from_u128(99)),
        status: RequestStatus::Expired,
        reason: CloseReason::Expired,
    };
    assert_eq!(
        after(vec![over, ended(call, Outcome::Unknown)]),
        "Approved by bob. What became of it is not known."
    );
    let other = say(&row, vec![started(CallId(uuid::Uuid::from_u128(77)))]);
    assert_eq!(
        other, "Approved by bob. It has not started yet.",
        "another call is another call"
    );
}

#[test]
fn late_result_is_told_as_late() {
    let row = decided(sample::request(), Action::Approve);
    let call = own(&row, 0);
    let late = |outcome| {
        let late = Fact::LateResult(result(call, outcome, None));
        say(
            &row,
            vec![started(call), ended(call, Outcome::Unknown), late],
        )
    };
    assert_eq!(
        late(Outcome::Succeeded),
        "Approved by bob. It ran, and its result came late."
    );
    assert_eq!(
        late(Outcome::Failed),
        "Approved by bob. It failed, and that was known late."
    );
    assert_eq!(
        late(Outcome::Unknown),
        "Approved by bob. What became of it is not known."
    );
}

#[test]
fn rejection_says_what_followed_from_it() {
    let row = decided(sample::request(), Action::Reject);
    let call = own(&row, 0);
    let rejected = || vec![ended(call, Outcome::Rejected)];
    let canceled = then(row.clone(), Then::Cancel);
    let facts = [rejected(), vec![status(TaskStatus::Canceled)]].concat();
    assert_eq!(
        say(&canceled, facts.clone()),
        "Rejected by bob. The task was canceled."
    );
    let root = then(row.clone(), Then::CancelRoot);
    assert_eq!(
        say(&root, facts.clone()),
        "Rejected by bob. The whole task tree was canceled."
    );
    let mut sub = canceled;
    sub.task_id = crate::task::id::TaskId(uuid::Uuid::from_u128(9));
    assert_eq!(
        say(&sub, facts),
        "Rejected by bob. The agent's task was canceled; the agent that called it is told."
    );
    let goes_on = then(row, Then::Continue);
    assert_eq!(
        say(&goes_on, rejected()),
        "Rejected by bob. The agent will be told."
    );
    let told = [rejected(), vec![model_answers()]].concat();
    assert_eq!(say(&goes_on, told), "Rejected by bob. The agent was told.");
    let failed = [rejected(), vec![status(TaskStatus::Failed)]].concat();
    assert_eq!(
        say(&goes_on, failed),
        "Rejected by bob. The task failed before the agent was told."
    );
    let ended = [rejected(), vec![status(TaskStatus::Canceled)]].concat();
    assert_eq!(
        say(&goes_on, ended),
        "Rejected by bob. The task was canceled before the agent was told."
    );
}

#[test]
fn each_kind_of_question_is_told_in_its_own_words() {
    let told = |kind, action| {
        let row = decided(sample::of_kind(kind), action);
        let call = own(&row, 0);
        say(&row, vec![ended(call, Outcome::Responded), model_answers()])
    };
    for (kind, action, said) in [
        (
            RequestKind::Guidance,
            Action::Respond,
            "Answered by bob. The agent was told.",
        ),
        (
            RequestKind::Guidance,
            Action::Reject,
            "Declined by bob. The agent was told.",
        ),
        (
            RequestKind::Confirmation,
            Action::Approve,
            "Confirmed by bob. The agent was told.",
        ),
        (
            RequestKind::Confirmation,
            Action::Reject,
            "Answered with no by bob. The agent was told.",
        ),
        (
            RequestKind::Confirmation,
            Action::Respond,
            "Answered with no by bob. The agent was told.",
        ),
        (
            RequestKind::Credentials,
            Action::Respond,
            "Login given by bob. The agent was told.",
        ),
        (
            RequestKind::Credentials,
            Action::Reject,
            "Declined by bob. The agent was told.",
        ),
        (
            RequestKind::ExternalResult,
            Action::Respond,
            "Result given by bob. The agent was told.",
        ),
        (
            RequestKind::ExternalResult,
            Action::Reject,
            "Declined by bob. The agent was told.",
        ),
        (
            RequestKind::Reconcile,
            Action::Respond,
            "Answered by bob. The agent was told.",
        ),
        (
            RequestKind::Reconcile,
            Action::Reject,
            "Given up by bob. The agent was told.",
        ),
        (
            RequestKind::Approval,
            Action::Respond,
            "Result given by bob, the tool did not run. The agent was told.",
        ),
    ] {
        assert_eq!(told(kind, action), said, "{kind:?} {action:?}");
    }
    let mut yes = decided(sample::of_kind(RequestKind::Confirmation), Action::Respond);
    yes.answers[0].1.response = Some(json!({"confirmed": true}));
    assert_eq!(
        say(&yes, vec![]),
        "Confirmed by bob. The agent will be told."
    );
    let retry = decided(sample::of_kind(RequestKind::Reconcile), Action::Retry);
    let call = own(&retry, 0);
    assert_eq!(
        say(&retry, vec![]),
        "Allowed to run again by bob. It has not been started again yet."
    );
    assert_eq!(
        say(&retry, vec![started(call)]),
        "Allowed to run again by bob. It is running."
    );
    let ran = vec![started(call), ended(call, Outcome::Succeeded)];
    assert_eq!(
        say(&retry, ran.clone()),
        "Allowed to run again by bob, and it ran."
    );
    let mut login = decided(sample::of_kind(RequestKind::Credentials), Action::Respond);
    login.asked.pending_tool_calls[0].name = "comment_ticket".into();
    assert_eq!(
        say(&login, ran),
        "Login given by bob, and it ran.",
        "a call that waited for a login goes on"
    );
}

#[test]
fn edit_is_an_approval_only_where_the_call_runs_with_it() {
    let row = decided(sample::request(), Action::Edit);
    let call = own(&row, 0);
    assert_eq!(
        say(&row, vec![started(call)]),
        "Changed and approved by bob. It is running."
    );
    assert_eq!(
        say(&row, vec![asked_again(&row, RequestKind::Approval)]),
        "Changed by bob. It is asked about again."
    );
    let mut two = row;
    two.asked.terms.approvers.required = 2;
    assert_eq!(
        say(&two, vec![started(call), ended(call, Outcome::Succeeded)]),
        "Changed by bob, and it ran."
    );
}

#[test]
fn every_person_whose_answer_counts_is_named_once() {
    let mut row = decided(sample::request(), Action::Approve);
    row.asked.terms.approvers.required = 2;
    let call = own(&row, 0);
    row.answers.extend(sample::answer(
        "<b>\u{202e}",
        Action::Approve,
        &[call],
        true,
    ));
    let ran = vec![started(call), ended(call, Outcome::Succeeded)];
    let said = headline(
        &row,
        Some(&read(&row, ran)),
        Translations::of(Language::English),
    )
    .unwrap();
    assert_eq!(said, "Approved by bob, <b>\\u{202e}, and it ran.");
}

#[test]
fn several_calls_are_counted_by_what_became_of_them() {
    let row = decided(sample::several(4), Action::Approve);
    let calls = [0, 1, 2, 3].map(|index| own(&row, index));
    let facts = vec![
        started(calls[0]),
        started(calls[1]),
        started(calls[2]),
        ended(calls[0], Outcome::Succeeded),
        Fact::ToolResult(result(calls[1], Outcome::Failed, Some(503))),
    ];
    assert_eq!(
        say(&row, facts),
        "Approved by bob: 1 ran, 1 failed, 1 running, 1 not started yet."
    );
    let mut mixed = row.clone();
    mixed.answers.clear();
    for (who, action, call) in [
        ("bob", Action::Approve, 0),
        ("eve", Action::Reject, 1),
        ("eve", Action::Respond, 2),
        ("bob", Action::Edit, 3),
    ] {
        mixed
            .answers
            .extend(sample::answer(who, action, &[calls[call]], call == 3));
    }
    assert_eq!(
        say(
            &mixed,
            vec![started(calls[0]), ended(calls[0], Outcome::Succeeded)]
        ),
        "Decided by bob, eve: 1 ran, 1 not started yet, 1 answered by a person, 1 rejected."
    );
    let none = then(decided(row.clone(), Action::Reject), Then::Cancel);
    assert_eq!(
        say(&none, vec![]),
        "Rejected by bob. The task was canceled."
    );
    let told = decided(row.clone(), Action::Reject);
    let results: Vec<Fact> = calls
        .map(|call| ended(call, Outcome::Rejected))
        .into_iter()
        .collect();
    assert_eq!(
        say(&told, [results, vec![model_answers()]].concat()),
        "Rejected by bob. The agent was told."
    );
    let mut cut_short = row;
    cut_short.answers = sample::answer("eve", Action::Reject, &[calls[0]], true)
        .into_iter()
        .collect();
    let cut_short = then(cut_short, Then::Cancel);
    let canceled = calls[1..]
        .iter()
        .map(|call| ended(*call, Outcome::Canceled));
    let facts = std::iter::once(ended(calls[0], Outcome::Rejected))
        .chain(canceled)
        .collect();
    assert_eq!(
        say(&cut_short, facts),
        "Decided by eve: 1 rejected, 3 canceled. The task was canceled."
    );
}

#[test]
fn expired_request_says_what_followed() {
    let mut row = RequestRow {
        status: RequestStatus::Expired,
        ..sample::request()
    };
    let call = own(&row, 0);
    let over = |row: &RequestRow| closed(row, RequestStatus::Expired, CloseReason::Expired);
    let facts = vec![over(&row), ended(call, Outcome::Expired)];
    assert_eq!(
        say(&row, facts.clone()),
        "Nobody answered in time. The agent will be told."
    );
    let told = [facts.clone(), vec![model_answers()]].concat();
    assert_eq!(
        say(&row, told),
        "Nobody answered in time. The agent was told."
    );
    row.asked.terms.on_expiry = OnExpiry::Cancel;
    assert_eq!(
        say(&row, facts),
        "Nobody answered in time. The task was canceled."
    );
    let doubtful = RequestRow {
        status: RequestStatus::Expired,
        ..sample::of_kind(RequestKind::Reconcile)
    };
    let facts = vec![over(&doubtful), ended(own(&doubtful, 0), Outcome::Unknown)];
    assert_eq!(
        say(&doubtful, facts),
        "Nobody answered in time. What became of it is not known."
    );
    let mut half = RequestRow {
        status: RequestStatus::Expired,
        ..sample::several(2)
    };
    let calls = [own(&half, 0), own(&half, 1)];
    half.answers = sample::answer("bob", Action::Approve, &[calls[0]], false)
        .into_iter()
        .collect();
    let facts = vec![
        over(&half),
        ended(calls[1], Outcome::Expired),
        started(calls[0]),
        ended(calls[0], Outcome::Succeeded),
    ];
    assert_eq!(
        say(&half, facts),
        "Nobody answered in time: 1 ran, 1 not answered in time."
    );
}

#[test]
fn withdrawn_request_says_why() {
    let row = RequestRow {
        status: RequestStatus::Withdrawn,
        ..sample::request()
    };
    let call = own(&row, 0);
    let why = |reason, more: Vec<Fact>| {
        say(
            &row,
            [vec![closed(&row, RequestStatus::Withdrawn, reason)], more].concat(),
        )
    };
    assert_eq!(
        why(CloseReason::Superseded, vec![]),
        "Withdrawn: the user went on with another message."
    );
    let ends = |to| vec![ended(call, Outcome::Canceled), status(to)];
    assert_eq!(
        why(CloseReason::Canceled, ends(TaskStatus::Canceled)),
        "Withdrawn: the task was canceled."
    );
    let retried = [
        ends(TaskStatus::Failed),
        vec![status(TaskStatus::Running), status(TaskStatus::Completed)],
    ]
    .concat();
    assert_eq!(
        why(CloseReason::Canceled, retried),
        "Withdrawn: the task failed."
    );
    let changed = "Withdrawn: the tool was changed after this was asked";
    assert_eq!(
        why(
            CloseReason::ToolChanged,
            vec![asked_again(&row, RequestKind::Approval)]
        ),
        format!("{changed}. It is asked about again.")
    );
    let failed = Fact::ToolResult(result(call, Outcome::Failed, Some(500)));
    assert_eq!(
        why(CloseReason::ToolChanged, vec![started(call), failed]),
        format!("{changed}, but it failed: 500.")
    );
    assert_eq!(
        why(
            CloseReason::AnsweredLate,
            vec![ended(call, Outcome::Succeeded)]
        ),
        "Withdrawn: the result of the call arrived by itself, and it ran."
    );
    assert_eq!(
        headline(&row, None, Translations::of(Language::English)).unwrap(),
        "Withdrawn."
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

/// Every request, closed in every way with every answer and every outcome of its calls, has a
/// headline in both languages, and no two different ones of a single call read the same.
#[test]
fn every_closed_request_and_call_outcome_has_its_own_headline() {
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for kind in RequestKind::ALL {
        for action in sample::of_kind(kind).asked.actions(1) {
            for outcome in OUTCOMES {
                for count in [1, 3] {
                    let mut row = sample::of_kind(kind);
                    let call = row.asked.pending_tool_calls[0].clone();
                    row.asked.pending_tool_calls.extend((1..count).map(|more| {
                        let tool_call_id = CallId(uuid::Uuid::from_u128(0x500 + more));
                        crate::task::request::CallSpec {
                            tool_call_id,
                            ..call.clone()
                        }
                    }));
                    let row = decided(row, action);
                    let facts: Vec<Fact> = row
                        .asked
                        .own_calls()
                        .map(|call| ended(call.tool_call_id, outcome))
                        .collect();
                    let said = say(&row, facts);
                    assert!(
                        headline(&row, None, Translations::of(Language::English))
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

#[test]
fn answer_without_a_call_of_its_own_does_not_count() {
    let mut row = decided(sample::several(2), Action::Approve);
    let [first, second] = [own(&row, 0), own(&row, 1)];
    row.answers[0].1.decisions = [(first, CallAnswer::plain(Action::Approve))].into();
    let said = say(
        &row,
        vec![
            ended(first, Outcome::Succeeded),
            ended(second, Outcome::Canceled),
        ],
    );
    assert_eq!(said, "Decided by bob: 1 ran, 1 canceled.");
}
