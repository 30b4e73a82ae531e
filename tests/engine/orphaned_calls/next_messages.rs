//! Tests orphaned calls whose turn is over, because the user has sent the next message.

use holdpoint::task::decision::Action;
use holdpoint::task::item::Outcome;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::verdict::Verdict;
use macro_rules_attribute::apply;

use super::past_calls::{asks, history, large, lookup, refund};
use super::{OrphanHarness, TURNS, id};
use crate::store::store_fixture::{StoreFixture, both, decided, said, status};

#[apply(both)]
async fn call_not_started_before_the_users_next_message_is_withdrawn(fixture: StoreFixture) {
    let orphans = OrphanHarness::new(fixture).await;
    let (task, new, allowed, read) = (id(), refund(), refund(), lookup());
    let facts = vec![
        asks(TURNS + 1, &[&new, &allowed, &read]),
        allowed.judged(Verdict::Allow),
        read.judged(Verdict::Allow),
        said("never mind"),
    ];
    orphans.imported(task, &[history(), facts]).await;
    assert_eq!(orphans.driven(task).await, TaskStatus::Completed);
    assert_eq!(
        orphans
            .outcomes_at_end(task, &[&new, &allowed, &read])
            .await,
        [Some(Outcome::Withdrawn); 3]
    );
    assert_eq!(orphans.ran(task), (0, 0));
}

#[apply(both)]
async fn call_approved_or_asked_before_the_users_next_message_does_not_run(fixture: StoreFixture) {
    let orphans = OrphanHarness::new(fixture).await;
    for approved in [true, false] {
        let (task, one) = (id(), large());
        let (mut groups, question) = orphans.held(task, &one);
        if approved {
            groups.push(vec![
                decided(&question, "alice", Action::Approve, true),
                status(TaskStatus::Running),
                said("never mind"),
            ]);
        } else {
            groups.push(vec![status(TaskStatus::Running), said("never mind")]);
        }
        orphans.imported(task, &groups).await;
        if orphans.driven(task).await == TaskStatus::Paused {
            // The request is still open, but the call's turn is over, so no decision can start
            // the call.
            orphans
                .harness
                .answer_all(&orphans.harness.engine(0), task)
                .await;
            orphans.driven(task).await;
        }
        assert_eq!(
            (
                orphans.outcomes_at_end(task, &[&one]).await,
                orphans.ran(task)
            ),
            (vec![Some(Outcome::Withdrawn)], (0, 0)),
            "{approved}"
        );
    }
}

#[apply(both)]
async fn call_started_before_the_users_next_message_is_asked_about_first(fixture: StoreFixture) {
    let orphans = OrphanHarness::new(fixture).await;
    let (task, one) = (id(), refund());
    let facts = vec![
        asks(TURNS + 1, &[&one]),
        one.judged(Verdict::Allow),
        one.started(1),
        said("and?"),
    ];
    orphans.imported(task, &[history(), facts]).await;
    assert_eq!(orphans.driven(task).await, TaskStatus::Paused);
    let [(_, RequestKind::Reconcile)] = orphans.harness.open(task).await[..] else {
        panic!("it is asked about")
    };
    assert!(
        orphans.recorder.0.lock().unwrap().is_empty(),
        "before the model is asked"
    );
    orphans
        .harness
        .answer_all(&orphans.harness.engine(0), task)
        .await;
    assert_eq!(orphans.driven(task).await, TaskStatus::Completed);
    assert_eq!(
        orphans.outcomes_at_end(task, &[&one]).await,
        [Some(Outcome::Responded)]
    );
    assert_eq!(orphans.ran(task), (0, 0));
}
