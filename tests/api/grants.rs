//! Tests of standing decisions over HTTP: giving them with an approval or on the request's page,
//! listing them, and ending them.

mod pages;

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ACCOUNTS, Actor, OPS, OTHER, On, REFUNDS, Reply, TestApp};

const LARGE: &str = r#"{"order": 17, "amount": 120}"#;
const REMEMBER: &str =
    r#", remember: { when: "args.amount <= 500.0", for: [task, owner], most: 4h, uses: 3 }"#;

fn yaml(approvers: &str) -> String {
    REFUNDS.replace("{approvers}", &format!("{approvers}{REMEMBER}"))
}

/// Starts a service in which members of `finance` decide about large refunds and may remember an
/// approval.
async fn finance(on: On) -> TestApp {
    TestApp::with(on, &(yaml("{ groups: [finance] }") + ACCOUNTS)).await
}

fn wish(scope: &str, time: &str) -> Value {
    json!({"for": scope, "expires_in": time})
}

/// Creates a request as Alice. Then approves the request as Bob, with `remember`, which gives a
/// standing decision. Returns the reply to the approval.
async fn remembered(app: &TestApp, scope: &str) -> Reply {
    let held = app.held().await;
    app.model.then(text_answer("done"));
    let body = json!({"action": "approve", "remember": wish(scope, "1h")});
    let path = format!("/resume/{}", held.request);
    let reply = app.approver().post(&path, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply
}

async fn listed(actor: Actor<'_>) -> Vec<Value> {
    let reply = actor.get("/v1/grants").await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.body["grants"].as_array().unwrap().clone()
}

async fn end(actor: &Actor<'_>, id: &str) -> u16 {
    let path = format!("/v1/grants/{id}");
    actor.send(Method::DELETE, &path, None).await.status
}

async fn page(actor: Actor<'_>, path: &str) -> Reply {
    actor.accept_html().get(path).await
}

#[apply(on_both)]
async fn standing_decisions_are_listed_and_ended(on: On) {
    let app = finance(on).await;
    let task = remembered(&app, "owner").await;
    let found = listed(app.approver()).await;
    let grant = &found[0];
    let id = grant["grant_id"].as_str().unwrap();
    let shown = json!({"grant_id": id, "rule": "large", "tool": "refund", "agent": "billing", "owner": "alice", "for": "owner",
            "task_id": task.body["task_id"], "by": "bob", "via": null, "door": "key", "created_at": grant["created_at"],
            "expires_at": grant["expires_at"], "uses": 3, "used": 0, "ended": null});
    assert_eq!((found.len(), grant), (1, &shown));
    for reader in [app.owner(), app.actor(OPS)] {
        assert_eq!(listed(reader).await, found);
    }
    for other in [app.stranger(), app.actor(OTHER)] {
        assert_eq!(listed(other).await, Vec::<Value>::new());
    }
    assert_eq!(app.anonymous().get("/v1/grants").await.status, 401);
    app.model.then(calls(&[("refund", LARGE)]));
    app.model.then(text_answer("done"));
    let second = app.owner().create_task("again").await;
    assert_eq!(
        (second.str("/status").as_str(), app.tool.count()),
        ("Completed", 2)
    );
    let items = app.owner().items(&second.str("/task_id")).await;
    let judged = items.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|item| item["type"] == "judged")
        .unwrap();
    assert_eq!(
        (&judged["verdict"], &judged["rule"], &judged["grant_id"]),
        (&json!("allow"), &json!("large"), &json!(id))
    );
    assert_eq!(listed(app.approver()).await[0]["used"], 1);
    // The owner is not an approver, and the admin's key cannot do more than read.
    for (actor, status) in [
        (app.stranger(), 403),
        (app.owner(), 403),
        (app.actor(OPS), 403),
        (app.actor(OTHER), 404),
        (app.anonymous(), 401),
    ] {
        assert_eq!(end(&actor, id).await, status);
    }
    for actor in [app.approver(), app.actor(OPS)] {
        assert_eq!(
            end(&actor, "00000000-0000-7000-8000-000000000000").await,
            404
        );
    }
    assert_eq!(end(&app.approver(), "x").await, 404);
    assert_eq!(
        (
            end(&app.approver(), id).await,
            end(&app.approver(), id).await
        ),
        (204, 204)
    );
    assert_eq!(listed(app.owner()).await[0]["ended"], "revoked");
    let third = app.held().await;
    assert_eq!(third.body["pending"][0]["tool_calls"][0]["rule"], "large");
    app.stop().await;
}

#[apply(on_both)]
async fn standing_decision_is_ended_by_another_approver_or_an_admin(on: On) {
    let accounts = ACCOUNTS.replace("admin: true, may: [read]", "admin: true");
    let app = TestApp::with(on, &(yaml("{ groups: [finance] }") + &accounts)).await;
    for actor in [app.on_behalf_of("eve", "finance"), app.actor(OPS)] {
        remembered(&app, "owner").await;
        let mut found = listed(app.approver()).await.into_iter();
        let grant = found.find(|one| one["ended"].is_null()).unwrap();
        assert_eq!(end(&actor, grant["grant_id"].as_str().unwrap()).await, 204);
        let found = listed(app.approver()).await;
        assert!(
            found.iter().all(|one| one["ended"] == "revoked"),
            "{found:?}"
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn answer_and_request_show_what_is_offered_and_what_was_given(on: On) {
    let app = finance(on).await;
    let held = app.held().await;
    let offer =
        json!({"when": "args.amount <= 500.0", "for": ["task", "owner"], "most": "4h", "uses": 3});
    assert_eq!(held.body["pending"][0]["tool_calls"][0]["remember"], offer);
    let path = format!("/resume/{}", held.request);
    for (body, place) in [
        (
            json!({"action": "approve", "remember": wish("task", "5h")}),
            "/remember/expires_in",
        ),
        (
            json!({"action": "approve", "remember": wish("session", "1h")}),
            "/remember/for",
        ),
        (
            json!({"action": "reject", "remember": wish("task", "1h")}),
            "/remember",
        ),
    ] {
        let refused = app.approver().post(&path, &body).await;
        refused.assert_text(422, "/errors/0/pointer", place);
    }
    app.model.then(text_answer("done"));
    let approved = app
        .approver()
        .post(
            &format!("{path}/approve"),
            &json!({"remember": wish("task", "30m")}),
        )
        .await;
    assert_eq!(approved.status, 200, "{}", approved.text);
    let decision = app.approver().get(&path).await.body["decision"].clone();
    let given = &decision["remember"];
    let grant = &listed(app.approver()).await[0];
    let expected = json!({"grant_id": grant["grant_id"], "for": "task", "expires_at": grant["expires_at"], "uses": 3});
    assert_eq!(
        (given, &decision["decisions"][&held.call]["remember"]),
        (&expected, &expected)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn call_whose_arguments_say_that_it_needs_no_approval_is_held_or_not_run(on: On) {
    let declared =
        "amount: { type: number, exclusiveMinimum: 0 }, requires_approval: { type: boolean }";
    let yaml = yaml("{ groups: [finance] }")
        .replace("amount: { type: number, exclusiveMinimum: 0 }", declared);
    let app = TestApp::with(on, &(yaml + ACCOUNTS)).await;
    let asks = async |claim: &str| {
        let arguments = format!(r#"{{"order": 17, "amount": 120, {claim}}}"#);
        app.model.then(calls(&[("refund", &arguments)]));
        app.owner().create_task("please").await
    };
    let held = asks(r#""requires_approval": false"#).await;
    assert_eq!(
        (
            held.str("/status").as_str(),
            held.str("/pending/0/tool_calls/0/rule").as_str()
        ),
        ("Paused", "large")
    );
    // The tool's parameters do not declare a member `remember`, so the call is invalid.
    let wished = asks(r#""remember": {"for": "owner", "expires_in": "4h"}"#).await;
    let task = wished.str("/task_id");
    let ended = app.owner().prefer("wait=60").task(&task).await;
    assert_eq!(
        (
            ended.str("/status").as_str(),
            &ended.body["usage"]["model_calls"]
        ),
        ("Completed", &json!(2))
    );
    assert_eq!(
        (app.tool.count(), listed(app.approver()).await),
        (0, Vec::new())
    );
    app.stop().await;
}

#[apply(on_both)]
async fn one_answer_about_several_calls_gives_one_standing_decision_with_its_limit_of_uses(on: On) {
    let app = finance(on).await;
    let refunds = [150, 160].map(|amount| json!({"order": 17, "amount": amount}).to_string());
    let both = refunds.each_ref().map(|text| ("refund", text.as_str()));
    app.model.then(calls(&both));
    let held = app.owner().create_task("go").await;
    app.model.then(text_answer("done"));
    let path = format!("/resume/{}", held.str("/pending/0/request_id"));
    let answer = json!({"action": "approve", "remember": wish("owner", "1h")});
    let approved = app.approver().post(&path, &answer).await;
    assert_eq!(approved.status, 200, "{}", approved.text);
    let given = listed(app.approver()).await;
    assert_eq!((given.len(), &given[0]["uses"]), (1, &json!(3)));
    let id = &given[0]["grant_id"];
    let request = app.approver().get(&path).await;
    for place in [
        "/decision",
        "/tool_calls/0/decision",
        "/tool_calls/1/decision",
    ] {
        let found = request.str(&format!("{place}/remember/grant_id"));
        assert_eq!(*id, found, "{place}: {}", request.text);
    }
    for (number, status) in ["Completed", "Completed", "Completed", "Paused"]
        .into_iter()
        .enumerate()
    {
        app.model.then(calls(&[("refund", LARGE)]));
        app.model.then(text_answer("done"));
        let task = app.owner().create_task("go").await;
        assert_eq!(task.str("/status"), status, "{number}: {}", task.text);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn owner_who_may_approve_is_asked_before_each_call_until_they_remember_one(on: On) {
    let app = TestApp::with(on, &(yaml("{ owner: true }") + ACCOUNTS)).await;
    for runs in 0..2 {
        let held = app.held().await;
        assert_eq!(
            (app.tool.count(), listed(app.owner()).await),
            (runs, Vec::new())
        );
        app.model.then(text_answer("done"));
        let approved = app.owner().approve(&held.request).await;
        assert_eq!(
            (approved.str("/status").as_str(), app.tool.count()),
            ("Completed", runs + 1)
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn rule_that_offers_nothing_takes_no_wish(on: On) {
    let app = TestApp::with_finance(on).await;
    let held = app.held().await;
    assert!(held.body["pending"][0]["tool_calls"][0]["remember"].is_null());
    let path = format!("/resume/{}", held.request);
    let body = json!({"action": "approve", "remember": wish("task", "1h")});
    let refused = app.approver().post(&path, &body).await;
    refused.assert_text(422, "/errors/0/pointer", "/remember");
    assert!(
        !page(app.approver(), &path)
            .await
            .text
            .contains("Do not ask again")
    );
    assert_eq!(app.approver().get(&path).await.body["status"], "pending");
    app.stop().await;
}

#[apply(on_both)]
async fn replayed_answer_gives_no_second_standing_decision(on: On) {
    let app = finance(on).await;
    let held = app.held().await;
    app.model.then(text_answer("done"));
    let body = json!({"action": "approve", "remember": wish("owner", "1h")});
    for _ in 0..2 {
        let actor = app.approver().keyed("once");
        assert_eq!(actor.answer(&held.request, &body).await.status, 200);
    }
    assert_eq!(listed(app.approver()).await.len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn list_is_read_page_by_page(on: On) {
    let app = finance(on).await;
    for _ in 0..3 {
        remembered(&app, "task").await;
    }
    let all = listed(app.approver()).await;
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let reply = app
            .approver()
            .get(&format!("/v1/grants?limit=2{cursor}"))
            .await;
        found.extend(reply.body["grants"].as_array().unwrap().clone());
        match reply.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!((all.len(), found), (3, all));
    assert_eq!(app.approver().get("/v1/grants?limit=0").await.status, 422);
    app.stop().await;
}

#[apply(on_both)]
async fn service_without_accounts_remembers_and_ends_too(on: On) {
    let app = TestApp::with(on, &yaml("{ groups: [finance] }")).await;
    let created = async || {
        app.model.then(calls(&[("refund", LARGE)]));
        app.anonymous().create_task("please").await
    };
    let first = created().await;
    app.model.then(text_answer("done"));
    let path = format!("/resume/{}", first.str("/pending/0/request_id"));
    let body = json!({"action": "approve", "remember": wish("owner", "1h")});
    assert_eq!(
        app.anonymous().post(&path, &body).await.str("/status"),
        "Completed"
    );
    app.model.then(calls(&[("refund", LARGE)]));
    app.model.then(text_answer("done"));
    let second = app.anonymous().create_task("again").await;
    assert_eq!(second.str("/status"), "Completed");
    let grant = listed(app.anonymous()).await.remove(0);
    assert_eq!(
        (&grant["by"], &grant["door"], &grant["used"]),
        (&json!("local"), &Value::Null, &json!(1))
    );
    assert_eq!(
        end(&app.anonymous(), grant["grant_id"].as_str().unwrap()).await,
        204
    );
    assert_eq!(created().await.str("/status"), "Paused");
    app.stop().await;
}
