//! Tests decisions that race with decisions, cancels, messages and other commits. Each race has one
//! winner and one outcome, and every loser is told the reason. The tests read the outcomes from the
//! journal and from the tool's ledger.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream;
use holdpoint::engine::{ConflictCode, DecisionBody, DecisionInput, Engine, Refusal};
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{CloseReason, Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use macro_rules_attribute::apply;
use serde_json::Value;

use super::engine_harness::{
    EngineHarness, alice, claimed, drive, join, outcomes, person, rejects, superseding, too_late,
    whole,
};
use super::two_replicas::{Pair, closed, finance, place};
use super::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::repetitions;

const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];
/// Two calls that are held by different rules, and so under different terms.
const BOTH: &[(&str, &str)] = &[
    ("refund", r#"{"order":1,"amount":120}"#),
    ("forbidden", "{}"),
];

const AT_ONCE: usize = 128;

/// Creates two replicas of a service in which members of `finance` decide refunds.
async fn of_finance(fixture: StoreFixture) -> Pair {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    harness.replace("{ owner: true }", "{ groups: [finance] }");
    Pair::of(harness).await
}

fn answer(action: Action) -> DecisionInput {
    let then = (action == Action::Reject).then_some(Consequence::Continue);
    DecisionInput {
        digest: None,
        body: DecisionBody::Whole {
            action,
            reason: None,
            then,
            response: None,
            result: None,
            remember: None,
        },
    }
}

/// Creates one request, which `deciders` people decide at once on both replicas. Half of them
/// approve: in even rounds the first person, in odd rounds the second. Returns the task and the
/// winner's action.
async fn decided_at_once(pair: &Pair, round: usize, deciders: usize) -> (TaskId, Action) {
    let (task, requests) = pair.held().await;
    let request = requests[0];
    let racers = (0..deciders).map(|racer| async move {
        let (here, there) = pair.turned(round);
        let engine = if racer % 2 == 0 { here } else { there };
        let action = if (racer / 2 + racer + round).is_multiple_of(2) {
            Action::Approve
        } else {
            Action::Reject
        };
        let name = format!("p{racer}");
        let said = engine
            .decide(&finance(&name), request, answer(action), None)
            .await;
        (name, action, said)
    });
    let mut racers: Vec<_> = racers.collect();
    if round % 4 > 1 {
        racers.reverse();
    }
    let (won, lost): (Vec<_>, Vec<_>) = join_all(racers)
        .await
        .into_iter()
        .partition(|(_, _, said)| said.is_ok());
    let [(name, action, _)] = &won[..] else {
        panic!("{} have won", won.len())
    };
    for (_, _, said) in lost {
        assert!(too_late(&said, request));
    }
    pair.decided_by(request, name, *action).await;
    let journal = pair.checked_journal(task).await;
    let outcome = if *action == Action::Approve {
        Outcome::Succeeded
    } else {
        Outcome::Rejected
    };
    assert_eq!(journal.row.status, TaskStatus::Completed);
    assert_eq!(outcomes(&journal), [outcome]);
    let row = pair.other.request(request).await.unwrap().unwrap();
    assert_eq!(row.status, RequestStatus::Resumed);
    (task, *action)
}

async fn many_decided_at_once(pair: &Pair, requests: usize, deciders: usize) {
    let races = (0..requests).map(|round| decided_at_once(pair, round, deciders));
    let decided: Vec<_> = stream::iter(races)
        .buffer_unordered((AT_ONCE / deciders).min(8))
        .collect()
        .await;
    let ran = pair.executions();
    for (task, action) in &decided {
        let times = ran.get(&task.to_string()).copied().unwrap_or(0);
        assert_eq!(
            times,
            usize::from(*action == Action::Approve),
            "{task}: {action:?} won"
        );
    }
    let yes = decided
        .iter()
        .filter(|(_, action)| *action == Action::Approve)
        .count();
    assert!(
        0 < yes && yes < requests,
        "both ways of winning were seen: {yes} of {requests}"
    );
}

async fn ended(pair: &Pair, task: TaskId) -> (TaskStatus, Vec<Outcome>, usize) {
    let journal = pair.checked_journal(task).await;
    (
        journal.row.status,
        outcomes(&journal),
        pair.harness.executions(task, "/refund"),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_with_sixty_four_deciders_on_two_replicas_have_one_winner_each() {
    let requests = repetitions(16, 1000);
    many_decided_at_once(
        &of_finance(StoreFixture::postgres().await).await,
        requests,
        64,
    )
    .await;
}

/// Here, both stores write every change with the SQL statement of `commit_postgres.rs`. Otherwise,
/// they write most changes with the shorter statement of `commit_single.rs`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_with_sixty_four_deciders_have_one_winner_each_through_the_general_statement() {
    let pair = of_finance(StoreFixture::postgres().await).await;
    for store in [&pair.harness.fixture.store, &pair.other] {
        store.use_general_statement();
    }
    many_decided_at_once(&pair, repetitions(16, 1000), 64).await;
}

#[apply(both)]
async fn approval_racing_a_rejection_has_one_winner_whose_outcome_happens(fixture: StoreFixture) {
    many_decided_at_once(&of_finance(fixture).await, repetitions(80, 500), 2).await;
}

#[apply(both)]
async fn approval_racing_a_cancel_has_one_outcome_and_both_are_told(fixture: StoreFixture) {
    let pair = of_finance(fixture).await;
    let mut seen = [0; 3];
    for round in 0..repetitions(100, 150) {
        let (task, requests) = pair.held().await;
        let (here, there) = pair.turned(round);
        let (bob, owner) = (finance("bob"), alice());
        let approve = here.decide(&bob, requests[0], answer(Action::Approve), None);
        let cancel = there.cancel(&owner, task, None);
        let (approved, canceled) = if round % 4 > 1 {
            let (canceled, approved) = tokio::join!(cancel, approve);
            (approved, canceled)
        } else {
            tokio::join!(approve, cancel)
        };
        let (status, results, ran) = ended(&pair, task).await;
        match (approved, canceled) {
            (Ok(_), Ok(_)) => {
                assert_eq!(status, TaskStatus::Canceled);
                // If a result was stored before the cancel, that result is kept. Otherwise the
                // outcome is unknown for a started call, and canceled for a call that had not
                // started.
                let [result] = results[..] else {
                    panic!("{results:?}")
                };
                let may = match result {
                    Outcome::Succeeded => ran == 1,
                    Outcome::Canceled => ran == 0,
                    Outcome::Unknown => ran <= 1,
                    Outcome::Failed
                    | Outcome::Invalid
                    | Outcome::Denied
                    | Outcome::Rejected
                    | Outcome::Responded
                    | Outcome::Expired
                    | Outcome::Withdrawn
                    | Outcome::Released => false,
                };
                assert!(may, "{result:?}, and it ran {ran} times");
                seen[0] += 1;
            }
            (Ok(_), Err(refusal)) => {
                let code = ConflictCode::TaskFinal;
                assert_eq!(
                    refusal,
                    Refusal::Conflict {
                        code,
                        task_id: task,
                        status: TaskStatus::Completed
                    }
                );
                assert_eq!(
                    (status, results, ran),
                    (TaskStatus::Completed, vec![Outcome::Succeeded], 1)
                );
                seen[1] += 1;
            }
            (Err(refusal), Ok(_)) => {
                assert_eq!(refusal, Refusal::Withdrawn(requests[0]));
                assert_eq!(
                    (status, results, ran),
                    (TaskStatus::Canceled, vec![Outcome::Canceled], 0)
                );
                seen[2] += 1;
            }
            (Err(one), Err(other)) => panic!("nobody won: {one} {other}"),
        }
    }
    assert!(
        seen[0] + seen[1] > 0 && seen[2] > 0,
        "both ways of winning were seen: {seen:?}"
    );
}

#[apply(both)]
async fn rejection_racing_a_cancel_never_runs_and_stays_a_rejection(fixture: StoreFixture) {
    let pair = of_finance(fixture).await;
    for round in 0..repetitions(100, 150) {
        let (task, requests) = pair.held().await;
        let (here, there) = pair.turned(round);
        let (bob, owner) = (finance("bob"), alice());
        let then = if round % 3 == 0 {
            Consequence::Continue
        } else {
            Consequence::Cancel
        };
        let reject = here.decide(&bob, requests[0], rejects(then), None);
        let cancel = there.cancel(&owner, task, None);
        let (rejected, canceled) = tokio::join!(reject, cancel);
        let (status, results, ran) = ended(&pair, task).await;
        assert_eq!(ran, 0);
        match rejected {
            Ok(_) => assert_eq!(results, [Outcome::Rejected]),
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Withdrawn(requests[0]));
                assert_eq!((results, canceled.is_ok()), (vec![Outcome::Canceled], true));
            }
        }
        let went_on = status == TaskStatus::Completed;
        assert!(went_on || status == TaskStatus::Canceled, "{status:?}");
        assert_eq!(
            (canceled.is_err(), went_on && then == Consequence::Continue),
            (went_on, went_on),
            "the canceling caller was told"
        );
    }
}

#[apply(both)]
async fn approval_racing_a_superseding_message_has_one_outcome(fixture: StoreFixture) {
    let pair = of_finance(fixture).await;
    let mut seen = [0; 2];
    for round in 0..repetitions(100, 150) {
        let (task, requests) = pair.held().await;
        let (here, there) = pair.turned(round);
        let (bob, owner) = (finance("bob"), alice());
        let approve = here.decide(&bob, requests[0], answer(Action::Approve), None);
        let message = superseding("go");
        let message = there.message(&owner, task, message, None);
        let (approved, said) = if round % 4 > 1 {
            let (said, approved) = tokio::join!(message, approve);
            (approved, said)
        } else {
            tokio::join!(approve, message)
        };
        let (status, results, ran) = ended(&pair, task).await;
        assert_eq!(status, TaskStatus::Completed);
        let journal = pair.harness.journal(task).await;
        match approved {
            Ok(_) => {
                assert_eq!((results, ran), (vec![Outcome::Succeeded], 1));
                assert_eq!(closed(&journal, requests[0]), None);
                if let Err(refusal) = said {
                    let code = ConflictCode::TaskRunning;
                    assert_eq!(
                        refusal,
                        Refusal::Conflict {
                            code,
                            task_id: task,
                            status: TaskStatus::Running
                        }
                    );
                } else {
                    // The message came after the task had ended, so the service accepted it
                    // like any message to an ended task.
                    let result =
                        place(&journal, |fact| matches!(fact, Fact::ToolResult(_))).unwrap();
                    let last = journal
                        .items
                        .iter()
                        .rposition(|item| matches!(item.fact, Fact::UserMessage { .. }));
                    assert!(result < last.unwrap());
                }
                seen[0] += 1;
            }
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Withdrawn(requests[0]));
                assert!(said.is_ok());
                assert_eq!((results, ran), (vec![Outcome::Withdrawn], 0));
                assert_eq!(closed(&journal, requests[0]), Some(CloseReason::Superseded));
                seen[1] += 1;
            }
        }
    }
    assert!(
        seen[0] > 0 && seen[1] > 0,
        "both ways of winning were seen: {seen:?}"
    );
}

#[apply(both)]
async fn decision_of_one_request_never_loses_to_that_of_another_request(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, BOTH).await;
    let rule = "decide: hold, approvers: { users: [bob] }, expires_in: 24h";
    harness.replace("decide: deny, reason: Not this one.", rule);
    let pair = Pair::of(harness).await;
    for round in 0..repetitions(50, 150) {
        let (task, requests) = pair.held().await;
        let [first, second] = requests[..] else {
            panic!("two are open")
        };
        let (here, there) = pair.turned(round);
        let (owner, bob) = (alice(), person("bob"));
        // Alice's approval is sent twice and accepted once. Bob's rejection is always accepted.
        let (one, other, again) = tokio::join!(
            here.decide(&owner, first, answer(Action::Approve), None),
            there.decide(&bob, second, answer(Action::Reject), None),
            there.decide(&owner, first, answer(Action::Approve), None),
        );
        assert!(other.is_ok(), "{other:?}");
        assert_eq!(usize::from(one.is_ok()) + usize::from(again.is_ok()), 1);
        assert!(too_late(&one, first) || too_late(&again, first));
        let (status, results, ran) = ended(&pair, task).await;
        let mut results: Vec<_> = results.into_iter().map(Outcome::as_str).collect();
        results.sort_unstable();
        assert_eq!(
            (status, results, ran),
            (TaskStatus::Completed, vec!["rejected", "succeeded"], 1)
        );
        assert_eq!(pair.harness.executions(task, "/forbidden"), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconcile_decision_racing_the_calls_late_result_has_one_outcome() {
    const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];
    let rounds = repetitions(36, 60);
    let harness = EngineHarness::new(StoreFixture::postgres().await, SMALL).await;
    let pair = Pair::of(harness).await;
    let mut seen = [0; 2];
    for round in 1..=rounds {
        pair.harness.tool.close();
        let task = pair.harness.queued().await;
        let slow = claimed(&pair.here).await;
        pair.harness.tool.reached(round).await;
        pair.forward(std::time::Duration::from_mins(2));
        drive(&pair.there).await;
        let [(request, RequestKind::Reconcile)] = pair.harness.open(task).await[..] else {
            panic!("it is asked about")
        };
        let owner = alice();
        let word = whole(Action::Respond, Some(Value::from("it was paid")));
        let (told, ()) = tokio::join!(
            decided_later(&pair.there, &owner, request, word, round),
            async {
                pair.harness.tool.open();
                join(slow).await;
            }
        );
        // After the request is closed, the task may be queued. So the test also runs rounds of a
        // worker.
        let has_stopped = async || {
            pair.here.round().await.unwrap();
            pair.harness.status(task).await != TaskStatus::Running
        };
        crate::support::until("the task does not run", has_stopped).await;
        let journal = pair.checked_journal(task).await;
        let late = place(&journal, |fact| matches!(fact, Fact::LateResult(_))).is_some();
        assert_eq!(journal.row.status, TaskStatus::Completed);
        assert_eq!(pair.harness.executions(task, "/refund"), 1);
        match told {
            Ok(()) => {
                assert_eq!(
                    (outcomes(&journal), late),
                    (vec![Outcome::Responded], true),
                    "{:#?}",
                    journal.items
                );
                seen[0] += 1;
            }
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Withdrawn(request));
                assert_eq!(closed(&journal, request), Some(CloseReason::AnsweredLate));
                assert_eq!(
                    (outcomes(&journal), late),
                    (vec![Outcome::Succeeded], false)
                );
                seen[1] += 1;
            }
        }
    }
    assert!(
        seen[0] > 0 && seen[1] > 0,
        "both ways of winning were seen: {seen:?}"
    );
}

/// Reads the database `round % 12` times, as a delay, and then decides.
async fn decided_later(
    engine: &Arc<Engine>,
    caller: &holdpoint::people::Caller,
    request: holdpoint::task::id::RequestId,
    answer: DecisionInput,
    round: usize,
) -> Result<(), Refusal> {
    for _ in 0..round % 12 {
        let none = holdpoint::task::id::RequestId(crate::store::store_fixture::fresh());
        assert_eq!(
            engine
                .decide(caller, none, answer.clone(), None)
                .await
                .err(),
            Some(Refusal::NotFound)
        );
    }
    engine
        .decide(caller, request, answer, None)
        .await
        .map(|_| ())
}
