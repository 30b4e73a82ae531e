//! Tests that a rejection takes precedence over a standing decision that was given before it. A
//! call that equals the rejected call is denied. The standing decision still covers other calls.

use holdpoint::engine::CallReply;
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::grant::{GrantRequest, GrantScope};
use holdpoint::task::id::TaskId;
use holdpoint::task::verdict::Verdict;
use macro_rules_attribute::apply;

use super::call_decisions::{approve, each, plain, question};
use super::engine_harness::{EngineHarness, alice_writes, decides, person, rejects, superseding};
use super::grants::{LARGE, OTHER, answered, grant, harness, hours, judgements, ran, remembered};
use crate::store::store_fixture::{StoreFixture, both};

async fn verdicts(harness: &EngineHarness, task: TaskId) -> Vec<Verdict> {
    let judged = judgements(harness, task).await.into_iter();
    judged.map(|judgement| judgement.verdict).collect()
}

#[apply(both)]
async fn later_rejection_in_another_task_beats_a_standing_decision_until_the_next_message(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture, &[&[LARGE], &[LARGE], &[OTHER], &[], &[LARGE]]).await;
    harness.replace("uses: 3", "uses: 9");
    // Both tasks open their requests before the standing decision exists, which would let the
    // second task's call run without a request.
    let (first, second) = (harness.stopped().await, harness.stopped().await);
    answered(&harness, first, remembered(GrantScope::Owner, hours(1))).await;
    ran(&harness, first, "/refund", 3).await;
    answered(&harness, second, rejects(Consequence::Continue)).await;
    ran(&harness, second, "/refund", 1).await;
    let expected = [Verdict::Hold, Verdict::Deny, Verdict::Allow];
    assert_eq!(verdicts(&harness, second).await, expected);
    alice_writes(&harness.engine(0), second, superseding("and now")).await;
    harness.run().await;
    ran(&harness, second, "/refund", 2).await;
    assert_eq!(
        verdicts(&harness, second).await.last(),
        Some(&Verdict::Allow)
    );
    assert_eq!(grant(&harness).await.used, 4);
}

#[apply(both)]
async fn later_rejection_in_the_same_request_beats_a_standing_decision(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE, OTHER], &[OTHER], &[LARGE]]).await;
    let task = harness.stopped().await;
    let (request, calls) = question(&harness, task).await;
    let wish = GrantRequest {
        scope: GrantScope::Task,
        expires_in: hours(1),
    };
    let yes = CallReply {
        remember: Some(wish),
        ..approve()
    };
    let api = harness.engine(0);
    for (call, reply) in [(calls[0], yes), (calls[1], plain(Action::Reject))] {
        decides(&api, &person("bob"), request, each([(call, reply)])).await;
    }
    harness.run().await;
    ran(&harness, task, "/refund", 2).await;
    let expected = [Verdict::Hold, Verdict::Hold, Verdict::Deny, Verdict::Allow];
    assert_eq!(verdicts(&harness, task).await, expected);
}
