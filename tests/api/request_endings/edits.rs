//! Tests that the policy and the schema judge the edited arguments of a held call.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::{Question, ask, asking, items, last_tool_results, request};
use crate::support::test_app::On;

#[apply(on_both)]
async fn edit_is_judged_and_refused_by_place_where_it_does_not_fit(on: On) {
    let more = "  - { name: huge, tools: [refund], when: 'args.amount > 1000.0', decide: deny, reason: Too much. }
  - { name: large, tools: [refund], when: 'args.amount > 500.0', decide: hold, approvers: { groups: [finance] } }\n";
    let app = asking(on, more).await;
    let question = ask(&app, "approval").await;
    let edit = |arguments: Value| {
        let edit = json!({"action": "edit", "arguments": arguments});
        json!({"decisions": {&question.call: edit}})
    };
    let before = items(&app, &question.task).await;
    for (arguments, place) in [
        (json!({"order": 17}), "/amount"),
        (json!({"order": 17, "amount": 0}), "/amount"),
        (json!({"order": 17, "amount": 1, "more": 1}), "/more"),
        (json!({"order": "s3cret", "amount": 1}), "/order"),
        (json!({"order": 17, "amount": 1001}), ""),
    ] {
        let reply = app.owner().post(&question.path(), &edit(arguments)).await;
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
    let larger = edit(json!({"order": 17, "amount": 600}));
    let asked = app.owner().post(&question.path(), &larger).await;
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
    app.stop().await;
}
