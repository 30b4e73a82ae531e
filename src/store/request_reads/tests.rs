//! Tests of the queue of requests that wait to be read.

use super::*;

struct Caller {
    ticket: u64,
    needs_reader: bool,
    _result: oneshot::Receiver<Reply>,
}

fn add(queue: &RequestQueue, number: u128) -> Caller {
    let (reply, result) = oneshot::channel();
    let (ticket, needs_reader) = queue.add(RequestId(Uuid::from_u128(number)), reply);
    Caller {
        ticket,
        needs_reader,
        _result: result,
    }
}

fn taken(queue: &RequestQueue) -> Vec<u128> {
    let batch = queue.take();
    batch.iter().map(|one| one.id.0.as_u128()).collect()
}

#[test]
fn requests_that_come_during_a_statement_are_read_by_the_next_in_order() {
    let queue = RequestQueue::default();
    let first = add(&queue, 0);
    assert!(first.needs_reader);
    assert_eq!(taken(&queue), [0]);
    let callers: Vec<_> = (1..=70).map(|number| add(&queue, number)).collect();
    assert!(callers.iter().all(|caller| !caller.needs_reader));
    assert_eq!(taken(&queue), (1..=64).collect::<Vec<_>>());
    assert_eq!(taken(&queue), (65..=70).collect::<Vec<_>>());
    assert_eq!(taken(&queue), [0; 0]);
    assert!(add(&queue, 71).needs_reader, "the reader has ended");
}

#[test]
fn request_that_several_callers_read_is_once_in_a_batch() {
    let queue = RequestQueue::default();
    let _callers = [1, 2, 1, 3, 1].map(|number| add(&queue, number));
    assert_eq!(taken(&queue), [1, 2, 3]);
    let _further = add(&queue, 4);
    assert_eq!(taken(&queue), [1, 4]);
    assert_eq!(taken(&queue), [1]);
}

#[test]
fn request_whose_caller_has_gone_away_or_reads_it_alone_is_not_read() {
    let queue = RequestQueue::default();
    let [gone, alone, waiting] = [1, 2, 3].map(|number| add(&queue, number));
    drop(gone);
    assert!(queue.withdraw(alone.ticket));
    assert!(!queue.withdraw(alone.ticket));
    assert_eq!(taken(&queue), [3]);
    assert!(!queue.withdraw(waiting.ticket), "a statement reads it");
}
