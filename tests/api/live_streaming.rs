//! Tests of a model's answer as a person sees it arrive. The tests cover the whole way from the
//! model's endpoint to a reader, on this replica and on another.

use std::collections::BTreeMap;

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::support::event_stream::{Event, Watch};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::model_stream::Stream;
use crate::support::repetitions;
use crate::support::test_app::{On, TestApp};

/// The turns by number. Each turn has its text and, by call id, the name and the arguments of its
/// calls.
type Turns = BTreeMap<u64, (String, BTreeMap<String, (String, String)>)>;

/// Puts the deltas of a stream together as a client does. Panics at a gap.
fn put_together(events: &[Event]) -> Turns {
    let mut turns = Turns::new();
    for event in events
        .iter()
        .filter(|event| event.id.is_none() && event.name != "caught_up")
    {
        let turn = turns
            .entry(event.data["turn"].as_u64().unwrap())
            .or_default();
        let word = |name: &str| event.data[name].as_str().unwrap().to_owned();
        let fits = |text: &str| assert_eq!(event.data["offset"], text.chars().count(), "{event:?}");
        match event.name.as_str() {
            "output_text.delta" => {
                fits(&turn.0);
                turn.0 += &word("delta");
            }
            "tool_call.named" => {
                assert!(
                    turn.1
                        .insert(word("tool_call_id"), (word("name"), String::new()))
                        .is_none()
                );
            }
            "tool_call.arguments.delta" => {
                let call = turn
                    .1
                    .get_mut(&word("tool_call_id"))
                    .expect("the name comes first");
                fits(&call.1);
                call.1 += &word("delta");
            }
            "message.reset" => *turn = (String::new(), BTreeMap::new()),
            other => panic!("{other}"),
        }
    }
    turns.retain(|_, turn| *turn != (String::new(), BTreeMap::new()));
    turns
}

/// Returns the turns as the stored answers contain them.
fn stored(events: &[Event]) -> Turns {
    let turns = events
        .iter()
        .filter(|event| event.name == "message.completed")
        .map(|event| {
            let text = event.data["text"].as_str().unwrap_or_default().to_owned();
            let calls = event.data["tool_calls"]
                .as_array()
                .unwrap()
                .iter()
                .map(|call| {
                    let word = |name: &str| call[name].as_str().unwrap().to_owned();
                    (word("tool_call_id"), (word("name"), word("arguments_text")))
                });
            (
                event.data["turn"].as_u64().unwrap(),
                (text, calls.collect()),
            )
        });
    turns.collect()
}

fn names(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.name.as_str()).collect()
}

/// Creates a task whose first answer arrives as the stream `answer`. Returns the task's event
/// stream from the creation on.
async fn watched(app: &TestApp, answer: Stream) -> Watch {
    app.model.then_streams(answer);
    let watch = app
        .owner()
        .post_and_watch("/v1/tasks", &json!({"input": "Refund 120 for order 17"}))
        .await;
    assert_eq!(watch.status, 200);
    watch
}

const REFUND: (&str, &str) = ("refund", r#"{"order": 17, "amount": 120}"#);

#[apply(on_both)]
async fn tool_call_is_named_while_its_arguments_are_still_streaming(on: On) {
    let app = TestApp::start(on).await;
    let call = Stream::of(&calls(&[REFUND])).unwrap();
    // The first chunk has the role, and the second has the call with its name.
    let mut watch = watched(&app, call.hold_after(2)).await;
    app.model.holds().await;
    let mut events = watch.until("tool_call.named").await;
    let named = &events.last().unwrap().data;
    assert_eq!(
        (&named["name"], &named["turn"]),
        (&json!("refund"), &json!(1))
    );
    assert!(
        !names(&events).contains(&"tool_call.arguments.delta"),
        "the model has not written them yet"
    );
    app.model.go_on();
    events.extend(watch.until("task.paused").await);
    assert_eq!(put_together(&events), stored(&events));
    let request = &events
        .iter()
        .find(|event| event.name == "request.created")
        .unwrap()
        .data["request"];
    let asked = &request["tool_calls"][0]["tool_call_id"];
    let first = events
        .iter()
        .find(|event| event.name == "tool_call.named")
        .unwrap();
    assert_eq!(
        first.data["tool_call_id"], *asked,
        "the request is for the call that was named"
    );

    app.model.then(text_answer("All is paid."));
    app.owner()
        .approve(request["request_id"].as_str().unwrap())
        .await;
    let rest = watch.rest().await;
    assert_eq!(put_together(&rest), stored(&rest));
    assert!(names(&rest).contains(&"output_text.delta"));
    app.stop().await;
}

#[apply(on_both)]
async fn argument_of_50_kib_streamed_by_a_few_letters_equals_the_final_argument(on: On) {
    let app = TestApp::start(on).await;
    let arguments = format!(r#"{{"text":"{}"}}"#, "aé\\n😀\\u00fc\\\" ".repeat(3_600));
    assert!(arguments.len() > 50 * 1024);
    let chunk = |delta: Value, finish: Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    let fragment = |function: Value| json!({"tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": function}]});
    // The text repeats after 14 letters, so each of its escapes is cut at each of its letters.
    let usual = match on {
        On::Sqlite => 3,
        On::Postgres => 5,
    };
    let letters: Vec<char> = arguments.chars().collect();
    let pieces = letters.chunks(repetitions(usual, 1));
    let pieces = pieces.map(|piece| fragment(json!({"arguments": String::from_iter(piece)})));
    let deltas = [fragment(json!({"name": "tag", "arguments": ""}))]
        .into_iter()
        .chain(pieces);
    let events = deltas
        .map(|delta| chunk(delta, Value::Null))
        .chain([chunk(json!({}), json!("tool_calls"))]);
    let mut watch = watched(&app, Stream::of_events(events)).await;
    let events = watch.rest().await;
    assert_eq!(put_together(&events), stored(&events));
    assert!(
        stored(&events)[&1]
            .1
            .values()
            .any(|call| call.1 == arguments)
    );
    assert!(
        events
            .iter()
            .filter(|event| event.name == "tool_call.arguments.delta")
            .count()
            > 1
    );
    app.stop().await;
}

#[apply(on_both)]
async fn model_answer_that_breaks_off_is_reset_and_asked_for_again(on: On) {
    let app = TestApp::start(on).await;
    let broken = Stream::of(&calls(&[
        ("forbidden", "{}"),
        ("refund", r#"{"order": 1}"#),
    ]))
    .unwrap();
    app.model.then_streams(broken.hold_after(2).lost_after(3));
    app.model.then(text_answer("On second thought, no."));
    let body = json!({"input": "Refund 120 for order 17"});
    let mut watch = app.owner().post_and_watch("/v1/tasks", &body).await;
    let mut events = watch.until("tool_call.named").await;
    app.model.go_on();
    events.extend(watch.rest().await);
    let reset = names(&events)
        .iter()
        .position(|name| *name == "message.reset")
        .expect("the text was reset");
    assert_eq!(events[reset].data["turn"], 1);
    assert_eq!(put_together(&events), stored(&events));
    assert!(
        !names(&events).contains(&"tool_call.judged"),
        "half an answer is no answer"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn delta_never_shows_a_secret(on: On) {
    let app = TestApp::start(on).await;
    let mut watch = watched(
        &app,
        Stream::of(&text_answer(
            "The key is sk-model-key-0123456789, is it not?",
        ))
        .unwrap()
        .byte_by_byte(),
    )
    .await;
    let events = watch.rest().await;
    assert_eq!(
        put_together(&events)[&1].0,
        "The key is [secret MODEL_KEY], is it not?"
    );
    assert!(
        events
            .iter()
            .all(|event| !event.data.to_string().contains("model-key"))
    );
    app.stop().await;
}

#[apply(on_both)]
async fn answer_without_streaming_is_taken_as_an_answer(on: On) {
    let app = TestApp::start(on).await;
    app.model
        .streaming(false)
        .then(calls(&[REFUND]))
        .then(text_answer("All is paid."));
    let mut watch = app
        .owner()
        .post_and_watch("/v1/tasks", &json!({"input": "Refund 120 for order 17"}))
        .await;
    let events = watch.until("task.paused").await;
    let request = events
        .iter()
        .find(|event| event.name == "request.created")
        .unwrap();
    let request = request.data["request_id"].as_str().unwrap();
    let done = app.owner().approve(request).await;
    assert_eq!(done.str("/output"), "All is paid.");
    assert!(
        app.model.sent().iter().all(|body| body["stream"] == true),
        "a stream was asked for"
    );
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_on_another_replica_sees_the_same_stream() {
    let app = TestApp::start(On::Postgres).await;
    let other = app.replica().await;
    app.model
        .then_streams(Stream::of(&calls(&[REFUND])).unwrap().hold_after(0));
    let task = app
        .owner()
        .prefer("wait=0")
        .create_task("go")
        .await
        .str("/task_id");
    let mut here = app.owner().watch(&task, None).await;
    let mut there = other.owner().watch(&task, None).await;
    let mut both: Vec<Vec<Event>> = Vec::new();
    for watch in [&mut here, &mut there] {
        both.push(watch.until("caught_up").await);
    }
    // Once any delta from `app` arrives at `other`, `app` also knows that `other` listens to the
    // task.
    known(&app, &other).await;
    app.model.go_on();
    for (watch, events) in [&mut here, &mut there].into_iter().zip(&mut both) {
        events.extend(watch.until("task.paused").await);
    }
    let request = both[0]
        .iter()
        .find(|event| event.name == "request.created")
        .unwrap()
        .data["request_id"]
        .clone();
    let paid = text_answer("All is paid, and everybody has been told of it.");
    app.model
        .then_streams(Stream::of(&paid).unwrap().hold_after(3));
    app.owner()
        .prefer("wait=0")
        .approve(request.as_str().unwrap())
        .await;
    // The model holds its answer back, so no durable event can overtake this delta.
    both[1].extend(there.until("output_text.delta").await);
    app.model.go_on();
    both[0].extend(here.rest().await);
    both[1].extend(there.rest().await);
    let durable = |events: &[Event], url: &str| {
        let told = events.iter().filter(|event| event.id.is_some());
        told.map(|event| (event.id, event.data.to_string().replace(url, "http://host")))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        durable(&both[0], &app.url()),
        durable(&both[1], &other.url())
    );
    assert_eq!(
        put_together(&both[0]),
        stored(&both[0]),
        "{:?}",
        names(&both[0])
    );
    // A durable event may overtake deltas on their way to `other`. The replica `other` then shows
    // the beginning of the answer, without the rest.
    let (seen, whole) = (put_together(&both[1]), stored(&both[1]));
    assert!(!seen.is_empty(), "{:?}", names(&both[1]));
    for (turn, (text, calls)) in &seen {
        let (whole_text, whole_calls) = &whole[turn];
        assert!(whole_text.starts_with(text.as_str()), "{text:?}");
        for (call, (name, arguments)) in calls {
            let (whole_name, whole_arguments) = &whole_calls[call];
            assert_eq!(name, whole_name);
            assert!(
                whole_arguments.starts_with(arguments.as_str()),
                "{arguments:?}"
            );
        }
    }
    other.stop().await;
    app.stop().await;
}

/// Publishes a delta at `app` again and again, and returns as soon as a delta has arrived at
/// `other`.
async fn known(app: &TestApp, other: &TestApp) {
    use holdpoint::task::delta::{Delta, DeltaContent};
    use holdpoint::task::id::TaskId;
    use holdpoint::task::time::Time;
    let root = TaskId(uuid::Uuid::from_u128(1));
    let mut listener = other.store().listen(root);
    let next = listener.next();
    tokio::pin!(next);
    let (agent_path, said) = (vec!["billing".to_owned()], DeltaContent::Reset);
    let asking = uuid::Uuid::nil();
    let piece = Delta {
        root_task_id: root,
        task_id: root,
        agent_path,
        turn: 1,
        after_seq: 1,
        asking,
        at: Time(1),
        said,
    };
    loop {
        app.store().publish_delta(piece.clone());
        if tokio::time::timeout(std::time::Duration::from_millis(20), &mut next)
            .await
            .is_ok()
        {
            return;
        }
    }
}

#[test]
fn deltas_put_together_are_the_text_that_was_streamed() {
    let piece = |name: &str, data: Value| Event {
        id: None,
        name: name.to_owned(),
        data,
    };
    let events = [
        piece(
            "output_text.delta",
            json!({"turn": 1, "offset": 0, "delta": "é"}),
        ),
        piece("message.reset", json!({"turn": 1})),
        piece(
            "output_text.delta",
            json!({"turn": 1, "offset": 0, "delta": "a😀"}),
        ),
        piece(
            "tool_call.named",
            json!({"turn": 1, "tool_call_id": "x", "name": "pay"}),
        ),
        piece(
            "output_text.delta",
            json!({"turn": 1, "offset": 2, "delta": "b"}),
        ),
        piece(
            "tool_call.arguments.delta",
            json!({"turn": 1, "tool_call_id": "x", "offset": 0, "delta": "{}"}),
        ),
    ];
    let call = BTreeMap::from([("x".to_owned(), ("pay".to_owned(), "{}".to_owned()))]);
    assert_eq!(
        put_together(&events),
        Turns::from([(1, ("a😀b".to_owned(), call))])
    );
}
