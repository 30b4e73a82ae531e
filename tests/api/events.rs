//! Tests of a task's events, as a client sees them.

mod deltas;
mod event_names;
mod outages;
mod post_streams;
mod resumption;
mod shared_reads;
mod slow_readers;
mod stream_ends;
mod subtrees;

use macro_rules_attribute::apply;
use serde_json::json;

use super::approval_cycle::on_both;
use crate::support::event_stream::{StreamBlock, durable, names, numbers};
use crate::support::fake_chat_completions::text_answer;
use crate::support::test_app::{On, TestApp};

#[apply(on_both)]
async fn task_is_watched_from_its_creation_to_its_end(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let mut watch = app.owner().watch(&held.task, None).await;
    assert_eq!(
        (watch.status, watch.header("content-type")),
        (200, "text/event-stream")
    );
    assert_eq!(watch.header("cache-control"), "no-store, no-transform");
    assert_eq!(watch.header("x-accel-buffering"), "no");
    assert_eq!(watch.said().await, Some(StreamBlock::Retry(1000)));
    let before = watch.until("caught_up").await;
    let expected = [
        "task.created",
        "message.received",
        "message.completed",
        "tool_call.judged",
        "request.created",
        "task.paused",
        "caught_up",
    ];
    assert_eq!(names(&before), expected);
    assert_eq!(numbers(&before), [1, 2, 3, 4, 5, 6]);
    assert_eq!(
        before.last().unwrap().data,
        json!({"event": "caught_up", "after": 6})
    );

    app.model.then(text_answer("All done."));
    app.owner()
        .answer(&held.request, &json!({"action": "approve"}))
        .await;
    let after = durable(&watch.rest().await);
    let expected = [
        "request.decided",
        "task.resumed",
        "tool.started",
        "tool.finished",
        "message.completed",
        "task.completed",
    ];
    assert_eq!(names(&after), expected);
    assert_eq!(numbers(&after), [7, 8, 9, 10, 11, 12]);
    let items = app.owner().items(&held.task).await;
    for (event, item) in durable(&before)
        .iter()
        .chain(&after)
        .zip(items.body["items"].as_array().unwrap())
    {
        let mut shown = event.data.clone();
        let members = shown.as_object_mut().unwrap();
        assert_eq!(members.remove("event"), Some(json!(event.name)));
        assert_eq!(members.remove("agent_path"), Some(json!(["billing"])));
        assert_eq!(members.remove("root_task_id"), Some(json!(held.task)));
        assert_eq!(
            members.remove("request").is_some(),
            event.name.starts_with("request."),
            "{}",
            event.name
        );
        assert_eq!(shown, *item);
    }
    let again = app.owner().watch(&held.task, Some(12)).await;
    assert_eq!(
        (again.status, again.header("cache-control")),
        (204, "no-store")
    );
}

#[apply(on_both)]
async fn stream_resumes_after_every_event_number(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    app.model.then(text_answer("All done."));
    app.owner()
        .answer(&held.request, &json!({"action": "approve"}))
        .await;
    let whole = durable(&app.owner().events(&held.task, None).await);
    for after in 0..12_usize {
        let marker = i64::try_from(after).unwrap();
        let rest = app.owner().events(&held.task, Some(marker)).await;
        assert_eq!(durable(&rest), whole[after..], "after {after}");
        assert_eq!(
            rest.last().unwrap().data,
            json!({"event": "caught_up", "after": 12})
        );
        let mut again = app
            .owner()
            .header("last-event-id", &after.to_string())
            .watch(&held.task, Some(12))
            .await;
        assert_eq!(
            durable(&again.rest().await),
            whole[after..],
            "the header beats the query"
        );
    }
    for (header, query, status) in [
        ("", "13", 400),
        ("13", "1", 400),
        ("x", "1", 400),
        ("", "x", 400),
        ("", "-1", 400),
    ] {
        let actor = if header.is_empty() {
            app.owner()
        } else {
            app.owner().header("last-event-id", header)
        };
        let reply = actor
            .get(&format!("/v1/tasks/{}/events?after={query}", held.task))
            .await;
        reply
            .about(&format_args!("{header} {query}"))
            .assert_code(status, "bad_request");
    }
}
