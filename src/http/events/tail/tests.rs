//! Tests of a `Tail`, which keeps the newest events of one tree: its buffer, and its behavior
//! while the database does not answer.

use uuid::Uuid;

use super::*;

const ROOT: TaskId = TaskId(Uuid::from_u128(7));

fn events(numbers: std::ops::RangeInclusive<i64>, bytes: usize, more: bool) -> RenderedEvents {
    let event = |number| {
        Arc::new(RenderedEvent {
            number,
            task: ROOT,
            seq: number,
            status: None,
            is_answer: false,
            child: None,
            text: "x".repeat(bytes),
        })
    };
    RenderedEvents {
        part: Subtree {
            root: ROOT,
            task: ROOT,
        },
        events: numbers.map(event).collect(),
        more,
    }
}

impl Buffer {
    /// Returns the kind of the reply to a follower that has all events up to `seen`, and the
    /// numbers of the events in the reply. For the kind `read`, the list has the number after which
    /// the follower has to read the rows.
    fn reply_to(&mut self, seen: i64, fresh: bool, commits: u64) -> (&'static str, Vec<i64>) {
        let question = FollowerQuery {
            seen,
            fresh,
            reads_begun: self.reads_begun,
            reads_failed: self.reads_failed,
        };
        match self.answer(&question, commits) {
            BufferReply::Events(events) => {
                ("events", events.iter().map(|event| event.number).collect())
            }
            BufferReply::End => ("end", Vec::new()),
            BufferReply::Behind => ("behind", Vec::new()),
            BufferReply::Wait => ("wait", Vec::new()),
            BufferReply::Read(after) => ("read", vec![after]),
        }
    }

    /// Adds the result of a read of the rows after the number `after`, and ends the read.
    /// `commits_at_read` is the number of notifications that had arrived when the read began.
    fn read(&mut self, after: i64, read: RenderedEvents, commits_at_read: u64) {
        self.add(after, read, commits_at_read);
        self.is_reading = false;
    }
}

#[test]
fn commit_is_read_once_for_all_followers() {
    let mut buffer = Buffer::default();
    for _ in 0..3 {
        buffer.move_follower(None, Some(6));
    }
    assert_eq!(buffer.reply_to(6, false, 1), ("read", vec![6]));
    assert_eq!(buffer.reply_to(6, false, 1), ("wait", vec![]));
    buffer.read(6, events(7..=8, 1, false), 1);
    for _ in 0..3 {
        assert_eq!(buffer.reply_to(6, false, 1), ("events", vec![7, 8]));
        assert_eq!(buffer.reply_to(8, false, 1), ("end", vec![]));
    }
    assert_eq!(
        buffer.reply_to(8, false, 2),
        ("read", vec![8]),
        "the next one"
    );
    buffer.read(8, events(9..=9, 1, true), 2);
    assert_eq!(
        buffer.reply_to(9, false, 2),
        ("read", vec![9]),
        "there is more"
    );
    buffer.read(9, events(10..=10, 1, false), 2);
    assert_eq!(
        buffer.reply_to(10, true, 2),
        ("read", vec![10]),
        "a fresh look"
    );
    assert_eq!(buffer.reads_begun, 4);
}

#[test]
fn event_is_kept_until_the_last_follower_has_taken_it() {
    let mut buffer = Buffer::default();
    buffer.move_follower(None, Some(0));
    buffer.move_follower(None, Some(0));
    buffer.add(0, events(1..=3, 10, false), 1);
    buffer.move_follower(Some(0), Some(3));
    assert_eq!((buffer.events.len(), buffer.bytes), (3, 30));
    buffer.move_follower(Some(0), Some(2));
    assert_eq!((buffer.events.len(), buffer.bytes), (1, 10));
    buffer.move_follower(Some(2), None);
    assert_eq!((buffer.events.len(), buffer.bytes), (0, 0), "it has left");
    assert_eq!(buffer.reply_to(2, false, 1).0, "behind");
    buffer.move_follower(Some(3), None);
    buffer.move_follower(None, Some(9));
    assert_eq!(
        buffer.reply_to(9, false, 1),
        ("read", vec![9]),
        "from its place"
    );
    buffer.read(3, events(4..=5, 10, false), 1);
    assert_eq!(buffer.bytes, 0, "of a read that began before it came");
}

#[test]
fn slow_follower_is_sent_back_to_the_rows() {
    let mut buffer = Buffer::default();
    buffer.move_follower(None, Some(0));
    for number in 1..=20 {
        buffer.add(
            number - 1,
            events(number..=number, MAX_KEPT_BYTES / 4, false),
            1,
        );
    }
    assert!(
        buffer.bytes <= MAX_KEPT_BYTES + MAX_KEPT_BYTES / 4,
        "{}",
        buffer.bytes
    );
    assert_eq!(buffer.reply_to(0, false, 1).0, "behind");
    assert_eq!(buffer.reply_to(19, false, 1), ("events", vec![20]));
}

#[test]
fn follower_takes_a_portion_at_a_time() {
    let mut buffer = Buffer::default();
    buffer.move_follower(None, Some(0));
    buffer.add(0, events(1..=64, 1, true), 1);
    buffer.add(64, events(65..=100, 1, false), 1);
    assert_eq!(buffer.reply_to(0, false, 1).1, (1..=64).collect::<Vec<_>>());
    buffer.add(100, events(101..=104, 200 * 1024, false), 1);
    assert_eq!(buffer.reply_to(100, false, 1).1, [101, 102]);
}

#[tokio::test]
async fn tail_lives_as_long_as_its_followers() {
    let http = Arc::new(crate::http::tests::http(true, &[]));
    let mut first = http.tails.follower(&http.store, ROOT);
    first.join(3);
    let mut second = http.tails.follower(&http.store, ROOT);
    second.join(4);
    assert!(Arc::ptr_eq(&first.tail, &second.tail));
    drop(first);
    assert_eq!(second.tail.buffer.lock().positions, [(4, 1)].into());
    assert!(http.store.is_watched(ROOT) && http.tails.0.lock().len() == 1);
    drop(second);
    assert!(!http.store.is_watched(ROOT) && http.tails.0.lock().is_empty());
}

#[tokio::test]
async fn followers_read_by_themselves_after_a_failed_read() {
    let http = Arc::new(crate::http::tests::http(true, &[]));
    let mut followers = [(); 3].map(|()| http.tails.follower(&http.store, ROOT));
    for follower in &mut followers {
        follower.join(3);
    }
    let [first, second, third] = &mut followers;
    let (first, second) = tokio::join!(first.next(&http, 3, false), second.next(&http, 3, false));
    assert!(first.is_none() && second.is_none());
    assert_eq!(third.tail.buffer.lock().reads_begun, 1, "one read for both");
    assert!(third.next(&http, 3, false).await.is_none());
}
