//! Tests of `Idempotency-Key` on every POST: a repeated POST has no further effect, and a POST with
//! a malformed key has none.

use std::collections::BTreeSet;

use futures_util::future::{join, join_all};
use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use super::gate::{self, AGENT, refund};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::links::{DECIDING, PEOPLE, SEALING_KEY, link};
use crate::support::test_app::{ALICE, Actor, BOB, CAROL, OPS, OTHER, On, REFUNDS, Reply, TestApp};

const KEY: &str = "idempotency-key";
const NARROWED: &str = r#"
auth:
  api_keys:
    - { user: alice, tenant: acme, key: "alice-key-0123456789" }
    - { user: bob, tenant: acme, groups: [finance], key: "bob-key-0123456789ab" }
    - { user: carol, tenant: acme, groups: [finance], key: "carol-key-0123456789" }
"#;

/// Sends the same body twice with the actor's `Idempotency-Key`. Asserts that the second reply
/// shows the same task, unchanged, and is marked as replayed. Then sends the body with one more
/// space under the same key, and asserts that this POST is refused. Returns the first reply.
async fn twice(actor: &Actor<'_>, path: &str, body: &Value) -> Reply {
    let first = actor.post(path, body).await;
    assert!(first.status < 300, "{path}: {}", first.text);
    assert_eq!(first.header("idempotency-replayed"), "");
    let again = actor.post(path, body).await;
    assert_eq!(
        (again.status, again.header("idempotency-replayed")),
        (first.status, "true"),
        "{path}: {}",
        again.text
    );
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!(again.body["task_id"], first.body["task_id"], "{path}");
    assert_eq!(
        again.body["updated_at"], first.body["updated_at"],
        "{path}: nothing more was done"
    );
    let other = actor
        .send(
            Method::POST,
            path,
            Some(("application/json", format!(" {body}"))),
        )
        .await;
    assert_eq!(
        (other.status, other.str("/code").as_str()),
        (422, "idempotency_key_reused"),
        "{path}"
    );
    first
}

/// The `detail` of the refusal of a malformed key.
const MALFORMED: &str = "Idempotency-Key must be one header of 1 to 255 visible ASCII characters.";
const NOT_THERE: &str = "00000000-0000-7000-8000-000000000000";

/// A POST that succeeds if its idempotency key is well-formed.
struct Post {
    /// The path in the API document.
    template: &'static str,
    path: String,
    /// The API key of the sender, if any.
    sender: Option<&'static str>,
    /// A header that the POST needs.
    header: (&'static str, String),
    /// The content type and the text of the body.
    body: (&'static str, String),
}

impl Post {
    /// Returns a POST of a JSON body. `id` replaces the parameter in the path.
    fn json(template: &'static str, id: &str, sender: &'static str, body: &Value) -> Self {
        Self {
            template,
            path: filled(template, id),
            sender: Some(sender),
            header: ("accept-language", "en".to_owned()),
            body: ("application/json", body.to_string()),
        }
    }

    /// Returns a POST of the form of a page. `id` replaces the parameter in the path.
    fn form(
        template: &'static str,
        id: &str,
        sender: Option<&'static str>,
        header: (&'static str, String),
        form: String,
    ) -> Self {
        Self {
            template,
            path: filled(template, id),
            sender,
            header,
            body: ("application/x-www-form-urlencoded", form),
        }
    }

    /// Sends the POST with a header `Idempotency-Key` for each of `keys`.
    async fn send(&self, app: &TestApp, keys: &[&str], accept: &str) -> Reply {
        let actor = sender(app, self.sender).header("accept", accept);
        let actor = actor.header(self.header.0, &self.header.1);
        let actor = keys.iter().fold(actor, |actor, key| actor.header(KEY, key));
        let (kind, text) = &self.body;
        actor
            .send(Method::POST, &self.path, Some((*kind, text.clone())))
            .await
    }
}

fn sender<'a>(app: &'a TestApp, key: Option<&'static str>) -> Actor<'a> {
    key.map_or_else(|| app.anonymous(), |key| app.actor(key))
}

fn filled(template: &str, id: &str) -> String {
    let Some((start, rest)) = template.split_once('{') else {
        return template.to_owned();
    };
    let (_, end) = rest.split_once('}').unwrap();
    format!("{start}{id}{end}")
}

/// Returns a configuration with a gate, sealed links, an admin who may send messages again, and a
/// rule whose approvals may be remembered.
fn every_feature() -> String {
    let remember = r#"{ groups: [finance] }, remember: { when: "args.amount <= 500.0", for: [task], most: 4h, uses: 3 }"#;
    let yaml = gate::yaml("")
        .replace("{ groups: [finance] }", remember)
        .replace("admin: true, may: [read]", "admin: true");
    let sealed = format!("secrets: {{ keys: [ {{ id: k1, key: \"{SEALING_KEY}\" }} ] }}\n");
    format!("{yaml}{PEOPLE}{sealed}{DECIDING}")
}

/// Creates a standing decision, a failed task, a held task and a session. Returns a POST of each
/// operation.
async fn every_post(app: &TestApp) -> Vec<Post> {
    let remembered = app.held().await;
    app.model.then(text_answer("done"));
    let wish = json!({"action": "approve", "remember": {"for": "task", "expires_in": "1h"}});
    let path = format!("/resume/{}", remembered.request);
    let approved = app.approver().post(&path, &wish).await;
    assert_eq!(approved.status, 200, "{}", approved.text);
    let grants = app.approver().get("/v1/grants").await;
    app.model.then_fails(400);
    let failed = app
        .owner()
        .post("/v1/tasks", &json!({"input": "fail"}))
        .await;
    failed.assert_status(201, "Failed");
    let (grant, failed) = (grants.str("/grants/0/grant_id"), failed.str("/task_id"));
    let held = app.held().await;
    let (task, request) = (held.task.as_str(), held.request.as_str());
    let digest = held.body["pending"][0]["digest"].as_str().unwrap();
    let answer = format!("digest={}&action=approve", digest.replace(':', "%3A"));
    let token = link("dora", request).replace("/l/", "");
    let cookie = app.sign_in(CAROL).await;
    let none = json!({});
    let outcome = json!({"task_id": NOT_THERE, "outcome": "succeeded"});
    let params = json!({"name": "refund", "arguments": {"order": 17, "amount": 5}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let approve = json!({"action": "approve"});
    let english = || ("accept-language", "en".to_owned());
    let (more, target) = (json!({"input": "more"}), json!({"target": "backend"}));
    vec![
        Post::json("/v1/tasks", "", ALICE, &more),
        Post::json("/v1/tasks/{task_id}/messages", &failed, ALICE, &more),
        Post::json("/v1/tasks/{task_id}/retry", &failed, ALICE, &none),
        Post::json("/v1/tasks/{task_id}/cancel", task, ALICE, &none),
        Post::json("/resume/{request_id}", request, BOB, &approve),
        Post::json("/resume/{request_id}/approve", request, BOB, &none),
        Post::json("/resume/{request_id}/reject", request, BOB, &none),
        Post::json("/v1/deliveries/resend", "", OPS, &target),
        Post::json("/v1/deliveries/{delivery_id}/resend", NOT_THERE, OPS, &none),
        Post::json("/v1/gate/calls", "", AGENT, &refund(5)),
        Post::json("/v1/gate/outcomes", "", AGENT, &outcome),
        Post::json("/mcp/{gate}", "refunds", AGENT, &call),
        Post::form(
            "/tasks/{task_id}/cancel",
            task,
            Some(ALICE),
            english(),
            String::new(),
        ),
        Post::form(
            "/grants/{grant_id}",
            &grant,
            Some(BOB),
            english(),
            String::new(),
        ),
        Post::form("/l/{token}", &token, None, ("origin", app.url()), answer),
        Post::form("/sign-in", "", None, english(), format!("key={BOB}")),
        Post::form("/sign-out", "", None, ("cookie", cookie), String::new()),
    ]
}

fn post_of<'p>(posts: &'p [Post], template: &str) -> &'p Post {
    let found = posts.iter().find(|post| post.template == template);
    found.unwrap_or_else(|| panic!("no POST to {template}"))
}

/// Returns a text that changes with each effect of a POST: the counts of the rows, and of the ended
/// standing decisions.
async fn stored(app: &TestApp) -> String {
    let counted = &[
        "agent_task",
        "agent_task_item",
        "intervention_request",
        "decision",
        "idempotency",
        "browser_session",
        "standing_grant where revoked_at is not null",
    ];
    app.database.row_counts(counted).await
}

#[apply(on_both)]
async fn malformed_key_is_refused_by_every_post_which_then_changes_nothing(on: On) {
    let app = TestApp::with(on, &every_feature()).await;
    let posts = every_post(&app).await;
    let document: Value = serde_json::from_str(&holdpoint::http::openapi::openapi_json()).unwrap();
    let paths = document["paths"].as_object().unwrap().iter();
    let paths = paths.filter(|(_, operations)| operations.get("post").is_some());
    let paths: BTreeSet<&str> = paths.map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        posts
            .iter()
            .map(|post| post.template)
            .collect::<BTreeSet<_>>(),
        paths
    );
    let long = "x".repeat(256);
    let malformed: [&[&str]; 5] = [&[""], &["a b"], &[long.as_str()], &["é"], &["a", "b"]];
    let (before, ran) = (stored(&app).await, app.tool.count());
    for post in &posts {
        for keys in malformed {
            let reply = post.send(&app, keys, "*/*").await;
            assert_eq!(
                reply.status, 400,
                "{} {keys:?}: {}",
                post.template, reply.text
            );
            assert_eq!(
                (reply.str("/code").as_str(), reply.str("/detail").as_str()),
                ("bad_request", MALFORMED)
            );
            assert_eq!(reply.header("set-cookie"), "", "{} {keys:?}", post.template);
        }
        assert_eq!(
            (stored(&app).await, app.tool.count()),
            (before.clone(), ran),
            "{}",
            post.template
        );
    }
    let is_of_a_page =
        |post: &&Post| !post.template.starts_with("/v1/") && !post.template.starts_with("/mcp/");
    for post in posts.iter().filter(is_of_a_page) {
        let page = post.send(&app, &["a b"], "text/html").await;
        assert_eq!(
            (page.status, page.header("content-type")),
            (400, "text/html; charset=utf-8"),
            "{}",
            post.template
        );
        assert!(
            page.text.contains(MALFORMED),
            "{}: {}",
            post.template,
            page.text
        );
    }
    for post in &posts {
        let reply = post.send(&app, &["k"], "*/*").await;
        assert!(
            reply.status != 400 && reply.status < 500,
            "{}: {}",
            post.template,
            reply.text
        );
    }
    assert_ne!(stored(&app).await, before);
    app.stop().await;
}

#[apply(on_both)]
async fn right_is_checked_before_the_form_of_a_key_and_the_body_after_it(on: On) {
    let app = TestApp::with(on, &every_feature()).await;
    let posts = every_post(&app).await;
    let grant = post_of(&posts, "/grants/{grant_id}").path.as_str();
    let link = post_of(&posts, "/l/{token}").path.as_str();
    for (key, path, status) in [
        (Some(CAROL), grant, 403),
        (Some(OTHER), grant, 404),
        (Some(BOB), "/grants/x", 404),
        (Some(BOB), grant, 400),
        (Some(ALICE), "/mcp/refunds", 403),
        (Some(AGENT), "/mcp/nowhere", 404),
        (Some(AGENT), "/mcp/refunds", 400),
        (None, "/sign-out", 401),
        (Some(CAROL), "/sign-out", 400),
        (None, "/sign-in", 400),
        (None, "/l/x", 404),
        (None, link, 400),
    ] {
        let actor = sender(&app, key)
            .header(KEY, "a b")
            .header("origin", &app.url());
        let reply = actor
            .send(Method::POST, path, Some(("text/plain", "x".to_owned())))
            .await;
        assert_eq!(reply.status, status, "{key:?} {path}: {}", reply.text);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn repeated_end_of_a_standing_decision_or_a_session_gets_the_same_reply(on: On) {
    let app = TestApp::with(on, &every_feature()).await;
    let posts = every_post(&app).await;
    for (template, location) in [("/grants/{grant_id}", "/grants"), ("/sign-out", "/sign-in")] {
        for _ in 0..2 {
            let reply = post_of(&posts, template).send(&app, &["k"], "*/*").await;
            assert_eq!(
                (reply.status, reply.header("location")),
                (303, location),
                "{template}: {}",
                reply.text
            );
        }
    }
    assert!(
        app.database
            .texts("select key from idempotency")
            .await
            .is_empty()
    );
    app.stop().await;
}

#[apply(on_both)]
async fn repeated_post_in_flight_gets_the_same_reply(on: On) {
    let app = TestApp::start(on).await;
    let owner = || app.owner().header(KEY, "at-once");
    let at_once = async |path: &str, body: &Value| {
        let replies = join_all((0..16).map(|_| async { owner().post(path, body).await })).await;
        let first = replies
            .iter()
            .filter(|reply| reply.header("idempotency-replayed").is_empty())
            .count();
        let told: Vec<_> = replies.iter().map(|reply| reply.status).collect();
        assert!(
            first == 1 && told.iter().all(|status| [200, 202].contains(status)),
            "{path}: {first}, {told:?}"
        );
    };
    for _ in 0..4 {
        app.model
            .then(calls(&[("refund", r#"{"order":1,"amount":50}"#)]));
        let held = app.owner().post("/v1/tasks", &json!({"input": "go"})).await;
        app.model.then_fails(400);
        at_once(
            &format!("/resume/{}", held.str("/pending/0/request_id")),
            &json!({"action": "approve"}),
        )
        .await;
        let task = format!("/v1/tasks/{}", held.str("/task_id"));
        app.model.then(text_answer("refunded"));
        at_once(&format!("{task}/retry"), &json!({})).await;
        app.model
            .then(calls(&[("refund", r#"{"order":2,"amount":50}"#)]));
        at_once(&format!("{task}/messages"), &json!({"input": "more"})).await;
        at_once(&format!("{task}/cancel"), &json!({})).await;
    }
    assert_eq!(app.tool.ledger().len(), 4);
}

#[apply(on_both)]
async fn every_post_may_be_repeated(on: On) {
    let app = TestApp::start(on).await;
    let owner = || app.owner().header(KEY, "the same for all: no");
    assert_eq!(
        owner()
            .post("/v1/tasks", &json!({"input": "x"}))
            .await
            .status,
        400,
        "a key has no blanks"
    );
    let owner = || app.owner().header(KEY, "\"one\"");
    let refund = calls(&[("refund", r#"{"order":1,"amount":50}"#)]);
    app.model.then(refund.clone());
    let held = twice(&owner(), "/v1/tasks", &json!({"input": "go"})).await;
    let task = format!("/v1/tasks/{}", held.str("/task_id"));
    let refused = owner()
        .post(&format!("{task}/messages"), &json!({"input": "more"}))
        .await;
    assert_eq!(refused.status, 409);
    app.model.then(text_answer("refunded"));
    let request = format!("/resume/{}", held.str("/pending/0/request_id"));
    assert_eq!(
        owner()
            .post(&request, &json!({"action": "aprove"}))
            .await
            .status,
        422
    );
    twice(&owner(), &request, &json!({"action": "approve"})).await;
    app.model.then(refund);
    let more = twice(
        &owner(),
        &format!("{task}/messages"),
        &json!({"input": "more"}),
    )
    .await;
    let request = format!("/resume/{}/reject", more.str("/pending/0/request_id"));
    assert_eq!(
        twice(&owner(), &request, &json!({"reason": "no"}))
            .await
            .str("/status"),
        "Canceled"
    );
    let held = app.held().await;
    let cancel = format!("/v1/tasks/{}/cancel", held.task);
    assert_eq!(
        twice(&owner(), &cancel, &json!({})).await.str("/status"),
        "Canceled"
    );
    app.model.then_fails(400);
    let failed = app
        .owner()
        .post("/v1/tasks", &json!({"input": "fail"}))
        .await;
    assert_eq!(failed.str("/status"), "Failed");
    app.model.then(text_answer("now"));
    let retry = format!("/v1/tasks/{}/retry", failed.str("/task_id"));
    assert_eq!(
        twice(&owner(), &retry, &json!({})).await.str("/status"),
        "Completed"
    );
    assert_eq!(app.tool.ledger().len(), 1);
    assert_eq!(app.model.sent().len(), 6, "no question was asked twice");
    app.stop().await;
}

#[apply(on_both)]
async fn repeated_post_waits_with_the_first(on: On) {
    let app = TestApp::start(on).await;
    app.tool.close();
    app.model
        .then(calls(&[("refund", r#"{"order":1,"amount":5}"#)]))
        .then(text_answer("paid"));
    let owner = || app.owner().header(KEY, "k");
    let body = json!({"input": "go"});
    let first = async { owner().post("/v1/tasks", &body).await };
    let later = async {
        app.tool.reached(1).await;
        let now = owner()
            .header("prefer", "wait=0")
            .post("/v1/tasks", &body)
            .await;
        now.assert_status(202, "Running");
        assert_eq!(
            (
                now.header("idempotency-replayed"),
                now.header("preference-applied")
            ),
            ("true", "wait=0")
        );
        let waits = async { owner().post("/v1/tasks", &body).await };
        let ((), last) = join(async { app.tool.open() }, waits).await;
        last
    };
    let (first, last) = join(first, later).await;
    assert_eq!(
        (first.status, first.str("/output").as_str()),
        (201, "paid"),
        "{}",
        first.text
    );
    assert_eq!(
        (last.status, last.str("/output").as_str()),
        (201, "paid"),
        "{}",
        last.text
    );
    assert_eq!(first.body["task_id"], last.body["task_id"]);
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn repeated_post_of_a_caller_who_lost_the_right_is_refused(on: On) {
    let mut app = TestApp::with(
        on,
        &(REFUNDS.replace("{approvers}", "{ groups: [finance] }") + NARROWED),
    )
    .await;
    let held = app.held().await;
    app.model.then(text_answer("paid"));
    let path = format!("/resume/{}/approve", held.request);
    assert_eq!(app.actor(BOB).header(KEY, "k").hit(&path).await.status, 200);
    let created = json!({"input": "mine"});
    app.model.then(text_answer("hello"));
    assert_eq!(
        app.actor(BOB)
            .header(KEY, "c")
            .post("/v1/tasks", &created)
            .await
            .status,
        201
    );
    let narrow = r#"key: "bob-key-0123456789ab", may: [read]"#;
    app.restart_with(|yaml| yaml.replace(r#"key: "bob-key-0123456789ab""#, narrow))
        .await;
    assert_eq!(app.actor(BOB).header(KEY, "k").hit(&path).await.status, 403);
    assert_eq!(
        app.actor(BOB)
            .header(KEY, "c")
            .post("/v1/tasks", &created)
            .await
            .status,
        403
    );
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn repeated_cancel_does_not_end_a_task_reopened_since(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let path = format!("/v1/tasks/{}", held.task);
    assert_eq!(
        app.owner()
            .hit(&format!("{path}/cancel"))
            .await
            .str("/status"),
        "Canceled"
    );
    let key = || app.owner().header(KEY, "again");
    assert_eq!(key().hit(&format!("{path}/cancel")).await.status, 200);
    app.tool.close();
    app.model
        .then(calls(&[("lookup", r#"{"order":1}"#)]))
        .then(text_answer("hello"));
    let reopened = app.owner().header("prefer", "respond-async");
    assert_eq!(
        reopened
            .post(&format!("{path}/messages"), &json!({"input": "go on"}))
            .await
            .status,
        202
    );
    let repeated = key().hit(&format!("{path}/cancel")).await;
    assert_eq!(
        (repeated.status, repeated.header("idempotency-replayed")),
        (200, "true"),
        "{}",
        repeated.text
    );
    app.tool.open();
    let waits = app.owner().header("prefer", "wait=30");
    assert_eq!(waits.get(&path).await.str("/output"), "hello");
    app.stop().await;
}

#[apply(on_both)]
async fn idempotency_key_is_scoped_to_one_path_user_and_tenant(on: On) {
    let app = TestApp::start(on).await;
    let body = json!({"input": "go"});
    let mut tasks = Vec::new();
    for who in [ALICE, BOB, OTHER] {
        let made = app
            .actor(who)
            .header(KEY, "k")
            .post("/v1/tasks", &body)
            .await;
        assert_eq!(
            (made.status, made.header("idempotency-replayed")),
            (201, ""),
            "{}",
            made.text
        );
        tasks.push(made.str("/task_id"));
    }
    let more = app
        .owner()
        .header(KEY, "k")
        .post(&format!("/v1/tasks/{}/messages", tasks[0]), &body)
        .await;
    assert_eq!(
        (more.status, more.header("idempotency-replayed")),
        (200, ""),
        "{}",
        more.text
    );
    tasks.sort();
    tasks.dedup();
    assert_eq!((tasks.len(), app.model.sent().len()), (3, 4));
    app.stop().await;
}

#[apply(on_both)]
async fn refused_post_spends_no_key(on: On) {
    let app = TestApp::start(on).await;
    let owner = || app.owner().header(KEY, "k");
    assert_eq!(
        owner()
            .post("/v1/tasks", &json!({"input": "go", "agent": "nobody"}))
            .await
            .status,
        422
    );
    let made = owner().post("/v1/tasks", &json!({"input": "go"})).await;
    assert_eq!(
        (made.status, made.header("idempotency-replayed")),
        (201, ""),
        "{}",
        made.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn thirty_two_simultaneous_posts_with_one_key_create_one_task(on: On) {
    let app = TestApp::start(on).await;
    let mut others = Vec::new();
    if on == On::Postgres {
        others.push(app.replica().await);
    }
    let body = json!({"input": "go"});
    let posts = (0..32).map(|number: usize| {
        let at = if number.is_multiple_of(2) {
            &app
        } else {
            others.first().unwrap_or(&app)
        };
        let body = &body;
        async move { at.owner().header(KEY, "k").post("/v1/tasks", body).await }
    });
    let replies = join_all(posts).await;
    let first = replies[0].str("/task_id");
    for reply in &replies {
        reply.assert_status(201, "Completed");
        assert_eq!(reply.str("/task_id"), first);
    }
    let fresh = replies
        .iter()
        .filter(|reply| reply.header("idempotency-replayed").is_empty())
        .count();
    assert_eq!((fresh, app.model.sent().len()), (1, 1));
    for other in others {
        other.stop().await;
    }
    app.stop().await;
}

#[apply(on_both)]
async fn idempotency_key_expires_after_a_day_except_for_a_decision(on: On) {
    let app = TestApp::start(on).await;
    let owner = || app.owner().header(KEY, "k");
    let body = json!({"input": "go"});
    let made = owner().post("/v1/tasks", &body).await;
    let held = app.held().await;
    let path = format!("/resume/{}/approve", held.request);
    assert_eq!(owner().hit(&path).await.status, 200);
    app.database
        .execute("update idempotency set created_at = created_at - 86400000000")
        .await;
    let again = owner()
        .post("/v1/tasks", &json!({"input": "another"}))
        .await;
    assert_eq!(
        (again.status, again.header("idempotency-replayed")),
        (201, ""),
        "{}",
        again.text
    );
    assert_ne!(again.str("/task_id"), made.str("/task_id"));
    let answered = owner().hit(&path).await;
    assert_eq!(
        (answered.status, answered.header("idempotency-replayed")),
        (200, "true"),
        "{}",
        answered.text
    );
    app.stop().await;
}
