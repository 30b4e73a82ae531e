//! Tests which messages each entry of the configuration's `notify.to` gets.

use std::collections::BTreeSet;
use std::time::Duration;

use macro_rules_attribute::apply;
use serde_json::json;

use super::{BACKEND, BEYOND_RETRIES, NotifyFixture};
use crate::api::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::fake_receiver::{FakeReceiver, Received};
use crate::support::test_app::{BOB, OPS, OTHER, On, TestApp};
use crate::support::{eventually, until};

fn kinds(fixture: &NotifyFixture, path: &str) -> BTreeSet<String> {
    let all = fixture.server.all();
    let own = all.iter().filter(|message| message.path == path);
    own.map(|message| message.kind().to_owned()).collect()
}

#[apply(on_both)]
async fn counters_of_an_entry_begin_at_zero(on: On) {
    let fixture = NotifyFixture::start(on, BACKEND).await;
    let metrics = fixture.app.actor(OPS).get("/metrics").await.text;
    for series in [
        "holdpoint_deliveries_total{outcome=\"dead\",target=\"backend\"} 0",
        "holdpoint_requests_unreachable_total{target=\"backend\"} 0",
    ] {
        assert!(metrics.contains(series), "{series}: {metrics}");
    }
}

#[apply(on_both)]
async fn nothing_is_written_where_no_entry_wants_it(on: On) {
    let failed = BACKEND.replace("tenants: [acme]", "tenants: [acme], events: [task.failed]");
    let fixture = NotifyFixture::start(on, &failed).await;
    fixture.cycle().await;
    let texts = async |table: &str| {
        let sql = format!("select cast(count(*) as text) from {table}");
        fixture.app.database.texts(&sql).await
    };
    assert_eq!(texts("notice").await, ["0".to_owned()]);
    assert_eq!(texts("delivery").await, ["0".to_owned()]);
    assert_eq!(fixture.server.count(), 0);
}

#[apply(on_both)]
async fn entry_gets_the_events_of_its_tenants_only(on: On) {
    let fixture = NotifyFixture::start(on, BACKEND).await;
    fixture.app.model.then(text_answer("done"));
    let reply = fixture.app.actor(OTHER).create_task("hello").await;
    assert_eq!(reply.str("/status"), "Completed");
    let own = fixture.short().await;
    fixture.server.reached(1).await;
    fixture.counted(&[("sent", 1)]).await;
    let all = fixture.server.all();
    let of: Vec<_> = all
        .iter()
        .map(|one| one.body["data"]["root_task_id"].clone())
        .collect();
    assert_eq!(of, [json!(own)]);
}

#[apply(on_both)]
async fn entry_without_tenants_gets_nothing_about_a_tenant_whose_keys_are_gone(on: On) {
    let named = "tenants: [acme, other]";
    let of_both = BACKEND.replace("tenants: [acme]", named);
    let mut fixture = NotifyFixture::start(on, &of_both).await;
    fixture.server.answers(500);
    fixture.app.model.then(text_answer("done"));
    let reply = fixture.app.actor(OTHER).create_task("hello").await;
    assert_eq!(reply.str("/status"), "Completed");
    fixture.server.reached(1).await;
    fixture
        .app
        .restart_with(|yaml| {
            let yaml = yaml.replace(&format!(", {named}"), "");
            let lines = yaml.lines().filter(|line| !line.contains(OTHER));
            lines.collect::<Vec<_>>().join("\n")
        })
        .await;
    let before = fixture.server.count();
    fixture.server.answers(200);
    fixture.advance(BEYOND_RETRIES);
    let ended = async || {
        let states = "select state from delivery where tenant = 'other'";
        let states = fixture.app.database.texts(states).await;
        states.iter().all(|state| state != "due").then_some(states)
    };
    let states = eventually("the waiting message has ended", ended).await;
    assert_eq!(
        (states, fixture.server.count()),
        (vec!["dropped".to_owned()], before)
    );
    let own = fixture.short().await;
    fixture.server.reached(before + 1).await;
    let last = fixture.server.all().pop().unwrap();
    assert_eq!(last.body["data"]["root_task_id"], own);
}

#[apply(on_both)]
async fn entry_gets_the_events_that_it_names_and_no_others(on: On) {
    let named = "tenants: [acme], events: [task.created, task.resumed, request.decided]";
    let fixture = NotifyFixture::start(on, &BACKEND.replace("tenants: [acme]", named)).await;
    fixture.cycle().await;
    fixture.counted(&[("sent", 3), ("due", 0)]).await;
    let found = kinds(&fixture, "/backend");
    assert_eq!(
        found,
        ["request.decided", "task.created", "task.resumed"]
            .map(str::to_owned)
            .into()
    );
}

#[apply(on_both)]
async fn entry_with_groups_or_users_gets_only_requests_that_they_may_decide(on: On) {
    let entry = |name: &str, who: &str| {
        BACKEND
            .replace("backend", name)
            .replace("tenants: [acme]", &format!("tenants: [acme], {who}"))
    };
    let entries = [
        entry("finance", "groups: [finance]"),
        entry("support", "groups: [support]"),
        entry("bob", "users: [bob]"),
        entry("alice", "users: [alice]"),
        entry("carol", "users: [carol]"),
    ];
    let fixture = NotifyFixture::start(on, &entries.join("\n")).await;
    fixture.app.held().await;
    fixture.counted(&[("sent", 3), ("due", 0)]).await;
    for (path, told) in [
        ("/finance", true),
        ("/support", false),
        ("/bob", true),
        ("/alice", true),
        ("/carol", false),
    ] {
        let expected: BTreeSet<String> = told
            .then(|| "request.created".to_owned())
            .into_iter()
            .collect();
        assert_eq!(kinds(&fixture, path), expected, "{path}");
    }
}

#[apply(on_both)]
async fn end_of_a_question_is_told_however_it_ends(on: On) {
    let fixture = NotifyFixture::start(on, BACKEND).await;
    let held = fixture.app.held().await;
    let reply = fixture
        .app
        .owner()
        .hit(&format!("/v1/tasks/{}/cancel", held.task))
        .await;
    assert_eq!(reply.status, 200);
    fixture.counted(&[("sent", 4), ("due", 0)]).await;
    let expected = [
        "request.created",
        "request.withdrawn",
        "task.canceled",
        "task.paused",
    ];
    assert_eq!(
        kinds(&fixture, "/backend"),
        expected.map(str::to_owned).into()
    );
    fixture.app.held().await;
    fixture.counted(&[("sent", 6), ("due", 0)]).await;
    fixture.app.model.then(text_answer("done"));
    fixture.advance(Duration::from_hours(25));
    fixture.counted(&[("sent", 8), ("due", 0)]).await;
    for status in ["withdrawn", "expired"] {
        let kind = format!("request.{status}");
        let [ended] = &fixture.server.of(&kind)[..] else {
            panic!("not exactly one {kind}")
        };
        assert_eq!(ended.body["data"]["request"]["status"], status);
    }
}

/// Returns the configuration with this entry. The refund agent has the sub-agent `clerk`.
fn with_clerk(entry: &str, hook: &FakeReceiver) -> String {
    let clerk = "clerk: { description: Looks orders up., model: main, tools: [lookup, refund] }";
    let agents = format!("forbidden], sub_agents: [clerk] }}\n  {clerk}\ndefault_agent: billing");
    super::yaml(entry, hook).replace("forbidden] }", &agents)
}

#[apply(on_both)]
async fn every_event_of_sub_agents_and_the_failure_of_a_task_are_told(on: On) {
    let events = [
        "sub_agent.canceled",
        "sub_agent.completed",
        "sub_agent.created",
        "sub_agent.failed",
        "sub_agent.paused",
        "sub_agent.resumed",
        "sub_agent.started",
        "task.failed",
    ];
    let named = format!("tenants: [acme], events: [{}]", events.join(", "));
    let hook = FakeReceiver::start().await;
    let yaml = with_clerk(&BACKEND.replace("tenants: [acme]", &named), &hook);
    let fixture = NotifyFixture::configured(on, &yaml, hook).await;
    let (app, clerk) = (&fixture.app, calls(&[("clerk", r#"{"task":"go"}"#)]));
    let refund = |amount: u32| {
        let arguments = json!({"order": 17, "amount": amount}).to_string();
        calls(&[("refund", &arguments)])
    };
    app.model.then(clerk.clone()).then(refund(120));
    let first = app.owner().create_task("please").await;
    // The first clerk completes, the second one fails, and the third one waits for an answer.
    app.model.then(text_answer("paid")).then(clerk.clone());
    app.model.then_fails(400).then(clerk).then(refund(130));
    app.owner()
        .approve(&first.str("/pending/0/request_id"))
        .await;
    let task = first.str("/task_id");
    let third = app.owner().prefer("wait=60").task(&task).await;
    app.model.then_fails(400);
    app.owner().cancel(&third.str("/pending/0/task_id")).await;
    let expected = BTreeSet::from(events.map(str::to_owned));
    let are_told = async || kinds(&fixture, "/backend") == expected;
    until("every event is told", are_told).await;
    for message in fixture.server.all() {
        let path: &[&str] = match message.kind() {
            "sub_agent.started" | "task.failed" => &["billing"],
            _ => &["billing", "clerk"],
        };
        let found = &message.body["data"]["agent_path"];
        assert_eq!(*found, json!(path), "{message:?}");
    }
}

#[apply(on_both)]
async fn start_of_a_sub_agent_is_told_to_the_entry_that_names_it(on: On) {
    let hook = FakeReceiver::start().await;
    let named = BACKEND.replace(
        "tenants: [acme]",
        "tenants: [acme], events: [sub_agent.started]",
    );
    let app = TestApp::with(on, &with_clerk(&named, &hook)).await;
    app.model
        .then(calls(&[("clerk", r#"{"task":"look"}"#)]))
        .then(text_answer("looked"))
        .then(text_answer("done"));
    let done = app
        .owner()
        .post("/v1/tasks", &json!({"input": "please"}))
        .await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    hook.reached(1).await;
    let [message] = &hook.all()[..] else {
        panic!("one start")
    };
    let data = &message.body["data"];
    assert_eq!(message.kind(), "sub_agent.started");
    assert_eq!(data["task_id"], done.body["task_id"]);
    assert_eq!(
        (&data["agent_path"], &data["request"]),
        (&json!(["billing"]), &json!(null))
    );
}

#[apply(on_both)]
async fn every_question_of_many_tasks_is_told_once(on: On) {
    let named = "tenants: [acme], events: [request.created]";
    let fixture = NotifyFixture::start(on, &BACKEND.replace("tenants: [acme]", named)).await;
    let mut requests = BTreeSet::new();
    for _ in 0..25 {
        requests.insert(fixture.app.held().await.request);
    }
    fixture.counted(&[("sent", 25), ("due", 0)]).await;
    let all = fixture.server.all();
    let told: Vec<_> = all
        .iter()
        .map(|one| {
            one.body["data"]["request"]["request_id"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(told.len(), 25);
    assert_eq!(told.into_iter().collect::<BTreeSet<_>>(), requests);
    let ids: BTreeSet<_> = all.iter().map(Received::id).collect();
    assert_eq!(ids.len(), 25);
}

#[tokio::test]
async fn two_answers_to_one_request_are_two_messages() {
    let two = "{ groups: [finance], owner: true, required: 2 }";
    let hook = FakeReceiver::start().await;
    let yaml = super::yaml(BACKEND, &hook).replace("{ owner: true, groups: [finance] }", two);
    let app = TestApp::with(On::Sqlite, &yaml).await;
    app.model
        .then(calls(&[("refund", r#"{"order": 17, "amount": 120}"#)]));
    let held = app
        .owner()
        .post("/v1/tasks", &json!({"input": "please"}))
        .await;
    let path = format!("/resume/{}/approve", held.str("/pending/0/request_id"));
    app.model.then(text_answer("done"));
    assert_eq!(app.owner().hit(&path).await.status, 200);
    assert_eq!(app.actor(BOB).hit(&path).await.str("/status"), "Completed");
    hook.reached(5).await;
    let decided = hook.of("request.decided");
    let mut approvals: Vec<_> = decided
        .iter()
        .map(|one| {
            let request = &one.body["data"]["request"];
            (
                request["approvals"].as_i64().unwrap(),
                request["status"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    approvals.sort();
    assert_eq!(
        approvals,
        [(1, "pending".to_owned()), (2, "resumed".to_owned())]
    );
}
