//! Tests the list of decided requests: its order, the people who decided each request, and the
//! number of approvals that a request still needs.

use macro_rules_attribute::apply;
use serde_json::json;

use super::super::approval_cycle::on_both;
use super::{EVE, app_with, finance, page, refund, rows};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{On, TestApp};

#[apply(on_both)]
async fn decided_requests_are_listed_with_who_decided_and_who_is_missing(on: On) {
    let app = app_with(on, "{ groups: [finance], required: 2 }").await;
    let (first, second) = (refund(&app, 120).await, refund(&app, 80).await);
    let nothing = page(app.approver(), "/inbox/decided").await;
    nothing.assert_has("Nothing was decided yet.");
    app.approver()
        .post(
            &format!("/resume/{}/approve", first.request),
            &json!({"reason": "fine <b>"}),
        )
        .await;
    let inbox = page(app.approver(), "/inbox").await;
    assert_eq!(rows(&inbox), [second.request.as_str()], "answered by me");
    let partly = page(app.approver(), "/inbox/decided").await;
    for shown in [
        "Refund 120 for order 17",
        "by you,",
        " · waited less than a minute",
        "waits for one more",
        "fine &lt;b&gt;",
        "· open",
    ] {
        partly.assert_has(shown);
    }
    let eves = page(app.actor(EVE), "/inbox").await;
    eves.assert_has("1 of 2 have approved");
    app.actor(EVE)
        .post(&format!("/resume/{}/reject", second.request), &json!({}))
        .await;
    let mine = page(app.approver(), "/inbox/decided").await;
    mine.assert_lacks("Refund 80");
    let all = page(app.approver(), "/inbox/decided?all=1").await;
    let (newer, older) = (
        all.text.find("Refund 80").unwrap(),
        all.text.find("Refund 120").unwrap(),
    );
    assert!(
        newer < older && all.text.contains("by eve,"),
        "newest first: {}",
        all.text
    );
    assert!(
        !page(app.stranger(), "/inbox/decided?all=1")
            .await
            .text
            .contains("Refund"),
        "nobody's"
    );
    assert_eq!(
        page(app.approver(), "/inbox/decided?all=2").await.status,
        422
    );
    app.stop().await;
}

#[apply(on_both)]
async fn decided_requests_are_listed_by_their_answers_newest_first(on: On) {
    let app = finance(on).await;
    let (first, second) = (refund(&app, 120).await, refund(&app, 80).await);
    for held in [&second, &first] {
        app.model.then(text_answer("done"));
        let reply = app
            .approver()
            .post(&format!("/resume/{}/approve", held.request), &json!({}))
            .await;
        assert_eq!(reply.status, 200, "{}", reply.text);
    }
    for (actor, path) in [
        (app.approver(), "/inbox/decided"),
        (app.actor(EVE), "/inbox/decided?all=1"),
    ] {
        let shown = page(actor, path).await.text;
        let (newer, older) = (
            shown.find("Refund 120").unwrap(),
            shown.find("Refund 80").unwrap(),
        );
        assert!(newer < older, "{path}: {shown}");
    }
    app.stop().await;
}

#[apply(on_both)]
async fn pages_show_the_last_of_several_answers_and_call_different_ones_different(on: On) {
    let app = finance(on).await;
    app.model.then(calls(&[
        ("refund", r#"{"order":1,"amount":50}"#),
        ("refund", r#"{"order":2,"amount":60}"#),
    ]));
    let task = app.owner().create_task("go").await;
    let path = format!("/resume/{}", task.str("/pending/0/request_id"));
    app.model.then(text_answer("done"));
    let (first, last) = (
        "Approved. The rest of this request still waits",
        "Rejected. Nothing else waits",
    );
    for (index, action, line) in [(0, "approve", first), (1, "reject", last)] {
        let call = task.str(&format!("/pending/0/tool_calls/{index}/tool_call_id"));
        let answer = json!({"decisions": {call: {"action": action}}});
        let reply = app.approver().post(&path, &answer).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        let shown = page(app.approver(), &path).await;
        shown.assert_has(&format!("<p class=\"next\">{line} for you."));
    }
    let decided = page(app.approver(), "/inbox/decided").await;
    decided.assert_has("Calls were decided differently");
    app.stop().await;
}

#[apply(on_both)]
async fn edit_that_needs_further_approvals_is_nowhere_called_an_approval(on: On) {
    let app = app_with(on, "{ groups: [finance], required: 2 }").await;
    let held = refund(&app, 120).await;
    let path = format!("/resume/{}", held.request);
    let edit = json!({"decisions": {(&held.call): {"action": "edit", "arguments": {"order": 17, "amount": 40}}}});
    let reply = app.approver().post(&path, &edit).await;
    reply.assert_status(200, "Paused");
    for shown in [&path, "/inbox/decided", &format!("/tasks/{}", held.task)] {
        let shown = page(app.approver(), shown).await.text;
        assert!(
            shown.contains("Changed") && !shown.contains("hanged and approved"),
            "{shown}"
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn comment_in_a_form_that_names_its_call_is_shown_on_every_page(on: On) {
    let app = app_with(on, "{ groups: [finance], required: 2 }").await;
    let held = refund(&app, 120).await;
    let path = format!("/resume/{}", held.request);
    let name = |part: &str| format!("call.{}.{part}", held.call);
    let edited = app
        .approver()
        .submit(
            &path,
            &[
                (&name("action"), "edit"),
                (&name("arguments"), r#"{"order":17,"amount":40}"#),
                (&name("reason"), "only <half>"),
            ],
        )
        .await;
    assert_eq!(edited.status, 303, "{}", edited.text);
    for shown in [&path, "/inbox/decided", &format!("/tasks/{}", held.task)] {
        let page = page(app.approver(), shown).await;
        page.about(&shown).assert_has("only &lt;half&gt;");
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_of_the_decided_requests_keep_the_filters() {
    let app = TestApp::with_finance(On::Sqlite).await;
    let decided = page(app.approver(), "/inbox/decided?agent=billing").await;
    decided.assert_has("href=\"/inbox/decided?agent=billing&amp;all=1\"");
    app.stop().await;
}
