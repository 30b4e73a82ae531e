//! Tests of random trees of tasks in which several requests are answered at once in random ways:
//! every task ends, and nothing happens twice.

use std::collections::BTreeSet;

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::items;
use super::{
    assert_invariants, begin, call, give, id, limited, refund, still, tree, turn, typed, with,
};
use crate::support::repetitions;
use crate::support::test_app::{Actor, On, TestApp};

/// A source of pseudo-random numbers, which are the same in each run.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Returns the turns of an agent: one or two turns of calls, then a last text. A call of a
/// sub-agent contains that sub-agent's turns.
fn program(rng: &mut Lcg, agent: &str, depth: u64, order: &mut u32) -> Vec<Value> {
    let mut turns = Vec::new();
    for _ in 0..=rng.below(2) {
        let mut calls = Vec::new();
        for _ in 0..=rng.below(3) {
            *order += 1;
            let below: &[&str] = match agent {
                "supervisor" => &["analyst", "clerk", "scribe"],
                "analyst" => &["clerk", "scribe"],
                "clerk" => &["analyst"],
                _ => &[],
            };
            let next = below
                .get(usize::try_from(rng.below(4)).unwrap())
                .copied()
                .filter(|_| depth > 0);
            calls.push(match (next, rng.below(4)) {
                (Some(next), _) => give(next, &program(rng, next, depth - 1, order)),
                (None, 0) => call("lookup", &json!({"order": *order})),
                (None, 1) if agent != "scribe" => call(
                    "request_human_guidance",
                    &json!({"question": format!("{order}?")}),
                ),
                (None, _) => refund(*order),
            });
        }
        turns.push(turn(&calls));
    }
    turns.push(json!(format!("{agent} is done")));
    turns
}

/// Answers one open request, or cancels the task that asks. `way` selects the answer or the cancel.
async fn answer(actor: &Actor<'_>, root: &str, request: &Value, way: u64) {
    let task = request["task_id"].as_str().unwrap();
    let path = format!("/resume/{}", request["request_id"].as_str().unwrap());
    let (of_root, guidance) = (task == root, request["kind"] == "guidance");
    let reply = match (guidance, way) {
        (_, 0) if !of_root => actor.cancel(task).await,
        (_, 1) if !of_root => {
            actor
                .post(&path, &json!({"action": "reject", "then": "cancel"}))
                .await
        }
        (_, 2) => {
            actor
                .post(&path, &json!({"action": "reject", "then": "continue"}))
                .await
        }
        (true, _) => {
            actor
                .post(
                    &path,
                    &json!({"action": "respond", "response": {"answer": "yes"}}),
                )
                .await
        }
        (false, _) => actor.hit(&format!("{path}/approve")).await,
    };
    assert!([200, 202, 409].contains(&reply.status), "{}", reply.text);
}

/// Sends three random answers at a time until no request is open. Asserts that the root then has
/// completed.
async fn answer_until_completed(replicas: &[&TestApp], rng: &mut Lcg, root: &str) {
    for _ in 0..200 {
        let shown = still(replicas[0], root).await;
        let pending = shown.body["pending"].as_array().unwrap();
        if pending.is_empty() {
            assert_eq!(shown.str("/status"), "Completed", "{}", shown.text);
            return;
        }
        let picks: Vec<_> = (0..3)
            .map(|_| {
                (
                    rng.below(pending.len() as u64),
                    rng.below(8),
                    rng.below(replicas.len() as u64),
                )
            })
            .collect();
        let answers = picks.iter().map(|(which, way, who)| async {
            let actor = replicas[usize::try_from(*who).unwrap()].owner();
            answer(
                &actor,
                root,
                &pending[usize::try_from(*which).unwrap()],
                *way,
            )
            .await;
        });
        futures_util::future::join_all(answers).await;
    }
    panic!("{root} does not come to its end");
}

async fn sound(app: &TestApp, root: &str) {
    assert_invariants(app, root).await;
    let tasks = tree(app, root).await;
    let (mut started, mut asked, mut spent) = (BTreeSet::new(), 0, 0);
    for task in &tasks {
        assert!(
            ["Completed", "Canceled"].contains(&task["status"].as_str().unwrap()),
            "{task}"
        );
        assert_eq!(task["pending"], json!([]));
        let journal = items(app, &id(task)).await;
        for start in typed(&journal, "sub_agent_started") {
            started.insert(start["child_task_id"].as_str().unwrap().to_owned());
        }
        for answer in typed(&journal, "assistant_message") {
            asked += 1;
            spent += answer["usage"]["total_tokens"].as_i64().unwrap();
        }
    }
    let children: BTreeSet<_> = tasks.iter().map(id).filter(|task| task != root).collect();
    assert_eq!(
        started, children,
        "every child was started, and no other task"
    );
    let usage = &tasks[0]["usage"];
    assert_eq!(
        (
            usage["model_calls"].as_i64(),
            usage["total_tokens"].as_i64()
        ),
        (Some(asked), Some(spent))
    );
    let keys: Vec<_> = app
        .tool
        .ledger()
        .iter()
        .filter(|call| call.uri == "/refund")
        .map(|call| call.header("idempotency-key").to_owned())
        .collect();
    assert_eq!(
        keys.iter().collect::<BTreeSet<_>>().len(),
        keys.len(),
        "no refund was sent twice"
    );
}

#[apply(on_both)]
async fn trees_of_any_shape_end_whatever_the_answers(on: On) {
    let wide = ["supervisor", "analyst", "clerk"].map(|agent| {
        limited(
            agent,
            "max_model_calls: 500, max_tasks: 500, max_duration: 24h",
        )
    });
    let app = with(on, "", |yaml| {
        wide.iter().fold(yaml, |yaml, limits| limits(yaml))
    })
    .await;
    let other = if on == On::Postgres {
        Some(app.replica().await)
    } else {
        None
    };
    let replicas: Vec<&TestApp> = [&app].into_iter().chain(other.as_ref()).collect();
    let mut rng = Lcg(7);
    for _ in 0..repetitions(3, 5) {
        let mut order = 0;
        let turns = program(&mut rng, "supervisor", 3, &mut order);
        let root = begin(&app, &turns).await.str("/task_id");
        answer_until_completed(&replicas, &mut rng, &root).await;
        sound(&app, &root).await;
    }
    if let Some(other) = other {
        other.stop().await;
    }
    app.stop().await;
}
