//! Tests of calls at a gate that a standing decision allows, and that the gate holds anew because
//! of an earlier call. The rule that offered the standing decision decides who is asked, and for
//! how long.

use holdpoint::task::time::Time;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::{answer_as, ask, assert_call, decide, items, refund, types, yaml};
use crate::api::approval_cycle::on_both;
use crate::support::test_app::{On, Reply, TestApp};

const APPROVERS: &str = "approvers: { groups: [finance] }";

/// Further keys of the rule `large`. The deadline differs from the 24 hours that apply without a
/// rule.
const OFFER: &str = r#"expires_in: 1h, remember: { when: "args.amount <= 500.0", for: [owner], most: 4h, uses: 10 }"#;

fn remembering() -> String {
    yaml("").replacen(APPROVERS, &format!("{APPROVERS}, {OFFER}"), 1)
}

/// Proposes a refund of 120. Approves the refund as Bob, with a standing decision.
async fn approve_and_remember(app: &TestApp) {
    let held = ask(app, &refund(120), 0).await;
    assert_call(&held, 202, "pending", "pending", Value::Null);
    let answer = json!({"action": "approve", "remember": {"for": "owner", "expires_in": "1h"}});
    answer_as(app.approver(), &held, &answer).await;
}

/// Asserts that a call is held for this reason with the terms of the rule `large`: the members of
/// finance are asked for one hour. The agent's user Alice may not decide.
async fn assert_held_by_the_rule(app: &TestApp, held: &Reply, reason: &str) {
    assert_call(held, 202, "pending", "pending", Value::Null);
    assert!(held.str("/reason").contains(reason), "{}", held.text);
    let asked = &held.body["request"];
    let finance = json!({"owner": false, "users": [], "groups": ["finance"], "required": 1});
    assert_eq!(
        (&asked["approvers"], &asked["tool_calls"][0]["rule"]),
        (&finance, &json!("large")),
        "{}",
        held.text
    );
    let at = |name: &str| Time::parse(&held.str(&format!("/request/{name}"))).unwrap();
    let open_for = at("expires_at").since(at("created_at"));
    assert_eq!(open_for.as_secs(), 3600, "{}", held.text);
    let request = held.str("/request/request_id");
    let listed = app.approver().get("/v1/requests").await;
    assert!(
        listed
            .texts("requests", "request_id")
            .contains(&request.as_str()),
        "{}",
        listed.text
    );
    let refused = app.owner().approve(&request).await;
    refused.assert_code(403, "forbidden");
}

/// Returns the number of requests that were ever opened about a call.
async fn requests(app: &TestApp, call: &Reply) -> usize {
    let items = items(app, call).await;
    let opened = types(&items)
        .into_iter()
        .filter(|kind| *kind == "intervention_requested");
    opened.count()
}

#[apply(on_both)]
async fn call_held_by_a_doubt_despite_a_standing_decision_has_the_terms_of_its_rule(on: On) {
    let app = TestApp::with(on, &remembering()).await;
    approve_and_remember(&app).await;
    let first = ask(&app, &refund(120), 10).await;
    assert_call(&first, 200, "allow", "settled", "succeeded");
    app.tool.answers(500, "broken");
    let failed = ask(&app, &refund(121), 10).await;
    assert_call(&failed, 200, "allow", "settled", "failed");
    assert_eq!(requests(&app, &failed).await, 0, "{}", failed.text);
    app.tool.answers(200, "{}");
    let held = ask(&app, &refund(122), 0).await;
    assert_held_by_the_rule(&app, &held, "failed with status 500").await;
    decide(&app, &held, "approve").await;
    let ran = ask(&app, &refund(122), 10).await;
    assert_call(&ran, 200, "allow", "settled", "succeeded");
    assert_eq!(ran.str("/task_id"), held.str("/task_id"));
    assert_eq!(
        (requests(&app, &ran).await, app.tool.count()),
        (1, 3),
        "{}",
        ran.text
    );
    app.stop().await;
}
