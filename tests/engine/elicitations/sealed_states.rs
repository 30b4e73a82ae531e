//! Tests states of a tool's server that cannot be opened any more, in calls whose outcome is
//! unknown.

use holdpoint::task::decision::Action;
use holdpoint::task::item::Outcome;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;
use serde_json::json;

use super::super::engine_harness::{fills, outcomes, whole};
use super::{SEALING, SMALL, answer, asks, attempts, harness_on, lost, resume, the_request};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn lost_call_whose_servers_state_cannot_be_opened_any_more_is_asked_about_again(
    fixture: StoreFixture,
) {
    let answers = vec![lost(), asks(&["folder"])];
    let (mut harness, server) = harness_on(fixture, SMALL, answers).await;
    let task = harness.held().await;
    answer(&harness, task, whole(Action::Retry, None)).await;
    harness.replace(SEALING, "");
    answer(&harness, task, fills(&json!({"folder": "a"}))).await;
    for is_key_back in [false, true] {
        let asked = the_request(&harness, task).await;
        assert_eq!(asked.kind, RequestKind::Reconcile);
        let details = asked.details.unwrap();
        assert_eq!(details["attempt"], 2);
        let problem = details["problem"].as_str().unwrap();
        for part in ["its state was lost", "may have taken effect"] {
            assert!(problem.contains(part), "{problem}");
        }
        if is_key_back {
            harness.configure(|yaml| yaml.to_owned() + SEALING);
        }
        answer(&harness, task, whole(Action::Retry, None)).await;
    }
    let accepted = json!({"folder": {"action": "accept", "content": {"folder": "a"}}});
    assert_eq!(server.resumed(), [None, None, Some(resume(&accepted))]);
    assert_eq!(attempts(&harness, task).await, [1, 2, 3]);
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Succeeded]);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}
