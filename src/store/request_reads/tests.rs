//! Tests of the queue of requests that wait to be read.

use std::sync::Arc;

use super::*;

/// Adds a request with this number as its id. Returns the result of [`SharedQueue::add`], and the
/// receiver of the reply.
fn add(queue: &RequestQueue, number: u128) -> (Option<Arc<()>>, oneshot::Receiver<RequestRead>) {
    let (reply, result) = oneshot::channel();
    let id = RequestId(Uuid::from_u128(number));
    (queue.add((id, reply)), result)
}

fn taken(queue: &RequestQueue) -> Vec<u128> {
    let batch = take(queue);
    batch.keys().map(|id| id.0.as_u128()).collect()
}

#[test]
fn requests_that_come_during_a_statement_are_read_by_the_next_in_order() {
    let queue = RequestQueue::default();
    let first = add(&queue, 0);
    assert!(first.0.is_some());
    assert_eq!(taken(&queue), [0]);
    let callers: Vec<_> = (1..=70).map(|number| add(&queue, number)).collect();
    assert!(callers.iter().all(|(reader, _)| reader.is_none()));
    assert_eq!(taken(&queue), (1..=64).collect::<Vec<_>>());
    assert_eq!(taken(&queue), (65..=70).collect::<Vec<_>>());
    assert_eq!(taken(&queue), [0; 0]);
    assert!(add(&queue, 71).0.is_some(), "the reader ends");
}

#[test]
fn request_that_several_callers_read_is_once_in_a_batch() {
    let queue = RequestQueue::default();
    let _callers = [1, 2, 1, 3, 1].map(|number| add(&queue, number));
    let batch = take(&queue).into_iter();
    let counts: Vec<_> = batch
        .map(|(id, callers)| (id.0.as_u128(), callers.len()))
        .collect();
    assert_eq!(counts, [(1, 3), (2, 1), (3, 1)]);
    assert_eq!(taken(&queue), [0; 0]);
}

#[test]
fn reader_that_was_dropped_is_replaced() {
    let queue = RequestQueue::default();
    let [first, second] = [1, 2].map(|number| add(&queue, number));
    assert!(second.0.is_none());
    drop(first.0);
    assert!(add(&queue, 3).0.is_some());
}

#[test]
fn request_whose_caller_has_gone_away_is_not_read() {
    let queue = RequestQueue::default();
    let [gone, _waiting] = [1, 2].map(|number| add(&queue, number));
    drop(gone);
    assert_eq!(taken(&queue), [2]);
}
