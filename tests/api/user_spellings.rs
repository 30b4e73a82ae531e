//! Tests of different spellings of one person's name. At every endpoint, the approvals of one
//! person count once, whichever spellings a proxy sends.

mod folding;
mod idempotency_keys;
mod votes;

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ACCOUNTS, Actor, BOB, Held, On, REFUNDS, Reply, TestApp, WEB};

const ADMIN: &str = "admin-key-0123456789";

/// Pairs of spellings. Both spellings of a pair name one person.
const ONE_PERSON: [(&str, &str); 6] = [
    ("alice", "ALICE"),
    ("Zoe@Acme.com", "zoe@acme.COM"),
    ("José", "JOSÉ"),
    ("strasse", "Straße"),
    ("ὀδυσσεύς", "ὈΔΥΣΣΕΎΣ"),
    ("Ａｌｉｃｅ", "ａｌｉｃｅ"),
];

/// Starts the service. A refund needs the approvals of two people among Eve and the members of
/// finance.
async fn app(on: On) -> TestApp {
    let admin = "    - { user: ops, tenant: acme, key: \"admin-key-0123456789\", admin: true }\n";
    let accounts = format!("{}\n{admin}", ACCOUNTS.trim_end());
    TestApp::with(
        on,
        &(REFUNDS.replace(
            "{approvers}",
            "{ users: [Eve], groups: [finance], required: 2 }",
        ) + &accounts),
    )
    .await
}

fn finance<'a>(app: &'a TestApp, user: &str) -> Actor<'a> {
    app.on_behalf_of(user, "finance")
}

async fn answer(actor: &Actor<'_>, held: &Held, body: &Value) -> Reply {
    actor.post(&format!("/resume/{}", held.request), body).await
}

fn approval() -> Value {
    json!({"action": "approve"})
}

fn ids(list: &Reply) -> Vec<String> {
    let tasks = list.body["tasks"]
        .as_array()
        .unwrap_or_else(|| panic!("{}", list.text));
    tasks
        .iter()
        .map(|task| task["task_id"].as_str().unwrap().to_owned())
        .collect()
}

#[apply(on_both)]
async fn every_spelling_of_the_owner_reads_moves_and_lists(on: On) {
    let app = app(on).await;
    for (one, other) in ONE_PERSON {
        let (owner, twin) = (
            app.actor(WEB).header("holdpoint-user", one),
            app.actor(WEB).header("holdpoint-user", other),
        );
        app.model.then_fails(400);
        let failed = owner
            .post("/v1/tasks", &json!({"input": "go", "session_id": "desk"}))
            .await;
        let task = failed.str("/task_id");
        let path = format!("/v1/tasks/{task}");
        let shown = twin.get(&path).await;
        let expected = if one == "alice" { "alice" } else { one };
        shown.assert_text(200, "/user_id", expected);
        assert_eq!(
            ids(&twin.get("/v1/tasks?session_id=desk").await),
            [task.as_str()],
            "{other}"
        );
        app.model.then(text_answer("done"));
        assert_eq!(
            twin.hit(&format!("{path}/retry")).await.str("/status"),
            "Completed"
        );
        app.model
            .then(calls(&[("refund", r#"{"order": 1, "amount": 50}"#)]));
        assert_eq!(
            twin.post(&format!("{path}/messages"), &json!({"input": "more"}))
                .await
                .str("/status"),
            "Paused"
        );
        assert_eq!(
            twin.hit(&format!("{path}/cancel")).await.str("/status"),
            "Canceled"
        );
        for spelling in [one, other] {
            let query: String = url::form_urlencoded::byte_serialize(spelling.as_bytes()).collect();
            let found = ids(&app
                .actor(ADMIN)
                .get(&format!("/v1/tasks?user_id={query}"))
                .await);
            assert_eq!(found, [task.as_str()], "{spelling}");
            assert_eq!(
                ids(&twin.get(&format!("/v1/tasks?user_id={query}")).await),
                [task.as_str()],
                "{spelling}"
            );
        }
        let stranger = app.actor(WEB).header("holdpoint-user", "carol2");
        assert_eq!(
            (
                stranger.get(&path).await.status,
                stranger.hit(&format!("{path}/retry")).await.status
            ),
            (403, 403)
        );
    }
}

#[apply(on_both)]
async fn session_of_a_key_is_its_user_in_every_spelling(on: On) {
    let app = app(on).await;
    let cookie = app.sign_in(BOB).await;
    let browser = || app.anonymous().header("cookie", &cookie);
    // A proxy posted this task for `BOB`, so Bob owns the task and may not approve its request.
    let own = app.held_by(&finance(&app, "BOB")).await;
    assert_eq!(browser().approve(&own.request).await.status, 403);
    assert_eq!(ids(&browser().get("/v1/tasks").await), [own.task.as_str()]);
    assert_eq!(
        browser().task(&own.task).await.str("/user_id"),
        "bob",
        "as the file spells it"
    );
    let others = app.held_by(&app.owner()).await;
    assert_eq!(browser().approve(&others.request).await.status, 200);
    assert_eq!(
        finance(&app, "Bob").approve(&others.request).await.status,
        409
    );
    for header in [
        "holdpoint-user",
        "holdpoint-groups",
        "holdpoint-session",
        "holdpoint-runner",
        "holdpoint-other",
    ] {
        assert_eq!(
            browser()
                .header(header, "bob")
                .get("/v1/tasks")
                .await
                .status,
            403,
            "{header}"
        );
    }
}

#[apply(on_both)]
async fn user_header_that_is_not_nfc_or_holds_a_comma_is_400(on: On) {
    let app = app(on).await;
    for name in [
        "a,b",
        "jose\u{301}",
        "\u{212a}elvin",
        "\u{212b}ke",
        "a b",
        "a\u{a0}",
        "\u{3000}a",
        "a\u{200b}",
        "",
    ] {
        let reply = finance(&app, name).get("/v1/me").await;
        reply
            .about(&format_args!("{name:?}"))
            .assert_code(400, "bad_request");
    }
    let twice = finance(&app, "a")
        .header("holdpoint-user", "a")
        .get("/v1/me")
        .await;
    assert_eq!(twice.status, 400, "{}", twice.text);
    let groups = finance(&app, "a")
        .header("holdpoint-groups", "finance")
        .get("/v1/me")
        .await;
    assert_eq!(groups.status, 400, "{}", groups.text);
    for header in [
        "holdpoint-as",
        "holdpoint-tenant",
        "holdpoint-admin",
        "holdpoint-users",
        "holdpoint-",
    ] {
        let replies = [
            app.owner().header(header, "x").get("/v1/me").await,
            finance(&app, "a")
                .header(header, "x")
                .create_task("go")
                .await,
            app.anonymous()
                .header(header, "x")
                .get("/openapi.json")
                .await,
        ];
        for reply in replies {
            reply.about(&header).assert_code(400, "bad_request");
        }
        assert_eq!(
            app.anonymous()
                .header(header, "x")
                .get("/v1/me")
                .await
                .status,
            401,
            "a key comes first"
        );
        assert_eq!(
            app.anonymous()
                .header(header, "x")
                .get("/healthz")
                .await
                .status,
            200
        );
    }
    for header in ["holdpoint-user", "holdpoint-groups"] {
        assert_eq!(
            app.owner()
                .header(header, "alice")
                .get("/v1/me")
                .await
                .status,
            403,
            "{header}"
        );
    }
}
