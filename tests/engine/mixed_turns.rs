//! Tests a turn with an edit, a credential and an external result. The tests drop drivers and
//! decisions at any of their await points. Nothing may get lost, and no `once` call may be
//! repeated. A credential is stored if and only if the answer with the credential is stored.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use holdpoint::engine::{DecisionInput, Engine, Refusal};
use holdpoint::model::{self, ModelError};
use holdpoint::task::decision::Action;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::call_decisions::{edit, named};
use super::engine_harness::{
    Calls, EngineHarness, alice, alice_decides, fills, go, outcomes, turn, whole,
};
use super::invariants::check_ended;
use super::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::repetitions;

const HELD: (&str, &str) = ("refund", r#"{"order":1,"amount":120}"#);
const COMMENT: (&str, &str) = ("comment", "{}");
const OUTSIDE: (&str, &str) = ("outside", "{}");
const ALL: &[(&str, &str)] = &[HELD, COMMENT, OUTSIDE, ("lookup", r#"{"order":1}"#)];
const EDITED: &str = r#"{ "order": 1, "amount": 77.70 }"#;
/// The value of a credential. The value is also a valid number.
const TOKEN: &str = "4711471147114711";

async fn set(fixture: StoreFixture, calls: Calls) -> EngineHarness {
    let mut harness = EngineHarness::new(fixture, calls).await;
    harness.configure(|yaml| {
        let tools = "  outside: { parameters: { type: object }, external: {} }
  comment: { http: { method: POST, url: \"{tool}/comment\", headers: { Authorization: \"Bearer {{credential:jira.token}}\" } } }
  forbidden: {";
        let yaml = yaml.replace("  forbidden: {", tools);
        let yaml = yaml.replace("tag, refund, forbidden]", "tag, refund, forbidden, outside, comment], limits: { max_calls: 40 }");
        let yaml = yaml.replace("tools: [lookup, tag], decide", "tools: [lookup, tag, comment], decide");
        yaml + "
secrets: { keys: [ { id: k1, key: \"MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\" } ] }
credentials: { jira: { fields: { token: {} } } }
"
    });
    harness
}

fn filled_in(token: &str) -> DecisionInput {
    fills(&json!({"token": token}))
}

async fn answer_to(
    harness: &EngineHarness,
    request: RequestId,
    kind: RequestKind,
) -> DecisionInput {
    match kind {
        RequestKind::Approval => {
            let asked = harness.fixture.request(request).await.spec;
            let call = asked.own_calls().next().unwrap().tool_call_id;
            named([(call.to_string(), edit(EDITED))])
        }
        RequestKind::Credentials => filled_in(TOKEN),
        RequestKind::ExternalResult
        | RequestKind::Reconcile
        | RequestKind::Guidance
        | RequestKind::Confirmation
        | RequestKind::Elicitation => whole(Action::Respond, Some(Value::from("it was done"))),
    }
}

async fn answer_all(harness: &EngineHarness, api: &Arc<Engine>, task: TaskId) {
    for (request, kind) in harness.open(task).await {
        alice_decides(api, request, answer_to(harness, request, kind).await).await;
    }
}

async fn finish(harness: &EngineHarness, task: TaskId) {
    for _ in 0..20 {
        harness.later();
        harness.run().await;
        match harness.status(task).await {
            TaskStatus::Running => {}
            TaskStatus::Paused => answer_all(harness, &harness.engine(0), task).await,
            TaskStatus::Completed | TaskStatus::Failed | TaskStatus::Canceled => return,
        }
    }
    panic!("it does not end: {:#?}", harness.journal(task).await.items);
}

/// Polls `work` until it is done, at most `left` times. Each poll lowers `left` by one. Returns
/// `None` if `work` is not done after these polls.
async fn polled<T>(work: impl Future<Output = T>, left: &mut usize) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|context| {
        if *left == 0 {
            return Poll::Ready(None);
        }
        *left -= 1;
        work.as_mut().poll(context).map(Some)
    })
    .await
}

/// Drives a new task in a process whose drivers are polled at most `left` times in all. If the task
/// has not ended by then, other processes finish it. Returns the task, and whether the first
/// process finished it.
async fn drive_and_drop(harness: &EngineHarness, mut left: usize) -> (TaskId, bool) {
    let api = harness.engine(0);
    let task = api.create(&alice(), go(), None).await.unwrap().task_id;
    let crashing = harness.engine(1);
    while harness.status(task).await != TaskStatus::Completed {
        for driver in crashing.claim().await.unwrap() {
            if polled(driver, &mut left).await.is_none() {
                drop(crashing);
                finish(harness, task).await;
                return (task, false);
            }
        }
        answer_all(harness, &api, task).await;
    }
    (task, true)
}

fn sent(harness: &EngineHarness, task: TaskId, path: &str) -> Vec<(String, String)> {
    let ledger = harness.tool.ledger().into_iter();
    let of_task = ledger
        .filter(|call| call.uri == path && call.header("holdpoint-task-id") == task.to_string());
    of_task
        .map(|call| (call.body.clone(), call.header("authorization").to_owned()))
        .collect()
}

/// Scripts a model that makes these calls. The model repeats the credential in its texts, in its
/// raw answers and in the id of a call.
fn script_leaking_model(harness: &EngineHarness, calls: Calls) {
    harness.script(move |asked| {
        let raw = json!({"n": 4_711_471_147_114_711_u64, "t": TOKEN, TOKEN: [TOKEN]});
        let text = (asked > 1).then(|| format!("It is {TOKEN}."));
        let mut answer = turn(match asked {
            1 => calls,
            2 => &[("lookup", r#"{"order":2}"#)],
            _ => &[],
        });
        if asked == 2 {
            TOKEN.clone_into(&mut answer.calls[0].provider_id);
        }
        Ok(model::Answer {
            raw,
            text,
            ..answer
        })
    });
}

async fn assert_not_in_journal(harness: &EngineHarness, task: TaskId) {
    let items = harness.journal(task).await.items;
    let asked = items
        .iter()
        .position(|item| matches!(item.fact, Fact::AssistantMessage(_)))
        .unwrap();
    for item in &items[asked + 1..] {
        let text = serde_json::to_string(&item.fact).unwrap();
        assert!(!text.contains(TOKEN), "{text}");
    }
}

#[apply(both)]
async fn edit_credential_and_result_survive_a_driver_dropped_at_any_await(fixture: StoreFixture) {
    let harness = set(fixture, ALL).await;
    script_leaking_model(&harness, ALL);
    // The normal runs on the two databases together drop a driver at every poll.
    let step = repetitions(2, 1);
    let mut polls = usize::from(harness.fixture.is_postgres()) % step;
    let (mut whole_rounds, mut dropped) = (0, 0);
    // On a fast disk, the first task may complete after few polls, so the loop goes on with
    // further tasks.
    while whole_rounds < 1 || polls <= 20 {
        let (task, by_itself) = drive_and_drop(&harness, polls).await;
        polls += step;
        whole_rounds += usize::from(by_itself);
        dropped += usize::from(!by_itself);
        let journal = harness.journal(task).await;
        let said = || format!("dropped after {polls} polls: {:#?}", journal.items);
        check_ended(&journal.items);
        assert_eq!(
            (
                journal.row.status,
                journal.row.busy,
                journal.row.open_requests
            ),
            (TaskStatus::Completed, 0, 0),
            "{}",
            said()
        );
        let (paid, comments) = (
            sent(&harness, task, "/refund"),
            sent(&harness, task, "/comment"),
        );
        assert!(
            paid.len() <= 1 && paid.iter().all(|(body, _)| body == EDITED),
            "{}",
            said()
        );
        assert!(comments.len() <= 1, "{}", said());
        assert!(
            comments
                .iter()
                .all(|(_, key)| *key == format!("Bearer {TOKEN}")),
            "{comments:?}"
        );
        if by_itself {
            assert_eq!((paid.len(), comments.len()), (1, 1), "{}", said());
        }
        assert_not_in_journal(&harness, task).await;
    }
    assert!(dropped * step > 8, "only {dropped} await points");
}

#[apply(both)]
async fn credential_that_is_sent_is_the_one_of_the_answer_that_counts(fixture: StoreFixture) {
    const CALLS: &[(&str, &str)] = &[COMMENT];
    let harness = set(fixture, CALLS).await;
    let mut whole_answers = 0;
    for polls in 1.. {
        let task = harness.held().await;
        let request = harness.only_request(task, RequestKind::Credentials).await;
        let api = harness.engine(0);
        let mut left = polls;
        let first = polled(
            api.decide(&alice(), request, filled_in("first-first"), None),
            &mut left,
        )
        .await;
        let second = harness
            .engine(0)
            .decide(&alice(), request, filled_in("second-second"), None)
            .await;
        let counts = match &second {
            Ok(_) => "second-second",
            Err(Refusal::AlreadyDecided { .. }) => "first-first",
            Err(other) => panic!("{other}"),
        };
        assert!(first.is_none_or(|said| said.is_ok() == second.is_err()));
        whole_answers += usize::from(left > 0);
        finish(&harness, task).await;
        let journal = harness.journal(task).await;
        assert_eq!(
            outcomes(&journal),
            [Outcome::Succeeded],
            "{:#?}",
            journal.items
        );
        assert_eq!(
            sent(&harness, task, "/comment"),
            [(String::from("{}"), format!("Bearer {counts}"))]
        );
        if whole_answers > 1 {
            break;
        }
    }
}

#[apply(both)]
async fn model_error_does_not_show_a_filled_in_credential(fixture: StoreFixture) {
    const CALLS: &[(&str, &str)] = &[COMMENT];
    let harness = set(fixture, CALLS).await;
    harness.script(|asked| match asked {
        1 => Ok(turn(CALLS)),
        _ => Err(ModelError::new(format!(
            "it reported an error: no such word as {TOKEN}"
        ))),
    });
    let task = harness.held().await;
    finish(&harness, task).await;
    assert_eq!(harness.status(task).await, TaskStatus::Failed);
    assert_not_in_journal(&harness, task).await;
    let error = harness.journal(task).await.row.error.unwrap();
    assert!(
        error
            .detail
            .ends_with("no such word as [secret jira.token]"),
        "{error:?}"
    );
}

#[apply(both)]
async fn task_opens_at_most_twenty_requests_at_once(fixture: StoreFixture) {
    const CALLS: &[(&str, &str)] = &[
        OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE,
        OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE,
        OUTSIDE, COMMENT,
    ];
    let harness = set(fixture, CALLS).await;
    let task = harness.held().await;
    let api = harness.engine(0);
    let mut seen = 0;
    while harness.status(task).await == TaskStatus::Paused {
        let open = harness.open(task).await;
        assert!(open.len() <= 20, "{open:?}");
        assert_eq!(
            usize::try_from(harness.journal(task).await.row.open_requests).unwrap(),
            open.len()
        );
        let (request, kind) = *open.last().unwrap();
        seen += 1;
        alice_decides(&api, request, answer_to(&harness, request, kind).await).await;
        harness.run().await;
    }
    let journal = harness.journal(task).await;
    assert_eq!(
        (seen, journal.row.status),
        (22, TaskStatus::Completed),
        "{:#?}",
        journal.items
    );
    assert_eq!(sent(&harness, task, "/comment").len(), 1);
}
