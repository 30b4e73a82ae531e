//! Tests of a request's page: its headline after the decision, the target of a call, and the notice
//! for a person who is signed in to the wrong account.

mod wrong_accounts;

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::json;

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ALICE, BOB, Held, On, TestApp, refunds};

const FORM: &str = "application/x-www-form-urlencoded";
const ZH: &str = "zh-CN,zh;q=0.9";

fn finance() -> String {
    refunds("{ groups: [finance] }")
}

/// Returns the headline of a request's page in English and in Chinese. While the request is open,
/// both are empty. Asserts that the page's title begins with the headline, if there is one.
async fn headline(app: &TestApp, request: &str) -> [String; 2] {
    let mut said = Vec::new();
    for language in ["en", ZH] {
        let reader = app
            .approver()
            .accept_html()
            .header("accept-language", language);
        let page = reader.request(request).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let between = |start: &str, end: &str| {
            let (_, rest) = page
                .text
                .split_once(start)
                .unwrap_or_else(|| panic!("no {start} in {}", page.text));
            rest.split_once(end).unwrap().0.to_owned()
        };
        let element = between("id=\"headline\"", "</p>");
        let (attributes, headline) = element.split_once('>').unwrap();
        assert_eq!(attributes.ends_with(" hidden"), headline.is_empty());
        let heading = between("<h1 class=\"exact\">", "</h1>");
        let title = match headline {
            "" => format!("{heading} · Holdpoint"),
            headline => format!("{headline} · {heading} · Holdpoint"),
        };
        assert_eq!(between("<title>", "</title>"), title);
        said.push(headline.to_owned());
    }
    said.try_into().unwrap()
}

async fn approve(app: &TestApp, held: &Held) {
    let approver = app.approver().prefer("respond-async");
    let path = format!("/resume/{}/approve", held.request);
    let status = approver.hit(&path).await.status;
    // The status is 200 if the task is paused or terminal when the service responds, and 202
    // otherwise.
    assert!([200, 202].contains(&status), "{status}");
}

/// Waits at most 30 s until the task is paused or terminal; returns its status.
async fn stopped(app: &TestApp, held: &Held) -> String {
    app.owner()
        .prefer("wait=30")
        .task(&held.task)
        .await
        .str("/status")
}

#[apply(on_both)]
async fn headline_follows_an_approved_call_from_its_start_to_its_end(on: On) {
    let app = TestApp::with(on, &finance().replace("timeout: 5s", "timeout: 30s")).await;
    for (status, ended) in [
        (
            200,
            ["Approved by bob, and it ran.", "bob 已批准，并已执行。"],
        ),
        (
            500,
            [
                "Approved by bob, but it failed: 500.",
                "bob 已批准，但执行失败：500。",
            ],
        ),
    ] {
        let held = app.held().await;
        assert_eq!(headline(&app, &held.request).await, ["", ""]);
        app.tool.answers(status, "{}").close();
        let before = app.tool.count();
        app.model.then(text_answer("ok"));
        approve(&app, &held).await;
        app.tool.reached(before + 1).await;
        assert_eq!(
            headline(&app, &held.request).await,
            ["Approved by bob. It is running.", "bob 已批准，正在执行。"]
        );
        app.tool.open();
        assert_eq!(stopped(&app, &held).await, "Completed");
        assert_eq!(headline(&app, &held.request).await, ended);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn headline_of_an_unknown_outcome_says_that_a_person_is_asked(on: On) {
    let app = TestApp::with_finance(on).await;
    let held = app.held().await;
    // The tool does not answer yet, so the reply to the decision comes while the call is in
    // flight.
    app.tool.answers(504, "").close();
    approve(&app, &held).await;
    app.tool.open();
    assert_eq!(stopped(&app, &held).await, "Paused");
    let said = headline(&app, &held.request).await;
    assert_eq!(
        said,
        [
            "Approved by bob. Its outcome is not known: a person is asked.",
            "bob 已批准，但其结果未知，正在请人核实。"
        ]
    );
    let task = app.owner().task(&held.task).await;
    let asked = task.str("/pending/0/request_id");
    app.model.then(text_answer("ok"));
    app.tool.answers(200, "{}");
    let again = app
        .approver()
        .answer(&asked, &json!({"action": "retry"}))
        .await;
    assert_eq!(again.str("/status"), "Completed", "{}", again.text);
    assert_eq!(
        headline(&app, &held.request).await[0],
        "Approved by bob, and it ran."
    );
    assert_eq!(
        headline(&app, &asked).await[0],
        "Allowed to run again by bob, and it ran."
    );
    app.stop().await;
}

#[apply(on_both)]
async fn headline_of_a_rejection_says_what_followed(on: On) {
    let app = TestApp::with_finance(on).await;
    let held = app.held().await;
    let reject = |held: &Held| format!("/resume/{}/reject", held.request);
    let canceled = app
        .approver()
        .post(&reject(&held), &json!({"reason": "wrong customer"}))
        .await;
    assert_eq!(canceled.str("/status"), "Canceled");
    let said = headline(&app, &held.request).await;
    assert_eq!(
        said,
        [
            "Rejected by bob. The task was canceled.",
            "bob 已拒绝，任务已取消。"
        ]
    );
    let held = app.held().await;
    app.model.then(text_answer("understood"));
    let told = app
        .approver()
        .post(&reject(&held), &json!({"then": "continue"}))
        .await;
    assert_eq!(told.str("/status"), "Completed", "{}", told.text);
    assert_eq!(
        headline(&app, &held.request).await,
        [
            "Rejected by bob. The agent was told.",
            "bob 已拒绝，并已告知智能体。"
        ]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn headline_of_a_withdrawn_request_says_why(on: On) {
    let app = TestApp::with_finance(on).await;
    let held = app.held().await;
    app.owner().cancel(&held.task).await;
    let said = headline(&app, &held.request).await;
    assert_eq!(
        said,
        ["Withdrawn: the task was canceled.", "已撤回：任务已取消。"]
    );
    let held = app.held().await;
    app.model.then(text_answer("something else"));
    let body = json!({"input": "never mind", "supersede": true});
    let next = app.owner().message(&held.task, &body).await;
    assert_eq!(next.str("/status"), "Completed", "{}", next.text);
    let said = headline(&app, &held.request).await;
    assert_eq!(
        said,
        [
            "Withdrawn: the user continued with another message.",
            "已撤回：用户已发送其他消息。"
        ]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn headline_of_an_edit_or_of_several_calls_says_what_was_decided(on: On) {
    let app = TestApp::with_finance(on).await;
    app.model.then(calls(&[
        ("refund", r#"{"order":1,"amount":50}"#),
        ("refund", r#"{"order":2,"amount":60}"#),
    ]));
    let task = app.owner().create_task("go").await;
    let request = task.str("/pending/0/request_id");
    let id = |index: usize| task.str(&format!("/pending/0/tool_calls/{index}/tool_call_id"));
    app.model.then(text_answer("ok"));
    let decisions = json!({"decisions": {(id(0)): {"action": "edit", "arguments": {"order": 1, "amount": 40}}, (id(1)): {"action": "reject"}}});
    let done = app.approver().answer(&request, &decisions).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    let said = headline(&app, &request).await;
    assert_eq!(
        said,
        [
            "Decided by bob: 1 ran, 1 rejected.",
            "bob 已作出决定：1 个已执行、1 个已拒绝。"
        ]
    );
    let held = app.held().await;
    app.model.then(text_answer("ok"));
    let decisions = json!({"decisions": {(held.call.clone()): {"action": "edit", "arguments": {"order": 1, "amount": 40}}}});
    app.approver().answer(&held.request, &decisions).await;
    assert_eq!(
        headline(&app, &held.request).await[0],
        "Changed and approved by bob, and it ran."
    );
    app.stop().await;
}

#[apply(on_both)]
async fn headline_of_an_edit_that_another_rule_holds_never_calls_the_editor_an_approver(on: On) {
    let huge = r#"  - { name: huge, tools: [refund], when: "args.amount > 500.0", decide: hold, approvers: { users: [carol] } }"#;
    let large = "  - { name: large,";
    let yaml = finance().replacen(large, &format!("{huge}\n{large}"), 1);
    let app = TestApp::with(on, &yaml).await;
    let held = app.held().await;
    let decisions = json!({"decisions": {(held.call.clone()): {"action": "edit", "arguments": {"order": 1, "amount": 600}}}});
    let asked = app.approver().answer(&held.request, &decisions).await;
    let anew = asked.str("/pending/0/request_id");
    assert_eq!(
        headline(&app, &held.request).await,
        [
            "Changed by bob. A new request asks about it.",
            "bob 已修改，正在重新征求决定。"
        ]
    );
    app.model.then(text_answer("ok"));
    let done = app.stranger().approve(&anew).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    assert_eq!(
        headline(&app, &held.request).await,
        ["Changed by bob, and it ran.", "bob 已修改，并已执行。"]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn target_of_a_call_is_the_whole_address_it_is_sent_to(on: On) {
    let yaml = finance()
        .replace(
            "{tool}/refund",
            "{tool}/refunds/{order}/{who}?k=secret-query",
        )
        .replace(
            "amount: { type: number",
            "who: { type: string }, amount: { type: number",
        )
        .replace(
            "required: [order, amount]",
            "required: [order, amount, who]",
        );
    let app = TestApp::with(on, &yaml).await;
    let text = r#"{"order":17,"amount":120,"who":"a/b?c#\u202e{order}"}"#;
    app.model.then(calls(&[("refund", text)]));
    let held = app.owner().create_task("go").await;
    let path = "/refunds/17/a%2Fb%3Fc%23%E2%80%AE%7Border%7D";
    assert_eq!(
        held.str("/pending/0/tool_calls/0/target"),
        format!("POST {}{path}", app.tool.url)
    );
    let request = format!("/resume/{}", held.str("/pending/0/request_id"));
    let page = app.approver().accept_html().get(&request).await;
    page.assert_has(&format!("POST {}{path}<", app.tool.url));
    assert!(!page.text.contains("secret-query") && !held.text.contains("secret-query"));
    app.model.then(text_answer("ok"));
    let done = app.approver().hit(&format!("{request}/approve")).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    assert_eq!(
        app.tool.ledger()[0].uri,
        format!("{path}?k=secret-query"),
        "shown as it is sent"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn single_button_pages_have_no_button_if_their_post_would_be_refused(on: On) {
    let app = TestApp::with(on, &finance()).await;
    let page = async |key, held: &Held, action: &str| {
        let page = app
            .actor(key)
            .accept_html()
            .get(&format!("/resume/{}/{action}", held.request))
            .await;
        assert_eq!(page.status, 200, "{}", page.text);
        let (answers, _) = page.text.split_once("<footer>").unwrap();
        (answers.matches("<button").count(), answers.to_owned())
    };
    let held = app.held().await;
    for action in ["approve", "reject"] {
        assert_eq!(page(BOB, &held, action).await.0, 1);
        let (buttons, why) = page(ALICE, &held, action).await;
        assert!(
            buttons == 0 && why.contains("Other people decide this request."),
            "{why}"
        );
        let refused = app
            .owner()
            .hit(&format!("/resume/{}/{action}", held.request))
            .await;
        assert_eq!(refused.status, 403, "{}", refused.text);
    }
    app.owner().cancel(&held.task).await;
    for action in ["approve", "reject"] {
        let (buttons, why) = page(BOB, &held, action).await;
        assert!(
            buttons == 0 && why.contains("This request was withdrawn."),
            "{why}"
        );
        assert_eq!(
            app.approver()
                .hit(&format!("/resume/{}/{action}", held.request))
                .await
                .status,
            409
        );
    }
    let held = app.held().await;
    app.model.then(text_answer("ok"));
    assert_eq!(app.approver().approve(&held.request).await.status, 200);
    for action in ["approve", "reject"] {
        let (buttons, why) = page(BOB, &held, action).await;
        assert!(
            buttons == 0 && why.contains("This request is decided."),
            "{why}"
        );
        assert_eq!(
            app.approver()
                .hit(&format!("/resume/{}/{action}", held.request))
                .await
                .status,
            409
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn error_of_a_page_is_a_page_with_the_same_status_and_words(on: On) {
    let app = TestApp::with(on, &finance()).await;
    let held = app.held().await;
    let request = format!("/resume/{}", held.request);
    let large = "x".repeat(1024 * 1024 + 1);
    for (method, path, body) in [
        (Method::GET, "/resume/not-an-id".to_owned(), None),
        (Method::GET, format!("/resume/{}", held.task), None),
        (Method::GET, format!("{request}/approve/more"), None),
        (Method::DELETE, request.clone(), None),
        (
            Method::POST,
            request.clone(),
            Some(("text/plain", "approve".to_owned())),
        ),
        (
            Method::POST,
            request.clone(),
            Some(("application/json", "{".to_owned())),
        ),
        (
            Method::POST,
            format!("{request}/approve"),
            Some((FORM, "digest=sha256%3A0".to_owned())),
        ),
        (
            Method::POST,
            format!("{request}/approve"),
            Some((FORM, large)),
        ),
        (Method::GET, "/problems/none".to_owned(), None),
    ] {
        let program = app
            .approver()
            .send(method.clone(), &path, body.clone())
            .await;
        assert!(program.status >= 400, "{path}: {}", program.status);
        let person = app
            .approver()
            .accept_html()
            .send(method.clone(), &path, body)
            .await;
        assert_eq!(person.status, program.status, "{method} {path}");
        assert_eq!(program.header("content-type"), "application/problem+json");
        assert!(
            person.header("content-type").starts_with("text/html"),
            "{method} {path}"
        );
        let escaped = |text: String| {
            text.replace('<', "&lt;")
                .replace('>', "&gt;")
                .replace('"', "&quot;")
        };
        for words in [
            program.str("/title"),
            program.str("/detail"),
            program.str("/code"),
        ] {
            person
                .about(&format_args!("{method} {path}: {words}"))
                .assert_has(&escaped(words.clone()));
        }
    }
    app.stop().await;
}
