//! Tests a receiver that gets messages repeatedly and out of order. With the ids and the event
//! numbers of the messages, as `docs/webhooks.md` advises, the receiver ends with the right state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use macro_rules_attribute::apply;
use serde_json::Value;

use super::mail::HOUR;
use super::{BACKEND, NotifyFixture};
use crate::api::approval_cycle::on_both;
use crate::support::fake_receiver::Received;
use crate::support::test_app::On;

/// The state of a receiver that drops each message whose id it knows, and takes a tree's status
/// from the message with the highest event number.
#[derive(Default)]
struct ReceiverState {
    known_ids: BTreeSet<String>,
    repeated: usize,
    /// The highest event number of each tree, and the status in its message.
    trees: BTreeMap<String, (i64, String)>,
    /// The status of each tree in the message that arrived last: the state of a receiver that
    /// compares no numbers.
    last_statuses: BTreeMap<String, String>,
    /// How many decisions of each request the receiver has counted.
    decisions: BTreeMap<String, usize>,
}

impl ReceiverState {
    fn take(&mut self, message: &Received) {
        if !self.known_ids.insert(message.id().to_owned()) {
            self.repeated += 1;
            return;
        }
        let data = &message.body["data"];
        let text = |pointer: &str| data.pointer(pointer).unwrap().as_str().unwrap().to_owned();
        let (tree, status) = (text("/root_task_id"), text("/task_status"));
        let event = data["event"].as_i64().unwrap();
        let newest = self.trees.entry(tree.clone()).or_default();
        if event > newest.0 {
            *newest = (event, status.clone());
        }
        self.last_statuses.insert(tree, status);
        if message.kind() == "request.decided" {
            *self
                .decisions
                .entry(text("/request/request_id"))
                .or_default() += 1;
        }
    }
}

/// Whether a message is about the beginning of a task: its question and its pause.
fn is_early(message: &Received) -> bool {
    matches!(message.kind(), "request.created" | "task.paused")
}

#[apply(on_both)]
async fn receiver_of_repeated_and_reordered_messages_ends_with_the_right_state(on: On) {
    let fixture = NotifyFixture::start(on, BACKEND).await;
    let state = Arc::new(Mutex::new(ReceiverState::default()));
    let take = |answer: fn(&Received) -> u16| {
        let state = Arc::clone(&state);
        fixture.server.answers_by(move |message| {
            let status = answer(message);
            if status != 503 {
                state.lock().unwrap().take(message);
            }
            (status, Vec::new())
        });
    };
    // The receiver stores the late messages but answers 500, so the sender repeats them. The
    // receiver refuses the early messages with 503, and does not store them.
    take(|message| if is_early(message) { 503 } else { 500 });
    let tasks = [fixture.cycle().await, fixture.cycle().await];
    fixture.until_tried(8).await;
    // The receiver accepts the repeated late messages. It accepts the early ones only later, so
    // these arrive last.
    take(|message| if is_early(message) { 503 } else { 204 });
    fixture.advance(3 * HOUR);
    // The clock must not advance while an attempt is in flight: its lease would be over.
    let is_tried_again =
        |one: &Value| one["state"] == "sent" || one["attempts"].as_u64() >= Some(2);
    let is_tried_again = |found: &[Value]| found.iter().all(is_tried_again);
    fixture.until(is_tried_again).await;
    fixture.counted(&[("sent", 4), ("due", 4)]).await;
    take(|_| 204);
    fixture.advance(20 * HOUR);
    fixture.counted(&[("sent", 8)]).await;
    let state = std::mem::take(&mut *state.lock().unwrap());
    assert!(state.repeated >= 4, "{} repeated", state.repeated);
    assert_eq!((state.trees.len(), state.decisions.len()), (2, 2));
    assert!(
        state.decisions.values().all(|count| *count == 1),
        "{:?}",
        state.decisions
    );
    for task in tasks {
        let shown = fixture.app.owner().get(&format!("/v1/tasks/{task}")).await;
        assert_eq!(state.trees[&task].1, shown.str("/status"));
        assert_eq!(state.trees[&task].1, "Completed");
        assert_eq!(
            state.last_statuses[&task], "Paused",
            "the early messages came last"
        );
    }
}
