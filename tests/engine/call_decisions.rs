//! Helpers of the engine tests: functions that build answers to single calls, and functions that
//! read the results of calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdpoint::engine::{CallReply, DecisionBody, DecisionInput, Engine, Refusal};
use holdpoint::people::Caller;
use holdpoint::task::change::Journal;
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::id::{CallId, RequestId, TaskId};
use holdpoint::task::item::Outcome;
use holdpoint::task::request::RequestSpec;
use holdpoint::task::transcript::Message;

use super::engine_harness::{EngineHarness, tool_results};

pub fn plain(action: Action) -> CallReply {
    CallReply {
        action,
        reason: None,
        then: None,
        arguments: None,
        result: None,
        remember: None,
    }
}

pub fn approve() -> CallReply {
    plain(Action::Approve)
}

pub fn reject() -> CallReply {
    plain(Action::Reject)
}

pub fn reject_because(reason: &str) -> CallReply {
    CallReply {
        reason: Some(reason.to_owned()),
        ..reject()
    }
}

pub fn reject_then(then: Consequence) -> CallReply {
    CallReply {
        then: Some(then),
        ..reject()
    }
}

pub fn edit(arguments: &str) -> CallReply {
    CallReply {
        arguments: Some(arguments.to_owned()),
        ..plain(Action::Edit)
    }
}

pub fn respond(result: &str) -> CallReply {
    CallReply {
        result: Some(result.to_owned()),
        ..plain(Action::Respond)
    }
}

pub fn each<const N: usize>(replies: [(CallId, CallReply); N]) -> DecisionInput {
    named(replies.map(|(call, reply)| (call.to_string(), reply)))
}

/// Like [`each`], but the ids of the calls are given as text.
pub fn named<const N: usize>(replies: [(String, CallReply); N]) -> DecisionInput {
    DecisionInput {
        digest: None,
        body: DecisionBody::PerCall(BTreeMap::from(replies)),
    }
}

/// Returns the id of the last open request, and the ids of the calls that it decides.
pub async fn question(harness: &EngineHarness, task: TaskId) -> (RequestId, Vec<CallId>) {
    let request = last_open_request(harness, task).await;
    (
        request.request_id,
        request.own_calls().map(|call| call.tool_call_id).collect(),
    )
}

pub async fn last_open_request(harness: &EngineHarness, task: TaskId) -> RequestSpec {
    let open = harness.open(task).await;
    let Some((request, _)) = open.last() else {
        panic!("none is open: {:#?}", harness.journal(task).await.items)
    };
    harness.fixture.request(*request).await.spec
}

/// Returns the result of each call in a journal. Asserts that no call has two results.
pub fn results(journal: &Journal) -> BTreeMap<CallId, (Outcome, String)> {
    let mut results = BTreeMap::new();
    for result in tool_results(&journal.items) {
        let known = results.insert(
            result.tool_call_id,
            (result.outcome, result.content.clone()),
        );
        assert_eq!(known, None, "two results of one call: {:#?}", journal.items);
    }
    results
}

/// Returns the outcome of each of these calls, or `None` for a call without a result.
pub async fn became<const N: usize>(
    harness: &EngineHarness,
    task: TaskId,
    calls: [CallId; N],
) -> [Option<Outcome>; N] {
    let results = results(&harness.journal(task).await);
    calls.map(|call| results.get(&call).map(|(outcome, _)| *outcome))
}

/// Sends a decision and returns its refusal. Asserts that the journal and the rows of the request
/// stay unchanged.
pub async fn refused(
    harness: &EngineHarness,
    engine: &Arc<Engine>,
    caller: &Caller,
    task: TaskId,
    answer: DecisionInput,
) -> Refusal {
    let (request, _) = question(harness, task).await;
    let before = (
        harness.journal(task).await,
        harness.fixture.store.request(request).await.unwrap(),
    );
    let said = engine.decide(caller, request, answer.clone(), None).await;
    let after = (
        harness.journal(task).await,
        harness.fixture.store.request(request).await.unwrap(),
    );
    let Err(refusal) = said else {
        panic!("it was taken: {answer:?}")
    };
    assert_eq!(
        (&before.0.items, before.0.row.version),
        (&after.0.items, after.0.row.version),
        "{answer:?}"
    );
    let (before, after) = (before.1.unwrap(), after.1.unwrap());
    assert_eq!(before.status, after.status);
    assert_eq!(before.answers, after.answers);
    refusal
}

pub fn places(refusal: &Refusal) -> Vec<&str> {
    let Refusal::Invalid(errors) = refusal else {
        panic!("not invalid: {refusal:?}")
    };
    errors.iter().map(|error| error.pointer.as_str()).collect()
}

/// Returns the bodies that the tool at this path received for the task, each with the call's id.
pub fn bodies(harness: &EngineHarness, task: TaskId, path: &str) -> Vec<(String, String)> {
    let ledger = harness.tool.ledger().into_iter();
    let of_task = ledger
        .filter(|call| call.uri == path && call.header("holdpoint-task-id") == task.to_string());
    of_task
        .map(|call| (call.header("holdpoint-tool-call-id").to_owned(), call.body))
        .collect()
}

/// Asserts that the tool at this path received one call of the task: `call` with this body.
pub fn ran_as(harness: &EngineHarness, task: TaskId, path: &str, call: CallId, body: &str) {
    assert_eq!(
        bodies(harness, task, path),
        [(call.to_string(), body.to_owned())]
    );
}

/// Returns the contents of the tool results in the last prompt, in the order of the prompt.
pub fn shown(harness: &EngineHarness) -> Vec<String> {
    let messages = harness.prompted().1.messages.into_iter();
    let content = |message| {
        if let Message::Result { content, .. } = message {
            Some(content)
        } else {
            None
        }
    };
    messages.filter_map(content).collect()
}
