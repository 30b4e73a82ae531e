//! Tests of requests that end without an approval: they are declined, canceled with their task, or
//! expired. Also tests the limit on open requests, and external results.

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use super::request_kinds::{
    KINDS, Question, ask, asking, asks, begin, each_has_one_result, filled_in, items,
    last_tool_results, request, results_of, short,
};
use crate::support::eventually;
use crate::support::test_app::{On, TestApp};

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

/// Moves the deadline of each open request into the past. A short `expires_in` could pass before a
/// slow machine has created all requests of a test.
async fn pass_deadlines(app: &TestApp) {
    let sql = "update intervention_request set expires_at = 1 where status = 'pending'";
    app.database.execute(sql).await;
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
            assert_eq!(
                (done.status, done.str("/status").as_str()),
                (200, "Canceled"),
                "{kind}: {}",
                done.text
            );
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
        assert_eq!(
            (late.status, late.str("/code").as_str()),
            (409, "request_withdrawn"),
            "{kind}: {}",
            late.text
        );
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
async fn passed_deadline_is_told_and_the_task_goes_on_or_ends(on: On) {
    for (terms, status) in [("", "Completed"), (", on_expiry: cancel", "Canceled")] {
        let app = asking(on, &short("1h", terms)).await;
        let mut questions = Vec::new();
        for kind in KINDS {
            questions.push((kind, ask(&app, kind).await));
        }
        pass_deadlines(&app).await;
        for (kind, question) in &questions {
            let ended = async || {
                let journal = items(&app, &question.task).await;
                let last = journal.last().unwrap();
                let has_ended = last["type"] == "task_status"
                    && last["status"] != "Paused"
                    && last["status"] != "Running";
                has_ended.then_some(journal)
            };
            let journal = eventually("the task has ended", ended).await;
            assert_eq!(
                journal.last().unwrap()["status"],
                status,
                "{kind}: {journal:#?}"
            );
            each_has_one_result(&journal);
            let (_, outcome) = &outcomes(&journal)[0];
            let expected = match *kind {
                "reconcile" => "unknown",
                _ if status == "Canceled" => "canceled",
                _ => "expired",
            };
            assert_eq!(outcome, expected, "{kind}{terms}: {journal:#?}");
            let content = results_of(&journal, &question.call)[0]["content"]
                .as_str()
                .unwrap();
            assert!(
                expected == "canceled" || content.contains("expired"),
                "{kind}: {content}"
            );
            let after = request(&app, &question.id).await;
            assert_eq!(
                (&after["status"], &after["decision"]),
                (&json!("expired"), &Value::Null),
                "{kind}"
            );
            let history = app
                .owner()
                .get(&format!(
                    "/v1/requests?task_id={}&status=expired",
                    question.task
                ))
                .await;
            assert_eq!(history.str("/requests/0/request_id"), question.id, "{kind}");
            assert_eq!(
                app.owner().get("/v1/requests?status=expired").await.body["requests"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|request| request["request_id"] == question.id.as_str())
                    .count(),
                1,
                "{kind}"
            );
        }
        assert_eq!(
            app.owner().get("/v1/requests").await.body["requests"],
            json!([])
        );
        app.stop().await;
    }
}

#[apply(on_both)]
async fn external_result_is_passed_on_as_it_was_written(on: On) {
    let app = asking(on, "").await;
    for (result, passed_on) in [
        (r#""plain text""#, "plain text"),
        (r#""""#, ""),
        ("null", "null"),
        ("false", "false"),
        ("1.10", "1.10"),
        (BIG, BIG),
        (r#"[1E2,{"b":1,"a":-0}]"#, r#"[1E2,{"b":1,"a":-0}]"#),
        (
            r#"{"n":12345678901234567890123,"t":"é"}"#,
            r#"{"n":12345678901234567890123,"t":"é"}"#,
        ),
    ] {
        let question = ask(&app, "external_result").await;
        assert_eq!(question.request["form"], Value::Null);
        let body = format!(r#"{{"action":"respond","result": {result} }}"#);
        let answer = async || {
            app.owner()
                .send(
                    Method::POST,
                    &question.path(),
                    Some(("application/json", body.clone())),
                )
                .await
        };
        let done = answer().await;
        assert_eq!(
            (done.status, done.str("/status").as_str()),
            (200, "Completed"),
            "{result}: {}",
            done.text
        );
        assert_eq!(last_tool_results(&app), [passed_on]);
        let late = answer().await;
        late.assert_code(409, "already_decided");
        assert!(
            late.text.contains(&format!(r#""result":{result}"#)),
            "{}",
            late.text
        );
        let journal = items(&app, &question.task).await;
        assert_eq!(
            results_of(&journal, &question.call)[0]["content"],
            passed_on
        );
        for path in [
            question.path(),
            format!("/v1/tasks/{}/items", question.task),
        ] {
            let shown = app.owner().get(&path).await;
            assert!(
                shown.text.contains(&format!(r#""result":{result}"#)),
                "{path}: {}",
                shown.text
            );
        }
    }
    assert!(app.tool.ledger().is_empty());
    app.stop().await;
}

#[apply(on_both)]
async fn external_result_that_does_not_fit_the_tool_is_refused(on: On) {
    let app = asking(on, "").await;
    let question = Question::of(&begin(&app, &[("measure", "{}")]).await, "external_result");
    assert_eq!(question.request["form"]["required"], json!(["metres"]));
    let before = items(&app, &question.task).await;
    for (result, place) in [
        (json!({}), "/result/metres"),
        (json!({"metres": "s3cret"}), "/result/metres"),
        (json!({"metres": -1}), "/result/metres"),
        (json!({"metres": 1, "note": {"s3cret": 1}}), "/result/note"),
        (json!("s3cret"), "/result"),
        (json!([{"metres": 1}]), "/result"),
        (Value::Null, "/result"),
    ] {
        let reply = app
            .owner()
            .post(
                &question.path(),
                &json!({"action": "respond", "result": result}),
            )
            .await;
        assert_eq!(
            (reply.status, reply.str("/code").as_str()),
            (422, "invalid"),
            "{result}: {}",
            reply.text
        );
        assert_eq!(
            (
                reply.str("/errors/0/pointer").as_str(),
                reply.text.contains("s3cret")
            ),
            (place, false),
            "{}",
            reply.text
        );
    }
    assert_eq!(
        items(&app, &question.task).await,
        before,
        "a refusal changed something"
    );
    let body = format!(r#"{{"action":"respond","result":{{"metres":{BIG},"more":true}}}}"#);
    let done = app
        .owner()
        .send(
            Method::POST,
            &question.path(),
            Some(("application/json", body)),
        )
        .await;
    done.assert_status(200, "Completed");
    assert_eq!(
        last_tool_results(&app),
        [format!(r#"{{"metres":{BIG},"more":true}}"#)]
    );
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
async fn call_decided_before_the_deadline_keeps_its_decision(on: On) {
    let app = asking(on, &short("1h", "")).await;
    let texts = [1, 2, 3, 4].map(|order| format!(r#"{{"order":{order},"amount":9}}"#));
    let asked = begin(
        &app,
        &texts.each_ref().map(|text| ("refund", text.as_str())),
    )
    .await;
    let question = Question::of(&asked, "approval");
    let ids: Vec<_> = question.request["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["tool_call_id"].as_str().unwrap().to_owned())
        .collect();
    let some = json!({"decisions": {
        &ids[0]: {"action": "respond", "result": "by hand"},
        &ids[1]: {"action": "approve"},
        &ids[2]: {"action": "reject", "reason": "not this"},
    }});
    let partly = app.owner().post(&question.path(), &some).await;
    partly.assert_status(200, "Paused");
    for one in [0, 1, 2] {
        // If one call of an answer is already decided, the service refuses the whole answer.
        let both = json!({"decisions": {&ids[one]: {"action": "approve"}, &ids[3]: {"action": "approve"}}});
        let late = app.owner().post(&question.path(), &both).await;
        late.assert_code(409, "already_decided");
        assert_eq!(
            late.body["decision"]["decisions"][&ids[one]]["by"], "alice",
            "{}",
            late.text
        );
        assert_eq!(late.str("/request/status"), "pending");
    }
    pass_deadlines(&app).await;
    let completed = async || {
        Some(items(&app, &question.task).await)
            .filter(|journal| journal.last().unwrap()["status"] == "Completed")
    };
    let journal = eventually("the task is completed", completed).await;
    each_has_one_result(&journal);
    let of = |call: usize| {
        results_of(&journal, &ids[call])[0]["outcome"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        [0, 1, 2, 3].map(of),
        ["responded", "succeeded", "rejected", "expired"]
    );
    assert_eq!(app.tool.ledger().len(), 1);
    let results = last_tool_results(&app);
    assert!(
        results[0] == "by hand" && results[2].contains("not this"),
        "{results:?}"
    );
    let late = app
        .owner()
        .post(&question.path(), &json!({"action": "approve"}))
        .await;
    late.assert_code(410, "request_expired");
    app.stop().await;
}

#[apply(on_both)]
async fn edit_is_judged_and_refused_by_place_where_it_does_not_fit(on: On) {
    let more = "  - { name: huge, tools: [refund], when: 'args.amount > 1000.0', decide: deny, reason: Too much. }
  - { name: large, tools: [refund], when: 'args.amount > 500.0', decide: hold, approvers: { groups: [finance] } }
  - { name: counted, tools: [count], decide: hold }\n";
    let app = asking(on, more).await;
    let question = ask(&app, "approval").await;
    let edit = |question: &Question, arguments: Value| json!({"decisions": {&question.call: {"action": "edit", "arguments": arguments}}});
    let before = items(&app, &question.task).await;
    for (arguments, place) in [
        (json!({"order": 17}), "/amount"),
        (json!({"order": 17, "amount": 0}), "/amount"),
        (json!({"order": 17, "amount": 1, "more": 1}), "/more"),
        (json!({"order": "s3cret", "amount": 1}), "/order"),
        (json!({"order": 17, "amount": 1001}), ""),
    ] {
        let reply = app
            .owner()
            .post(&question.path(), &edit(&question, arguments))
            .await;
        reply.assert_code(422, "invalid");
        let at = format!("/decisions/{}/arguments{place}", question.call);
        assert_eq!(
            (
                reply.str("/errors/0/pointer"),
                reply.text.contains("s3cret")
            ),
            (at, false),
            "{}",
            reply.text
        );
    }
    assert_eq!(
        items(&app, &question.task).await,
        before,
        "a refusal changed something"
    );
    let asked = app
        .owner()
        .post(
            &question.path(),
            &edit(&question, json!({"order": 17, "amount": 600})),
        )
        .await;
    let anew = Question::of(&asked, "approval");
    assert_ne!(anew.id, question.id);
    assert_eq!(
        (&anew.call, &anew.request["approvers"]["groups"]),
        (&question.call, &json!(["finance"]))
    );
    assert_eq!(
        anew.request["tool_calls"][0]["arguments"],
        json!({"order": 17, "amount": 600})
    );
    assert_eq!(
        request(&app, &question.id).await["tool_calls"][0]["arguments"]["amount"],
        120,
        "the request keeps its arguments"
    );
    assert_eq!(
        app.owner()
            .hit(&format!("{}/approve", anew.path()))
            .await
            .status,
        403
    );
    assert!(app.tool.ledger().is_empty());
    let done = app
        .approver()
        .hit(&format!("{}/approve", anew.path()))
        .await;
    assert_eq!(
        (done.str("/status").as_str(), app.tool.ledger().len()),
        ("Completed", 1),
        "{}",
        done.text
    );
    assert!(
        app.tool.ledger()[0].body.contains("600") && last_tool_results(&app)[0].contains("600")
    );

    let held = Question::of(&begin(&app, &[asks("external_result")]).await, "approval");
    let asked = app
        .owner()
        .post(&held.path(), &edit(&held, json!({"what": "bills"})))
        .await;
    let outside = Question::of(&asked, "external_result");
    assert_eq!(
        outside.request["tool_calls"][0]["arguments"],
        json!({"what": "bills"}),
        "the result is requested for the approved arguments"
    );
    let done = app
        .owner()
        .post(&outside.path(), &json!({"action": "respond", "result": 4}))
        .await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    assert!(
        last_tool_results(&app)[0].contains("bills"),
        "the model is told which bytes counted: {:?}",
        last_tool_results(&app)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn external_result_is_its_owners_after_other_people_have_approved_the_call(on: On) {
    let more =
        "  - { name: counts, tools: [count], decide: hold, approvers: { groups: [finance] } }\n";
    let app = asking(on, more).await;
    let held = Question::of(&begin(&app, &[asks("external_result")]).await, "approval");
    assert_eq!(
        app.owner()
            .hit(&format!("{}/approve", held.path()))
            .await
            .status,
        403
    );
    let asked = app
        .approver()
        .hit(&format!("{}/approve", held.path()))
        .await;
    let outside = Question::of(&asked, "external_result");
    let result = json!({"action": "respond", "result": 4});
    assert_eq!(
        app.approver().post(&outside.path(), &result).await.status,
        403
    );
    let done = app.owner().post(&outside.path(), &result).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
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
            assert_eq!(
                (again.status, again.str("/decision/by").as_str()),
                (409, "bob"),
                "{}",
                again.text
            );
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
