//! Tests the pages of tasks: their list, their timelines, and the form that cancels a task.

use macro_rules_attribute::apply;
use serde_json::json;

use super::super::approval_cycle::on_both;
use super::super::request_kinds::{ask, asking};
use super::{CRON, finance, page, refund, timeline};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ACCOUNTS, OTHER, On, REFUNDS, TestApp};

#[apply(on_both)]
async fn timeline_of_a_task_is_its_journal_in_order(on: On) {
    let app = finance(on).await;
    let held = refund(&app, 120).await;
    app.model.then(text_answer("<i>done</i>"));
    app.approver()
        .post(
            &format!("/resume/{}/approve", held.request),
            &json!({"reason": "ok"}),
        )
        .await;
    let path = format!("/tasks/{}", held.task);
    let shown = page(app.owner(), &path).await;
    assert_eq!(shown.status, 200, "{}", shown.text);
    let numbers: Vec<i64> = shown
        .text
        .split("<li")
        .skip(1)
        .filter_map(|part| part.split('#').nth(1)?.split(' ').next()?.parse().ok())
        .collect();
    let items = app.owner().items(&held.task).await;
    let count = i64::try_from(items.count("items")).unwrap();
    assert_eq!(numbers, (1..=count).collect::<Vec<_>>());
    for part in [
        "model calls: 2, tokens: 27",
        "Message of the user alice",
        "please",
        "The agent answers.",
        "Judged: held for a person",
        "rule large",
        "Refunds above 20 need a look.",
        "A person is asked: approval",
        "Approved by bob.",
        "refund was started.",
        "refund: done",
        "&lt;i&gt;done&lt;/i&gt;",
        "Written by the agent, not verified",
        "Completed",
    ] {
        shown.assert_has(part);
    }
    assert_eq!(
        shown.text.matches("&lt;i&gt;done&lt;/i&gt;").count(),
        1,
        "the output is the last answer"
    );
    assert!(
        shown.text.contains("/times.js") && !shown.text.contains("/follow.js"),
        "it has ended"
    );
    let early = page(app.owner(), &format!("{path}?before=3")).await;
    assert!(
        early.text.contains("#2 ") && !early.text.contains("#3 "),
        "exclusive: {}",
        early.text
    );
    let late = page(app.owner(), &format!("{path}?after={}", count - 2))
        .await
        .text;
    let numbers: Vec<i64> = timeline(&late).iter().map(|entry| entry.number).collect();
    assert_eq!(numbers, [count - 1, count], "{late}");
    assert!(
        late.contains(&format!("data-after=\"{count}\"")) && !late.contains("id=\"earlier\""),
        "{late}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn timeline_of_a_long_journal_is_paged_back_without_a_gap_or_a_repetition(on: On) {
    let yaml = REFUNDS
        .replace("{approvers}", "{ groups: [finance] }")
        .replace("forbidden] }", "forbidden], limits: { max_calls: 200 } }");
    let app = TestApp::with(on, &(yaml + ACCOUNTS)).await;
    app.model
        .then(calls(&[("forbidden", "{}"); 200]))
        .then(text_answer("done"));
    let task = app.owner().prefer("wait=60").create_task("go").await;
    assert_eq!(task.str("/status"), "Completed", "{}", task.text);
    let path = format!("/tasks/{}", task.str("/task_id"));
    let (mut numbers, mut sizes, mut query) = (Vec::new(), Vec::new(), String::new());
    for _ in 0..5 {
        let shown = page(app.owner(), &format!("{path}{query}")).await;
        let part: Vec<i64> = timeline(&shown.text)
            .iter()
            .map(|entry| entry.number)
            .collect();
        sizes.push(part.len());
        numbers = [part, numbers].concat();
        let Some((_, rest)) = shown.text.split_once("?before=") else {
            break;
        };
        query = format!("?before={}", rest.split('"').next().unwrap());
    }
    let last = app
        .database
        .texts("select cast(max(event_number) as text) from agent_task_item")
        .await;
    assert_eq!(
        numbers,
        (1..=last[0].parse().unwrap()).collect::<Vec<i64>>()
    );
    assert_eq!(sizes, [200, 200, 5]);
    for (after, has_gap) in [(204, true), (205, false), (500, false)] {
        let shown = page(app.owner(), &format!("{path}?after={after}"))
            .await
            .text;
        assert_eq!(
            shown.contains("id=\"earlier\""),
            has_gap,
            "{after}: {shown}"
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn task_page_says_what_is_open_and_goes_on_with_the_script(on: On) {
    let app = finance(on).await;
    let held = refund(&app, 120).await;
    let path = format!("/tasks/{}", held.task);
    let shown = page(app.owner(), &path).await;
    for part in [
        "Task · billing · Paused",
        "Refund 120 for order 17",
        "data-after=\"6\"",
        "/times.js",
        "/follow.js",
    ] {
        shown.assert_has(part);
    }
    shown.assert_has(&format!("href=\"/resume/{}\"", held.request));
    let asked = format!("Asked <time datetime={}>", held.body["created_at"]);
    assert!(
        shown.text.contains(&asked) && !shown.text.contains("tree of"),
        "{asked}: {}",
        shown.text
    );
    for (actor, status) in [
        (app.approver(), 200),
        (app.stranger(), 403),
        (app.actor(OTHER), 404),
    ] {
        let seen = page(actor, &path).await;
        assert!(
            seen.status == status && seen.header("content-type").starts_with("text/html"),
            "{}",
            seen.text
        );
    }
    let unknown = page(app.owner(), "/tasks/019a4b2c-7000-7000-8000-000000000001").await;
    assert!(unknown.status == 404 && unknown.header("content-type").starts_with("text/html"));
    app.database
        .execute("update agent_task_item set body = 'x' where event_number in (3, 5)")
        .await;
    let damaged = page(app.owner(), &path).await;
    assert_eq!(
        damaged.text.matches("This entry cannot be read.").count(),
        2,
        "{}",
        damaged.text
    );
    assert!(
        damaged.text.contains("#4 ") && damaged.text.contains("#6 "),
        "it goes on: {}",
        damaged.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn task_page_names_the_agent_of_a_question_and_its_kind_unless_it_is_an_approval(on: On) {
    let app = asking(on, "").await;
    for (kind, language, about) in [
        ("approval", "en", "(<bdi>billing</bdi>)"),
        ("guidance", "en", "(<bdi>billing</bdi>, guidance)"),
        ("guidance", "zh", "(<bdi>billing</bdi>、指导)"),
    ] {
        let question = ask(&app, kind).await;
        let reader = app.owner().header("accept-language", language);
        let shown = page(reader, &format!("/tasks/{}", question.task)).await;
        let line = format!("</span> {about} <a href=\"/resume/{}\">", question.id);
        shown.assert_has(&line);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn task_page_cancels_the_task_for_those_who_may_in_two_steps(on: On) {
    let app = finance(on).await;
    let held = app.held().await;
    let path = format!("/tasks/{}", held.task);
    let action = format!("action=\"{path}/cancel\"");
    let shown = page(app.owner(), &path).await.text;
    let (before, _) = shown.split_once(&action).expect("the form");
    assert!(
        before.rfind("<details") > before.rfind("</details>"),
        "the button is shown by a first step: {shown}"
    );
    assert!(
        !page(app.approver(), &path).await.text.contains(&action),
        "an approver may not cancel"
    );
    let cancel = format!("{path}/cancel");
    assert_eq!(app.approver().submit(&cancel, &[]).await.status, 403);
    assert_eq!(app.owner().get(&path).await.status, 200);
    for replayed in ["", "true"] {
        let owner = app.owner().keyed("k");
        let canceled = owner.submit(&cancel, &[]).await;
        let said = (
            canceled.header("location"),
            canceled.header("idempotency-replayed"),
        );
        assert_eq!((canceled.status, said), (303, (path.as_str(), replayed)));
    }
    let after = page(app.owner(), &path).await.text;
    assert!(
        after.contains("Canceled") && !after.contains(&action),
        "{after}"
    );
    assert_eq!(
        app.owner().request(&held.request).await.str("/status"),
        "withdrawn"
    );
    let again = app.owner().submit(&cancel, &[]).await;
    assert_eq!(
        again.status, 303,
        "a repetition changes nothing: {}",
        again.text
    );
    assert_eq!(app.tool.ledger().len(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn page_of_a_task_that_was_shown_to_another_user_cancels_nothing(on: On) {
    let app = finance(on).await;
    let held = app.held().await;
    let path = format!("/tasks/{}", held.task);
    let shown = page(app.owner(), &path).await;
    shown.assert_has("name=\"shown_to\" value=\"alice\"");
    let (cancel, owner) = (format!("{path}/cancel"), app.owner().accept_html());
    let refused = owner.submit(&cancel, &[("shown_to", "ops")]).await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    refused.assert_has(&format!("<a href=\"{path}\">Load the page again</a>"));
    assert_eq!(
        app.owner().task(&held.task).await.str("/status"),
        "Paused",
        "nothing was changed"
    );
    let canceled = owner.submit(&cancel, &[("shown_to", "alice")]).await;
    canceled.assert_header(303, "location", &path);
    app.stop().await;
}

#[apply(on_both)]
async fn tasks_are_listed_for_their_owner_and_the_tenants_for_an_admin(on: On) {
    let app = finance(on).await;
    let held = refund(&app, 120).await;
    app.model.then(text_answer("Hello."));
    app.actor("web-key-0123456789ab")
        .header("holdpoint-user", "<b>zoe")
        .create_task("hi")
        .await;
    let mine = page(app.owner(), "/tasks").await;
    let link = format!("href=\"/tasks/{}\"", held.task);
    mine.assert_has(&link);
    mine.assert_has("Paused</td>");
    mine.assert_lacks("zoe");
    let all = page(app.actor("ops-key-0123456789ab"), "/tasks").await;
    all.assert_has(&link);
    all.assert_has("&lt;b&gt;zoe");
    all.assert_lacks("<b>zoe");
    let paused = page(app.actor("ops-key-0123456789ab"), "/tasks?status=Completed").await;
    paused.assert_lacks(&link);
    paused.assert_has("zoe");
    assert!(
        page(app.stranger(), "/tasks?status=")
            .await
            .text
            .contains("No tasks.")
    );
    assert_eq!(page(app.actor(CRON), "/tasks").await.status, 403);
    app.stop().await;
}
