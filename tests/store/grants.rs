//! Tests standing decisions. A standing decision is written in the commit of the decision that
//! gives it. If a call starts under a standing decision, the commit of the start records the use.
//! This commit is refused if the standing decision has ended.

use std::time::Duration;

use futures_util::future::join_all;
use holdpoint::store::{CommitError, CoverableCall, GrantFilter, GrantRow};
use holdpoint::task::change::TaskChange;
use holdpoint::task::decision::Action;
use holdpoint::task::grant::{Grant, GrantEnd, GrantScope, GrantUse};
use holdpoint::task::id::{CallId, GrantId, TaskId};
use holdpoint::task::item::Fact;
use macro_rules_attribute::apply;

use super::store_fixture::{StoreFixture, both, finance, fresh};

const HOUR: Duration = Duration::from_hours(1);

/// Stores a standing decision by Bob for the owner of a task. Returns its id.
async fn given(fixture: &StoreFixture, uses: u32) -> GrantId {
    given_for(fixture, GrantScope::Owner, uses).await
}

/// Stores a standing decision that Bob gives with the answer to a task's request. Returns the id of
/// the standing decision.
async fn given_for(fixture: &StoreFixture, scope: GrantScope, uses: u32) -> GrantId {
    let (task, asked) = fixture.paused(finance(1)).await;
    let grant_id = GrantId(fresh());
    let mut answer = fixture.deciding(task, &asked, "bob", Action::Approve).await;
    let Fact::Decision { decision, .. } = &mut answer.facts[0] else {
        panic!("a decision comes first")
    };
    for call in decision.decisions.values_mut() {
        call.remember = Some(Box::new(Grant {
            grant_id,
            scope,
            expires_in: HOUR,
            uses,
            tool: "refund_payment".to_owned(),
            rule: "large".to_owned(),
            basis: "sha256:b".to_owned(),
        }));
    }
    fixture.write(answer).await.unwrap();
    grant_id
}

/// Returns a call of Alice's in a tree of its own.
fn call() -> CoverableCall<'static> {
    CoverableCall {
        tenant: "acme",
        owner: "alice".into(),
        root_agent: "billing",
        root_task_id: TaskId(fresh()),
        basis: "sha256:b",
        used_grant: None,
    }
}

async fn covering(fixture: &StoreFixture, call: &CoverableCall<'_>) -> Vec<GrantId> {
    let found = fixture.store.grants_covering(call).await.unwrap();
    found.iter().map(|row| row.grant_id).collect()
}

async fn row(fixture: &StoreFixture, id: GrantId) -> GrantRow {
    fixture.store.grant(id).await.unwrap().unwrap()
}

async fn start(fixture: &StoreFixture, task: TaskId, grant_id: GrantId, again: bool) -> TaskChange {
    let mut change = fixture.next(task).await;
    change.facts = vec![Fact::ToolStarted {
        tool_call_id: CallId(fresh()),
        name: "refund_payment".to_owned(),
        digest: "sha256:1".to_owned(),
        attempt: 1,
        timeout_ms: 1,
        replica: "r".to_owned(),
        grant: Some(GrantUse { grant_id, again }),
    }];
    change
}

#[apply(both)]
async fn decision_writes_its_standing_decision_in_its_own_commit(fixture: StoreFixture) {
    let id = given(&fixture, 3).await;
    let row = row(&fixture, id).await;
    assert_eq!(
        (row.owner.as_str(), row.agent.as_str(), row.by.by.as_str()),
        ("alice", "billing", "bob")
    );
    assert_eq!(
        (row.expires_at.since(row.created_at), row.uses, row.used),
        (HOUR, 3, 0)
    );
    assert_eq!(row.ended(), None);
    assert_eq!(covering(&fixture, &call()).await, [id]);
    for other in [
        CoverableCall {
            tenant: "other",
            ..call()
        },
        CoverableCall {
            owner: "bob".into(),
            ..call()
        },
        CoverableCall {
            basis: "sha256:c",
            ..call()
        },
        CoverableCall {
            root_agent: "clerk",
            ..call()
        },
    ] {
        assert_eq!(covering(&fixture, &other).await, []);
    }
    fixture.forward(HOUR);
    assert_eq!(covering(&fixture, &call()).await, []);
}

#[apply(both)]
async fn newer_standing_decisions_that_cannot_cover_a_call_do_not_hide_an_older(
    fixture: StoreFixture,
) {
    let (live, task_scoped) = (
        given(&fixture, 3).await,
        given_for(&fixture, GrantScope::Task, 3).await,
    );
    let root_task_id = row(&fixture, task_scoped).await.root_task_id;
    for _ in 0..33 {
        given_for(&fixture, GrantScope::Task, 3).await;
        given(&fixture, 1).await;
    }
    fixture
        .execute("update standing_grant set used = uses where uses = 1")
        .await;
    assert_eq!(covering(&fixture, &call()).await, [live]);
    assert_eq!(
        covering(
            &fixture,
            &CoverableCall {
                root_task_id,
                ..call()
            }
        )
        .await,
        [task_scoped, live]
    );
    fixture
        .execute("update standing_grant set used = uses")
        .await;
    assert_eq!(covering(&fixture, &call()).await, []);
    assert_eq!(
        covering(
            &fixture,
            &CoverableCall {
                used_grant: Some(live),
                ..call()
            }
        )
        .await,
        [live]
    );
}

#[apply(both)]
async fn start_counts_one_use_and_a_later_attempt_none(fixture: StoreFixture) {
    let id = given(&fixture, 2).await;
    let task = fixture.task().await;
    for (again, used) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
        fixture
            .write(start(&fixture, task, id, again).await)
            .await
            .unwrap();
        assert_eq!(row(&fixture, id).await.used, used);
    }
    let third = fixture.write(start(&fixture, task, id, false).await).await;
    assert_eq!(third, Err(CommitError::Stale));
    assert_eq!(row(&fixture, id).await.ended(), Some(GrantEnd::UsedUp));
}

#[apply(both)]
async fn start_is_refused_once_its_standing_decision_counts_no_more(fixture: StoreFixture) {
    let (revoked, expired) = (given(&fixture, 9).await, given(&fixture, 9).await);
    let task = fixture.task().await;
    assert!(
        fixture
            .store
            .revoke_grant("acme", revoked, "bob")
            .await
            .unwrap()
    );
    assert!(
        !fixture
            .store
            .revoke_grant("acme", revoked, "carol")
            .await
            .unwrap(),
        "once"
    );
    assert!(
        !fixture
            .store
            .revoke_grant("other", expired, "mallory")
            .await
            .unwrap()
    );
    let unknown = GrantId(fresh());
    for (id, again) in [
        (revoked, false),
        (revoked, true),
        (unknown, false),
        (unknown, true),
    ] {
        assert_eq!(
            fixture.write(start(&fixture, task, id, again).await).await,
            Err(CommitError::Stale)
        );
    }
    fixture
        .write(start(&fixture, task, expired, false).await)
        .await
        .unwrap();
    fixture.forward(HOUR);
    for again in [false, true] {
        assert_eq!(
            fixture
                .write(start(&fixture, task, expired, again).await)
                .await,
            Err(CommitError::Stale)
        );
    }
    assert_eq!(row(&fixture, revoked).await.used, 0);
    assert_eq!(row(&fixture, expired).await.used, 1);
    assert_eq!(
        row(&fixture, revoked).await.revoked_by.as_deref(),
        Some("bob")
    );
}

#[apply(both)]
async fn starts_of_one_batch_use_no_more_than_is_left(fixture: StoreFixture) {
    let id = given(&fixture, 3).await;
    let mut starts = Vec::new();
    for _ in 0..16 {
        let task = fixture.task().await;
        starts.push(start(&fixture, task, id, false).await);
    }
    let written = join_all(starts.into_iter().map(|change| fixture.write(change))).await;
    let taken = written.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!((taken, row(&fixture, id).await.used), (3, 3));
    assert!(
        written
            .iter()
            .all(|answer| matches!(answer, Ok(_) | Err(CommitError::Stale)))
    );
}

#[apply(both)]
async fn standing_decision_is_removed_a_month_after_its_time(fixture: StoreFixture) {
    let id = given(&fixture, 3).await;
    fixture.forward(Duration::from_hours(24 * 30));
    assert!(!fixture.store.remove_spent_grants().await.unwrap());
    assert!(fixture.store.grant(id).await.unwrap().is_some());
    fixture.forward(2 * HOUR);
    fixture.store.remove_spent_grants().await.unwrap();
    assert_eq!(fixture.store.grant(id).await.unwrap(), None);
    let all = GrantFilter {
        tenant: "acme".to_owned(),
        limit: 9,
        ..GrantFilter::default()
    };
    assert_eq!(fixture.store.grants(&all).await.unwrap().rows, []);
}
