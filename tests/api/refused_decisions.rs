//! Tests of malformed answers: nothing runs, nothing changes, and a correct approval afterwards
//! still works.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ALICE, BOB, CAROL, OPS, OTHER, On, TestApp, WEB};

/// Returns bodies that the service must refuse, each with its expected status.
fn malformed(call: &str) -> Vec<(u16, String)> {
    let text = |status: u16, body: &str| (status, body.to_owned());
    let json = |status: u16, body: Value| (status, body.to_string());
    vec![
        text(400, "{"),
        text(400, "nonsense"),
        text(400, r#"{"action": "approve", "action": "reject"}"#),
        text(400, r#"{"action": "approve"} trailing"#),
        text(400, "{\"action\": \"approve\u{1}\"}"),
        text(422, "[]"),
        text(422, "null"),
        text(422, "\"approve\""),
        text(422, "17"),
        text(422, "{}"),
        json(422, json!({"action": "aprove"})),
        json(422, json!({"action": "Approve"})),
        json(422, json!({"action": "APPROVE"})),
        json(422, json!({"action": " approve"})),
        json(422, json!({"action": "approve "})),
        json(422, json!({"action": ""})),
        json(422, json!({"action": null})),
        json(422, json!({"action": true})),
        json(422, json!({"action": 1})),
        json(422, json!({"action": ["approve"]})),
        json(422, json!({"action": {"approve": true}})),
        json(422, json!({"actions": "approve"})),
        json(422, json!({"approve": true})),
        json(422, json!({"approved": true})),
        json(422, json!({"decision": "approve"})),
        json(422, json!({"action": "mixed"})),
        json(422, json!({"action": "retry"})),
        json(422, json!({"action": "respond"})),
        json(422, json!({"action": "respond", "result": "done"})),
        json(
            422,
            json!({"action": "respond", "response": {"answer": "yes"}}),
        ),
        json(422, json!({"action": "edit"})),
        json(
            422,
            json!({"action": "edit", "arguments": {"order": 1, "amount": 1}}),
        ),
        json(422, json!({"action": "approve", "then": "continue"})),
        json(422, json!({"action": "reject", "then": "stop"})),
        json(422, json!({"action": "reject", "then": null, "extra": 1})),
        json(422, json!({"action": "approve", "result": 1})),
        json(422, json!({"action": "approve", "response": {}})),
        json(422, json!({"action": "approve", "arguments": {}})),
        json(422, json!({"action": "approve", "reason": 5})),
        json(422, json!({"action": "approve", "reason": "a\u{0}b"})),
        json(
            422,
            json!({"action": "approve", "reason": "x".repeat(4097)}),
        ),
        json(422, json!({"action": "approve", "digest": 5})),
        json(422, json!({"action": "approve", "by": "bob"})),
        json(422, json!({"action": "approve", "decisions": {}})),
        json(422, json!({"decisions": {}})),
        json(422, json!({"decisions": []})),
        json(422, json!({"decisions": null})),
        json(
            422,
            json!({"decisions": {"00000000-0000-7000-8000-000000000000": {"action": "approve"}}}),
        ),
        json(422, json!({"decisions": {call: {"action": "aprove"}}})),
        json(422, json!({"decisions": {call: "approve"}})),
        json(422, json!({"decisions": {call: {}}})),
        json(
            422,
            json!({"decisions": {call: {"action": "approve", "extra": 1}}}),
        ),
        json(412, json!({"action": "approve", "digest": "sha256:0000"})),
    ]
}

#[apply(on_both)]
async fn malformed_decision_changes_nothing(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let path = format!("/resume/{}", held.request);
    let bodies = malformed(&held.call);
    assert!(bodies.len() >= 50);
    for (status, body) in bodies {
        let reply = app.owner().bytes(&path, body.clone().into_bytes()).await;
        assert_eq!(reply.status, status, "{body}: {}", reply.text);
        assert_eq!(reply.header("content-type"), "application/problem+json");
    }
    assert_eq!(
        app.owner().hit(&path).await.status,
        422,
        "an empty body is no answer"
    );
    let now = app.owner().task(&held.task).await;
    assert_eq!(now.body["updated_at"], held.body["updated_at"]);
    assert_eq!(now.str("/pending/0/status"), "pending");
    assert!(app.tool.ledger().is_empty());
    app.model.then(text_answer("refunded"));
    let digest = held.body["pending"][0]["digest"].clone();
    let done = app
        .owner()
        .post(&path, &json!({"action": "approve", "digest": digest}))
        .await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn answer_to_one_call_for_the_whole_request_says_where_it_belongs(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let path = format!("/resume/{}", held.request);
    for body in [
        json!({"action": "respond", "result": "done"}),
        json!({"action": "edit"}),
    ] {
        let reply = app.owner().post(&path, &body).await;
        reply.assert_text(422, "/errors/0/pointer", "/action");
        reply.about(&body).assert_has("belongs inside `decisions`");
    }
    app.stop().await;
}

#[apply(on_both)]
async fn only_people_a_rule_names_may_decide(on: On) {
    let app = TestApp::with_finance(on).await;
    let held = app.held().await;
    let path = format!("/resume/{}/approve", held.request);
    assert_eq!(held.body["pending"][0]["can_decide"], false);
    assert_eq!(held.body["pending"][0]["allowed_actions"], json!([]));
    for (key, status) in [
        (ALICE, 403),
        (CAROL, 403),
        (OPS, 403),
        (OTHER, 404),
        (WEB, 403),
    ] {
        assert_eq!(app.actor(key).hit(&path).await.status, status, "{key}");
    }
    assert_eq!(app.anonymous().hit(&path).await.status, 401);
    for (key, status) in [(BOB, 200), (CAROL, 403), (OTHER, 404)] {
        assert_eq!(
            app.actor(key).request(&held.request).await.status,
            status,
            "{key}"
        );
        assert_eq!(
            app.actor(key).task(&held.task).await.status,
            status,
            "{key}"
        );
    }
    let inbox = app.approver().get("/v1/requests").await;
    assert_eq!(
        inbox.str("/requests/0/request_id"),
        held.request,
        "{}",
        inbox.text
    );
    assert_eq!(
        app.owner().get("/v1/requests").await.body["requests"],
        json!([])
    );
    app.model.then(text_answer("refunded"));
    let web = app.on_behalf_of("zoe", "finance");
    let done = web.hit(&path).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    let request = app.approver().request(&held.request).await;
    assert_eq!(
        (request.str("/decision/by"), request.str("/decision/via")),
        ("zoe".to_owned(), "web".to_owned())
    );
    assert_eq!(app.tool.ledger()[0].header("holdpoint-decided-by"), "zoe");
    app.stop().await;
}

#[apply(on_both)]
async fn second_answer_is_refused_and_told_the_first(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    app.model.then(text_answer("refunded"));
    let path = format!("/resume/{}", held.request);
    assert_eq!(
        app.owner()
            .post(&path, &json!({"action": "approve"}))
            .await
            .status,
        200
    );
    for body in [json!({"action": "approve"}), json!({"action": "reject"})] {
        let late = app.owner().post(&path, &body).await;
        late.assert_code(409, "already_decided");
        assert_eq!(late.str("/decision/action"), "approve");
        assert_eq!(late.str("/request/status"), "resumed");
    }
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn late_answer_to_a_call_is_told_its_decision_while_the_request_is_open_and_after(on: On) {
    let app = TestApp::with_finance(on).await;
    let as_user = |user: &str| app.on_behalf_of(user, "finance");
    app.model
        .then(calls(&[
            ("refund", r#"{"order":1,"amount":50}"#),
            ("refund", r#"{"order":2,"amount":60}"#),
        ]))
        .then(text_answer("done"));
    let asked = app.owner().create_task("please").await;
    let path = format!("/resume/{}", asked.str("/pending/0/request_id"));
    let [first, second] =
        [0, 1].map(|place| asked.str(&format!("/pending/0/tool_calls/{place}/tool_call_id")));
    let of = |call: &str, answer: Value| json!({"decisions": {call: answer}});
    assert_eq!(
        app.approver()
            .post(&path, &of(&first, json!({"action": "approve"})))
            .await
            .status,
        200
    );
    let late = || async {
        let late = as_user("dan")
            .post(&path, &of(&first, json!({"action": "reject"})))
            .await;
        (
            late.status,
            late.str("/decision/by"),
            late.str("/decision/action"),
        )
    };
    assert_eq!(late().await, (409, "bob".into(), "approve".into()));
    let rejection = json!({"action": "reject", "then": "continue"});
    assert_eq!(
        as_user("eve")
            .post(&path, &of(&second, rejection))
            .await
            .status,
        200
    );
    assert_eq!(
        late().await,
        (409, "bob".into(), "approve".into()),
        "the request is closed"
    );
    let whole = as_user("dan")
        .post(&path, &json!({"action": "approve"}))
        .await;
    assert_eq!(
        (whole.str("/decision/by"), whole.str("/decision/action")),
        ("eve".into(), "mixed".into())
    );
    let own = app
        .approver()
        .post(&path, &json!({"action": "approve"}))
        .await;
    let of_first = format!("/decision/decisions/{first}/by");
    assert_eq!(
        (own.status, own.str("/decision/by"), own.str(&of_first)),
        (409, "eve".into(), "bob".into())
    );
    app.stop().await;
}

#[apply(on_both)]
async fn repeated_post_with_the_same_key_does_nothing_more(on: On) {
    let app = TestApp::start(on).await;
    app.model
        .then(calls(&[("refund", r#"{"order":1,"amount":50}"#)]))
        .then(text_answer("done"));
    let body = json!({"input": "go"});
    let first = app.owner().keyed("k1").post("/v1/tasks", &body).await;
    let again = app.owner().keyed("k1").post("/v1/tasks", &body).await;
    assert_eq!((first.status, again.status), (201, 201), "{}", again.text);
    assert_eq!(first.body["task_id"], again.body["task_id"]);
    assert_eq!(again.header("idempotency-replayed"), "true");
    let other = app.owner().keyed("k1").create_task("else").await;
    other.assert_code(422, "idempotency_key_reused");
    let path = format!("/resume/{}/approve", first.str("/pending/0/request_id"));
    let done = app.owner().keyed("k2").hit(&path).await;
    let replay = app.owner().keyed("k2").hit(&path).await;
    assert_eq!((done.status, replay.status), (200, 200), "{}", replay.text);
    assert_eq!(replay.str("/status"), "Completed");
    let spelled = format!(
        "/resume/{}/approve",
        first.str("/pending/0/request_id").to_uppercase()
    );
    for path in [spelled.clone(), spelled.replace('-', "%2D")] {
        let replay = app.owner().keyed("k2").hit(&path).await;
        replay
            .about(&path)
            .assert_header(200, "idempotency-replayed", "true");
    }
    assert_eq!(app.tool.ledger().len(), 1);
    assert_eq!(app.model.sent().len(), 2);
    app.stop().await;
}

#[apply(on_both)]
async fn approval_of_a_tool_that_changed_since_is_refused_and_asked_anew(on: On) {
    let mut app = TestApp::start(on).await;
    let held = app.held().await;
    app.restart_with(|yaml| yaml.replace("/refund\"", "/refund-all\""))
        .await;
    let path = format!("/resume/{}/approve", held.request);
    let refused = app.owner().hit(&path).await;
    refused.assert_code(409, "request_withdrawn");
    assert_eq!(refused.str("/request/status"), "withdrawn");
    let anew = refused.str("/pending/0/request_id");
    assert_ne!(anew, held.request);
    assert!(app.tool.ledger().is_empty());
    app.model.then(text_answer("refunded"));
    let done = app.owner().approve(&anew).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    assert_eq!(app.tool.ledger()[0].uri, "/refund-all");
    app.stop().await;
}

#[apply(on_both)]
async fn page_with_one_button_has_none_once_the_tool_has_changed(on: On) {
    let mut app = TestApp::start(on).await;
    let held = app.held().await;
    let shown = async |app: &TestApp, path: &str| {
        let page = app
            .owner()
            .accept_html()
            .get(&format!("/resume/{}{path}", held.request))
            .await;
        assert_eq!(page.status, 200, "{}", page.text);
        page.text
    };
    let reason = "The tool was changed after this request was opened";
    let mut buttons = Vec::new();
    for verb in ["/approve", "/reject"] {
        let page = shown(&app, verb).await;
        assert!(!page.contains(reason), "{page}");
        buttons.push(page.matches("</button>").count());
    }
    app.restart_with(|yaml| yaml.replace("/refund\"", "/refund-all\""))
        .await;
    for (verb, before) in ["/approve", "/reject"].into_iter().zip(buttons) {
        let page = shown(&app, verb).await;
        assert!(page.contains(reason), "{page}");
        assert_eq!(page.matches("</button>").count(), before - 1, "{page}");
    }
    // The request's own page (the path without a verb) keeps its buttons. Any answer on that page
    // withdraws the request, and the service judges the call again with the changed tool.
    let page = shown(&app, "").await;
    assert!(
        page.contains("</button>") && !page.contains(reason),
        "{page}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn stricter_rule_stops_an_approved_call(on: On) {
    let mut app = TestApp::start(on).await;
    let held = app.held().await;
    app.restart_with(|yaml| {
        yaml.replace(
            "name: large, tools: [refund], decide: hold",
            "name: large, tools: [refund], decide: deny",
        )
    })
    .await;
    app.model.then(text_answer("I see"));
    let done = app.owner().approve(&held.request).await;
    assert_eq!(done.str("/output"), "I see", "{}", done.text);
    assert!(
        app.tool.ledger().is_empty(),
        "an approval does not outlive the rule"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn approved_call_is_asked_again_when_its_rule_has_other_approvers(on: On) {
    let mut app = TestApp::start(on).await;
    let held = app.held().await;
    app.restart_with(|yaml| {
        yaml.replace(
            "approvers: { owner: true }",
            "approvers: { groups: [finance] }",
        )
    })
    .await;
    let asked = app.owner().approve(&held.request).await;
    asked.assert_status(200, "Paused");
    assert!(app.tool.ledger().is_empty());
    let path = format!("/resume/{}/approve", asked.str("/pending/0/request_id"));
    assert_eq!(app.owner().hit(&path).await.status, 403);
    app.model.then(text_answer("refunded"));
    let done = app.approver().hit(&path).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}
