//! Tests the lists and counts of the store, and the clock.

use std::time::Duration;

use holdpoint::store::{TaskFilter, UserJournal};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Fact;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::user::UserId;
use macro_rules_attribute::apply;

use super::store_fixture::{
    StoreFixture, acme_requests, both, child_task, finance, fresh, request_spec, said,
};

#[apply(both)]
async fn tasks_are_listed_newest_first_page_by_page_and_only_roots(fixture: StoreFixture) {
    let mut all = Vec::new();
    for user in ["alice", "bob", "alice", "bob", "alice"] {
        all.push(fixture.task_of("acme", user).await);
    }
    fixture.task_of("globex", "alice").await;
    let child = TaskId(fresh());
    fixture
        .commit(all[0], vec![child_task(child, all[0])])
        .await;
    all.reverse();
    let mut filter = TaskFilter {
        tenant: "acme".to_owned(),
        limit: 2,
        ..TaskFilter::default()
    };
    let mut seen = Vec::new();
    loop {
        let page = fixture.store.tasks(&filter).await.unwrap();
        let Some(last) = page.last() else { break };
        filter.before = Some(last.task_id);
        seen.extend(page.iter().map(|row| row.task_id));
    }
    assert_eq!(seen, all);
}

/// Returns a filter for tasks of the tenant acme. `set` sets its other members.
fn tasks_of_acme(set: impl FnOnce(&mut TaskFilter)) -> TaskFilter {
    let mut filter = TaskFilter {
        tenant: "acme".to_owned(),
        limit: 9,
        ..TaskFilter::default()
    };
    set(&mut filter);
    filter
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().copied().map(str::to_owned).collect()
}

#[apply(both)]
async fn tasks_are_filtered_by_each_member_of_the_filter(fixture: StoreFixture) {
    let mut all = Vec::new();
    for user in ["alice", "bob", "alice", "bob", "alice"] {
        all.push(fixture.task_of("acme", user).await);
    }
    fixture.task_of("globex", "alice").await;
    let child = vec![child_task(TaskId(fresh()), all[0])];
    fixture.commit(all[0], child).await;
    let (root, other_root) = (all[0], all[1]);
    for (filter, expected) in [
        (tasks_of_acme(|by| by.users = vec!["alice".into()]), 3),
        (
            tasks_of_acme(|by| by.users = vec!["alice".into(), "bob".into()]),
            5,
        ),
        (
            tasks_of_acme(|by| by.statuses = vec![TaskStatus::Paused]),
            0,
        ),
        (
            tasks_of_acme(|by| by.statuses = vec![TaskStatus::Running, TaskStatus::Failed]),
            5,
        ),
        (tasks_of_acme(|by| by.agents = texts(&["billing"])), 5),
        (tasks_of_acme(|by| by.without_agents = texts(&["cli"])), 5),
        (
            tasks_of_acme(|by| by.without_agents = texts(&["cli", "billing"])),
            0,
        ),
        (
            tasks_of_acme(|by| by.without_versions = texts(&["sha256:1"])),
            5,
        ),
        (
            tasks_of_acme(|by| by.without_versions = texts(&["sha256:1", "sha256:0"])),
            0,
        ),
        (tasks_of_acme(|by| by.sessions = texts(&["other"])), 0),
        (tasks_of_acme(|by| by.roots = vec![root]), 2),
        (tasks_of_acme(|by| by.roots = vec![other_root, root]), 3),
    ] {
        let listed = fixture.store.tasks(&filter).await.unwrap();
        assert_eq!(listed.len(), expected, "{filter:?}");
    }
    let of_alice = tasks_of_acme(|by| {
        by.users = vec!["alice".into()];
        by.without_agents = texts(&["billing"]);
    });
    let child_by_exclusion = tasks_of_acme(|by| {
        by.roots = vec![root];
        by.without_agents = texts(&["billing"]);
    });
    let child_by_agent = tasks_of_acme(|by| {
        by.roots = vec![root];
        by.agents = texts(&["analyst"]);
    });
    for (filter, expected) in [(of_alice, 0), (child_by_exclusion, 1), (child_by_agent, 1)] {
        let listed = fixture.store.tasks(&filter).await.unwrap();
        assert_eq!(listed.len(), expected, "{filter:?}");
    }
}

#[apply(both)]
async fn items_are_read_after_a_seq_with_their_event_numbers(fixture: StoreFixture) {
    let id = fixture.task().await;
    let mut next = fixture.next(id).await;
    next.facts = (0..4).map(|number| said(&number.to_string())).collect();
    fixture.write(next).await.unwrap();
    let items = fixture.store.items(id, 3, 2).await.unwrap();
    assert_eq!(
        items
            .iter()
            .map(|(item, event)| (item.seq, *event))
            .collect::<Vec<_>>(),
        [(4, 4), (5, 5)]
    );
}

#[apply(both)]
async fn journal_is_read_only_for_the_user_of_its_task_in_any_spelling(fixture: StoreFixture) {
    let id = fixture.task_of("acme", "Alice").await;
    let whole = fixture
        .store
        .journal(id)
        .await
        .unwrap()
        .unwrap()
        .items
        .len();
    for (tenant, user, is_own) in [
        ("acme", "Alice", true),
        ("acme", "alice", true),
        ("acme", "bob", false),
        ("globex", "Alice", false),
    ] {
        let read = fixture
            .store
            .user_journal(id, tenant, &UserId::from(user))
            .await
            .unwrap()
            .unwrap();
        match read {
            UserJournal::Own(journal) => assert_eq!(
                (is_own, journal.items.len()),
                (true, whole),
                "{tenant} {user}"
            ),
            UserJournal::Foreign(row) => {
                assert_eq!((is_own, row.task_id), (false, id), "{tenant} {user}");
            }
        }
    }
    let unknown = fixture
        .store
        .user_journal(TaskId(fresh()), "acme", &UserId::from("Alice"))
        .await;
    assert!(unknown.unwrap().is_none());
}

#[apply(both)]
async fn last_user_message_is_the_newest_of_the_root_before_the_question(fixture: StoreFixture) {
    let (root, child) = (fixture.task().await, TaskId(fresh()));
    let say = async |text: &str| {
        let mut next = fixture.next(root).await;
        next.facts = vec![said(text)];
        fixture.write(next).await.unwrap();
    };
    say("first").await;
    fixture.commit(root, vec![child_task(child, root)]).await;
    let mut questions = Vec::new();
    for (task, later) in [(child, "second"), (root, "third")] {
        let question = request_spec(RequestKind::Approval, finance(1), 1);
        let mut asks = fixture.next(task).await;
        asks.facts = vec![Fact::InterventionRequested(question.clone())];
        asks.counters.open_requests = 1;
        fixture.commit(root, vec![asks]).await;
        say(later).await;
        questions.push(question.request_id);
    }
    let mut found = Vec::new();
    for question in questions {
        let row = fixture.request(question).await;
        let items = fixture.store.last_user_message(&row).await.unwrap();
        found.push(items.into_iter().map(|item| item.seq).collect::<Vec<_>>());
    }
    // In the root's journal, "first" has the number 3, "second" 4, the root's question 5, and
    // "third" 6.
    assert_eq!(found, [[3, 4], [4, 5]]);
}

#[apply(both)]
async fn page_reads_no_more_than_it_may_hold(fixture: StoreFixture) {
    const PAGE: usize = 4 * 1024 * 1024;
    let id = fixture.task().await;
    let large = "x".repeat(PAGE / 4);
    let mut next = fixture.next(id).await;
    next.facts = [
        large.as_str(),
        &large,
        &large,
        &large,
        &"y".repeat(PAGE + 1),
        "z",
    ]
    .iter()
    .map(|text| said(text))
    .collect();
    fixture.write(next).await.unwrap();
    let mut pages = Vec::new();
    let mut after = 0;
    loop {
        let page = fixture.store.items(id, after, 200).await.unwrap();
        let Some((last, _)) = page.last() else { break };
        after = last.seq;
        pages.push(page.len());
    }
    // The first two items and three large items fit into 4 MiB. Each of the next three pages
    // holds one item: the fourth large item, the item larger than a page, and the last item.
    assert_eq!(pages, [5, 1, 1, 1]);
    let mut filter = TaskFilter {
        tenant: "acme".to_owned(),
        limit: 200,
        ..TaskFilter::default()
    };
    for _ in 0..3 {
        let mut asked = request_spec(RequestKind::Approval, finance(1), 8);
        asked
            .pending_tool_calls
            .iter_mut()
            .for_each(|call| call.arguments_text = "x".repeat(250_000));
        let task = fixture.task().await;
        fixture.pause(task, &asked).await;
    }
    let page = fixture.store.tasks(&filter).await.unwrap();
    assert_eq!(
        (page.len(), page.more),
        (2, true),
        "a task's open requests count toward the page"
    );
    filter.before = page.last().map(|row| row.task_id);
    let page = fixture.store.tasks(&filter).await.unwrap();
    assert_eq!((page.len(), page.more), (2, false));
    let mut filter = acme_requests(2);
    let page = fixture.store.requests(&filter).await.unwrap();
    assert_eq!((page.len(), page.more), (2, true));
    filter.limit = 200;
    let page = fixture.store.requests(&filter).await.unwrap();
    assert_eq!(
        (page.len(), page.more),
        (2, true),
        "two of 2 MB are read, and not the third"
    );
    filter.after = page.last().map(|row| row.spec.request_id);
    let page = fixture.store.requests(&filter).await.unwrap();
    assert_eq!((page.len(), page.more), (1, false));
}

#[apply(both)]
async fn census_counts_tasks_by_status_and_open_requests_by_kind(fixture: StoreFixture) {
    fixture.task().await;
    fixture.paused(finance(1)).await;
    fixture.paused(finance(1)).await;
    fixture.forward(Duration::from_mins(5));
    let tasks = fixture.store.task_counts().await.unwrap();
    let number = |status| match status {
        TaskStatus::Running => 1,
        TaskStatus::Paused => 2,
        TaskStatus::Completed | TaskStatus::Failed | TaskStatus::Canceled => 0,
    };
    assert_eq!(
        tasks,
        TaskStatus::ALL.map(|status| (status, number(status)))
    );
    let requests = fixture.store.request_backlogs().await.unwrap();
    assert_eq!(requests.len(), RequestKind::ALL.len(), "{requests:?}");
    for kind in &requests {
        let is_approval = kind.name == "approval";
        assert_eq!(kind.waiting, if is_approval { 2 } else { 0 }, "{kind:?}");
        assert_eq!(
            kind.oldest >= Duration::from_mins(5),
            is_approval,
            "{kind:?}"
        );
    }
}

#[apply(both)]
async fn clock_is_the_databases_in_microseconds(fixture: StoreFixture) {
    let before = fixture.store.now().await.unwrap();
    fixture.forward(Duration::from_hours(5));
    let after = fixture.store.now().await.unwrap();
    assert!(after.since(before) >= Duration::from_hours(5));
    let at = fixture
        .store
        .journal(fixture.task().await)
        .await
        .unwrap()
        .unwrap()
        .items[0]
        .at;
    assert!(at >= after, "items are stamped by the same clock");
}
