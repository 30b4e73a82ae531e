//! Tests of answers that a link cannot give. The rule or the kind of the request may forbid an
//! answer by link. A link can never answer a different request.

use macro_rules_attribute::apply;

use super::super::approval_cycle::on_both;
use super::super::request_kinds::{ASKING, ask};
use super::{digest, linked, page, page_in, press, yaml};
use crate::support::fake_chat_completions::calls;
use crate::support::links::{DECIDING, PEOPLE, link};
use crate::support::test_app::{ACCOUNTS, ALICE, On, TestApp};

const SIGN_IN: [(&str, &str); 2] = [
    ("en", "To do this, sign in."),
    ("zh", "请登录后执行此操作。"),
];

/// Asserts that a link's page shows the request in both languages without a form. Also asserts that
/// the link refuses a POST of each of `answers`.
async fn is_only_read(app: &TestApp, path: &str, request: &str, answers: &[&[(&str, &str)]]) {
    for (language, words) in SIGN_IN {
        let shown = page_in(app, path, language).await;
        assert_eq!(shown.status, 200, "{}", shown.text);
        let next = format!("/sign-in?next=/resume/{request}");
        shown.assert_has(words);
        shown.assert_has(&next);
        shown.assert_lacks("<form");
        shown.assert_lacks("A decision on this page counts as");
    }
    let as_owner = app.owner().request(request).await;
    let digest = as_owner.str("/digest");
    for fields in answers {
        let fields = [&[("digest", digest.as_str())][..], fields].concat();
        let reply = press(app, path, &fields).await;
        assert_eq!(reply.status, 403, "{fields:?}: {}", reply.text);
        reply.assert_has("A link may not decide this request.");
    }
    let without_digest = press(app, path, &[("action", "approve")]).await;
    assert_eq!(
        without_digest.status, 403,
        "the right is checked before the form: {}",
        without_digest.text
    );
    let now = app.owner().request(request).await;
    assert_eq!(now.str("/status"), "pending");
    now.assert_lacks("\"door\":\"link\"");
}

#[apply(on_both)]
async fn link_never_decides_what_the_rule_keeps_from_links(on: On) {
    for (approvers, may) in [
        ("{ groups: [finance], links: false }", "decide"),
        ("{ groups: [finance], required: 2 }", "decide"),
        ("{ groups: [finance] }", "open"),
        ("{ groups: [finance], required: 2, links: true }", "open"),
        ("{ groups: [finance] }, allow: [edit, respond]", "decide"),
    ] {
        let carl = "    - { user: carl, tenant: acme, groups: [finance], key: \"carl-key-0123456789\" }\n    - { user: bob,";
        let yaml = yaml(approvers).replacen("    - { user: bob,", carl, 1);
        let app = TestApp::with(on, &yaml.replace("may: decide", &format!("may: {may}"))).await;
        let held = app.held().await;
        for user in ["dora", "bob"] {
            let answers = [
                &[("action", "approve")][..],
                &[("action", "reject")],
                &[("action", "respond")],
            ];
            is_only_read(&app, &link(user, &held.request), &held.request, &answers).await;
        }
        assert_eq!(app.tool.ledger().len(), 0);
        app.stop().await;
    }
}

#[apply(on_both)]
async fn link_gives_no_login_no_result_and_no_outcome(on: On) {
    let people = format!(
        "{}{ACCOUNTS}{PEOPLE}{DECIDING}",
        ASKING.replace("{more}", "")
    );
    let app = TestApp::with(on, &people).await;
    for kind in ["credentials", "external_result", "reconcile"] {
        let question = ask(&app, kind).await;
        let answers = [
            &[("action", "respond"), ("result", "x")][..],
            &[
                ("action", "respond"),
                ("field.email", "a@b.c"),
                ("field.token", "t-0123456789"),
            ],
            &[("action", "retry")],
            &[("action", "reject")],
        ];
        is_only_read(&app, &link("alice", &question.id), &question.id, &answers).await;
    }
    app.stop().await;
}

#[apply(on_both)]
async fn link_changes_no_call_and_gives_it_no_result(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    let held = app.held().await;
    let path = link("dora", &held.request);
    let shown = page(&app, &path).await;
    let (_, body) = shown.text.split_once("</style>").unwrap();
    for field in ["call.", "value=\"edit\"", "value=\"respond\""] {
        assert!(!body.contains(field), "{field}");
    }
    let digest = digest(&shown);
    let field = |name: &str| format!("call.{}.{name}", held.call);
    let (action, arguments, result) = (field("action"), field("arguments"), field("result"));
    for fields in [
        &[
            (action.as_str(), "edit"),
            (arguments.as_str(), r#"{"order":17,"amount":1}"#),
        ],
        &[(action.as_str(), "respond"), (result.as_str(), "done")],
    ] {
        let fields = [&[("digest", digest.as_str())][..], fields].concat();
        let reply = press(&app, &path, &fields).await;
        assert_eq!(reply.status, 422, "{}", reply.text);
    }
    assert_eq!(
        app.owner().request(&held.request).await.str("/status"),
        "pending"
    );
    assert_eq!(app.tool.ledger().len(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn link_opens_no_other_request_no_task_and_no_session(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    let (held, other) = (app.held().await, app.held().await);
    let path = link("dora", &held.request);
    let token = path.strip_prefix("/l/").unwrap();
    let shown = page(&app, &path).await;
    for foreign in [
        other.request.as_str(),
        other.task.as_str(),
        "/tasks",
        "/v1/",
        "<script",
        "/inbox",
    ] {
        shown.assert_lacks(foreign);
    }
    assert!(shown.headers.get("set-cookie").is_none());
    let digest = other.digest();
    let reply = press(&app, &path, &[("digest", digest), ("action", "approve")]).await;
    assert_eq!(
        reply.status, 412,
        "the other request's digest: {}",
        reply.text
    );
    assert!(reply.headers.get("set-cookie").is_none());
    for route in [
        "/v1/tasks",
        "/v1/requests",
        "/v1/me",
        &format!("/resume/{}", held.request),
        &format!("/v1/tasks/{}", held.task),
    ] {
        for header in ["authorization", "cookie"] {
            let value = if header == "cookie" {
                format!("holdpoint_session={token}")
            } else {
                format!("Bearer {token}")
            };
            let reply = app.anonymous().header(header, &value).get(route).await;
            assert_eq!(reply.status, 401, "{header} {route}");
        }
    }
    app.stop().await;
}

#[apply(on_both)]
async fn link_takes_nothing_from_a_key_and_gives_nothing_to_one(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    let held = app.held().await;
    let path = link("dora", &held.request);
    for (header, value) in [
        ("authorization", format!("Bearer {ALICE}")),
        ("authorization", "Bearer wrong".to_owned()),
        ("cookie", "holdpoint_session=x".to_owned()),
    ] {
        let with = app
            .anonymous()
            .accept_html()
            .header(header, &value)
            .get(&path)
            .await;
        assert_eq!(with.status, 200, "{header}");
        with.about(&header)
            .assert_has("For dora (dora@acme.example).");
    }
    let fred = link("fred", &held.request);
    let approver = app.approver().accept_html().get(&fred).await;
    assert_eq!(approver.status, 404, "a key opens no other person's link");
    let spoken = app
        .anonymous()
        .header("holdpoint-user", "bob")
        .get(&path)
        .await;
    assert_eq!(spoken.status, 403, "{}", spoken.text);
    app.stop().await;
}

#[apply(on_both)]
async fn refusal_by_link_shows_no_other_open_request(on: On) {
    let mut app = linked(on, "{ groups: [finance] }").await;
    app.model.then(calls(&[
        ("refund", r#"{"order":1,"amount":50}"#),
        ("refund", r#"{"order":2,"amount":60}"#),
    ]));
    let task = app.owner().create_task("go").await;
    let request = task.str("/pending/0/request_id");
    let path = link("dora", &request);
    let digest = digest(&page(&app, &path).await);
    app.restart_with(|yaml| {
        yaml.replace("{tool}/refund", "{tool}/other")
            .replace("/refund\"", "/elsewhere\"")
    })
    .await;
    let client = app.anonymous().header("origin", &app.url());
    let fields = [("digest", digest.as_str()), ("action", "approve")];
    let reply = client.submit(&path, &fields).await;
    reply.assert_code(409, "request_withdrawn");
    assert!(reply.body.get("pending").is_none(), "{}", reply.text);
    app.stop().await;
}
