//! Tests keys at the POST of every operation: a malformed key is refused, before any effect.

use std::collections::BTreeSet;

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::gate::{self, AGENT, refund};
use super::KEY;
use crate::support::fake_chat_completions::text_answer;
use crate::support::links::{DECIDING, PEOPLE, SEALING_KEY, link};
use crate::support::test_app::{ALICE, Actor, BOB, CAROL, OPS, OTHER, On, Reply, TestApp};

/// The `detail` of the refusal of a malformed key.
const MALFORMED: &str = "Idempotency-Key must be one header of 1 to 255 visible ASCII characters.";

const NOT_THERE: &str = "00000000-0000-7000-8000-000000000000";

/// Stores a dead delivery for each task, with the id of the task.
const DEAD_DELIVERIES: &str = "
    insert into delivery (delivery_id, tenant, target, person, type, root_task_id, change_id, event_number, state,
        due_at, attempts, created_at, ended_at)
    select task_id, tenant, 'backend', '', 'task.created', root_task_id, task_id, 1, 'dead', created_at, 10, created_at,
        created_at from agent_task";

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

/// Creates a standing decision, a failed task, a held task, dead deliveries and a session. Returns
/// a POST of each operation.
async fn every_post(app: &TestApp) -> Vec<Post> {
    let remembered = app.held().await;
    app.model.then(text_answer("done"));
    let wish = json!({"action": "approve", "remember": {"for": "task", "expires_in": "1h"}});
    let path = format!("/resume/{}", remembered.request);
    let approved = app.approver().post(&path, &wish).await;
    assert_eq!(approved.status, 200, "{}", approved.text);
    let grants = app.approver().get("/v1/grants").await;
    app.model.then_fails(400);
    let failed = app.owner().create_task("fail").await;
    failed.assert_status(201, "Failed");
    let (grant, failed) = (grants.str("/grants/0/grant_id"), failed.str("/task_id"));
    let held = app.held().await;
    app.database.execute(DEAD_DELIVERIES).await;
    let (task, request) = (held.task.as_str(), held.request.as_str());
    let digest = held.digest();
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
        Post::json("/v1/deliveries/{delivery_id}/resend", task, OPS, &none),
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

/// Returns a text that changes with each effect of a POST: the counts of the rows, of the ended
/// standing decisions, and of the deliveries that are due.
async fn stored(app: &TestApp) -> String {
    let counted = &[
        "agent_task",
        "agent_task_item",
        "intervention_request",
        "decision",
        "idempotency",
        "browser_session",
        "standing_grant where revoked_at is not null",
        "delivery where state = 'due'",
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
        page.about(&post.template)
            .assert_header(400, "content-type", "text/html; charset=utf-8");
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
    let template = "/v1/deliveries/{delivery_id}/resend";
    let resend = post_of(&posts, template).path.as_str();
    let unknown = filled(template, NOT_THERE);
    for (key, path, status) in [
        (Some(CAROL), grant, 403),
        (Some(OTHER), grant, 404),
        (Some(BOB), "/grants/x", 404),
        (Some(BOB), grant, 400),
        (Some(ALICE), "/mcp/refunds", 403),
        (Some(AGENT), "/mcp/nowhere", 404),
        (Some(AGENT), "/mcp/refunds", 400),
        (Some(BOB), resend, 403),
        (Some(BOB), unknown.as_str(), 403),
        (Some(OPS), unknown.as_str(), 404),
        (Some(OPS), resend, 400),
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
            reply
                .about(&template)
                .assert_header(303, "location", location);
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
