//! Tests of calls at a gate that a standing decision covers, and that the gate holds or denies
//! because of an earlier call. If the gate holds such a call, the rule that offered the standing
//! decision decides who is asked, and for how long.

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

/// Returns a configuration in which a rule holds the calls of the repeatable tool `tag`. A standing
/// decision of this rule covers each of these calls.
fn remembering_tags() -> String {
    let allowed = "tools: [lookup, tag], decide: allow }";
    let held = r#"tools: [lookup], decide: allow }
  - { name: tags, tools: [tag], decide: hold, approvers: { groups: [finance] }, remember: { when: 'args.text != ""', for: [owner], most: 1h } }"#;
    yaml("").replacen(allowed, held, 1)
}

fn tag(text: &str) -> Value {
    json!({"tool": "tag", "arguments": {"text": text}})
}

/// Proposes a call, which is held. Approves the call as Bob, with a standing decision.
async fn approve_and_remember(app: &TestApp, body: &Value) {
    let held = ask(app, body, 0).await;
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
    approve_and_remember(&app, &refund(120)).await;
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

#[apply(on_both)]
async fn rejection_beats_a_standing_decision_although_its_tool_is_repeatable(on: On) {
    let app = TestApp::with(on, &remembering_tags()).await;
    let held = ask(&app, &tag("paid"), 0).await;
    assert_call(&held, 202, "pending", "pending", Value::Null);
    approve_and_remember(&app, &tag("open")).await;
    decide(&app, &held, "reject").await;
    // The first repetition gets the answer of the rejected call. The next one is a call of its own.
    let told = ask(&app, &tag("paid"), 5).await;
    assert_call(&told, 200, "deny", "settled", "rejected");
    assert_eq!(told.str("/task_id"), held.str("/task_id"));
    let again = ask(&app, &tag("paid"), 5).await;
    assert_call(&again, 200, "deny", "settled", "rejected");
    assert_ne!(again.str("/task_id"), held.str("/task_id"));
    assert_eq!(requests(&app, &again).await, 0, "{}", again.text);
    assert_eq!(app.tool.count(), 0);
    let other = ask(&app, &tag("late"), 10).await;
    assert_call(&other, 200, "allow", "settled", "succeeded");
    assert_eq!(requests(&app, &other).await, 0, "{}", other.text);
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn repeatable_call_under_a_standing_decision_runs_although_an_equal_call_is_pending(on: On) {
    let app = TestApp::with(on, &remembering_tags()).await;
    let held = ask(&app, &tag("paid"), 0).await;
    assert_call(&held, 202, "pending", "pending", Value::Null);
    approve_and_remember(&app, &tag("open")).await;
    let allowed = ask(&app, &tag("paid"), 10).await;
    assert_call(&allowed, 200, "allow", "settled", "succeeded");
    assert_ne!(allowed.str("/task_id"), held.str("/task_id"));
    assert_eq!(requests(&app, &allowed).await, 0, "{}", allowed.text);
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}
