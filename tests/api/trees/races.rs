//! Tests of people who change one tree at the same moment. Whichever change wins, every task ends
//! and nothing happens twice.

use futures_util::future::join_all;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::items;
use super::{
    assert_asks, assert_invariants, call, does, give, id, only, open, outcomes, paused, pays,
    scripted_answer, still, task, tree, trees,
};
use crate::support::repetitions;
use crate::support::test_app::{On, TestApp};

/// Creates a tree in which the root makes these calls and waits for a person. Returns the root's id
/// and the id of an open request.
async fn waiting(app: &TestApp, calls: &[Value]) -> (String, String) {
    let root = paused(app, &does(calls, "end")).await;
    (root.str("/task_id"), open(&root)[0].1.clone())
}

/// Asserts that every task of a tree has ended and that no request is open.
async fn all_over(app: &TestApp, root: &str) {
    for one in tree(app, root).await {
        assert!(
            ["Canceled", "Completed", "Failed"].contains(&one["status"].as_str().unwrap()),
            "{one}"
        );
        assert_eq!(one["pending"], json!([]), "{one}");
    }
    assert_invariants(app, root).await;
}

/// Returns the number of calls that the tool has received from the tasks of this tree. The tool may
/// also receive a call of the previous tree, if the call was in flight when that tree was canceled.
async fn ran_in(app: &TestApp, root: &str) -> usize {
    let tasks: Vec<String> = tree(app, root).await.iter().map(id).collect();
    let calls = app.tool.ledger();
    let callers = calls.iter().map(|call| call.header("holdpoint-task-id"));
    callers
        .filter(|caller| tasks.iter().any(|task| task == *caller))
        .count()
}

#[apply(on_both)]
async fn cancel_of_the_root_beside_an_approval_below_ends_the_tree(on: On) {
    let app = trees(on, "").await;
    for _ in 0..repetitions(8, 12) {
        let (root_id, request) = waiting(&app, &[pays("analyst", 1), pays("clerk", 2)]).await;
        let (owner, path) = (app.owner(), format!("/v1/tasks/{root_id}/cancel"));
        let (approved, canceled) = tokio::join!(owner.approve(&request), owner.hit(&path));
        canceled.assert_status(200, "Canceled");
        assert!([200, 409].contains(&approved.status), "{}", approved.text);
        assert!(ran_in(&app, &root_id).await <= usize::from(approved.status == 200));
        assert_eq!(task(&app, &root_id).await.str("/status"), "Canceled");
        all_over(&app, &root_id).await;
    }
    app.stop().await;
}

#[apply(on_both)]
async fn cancel_of_a_sub_agent_beside_an_approval_of_its_call_has_one_outcome(on: On) {
    let app = trees(on, "").await;
    for _ in 0..repetitions(8, 12) {
        let (root_id, request) = waiting(&app, &[pays("analyst", 1)]).await;
        let analyst = id(&only(&app, &root_id, "analyst").await);
        let (owner, path) = (app.owner(), format!("/v1/tasks/{analyst}/cancel"));
        let (approved, canceled) = tokio::join!(owner.approve(&request), owner.hit(&path));
        assert!([200, 409].contains(&canceled.status), "{}", canceled.text);
        assert!([200, 409].contains(&approved.status), "{}", approved.text);
        assert!(
            approved.status == 200 || canceled.status == 200,
            "one of the two wins"
        );
        let end = still(&app, &root_id).await;
        end.assert_completed("end");
        let journal = items(&app, &root_id).await;
        let expected = if canceled.status == 200 {
            "canceled"
        } else {
            "succeeded"
        };
        assert_eq!(outcomes(&journal), [("analyst", expected)]);
        assert!(ran_in(&app, &root_id).await <= 1);
        all_over(&app, &root_id).await;
    }
    app.stop().await;
}

#[apply(on_both)]
async fn superseding_message_beside_an_approval_below_has_one_outcome(on: On) {
    let app = trees(on, "").await;
    for _ in 0..repetitions(8, 12) {
        let (root_id, request) = waiting(&app, &[pays("analyst", 1), pays("clerk", 2)]).await;
        let (owner, path) = (app.owner(), format!("/v1/tasks/{root_id}/messages"));
        let body = json!({"input": json!(["never mind"]).to_string(), "supersede": true});
        let (approved, message) = tokio::join!(owner.approve(&request), owner.post(&path, &body));
        assert!([200, 409].contains(&approved.status), "{}", approved.text);
        assert!([200, 409].contains(&message.status), "{}", message.text);
        let shown = still(&app, &root_id).await;
        if message.status == 200 {
            shown.assert_completed("never mind");
            all_over(&app, &root_id).await;
        } else {
            assert_eq!(message.str("/code"), "task_running", "{}", message.text);
            assert_asks(&shown, 1);
            assert_eq!(owner.cancel(&root_id).await.status, 200);
        }
    }
    app.stop().await;
}

#[apply(on_both)]
async fn sub_agents_that_ask_simultaneously_leave_the_root_paused(on: On) {
    let app = trees(on, "").await;
    for _ in 0..repetitions(8, 12) {
        let eight: Vec<_> = (1..=8).map(|order| pays("analyst", order)).collect();
        let root = paused(&app, &does(&eight, "end")).await;
        assert_eq!(open(&root).len(), 8);
        assert_eq!(
            task(&app, &root.str("/task_id")).await.str("/status"),
            "Paused"
        );
        assert_eq!(
            app.owner()
                .cancel(&root.str("/task_id"))
                .await
                .str("/status"),
            "Canceled"
        );
        all_over(&app, &root.str("/task_id")).await;
    }
    app.stop().await;
}

#[apply(on_both)]
async fn decision_and_cancel_in_a_tree_are_replayed_with_their_key(on: On) {
    let app = trees(on, "").await;
    let root = paused(&app, &does(&[pays("analyst", 1), pays("clerk", 2)], "end")).await;
    let root_id = root.str("/task_id");
    let (waits, request) = open(&root)[0].clone();
    let key = |key: &str| app.owner().keyed(key);
    let (first, again) = (
        key("a").approve(&request).await,
        key("a").approve(&request).await,
    );
    assert_eq!(
        (
            first.status,
            again.status,
            again.header("idempotency-replayed")
        ),
        (200, 200, "true"),
        "{}",
        again.text
    );
    assert_eq!(
        (again.str("/task_id"), &again.body),
        (root_id.clone(), &first.body)
    );
    let other = open(&root)
        .into_iter()
        .find(|(task, _)| *task != waits)
        .unwrap()
        .0;
    let path = format!("/v1/tasks/{other}/cancel");
    let (first, again) = (key("b").hit(&path).await, key("b").hit(&path).await);
    assert_eq!(
        (
            first.str("/task_id"),
            again.str("/task_id"),
            again.header("idempotency-replayed")
        ),
        (other.clone(), other.clone(), "true")
    );
    assert_eq!(still(&app, &root_id).await.str("/status"), "Completed");
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn tree_with_28_questions_opens_at_most_20_at_a_time_and_asks_each_once(on: On) {
    let app = trees(on, "").await;
    let wonders = |who: usize| {
        let four: Vec<_> = (0..4)
            .map(|which| {
                call(
                    "request_human_guidance",
                    &json!({"question": format!("{who}.{which}?")}),
                )
            })
            .collect();
        give("analyst", &does(&four, format!("analyst {who}")))
    };
    let root = paused(&app, &does(&(0..7).map(wonders).collect::<Vec<_>>(), "end")).await;
    let root_id = root.str("/task_id");
    let mut answered = 0;
    loop {
        let shown = still(&app, &root_id).await;
        if shown.str("/status") == "Completed" {
            break;
        }
        let waiting = open(&shown);
        assert!((1..=20).contains(&waiting.len()), "{}", waiting.len());
        let body = json!({"action": "respond", "response": {"answer": "yes"}});
        let told = app.owner().answer(&waiting[0].1, &body).await;
        assert_eq!(told.status, 200, "{}", told.text);
        answered += 1;
    }
    assert_eq!(answered, 28, "each request was asked once");
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_answers_to_one_sub_agent_request_on_two_replicas_have_one_winner() {
    let app = trees(On::Postgres, "").await;
    let other = app.replica().await;
    other.model.otherwise(scripted_answer);
    for _ in 0..repetitions(8, 12) {
        let ran = app.tool.ledger().len();
        let (root_id, request) = waiting(&app, &[pays("analyst", 1)]).await;
        let (one, two) = (app.owner(), other.owner());
        let answers = join_all([
            one.approve(&request),
            two.approve(&request),
            one.approve(&request),
        ])
        .await;
        let taken: Vec<_> = answers
            .iter()
            .map(|answer| answer.status)
            .filter(|status| *status == 200)
            .collect();
        assert_eq!(taken.len(), 1, "{answers:#?}");
        assert!(
            answers
                .iter()
                .all(|answer| answer.status == 200 || answer.str("/code") == "already_decided"),
            "{answers:#?}"
        );
        assert_eq!(still(&app, &root_id).await.str("/status"), "Completed");
        assert_eq!(app.tool.ledger().len(), ran + 1);
    }
    other.stop().await;
    app.stop().await;
}
