//! Tests of the list of deliveries and of sending deliveries again: permissions, refusals and
//! pages.

use futures_util::future::join_all;
use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::notify::{BACKEND, NEW, NotifyFixture};
use crate::support::eventually;
use crate::support::fake_chat_completions::text_answer;
use crate::support::fake_receiver::FakeReceiver;
use crate::support::test_app::{ALICE, BOB, OPS, OTHER, On, REFUNDS, TestApp, WEB};

/// Starts a fixture with two deliveries of one task, and waits until both are sent.
async fn fixture() -> NotifyFixture {
    fixture_on(On::Sqlite).await
}

async fn fixture_on(on: On) -> NotifyFixture {
    let named = "tenants: [acme], events: [task.created, task.completed]";
    let fixture = NotifyFixture::start(on, &BACKEND.replace("tenants: [acme]", named)).await;
    fixture.short().await;
    fixture.counted(&[("sent", 2)]).await;
    fixture
}

fn id(delivery: &Value) -> &str {
    delivery["delivery_id"].as_str().unwrap()
}

#[tokio::test]
async fn deliveries_are_listed_for_admins_of_the_tenant_only() {
    let fixture = fixture().await;
    let found = fixture.deliveries("").await;
    assert_eq!(found.len(), 2);
    assert_eq!(
        (&found[0]["channel"], &found[0]["person"]),
        (&json!("webhook"), &json!(null))
    );
    assert_eq!(
        (
            &found[0]["state"],
            &found[0]["attempts"],
            &found[0]["last"]["http_status"]
        ),
        (&json!("sent"), &json!(1), &json!(204))
    );
    for key in [ALICE, BOB, WEB] {
        let paths = [
            "/v1/deliveries".to_owned(),
            format!("/v1/deliveries/{}/resend", id(&found[0])),
        ];
        assert_eq!(fixture.app.actor(key).get(&paths[0]).await.status, 403);
        assert_eq!(fixture.app.actor(key).hit(&paths[1]).await.status, 403);
        let body = json!({"target": "backend"});
        assert_eq!(
            fixture
                .app
                .actor(key)
                .post("/v1/deliveries/resend", &body)
                .await
                .status,
            403
        );
    }
    assert_eq!(
        fixture.app.actor(OTHER).get("/v1/deliveries").await.status,
        403
    );
    assert_eq!(
        fixture.app.anonymous().get("/v1/deliveries").await.status,
        401
    );
}

#[apply(on_both)]
async fn deliveries_without_accounts_are_listed_and_sent_again(on: On) {
    let hook = FakeReceiver::start().await;
    hook.answers(410);
    let entry = BACKEND
        .replace("tenants: [acme]", "events: [task.completed]")
        .replace("{hook}", &hook.url)
        .replace("{new}", NEW);
    let refunds = REFUNDS.replace("{approvers}", "{ groups: [finance] }");
    let app = TestApp::with(on, &format!("{refunds}notify:\n  to:\n{entry}\n")).await;
    app.model.then(text_answer("done"));
    let local = app.anonymous();
    let task = local.post("/v1/tasks", &json!({"input": "hello"})).await;
    task.assert_status(201, "Completed");
    let dead = eventually("the delivery is dead", async || {
        let listed = local.get("/v1/deliveries?state=dead").await;
        assert_eq!(listed.status, 200, "{}", listed.text);
        listed.body["deliveries"].get(0).cloned()
    })
    .await;
    let many = json!({"target": "backend"});
    let resent = local.post("/v1/deliveries/resend", &many).await;
    assert_eq!((resent.status, resent.body), (202, json!({"count": 1})));
    hook.reached(2).await;
    let one = format!("/v1/deliveries/{}/resend", id(&dead));
    let resent = local.hit(&one).await;
    assert_eq!(resent.status, 202, "{}", resent.text);
    let me = local.get("/v1/me").await;
    assert_eq!(me.body["admin"], false, "{}", me.text);
}

#[tokio::test]
async fn admin_whose_key_only_reads_sends_nothing_again() {
    let hook = FakeReceiver::start().await;
    let yaml =
        crate::notify::yaml(BACKEND, &hook).replace("admin: true", "admin: true, may: [read]");
    let app = TestApp::with(On::Sqlite, &yaml).await;
    assert_eq!(app.actor(OPS).get("/v1/deliveries").await.status, 200);
    let body = json!({"target": "backend"});
    assert_eq!(
        app.actor(OPS)
            .post("/v1/deliveries/resend", &body)
            .await
            .status,
        403
    );
}

#[tokio::test]
async fn list_has_pages_and_filters_and_refuses_unknown_ones() {
    let fixture = fixture().await;
    let all = fixture.deliveries("").await;
    let page = fixture.app.actor(OPS).get("/v1/deliveries?limit=1").await;
    assert_eq!(page.body["deliveries"], json!([all[0]]));
    let next = format!("/v1/deliveries?limit=1&cursor={}", page.str("/next_cursor"));
    let page = fixture.app.actor(OPS).get(&next).await;
    assert_eq!(
        page.body,
        json!({"deliveries": [all[1]], "next_cursor": null})
    );
    let root = all[0]["root_task_id"].as_str().unwrap();
    for (query, count) in [
        ("target=backend&state=sent".to_owned(), 2),
        ("target=other".to_owned(), 0),
        ("state=dead&state=due".to_owned(), 0),
        (format!("root_task_id={root}"), 2),
        (format!("request_id={root}"), 0),
    ] {
        assert_eq!(
            fixture.deliveries(&format!("&{query}")).await.len(),
            count,
            "{query}"
        );
    }
    for wrong in [
        "state=gone",
        "request_id=x",
        "root_task_id=x",
        "limit=0",
        "cursor=x",
        "tenant=acme",
    ] {
        let reply = fixture
            .app
            .actor(OPS)
            .get(&format!("/v1/deliveries?{wrong}"))
            .await;
        reply.about(&wrong).assert_code(422, "invalid");
    }
}

#[tokio::test]
async fn resent_message_arrives_again_under_its_id() {
    let fixture = fixture().await;
    let first = fixture.deliveries("").await;
    let reply = fixture
        .app
        .actor(OPS)
        .hit(&format!("/v1/deliveries/{}/resend", id(&first[0])))
        .await;
    assert_eq!((reply.status, reply.text.as_str()), (202, ""));
    fixture.server.reached(3).await;
    assert_eq!(
        fixture.server.all()[2].id(),
        first[0]["webhook_id"].as_str().unwrap()
    );
    let unknown = format!(
        "/v1/deliveries/{}/resend",
        first[0]["root_task_id"].as_str().unwrap()
    );
    assert_eq!(fixture.app.actor(OPS).hit(&unknown).await.status, 404);
    assert_eq!(
        fixture
            .app
            .actor(OPS)
            .hit("/v1/deliveries/x/resend")
            .await
            .status,
        404
    );
}

#[tokio::test]
async fn body_that_does_not_say_what_to_send_again_changes_nothing() {
    let fixture = fixture().await;
    for (body, pointer) in [
        (json!({}), "/target"),
        (json!({"target": 1}), "/target"),
        (json!({"target": "backend", "state": "due"}), "/state"),
        (json!({"target": "backend", "state": "gone"}), "/state"),
        (
            json!({"target": "backend", "state": "sent", "since": "yesterday"}),
            "/since",
        ),
        (
            json!({"target": "backend", "state": "sent", "tenant": "acme"}),
            "/tenant",
        ),
    ] {
        let reply = fixture
            .app
            .actor(OPS)
            .post("/v1/deliveries/resend", &body)
            .await;
        reply
            .about(&body)
            .assert_text(422, "/errors/0/pointer", pointer);
    }
    let none = json!({"target": "backend", "state": "sent", "since": "2100-01-01T00:00:00Z"});
    let reply = fixture
        .app
        .actor(OPS)
        .post("/v1/deliveries/resend", &none)
        .await;
    assert_eq!((reply.status, reply.body), (202, json!({"count": 0})));
    assert_eq!(fixture.server.count(), 2);
}

#[tokio::test]
async fn receiver_without_an_entry_and_without_a_delivery_is_refused() {
    let fixture = fixture().await;
    let removed = "update delivery set target = 'removed'";
    fixture.app.database.execute(removed).await;
    for (target, status, pointer) in [
        ("backend", 202, json!(null)),
        ("removed", 202, json!(null)),
        ("nosuch", 422, json!("/target")),
    ] {
        let reply = fixture
            .app
            .actor(OPS)
            .post("/v1/deliveries/resend", &json!({"target": target}))
            .await;
        assert_eq!(
            (reply.status, &reply.body["errors"][0]["pointer"]),
            (status, &pointer),
            "{target}: {}",
            reply.text
        );
    }
}

#[tokio::test]
async fn receiver_of_another_tenant_is_refused_like_an_unknown_one() {
    let hook = FakeReceiver::start().await;
    let key = format!("key: \"{OTHER}\"");
    let yaml = crate::notify::yaml(BACKEND, &hook).replace(&key, &format!("{key}, admin: true"));
    let app = TestApp::with(On::Sqlite, &yaml).await;
    let mut errors = Vec::new();
    for target in ["backend", "nosuch"] {
        let body = json!({"target": target});
        let reply = app.actor(OTHER).post("/v1/deliveries/resend", &body).await;
        assert_eq!(reply.status, 422, "{}", reply.text);
        errors.push(reply.body["errors"].clone());
    }
    assert_eq!(errors[0], errors[1]);
}

#[apply(on_both)]
async fn resend_repeated_with_its_key_sends_nothing_more(on: On) {
    let fixture = fixture_on(on).await;
    let ops = || fixture.app.actor(OPS).keyed("k");
    let one = format!(
        "/v1/deliveries/{}/resend",
        id(&fixture.deliveries("").await[0])
    );
    let replies = join_all((0..8).map(|_| async { ops().hit(&one).await })).await;
    let first = replies
        .iter()
        .filter(|reply| reply.header("idempotency-replayed").is_empty())
        .count();
    assert_eq!(
        (first, replies.iter().all(|reply| reply.status == 202)),
        (1, true)
    );
    fixture.server.reached(3).await;
    fixture.counted(&[("sent", 2)]).await;
    let malformed = fixture.app.actor(OPS).keyed("a b").hit(&one).await;
    assert_eq!(malformed.status, 400);

    let (many, body) = (
        "/v1/deliveries/resend",
        json!({"target": "backend", "state": "sent"}),
    );
    for (arrived, replayed) in [(5, ""), (5, "true")] {
        let reply = ops().post(many, &body).await;
        reply.assert_header(202, "idempotency-replayed", replayed);
        assert_eq!(reply.body, json!({"count": 2}));
        fixture.server.reached(arrived).await;
        fixture.counted(&[("sent", 2)]).await;
        assert_eq!(fixture.server.count(), arrived);
    }
    let posts = (0..8).map(|_| async {
        let actor = fixture.app.actor(OPS).keyed("at-once");
        let reply = actor.post(many, &body).await;
        assert_eq!((reply.status, &reply.body), (202, &json!({"count": 2})));
        reply.header("idempotency-replayed").is_empty()
    });
    let first = join_all(posts)
        .await
        .into_iter()
        .filter(|is_first| *is_first);
    assert_eq!(first.count(), 1);
    fixture.server.reached(7).await;
    fixture.counted(&[("sent", 2)]).await;
    assert_eq!(fixture.server.count(), 7);
    let other = ops().post(many, &json!({"target": "backend"})).await;
    other.assert_code(422, "idempotency_key_reused");
    assert_eq!(
        ops()
            .hit("/v1/deliveries/00000000-0000-7000-8000-000000000000/resend")
            .await
            .status,
        404
    );
    let not_an_admin = fixture.app.actor(BOB).keyed("k").post(many, &body).await;
    assert_eq!(not_an_admin.status, 403);
}

#[apply(on_both)]
async fn resend_of_an_unknown_delivery_is_not_found_after_a_replay_and_before_key_and_body(on: On) {
    let fixture = fixture_on(on).await;
    let ops = |key: &str| fixture.app.actor(OPS).keyed(key);
    let known = format!(
        "/v1/deliveries/{}/resend",
        id(&fixture.deliveries("").await[0])
    );
    let unknown = "/v1/deliveries/00000000-0000-7000-8000-000000000000/resend";
    let json = "application/json";
    for (key, kind, text, mistake) in [
        ("a b", json, "{}", 400),
        ("k", "text/plain", "x", 415),
        ("k", json, "{", 400),
        ("k", json, r#"{"x":1}"#, 422),
    ] {
        for (path, status) in [(known.as_str(), mistake), (unknown, 404)] {
            let body = Some((kind, text.to_owned()));
            let reply = ops(key).send(Method::POST, path, body).await;
            assert_eq!(reply.status, status, "{path} {key} {text}: {}", reply.text);
        }
    }
    let not_an_admin = fixture.app.actor(BOB).hit(unknown).await;
    assert_eq!(not_an_admin.status, 403, "{}", not_an_admin.text);

    let first = ops("k").hit(&known).await;
    first.assert_header(202, "idempotency-replayed", "");
    fixture.server.reached(3).await;
    fixture.counted(&[("sent", 2)]).await;
    let moved = "update delivery set tenant = 'other'";
    fixture.app.database.execute(moved).await;
    let of_another_tenant = ops("a b").hit(&known).await;
    of_another_tenant.assert_code(404, "not_found");
    let repeated = ops("k").hit(&known).await;
    repeated.assert_header(202, "idempotency-replayed", "true");
}
