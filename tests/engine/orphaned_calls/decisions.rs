//! Tests imported journals with an open request, or with a decision that has not taken effect.

use holdpoint::people::Caller;
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::item::{CloseReason, Fact, Outcome};
use holdpoint::task::request::{RequestKind, RequestSpec};
use holdpoint::task::status::{RequestStatus, TaskStatus};
use holdpoint::task::verdict::Verdict;
use macro_rules_attribute::apply;

use super::super::engine_harness::alice;
use super::past_calls::{asks, history, large, lookup, refund};
use super::{OrphanHarness, TURNS, id};
use crate::store::store_fixture::{StoreFixture, both, decided, status};

/// Returns the fact that `caller` has approved this request. If `caller.via` names a user, a key of
/// that user spoke for `caller`.
fn approved_by(question: &RequestSpec, caller: &Caller) -> Fact {
    let mut yes = decided(question, caller.user_id.as_str(), Action::Approve, true);
    if let Fact::Decision { decision, .. } = &mut yes {
        (decision.via, decision.groups) = (caller.via.clone(), caller.groups.clone());
    }
    yes
}

#[apply(both)]
async fn open_request_is_still_decided_and_a_decided_one_takes_effect(fixture: StoreFixture) {
    let orphans = OrphanHarness::new(fixture).await;
    for approved in [false, true] {
        let (task, one) = (id(), large());
        let (mut groups, question) = orphans.held(task, &one);
        if approved {
            groups.push(vec![
                approved_by(&question, &alice()),
                status(TaskStatus::Running),
            ]);
        }
        orphans.imported(task, &groups).await;
        if !approved {
            assert_eq!(orphans.driven(task).await, TaskStatus::Paused);
            assert_eq!(orphans.ran(task), (0, 0));
            orphans
                .harness
                .answer_all(&orphans.harness.engine(0), task)
                .await;
        }
        assert_eq!(
            orphans.driven(task).await,
            TaskStatus::Completed,
            "{approved}"
        );
        assert_eq!(
            orphans.outcomes_at_end(task, &[&one]).await,
            [Some(Outcome::Succeeded)]
        );
        assert_eq!(orphans.ran(task), (1, 0));
    }
}

#[apply(both)]
async fn rejection_without_a_following_item_still_takes_effect(fixture: StoreFixture) {
    let orphans = OrphanHarness::new(fixture).await;
    for then in [Consequence::Continue, Consequence::Cancel] {
        let (task, one, beside) = (id(), large(), refund());
        let question = orphans.request_about(task, RequestKind::Approval, &one);
        let mut no = decided(&question, "alice", Action::Reject, true);
        if let Fact::Decision { decision, .. } = &mut no {
            decision.then = Some(then);
        }
        let asked = vec![
            asks(TURNS + 1, &[&one, &beside]),
            one.judged(Verdict::Hold),
            beside.judged(Verdict::Allow),
            Fact::InterventionRequested(question),
            status(TaskStatus::Paused),
        ];
        orphans
            .imported(
                task,
                &[history(), asked, vec![no, status(TaskStatus::Running)]],
            )
            .await;
        let (end, second) = match then {
            Consequence::Continue => (TaskStatus::Completed, Outcome::Succeeded),
            Consequence::Cancel | Consequence::CancelRoot => {
                (TaskStatus::Canceled, Outcome::Canceled)
            }
        };
        assert_eq!(orphans.driven(task).await, end);
        assert_eq!(
            orphans.outcomes_at_end(task, &[&one, &beside]).await,
            [Some(Outcome::Rejected), Some(second)]
        );
        assert_eq!(
            orphans.ran(task).0,
            usize::from(then == Consequence::Continue)
        );
    }
}

#[apply(both)]
async fn lost_call_whose_approval_request_was_withdrawn_is_held_although_a_rule_allows_it_by_now(
    fixture: StoreFixture,
) {
    let orphans = OrphanHarness::new(fixture).await;
    let (task, one) = (id(), lookup());
    let question = orphans.request_about(task, RequestKind::Approval, &one);
    let closed = Fact::RequestClosed {
        request_id: question.request_id,
        status: RequestStatus::Withdrawn,
        reason: CloseReason::Canceled,
    };
    let asked = vec![
        asks(TURNS + 1, &[&one]),
        one.judged(Verdict::Allow),
        one.started(1),
        one.judged(Verdict::Hold),
        Fact::InterventionRequested(question),
        status(TaskStatus::Paused),
    ];
    let retried = vec![closed, status(TaskStatus::Running)];
    orphans.imported(task, &[history(), asked, retried]).await;
    assert_eq!(orphans.driven(task).await, TaskStatus::Paused);
    assert_eq!(orphans.ran(task), (0, 0));
    let api = orphans.harness.engine(0);
    orphans.harness.answer_all(&api, task).await;
    assert_eq!(orphans.driven(task).await, TaskStatus::Completed);
    assert_eq!(
        orphans.outcomes_at_end(task, &[&one]).await,
        [Some(Outcome::Succeeded)]
    );
    assert_eq!(orphans.ran(task), (0, 1));
}
