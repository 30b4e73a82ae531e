//! Tests of several sub-agents that wait at once: their requests are decided in every order, over
//! several rounds, and with long times between the decisions.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use holdpoint::task::time::Time;
use holdpoint::world::{Clock, SystemClock};
use macro_rules_attribute::apply;
use serde_json::json;

use super::super::approval_cycle::on_both;
use super::super::request_kinds::items;
use super::{
    assert_asks, assert_invariants, does, give, id, of, only, open, outcomes, paused, pays,
    prompts, refund, results, scripted_answer, still, task, tree, trees, turn, typed, yaml,
};
use crate::support::test_app::{On, TestApp};

const ORDERS: [[usize; 3]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];

#[apply(on_both)]
async fn three_waiting_sub_agents_can_be_decided_in_every_order(on: On) {
    let app = trees(on, "").await;
    for order in ORDERS {
        let (ran, asked) = (app.tool.ledger().len(), prompts(&app, "supervisor").len());
        let root = paused(
            &app,
            &does(
                &[pays("clerk", 1), pays("analyst", 2), pays("clerk", 3)],
                "all paid",
            ),
        )
        .await;
        let root_id = root.str("/task_id");
        let pending = root.body["pending"].as_array().unwrap();
        let of_order = |number: usize| {
            let found = pending
                .iter()
                .find(|request| request["tool_calls"][0]["arguments"]["order"] == number + 1)
                .unwrap();
            (
                found["task_id"].as_str().unwrap().to_owned(),
                found["request_id"].as_str().unwrap().to_owned(),
            )
        };
        let mut left = open(&root);
        assert_eq!(left.len(), 3);
        for (child, request) in &left {
            assert_eq!(
                open(&task(&app, child).await),
                [(child.clone(), request.clone())],
                "{order:?}: its own"
            );
        }
        for (place, number) in order.into_iter().enumerate() {
            let (child, request) = of_order(number);
            left.retain(|(asking, _)| *asking != child);
            let mut before = Vec::new();
            for (sibling, _) in &left {
                before.push(items(&app, sibling).await);
            }
            let told = app.owner().approve(&request).await;
            let status = if place == 2 { "Completed" } else { "Paused" };
            told.about(&format_args!("{order:?}"))
                .assert_status(200, status);
            assert_eq!(open(&told), left, "{order:?}: as they were asked");
            assert_eq!(task(&app, &child).await.str("/status"), "Completed");
            for ((sibling, _), before) in left.iter().zip(before) {
                assert_eq!(
                    items(&app, sibling).await,
                    before,
                    "{order:?}: a sibling does not change"
                );
            }
            assert_eq!(app.tool.ledger().len(), ran + place + 1, "{order:?}");
        }
        assert_eq!(
            prompts(&app, "supervisor").len(),
            asked + 2,
            "{order:?}: the model is asked again only with all results"
        );
        let told = results(prompts(&app, "supervisor").last().unwrap());
        assert_eq!(
            told,
            ["clerk paid 1", "analyst paid 2", "clerk paid 3"],
            "{order:?}: in the order of its calls"
        );
        assert_invariants(&app, &root_id).await;
    }
    app.stop().await;
}

#[apply(on_both)]
async fn each_of_three_sub_agents_gets_its_own_decision(on: On) {
    let app = trees(on, "").await;
    let root = paused(
        &app,
        &does(
            &[pays("clerk", 1), pays("analyst", 2), pays("clerk", 3)],
            "end",
        ),
    )
    .await;
    let root_id = root.str("/task_id");
    let request = |order: u32| {
        let pending = root.body["pending"].as_array().unwrap();
        let found = pending
            .iter()
            .find(|request| request["tool_calls"][0]["arguments"]["order"] == order)
            .unwrap();
        let call = found["tool_calls"][0]["tool_call_id"]
            .as_str()
            .unwrap()
            .to_owned();
        (
            format!("/resume/{}", found["request_id"].as_str().unwrap()),
            call,
        )
    };
    let (path, call) = request(1);
    let edit =
        json!({"decisions": {call: {"action": "edit", "arguments": {"order": 1, "amount": 5}}}});
    assert_eq!(
        app.owner().post(&path, &edit).await.str("/status"),
        "Paused"
    );
    let rejected = app
        .owner()
        .post(&request(2).0, &json!({"action": "reject"}))
        .await;
    assert_eq!(rejected.str("/status"), "Paused", "{}", rejected.text);
    let end = app
        .owner()
        .post(&request(3).0, &json!({"action": "approve"}))
        .await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    assert_eq!(
        outcomes(&items(&app, &root_id).await),
        [
            ("clerk", "succeeded"),
            ("analyst", "canceled"),
            ("clerk", "succeeded")
        ]
    );
    let mut ran: Vec<_> = app
        .tool
        .ledger()
        .iter()
        .map(|call| call.body.clone())
        .collect();
    ran.sort();
    assert_eq!(
        ran,
        [r#"{"amount":120,"order":3}"#, r#"{"amount":5,"order":1}"#]
    );
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn sub_agent_can_be_held_twice(on: On) {
    let app = trees(on, "").await;
    let twice = give(
        "analyst",
        &[turn(&[refund(1)]), turn(&[refund(2)]), json!("both paid")],
    );
    let root = paused(&app, &[turn(&[twice])]).await;
    let root_id = root.str("/task_id");
    let second = app.owner().approve(&open(&root)[0].1).await;
    second.assert_status(200, "Paused");
    assert_eq!(open(&second).len(), 1);
    assert_eq!(open(&second)[0].0, open(&root)[0].0);
    assert_ne!(open(&second)[0].1, open(&root)[0].1);
    let end = app.owner().approve(&open(&second)[0].1).await;
    end.assert_completed("supervisor: both paid");
    assert_eq!(
        (app.tool.ledger().len(), tree(&app, &root_id).await.len()),
        (2, 2)
    );
    assert_eq!(
        typed(&items(&app, &root_id).await, "sub_agent_started").len(),
        1
    );
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn agent_asks_for_itself_before_its_sub_agents_start(on: On) {
    let app = trees(on, "").await;
    // While one of a turn's approvals is open, no call of the turn runs and no sub-agent
    // starts.
    let root = paused(
        &app,
        &does(&[pays("analyst", 1), refund(2), pays("clerk", 3)], "end"),
    )
    .await;
    let root_id = root.str("/task_id");
    assert_eq!(root.body["pending"][0]["agent_path"], json!(["supervisor"]));
    assert_eq!(
        (open(&root).len(), tree(&app, &root_id).await.len()),
        (1, 1)
    );
    let next = app.owner().approve(&open(&root)[0].1).await;
    assert_asks(&next, 2);
    for (_, request) in open(&next) {
        assert_eq!(app.owner().approve(&request).await.status, 200);
    }
    let end = task(&app, &root_id).await;
    end.assert_completed("end");
    assert_eq!(app.tool.ledger().len(), 3);
    assert_eq!(
        outcomes(&items(&app, &root_id).await),
        [
            ("analyst", "succeeded"),
            ("refund", "succeeded"),
            ("clerk", "succeeded")
        ]
    );
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn simultaneous_decisions_on_eight_sub_agents_all_count(on: On) {
    let app = trees(on, "").await;
    let eight: Vec<_> = (1..=8)
        .map(|order| pays(if order % 2 == 0 { "clerk" } else { "analyst" }, order))
        .collect();
    let root = paused(&app, &does(&eight, "end")).await;
    let root_id = root.str("/task_id");
    let requests = open(&root);
    assert_eq!(requests.len(), 8);
    let answers = requests.iter().map(|(_, request)| async {
        let actor = app.owner();
        actor.approve(request).await
    });
    for answer in futures_util::future::join_all(answers).await {
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    let end = still(&app, &root_id).await;
    end.assert_completed("end");
    assert_eq!(app.tool.ledger().len(), 8);
    assert_eq!(
        of(&app, &root_id, "clerk").await.len() + of(&app, &root_id, "analyst").await.len(),
        8
    );
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

/// The machine's clock, set ahead by a number of days that a test chooses.
#[derive(Default)]
struct DaysAheadClock(AtomicI64);

#[async_trait::async_trait]
impl Clock for DaysAheadClock {
    fn now(&self) -> Time {
        let days = u64::try_from(self.0.load(Ordering::SeqCst)).unwrap();
        SystemClock.now() + Duration::from_hours(24 * days)
    }

    fn uptime(&self) -> Duration {
        SystemClock.uptime()
    }

    async fn sleep(&self, time: Duration) {
        SystemClock.sleep(time).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sub_agent_waits_for_days_while_its_sibling_is_done() {
    let clock = Arc::new(DaysAheadClock::default());
    let rule = "  - { name: patient, tools: [refund], decide: hold, expires_in: never }\n";
    let app = TestApp::timed(
        On::Sqlite,
        &yaml(rule, |yaml| yaml),
        Arc::<DaysAheadClock>::clone(&clock),
    )
    .await;
    app.model.otherwise(scripted_answer);
    let root = paused(&app, &does(&[pays("analyst", 1), pays("clerk", 2)], "end")).await;
    let root_id = root.str("/task_id");
    let clerk = id(&only(&app, &root_id, "clerk").await);
    let of = |task: &str| {
        open(&root)
            .into_iter()
            .find(|(asking, _)| asking == task)
            .unwrap()
            .1
    };
    let told = app.owner().approve(&of(&clerk)).await;
    assert_eq!(told.str("/status"), "Paused", "{}", told.text);
    clock.0.store(9, Ordering::SeqCst);
    let analyst = id(&only(&app, &root_id, "analyst").await);
    assert_eq!(
        open(&task(&app, &root_id).await),
        [(analyst.clone(), of(&analyst))]
    );
    let end = app.owner().approve(&of(&analyst)).await;
    assert_eq!(end.status, 200, "{}", end.text);
    end.assert_completed("end");
    let journal = items(&app, &analyst).await;
    let at = |kind: &str| {
        typed(&journal, kind)[0]["at"]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap()
    };
    assert!(
        at("decision")
            .duration_since(at("intervention_requested"))
            .as_hours()
            >= 9 * 24
    );
    assert_eq!(app.tool.ledger().len(), 2);
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}
