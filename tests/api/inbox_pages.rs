//! Tests of the pages of the inbox and of tasks, as a browser without scripts gets them.

mod decided_requests;
mod tasks;

use macro_rules_attribute::apply;
use serde_json::json;

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::calls;
use crate::support::test_app::{
    ACCOUNTS, Actor, BOB, Held, OTHER, On, REFUNDS, Reply, TestApp, refunds,
};

const CRON: &str = "cron-key-0123456789ab";
const EVE: &str = "eve-key-0123456789ab";

async fn app_with(on: On, approvers: &str) -> TestApp {
    let more = r#"
    - { user: cron, tenant: acme, key: "cron-key-0123456789ab", may: [create] }
    - { user: eve, tenant: acme, groups: [finance], key: "eve-key-0123456789ab" }
"#;
    let yaml = REFUNDS.replace("{approvers}", approvers) + ACCOUNTS.trim_end() + more;
    TestApp::with(on, &yaml).await
}

async fn finance(on: On) -> TestApp {
    app_with(on, "{ groups: [finance] }").await
}

async fn page(actor: Actor<'_>, path: &str) -> Reply {
    actor.accept_html().get(path).await
}

/// Returns the request ids in the rows of a list, in their order.
fn rows(page: &Reply) -> Vec<&str> {
    let parts = page.text.split("<li data-request=\"").skip(1);
    parts.map(|part| &part[..36]).collect()
}

/// An entry of the timeline on a task's page.
pub(super) struct TimelineEntry {
    pub number: i64,
    /// Whether the entry is indented, as the entry of a task below the tree's root is.
    pub is_below: bool,
    /// The markup of the first line, without the number and the time.
    pub line: String,
}

/// Returns the entries of the timeline on a task's page, in the order of the page.
pub(super) fn timeline(page: &str) -> Vec<TimelineEntry> {
    let (_, list) = page.split_once(" id=\"live-log\"").unwrap();
    let (list, _) = list.split_once("</ol>").unwrap();
    let entries = list.split("<li class=\"").skip(1).map(|entry| {
        let (class, rest) = entry.split_once("\"><p><span class=\"soft\">#").unwrap();
        let (number, rest) = rest.split_once(' ').unwrap();
        let (_, line) = rest.split_once("</span> ").unwrap();
        TimelineEntry {
            number: number.parse().unwrap(),
            is_below: class == "below",
            line: line.split("</p>").next().unwrap().to_owned(),
        }
    });
    entries.collect()
}

async fn refund(app: &TestApp, amount: u32) -> Held {
    app.model.then(calls(&[(
        "refund",
        &format!(r#"{{"order": 17, "amount": {amount}}}"#),
    )]));
    let reply = app.owner().create_task("please").await;
    Held {
        task: reply.str("/task_id"),
        request: reply.str("/pending/0/request_id"),
        call: reply.str("/pending/0/tool_calls/0/tool_call_id"),
        body: reply.body,
    }
}

#[apply(on_both)]
async fn browser_at_the_root_is_led_to_the_inbox_and_a_program_finds_nothing(on: On) {
    let app = finance(on).await;
    let led = page(app.anonymous(), "/").await;
    led.assert_header(303, "location", "/inbox");
    let program = app.approver().get("/").await;
    program.assert_code(404, "not_found");
    let out = page(app.anonymous(), "/inbox").await;
    out.assert_header(303, "location", "/sign-in?next=/inbox");
    assert_eq!(app.anonymous().get("/inbox").await.status, 401);
    let entered = app.anonymous().submit("/sign-in", &[("key", BOB)]).await;
    entered.assert_header(303, "location", "/inbox");
    app.stop().await;
}

#[apply(on_both)]
async fn inbox_lists_what_waits_for_its_reader_oldest_first_and_without_a_button(on: On) {
    let app = finance(on).await;
    let empty = page(app.approver(), "/inbox").await;
    assert!(
        empty.text.contains("Nothing waits for you.") && rows(&empty).is_empty(),
        "{}",
        empty.text
    );
    let (first, second) = (refund(&app, 120).await, refund(&app, 80).await);
    let inbox = page(app.approver(), "/inbox").await;
    assert_eq!(
        (inbox.status, rows(&inbox)),
        (200, vec![first.request.as_str(), second.request.as_str()])
    );
    assert!(
        inbox.header("content-type").starts_with("text/html")
            && inbox.header("cache-control") == "no-store"
    );
    assert!(
        inbox
            .header("content-security-policy")
            .contains("script-src 'self'")
    );
    for shown in [
        "<title>Inbox – Holdpoint</title>",
        "Refund 120 for order 17",
        "Refund 80 for order 17",
        "for alice",
        "rule large",
        "approval · once",
        "<span id=\"open-heading\">2</span>",
        "href=\"/inbox\" aria-current=\"page\"",
        "href=\"/inbox/decided\"",
        "href=\"/tasks\"",
    ] {
        inbox.assert_has(shown);
    }
    let (_, as_of) = inbox.text.split_once("As of ").unwrap();
    assert_eq!(as_of.get(8..12), Some(" UTC"), "the time alone");
    let list = inbox.text.split("<ul").nth(1).unwrap();
    assert!(
        !list.split("</ul>").next().unwrap().contains("<button"),
        "no decision in a list"
    );
    assert_eq!(
        inbox.text.matches("<form").count(),
        1,
        "the filter; a key has no session to end"
    );
    for actor in [app.owner(), app.stranger(), app.actor(OTHER)] {
        let other = page(actor, "/inbox").await;
        assert!(
            rows(&other).is_empty() && !other.text.contains("Refund 120"),
            "{}",
            other.text
        );
    }
    let no_right = page(app.actor(CRON), "/inbox").await;
    assert_eq!(no_right.status, 403, "{}", no_right.text);
    no_right.assert_has("This key may not read.");
    let chinese = app
        .approver()
        .header("accept-language", "zh")
        .accept_html()
        .get("/inbox")
        .await;
    chinese.assert_has("待处理");
    chinese.assert_has("lang=\"zh-Hans\"");
    app.stop().await;
}

#[apply(on_both)]
async fn inbox_is_filtered_and_paged(on: On) {
    let app = finance(on).await;
    let mut all = Vec::new();
    for amount in 0..52 {
        all.push(refund(&app, 100 + amount).await.request);
    }
    let first = page(app.approver(), "/inbox?kind=&agent=&session_id=").await;
    assert_eq!(rows(&first), all[..50], "{}", first.text);
    first.assert_has("Next page: 2 more");
    assert!(first.text.len() <= 60_000, "{} bytes", first.text.len());
    let next = first
        .text
        .split("id=\"inbox-next\" href=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let second = page(app.approver(), next).await;
    assert_eq!(rows(&second), all[50..]);
    second.assert_lacks("inbox-next");
    second.assert_has("<span id=\"open-heading\">52</span>");
    let none = page(app.approver(), "/inbox?kind=guidance").await;
    none.assert_has("Nothing that fits.");
    none.assert_has("Show all");
    assert_eq!(
        rows(&page(app.approver(), "/inbox?kind=approval&agent=billing").await).len(),
        50
    );
    let wrong = page(app.approver(), "/inbox?kind=nope").await;
    assert!(wrong.status == 422 && wrong.header("content-type").starts_with("text/html"));
    app.stop().await;
}

#[apply(on_both)]
async fn answered_request_leads_to_the_next_question(on: On) {
    let app = finance(on).await;
    let (first, second, third) = (
        refund(&app, 120).await,
        refund(&app, 80).await,
        refund(&app, 60).await,
    );
    let before = page(app.approver(), &format!("/resume/{}", first.request)).await;
    assert!(!before.text.contains("class=\"next\"") && before.text.contains("href=\"/inbox\""));
    app.approver().approve(&first.request).await;
    let after = page(app.approver(), &format!("/resume/{}", first.request)).await;
    let line = format!(
        "<a autofocus href=\"/resume/{}\"><span class=\"exact\">Next: Refund 80 for order 17</span></a> · 1 more",
        second.request
    );
    after.assert_has("Approved. ");
    after.assert_has(&line);
    let others = page(app.actor(EVE), &format!("/resume/{}", first.request)).await;
    let line = format!(
        "<p class=\"next\"><a href=\"/resume/{}\"><span class=\"exact\">Next: Refund 80 for order 17</span></a> · 1 more",
        second.request
    );
    others.about(&"bob has decided it").assert_has(&line);
    let open = page(app.actor(EVE), &format!("/resume/{}", second.request)).await;
    open.about(&"it waits for eve")
        .assert_lacks("class=\"next\"");
    let owners = page(app.owner(), &format!("/resume/{}", first.request)).await;
    owners
        .about(&"alice may not decide it")
        .assert_lacks("class=\"next\"");
    for held in [&second, &third] {
        app.approver()
            .post(&format!("/resume/{}/reject", held.request), &json!({}))
            .await;
    }
    let last = page(app.approver(), &format!("/resume/{}", third.request)).await;
    last.assert_has("Rejected. Nothing else waits for you.");
    app.stop().await;
}

/// Asks about two refunds in one request, and approves the first. Returns the request's path and
/// the id of the second call.
async fn half_approved(app: &TestApp) -> (String, String) {
    let both = [
        ("refund", r#"{"order": 1, "amount": 50}"#),
        ("refund", r#"{"order": 2, "amount": 60}"#),
    ];
    app.model.then(calls(&both));
    let asked = app.owner().create_task("please").await;
    let path = format!("/resume/{}", asked.str("/pending/0/request_id"));
    let [first, second] = [0, 1]
        .map(|index: usize| asked.str(&format!("/pending/0/tool_calls/{index}/tool_call_id")));
    let approval = json!({"decisions": {first: {"action": "approve"}}});
    let answered = app.approver().post(&path, &approval).await;
    assert_eq!(answered.status, 200, "{}", answered.text);
    (path, second)
}

#[apply(on_both)]
async fn partly_answered_request_is_not_its_own_next_question(on: On) {
    let app = finance(on).await;
    let (path, _) = half_approved(&app).await;
    let alone = page(app.approver(), &path).await;
    alone.assert_has("Approved. The rest of this request still waits for you.");
    let other = refund(&app, 80).await;
    let after = page(app.approver(), &path).await;
    let line = format!(
        "<a autofocus href=\"/resume/{}\"><span class=\"exact\">Next: Refund 80 for order 17</span></a> · <a",
        other.request
    );
    after.about(&"no further one").assert_has(&line);
    app.stop().await;
}

#[apply(on_both)]
async fn page_that_shows_a_mistake_leads_to_another_question_once_its_request_is_closed(on: On) {
    let app = finance(on).await;
    let (path, second) = half_approved(&app).await;
    refund(&app, 80).await;
    let (action, arguments) = (
        format!("call.{second}.action"),
        format!("call.{second}.arguments"),
    );
    let wrong = [
        (action.as_str(), "edit"),
        (arguments.as_str(), r#"{"order": 2, "amount": "60"}"#),
    ];
    let refused = app.approver().accept_html().submit(&path, &wrong).await;
    assert_eq!(refused.status, 422, "{}", refused.text);
    refused.assert_has("Your answer was not stored");
    refused.assert_lacks("class=\"next\"");
    assert_eq!(refused.text.matches("autofocus").count(), 1, "{refused}");
    let rejection = json!({"decisions": {second: {"action": "reject", "then": "cancel"}}});
    let closed = app.approver().post(&path, &rejection).await;
    assert_eq!(closed.status, 200, "{}", closed.text);
    let late = app.approver().accept_html().submit(&path, &wrong).await;
    assert_eq!(late.status, 422, "{}", late.text);
    late.assert_has("Your answer was not stored");
    late.assert_has("Next: Refund 80 for order 17");
    let mistakes_come_first = late.text.find("class=\"errors\"") < late.text.find("class=\"next\"");
    assert!(mistakes_come_first, "{late}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_expires_within_an_hour_stands_first() {
    let yaml = refunds("{ groups: [finance] }").replace(
        "policy:",
        "policy:\n  - { name: soon, tools: [refund], when: \"args.amount == 77.0\", decide: hold, approvers: { groups: [finance] }, expires_in: 30m }",
    );
    let app = TestApp::with(On::Sqlite, &yaml).await;
    let (first, soon) = (refund(&app, 120).await, refund(&app, 77).await);
    let inbox = page(app.approver(), "/inbox").await;
    assert_eq!(
        rows(&inbox),
        [soon.request.as_str(), first.request.as_str()],
        "{}",
        inbox.text
    );
    inbox.assert_has("29 min left");
    inbox.assert_has("those that expire within an hour come first");
    for _ in 0..51 {
        refund(&app, 77).await;
    }
    let inbox = page(app.approver(), "/inbox").await;
    assert_eq!(rows(&inbox).len(), 50);
    let next = inbox.text.split("id=\"inbox-next\" href=\"").nth(1);
    let next = next.and_then(|rest| rest.split('"').next()).unwrap();
    let rest = page(app.approver(), &next.replace("&amp;", "&")).await;
    assert_eq!(rows(&rest)[0], first.request, "no request is unreachable");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_of_fifty_rows_and_its_script_are_small() {
    let app = finance(On::Sqlite).await;
    for amount in 0..102 {
        let held = refund(&app, 100 + amount).await;
        if amount % 2 == 0 {
            let path = format!("/resume/{}/reject", held.request);
            let reply = app.approver().post(&path, &json!({})).await;
            assert_eq!(reply.status, 200, "{}", reply.text);
        }
    }
    for (actor, path, row) in [
        (app.approver(), "/inbox", "<li data-request="),
        (app.approver(), "/inbox/decided", "<p class=\"status\">"),
        (app.owner(), "/tasks", "<td data-label=\"Status\">"),
    ] {
        let shown = page(actor, path).await.text;
        assert_eq!(shown.matches(row).count(), 50, "{path}: {shown}");
        assert!(shown.len() <= 60_000, "{path}: {} bytes", shown.len());
        let scripts: Vec<&str> = shown.split("<script src=\"").skip(1).collect();
        assert_eq!(scripts.len(), 1, "{path}: {scripts:?}");
        let (script, _) = scripts[0].split_once('"').unwrap();
        let script = app.anonymous().get(script).await;
        assert_eq!(script.status, 200, "{path}");
        assert!(
            script.text.len() <= 12_000,
            "{path}: {} bytes",
            script.text.len()
        );
    }
    app.stop().await;
}
