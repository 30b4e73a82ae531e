//! Tests of the names of all durable events. Also tests how an event shows a request (a question to
//! people): in the state that the request had at the time of the event.

use std::collections::BTreeSet;

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::{ASKING, asking, begin, short};
use super::super::trees;
use crate::support::event_stream::{Event, durable, names};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ACCOUNTS, Actor, On, Reply, TestApp, refunds};

const TABLE: [&str; 23] = [
    "task.created",
    "task.paused",
    "task.resumed",
    "task.completed",
    "task.failed",
    "task.canceled",
    "sub_agent.created",
    "sub_agent.paused",
    "sub_agent.resumed",
    "sub_agent.completed",
    "sub_agent.failed",
    "sub_agent.canceled",
    "sub_agent.started",
    "message.received",
    "message.completed",
    "tool_call.judged",
    "request.created",
    "request.decided",
    "request.expired",
    "request.withdrawn",
    "tool.started",
    "tool.finished",
    "tool.finished_late",
];

/// Reads the event stream of the tree of `root` to the end. Returns the durable events. Asserts
/// that the events are numbered from 1. Also asserts that the events of each task equal the items
/// of its journal. The comparison leaves out the members that only an event has.
async fn checked(app: &TestApp, root: &str) -> Vec<Event> {
    let events = durable(&app.owner().events(root, None).await);
    assert!(
        events
            .iter()
            .zip(1..)
            .all(|(event, number)| event.id == Some(number)),
        "{events:#?}"
    );
    for task in trees::tree(app, root).await {
        let id = trees::id(&task);
        let mut own = Vec::new();
        for event in events.iter().filter(|event| event.data["task_id"] == id) {
            assert_eq!(event.data["root_task_id"], *root);
            let of_root = event.name.starts_with("task.") || !event.name.starts_with("sub_agent.");
            assert!(
                of_root || id != *root || event.name == "sub_agent.started",
                "{event:?}"
            );
            let (agent, path) = (&task["agent"], event.data["agent_path"].as_array().unwrap());
            assert_eq!(path.last(), Some(agent));
            let mut item = event.data.clone();
            item.as_object_mut().unwrap().retain(|name, _| {
                !["event", "agent_path", "root_task_id", "request"].contains(&name.as_str())
            });
            own.push(item);
        }
        assert_eq!(own, super::super::request_kinds::items(app, &id).await);
    }
    events
}

async fn cancel(app: &TestApp, task: &str) {
    let reply = app.owner().cancel(task).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
}

/// Runs a tree with three sub-agents: one opens a request, one fails, and one is canceled. Returns
/// the tree's events.
async fn a_tree(on: On) -> Vec<Event> {
    let app = trees::trees(on, "").await;
    let turns = [
        trees::turn(&[
            trees::pays("analyst", 1),
            trees::give("clerk", &[json!(0)]),
            trees::pays("analyst", 2),
        ]),
        json!("done"),
    ];
    let root = trees::paused(&app, &turns).await;
    let id = root.str("/task_id");
    let open = trees::open(&root);
    cancel(&app, &open[1].0).await;
    app.owner().approve(&open[0].1).await;
    trees::still(&app, &id).await;
    let events = checked(&app, &id).await;
    app.stop().await;
    events
}

async fn an_expiry(on: On) -> Vec<Event> {
    let app = asking(on, &short("1s", "")).await;
    app.model.otherwise(|_| text_answer("nobody came"));
    let root = begin(
        &app,
        &[("request_confirmation", r#"{"action":"Close the shop."}"#)],
    )
    .await;
    let events = checked(&app, &root.str("/task_id")).await;
    app.stop().await;
    events
}

/// Runs a task that is canceled while a call is in flight. Returns the task's events.
async fn a_late_result(on: On) -> Vec<Event> {
    let app = TestApp::start(on).await;
    app.model.then(calls(&[("lookup", r#"{"order":1}"#)]));
    app.tool.close();
    let running = app.owner().prefer("respond-async").create_task("x").await;
    let id = running.str("/task_id");
    app.tool.reached(1).await;
    cancel(&app, &id).await;
    let mut last = app
        .owner()
        .events(&id, None)
        .await
        .iter()
        .filter_map(|event| event.id)
        .max();
    app.tool.open();
    loop {
        let mut more = app.owner().watch(&id, last).await;
        let more = if more.status == 204 {
            Vec::new()
        } else {
            more.rest().await
        };
        last = more.iter().filter_map(|event| event.id).max().or(last);
        if names(&more).contains(&"tool.finished_late") {
            break;
        }
    }
    let events = checked(&app, &id).await;
    assert_eq!(
        events.last().unwrap().name,
        "tool.finished_late",
        "after the end"
    );
    app.stop().await;
    events
}

/// Runs two tasks and returns their events. One task fails, and the other is canceled while it
/// waits.
async fn two_ends(on: On) -> Vec<Event> {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    cancel(&app, &held.task).await;
    app.model.then_fails(400);
    let failed = app.owner().create_task("x").await;
    let mut events = checked(&app, &held.task).await;
    events.extend(checked(&app, &failed.str("/task_id")).await);
    app.stop().await;
    events
}

/// Returns the JSON of an intervention request without the members that depend on the reader.
fn about(shown: &Value) -> Value {
    let mut shown = shown.clone();
    let members = shown.as_object_mut().unwrap();
    assert!(members.remove("allowed_actions").is_some() && members.remove("can_decide").is_some());
    shown
}

async fn decide(actor: Actor<'_>, request: &str) -> Reply {
    let reply = actor.approve(request).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply
}

async fn shown(app: &TestApp, request: &str) -> Value {
    about(&app.owner().request(request).await.body)
}

fn of<'e>(events: &'e [Event], name: &str, request: &str) -> Vec<&'e Value> {
    let about =
        |event: &&Event| event.name == name && event.data["request"]["request_id"] == request;
    events
        .iter()
        .filter(about)
        .map(|event| &event.data["request"])
        .collect()
}

#[apply(on_both)]
async fn every_event_name_of_the_table_is_sent(on: On) {
    let mut seen = BTreeSet::new();
    for events in [
        a_tree(on).await,
        an_expiry(on).await,
        a_late_result(on).await,
        two_ends(on).await,
    ] {
        seen.extend(events.into_iter().map(|event| event.name));
    }
    assert_eq!(
        seen.iter().map(String::as_str).collect::<BTreeSet<_>>(),
        BTreeSet::from(TABLE)
    );
}

#[apply(on_both)]
async fn event_shows_the_request_as_the_reply_showed_it(on: On) {
    let two = refunds("{ users: [bob, carol], required: 2 }");
    let app = TestApp::with(on, &two).await;
    let held = app.held().await;
    let mut watch = app.owner().watch(&held.task, None).await;
    let asked = watch.until("request.created").await.pop().unwrap();
    assert_eq!(asked.data["request"], about(&held.body["pending"][0]));
    let first = decide(app.approver(), &held.request).await;
    let told = watch.until("request.decided").await.pop().unwrap();
    assert_eq!(told.data["request"], about(&first.body["pending"][0]));
    assert_eq!(
        told.data["request"]["tool_calls"][0]["approvals"][0]["by"],
        "bob"
    );
    decide(app.stranger(), &held.request).await;
    let told = watch.until("request.decided").await.pop().unwrap();
    assert_eq!(told.data["request"], shown(&app, &held.request).await);
    assert_eq!(
        (
            &told.data["request"]["status"],
            &told.data["request"]["decision"]["by"]
        ),
        (&json!("resumed"), &json!("carol"))
    );
    watch.rest().await;
    // A stream that is opened later shows the request as it was at each event.
    let again = app.owner().events(&held.task, None).await;
    let stands: Vec<_> = of(&again, "request.decided", &held.request)
        .iter()
        .map(|request| request["status"].clone())
        .collect();
    assert_eq!(stands, ["pending", "resumed"]);
    assert_eq!(
        *of(&again, "request.created", &held.request)[0],
        asked.data["request"]
    );
}

#[apply(on_both)]
async fn decided_request_is_responded_until_the_other_open_request_is_decided(on: On) {
    let yaml = ASKING.replace("{more}", "") + ACCOUNTS;
    let app = TestApp::with(on, &yaml).await;
    let root = begin(
        &app,
        &[
            ("refund", r#"{"order":1,"amount":9}"#),
            ("request_confirmation", r#"{"action":"Go."}"#),
        ],
    )
    .await;
    let (first, second) = (
        root.str("/pending/0/request_id"),
        root.str("/pending/1/request_id"),
    );
    let mut watch = app.owner().watch(&root.str("/task_id"), None).await;
    for (request, stands) in [(&first, "responded"), (&second, "resumed")] {
        decide(app.owner(), request).await;
        let told = watch.until("request.decided").await.pop().unwrap();
        assert_eq!(told.data["request"], shown(&app, request).await);
        assert_eq!(told.data["request"]["status"], stands);
    }
    watch.rest().await;
    assert_eq!(shown(&app, &first).await["status"], "resumed");
    let again = app.owner().events(&root.str("/task_id"), None).await;
    assert_eq!(
        of(&again, "request.decided", &first)[0]["status"],
        "responded"
    );
}

#[apply(on_both)]
async fn closing_event_shows_the_final_state_of_its_request(on: On) {
    for (events, name) in [
        (two_ends(on).await, "request.withdrawn"),
        (an_expiry(on).await, "request.expired"),
    ] {
        let closed = events.iter().find(|event| event.name == name).unwrap();
        let request = &closed.data["request"];
        assert_eq!(request["status"], closed.data["status"]);
        assert_eq!(
            (&request["request_id"], &request["decision"]),
            (&closed.data["request_id"], &Value::Null)
        );
    }
}
