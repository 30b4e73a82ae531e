//! Tests which pending results and answers of models a reload keeps.

use uuid::Uuid;

use super::*;
use crate::engine::session::task_draft::tests::{message, row};
use crate::task::change::{Journal, TaskRow};
use crate::task::item::{FinishReason, Item, ToolCall, Turn, Usage};

fn journal(facts: &[Fact], at: Time) -> Journal {
    let items: Vec<_> = facts
        .iter()
        .cloned()
        .zip(1..)
        .map(|(fact, seq)| Item { seq, at, fact })
        .collect();
    Journal {
        row: TaskRow {
            last_seq: i64::try_from(items.len()).unwrap(),
            ..row()
        },
        items,
        now: at,
        history_uncertain_until: None,
    }
}

fn status(status: TaskStatus) -> Fact {
    Fact::TaskStatus {
        status,
        error: None,
        output: None,
    }
}

fn turn(tool_calls: Vec<ToolCall>) -> Fact {
    Fact::AssistantMessage(Turn {
        turn: 1,
        text: None,
        tool_calls,
        finish_reason: FinishReason::Stop,
        usage: Usage::default(),
        raw: serde_json::Value::Null,
    })
}

fn paid() -> ToolAnswer {
    ToolAnswer::Succeeded {
        content: "paid".to_owned(),
        http_status: None,
    }
}

fn not_sent() -> ToolAnswer {
    ToolAnswer::NotSent {
        content: "no connection".to_owned(),
    }
}

const CALL: CallId = CallId(Uuid::from_u128(1));

/// Returns the journal of a task whose only call was proposed. `later` follows the turn.
fn proposed(at: Time, later: &[Fact]) -> Journal {
    let call = ToolCall {
        tool_call_id: CALL,
        name: "pay".to_owned(),
        arguments_text: "{}".to_owned(),
        holds_secret: false,
        provider_id: String::new(),
    };
    let first = [status(TaskStatus::Running), message(), turn(vec![call])];
    journal(&[first.as_slice(), later].concat(), at)
}

/// Returns the journal of a task whose only call was started at the time `at`, for the first
/// time. `later` follows the start.
fn started(at: Time, later: &[Fact]) -> Journal {
    let start = Fact::ToolStarted {
        tool_call_id: CALL,
        name: "pay".to_owned(),
        digest: String::new(),
        attempt: 1,
        timeout_ms: 30_000,
        replica: "r1".to_owned(),
        grant: None,
    };
    proposed(at, &[&[start], later].concat())
}

fn result(outcome: Outcome) -> ToolResult {
    ToolResult {
        tool_call_id: CALL,
        name: "pay".to_owned(),
        outcome,
        content: String::new(),
        http_status: None,
        suspect: false,
        reported: false,
    }
}

/// The later attempt has the number of the attempt whose start was lost.
#[test]
fn answer_to_an_attempt_whose_start_was_lost_is_not_the_result_of_the_next_attempt() {
    for (answer, late) in [(paid(), 1), (not_sent(), 0)] {
        let mut session = TaskSession::new(started(Time(1), &[]));
        session.record_result(CALL, "pay".to_owned(), answer);
        for reload in 1..=2 {
            let kept = session.pending_results();
            session.replace(started(Time(2), &[]));
            session.add_results(kept);
            let pending = session.own.pending_items();
            assert_eq!(pending.len(), late, "reload {reload}");
            let is_late = |item: &Item| matches!(item.fact, Fact::LateResult(_));
            assert!(pending.iter().all(is_late), "reload {reload}");
        }
    }
}

/// Lost with its start: a later attempt, which was sent.
#[test]
fn attempt_that_was_not_sent_settles_nothing_if_the_journal_has_lost_its_start() {
    let mut session = TaskSession::new(started(Time(1), &[]));
    session.record_result(CALL, "pay".to_owned(), not_sent());
    let kept = session.pending_results();
    assert_eq!(kept.len(), 1);
    let unknown = Fact::ToolResult(result(Outcome::Unknown));
    session.replace(proposed(Time(1), &[unknown]));
    session.add_results(kept);
    assert!(!session.has_pending_facts());
}

#[test]
fn answer_is_stored_once_although_it_equals_a_late_result_of_an_earlier_attempt() {
    let mut session = TaskSession::new(started(Time(2), &[]));
    session.record_result(CALL, "pay".to_owned(), paid());
    let stored = session.own.pending_items()[0].fact.clone();
    let Fact::ToolResult(equal) = stored.clone() else {
        panic!("the call waits for its result: {stored:?}")
    };
    let late = Fact::LateResult(equal);
    for (journaled, pending) in [(vec![late.clone()], 1), (vec![late, stored.clone()], 0)] {
        let kept = session.pending_results();
        assert_eq!(kept.len(), 1);
        session.replace(started(Time(2), &journaled));
        session.add_results(kept);
        let items = session.own.pending_items();
        assert_eq!(items.len(), pending);
        assert!(items.iter().all(|item| item.fact == stored));
    }
}

#[test]
fn result_of_a_tool_survives_a_reload_and_result_made_by_the_engine_does_not() {
    let shown = journal(&[message()], Time(1));
    let mut session = TaskSession::new(shown.clone());
    let [made, received] = [1, 2].map(|id| CallId(Uuid::from_u128(id)));
    session.settle_calls(vec![(made, Outcome::Failed, "not prepared".to_owned())]);
    session.record_result(received, "pay".to_owned(), paid());
    for reload in 1..=2 {
        let kept = session.pending_results();
        let calls: Vec<_> = kept.iter().map(|kept| kept.result.tool_call_id).collect();
        assert_eq!(calls, [received], "reload {reload}");
        session.replace(shown.clone());
        assert!(session.pending_results().is_empty());
        session.add_results(kept);
        session.settle_calls(vec![(made, Outcome::Failed, "not prepared".to_owned())]);
    }
}

#[test]
fn answer_is_kept_only_where_it_follows_what_the_model_was_shown() {
    let late = Fact::LateResult(result(Outcome::Succeeded));
    let answer = turn(Vec::new());
    let (shown, at, later) = (
        vec![status(TaskStatus::Running), message()],
        Time(1),
        Time(2),
    );
    let with = |facts: &[&Fact]| {
        shown
            .iter()
            .chain(facts.iter().copied())
            .cloned()
            .collect::<Vec<_>>()
    };
    let canceled = status(TaskStatus::Canceled);
    for (name, newer, at, kept) in [
        ("the same journal", with(&[]), at, true),
        ("a late result", with(&[&late]), at, true),
        ("a cancel", with(&[&canceled]), at, false),
        (
            "the user's next message",
            with(&[&late, &canceled, &message()]),
            at,
            false,
        ),
        ("the answer itself", with(&[&answer]), at, false),
        (
            "a history whose end was lost",
            shown[..1].to_vec(),
            at,
            false,
        ),
        ("another history", with(&[]), later, false),
    ] {
        let mut session = TaskSession::new(journal(&shown, Time(1)));
        session.push(answer.clone());
        let answered = session.pending_answer();
        session.replace(journal(&newer, at));
        session.restore_answer(answered);
        assert_eq!(session.has_pending_facts(), kept, "{name}");
    }
}
