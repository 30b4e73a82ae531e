//! Tests of each state of a link's page, in both languages.

use std::time::Duration;

use macro_rules_attribute::apply;

use super::super::approval_cycle::on_both;
use super::super::request_kinds::items;
use super::{answer, digest, ended, linked, page, page_in, press};
use crate::support::fake_chat_completions::text_answer;
use crate::support::links::{LinkSpec, link, link_spec};
use crate::support::test_app::{On, TestApp};

/// Asserts that the page contains these words in English and in Chinese, and that the page has a
/// form if and only if `form` is true.
async fn says_in_both(app: &TestApp, path: &str, words: [&[&str]; 2], form: bool) {
    for (language, words) in ["en", "zh"].into_iter().zip(words) {
        let shown = page_in(app, path, language).await;
        assert_eq!(shown.status, 200, "{}", shown.text);
        for word in words {
            shown.assert_has(word);
        }
        assert_eq!(shown.text.contains("<form"), form, "{}", shown.text);
    }
}

/// The words before the deadline of a request, in English and in Chinese.
const ANSWERED_UNTIL: [&str; 2] = ["This question can be answered until", "此请求可在"];

/// Asserts that the page of a closed request does not say until when its link works, or until when
/// the request can be answered.
async fn says_no_end(app: &TestApp, path: &str) {
    for (language, words) in [("en", "Your link works until"), ("zh", "此链接有效至")] {
        let shown = page_in(app, path, language).await;
        shown.assert_lacks(words);
        for deadline in ANSWERED_UNTIL {
            shown.assert_lacks(deadline);
        }
    }
}

#[apply(on_both)]
async fn open_request_is_shown_as_the_persons_with_its_end_and_its_buttons(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    let held = app.held().await;
    let english = &[
        "For dora (dora@acme.example).",
        "A decision on this page counts as dora's.",
        "Not you?",
        "Your link works until",
        ANSWERED_UNTIL[0],
        ">Approve<",
        "name=\"then\"",
        "Refund 120 for order 17",
        "&quot;amount&quot;: 120",
        "alice’s task",
    ];
    let chinese = &[
        "此链接属于 dora（dora@acme.example）。",
        "在此页面作出的决定视为 dora 的决定。",
        "此链接有效至",
        ANSWERED_UNTIL[1],
        "登录",
    ];
    says_in_both(&app, &link("dora", &held.request), [english, chinese], true).await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_of_a_link_says_the_deadline_only_if_it_is_before_the_end_of_the_link() {
    let app = linked(On::Sqlite, "{ groups: [finance] }").await;
    let held = app.held().await;
    let deadline = held.body["pending"][0]["expires_at"].as_str().unwrap();
    let deadline = deadline[..19].replace('T', " ");
    for (hours, is_said) in [(23, false), (72, true)] {
        let path = LinkSpec {
            life: Duration::from_hours(hours),
            ..link_spec("dora", &held.request)
        }
        .path();
        let shown = page(&app, &path).await;
        shown.assert_has("Your link works until");
        let words = format!("{} {deadline} UTC.", ANSWERED_UNTIL[0]);
        assert_eq!(shown.text.contains(&words), is_said, "{}", shown.text);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn decided_request_says_by_whom_and_has_no_form(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    let held = app.held().await;
    let path = link("dora", &held.request);
    let digest = digest(&page(&app, &path).await);
    app.model.then(text_answer("done"));
    app.approver().approve(&held.request).await;
    says_in_both(&app, &path, [&["Approved by bob"], &["bob 已批准"]], false).await;
    says_no_end(&app, &path).await;
    let late = press(&app, &path, &[("digest", &digest), ("action", "reject")]).await;
    assert_eq!(late.status, 409);
    let back = format!("href=\"{path}\"");
    for words in ["The first decision counts: bob", &back] {
        late.assert_has(words);
    }
    late.assert_lacks(&format!("/resume/{}", held.request));
    let journal = items(&app, &held.task).await;
    assert_eq!(
        journal
            .iter()
            .filter(|item| item["type"] == "decision")
            .count(),
        1
    );
    app.stop().await;
}

#[apply(on_both)]
async fn expired_request_says_so_and_has_no_form(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    let held = app.held().await;
    let path = link("dora", &held.request);
    let digest = digest(&page(&app, &path).await);
    app.model.then(text_answer("done"));
    app.database
        .execute("update intervention_request set expires_at = 1")
        .await;
    ended(&app, &held.task, "Completed").await;
    says_in_both(
        &app,
        &path,
        [&["No answer came in time"], &["逾期无人答复"]],
        false,
    )
    .await;
    says_no_end(&app, &path).await;
    let late = press(&app, &path, &[("digest", &digest), ("action", "approve")]).await;
    assert_eq!(late.status, 410);
    late.assert_has("The request has expired");
    assert_eq!(app.tool.ledger().len(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn withdrawn_request_says_so_and_has_no_form(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    let held = app.held().await;
    let path = link("dora", &held.request);
    let digest = digest(&page(&app, &path).await);
    app.owner().cancel(&held.task).await;
    says_in_both(
        &app,
        &path,
        [&["the task was canceled"], &["任务已取消"]],
        false,
    )
    .await;
    says_no_end(&app, &path).await;
    let late = press(&app, &path, &[("digest", &digest), ("action", "approve")]).await;
    assert_eq!(late.status, 409);
    late.assert_has("The request was withdrawn");
    app.stop().await;
}

#[apply(on_both)]
async fn person_who_has_answered_reads_that_others_have_not(on: On) {
    let app = linked(on, "{ groups: [finance], required: 2, links: true }").await;
    let held = app.held().await;
    let path = link("dora", &held.request);
    answer(&app, &path, "approve", &[]).await;
    says_in_both(&app, &path, [&["dora"], &["dora"]], false).await;
    says_in_both(
        &app,
        &link("emil", &held.request),
        [&["dora", ">Approve<"], &["dora"]],
        true,
    )
    .await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_of_a_link_permits_no_script_no_index_no_copy_and_no_referrer() {
    let app = linked(On::Sqlite, "{ groups: [finance] }").await;
    let held = app.held().await;
    for path in [link("dora", &held.request), "/l/nothing".to_owned()] {
        let reply = page(&app, &path).await;
        let policy = reply.header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; ") && !policy.contains("script"),
            "{policy}"
        );
        for (name, value) in [
            ("x-robots-tag", "noindex"),
            ("referrer-policy", "same-origin"),
            ("cache-control", "no-store"),
            ("x-frame-options", "DENY"),
        ] {
            assert_eq!(reply.header(name), value, "{path} {name}");
        }
        reply.assert_lacks("<script");
    }
    app.stop().await;
}

/// The path of a sealed link must not be logged. A proxy that leaves this path out of its log may
/// still log the header `Referer` of a request. All hyperlinks on a sealed link's page lead to the
/// sign-in page. Each of them therefore tells the browser to send no `Referer`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sign_in_page_is_not_told_the_link_that_leads_to_it() {
    let app = linked(On::Sqlite, "{ groups: [finance] }").await;
    let held = app.held().await;
    let open = page(&app, &link("dora", &held.request)).await;
    app.model.then(text_answer("done"));
    app.approver()
        .hit(&format!("/resume/{}/reject", held.request))
        .await;
    let closed = page(&app, &link("dora", &held.request)).await;
    for shown in [open, closed] {
        let hyperlinks = shown.text.split("<a ").skip(1);
        let tags: Vec<_> = hyperlinks
            .filter_map(|rest| rest.split('>').next())
            .collect();
        assert!(!tags.is_empty(), "{}", shown.text);
        for tag in tags {
            assert!(
                tag.contains("/sign-in?next=") && tag.contains("rel=\"noreferrer\""),
                "{tag}"
            );
        }
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn form_of_a_link_with_a_mistake_comes_back_with_what_was_written() {
    let app = linked(On::Sqlite, "{ groups: [finance] }").await;
    let held = app.held().await;
    let path = link("dora", &held.request);
    let digest = digest(&page(&app, &path).await);
    let long = "long ".repeat(1000);
    for action in ["approve", "reject"] {
        let fields = [
            ("digest", digest.as_str()),
            ("action", action),
            ("reason", &long),
        ];
        let again = press(&app, &path, &fields).await;
        assert_eq!(again.status, 422, "{}", again.text);
        assert!(again.text.contains(&long) && again.text.contains("For dora"));
        again.assert_has(&format!("action=\"{path}\""));
        again.assert_lacks("<script");
    }
    app.stop().await;
}
