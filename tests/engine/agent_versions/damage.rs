//! Tests requests and agent versions whose stored bytes differ from their digest.

use holdpoint::engine::Refusal;
use holdpoint::task::decision::Action;
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Fact;
use holdpoint::task::request::CallSpec;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::super::engine_harness::{EngineHarness, alice_is_refused, whole};
use super::{LARGE, approved, before, changed, failure, retry, run, shown};
use crate::store::store_fixture::{StoreFixture, both};

async fn rewrite(fixture: &StoreFixture, task: TaskId, kind: &str, from: &str, to: &str) {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let id = fixture.literal(task.0);
    let sql = format!(
        "update agent_task_item set body = replace(body, {}, {}) where task_id = {id} and type = '{kind}'",
        quoted(from),
        quoted(to)
    );
    fixture.execute(&sql).await;
}

/// Returns pairs: a member of the call's JSON, and the same member with one flipped bit. The bit is
/// in the first, the middle or the last byte of the member's text. The tests of
/// `RequestSpec::has_valid_digests` cover every byte.
fn flipped(call: &CallSpec) -> Vec<(String, String)> {
    let members = [
        ("arguments_text", &call.arguments_text),
        ("name", &call.name),
        ("target", &call.target),
        ("digest", &call.digest),
    ];
    let json =
        |member: &str, text: &str| format!("\"{member}\":{}", serde_json::to_string(text).unwrap());
    let all = members.into_iter().flat_map(|(member, text)| {
        [0, text.len() / 2, text.len() - 1].map(|at| {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            (
                json(member, text),
                json(member, &String::from_utf8(bytes).unwrap()),
            )
        })
    });
    all.collect()
}

async fn first_call_of_request(harness: &EngineHarness, task: TaskId) -> CallSpec {
    let items = harness.journal(task).await.items;
    let asked = items.iter().find_map(|item| {
        let Fact::InterventionRequested(asked) = &item.fact else {
            return None;
        };
        Some(asked.pending_tool_calls[0].clone())
    });
    asked.unwrap()
}

#[apply(both)]
async fn request_with_a_changed_byte_runs_nothing_after_its_approval(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let task = approved(&harness).await;
    for (was, is) in flipped(&first_call_of_request(&harness, task).await) {
        rewrite(&harness.fixture, task, "intervention_requested", &was, &is).await;
        if harness.status(task).await == TaskStatus::Running {
            run(&harness, task).await;
        } else {
            retry(&harness, task).await;
        }
        assert_eq!(
            failure(&harness, task).await,
            Some(FailureCode::Integrity),
            "{is}"
        );
        assert_eq!(harness.tool.ledger().len(), 0, "{is}");
        rewrite(&harness.fixture, task, "intervention_requested", &is, &was).await;
    }
    let (was, is) = (r#"\"amount\":120"#, r#"\"amount\":121"#);
    rewrite(&harness.fixture, task, "assistant_message", was, is).await;
    retry(&harness, task).await;
    assert_eq!(
        failure(&harness, task).await,
        Some(FailureCode::Integrity),
        "the model said something else"
    );
    rewrite(&harness.fixture, task, "intervention_requested", was, is).await;
    retry(&harness, task).await;
    assert_eq!(
        failure(&harness, task).await,
        Some(FailureCode::Integrity),
        "the same in both places"
    );
    for kind in ["assistant_message", "intervention_requested"] {
        rewrite(&harness.fixture, task, kind, is, was).await;
    }
    retry(&harness, task).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn request_with_a_changed_byte_takes_no_answer(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let api = harness.engine(0);
    let first = harness.held().await;
    let count = flipped(&first_call_of_request(&harness, first).await).len();
    for at in 0..count {
        let task = harness.held().await;
        let (was, is) = flipped(&first_call_of_request(&harness, task).await).swap_remove(at);
        rewrite(&harness.fixture, task, "intervention_requested", &was, &is).await;
        let (request, _) = harness.only_open(task).await;
        let answered = alice_is_refused(&api, request, whole(Action::Approve, None)).await;
        assert_eq!(answered, Refusal::Withdrawn(request), "{is}");
        assert_eq!(
            failure(&harness, task).await,
            Some(FailureCode::Integrity),
            "{is}"
        );
    }
    harness.later();
    harness.run().await;
    assert_eq!(harness.tool.ledger().len(), 0);
}

#[apply(both)]
async fn agent_version_that_differs_from_its_digest_drives_nothing(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    let original = harness.yaml();
    let (waiting, task) = (harness.held().await, approved(&harness).await);
    harness.configure(changed);
    for damage in [
        "update agent_version set definition = replace(definition, 'You handle refunds.', 'You give it away.')",
        "delete from agent_version",
    ] {
        harness.fixture.execute(damage).await;
        if harness.status(task).await == TaskStatus::Running {
            run(&harness, task).await;
        } else {
            retry(&harness, task).await;
        }
        assert_eq!(
            failure(&harness, task).await,
            Some(FailureCode::Integrity),
            "{damage}"
        );
    }
    let (request, _) = harness.only_open(waiting).await;
    let answered =
        alice_is_refused(&harness.engine(0), request, whole(Action::Approve, None)).await;
    assert_eq!(answered, Refusal::Withdrawn(request));
    assert_eq!(
        failure(&harness, waiting).await,
        Some(FailureCode::Integrity)
    );
    assert_eq!(harness.tool.ledger().len(), 0);
    // A replica that starts with the original configuration stores the lost definition again.
    harness.configure(|_| original.clone());
    harness.engine(0);
    harness.configure(changed);
    retry(&harness, task).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/refund"), 1);
    assert_eq!(shown(&harness), before());
}
