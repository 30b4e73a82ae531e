//! Tests of requests that end without an approval: they are declined, canceled with their task, or
//! expired. Also tests the limit on open requests, external results, and edits.

mod edits;
mod expiry;
mod external_results;

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use super::request_kinds::{
    KINDS, Question, ask, asking, asks, begin, each_has_one_result, filled_in, items,
    last_tool_results, request, results_of,
};
use crate::support::test_app::On;

const BIG: &str = "12345678901234567890123";

/// Returns the tool's name and the outcome of each result in a journal.
fn outcomes(items: &[Value]) -> Vec<(String, String)> {
    let results = items.iter().filter(|item| item["type"] == "tool_result");
    results
        .map(|item| {
            (
                item["name"].as_str().unwrap().to_owned(),
                item["outcome"].as_str().unwrap().to_owned(),
            )
        })
        .collect()
}

#[apply(on_both)]
async fn declined_request_with_cancel_ends_the_task(on: On) {
    let app = asking(on, "").await;
    for kind in KINDS {
        for then in ["cancel", "cancel_root"] {
            let question = ask(&app, kind).await;
            let asked = app.model.sent().len();
            let body = json!({"action": "reject", "then": then, "reason": "enough"});
            let done = app.owner().post(&question.path(), &body).await;
            done.about(&kind).assert_status(200, "Canceled");
            assert_eq!(
                app.model.sent().len(),
                asked,
                "{kind}: the model is not asked"
            );
            let after = request(&app, &question.id).await;
            assert_eq!(
                (&after["status"], &after["decision"]["then"]),
                (&json!("resumed"), &json!(then)),
                "{kind}"
            );
            let outcome = match kind {
                "confirmation" => "responded",
                "reconcile" => "failed",
                _ => "rejected",
            };
            let journal = items(&app, &question.task).await;
            assert_eq!(
                outcomes(&journal),
                [(asks(kind).0.to_owned(), outcome.to_owned())],
                "{kind}"
            );
            let last: Vec<_> = journal
                .iter()
                .rev()
                .take(3)
                .map(|item| item["type"].as_str().unwrap())
                .collect();
            assert_eq!(
                last,
                ["task_status", "tool_result", "decision"],
                "{kind}: no Running before it"
            );
        }
    }
    app.stop().await;
}

#[apply(on_both)]
async fn rejection_with_cancel_closes_the_requests_beside_it(on: On) {
    let app = asking(on, "").await;
    let asked = begin(
        &app,
        &[
            asks("guidance"),
            asks("approval"),
            ("lookup", "{}"),
            asks("external_result"),
            asks("confirmation"),
        ],
    )
    .await;
    let (guidance, approval) = (
        Question::of(&asked, "guidance"),
        Question::of(&asked, "approval"),
    );
    let done = app
        .owner()
        .post(
            &guidance.path(),
            &json!({"action": "reject", "then": "cancel"}),
        )
        .await;
    assert_eq!(done.str("/status"), "Canceled", "{}", done.text);
    let journal = items(&app, &asked.str("/task_id")).await;
    each_has_one_result(&journal);
    let named: Vec<_> = outcomes(&journal)
        .into_iter()
        .map(|(name, outcome)| format!("{name} {outcome}"))
        .collect();
    assert_eq!(
        named,
        [
            "request_human_guidance rejected",
            "refund canceled",
            "lookup canceled",
            "count canceled",
            "request_confirmation canceled"
        ]
    );
    for kind in ["approval", "confirmation"] {
        let late = app
            .owner()
            .hit(&format!("{}/approve", Question::of(&asked, kind).path()))
            .await;
        late.about(&kind).assert_code(409, "request_withdrawn");
    }
    let closed: Vec<_> = journal
        .iter()
        .filter(|item| item["type"] == "request_closed")
        .map(|item| item["reason"].as_str().unwrap())
        .collect();
    assert_eq!(closed, ["canceled", "canceled"]);
    assert_eq!(approval.request["status"], "pending");
    assert!(app.tool.ledger().is_empty());
    app.stop().await;
}

#[apply(on_both)]
async fn cancel_beside_decided_calls_gives_each_call_its_one_result(on: On) {
    let app = asking(on, "").await;
    let turn: Vec<_> = ["1", "2", "3", "4", "5"]
        .map(|order| format!(r#"{{"order":{order},"amount":9}}"#))
        .to_vec();
    let turn: Vec<_> = turn.iter().map(|text| ("refund", text.as_str())).collect();
    let asked = begin(&app, &turn).await;
    let question = Question::of(&asked, "approval");
    let ids: Vec<_> = question.request["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["tool_call_id"].as_str().unwrap().to_owned())
        .collect();
    for (call, decision) in [
        (0, json!({"action": "respond", "result": "by hand"})),
        (1, json!({"action": "approve"})),
        (
            2,
            json!({"action": "reject", "then": "continue", "reason": "no"}),
        ),
        (3, json!({"action": "reject", "then": "cancel"})),
    ] {
        let reply = app
            .owner()
            .post(
                &question.path(),
                &json!({"decisions": {&ids[call]: decision}}),
            )
            .await;
        assert_eq!(
            reply.str("/status"),
            if call == 3 { "Canceled" } else { "Paused" },
            "{}",
            reply.text
        );
    }
    let journal = items(&app, &question.task).await;
    each_has_one_result(&journal);
    let of = |call: usize| {
        results_of(&journal, &ids[call])[0]["outcome"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        [0, 1, 2, 3, 4].map(of),
        ["canceled", "canceled", "rejected", "rejected", "canceled"]
    );
    assert!(app.tool.ledger().is_empty());
    let after = request(&app, &question.id).await;
    assert_eq!(
        (&after["status"], &after["decision"]["then"]),
        (&json!("resumed"), &json!("cancel"))
    );
    assert_eq!(
        after["tool_calls"][4]["decision"],
        Value::Null,
        "undecided calls keep no decision"
    );
    let late = app
        .owner()
        .post(&question.path(), &json!({"action": "approve"}))
        .await;
    late.assert_code(409, "already_decided");
    assert_eq!(late.body["decision"], after["decision"]);
    app.stop().await;
}

#[apply(on_both)]
async fn at_most_twenty_requests_are_open_at_once(on: On) {
    let app = asking(on, "").await;
    for kind in ["guidance", "external_result"] {
        let mut now = begin(&app, &[asks(kind); 23]).await;
        for left in (1..=23_usize).rev() {
            let open = now.body["pending"].as_array().unwrap();
            assert_eq!(open.len(), left.min(20), "{kind}: {}", now.text);
            let question = Question::of(&now, kind);
            let body = match kind {
                "guidance" => json!({"action": "respond", "response": filled_in(kind)}),
                _ => json!({"action": "respond", "result": left}),
            };
            now = app.owner().post(&question.path(), &body).await;
            assert_eq!(now.status, 200, "{}", now.text);
        }
        assert_eq!(now.str("/status"), "Completed", "{kind}: {}", now.text);
        assert_eq!(last_tool_results(&app).len(), 23);
        each_has_one_result(&items(&app, &now.str("/task_id")).await);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn reconcile_request_is_for_its_rules_approvers_and_only_a_retry_needs_several(on: On) {
    let more = "  - { name: two, tools: [lose], decide: hold, approvers: { users: [bob, carol], required: 2 } }\n";
    let app = asking(on, more).await;
    for (body, runs, outcome) in [
        (
            json!({"action": "respond", "result": "it was lost"}),
            1,
            "responded",
        ),
        (json!({"action": "reject"}), 1, "failed"),
        (json!({"action": "retry"}), 2, "succeeded"),
    ] {
        let ran = app.tool.ledger().len();
        let held = Question::of(&begin(&app, &[asks("reconcile")]).await, "approval");
        app.tool.answers(502, "");
        assert_eq!(
            app.approver()
                .hit(&format!("{}/approve", held.path()))
                .await
                .str("/status"),
            "Paused"
        );
        let asked = app
            .stranger()
            .hit(&format!("{}/approve", held.path()))
            .await;
        app.tool.answers(200, "ok");
        let doubt = Question::of(&asked, "reconcile");
        assert_eq!(
            doubt.request["approvers"], held.request["approvers"],
            "the terms of the call's rule"
        );
        assert_eq!(app.owner().post(&doubt.path(), &body).await.status, 403);
        let first = app.approver().post(&doubt.path(), &body).await;
        if outcome == "succeeded" {
            assert_eq!(
                (first.str("/status").as_str(), app.tool.ledger().len()),
                ("Paused", ran + 1),
                "{}",
                first.text
            );
            assert_eq!(
                first.body["pending"][0]["tool_calls"][0]["approvals"][0]["by"],
                "bob"
            );
            let again = app.approver().post(&doubt.path(), &body).await;
            again.assert_text(409, "/decision/by", "bob");
            app.stranger().post(&doubt.path(), &body).await;
        }
        let journal = items(&app, &doubt.task).await;
        assert_eq!(
            results_of(&journal, &doubt.call)[0]["outcome"],
            outcome,
            "{journal:#?}"
        );
        assert_eq!(
            (app.tool.ledger().len(), &journal.last().unwrap()["status"]),
            (ran + runs, &json!("Completed"))
        );
        assert_eq!(request(&app, &doubt.id).await["status"], "resumed");
    }
    app.stop().await;
}
