//! Tests of decisions by link. A decision by link belongs to the person for whom the link was made.
//! It counts if that person may still decide.

use futures_util::future::join_all;
use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::{ASKING, ask, items};
use super::{answer, digest, ended, linked, page, press, yaml};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::links::{DECIDING, OTHER_KEY, PEOPLE, SEALING_KEY, link};
use crate::support::test_app::{ACCOUNTS, On, TestApp};

async fn decisions(app: &TestApp, task: &str) -> Vec<Value> {
    let items = items(app, task).await;
    let decided = items.iter().filter(|item| item["type"] == "decision");
    decided.map(|item| item["decision"].clone()).collect()
}

#[apply(on_both)]
async fn link_decides_as_its_person_and_says_so(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    for user in ["dora", "bob"] {
        let held = app.held().await;
        app.model.then(text_answer("done"));
        let path = link(user, &held.request);
        let reply = answer(&app, &path, "approve", &[("reason", "fine")]).await;
        reply.assert_header(303, "location", &path);
        let [decision] = &decisions(&app, &held.task).await[..] else {
            panic!("one")
        };
        let said = ["action", "by", "via", "door", "reason"].map(|member| &decision[member]);
        assert_eq!(
            said,
            [
                &json!("approve"),
                &json!(user),
                &Value::Null,
                &json!("link"),
                &json!("fine")
            ]
        );
        assert!(
            page(&app, &path)
                .await
                .text
                .contains(&format!("Approved by {user}"))
        );
        ended(&app, &held.task, "Completed").await;
        let timeline = format!("/tasks/{}", held.task);
        let timeline = app.owner().accept_html().get(&timeline).await;
        timeline.assert_has(&format!("Approved by {user}.</bdi> (by link) "));
    }
    assert_eq!(app.tool.ledger().len(), 2);
    app.stop().await;
}

#[apply(on_both)]
async fn link_rejects_with_what_its_person_wants_to_follow(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    for (then, status) in [("cancel", "Canceled"), ("continue", "Completed")] {
        let held = app.held().await;
        if then == "continue" {
            app.model.then(text_answer("done"));
        }
        let path = link("dora", &held.request);
        let reply = answer(&app, &path, "reject", &[("then", then)]).await;
        assert_eq!(reply.status, 303, "{}", reply.text);
        let task = app.owner().prefer("wait=20").task(&held.task).await;
        assert_eq!(task.str("/status"), status);
        let decision = &decisions(&app, &held.task).await[0];
        assert_eq!(
            (&decision["then"], &decision["door"]),
            (&json!(then), &json!("link"))
        );
    }
    assert_eq!(app.tool.ledger().len(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn link_cancels_as_its_button_says_after_another_person_approved_a_call(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    app.model.then(calls(&[
        ("refund", r#"{"order":1,"amount":50}"#),
        ("refund", r#"{"order":2,"amount":60}"#),
    ]));
    let held = app.owner().create_task("go").await;
    let request = held.str("/pending/0/request_id");
    let call = held.str("/pending/0/tool_calls/0/tool_call_id");
    let path = link("dora", &request);
    let shown = page(&app, &path).await;
    for part in [
        "Reject all 2 and cancel the task</button>",
        "name=\"reject.then\" value=\"cancel\"",
    ] {
        shown.assert_has(part);
    }
    let approval = json!({"decisions": {call: {"action": "approve"}}});
    let approved = app.approver().answer(&request, &approval).await;
    assert_eq!(approved.status, 200, "{}", approved.text);
    let digest = digest(&shown);
    let fields = [
        ("digest", digest.as_str()),
        ("reject.then", "cancel"),
        ("action", "reject"),
    ];
    let reply = press(&app, &path, &fields).await;
    reply.assert_header(303, "location", &path);
    ended(&app, &held.str("/task_id"), "Canceled").await;
    assert!(
        app.tool.ledger().is_empty(),
        "the approved call does not run"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn link_answers_what_the_agent_asks(on: On) {
    let people = format!(
        "{}{ACCOUNTS}{PEOPLE}{DECIDING}",
        ASKING.replace("{more}", "")
    );
    let app = TestApp::with(on, &people).await;
    for (kind, fields) in [
        ("guidance", &[("field.answer", "north")][..]),
        ("confirmation", &[("confirmed", "true"), ("comment", "go")]),
    ] {
        let question = ask(&app, kind).await;
        app.model.then(text_answer("done"));
        let reply = answer(&app, &link("alice", &question.id), "respond", fields).await;
        assert_eq!(reply.status, 303, "{kind}: {}", reply.text);
        let decision = &decisions(&app, &question.task).await[0];
        assert_eq!(
            (&decision["action"], &decision["door"]),
            (&json!("respond"), &json!("link")),
            "{kind}"
        );
        ended(&app, &question.task, "Completed").await;
    }
    app.stop().await;
}

#[apply(on_both)]
async fn hundred_presses_of_one_link_are_one_decision(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    let held = app.held().await;
    app.model.then(text_answer("done"));
    let path = link("dora", &held.request);
    let digest = digest(&page(&app, &path).await);
    let fields = [("digest", digest.as_str()), ("action", "approve")];
    let replies = join_all((0..100).map(|_| press(&app, &path, &fields))).await;
    let statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
    assert_eq!(
        statuses.iter().filter(|status| **status == 303).count(),
        1,
        "{statuses:?}"
    );
    assert_eq!(
        statuses.iter().filter(|status| **status == 409).count(),
        99,
        "{statuses:?}"
    );
    ended(&app, &held.task, "Completed").await;
    assert_eq!(decisions(&app, &held.task).await.len(), 1);
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn links_of_two_people_decide_once_and_the_later_is_told_by_whom(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    let held = app.held().await;
    app.model.then(text_answer("done"));
    let [dora, emil] = ["dora", "emil"].map(|user| link(user, &held.request));
    let fields = [("digest", held.digest()), ("action", "approve")];
    let client = app.anonymous().header("origin", &app.url());
    let replies = tokio::join!(client.submit(&dora, &fields), client.submit(&emil, &fields));
    let (by, late, path) = if replies.0.status == 303 {
        ("dora", replies.1, emil)
    } else {
        ("emil", replies.0, dora)
    };
    late.assert_code(409, "already_decided");
    let decision = ["action", "by", "door"].map(|member| &late.body["decision"][member]);
    assert_eq!(decision, [&json!("approve"), &json!(by), &json!("link")]);
    let pressed = press(&app, &path, &fields).await;
    assert_eq!(pressed.status, 409, "{}", pressed.text);
    pressed.assert_has(&format!("The first decision counts: {by}"));
    ended(&app, &held.task, "Completed").await;
    let shown = page(&app, &path).await;
    assert_eq!(shown.status, 200, "{}", shown.text);
    shown.assert_has(&format!("Approved by {by}"));
    shown.assert_lacks("<form");
    let [stored] = &decisions(&app, &held.task).await[..] else {
        panic!("one")
    };
    assert_eq!(stored["by"], by);
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn link_posted_with_an_idempotency_key_is_stored_in_no_column(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    let held = app.held().await;
    app.model.then(text_answer("done"));
    let paths = [link("dora", &held.request), link("dora", &held.request)];
    let digest = digest(&page(&app, &paths[0]).await);
    for (path, replayed) in paths.iter().zip(["", "true"]) {
        let browser = app.anonymous().header("origin", &app.url()).keyed("k-1");
        let fields = [("digest", digest.as_str()), ("action", "approve")];
        let reply = browser.submit(path, &fields).await;
        reply.assert_header(303, "location", path);
        assert_eq!(reply.header("idempotency-replayed"), replayed);
    }
    ended(&app, &held.task, "Completed").await;
    let columns = "tenant || ' ' || user_id || ' ' || path || ' ' || key || ' ' || body_digest || ' ' || coalesce(person, '')";
    let rows = app
        .database
        .texts(&format!("select {columns} from idempotency"))
        .await;
    let [row] = &rows[..] else {
        panic!("both links are of one request: {rows:?}")
    };
    assert!(
        row.contains(&format!("acme dora POST /l/{} k-1 ", held.request)),
        "{row}"
    );
    for path in &paths {
        assert!(!row.contains(path.strip_prefix("/l/").unwrap()), "{row}");
    }
    app.stop().await;
}

#[apply(on_both)]
async fn repeated_key_of_a_link_is_recognized_before_the_form_is_checked(on: On) {
    let app = linked(on, "{ groups: [finance] }").await;
    let held = app.held().await;
    app.model.then(text_answer("done"));
    let path = link("dora", &held.request);
    let digest = held.digest().replace(':', "%3A");
    let approve = format!("digest={digest}&action=approve");
    let form = "application/x-www-form-urlencoded";
    let browser = app.anonymous().header("origin", &app.url()).keyed("k-1");
    for (kind, replayed) in [(form, ""), ("application/json", "true")] {
        let body = Some((kind, approve.clone()));
        let reply = browser.send(Method::POST, &path, body).await;
        reply.about(&kind).assert_header(303, "location", &path);
        assert_eq!(reply.header("idempotency-replayed"), replayed, "{kind}");
    }
    let reply = browser.submit(&path, &[("action", "reject")]).await;
    reply.assert_code(422, "idempotency_key_reused");
    ended(&app, &held.task, "Completed").await;
    assert_eq!(decisions(&app, &held.task).await.len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn two_links_of_two_people_are_two_of_two_and_one_person_twice_is_not(on: On) {
    let app = linked(on, "{ groups: [finance], required: 2, links: true }").await;
    let held = app.held().await;
    let dora = link("dora", &held.request);
    assert_eq!(answer(&app, &dora, "approve", &[]).await.status, 303);
    let again = link("dora", &held.request);
    let digest = held.digest();
    let fields = [("digest", digest), ("action", "approve")];
    for path in [&dora, &again] {
        let reply = press(&app, path, &fields).await;
        assert_eq!(reply.status, 409, "{}", reply.text);
    }
    assert_eq!(app.tool.ledger().len(), 0);
    app.model.then(text_answer("done"));
    assert_eq!(
        answer(&app, &link("emil", &held.request), "approve", &[])
            .await
            .status,
        303
    );
    let task = app.owner().prefer("wait=20").task(&held.task).await;
    assert_eq!(
        (task.str("/status").as_str(), app.tool.ledger().len()),
        ("Completed", 1)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn vote_by_link_stops_counting_when_its_person_does(on: On) {
    let approvers = "{ groups: [finance], required: 2, links: true }";
    let dora = "user: dora, tenant: acme, groups: [finance]";
    for (kept, lost) in [
        (dora, "user: dorothy, tenant: acme, groups: [finance]"),
        (dora, "user: dora, tenant: acme, groups: [sales]"),
        ("links: { may: decide }", "links: { may: open }"),
        ("required: 2, links: true", "required: 2, links: false"),
    ] {
        let mut app = linked(on, approvers).await;
        let held = app.held().await;
        assert_eq!(
            answer(&app, &link("dora", &held.request), "approve", &[])
                .await
                .status,
            303
        );
        app.restart_with(|yaml| {
                assert!(yaml.contains(kept), "{kept}");
                let more = "    - { user: carl, tenant: acme, groups: [finance], key: \"carl-key-0123456789\" }\n    - { user: bob,";
                yaml.replace(kept, lost).replacen("    - { user: bob,", more, 1)
            }).await;
        let approve = format!("/resume/{}/approve", held.request);
        let reply = app.approver().post(&approve, &json!({})).await;
        assert_eq!(reply.status, 200, "{lost}: {}", reply.text);
        assert_eq!(reply.str("/status"), "Paused", "{lost}: {}", reply.text);
        assert_ne!(reply.str("/pending/0/request_id"), held.request, "{lost}");
        assert_eq!(app.tool.ledger().len(), 0, "{lost}");
        app.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vote_by_link_counts_while_its_person_does() {
    let mut app = linked(
        On::Sqlite,
        "{ groups: [finance], required: 2, links: true }",
    )
    .await;
    let held = app.held().await;
    let dora = link("dora", &held.request);
    assert_eq!(answer(&app, &dora, "approve", &[]).await.status, 303);
    app.restart().await;
    app.model.then(text_answer("done"));
    let approve = format!("/resume/{}/approve", held.request);
    let reply = app.approver().post(&approve, &json!({})).await;
    assert_eq!(reply.str("/status"), "Completed", "{}", reply.text);
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn link_sealed_with_an_old_key_decides_while_the_key_is_configured() {
    let mut app = TestApp::with(On::Sqlite, &yaml("{ groups: [finance] }")).await;
    let held = app.held().await;
    let path = link("dora", &held.request);
    let newer = format!("keys: [ {{ id: k2, key: \"{OTHER_KEY}\" }}, ");
    app.restart_with(|yaml| yaml.replace("keys: [ ", &newer))
        .await;
    app.model.then(text_answer("done"));
    assert_eq!(answer(&app, &path, "approve", &[]).await.status, 303);
    let waits = app.owner().prefer("wait=60");
    let done = waits.task(&held.task).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    let gone = link("dora", &app.held().await.request);
    app.restart_with(|yaml| {
        let old = format!("{{ id: k1, key: \"{SEALING_KEY}\" }} ");
        yaml.replace(&format!(", {old}"), " ")
    })
    .await;
    assert_eq!(page(&app, &gone).await.status, 404);
    app.stop().await;
}
