//! Tests the events of a tree and of its subtrees, which are read in portions.

use holdpoint::store::{ReadLimit, Subtree};
use holdpoint::task::change::IdempotencyRow;
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use macro_rules_attribute::apply;

use super::store_fixture::{
    StoreFixture, both, change, child_task, decided, finance, fresh, new_task, said, status,
};

const ALL: ReadLimit = ReadLimit {
    events: 100,
    bytes: 1_000_000,
};

fn of(root: TaskId) -> Subtree {
    Subtree { root, task: root }
}

#[apply(both)]
async fn portion_ends_at_its_events_or_bytes_and_is_empty_only_at_the_end(fixture: StoreFixture) {
    let root = fixture.task().await;
    let mut next = fixture.next(root).await;
    next.facts = (0..6).map(|_| said(&"x".repeat(1000))).collect();
    fixture.write(next).await.unwrap();
    for (events, bytes, sizes) in [
        (100, 1_000_000, vec![8]),
        (3, 1_000_000, vec![3, 3, 2]),
        (100, 1, vec![1; 8]),
        // An item is returned whole if it begins within the byte limit, so each portion has two
        // long items.
        (100, 1500, vec![4, 2, 2]),
    ] {
        let (mut seen, mut read, mut more) = (0, Vec::new(), true);
        while more {
            let portion = fixture
                .store
                .events(of(root), seen, ReadLimit { events, bytes })
                .await
                .unwrap();
            more = portion.more;
            let Some(last) = portion.events.last() else {
                break;
            };
            assert!(
                portion
                    .events
                    .iter()
                    .zip(seen + 1..)
                    .all(|(event, number)| event.number == number)
            );
            seen = last.number;
            read.push(portion.events.len());
        }
        assert_eq!(read, sizes, "{events} {bytes}");
    }
    let none = fixture.store.events(of(root), 8, ALL).await.unwrap();
    assert!(none.events.is_empty() && !none.more);
    let item = fixture
        .store
        .events(of(root), 7, ALL)
        .await
        .unwrap()
        .events
        .remove(0);
    assert_eq!(
        (item.number, item.task_id, item.of_root, item.item.seq),
        (8, root, true, 8)
    );
    assert_eq!(item.agent_path, ["billing".to_owned()]);
    assert_eq!(item.item.fact, said(&"x".repeat(1000)));
}

#[apply(both)]
async fn part_of_a_tree_is_a_task_and_its_subtree(fixture: StoreFixture) {
    let root = fixture.task().await;
    let [child, grandchild, sibling] = [0; 3].map(|_| TaskId(fresh()));
    for (task, parent) in [(child, root), (grandchild, child), (sibling, root)] {
        let mut new = child_task(task, parent);
        new.facts.push(said("more"));
        fixture.commit(root, vec![new]).await;
    }
    let numbers = async |task, after, portion| -> Vec<i64> {
        let read = fixture
            .store
            .events(Subtree { root, task }, after, portion)
            .await
            .unwrap();
        read.events.iter().map(|event| event.number).collect()
    };
    assert_eq!(numbers(root, 0, ALL).await, (1..=11).collect::<Vec<_>>());
    assert_eq!(numbers(child, 0, ALL).await, [3, 4, 5, 6, 7, 8]);
    assert_eq!(
        numbers(child, 4, ReadLimit { events: 3, ..ALL }).await,
        [5, 6, 7]
    );
    assert_eq!(numbers(grandchild, 0, ALL).await, [6, 7, 8]);
    assert_eq!(numbers(sibling, 9, ALL).await, [10, 11]);
    assert_eq!(numbers(TaskId(fresh()), 0, ALL).await, [0; 0]);
}

#[apply(both)]
async fn first_event_of_a_commit_is_found_from_any_of_its_items(fixture: StoreFixture) {
    let (root, child) = (fixture.task().await, TaskId(fresh()));
    // In this commit, the child's items are numbered before the root's.
    let mut own = fixture.next(root).await;
    own.facts = vec![said("a"), said("b")];
    fixture
        .commit(root, vec![child_task(child, root), own])
        .await;
    for (task, seq, first) in [
        (root, 1, 1),
        (root, 2, 1),
        (child, 2, 3),
        (root, 3, 3),
        (root, 4, 3),
    ] {
        assert_eq!(
            fixture.store.first_event(task, seq).await.unwrap(),
            Some(first),
            "{seq}"
        );
    }
    assert_eq!(fixture.store.first_event(root, 9).await.unwrap(), None);
}

#[apply(both)]
async fn first_event_of_a_keys_commit_is_found_by_the_key(fixture: StoreFixture) {
    let root = TaskId(fresh());
    let key = |path: &str| IdempotencyRow {
        tenant: "acme".to_owned(),
        user_id: "alice".to_owned(),
        person: None,
        path: path.to_owned(),
        key: "k".to_owned(),
        body_digest: "00".to_owned(),
        task_id: root,
        request_id: None,
    };
    let mut create = change(root, vec![new_task(root, "acme", "alice")]);
    create.idempotency = Some(key("POST /v1/tasks"));
    fixture.store.commit(create).await.unwrap();
    let mut next = fixture.next(root).await;
    next.facts = vec![said("a")];
    fixture.write(next).await.unwrap();
    let mut next = fixture.next(root).await;
    next.facts = vec![said("b"), said("c")];
    let mut message = change(root, vec![next]);
    message.idempotency = Some(key("POST messages"));
    fixture.store.commit(message).await.unwrap();
    for (path, first) in [
        ("POST /v1/tasks", Some(1)),
        ("POST messages", Some(4)),
        ("POST other", None),
    ] {
        assert_eq!(
            fixture.store.first_event_of(&key(path)).await.unwrap(),
            first,
            "{path}"
        );
    }
}

#[apply(both)]
async fn request_is_read_as_it_was_at_the_commit_of_each_answer(fixture: StoreFixture) {
    let (root, asked) = fixture.paused(finance(2)).await;
    for by in ["carol", "bob"] {
        let mut next = fixture.next(root).await;
        next.facts = vec![
            decided(&asked, by, Action::Approve, by == "bob"),
            said("beside it"),
        ];
        next.counters.open_requests = -i32::from(by == "bob");
        next.counters.busy = i32::from(by == "bob");
        if by == "bob" {
            next.facts.push(status(TaskStatus::Running));
        }
        fixture.write(next).await.unwrap();
    }
    let events = fixture.store.events(of(root), 0, ALL).await.unwrap().events;
    let mut read = Vec::new();
    for event in events
        .iter()
        .filter(|event| event.item.fact.request_id().is_some())
    {
        let (row, last) = fixture
            .store
            .request_after(asked.request_id, event)
            .await
            .unwrap();
        read.push((event.number, row.status, row.answers.len(), last));
    }
    let (pending, responded) = (RequestStatus::Pending, RequestStatus::Responded);
    assert_eq!(
        read,
        [(3, pending, 0, 4), (5, pending, 1, 6), (7, responded, 2, 9)]
    );
}
