//! Tests of the queue of requests that wait to be read.

use super::*;

fn add(queue: &RequestQueue, number: u128) -> oneshot::Receiver<Reply> {
    let (reply, result) = oneshot::channel();
    let id = RequestId(Uuid::from_u128(number));
    queue.lock().waiting.push_back(WaitingRequest { id, reply });
    result
}

fn taken(queue: &RequestQueue) -> Vec<u128> {
    let batch = queue.take();
    batch.iter().map(|one| one.id.0.as_u128()).collect()
}

#[test]
fn requests_that_come_during_a_statement_are_read_by_the_next_in_order() {
    let queue = RequestQueue::default();
    add(&queue, 1);
    assert!(queue.begin(1));
    assert_eq!(taken(&queue), [1]);
    for number in 2..=20 {
        add(&queue, number);
        assert!(!queue.begin(1), "a statement is in flight");
    }
    assert_eq!(taken(&queue), (2..=17).collect::<Vec<_>>());
    assert_eq!(taken(&queue), [18, 19, 20]);
    assert_eq!(taken(&queue), []);
    assert!(!queue.begin(1), "no request waits");
    add(&queue, 21);
    assert!(queue.begin(1), "the statement is over");
}

#[test]
fn request_that_several_callers_read_is_once_in_a_batch() {
    let queue = RequestQueue::default();
    for number in [1, 2, 1, 3, 1] {
        add(&queue, number);
    }
    assert!(queue.begin(1));
    assert_eq!(taken(&queue), [1, 2, 3]);
    add(&queue, 4);
    assert_eq!(taken(&queue), [1, 4]);
    assert_eq!(taken(&queue), [1]);
}

#[test]
fn no_more_statements_begin_than_the_caller_permits() {
    let queue = RequestQueue::default();
    let mut begun = 0;
    for number in 0..200 {
        add(&queue, number);
        begun += usize::from(queue.begin(MAX_STATEMENTS));
    }
    assert_eq!(begun, MAX_STATEMENTS);
}
