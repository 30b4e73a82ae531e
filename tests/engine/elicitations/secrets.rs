//! Tests secrets in the questions of a tool's server and in the answers to them.

use std::time::Duration;

use holdpoint::task::elicitation::Resume;
use holdpoint::task::item::{Fact, Item, Outcome};
use holdpoint::tool::ToolAnswer;
use serde_json::json;

use super::super::engine_harness::{alice, fills, outcomes};
use super::{SMALL, answer, asks, harness, resume, the_request};
use crate::support::test_app::VARIABLES;

fn asks_after_a_declined_form() -> ToolAnswer {
    let mut asked = asks(&["folder"]);
    if let ToolAnswer::Elicitation(asked) = &mut asked {
        asked.declined = vec!["password".to_owned()];
    }
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn next_attempt_knows_which_secret_the_service_declined_beside_the_question() {
    let (harness, server) = harness(SMALL, vec![asks_after_a_declined_form()]).await;
    let task = harness.held().await;
    answer(&harness, task, fills(&json!({"folder": "a"}))).await;
    let accepted = json!({"folder": {"action": "accept", "content": {"folder": "a"}}});
    let resumed = Resume {
        declined: vec!["password".to_owned()],
        ..resume(&accepted)
    };
    assert_eq!(server.resumed(), [None, Some(resumed)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn call_that_expires_names_the_secret_that_the_service_declined_beside_the_question() {
    let (harness, _) = harness(SMALL, vec![asks_after_a_declined_form()]).await;
    let task = harness.held().await;
    harness.fixture.forward(Duration::from_hours(25));
    harness.engine(4).worker().expire().await.unwrap();
    harness.run().await;
    let journal = harness.journal(task).await;
    assert_eq!(outcomes(&journal), [Outcome::Expired]);
    let is_named = |item: &Item| matches!(&item.fact, Fact::ToolResult(result) if result.content.contains("(`password`)"));
    assert!(journal.items.iter().any(is_named));
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_that_holds_a_secret_is_refused_and_the_question_stays_open() {
    let (harness, server) = harness(SMALL, vec![asks(&["folder"])]).await;
    let task = harness.held().await;
    let request = the_request(&harness, task).await.request_id;
    let (_, key) = VARIABLES[0];
    let secret = fills(&json!({"folder": format!("in {key}")}));
    let api = harness.engine(0);
    let refused = api.decide(&alice(), request, secret, None).await;
    let refusal = refused.unwrap_err();
    let text = format!("{refusal:?}");
    assert!(
        text.contains("\"/response\"") && !text.contains(key),
        "{text}"
    );
    answer(&harness, task, fills(&json!({"folder": "a"}))).await;
    let accepted = json!({"folder": {"action": "accept", "content": {"folder": "a"}}});
    assert_eq!(server.resumed(), [None, Some(resume(&accepted))]);
}
