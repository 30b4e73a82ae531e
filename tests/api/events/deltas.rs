//! Tests of the deltas of model calls. A delta is dropped if the answer to its model call is
//! already stored, or if a later model call has replaced that call. Every other delta is streamed
//! as it arrives.

use holdpoint::store::Store;
use holdpoint::task::delta::{Delta, DeltaContent};
use holdpoint::task::id::{CallId, TaskId};
use holdpoint::task::time::Time;
use macro_rules_attribute::apply;
use serde_json::json;
use uuid::Uuid;

use super::super::approval_cycle::on_both;
use super::super::trees::{does, id, of, open, paused, pays, trees};
use crate::support::event_stream::{Watch, names};
use crate::support::test_app::{Held, On, TestApp};

/// A model call in flight: `after_seq` is the number of the last item in its prompt, and `which` is
/// the id of the model call.
pub(super) struct DeltaSource<'s> {
    store: &'s Store,
    root: &'s str,
    task: &'s str,
    turn: u32,
    after_seq: i64,
    which: u128,
}

impl DeltaSource<'_> {
    fn publish(&self, said: DeltaContent) {
        self.store.publish_delta(Delta {
            root_task_id: TaskId(self.root.parse().unwrap()),
            task_id: TaskId(self.task.parse().unwrap()),
            agent_path: vec!["billing".to_owned()],
            turn: self.turn,
            after_seq: self.after_seq,
            asking: Uuid::from_u128(self.which),
            at: Time(0),
            said,
        });
    }

    pub(super) fn text(&self, offset: u64, delta: &str) {
        self.publish(DeltaContent::Text {
            offset,
            delta: delta.to_owned(),
        });
    }
}

pub(super) fn asking<'s>(app: &'s TestApp, held: &'s Held, after_seq: i64) -> DeltaSource<'s> {
    DeltaSource {
        store: app.store(),
        root: &held.task,
        task: &held.task,
        turn: 2,
        after_seq,
        which: 1,
    }
}

/// Reads events of the stream up to the delta with the text `text`. Returns the name and the text
/// of each event.
async fn up_to(watch: &mut Watch, text: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    loop {
        let event = watch.event().await.unwrap();
        assert_eq!(event.id, None, "{event:?}");
        let delta = event.data["delta"].as_str().unwrap_or_default().to_owned();
        let last = delta == text;
        all.push((event.name, delta));
        if last {
            return all;
        }
    }
}

fn owned_deltas(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter()
        .map(|(name, delta)| ((*name).to_owned(), (*delta).to_owned()))
        .collect()
}

const TEXT: &str = "output_text.delta";

#[apply(on_both)]
async fn deltas_are_sent_as_they_arrive(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let mut watch = app.owner().watch(&held.task, None).await;
    watch.until("caught_up").await;
    let (model, call) = (asking(&app, &held, 6), CallId(Uuid::from_u128(7)));
    model.text(0, "Grüße ");
    model.text(6, "an alle\nhier");
    model.publish(DeltaContent::Named {
        tool_call_id: call,
        name: "refund".to_owned(),
    });
    model.publish(DeltaContent::Arguments {
        tool_call_id: call,
        offset: 0,
        delta: "{".to_owned(),
    });
    model.publish(DeltaContent::Reset);
    let (task_id, agent_path, at) = (&held.task, ["billing"], "1970-01-01T00:00:00.000000Z");
    for (name, data) in [
        (
            TEXT,
            json!({"event": TEXT, "turn": 2, "offset": 0, "delta": "Grüße ", "task_id": task_id, "agent_path": agent_path, "at": at}),
        ),
        (
            TEXT,
            json!({"event": TEXT, "turn": 2, "offset": 6, "delta": "an alle\nhier", "task_id": task_id, "agent_path": agent_path, "at": at}),
        ),
        (
            "tool_call.named",
            json!({"event": "tool_call.named", "turn": 2, "tool_call_id": call, "name": "refund", "task_id": task_id, "agent_path": agent_path, "at": at}),
        ),
        (
            "tool_call.arguments.delta",
            json!({"event": "tool_call.arguments.delta", "turn": 2, "tool_call_id": call, "offset": 0, "delta": "{", "task_id": task_id, "agent_path": agent_path, "at": at}),
        ),
        (
            "message.reset",
            json!({"event": "message.reset", "turn": 2, "task_id": task_id, "agent_path": agent_path, "at": at}),
        ),
    ] {
        let event = watch.event().await.unwrap();
        assert_eq!(
            (event.id, event.name.as_str(), event.data),
            (None, name, data)
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn delta_of_a_stored_answer_is_not_streamed(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let mut whole = app.owner().watch(&held.task, None).await;
    // The stream `later` begins after the task's last item, so it sends no item. To drop the
    // stale delta, the service must look up which items are stored.
    let mut later = app.owner().watch(&held.task, Some(6)).await;
    whole.until("caught_up").await;
    later.until("caught_up").await;
    asking(&app, &held, 5).text(0, "stale");
    asking(&app, &held, 6).text(0, "fresh");
    assert_eq!(
        up_to(&mut whole, "fresh").await,
        owned_deltas(&[(TEXT, "fresh")])
    );
    assert_eq!(
        up_to(&mut later, "fresh").await,
        owned_deltas(&[(TEXT, "fresh")])
    );
    app.stop().await;
}

#[apply(on_both)]
async fn deltas_of_two_model_calls_never_form_one_text(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let mut watch = app.owner().watch(&held.task, None).await;
    watch.until("caught_up").await;
    let first = asking(&app, &held, 6);
    let second = DeltaSource {
        which: 2,
        ..asking(&app, &held, 6)
    };
    // The stream has sent no delta of the first model call, so the stream drops this call's
    // reset.
    first.publish(DeltaContent::Reset);
    first.text(0, "one");
    second.text(0, "two");
    // When the second model call began, the stream itself sent a reset of the first model call.
    // So the stream drops this further reset of the first model call.
    first.publish(DeltaContent::Reset);
    second.text(3, "three");
    second.publish(DeltaContent::Reset);
    second.text(0, "end");
    let expected = [
        (TEXT, "one"),
        ("message.reset", ""),
        (TEXT, "two"),
        (TEXT, "three"),
        ("message.reset", ""),
        (TEXT, "end"),
    ];
    assert_eq!(up_to(&mut watch, "end").await, owned_deltas(&expected));
    app.stop().await;
}

#[apply(on_both)]
async fn sub_agent_stream_has_only_the_deltas_of_its_subtree(on: On) {
    let app = trees(on, "").await;
    let root = paused(
        &app,
        &does(&[pays("analyst", 1), pays("analyst", 2)], "end"),
    )
    .await;
    let (root_id, analysts) = (
        root.str("/task_id"),
        of(&app, &root.str("/task_id"), "analyst").await,
    );
    let (own, other) = (id(&analysts[0]), id(&analysts[1]));
    let head = app
        .owner()
        .watch(&root_id, None)
        .await
        .until("caught_up")
        .await
        .pop()
        .unwrap();
    let mut watches = Vec::new();
    for after in [None, head.data["after"].as_i64()] {
        let mut watch = app.owner().watch(&own, after).await;
        watch.until("caught_up").await;
        watches.push(watch);
    }
    let model = |task, which| DeltaSource {
        store: app.store(),
        root: &root_id,
        task,
        turn: 2,
        after_seq: 99,
        which,
    };
    model(&own, 3).text(0, "first");
    model(&other, 1).text(0, "of another");
    model(&root_id, 2).text(0, "of the root");
    model(&own, 3).text(5, "own");
    for mut watch in watches {
        assert_eq!(
            up_to(&mut watch, "own").await,
            owned_deltas(&[(TEXT, "first"), (TEXT, "own")])
        );
    }
    for (_, request) in open(&root) {
        app.owner().approve(&request).await;
    }
    app.stop().await;
}

/// Another replica commits items of the model call's prompt, and the streaming replica gets no
/// notification. The delta's `after_seq` shows the streaming replica that its stream lacks items,
/// so the replica reads them and sends their events before the delta.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delta_comes_after_the_events_its_model_had_been_shown() {
    let app = TestApp::start(On::Postgres).await;
    let other = app.replica().await;
    let held = app.held().await;
    let mut watch = other.owner().watch(&held.task, None).await;
    watch.until("caught_up").await;
    other.store().mute();
    app.tool.close();
    let approved = app
        .owner()
        .prefer("respond-async")
        .approve(&held.request)
        .await;
    assert_eq!(approved.status, 202, "{}", approved.text);
    app.tool.reached(1).await;
    asking(&other, &held, 9).text(0, "after it");
    let mut told = Vec::new();
    while told
        .last()
        .is_none_or(|event: &crate::support::event_stream::Event| event.name != TEXT)
    {
        told.push(watch.event().await.unwrap());
    }
    assert_eq!(
        names(&told),
        ["request.decided", "task.resumed", "tool.started", TEXT]
    );
    app.tool.open();
    watch.rest().await;
    other.stop().await;
    app.stop().await;
}
