//! Tests of event streams that are cut and resumed, on the same replica and on another.

use macro_rules_attribute::apply;

use super::super::approval_cycle::on_both;
use crate::support::event_stream::{Event, durable};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{On, TestApp, refunds};

/// Sets the model's answers: a conversation of many turns, with a held call in the middle.
fn talks(app: &TestApp) {
    app.model.otherwise(|body| {
        let answers = body["messages"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|message| message["role"] == "assistant")
            .count();
        match answers {
            11 => calls(&[("refund", r#"{"order":1,"amount":120}"#)]),
            0..=22 => calls(&[("lookup", r#"{"order":1}"#)]),
            _ => text_answer("All done."),
        }
    });
}

#[apply(on_both)]
async fn stream_that_is_cut_a_hundred_times_delivers_every_event_once(on: On) {
    let app = TestApp::start(on).await;
    talks(&app);
    let mut random = 0x2545_f491_u64;
    let reply = app.owner().prefer("respond-async").create_task("go").await;
    let task = reply.str("/task_id");
    let (mut seen, mut cuts, mut decided) = (Vec::<Event>::new(), 0, false);
    loop {
        let last = seen.last().and_then(|event| event.id);
        let actor = last.map_or(app.owner(), |last| {
            app.owner().header("last-event-id", &last.to_string())
        });
        let mut watch = actor.watch(&task, None).await;
        if watch.status == 204 {
            break;
        }
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        for _ in 0..(random >> 33) % 3 {
            let Some(event) = watch.event().await else {
                break;
            };
            if event.id.is_some() {
                seen.push(event);
            }
            if let Some(asked) = seen
                .last()
                .filter(|event| event.name == "task.paused" && !decided)
            {
                decided = true;
                let request = app
                    .owner()
                    .task(asked.data["task_id"].as_str().unwrap())
                    .await;
                app.owner()
                    .approve(&request.str("/pending/0/request_id"))
                    .await;
            }
        }
        cuts += 1;
    }
    assert!(decided && cuts >= 100, "{cuts}");
    assert!(
        seen.iter()
            .zip(1..)
            .all(|(event, number)| event.id == Some(number))
    );
    assert_eq!(seen, durable(&app.owner().events(&task, None).await));
    assert_eq!(seen.last().unwrap().name, "task.completed");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_is_the_same_on_every_replica() {
    let yaml = refunds("{ owner: true }");
    let app = TestApp::with(
        On::Postgres,
        &(yaml + "\nserver: { public_url: \"https://hold.example\" }\n"),
    )
    .await;
    let other = app.replica().await;
    let held = app.held().await;
    // The other replica streams the events of the replica `app` as they happen.
    let mut there = other.owner().watch(&held.task, None).await;
    let mut told = there.until("caught_up").await;
    app.owner().approve(&held.request).await;
    told.extend(there.rest().await);
    let whole = durable(&app.owner().events(&held.task, None).await);
    assert_eq!(durable(&told), whole);
    for after in 0..whole.len() {
        let marker = i64::try_from(after).unwrap();
        assert_eq!(
            durable(&other.owner().events(&held.task, Some(marker)).await),
            whole[after..]
        );
    }
    other.stop().await;
    app.stop().await;
}
