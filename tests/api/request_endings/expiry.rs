//! Tests requests whose deadline passes before a person has decided all their calls.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::{
    KINDS, Question, ask, asking, begin, each_has_one_result, items, last_tool_results, request,
    results_of, short,
};
use super::outcomes;
use crate::support::eventually;
use crate::support::test_app::{On, TestApp};

/// Moves the deadline of each open request into the past. A short `expires_in` could pass before a
/// slow machine has created all requests of a test.
async fn pass_deadlines(app: &TestApp) {
    let sql = "update intervention_request set expires_at = 1 where status = 'pending'";
    app.database.execute(sql).await;
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
