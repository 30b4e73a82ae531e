//! Tests two reports with the same idempotency key. The second is sent while the first is suspended
//! at any of its await points.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use holdpoint::engine::gate::{GateCall, GateRefusal, OutcomeReport, ReportedOutcome};
use holdpoint::engine::{Engine, IdempotencyKey, Refusal};
use holdpoint::secret::seal::DigestedBody;
use holdpoint::task::id::TaskId;
use macro_rules_attribute::apply;

use super::super::failures::{report_of, reported};
use super::super::{LONG, agent, approved, asks, harness, proposal};
use crate::engine::engine_harness::EngineHarness;
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
    let arguments = format!(r#"{{"command":"{command}"}}"#);
    let call = |wait| proposal("Bash", &arguments, wait);
    let task = approved(harness, engine, &call(Duration::ZERO)).await;
    assert!(asks(engine, &call(LONG)).await.permit.is_some());
    task
}

/// Suspends the first report after `polls` polls, sends the second, and then resumes the first.
/// Returns both results, and whether the first report ended before it could be suspended.
async fn send_both(
    engine: &Arc<Engine>,
    [first, second]: &[KeyedReport; 2],
    polls: usize,
) -> ([Reported; 2], bool) {
    let mut left = polls;
    let mut sending = Box::pin(first.send(engine));
    let ended = poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        sending.as_mut().poll(context).map(Some)
    })
    .await;
    let second = Box::pin(second.send(engine)).await;
    match ended {
        Some(first) => ([first, second], true),
        None => ([sending.await, second], false),
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
            let (results, is_over) = send_both(&engine, &reports, polls).await;
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
