//! Tests that a person can decide a request on the service's own pages, and that a web page of
//! another site cannot approve it.

mod edits;
mod origins;
mod user_messages;

use macro_rules_attribute::apply;
use serde_json::json;

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{Actor, BOB, CAROL, On, TestApp, refunds};

/// A refund of 50 for order 17 that waits for an approval.
struct HeldRefund {
    /// The path of the request's page.
    path: String,
    /// The digest of the request.
    digest: String,
    /// The id of the call.
    call: String,
}

async fn hold_refund(app: &TestApp) -> HeldRefund {
    app.model
        .then(calls(&[("refund", r#"{"order":17,"amount":50}"#)]));
    let held = app.anonymous().create_task("go").await;
    HeldRefund {
        path: format!("/resume/{}", held.str("/pending/0/request_id")),
        digest: held.str("/pending/0/digest"),
        call: held.str("/pending/0/tool_calls/0/tool_call_id"),
    }
}

#[apply(on_both)]
async fn path_that_does_not_exist_is_a_page_for_a_browser_and_json_for_a_program(on: On) {
    let app = TestApp::start(on).await;
    for (path, content_type) in [
        ("/inbx", "text/html"),
        ("/v1/inbx", "application/problem+json"),
    ] {
        let found = app.owner().accept_html().get(path).await;
        assert_eq!(found.status, 404, "{path}: {}", found.text);
        assert!(
            found.header("content-type").starts_with(content_type),
            "{path}: {}",
            found.header("content-type")
        );
    }
    let program = app.owner().get("/inbx").await;
    program.assert_header(404, "content-type", "application/problem+json");
    app.stop().await;
}

#[apply(on_both)]
async fn person_with_only_a_browser_can_decide(on: On) {
    let app = TestApp::open(on).await;
    let HeldRefund { path, digest, .. } = hold_refund(&app).await;
    let page = app.anonymous().accept_html().get(&path).await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").starts_with("text/html"));
    assert!(
        page.header("content-security-policy")
            .contains("default-src 'none'")
    );
    page.assert_has("Refund 50 for order 17");
    page.assert_has("<form");
    for link in [format!("{path}/approve"), format!("{path}/reject")] {
        let page = app.anonymous().get(&link).await;
        assert_eq!(page.status, 200, "{}", page.text);
        assert!(page.header("content-type").starts_with("text/html"));
        assert!(
            page.header("content-security-policy")
                .contains("script-src 'self'; connect-src 'self';")
        );
        assert_eq!(page.text.matches("<script").count(), 2);
    }
    for script in ["/times.js", "/follow.js"] {
        assert_eq!(
            app.anonymous().get(script).await.header("content-type"),
            "text/javascript; charset=utf-8"
        );
    }
    assert!(
        !app.anonymous()
            .accept_html()
            .get("/sign-in")
            .await
            .header("content-security-policy")
            .contains("script-src")
    );
    assert!(app.tool.ledger().is_empty(), "reading changes nothing");
    app.model.then(text_answer("ok"));
    let posted = app
        .anonymous()
        .accept_html()
        .header("origin", &app.url())
        .submit(&format!("{path}/approve"), &[("digest", &digest)])
        .await;
    assert_eq!(posted.status, 303, "{}", posted.text);
    assert!(
        posted.header("location").ends_with(&path),
        "{}",
        posted.header("location")
    );
    app.tool.reached(1).await;
    let after = app.anonymous().get(&format!("{path}/approve")).await;
    assert!(
        after.status == 200 && !after.text.contains("<form"),
        "no button where the POST would be refused"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn page_answers_each_call_as_it_was_chosen(on: On) {
    let app = TestApp::open(on).await;
    let amounts = [50, 60, 70].map(|amount| format!(r#"{{"order":17,"amount":{amount}}}"#));
    app.model.then(calls(
        &amounts.each_ref().map(|text| ("refund", text.as_str())),
    ));
    let held = app.anonymous().create_task("go").await;
    let path = format!("/resume/{}", held.str("/pending/0/request_id"));
    let id = |index: usize| held.str(&format!("/pending/0/tool_calls/{index}/tool_call_id"));
    let name = |index: usize, part: &str| format!("call.{}.{part}", id(index));
    let posted = app
        .anonymous()
        .submit(
            &path,
            &[
                ("digest", &held.str("/pending/0/digest")),
                (&name(0, "action"), "approve"),
                (&name(0, "arguments"), &amounts[0]),
                (&name(0, "reason"), ""),
                (&name(1, "action"), "reject"),
                (&name(1, "reason"), "not this one"),
                (&name(2, "action"), ""),
                (&name(2, "arguments"), &amounts[2]),
                ("then", "continue"),
            ],
        )
        .await;
    assert_eq!(posted.status, 303, "{}", posted.text);
    let half = app.anonymous().get(&path).await;
    assert_eq!(half.str("/status"), "pending");
    assert_eq!(half.str("/tool_calls/0/decision/action"), "approve");
    assert_eq!(half.str("/tool_calls/1/decision/reason"), "not this one");
    assert!(half.body["tool_calls"][2]["decision"].is_null() && app.tool.ledger().is_empty());
    app.model.then(text_answer("ok"));
    let rest = app
        .anonymous()
        .submit(&format!("{path}/approve"), &[("reason", "")])
        .await;
    assert_eq!(rest.status, 303, "{}", rest.text);
    app.tool.reached(2).await;
    app.stop().await;
}

#[apply(on_both)]
async fn call_left_beside_an_own_approval_is_rejected_on_the_page(on: On) {
    let two = "{ users: [bob, carol], required: 2 }";
    let app = TestApp::with(on, &refunds(two)).await;
    app.model.then(calls(&[
        ("refund", r#"{"order":1,"amount":50}"#),
        ("refund", r#"{"order":2,"amount":60}"#),
    ]));
    let held = app.owner().create_task("go").await;
    let path = format!("/resume/{}", held.str("/pending/0/request_id"));
    let [approved, left] =
        [0, 1].map(|index: usize| held.str(&format!("/pending/0/tool_calls/{index}/tool_call_id")));
    let browser = || app.approver().accept_html().header("origin", &app.url());
    let posted = browser()
        .submit(&path, &[(&format!("call.{approved}.action"), "approve")])
        .await;
    assert_eq!(posted.status, 303, "{}", posted.text);
    // The person has approved one of the calls, so the service refuses a rejection of the whole
    // request.
    let whole = browser().submit(&format!("{path}/reject"), &[]).await;
    assert_eq!(whole.status, 409, "{}", whole.text);
    let one = browser().get(&format!("{path}/reject")).await;
    one.assert_has("You may not give this answer here.");
    let page = browser().get(&path).await;
    let (action, reason) = (format!("call.{left}.action"), format!("call.{left}.reason"));
    for part in [
        format!("name=\"{action}\" value=\"reject\">Reject</button>"),
        format!("name=\"{reason}\""),
    ] {
        page.assert_has(&part);
    }
    page.assert_lacks("/reject\"");
    let digest = held.str("/pending/0/digest");
    let posted = browser()
        .submit(
            &path,
            &[("digest", &digest), (&reason, "no"), (&action, "reject")],
        )
        .await;
    assert_eq!(posted.status, 303, "{}", posted.text);
    let after = app.approver().get(&path).await;
    assert_eq!(
        (
            after.str("/status").as_str(),
            after.str("/tool_calls/1/decision/action").as_str()
        ),
        ("pending", "reject")
    );
    assert_eq!(after.str("/tool_calls/1/decision/reason"), "no");
    app.stop().await;
}

/// The request's own page has two forms that reject all calls. The page with one button has one.
#[apply(on_both)]
async fn rejection_on_a_page_from_before_an_approval_cancels_as_its_button_says(on: On) {
    let app = TestApp::with(on, &refunds("{ users: [bob, carol] }")).await;
    let browser = || app.approver().accept_html().header("origin", &app.url());
    for (page, button, forms, chosen) in [
        ("", "Reject all 2 and cancel the task</button>", 2, None),
        ("/reject", "Reject all 2</button>", 1, Some(("then", ""))),
    ] {
        app.model.then(calls(&[
            ("refund", r#"{"order":1,"amount":50}"#),
            ("refund", r#"{"order":2,"amount":60}"#),
        ]));
        let held = app.owner().create_task("go").await;
        let digest = held.str("/pending/0/digest");
        let path = format!("/resume/{}", held.str("/pending/0/request_id"));
        let call = held.str("/pending/0/tool_calls/0/tool_call_id");
        let shown = browser().get(&format!("{path}{page}")).await;
        shown.assert_has(button);
        shown.assert_has("The rule says: the task is canceled.");
        let announced = "name=\"reject.then\" value=\"cancel\"";
        assert_eq!(shown.text.matches(announced).count(), forms, "{shown}");
        let approval = json!({"decisions": {call: {"action": "approve"}}});
        let approved = app.stranger().post(&path, &approval).await;
        assert_eq!(approved.status, 200, "{}", approved.text);
        let later = browser().get(&format!("{path}{page}")).await;
        later.assert_has("Reject</button>");
        later.assert_lacks("reject.then");
        later.assert_lacks("The rule says");
        let fields = [
            ("digest", digest.as_str()),
            ("reject.then", "cancel"),
            ("reason", ""),
        ];
        let fields: Vec<_> = fields.into_iter().chain(chosen).collect();
        let posted = browser().submit(&format!("{path}/reject"), &fields).await;
        assert_eq!(posted.status, 303, "{}", posted.text);
        let task = held.str("/task_id");
        let task = app.owner().prefer("wait=20").task(&task).await;
        assert_eq!(task.str("/status"), "Canceled", "{task}");
    }
    assert!(
        app.tool.ledger().is_empty(),
        "the approved call does not run"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn refusal_of_a_page_post_is_shown_on_a_page(on: On) {
    let app = TestApp::with_finance(on).await;
    let held = app.held().await;
    let path = format!("/resume/{}", held.request);
    let approve = format!("{path}/approve");
    let stale = app
        .approver()
        .accept_html()
        .submit(&approve, &[("digest", "sha256:0")])
        .await;
    assert_eq!(stale.status, 412, "{}", stale.text);
    stale.assert_has(&format!("href=\"{path}\""));
    stale.assert_has("digest_mismatch");
    let twice = app
        .approver()
        .accept_html()
        .submit(&approve, &[("reason", "a"), ("reason", "b")])
        .await;
    assert_eq!(twice.status, 400, "{}", twice.text);
    twice.assert_has(&format!("href=\"{path}\""));
    let other = app.owner().accept_html().submit(&approve, &[]).await;
    assert_eq!(other.status, 403, "{}", other.text);
    other.assert_has("Other people decide this.");
    app.model.then(text_answer("ok"));
    assert_eq!(app.approver().submit(&approve, &[]).await.status, 303);
    let late = app.approver().accept_html().submit(&approve, &[]).await;
    assert_eq!(late.status, 409, "{}", late.text);
    late.assert_has("The first decision counts: bob approved at ");
    app.stop().await;
}

/// Returns a browser that is signed in with this key and posts the forms of its pages.
async fn signed_in<'a>(app: &'a TestApp, key: &str) -> Actor<'a> {
    let cookie = app.sign_in(key).await;
    let browser = app.anonymous().accept_html().header("cookie", &cookie);
    browser.header("origin", &app.url())
}

/// All tabs of a browser share the cookie. Carol's page is still open in one tab when Bob signs in
/// in another tab.
#[apply(on_both)]
async fn form_of_a_page_that_was_shown_to_another_user_changes_nothing(on: On) {
    let app = TestApp::with(on, &refunds("{ users: [bob, carol] }")).await;
    let held = app.held().await;
    let path = format!("/resume/{}", held.request);
    let carol = signed_in(&app, CAROL).await;
    for page in ["", "/approve", "/reject"] {
        let shown = carol.get(&format!("{path}{page}")).await;
        let forms = shown
            .text
            .matches("<form method=\"post\" action=\"/resume/");
        let named = shown.text.matches("name=\"shown_to\" value=\"carol\"");
        let counts = (forms.count(), named.count());
        assert!(counts.0 > 0 && counts.0 == counts.1, "{counts:?}: {shown}");
    }
    let bob = signed_in(&app, BOB).await;
    let again = format!("<a href=\"{path}\">Load the page again</a>");
    let action = format!("call.{}.action", held.call);
    let choice = (action.as_str(), "approve");
    for (end, choice) in [("/approve", None), ("/reject", None), ("", Some(choice))] {
        let fields = [("digest", held.digest()), ("shown_to", "carol")];
        let fields: Vec<_> = fields.into_iter().chain(choice).collect();
        let refused = bob.submit(&format!("{path}{end}"), &fields).await;
        assert_eq!(refused.status, 403, "{end}: {}", refused.text);
        for part in [
            "was shown to another user",
            "Signed in as <strong class=\"exact\">bob</strong> (acme)",
            &again,
        ] {
            refused.assert_has(part);
        }
    }
    let after = app.approver().get(&path).await;
    assert_eq!(after.str("/status"), "pending");
    app.model.then(text_answer("ok"));
    let fields = [("digest", held.digest()), ("shown_to", "Bob")];
    let own = bob.submit(&format!("{path}/approve"), &fields).await;
    assert_eq!(own.status, 303, "{}", own.text);
    app.tool.reached(1).await;
    app.stop().await;
}

#[apply(on_both)]
async fn refusal_of_a_page_post_is_in_the_language_of_its_reader(on: On) {
    let app = TestApp::with_finance(on).await;
    let held = app.held().await;
    let path = format!("/resume/{}", held.request);
    let approve = format!("{path}/approve");
    let chinese = app
        .owner()
        .accept_html()
        .header("accept-language", "zh-CN,zh;q=0.9,en;q=0.1");
    let page = chinese.submit(&approve, &[]).await;
    assert_eq!(page.status, 403, "{}", page.text);
    page.assert_has("此请求由其他人决定");
    assert!(
        page.headers
            .get_all("vary")
            .iter()
            .any(|vary| vary == "Accept-Language")
    );
    let same = chinese.get(&path).await;
    assert_eq!(same.status, 200, "{}", same.text);
    same.assert_has("lang=\"zh-Hans\"");
    assert!(
        same.headers
            .get_all("vary")
            .iter()
            .any(|vary| vary == "Accept-Language")
    );
    let json = app.owner().header("accept-language", "zh").get(&path).await;
    assert!(
        !json
            .headers
            .get_all("vary")
            .iter()
            .any(|vary| vary == "Accept-Language")
    );
    app.stop().await;
}
