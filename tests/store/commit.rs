//! Tests commits: what they write, and in which cases they are refused.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use holdpoint::store::CommitError;
use holdpoint::task::change::{Counters, Guard, IdempotencyRow, TaskChange, TaskRow};
use holdpoint::task::failure::{Failure, FailureCode};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Usage};
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::store_fixture::{
    StoreFixture, change, child_task, every_statement, fresh, new_task, said, status,
};

fn ancestor(id: TaskId, counters: Counters) -> TaskChange {
    TaskChange {
        counters,
        ..TaskChange::empty(id, Guard::Any, 0)
    }
}

#[apply(every_statement)]
async fn change_of_many_items_is_written_whole(fixture: StoreFixture) {
    let id = fixture.task().await;
    let mut many = fixture.next(id).await;
    many.facts = (0..1_500).map(|number| said(&number.to_string())).collect();
    fixture.write(many).await.unwrap();
    let journal = fixture.store.journal(id).await.unwrap().unwrap();
    assert_eq!(journal.items.len(), 1_502);
    assert_eq!(journal.row.last_seq, 1_502);
    assert_eq!(journal.row.next_event, 1_502);
    assert!(journal.items.iter().map(|item| item.seq).eq(1..=1_502));
}

#[apply(every_statement)]
async fn new_task_is_read_back_as_it_was_written(fixture: StoreFixture) {
    let id = TaskId(fresh());
    let new = new_task(id, "acme", "alice");
    let Guard::New(given) = new.guard.clone() else {
        panic!("a new task")
    };
    let at = fixture.write(new).await.unwrap().at;
    let row = fixture.row(id).await;
    assert_eq!(
        row.client.metadata, "{\"b\":1,\"a\":[2.50]}",
        "JSON is kept byte by byte"
    );
    let times = TaskRow {
        created_at: at,
        updated_at: at,
        ..TaskRow::unsaved(id, id, &given)
    };
    assert_eq!(
        row,
        TaskRow {
            version: 1,
            last_seq: 2,
            next_event: 2,
            busy: 1,
            ..times
        }
    );
    let journal = fixture.store.journal(id).await.unwrap().unwrap();
    assert_eq!(journal.row, row);
    assert_eq!(
        journal
            .items
            .iter()
            .map(|item| item.seq)
            .collect::<Vec<_>>(),
        [1, 2]
    );
    assert!(journal.items.iter().all(|item| item.at == at));
    assert_eq!(journal.items[1].fact, said("hello"));
    assert!(journal.now >= at);
}

#[apply(every_statement)]
async fn unknown_task_is_read_as_none(fixture: StoreFixture) {
    assert!(fixture.store.task(TaskId(fresh())).await.unwrap().is_none());
    assert!(
        fixture
            .store
            .journal(TaskId(fresh()))
            .await
            .unwrap()
            .is_none()
    );
}

#[apply(every_statement)]
async fn second_of_two_changes_at_one_version_is_stale_and_leaves_nothing(fixture: StoreFixture) {
    let id = fixture.task().await;
    let mut first = fixture.next(id).await;
    first.facts = vec![said("first")];
    let mut second = first.clone();
    second.facts = vec![said("second"), said("third")];
    fixture.write(first).await.unwrap();
    assert_eq!(fixture.write(second).await, Err(CommitError::Stale));
    let journal = fixture.store.journal(id).await.unwrap().unwrap();
    assert_eq!((journal.row.version, journal.items.len()), (2, 3));
}

#[apply(every_statement)]
async fn change_whose_seq_does_not_follow_the_last_is_stale(fixture: StoreFixture) {
    let id = fixture.task().await;
    let mut gap = fixture.next(id).await;
    gap.last_seq += 1;
    gap.facts = vec![said("after a gap")];
    assert_eq!(fixture.write(gap).await, Err(CommitError::Stale));
}

#[apply(every_statement)]
async fn new_task_that_already_exists_is_stale(fixture: StoreFixture) {
    let id = fixture.task().await;
    assert_eq!(
        fixture.write(new_task(id, "acme", "alice")).await,
        Err(CommitError::Stale)
    );
}

#[apply(every_statement)]
async fn tree_is_written_completely_or_not_at_all(fixture: StoreFixture) {
    let root = fixture.task().await;
    let child = TaskId(fresh());
    let mut parent = fixture.next(root).await;
    parent.facts = vec![said("start a child")];
    parent.counters = Counters {
        busy: 1,
        ..Counters::default()
    };
    let mut stale = parent.clone();
    stale.guard = Guard::Version(7);
    let both = change(root, vec![stale, child_task(child, root)]);
    assert_eq!(fixture.store.commit(both).await, Err(CommitError::Stale));
    assert!(fixture.store.task(child).await.unwrap().is_none());

    fixture
        .commit(root, vec![parent, child_task(child, root)])
        .await;
    let row = fixture.row(child).await;
    assert_eq!((row.root_task_id, row.parent.unwrap().0), (root, root));
    assert_eq!(row.agent_path, ["billing", "analyst"]);

    let mut below = fixture.next(child).await;
    below.facts = vec![said("in the child")];
    let usage = Usage {
        prompt_tokens: 5,
        completion_tokens: 2,
        total_tokens: 7,
    };
    below.counters = Counters {
        usage,
        model_calls: 1,
        ..Counters::default()
    };
    let counted = below.counters;
    let before = fixture.row(root).await;
    fixture
        .commit(root, vec![below, ancestor(root, counted)])
        .await;
    let after = fixture.row(root).await;
    assert_eq!((after.usage, after.model_calls), (usage, 1));
    assert_eq!(
        after.version, before.version,
        "an ancestor that is only counted for is not fenced off"
    );
    assert_eq!(after.updated_at, before.updated_at);

    let mut alone = fixture.next(child).await;
    alone.facts = vec![said("the root is not named")];
    fixture.commit(root, vec![alone]).await;
    let events = fixture
        .numbers("select event_number from agent_task_item order by event_number")
        .await
        .unwrap();
    assert_eq!(events, (1..=7).collect::<Vec<i64>>());
}

#[apply(every_statement)]
async fn task_of_another_tree_is_stale(fixture: StoreFixture) {
    let (one, other) = (fixture.task().await, fixture.task().await);
    let mut wrong = fixture.next(other).await;
    wrong.facts = vec![said("in the wrong tree")];
    assert_eq!(
        fixture.store.commit(change(one, vec![wrong])).await,
        Err(CommitError::Stale)
    );
    let twice = fixture.next(one).await;
    assert_eq!(
        fixture
            .store
            .commit(change(one, vec![twice.clone(), twice]))
            .await,
        Err(CommitError::Refused)
    );
}

#[apply(every_statement)]
async fn output_and_error_are_those_of_the_last_status(fixture: StoreFixture) {
    let id = fixture.task().await;
    let mut end = fixture.next(id).await;
    let error = Some(Failure::new(FailureCode::ModelFailed, "No answer."));
    end.facts = vec![Fact::TaskStatus {
        status: TaskStatus::Failed,
        error: error.clone(),
        output: None,
    }];
    end.counters.busy = -1;
    fixture.write(end).await.unwrap();
    let row = fixture.row(id).await;
    assert_eq!(
        (row.status, &row.error, &row.output),
        (TaskStatus::Failed, &error, &None)
    );

    let mut again = fixture.next(id).await;
    let output = Some("Done.".to_owned());
    again.facts = vec![
        status(TaskStatus::Running),
        said("again"),
        Fact::TaskStatus {
            status: TaskStatus::Failed,
            error: None,
            output: output.clone(),
        },
        said("after it"),
    ];
    fixture.write(again).await.unwrap();
    let journal = fixture.store.journal(id).await.unwrap().unwrap();
    assert_eq!((journal.row.error, journal.row.output), (None, output));
}

#[apply(every_statement)]
async fn terminal_task_changes_only_to_running_and_only_with_a_new_item(fixture: StoreFixture) {
    let id = fixture.task().await;
    let mut end = fixture.next(id).await;
    end.facts = vec![status(TaskStatus::Completed)];
    end.counters.busy = -1;
    fixture.write(end).await.unwrap();
    let mut wrong = fixture.next(id).await;
    wrong.facts = vec![status(TaskStatus::Canceled)];
    assert_eq!(fixture.write(wrong).await, Err(CommitError::Refused));
    assert!(
        fixture
            .numbers("update agent_task set status = 'Running' where status = 'Completed'")
            .await
            .is_err()
    );
    let mut right = fixture.next(id).await;
    right.facts = vec![status(TaskStatus::Running), said("more")];
    right.counters.busy = 1;
    fixture.write(right).await.unwrap();
}

#[apply(every_statement)]
async fn paused_task_needs_an_open_request_and_nothing_running(fixture: StoreFixture) {
    let id = fixture.task().await;
    let mut pause = fixture.next(id).await;
    pause.facts = vec![status(TaskStatus::Paused)];
    pause.counters.busy = -1;
    assert_eq!(
        fixture.write(pause.clone()).await,
        Err(CommitError::Refused),
        "no open request"
    );
    pause.counters = Counters {
        open_requests: 1,
        ..Counters::default()
    };
    assert_eq!(
        fixture.write(pause).await,
        Err(CommitError::Refused),
        "still busy"
    );
    let journal = fixture.store.journal(id).await.unwrap().unwrap();
    assert_eq!(journal.row.status, TaskStatus::Running);
    assert_eq!(journal.items.len(), 2);
}

#[apply(every_statement)]
async fn idempotency_key_is_spent_once_per_tenant_user_and_path(fixture: StoreFixture) {
    let key = |tenant: &str, task_id| IdempotencyRow {
        tenant: tenant.to_owned(),
        user_id: "alice".to_owned(),
        person: None,
        path: "POST /v1/tasks".to_owned(),
        key: "k1".to_owned(),
        body_digest: "00".to_owned(),
        task_id,
        request_id: None,
    };
    let create = |tenant: &'static str| {
        let id = TaskId(fresh());
        let mut create = change(id, vec![new_task(id, tenant, "alice")]);
        create.idempotency = Some(key(tenant, id));
        (id, create)
    };
    let (first, one) = create("acme");
    fixture.store.commit(one).await.unwrap();
    let (second, again) = create("acme");
    assert_eq!(fixture.store.commit(again).await, Err(CommitError::Refused));
    assert!(
        fixture.store.task(second).await.unwrap().is_none(),
        "nothing is left of it"
    );
    let (_, other) = create("globex");
    fixture.store.commit(other).await.unwrap();
    let row = fixture
        .store
        .idempotency("acme", &"alice".into(), "POST /v1/tasks", "k1")
        .await
        .unwrap();
    let stored = row.map(|row| IdempotencyRow {
        person: None,
        ..row
    });
    assert_eq!(stored, Some(key("acme", first)));
    assert_eq!(
        fixture
            .store
            .idempotency("acme", &"bob".into(), "POST /v1/tasks", "k1")
            .await
            .unwrap(),
        None
    );
}

#[apply(every_statement)]
async fn nul_character_fails_only_its_own_change(fixture: StoreFixture) {
    let mut ids = Vec::new();
    let mut writes = tokio::task::JoinSet::new();
    for number in 0..60 {
        let id = TaskId(fresh());
        let mut new = new_task(id, "acme", "alice");
        if let (0, Guard::New(fixed)) = (number % 10, &mut new.guard) {
            fixed.session_id.push_str("nul \0 here");
        }
        // JSON escapes the NUL, so the text is read back unchanged.
        new.facts.push(said("a\0b"));
        ids.push(id);
        let store = fixture.store.clone();
        writes.spawn(async move { (number, store.commit(change(id, vec![new])).await) });
    }
    while let Some(done) = writes.join_next().await {
        let (number, result) = done.unwrap();
        let expected = (number % 10 == 0).then_some(CommitError::Refused);
        assert_eq!(result.err(), expected, "change {number}");
    }
    let journal = fixture.store.journal(ids[1]).await.unwrap().unwrap();
    assert_eq!(journal.items[2].fact, said("a\0b"));
}

#[apply(every_statement)]
async fn constraint_violation_in_a_batch_fails_only_its_own_change(fixture: StoreFixture) {
    let tasks: Vec<TaskId> = {
        let mut tasks = Vec::new();
        for _ in 0..40 {
            tasks.push(fixture.task().await);
        }
        tasks
    };
    let mut writes = tokio::task::JoinSet::new();
    for (number, id) in tasks.into_iter().enumerate() {
        let mut next = fixture.next(id).await;
        next.facts = vec![if number % 8 == 3 {
            status(TaskStatus::Paused)
        } else {
            said("fine")
        }];
        let store = fixture.store.clone();
        writes.spawn(async move { (number, store.commit(change(id, vec![next])).await) });
    }
    while let Some(done) = writes.join_next().await {
        let (number, result) = done.unwrap();
        assert_eq!(
            result.err(),
            (number % 8 == 3).then_some(CommitError::Refused),
            "change {number}"
        );
    }
}

#[apply(every_statement)]
async fn watcher_is_notified_after_the_commit(fixture: StoreFixture) {
    let id = fixture.task().await;
    let mut news = fixture.store.watch(id);
    let mut next = fixture.next(id).await;
    next.facts = vec![said("news")];
    fixture.write(next).await.unwrap();
    assert!(news.has_changed().unwrap());
    news.mark_unchanged();
    fixture.task().await;
    assert!(
        !news.has_changed().unwrap(),
        "news of another tree do not arrive"
    );
}

#[apply(every_statement)]
async fn commit_is_written_even_if_its_caller_goes_away(fixture: StoreFixture) {
    let held = Arc::new(Mutex::new(()));
    let writer = Arc::clone(&held);
    fixture
        .store
        .observe_batches(move |_| drop(writer.lock().unwrap()));
    for _ in 0..20 {
        let id = TaskId(fresh());
        let mut news = fixture.store.watch(id);
        let commit = fixture
            .store
            .commit(change(id, vec![new_task(id, "acme", "alice")]));
        {
            // While the test holds the lock, no writer writes the change.
            let _guard = held.lock().unwrap();
            // `now_or_never` polls the commit once and drops it, as a caller that goes away
            // would.
            assert!(commit.now_or_never().is_none());
        }
        news.changed().await.unwrap();
        assert!(fixture.store.task(id).await.unwrap().is_some());
    }
}

#[apply(every_statement)]
async fn closed_store_takes_no_commit(fixture: StoreFixture) {
    let id = fixture.task().await;
    let next = fixture.next(id).await;
    fixture.store.close().await;
    assert_eq!(fixture.write(next).await, Err(CommitError::Unavailable));
    assert!(!fixture.store.ready().await);
}

#[apply(every_statement)]
async fn agent_version_is_stored_once(fixture: StoreFixture) {
    for _ in 0..2 {
        fixture
            .store
            .store_agent_version("sha256:1", "{}")
            .await
            .unwrap();
    }
    assert_eq!(fixture.count("agent_version").await, 1);
    assert!(fixture.store.ready().await);
}
