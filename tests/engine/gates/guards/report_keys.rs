//! Tests two reports, or two asks, with the same idempotency key. In most tests, the second is sent
//! while the first is suspended at any of its await points.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use holdpoint::engine::gate::{
    GateCall, GateRefusal, Identity, OutcomeReport, Proposal, ReportedOutcome,
};
use holdpoint::engine::{Engine, IdempotencyKey, Refusal};
use holdpoint::secret::seal::DigestedBody;
use holdpoint::task::change::ASKER_UNTIL_DELIVERED;
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use macro_rules_attribute::apply;

use super::super::failures::{report_of, reported};
use super::super::quarantine::shell;
use super::super::{
    LONG, agent, approved, asking_by, asks, driven_until, harness, proposal, refund, until_asked,
    until_at_rest, until_present,
};
use crate::engine::engine_harness::{EngineHarness, alice_decides, whole};
use crate::store::store_fixture::{StoreFixture, both};

type Reported = Result<(GateCall, bool), GateRefusal>;

struct KeyedReport {
    report: OutcomeReport,
    key: IdempotencyKey,
}

impl KeyedReport {
    fn new(task: TaskId, outcome: ReportedOutcome, key: &str, body: &'static str) -> Self {
        Self {
            report: report_of(task, outcome),
            key: IdempotencyKey {
                path: "POST /v1/gate/outcomes".to_owned(),
                key: key.to_owned(),
                body: DigestedBody::new(Bytes::from_static(body.as_bytes()), None),
            },
        }
    }

    async fn send(&self, engine: &Arc<Engine>) -> Reported {
        let (gates, caller) = (engine.gates(), agent());
        gates.report(&caller, &self.report, Some(&self.key)).await
    }
}

/// Gets a permit for a new call.
async fn permitted(harness: &EngineHarness, engine: &Arc<Engine>, command: &str) -> TaskId {
    let call = |wait| shell(command, wait);
    let task = approved(harness, engine, &call(Duration::ZERO)).await;
    assert!(asks(engine, &call(LONG)).await.permit.is_some());
    task
}

/// Suspends the first request after `polls` polls, sends the second, and then resumes the first.
/// Returns both results, and whether the first request ended before it could be suspended.
async fn send_both<T>(
    first: impl Future<Output = T>,
    second: impl Future<Output = T>,
    polls: usize,
) -> ([T; 2], bool) {
    let mut left = polls;
    let mut sending = Box::pin(first);
    let ended = poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        sending.as_mut().poll(context).map(Some)
    })
    .await;
    let second = Box::pin(second).await;
    match ended {
        Some(first) => ([first, second], true),
        None => ([sending.await, second], false),
    }
}

fn attached(key: &str, call: Proposal) -> Proposal {
    Proposal {
        identity: Identity::Key {
            key: key.to_owned(),
            attach: true,
        },
        ..call
    }
}

fn result_name(reported: &Reported) -> &'static str {
    match reported {
        Ok((_, false)) => "stored",
        Ok((_, true)) => "replayed",
        Err(GateRefusal::Command(Refusal::KeyReused)) => "key reused",
        Err(other) => panic!("{other:?}"),
    }
}

#[apply(both)]
async fn of_two_simultaneous_reports_with_one_key_the_other_is_a_replay_or_has_reused_the_key(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    for (has_other_call, outcome, body, result) in [
        (false, ReportedOutcome::Succeeded, "first", "replayed"),
        (false, ReportedOutcome::Failed, "second", "key reused"),
        (true, ReportedOutcome::Succeeded, "second", "key reused"),
    ] {
        for polls in 1.. {
            let round = format!("{has_other_call} {outcome:?} {polls}");
            let task = permitted(&harness, &engine, &round).await;
            let other = if has_other_call {
                permitted(&harness, &engine, &format!("{round} other")).await
            } else {
                task
            };
            let reports = [
                KeyedReport::new(task, ReportedOutcome::Succeeded, &round, "first"),
                KeyedReport::new(other, outcome, &round, body),
            ];
            let [first, second] = reports.each_ref().map(|report| report.send(&engine));
            let (results, is_over) = Box::pin(send_both(first, second, polls)).await;
            let mut names = results.each_ref().map(result_name);
            names.sort_unstable();
            let mut expected = [result, "stored"];
            expected.sort_unstable();
            assert_eq!(names, expected, "{round}");
            if has_other_call {
                // Settles the call whose report was refused, so that it is not in doubt later.
                for settled in [task, other] {
                    reported(&engine, settled, ReportedOutcome::Succeeded).await;
                }
            }
            if is_over {
                break;
            }
        }
    }
}

#[apply(both)]
async fn of_two_simultaneous_asks_with_one_key_exactly_one_is_a_replay(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    harness.configure(|yaml| yaml.replacen("  coding: {", "  coding: { max_open: 1000,", 1));
    // In one process, the second ask would wait while the suspended first ask counts open calls.
    let engines = [harness.engine(8), harness.engine(8)];
    for (tool, amount, is_known) in [
        ("unknown", "", false),
        ("lookup", "", false),
        ("refund", r#","amount":120"#, false),
        ("refund", r#","amount":120"#, true),
    ] {
        for polls in 1.. {
            let order = if is_known { polls + 1000 } else { polls };
            let arguments = format!(r#"{{"order":{order}{amount}}}"#);
            let call = proposal(tool, &arguments, Duration::ZERO);
            if is_known {
                // Both asks continue this call, whose asker is gone.
                asks(&engines[0], &call).await;
            }
            let keyed = &Proposal {
                returns_within: LONG,
                ..attached(&format!("{tool}:{order}"), call)
            };
            let [first, second] = engines.each_ref().map(|engine| async move {
                let caller = agent();
                let answer = engine.gates().ask(&caller, keyed, None).await.unwrap();
                (answer.call.task_id, answer.replayed)
            });
            let (answers, is_over) = send_both(first, second, polls).await;
            let [(task, is_replay), (other, is_other_replay)] = answers;
            assert_eq!(task, other, "{tool} {order}");
            assert_ne!(is_replay, is_other_replay, "{tool} {order}");
            if is_over {
                break;
            }
        }
    }
}

#[apply(both)]
async fn first_ask_with_a_key_is_no_replay_although_a_worker_runs_its_call(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    // The engine of the ask has no slot, so another engine runs the call.
    let (without_slots, engine) = (harness.engine(0), harness.engine(8));
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    until_at_rest(&harness, task).await;
    let asking = asking_by(&without_slots, attached("k", refund(1, LONG)));
    until_present(&harness, task, |until| until > Time(0)).await;
    driven_until(&harness, &engine, task, TaskStatus::Completed).await;
    let answer = asking.await.unwrap().unwrap();
    assert_eq!((answer.call.task_id, answer.replayed), (task, false));
}

#[apply(both)]
async fn first_ask_with_a_key_is_no_replay_although_a_later_one_has_the_result(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let (here, there) = (harness.engine(8), harness.engine(8));
    let (caller, call) = (agent(), attached("k", refund(1, LONG)));
    let mut asking = Box::pin(here.gates().ask(&caller, &call, None));
    let task = tokio::select! {
        _ = &mut asking => panic!("the call waits for a person"),
        task = until_asked(&harness, RequestKind::Approval) => task,
    };
    // From now on, the first ask is suspended.
    let (request, _) = harness.only_open(task).await;
    alice_decides(&there, request, whole(Action::Reject, None)).await;
    let later = there.gates().ask(&caller, &call, None).await.unwrap();
    later.delivery.unwrap().delivered();
    until_present(&harness, task, |until| until == ASKER_UNTIL_DELIVERED).await;
    let first = asking.await.unwrap();
    let replays = (first.replayed, later.replayed);
    assert_eq!((first.call.task_id, replays), (task, (false, true)));
}
