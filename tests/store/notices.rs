//! Tests notices. If an entry of `notify.to` wants messages about an event, the event's commit also
//! writes a notice. The notice is replaced by deliveries exactly once.

use std::collections::BTreeSet;

use holdpoint::store::{
    ChangeEvents, CommitError, DeliveryChannel, EventFilter, EventFilters, EventHeader,
    NewDelivery, Notice,
};
use holdpoint::task::change::{Counters, Guard, TaskChange};
use holdpoint::task::item::Fact;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::store_fixture::{
    StoreFixture, both, change, child_task, decided, finance, fresh, request_spec, said, status,
};
use holdpoint::task::decision::Action;

/// Makes the store write notices about these events of the agent `billing` of the tenant `acme`.
pub fn want(fixture: &StoreFixture, events: &[&'static str]) {
    fixture
        .store
        .set_event_filters(EventFilters(vec![EventFilter {
            tenants: vec!["acme".to_owned()],
            agents: vec!["billing".to_owned()],
            events: events.iter().copied().collect::<BTreeSet<_>>(),
        }]));
}

pub async fn notices(fixture: &StoreFixture) -> Vec<Notice> {
    fixture.store.notices(100).await.unwrap()
}

async fn change_of(fixture: &StoreFixture, notice: &Notice) -> ChangeEvents {
    let mut changes = fixture.store.change_events(&[*notice]).await.unwrap();
    changes.pop().unwrap()
}

async fn events(fixture: &StoreFixture, notice: &Notice) -> Vec<(i64, &'static str)> {
    let change = change_of(fixture, notice).await;
    assert_eq!(change.tenant.as_str(), "acme");
    assert_eq!(change.root_agent.as_str(), "billing");
    let events = change.events.iter();
    events.map(|event| (event.number, event.name)).collect()
}

/// Returns a new delivery to `target` for each event of a notice.
pub async fn deliveries(fixture: &StoreFixture, notice: &Notice, target: &str) -> Vec<NewDelivery> {
    let change = change_of(fixture, notice).await;
    let events = change.events.into_iter();
    events
        .map(|event| NewDelivery {
            id: fresh(),
            notice: *notice,
            tenant: change.tenant.clone(),
            target: target.to_owned(),
            channel: DeliveryChannel::Webhook,
            person: String::new(),
            kind: event.name,
            event,
            due_at: None,
        })
        .collect()
}

#[apply(both)]
async fn commit_of_a_wanted_event_writes_one_notice_and_any_other_commit_none(
    fixture: StoreFixture,
) {
    want(&fixture, &["task.paused", "request.created"]);
    let (id, asked) = fixture.paused(finance(1)).await;
    let [notice] = notices(&fixture).await[..] else {
        panic!("one commit is wanted")
    };
    assert_eq!(
        (notice.root, notice.id, notice.event_number),
        (id, notice.change.0, 3)
    );
    assert_eq!(
        events(&fixture, &notice).await,
        [(3, "request.created"), (4, "task.paused")]
    );
    fixture.decide(id, &asked, "carol", Action::Approve).await;
    assert_eq!(
        notices(&fixture).await,
        [notice],
        "neither a decision nor the status is wanted"
    );
}

#[apply(both)]
async fn commit_writes_no_notice_where_nothing_is_wanted(fixture: StoreFixture) {
    let (id, asked) = fixture.paused(finance(1)).await;
    fixture.decide(id, &asked, "carol", Action::Approve).await;
    assert_eq!(notices(&fixture).await, []);
}

#[apply(both)]
async fn commit_of_another_tenant_or_agent_writes_no_notice(fixture: StoreFixture) {
    want(&fixture, &["task.created"]);
    for (tenant, agent) in [("other", "billing"), ("acme", "analyst")] {
        let id = holdpoint::task::id::TaskId(fresh());
        let mut change = change(
            id,
            vec![super::store_fixture::new_task(id, tenant, "alice")],
        );
        (change.tenant, change.root_agent) = (tenant.to_owned(), agent.to_owned());
        fixture.store.commit(change).await.unwrap();
    }
    assert_eq!(notices(&fixture).await, []);
    fixture.task().await;
    assert_eq!(notices(&fixture).await.len(), 1);
}

#[apply(both)]
async fn change_that_is_refused_writes_no_notice(fixture: StoreFixture) {
    let (id, asked) = fixture.paused(finance(1)).await;
    want(&fixture, &["request.decided"]);
    let first = fixture.deciding(id, &asked, "carol", Action::Approve).await;
    let late = fixture.deciding(id, &asked, "dave", Action::Reject).await;
    fixture.write(first).await.unwrap();
    assert_eq!(fixture.write(late).await, Err(CommitError::Stale));
    assert_eq!(notices(&fixture).await.len(), 1);
}

#[apply(both)]
async fn changes_of_one_batch_have_a_notice_each_with_their_own_numbers(fixture: StoreFixture) {
    let mut ids = Vec::new();
    for _ in 0..8 {
        ids.push(fixture.task().await);
    }
    want(&fixture, &["task.failed"]);
    let mut changes = Vec::new();
    for (number, id) in ids.iter().enumerate() {
        let mut next = fixture.next(*id).await;
        next.facts = vec![said("x"); number];
        let last = if number % 2 == 0 {
            TaskStatus::Failed
        } else {
            TaskStatus::Completed
        };
        next.facts.push(status(last));
        changes.push(fixture.write(next));
    }
    for written in futures_util::future::join_all(changes).await {
        written.unwrap();
    }
    let mut found = Vec::new();
    for notice in notices(&fixture).await {
        assert_eq!(notice.event_number, 3);
        let number = ids.iter().position(|id| *id == notice.root).unwrap();
        let last = 3 + i64::try_from(number).unwrap();
        assert_eq!(events(&fixture, &notice).await, [(last, "task.failed")]);
        found.push(number);
    }
    found.sort_unstable();
    assert_eq!(found, [0, 2, 4, 6]);
}

#[apply(both)]
async fn change_of_a_tree_has_one_notice_of_all_its_tasks(fixture: StoreFixture) {
    want(&fixture, &["sub_agent.created"]);
    let root = fixture.task().await;
    let child = holdpoint::task::id::TaskId(fresh());
    let above = TaskChange {
        guard: Guard::Any,
        counters: Counters {
            busy: 1,
            ..Counters::default()
        },
        ..fixture.next(root).await
    };
    fixture
        .commit(root, vec![child_task(child, root), above])
        .await;
    let [notice] = notices(&fixture).await[..] else {
        panic!("one commit is wanted")
    };
    assert_eq!(events(&fixture, &notice).await, [(3, "sub_agent.created")]);
}

#[apply(both)]
async fn change_of_two_hundred_events_is_noted_whole_and_alone(fixture: StoreFixture) {
    let id = fixture.task().await;
    want(&fixture, &["task.failed"]);
    let mut next = fixture.next(id).await;
    next.facts = vec![said("x"); 200];
    next.facts.push(status(TaskStatus::Failed));
    fixture.write(next).await.unwrap();
    let mut later = fixture.next(id).await;
    later.facts = vec![status(TaskStatus::Running)];
    fixture.write(later).await.unwrap();
    let [notice] = notices(&fixture).await[..] else {
        panic!("one commit is wanted")
    };
    assert_eq!(events(&fixture, &notice).await, [(203, "task.failed")]);
}

#[apply(both)]
async fn notice_is_replaced_by_its_deliveries_once(fixture: StoreFixture) {
    want(&fixture, &["request.created"]);
    let (id, _) = fixture.paused(finance(1)).await;
    let [notice] = notices(&fixture).await[..] else {
        panic!("one commit is wanted")
    };
    let first = deliveries(&fixture, &notice, "backend").await;
    let second = deliveries(&fixture, &notice, "backend").await;
    let store = &fixture.store;
    assert_eq!(store.replace_notices(&[notice], first).await.unwrap(), 2);
    assert_eq!(store.replace_notices(&[notice], second).await.unwrap(), 0);
    assert_eq!(notices(&fixture).await, []);
    let number = "select count(*) from delivery where state = 'due' and attempts = 0";
    assert_eq!(fixture.number(number).await, 2);
    let kinds = fixture
        .database()
        .texts("select type from delivery order by event_number")
        .await;
    assert_eq!(kinds, ["request.created", "task.paused"]);
    let requests = "select count(*) from delivery where request_id is not null";
    assert_eq!(fixture.number(requests).await, 1);
    let _ = id;
}

#[apply(both)]
async fn notice_without_deliveries_is_removed(fixture: StoreFixture) {
    want(&fixture, &["task.created"]);
    fixture.task().await;
    let all = notices(&fixture).await;
    assert_eq!(
        fixture
            .store
            .replace_notices(&all, Vec::new())
            .await
            .unwrap(),
        0
    );
    assert_eq!(notices(&fixture).await, []);
}

#[apply(both)]
async fn events_of_a_notice_are_those_of_its_change(fixture: StoreFixture) {
    want(
        &fixture,
        &["request.created", "request.decided", "task.resumed"],
    );
    let id = fixture.task().await;
    let question = request_spec(RequestKind::Approval, finance(1), 1);
    fixture.pause(id, &question).await;
    let mut answer = fixture.next(id).await;
    answer.facts = vec![
        decided(&question, "carol", Action::Approve, true),
        status(TaskStatus::Running),
    ];
    answer.counters = Counters {
        busy: 1,
        open_requests: -1,
        ..Counters::default()
    };
    fixture.write(answer).await.unwrap();
    let all = notices(&fixture).await;
    assert_eq!(all.len(), 2);
    assert_eq!(
        events(&fixture, &all[0]).await,
        [(3, "request.created"), (4, "task.paused")]
    );
    assert_eq!(
        events(&fixture, &all[1]).await,
        [(5, "request.decided"), (6, "task.resumed")]
    );
    let change = change_of(&fixture, &all[1]).await;
    assert_eq!(change.events[0].request, Some(question.request_id));
}

#[apply(both)]
async fn changes_of_several_notices_are_read_in_their_order_and_that_of_a_replaced_notice_is_empty(
    fixture: StoreFixture,
) {
    want(&fixture, &["task.created", "task.failed", "task.paused"]);
    let long = fixture.task().await;
    let mut change = fixture.next(long).await;
    change.facts = vec![said("x"); 130];
    change.facts.push(Fact::TaskStatus {
        status: TaskStatus::Failed,
        error: None,
        output: Some("x".repeat(10_000)),
    });
    fixture.write(change).await.unwrap();
    fixture.paused(finance(1)).await;
    let mut all = notices(&fixture).await;
    all.reverse();
    let names = async || -> Vec<Vec<(i64, &'static str)>> {
        let changes = fixture.store.change_events(&all).await.unwrap();
        let changes = changes.into_iter();
        let names = |event: EventHeader| (event.number, event.name);
        changes
            .map(|change| change.events.into_iter().map(names).collect())
            .collect()
    };
    let paused = vec![(3, "request.created"), (4, "task.paused")];
    let created = vec![(1, "task.created")];
    assert_eq!(
        names().await,
        [
            paused.clone(),
            created.clone(),
            vec![(133, "task.failed")],
            created.clone()
        ]
    );
    fixture
        .store
        .replace_notices(&[all[1]], Vec::new())
        .await
        .unwrap();
    assert_eq!(
        names().await,
        [paused, vec![], vec![(133, "task.failed")], created]
    );
}
