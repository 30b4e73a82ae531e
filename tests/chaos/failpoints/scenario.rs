//! The actions of the test that kills a process at each failpoint.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::chaos::scripted_model::Model;
use crate::chaos::simulated_people::People;
use crate::support::{is_long_run, pause};

/// Creates tasks, messages and answers that together reach every commit of the driver's loop.
/// Returns the tasks. `number` makes the calls' arguments unique; `point` is the armed failpoint.
///
/// In a usual run, only one more message, `small`, follows the step in which the process has died,
/// because the further steps reach no armed failpoint. `scripts/chaos counts` runs all steps.
pub async fn scenario(
    people: &People,
    model: &Model,
    number: u64,
    point: &str,
    deaths: &AtomicU32,
) -> Vec<String> {
    // The call of the first task lasts long, so the process renews the task's lease. The first task
    // keeps the only slot, so the process queues the second task. The POST of the first task does
    // not wait for this task, so the test creates the second task before the slot is free. On a
    // stalled machine, the call may end before the second task is queued. Then the process reaches
    // no failpoint `queue.…`, and the loop creates two more tasks.
    let mut tasks = Vec::new();
    let first = loop {
        let first = people.create_waiting(&format!("long {number}"), 0).await;
        let second = people.create_waiting(&format!("small {number}"), 0).await;
        people.settle(&second).await;
        people.settle(&first).await;
        tasks.extend([first.clone(), second]);
        if !point.starts_with("queue.") || deaths.load(Ordering::Relaxed) > 0 {
            break first;
        }
    };
    for step in ["doubt", "failing", "tree", "short", "cut"] {
        if !is_long_run() && deaths.load(Ordering::Relaxed) > 0 {
            break;
        }
        let message = format!("{step} {number}");
        match step {
            "failing" => fail_and_retry(people, model, &first, &message).await,
            "cut" => cancel_during_a_call(people, &first, &message, deaths).await,
            // The message `doubt` leads to a call whose outcome is unknown. After `tree`,
            // sub-agents are started on two levels. After `short`, a request expires, because the
            // test does not answer it.
            _ => {
                say(people, &first, &message).await;
                people.settle(&first).await;
            }
        }
    }
    say(people, &first, &format!("small {number}")).await;
    people.settle(&first).await;
    tasks
}

/// Lets the model fail after this message, and so the task. Then retries the task, with a model
/// that answers.
async fn fail_and_retry(people: &People, model: &Model, task: &str, message: &str) {
    model.fails_on(message);
    say(people, task, message).await;
    people.settle(task).await;
    model.succeeds_on(message);
    people
        .post(&format!("/v1/tasks/{task}/retry"), &Value::Null)
        .await;
    people.settle(task).await;
}

/// Cancels the task while a call is in flight, so that the call's result comes late. Repeats this
/// if the call had already ended, or if the call timed out on a busy machine.
async fn cancel_during_a_call(people: &People, task: &str, message: &str, deaths: &AtomicU32) {
    loop {
        let (before, made) = (
            deaths.load(Ordering::Relaxed),
            people.tool_server.saw(task, r#""amount":7"#),
        );
        people
            .post_waiting(
                &format!("/v1/tasks/{task}/messages"),
                &json!({"input": message}),
                0,
            )
            .await;
        while people.tool_server.saw(task, r#""amount":7"#) == made {
            if !matches!(
                people.answer_once(task).await.as_str(),
                "Running" | "Paused"
            ) {
                break;
            }
            pause().await;
        }
        let canceled = people
            .post(&format!("/v1/tasks/{task}/cancel"), &Value::Null)
            .await;
        let died = deaths.load(Ordering::Relaxed) != before;
        if canceled.status != 409
            && (died || people.last_outcome(task).await.as_deref() == Some("unknown"))
            && late_result_comes(people, task, deaths, before).await
        {
            return;
        }
    }
}

/// Waits until the task has a late result and returns `true`, or returns `false` after 10 s. A call
/// times out after 2 s. If the process has died more than `before` times, the late result is lost,
/// so the function no longer waits for it and returns `true`.
async fn late_result_comes(people: &People, task: &str, deaths: &AtomicU32, before: u32) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while deaths.load(Ordering::Relaxed) == before && !people.has(task, "late_result").await {
        if Instant::now() >= deadline {
            return false;
        }
        pause().await;
    }
    true
}

/// Sends a message to a task.
pub async fn say(people: &People, task: &str, message: &str) {
    people
        .post(
            &format!("/v1/tasks/{task}/messages"),
            &json!({"input": message}),
        )
        .await;
}
