//! Tests that a process reads a task's new events once for all of the task's streams.

use std::time::Duration;

use macro_rules_attribute::apply;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use super::super::approval_cycle::on_both;
use crate::support::database::Database;
use crate::support::endless_sleep::EndlessSleep;
use crate::support::event_stream::durable;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::forwarder::Forwarder;
use crate::support::test_app::{ALICE, Held, On, TestApp, refunds};

const READERS: usize = 50;
const MESSAGES: usize = 8;

/// Sends the next message of a task. The model then asks for a refund, which is held.
async fn held_again(app: &TestApp, task: &str) {
    app.model
        .then(calls(&[("refund", r#"{"order": 17, "amount": 120}"#)]));
    let path = format!("/v1/tasks/{task}/messages");
    let reply = app
        .owner()
        .post(&path, &json!({"input": "again", "supersede": true}))
        .await;
    assert_eq!(reply.str("/status"), "Paused", "{}", reply.text);
}

/// Returns the number of round trips to the database during a conversation. `readers` is the number
/// of event streams that show the conversation.
async fn round_trips(readers: usize) -> usize {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    // Every sleep of the service is endless, so its worker does not poll.
    let clock = EndlessSleep::new(|_| true);
    let mut app = TestApp::at_timed(line.url(), &refunds("{ owner: true }"), clock).await;
    app.restart_with(|yaml| format!("{yaml}\nserver: {{ max_streams_per_caller: 100 }}\n"))
        .await;
    app.store().stop_comparing();
    let Held { task, .. } = app.held().await;
    let mut streams = Vec::new();
    for _ in 0..readers {
        let mut stream = app.owner().watch(&task, None).await;
        stream.until("caught_up").await;
        streams.push(stream);
    }
    let before = line.round_trips();
    for _ in 0..MESSAGES {
        held_again(&app, &task).await;
        for stream in &mut streams {
            stream.until("task.paused").await;
        }
    }
    let trips = line.round_trips() - before;
    app.stop().await;
    trips
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_streams_of_a_task_read_its_new_events_as_often_as_one() {
    // The store's relay also reads from time to time. On a slow machine, this adds many reads to
    // the count of the fifty streams. So the test compares up to three times.
    let mut measured = Vec::new();
    for _ in 0..3 {
        let (one, many) = (round_trips(1).await, round_trips(READERS).await);
        if many < 2 * one {
            return;
        }
        measured.push((one, many));
    }
    // The number of reads varies, because an event that is committed during a read needs a second
    // read. If each stream read for itself, fifty streams would need far more than twice the reads
    // of one stream.
    panic!("round trips with one stream, and with {READERS}: {measured:?}");
}

#[apply(on_both)]
async fn stream_that_joins_in_the_middle_has_the_events_of_the_first(on: On) {
    let app = TestApp::with_finance(on).await;
    let held = app.held().await;
    let mut first = app.owner().watch(&held.task, None).await;
    let mut told = first.until("caught_up").await;
    held_again(&app, &held.task).await;
    told.extend(first.until("task.paused").await);
    // The second stream's caller has other rights than the first stream's caller, but gets the
    // same events.
    let mut second = app.approver().watch(&held.task, None).await;
    let mut third = app.owner().watch(&held.task, Some(4)).await;
    let mut late = second.until("caught_up").await;
    let mut part = third.until("caught_up").await;
    app.model.then(text_answer("All done."));
    let task = app.owner().task(&held.task).await;
    let path = format!("/resume/{}/approve", task.str("/pending/0/request_id"));
    assert_eq!(app.approver().hit(&path).await.str("/status"), "Completed");
    told.extend(first.rest().await);
    late.extend(second.rest().await);
    part.extend(third.rest().await);
    let told = durable(&told);
    assert!(
        told.iter()
            .zip(1..)
            .all(|(event, number)| event.id == Some(number))
    );
    assert_eq!(told.last().unwrap().name, "task.completed");
    assert_eq!(durable(&late), told);
    assert_eq!(durable(&part), told[4..]);
    app.stop().await;
}

/// The slow client reads its stream up to `caught_up`, and the rest after the task has completed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_stream_beside_a_fast_one_misses_no_event() {
    let yaml = refunds("{ owner: true }");
    // Disables the service's time limit of 30 s for a client that does not read, because the task
    // may take longer on a busy machine.
    let patient = EndlessSleep::new(|time| time == Duration::from_secs(30));
    let app = TestApp::timed(On::Sqlite, &yaml, patient).await;
    let held = app.held().await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let address = app.url().strip_prefix("http://").unwrap().parse().unwrap();
    let mut slow = socket.connect(address).await.unwrap();
    let request = format!(
        "GET /v1/tasks/{}/events HTTP/1.0\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ALICE}\r\n\r\n",
        held.task
    );
    slow.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    while !bytes.windows(9).any(|text| text == b"caught_up") {
        assert!(slow.read_buf(&mut bytes).await.unwrap() > 0);
    }

    // The results exceed the buffers of the connection and the memory in which the service keeps
    // events for slow clients. So the slow stream has to read events from the database.
    app.tool.answers(200, "x".repeat(900 * 1024));
    app.model
        .then(calls(&[("lookup", "{}"); 16]))
        .then(text_answer("All done."));
    let mut fast = app.owner().watch(&held.task, None).await;
    fast.until("caught_up").await;
    let path = format!("/resume/{}/approve", held.request);
    app.owner().prefer("wait=0").hit(&path).await;
    let last = fast.rest().await.pop().unwrap();
    assert_eq!(last.name, "task.completed");

    slow.read_to_end(&mut bytes).await.unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let numbers: Vec<i64> = text
        .lines()
        .filter_map(|line| line.strip_prefix("id: ")?.parse().ok())
        .collect();
    assert_eq!(numbers, (1..=last.id.unwrap()).collect::<Vec<_>>());
    app.stop().await;
}
