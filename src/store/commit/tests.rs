//! Tests of the batches that a writer takes from its queue.

use super::*;
use crate::task::change::{Guard, TaskChange};
use crate::task::id::ChangeId;
use crate::task::item::{Fact, Part, PartType};
use uuid::Uuid;

fn root(number: u128) -> TaskId {
    TaskId(Uuid::from_u128(number))
}

fn waiting(root: TaskId, items: usize) -> QueuedChange {
    waiting_with(root, items, "x")
}

fn waiting_with(root: TaskId, items: usize, text: &str) -> QueuedChange {
    let part = Part {
        content_type: PartType::Text,
        content: text.to_owned(),
    };
    let fact = Fact::UserMessage {
        items: vec![part],
        user_context: None,
        by: "alice".to_owned(),
        groups: Vec::new(),
    };
    let task = TaskChange {
        facts: vec![fact; items],
        ..TaskChange::empty(root, Guard::Version(1), 1)
    };
    let change = Change {
        id: ChangeId(Uuid::nil()),
        root,
        tenant: "acme".to_owned(),
        root_agent: "billing".to_owned(),
        tasks: vec![task],
        resumed: Vec::new(),
        idempotency: None,
        history_uncertain_until: None,
    };
    QueuedChange {
        rows: Arc::new(rows(change, &EventFilters::default()).unwrap()),
        stopped: None,
        reply: oneshot::channel().0,
    }
}

fn taken(writer: &Writer) -> Vec<TaskId> {
    let batch = writer.take();
    batch.iter().map(|waiting| waiting.rows.root).collect()
}

fn writer(changes: impl IntoIterator<Item = (TaskId, usize)>) -> Writer {
    let writer = Writer::default();
    let changes = changes.into_iter();
    writer.queue.lock().waiting = changes.map(|(root, items)| waiting(root, items)).collect();
    writer
}

#[test]
fn batch_has_one_change_of_each_root_in_order() {
    let writer = writer([(root(1), 1), (root(2), 1), (root(1), 1)]);
    assert_eq!(taken(&writer), [root(1), root(2)]);
    assert_eq!(taken(&writer), [root(1)]);
    assert_eq!(taken(&writer), []);
}

#[test]
fn batch_has_a_bounded_number_of_lines() {
    let writer = writer([(root(1), 600), (root(2), 300), (root(3), 600)]);
    assert_eq!(taken(&writer), [root(1), root(2)]);
    assert_eq!(taken(&writer), [root(3)]);
}

#[test]
fn batch_has_a_bounded_number_of_bytes() {
    let (half, whole) = ("x".repeat(MAX_BATCH_BYTES / 2), "x".repeat(MAX_BATCH_BYTES));
    let writer = Writer::default();
    let texts: [&str; 5] = [&half, &half, "x", &whole, "x"];
    writer.queue.lock().waiting = (1..)
        .zip(texts)
        .map(|(number, text)| waiting_with(root(number), 1, text))
        .collect();
    assert_eq!(taken(&writer), [root(1)]);
    assert_eq!(taken(&writer), [root(2), root(3)]);
    assert_eq!(taken(&writer), [root(4)]);
    assert_eq!(taken(&writer), [root(5)]);
}

#[test]
fn change_of_too_many_lines_goes_alone_through_the_general_statement() {
    let writer = writer([(root(1), 1), (root(2), MAX_BATCH_LINES + 1), (root(3), 1)]);
    assert!(!is_single(&waiting(root(2), MAX_BATCH_LINES + 1).rows));
    assert_eq!(taken(&writer), [root(1)]);
    assert_eq!(taken(&writer), [root(2)]);
    assert_eq!(taken(&writer), [root(3)]);
}

#[test]
fn change_waits_while_an_earlier_change_of_its_root_is_repeated() {
    let writer = writer([(root(1), 1), (root(2), 1)]);
    writer.queue.lock().repeated_roots.insert(root(1));
    assert_eq!(taken(&writer), [root(2)]);
    assert_eq!(taken(&writer), []);
    writer.queue.lock().repeated_roots.clear();
    assert_eq!(taken(&writer), [root(1)]);
}
