//! Tests standing decisions on pages. An approval on the page of a request gives a standing
//! decision only if the checkbox is ticked. The page `/grants` shows and ends standing decisions.

use macro_rules_attribute::apply;
use serde_json::json;

use super::super::approval_cycle::on_both;
use super::{LARGE, finance, listed, page, remembered, yaml};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ACCOUNTS, On, TestApp};

#[apply(on_both)]
async fn page_offers_to_remember_and_remembers_only_what_is_ticked(on: On) {
    let app = finance(on).await;
    let bob = app.approver();
    let held = app.held().await;
    let path = format!("/resume/{}", held.request);
    let shown = page(app.approver(), &path).await.text;
    for part in [
        "<summary>Do not ask again…</summary>",
        "<code>args.amount &lt;= 500.0</code>",
        "refund under rule large",
        "3 calls at most",
        "<option value=\"task\" selected>",
        "<option value=\"4h\">4 h</option>",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("<details class=\"other\" open"), "closed");
    let tick = shown
        .split("type=\"checkbox\"")
        .nth(1)
        .unwrap()
        .split('>')
        .next()
        .unwrap();
    assert!(!tick.contains("checked"), "{tick}");
    let digest = held.digest();
    let unticked = [
        ("digest", digest),
        ("reason", ""),
        ("remember.for", "task"),
        ("remember.expires_in", "15m"),
    ];
    let ticked = [&unticked[..], &[("remember", "yes")]].concat();
    let rejected = bob.submit(&format!("{path}/reject"), &ticked).await;
    assert_eq!(rejected.status, 422, "{}", rejected.text);
    app.model.then(text_answer("done"));
    let approved = bob.submit(&format!("{path}/approve"), &unticked).await;
    assert_eq!(
        (approved.status, listed(app.approver()).await.len()),
        (303, 0),
        "{}",
        approved.text
    );
    // The service answers the POST of a form before the task goes on, so the test waits for the
    // task.
    let first = format!("/v1/tasks/{}", held.task);
    assert_eq!(
        app.owner()
            .prefer("wait=10")
            .get(&first)
            .await
            .str("/status"),
        "Completed"
    );
    let held = app.held().await;
    let path = format!("/resume/{}", held.request);
    let ticked = &ticked[1..];
    let beyond = [
        &ticked[..2],
        &[("remember.expires_in", "7d"), ("remember", "yes")],
    ]
    .concat();
    let refused = bob.submit(&format!("{path}/approve"), &beyond).await;
    assert_eq!(refused.status, 422, "{}", refused.text);
    refused.assert_has("4h at most");
    app.model.then(text_answer("done"));
    let approved = bob.submit(&format!("{path}/approve"), ticked).await;
    assert_eq!(
        (approved.status, listed(app.approver()).await.len()),
        (303, 1),
        "{}",
        approved.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn last_call_is_remembered_although_a_decided_call_cannot_be(on: On) {
    let yaml = yaml("{ groups: [finance] }").replace(
        "tools: [lookup, tag], decide: allow }",
        "tools: [lookup], decide: allow }\n  - { name: tags, tools: [tag], decide: hold, approvers: { groups: [finance] } }",
    );
    let app = TestApp::with(on, &(yaml + ACCOUNTS)).await;
    app.model
        .then(calls(&[("tag", r#"{"text": "paid"}"#), ("refund", LARGE)]));
    let asked = app.owner().create_task("please").await;
    let path = format!("/resume/{}", asked.str("/pending/0/request_id"));
    let tag = asked.str("/pending/0/tool_calls/0/tool_call_id");
    let rejection = json!({"decisions": {tag: {"action": "reject", "then": "continue"}}});
    let rejected = app.approver().post(&path, &rejection).await;
    assert_eq!(rejected.status, 200, "{}", rejected.text);
    let shown = page(app.approver(), &path).await;
    shown.assert_has("Approve the other call");
    shown.assert_has("<option value=\"4h\">4 h</option>");
    app.model.then(text_answer("done"));
    let fields = [
        ("remember", "yes"),
        ("remember.for", "task"),
        ("remember.expires_in", "4h"),
    ];
    let approve = format!("{path}/approve");
    let approved = app.approver().submit(&approve, &fields).await;
    assert_eq!(
        (approved.status, listed(app.approver()).await.len()),
        (303, 1),
        "{}",
        approved.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn page_of_standing_decisions_shows_and_ends_them(on: On) {
    let app = finance(on).await;
    let empty = page(app.approver(), "/grants").await;
    assert_eq!(empty.status, 200, "{}", empty.text);
    empty.assert_has("Everything is asked about.");
    assert!(
        page(app.approver(), "/inbox/decided")
            .await
            .text
            .contains("href=\"/grants\"")
    );
    let task = remembered(&app, "task").await;
    let id = listed(app.approver()).await[0]["grant_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let shown = page(app.approver(), "/grants").await.text;
    for part in [
        "refund, under rule large",
        "in one task of alice",
        "given by bob",
        "used 0 of 3 times",
        &task.str("/task_id"),
        &format!("action=\"/grants/{id}\""),
        "name=\"shown_to\" value=\"bob\"",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(
        !page(app.owner(), "/grants")
            .await
            .text
            .contains("action=\"/grants/"),
        "she may not end it"
    );
    let chinese = app
        .approver()
        .header("accept-language", "zh")
        .accept_html()
        .get("/grants")
        .await;
    chinese.assert_has("已使用 0 次");
    assert_eq!(
        app.stranger()
            .submit(&format!("/grants/{id}"), &[])
            .await
            .status,
        403
    );
    let path = format!("/grants/{id}");
    let browser = app.approver().accept_html();
    let refused = browser.submit(&path, &[("shown_to", "eve")]).await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    refused.assert_has("<a href=\"/grants\">Load the page again</a>");
    assert!(listed(app.approver()).await[0]["ended"].is_null());
    let ended = app.approver().submit(&path, &[("shown_to", "bob")]).await;
    ended.assert_header(303, "location", "/grants");
    let after = page(app.approver(), "/grants").await.text;
    assert!(
        after.contains("<strong>ended</strong>") && !after.contains("action=\"/grants/"),
        "{after}"
    );
    app.stop().await;
}
