//! Tests the quarantine of a tool in one session of a gate. A call of the tool that may have taken
//! effect begins the quarantine.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::gate::{GateState, Proposal, ReportedOutcome};
use holdpoint::engine::{Engine, Refusal};
use holdpoint::people::Caller;
use holdpoint::task::decision::Action;
use holdpoint::task::grant::GrantScope;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Outcome;
use holdpoint::task::request::RequestKind;
use holdpoint::task::time::Time;
use holdpoint::task::verdict::Verdict;
use macro_rules_attribute::apply;

use super::super::call_slots::limit_refund;
use super::super::damaged_journals::{CUT, damage};
use super::super::engine_harness::{
    EngineHarness, alice, alice_decides, alice_is_refused, decides, outcomes, person, whole,
};
use super::super::grants::{hours, judgements, remembered};
use super::super::random_gates::Replica;
use super::super::worker_steps::WorkerSteps as _;
use super::equal_asks::until_second;
use super::failures::{by_key, reported};
use super::{
    LONG, abort, agent, approve, approved, asking_by, asks, bash, driven, harness, proposal,
    refund, reject_in_vain, small, until_open, until_present, until_proposed,
};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::until;

/// The terms of a rule under which Bob decides within an hour and may remember an approval.
pub const OFFER_OF_BOB: &str = r#"approvers: { users: [bob] }, expires_in: 1h, remember: { when: "args.amount <= 500.0", for: [owner], most: 4h, uses: 10 }"#;

/// Returns a harness in which a rule allows every call of the external tool `Bash`.
async fn with_shell(fixture: StoreFixture) -> EngineHarness {
    let mut harness = harness(fixture).await;
    let rule = "Not this one. }\n  - { name: shell, tools: [Bash], decide: allow }";
    harness.configure(|yaml| yaml.replacen("Not this one. }", rule, 1));
    harness
}

pub fn shell(command: &str, wait: Duration) -> Proposal {
    proposal("Bash", &format!(r#"{{"command":"{command}"}}"#), wait)
}

/// Asks for a call, and damages its journal, so that the engine cannot read it. Returns the call's
/// task.
async fn unreadable_call(harness: &EngineHarness, engine: &Arc<Engine>) -> TaskId {
    let task = asks(engine, &bash(LONG)).await.task_id;
    damage(&harness.fixture, task, CUT, "seq = 2").await;
    assert!(
        engine
            .gates()
            .read_call(&agent(), task, Duration::ZERO)
            .await
            .is_err()
    );
    engine.round().await.unwrap();
    task
}

/// Asks for a call, and reports as its runner that the outcome is unknown. Waits until a reconcile
/// request is open. Returns the call's task.
async fn unknown_call(harness: &EngineHarness, engine: &Arc<Engine>) -> TaskId {
    let task = asks(engine, &bash(LONG)).await.task_id;
    reported(engine, task, ReportedOutcome::Unknown).await;
    until_open(harness, task, RequestKind::Reconcile).await;
    task
}

#[apply(both)]
async fn tool_that_failed_with_5xx_is_held_in_its_session_until_a_person_decides_a_call(
    fixture: StoreFixture,
) {
    let harness = with_shell(fixture).await;
    let engine = harness.engine(8);
    harness.tool.answers(500, "broken");
    let failed = asks(&engine, &small(1, LONG)).await;
    harness.tool.answers(200, "{}");
    // Three hours exceed both `use_within` and `no_lasts`, but the quarantine has no time limit.
    harness.fixture.forward(Duration::from_hours(3));
    let held = asks(&engine, &small(2, Duration::ZERO)).await;
    assert_eq!(
        (failed.outcome, held.state, harness.tool.count()),
        (Some(Outcome::Failed), GateState::Pending, 1)
    );
    let finding = format!(
        "An earlier call of this tool ({}) failed with status 500 after it was sent.",
        failed.task_id
    );
    let says =
        format!("{finding} Each call of this tool is held until a human has decided one of them.");
    assert_eq!(held.reason, Some(says));
    let elsewhere = Proposal {
        session_id: Some("other".to_owned()),
        ..small(3, LONG)
    };
    let carol = Caller {
        permissions: agent().permissions,
        ..person("carol")
    };
    for (caller, proposal) in [(agent(), elsewhere), (carol, small(4, LONG))] {
        let other = engine
            .gates()
            .ask(&caller, &proposal, None)
            .await
            .unwrap()
            .call;
        assert_eq!(other.outcome, Some(Outcome::Succeeded));
    }
    assert!(
        asks(&engine, &bash(LONG)).await.permit.is_some(),
        "another tool"
    );
    approve(&harness, &engine, held.task_id).await;
    let after = asks(&engine, &small(5, LONG)).await;
    assert_eq!(after.outcome, Some(Outcome::Succeeded));
    assert_eq!(harness.tool.count(), 4);
}

#[apply(both)]
async fn tool_of_unknown_outcome_is_held_after_the_question_about_it_has_expired(
    fixture: StoreFixture,
) {
    let harness = with_shell(fixture).await;
    let engine = harness.engine(8);
    let task = unknown_call(&harness, &engine).await;
    harness.fixture.forward(Duration::from_hours(25));
    assert_eq!(engine.worker().expire().await.unwrap(), 1);
    let has_ended = async || {
        driven(&engine).await;
        harness.status(task).await.is_terminal()
    };
    until("the call has ended", has_ended).await;
    let held = asks(&engine, &shell("ls", Duration::ZERO)).await;
    assert_eq!((held.state, held.permit), (GateState::Pending, None));
    let reason = held.reason.unwrap();
    assert!(
        reason.contains(&format!(
            "({task}) was started, and its outcome is not known."
        )),
        "{reason}"
    );
    let [(request, RequestKind::Approval)] = harness.open(held.task_id).await[..] else {
        panic!("one approval")
    };
    alice_decides(&engine, request, whole(Action::Reject, None)).await;
    assert!(asks(&engine, &shell("pwd", LONG)).await.permit.is_some());
    let same = asks(&engine, &by_key("k", None, bash(Duration::ZERO))).await;
    assert_eq!(
        same.reason.as_deref(),
        Some("The same call may have run before, and no person has decided such a call since.")
    );
}

#[apply(both)]
async fn decision_before_a_call_fails_does_not_end_the_quarantine(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    harness.tool.close();
    let running = asking_by(&engine, small(1, Duration::from_mins(5)));
    harness.tool.reached(1).await;
    approved(&harness, &engine, &refund(2, Duration::ZERO)).await;
    harness.tool.answers(500, "broken").open();
    assert_eq!(
        running.await.unwrap().unwrap().call.outcome,
        Some(Outcome::Failed)
    );
    assert_eq!(
        asks(&engine, &small(3, Duration::ZERO)).await.state,
        GateState::Pending
    );
}

#[apply(both)]
async fn repeatable_call_that_failed_with_5xx_holds_no_call(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    for (order, effect) in [(1, "read_only"), (2, "idempotent")] {
        let repeatable = format!("  refund:\n    effect: {effect}\n");
        harness.configure(|yaml| yaml.replacen("  refund:\n", &repeatable, 1));
        let engine = harness.engine(8);
        approved(&harness, &engine, &refund(order, Duration::ZERO)).await;
        harness.tool.answers(500, "broken");
        assert_eq!(
            asks(&engine, &refund(order, LONG)).await.outcome,
            Some(Outcome::Failed)
        );
        harness.tool.answers(200, "{}");
        harness.configure(|yaml| yaml.replacen(&repeatable, "  refund:\n", 1));
        let once = asks(&harness.engine(8), &small(order, LONG)).await;
        assert_eq!(once.outcome, Some(Outcome::Succeeded), "{effect}");
    }
}

#[apply(both)]
async fn started_call_whose_journal_is_unreadable_holds_its_tool(fixture: StoreFixture) {
    let harness = with_shell(fixture).await;
    let engine = harness.engine(8);
    let task = unreadable_call(&harness, &engine).await;
    let held = asks(&engine, &shell("ls", Duration::ZERO)).await;
    assert_eq!((held.state, held.permit), (GateState::Pending, None));
    let reason = held.reason.unwrap();
    assert!(
        reason.contains(&format!("({task}) may have acted.")),
        "{reason}"
    );
}

#[apply(both)]
async fn call_held_after_a_doubt_stays_held_when_its_tool_changes(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    let engine = harness.engine(8);
    harness.tool.answers(500, "broken");
    let failed = asks(&engine, &small(1, LONG)).await.task_id;
    harness.tool.answers(200, "{}");
    let held = asks(&engine, &small(2, Duration::ZERO)).await.task_id;
    harness.configure(|yaml| yaml.replacen("exclusiveMinimum: 0", "exclusiveMinimum: 1", 1));
    let changed = harness.engine(8);
    let waiting = asking_by(&changed, small(2, LONG));
    until_present(&harness, held, |until| until > Time(0)).await;
    reject_in_vain(&harness, &changed, held).await;
    let open = harness.open_specs(held).await;
    let reason = open[0].own_calls().next().unwrap().reason.clone().unwrap();
    assert!(
        reason.contains(&format!("({failed}) failed with status 500")),
        "{reason}"
    );
    let answer = whole(Action::Reject, None);
    alice_decides(&changed, open[0].request_id, answer).await;
    let call = waiting.await.unwrap().unwrap().call;
    assert_eq!(call.outcome, Some(Outcome::Rejected));
    assert_eq!(harness.tool.count(), 1);
}

#[apply(both)]
async fn allowed_call_that_waits_for_a_slot_is_held_once_its_tool_is_in_doubt(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let unlimited = harness.engine(8);
    let slots = limit_refund(&mut harness);
    let engine = harness.engine(8);
    let slot = slots.acquire_owned().await.unwrap();
    let waiting = asking_by(&engine, small(1, LONG));
    let task = until_proposed(&harness).await;
    harness.tool.answers(500, "broken");
    assert_eq!(
        asks(&unlimited, &small(2, LONG)).await.outcome,
        Some(Outcome::Failed)
    );
    harness.tool.answers(200, "{}");
    drop(slot);
    until_open(&harness, task, RequestKind::Approval).await;
    approve(&harness, &engine, task).await;
    let call = waiting.await.unwrap().unwrap().call;
    assert_eq!(call.outcome, Some(Outcome::Succeeded));
}

#[apply(both)]
async fn waiting_call_held_by_a_doubt_despite_a_standing_decision_has_the_terms_of_its_rule(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    harness.replace("approvers: { owner: true }", OFFER_OF_BOB);
    let unlimited = harness.engine(8);
    let slots = limit_refund(&mut harness);
    let engine = harness.engine(8);
    let first = asks(&engine, &refund(1, Duration::ZERO)).await.task_id;
    let (request, _) = harness.only_open(first).await;
    let standing_decision = remembered(GrantScope::Owner, hours(1));
    decides(&engine, &person("bob"), request, standing_decision).await;
    let paid = asks(&engine, &refund(1, LONG)).await;
    assert_eq!(paid.outcome, Some(Outcome::Succeeded));
    let slot = slots.acquire_owned().await.unwrap();
    let waiting = asking_by(&engine, refund(2, LONG));
    let task = until_second(&harness, first).await;
    harness.tool.answers(500, "broken");
    let failed = asks(&unlimited, &small(3, LONG)).await;
    assert_eq!(failed.outcome, Some(Outcome::Failed));
    drop(slot);
    until_open(&harness, task, RequestKind::Approval).await;
    let asked = harness.open_specs(task).await.remove(0);
    let terms = &asked.terms;
    assert!(!terms.approvers.owner, "{terms:?}");
    assert_eq!(terms.approvers.users, ["bob"]);
    assert_eq!(terms.expires_in, Some(hours(1)));
    let yes = || whole(Action::Approve, None);
    let refused = alice_is_refused(&engine, asked.request_id, yes()).await;
    assert!(matches!(refused, Refusal::Forbidden(_)), "{refused:?}");
    decides(&engine, &person("bob"), asked.request_id, yes()).await;
    let call = waiting.await.unwrap().unwrap().call;
    assert_eq!(call.outcome, Some(Outcome::Succeeded));
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Succeeded]);
    let judged = judgements(&harness, task).await;
    let verdicts: Vec<_> = judged
        .iter()
        .map(|it| (it.verdict, it.rule.as_deref(), it.grant_id.is_some()))
        .collect();
    let rule = Some("large");
    let held_once = [(Verdict::Allow, rule, true), (Verdict::Hold, rule, false)];
    assert_eq!(verdicts, held_once);
}

#[apply(both)]
async fn approved_call_goes_on_after_its_tool_got_into_doubt(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    harness.tool.answers(500, "broken");
    assert_eq!(
        asks(&engine, &small(2, LONG)).await.outcome,
        Some(Outcome::Failed)
    );
    harness.tool.answers(200, "{}");
    let call = asks(&engine, &refund(1, LONG)).await;
    assert_eq!(call.task_id, task);
    assert_eq!(call.outcome, Some(Outcome::Succeeded));
}

#[apply(both)]
async fn reason_of_a_call_beside_a_waiting_one_names_the_call_in_doubt(fixture: StoreFixture) {
    let harness = with_shell(fixture).await;
    let engine = harness.engine(8);
    let task = unknown_call(&harness, &engine).await;
    let named = format!("({task}) was started, and its outcome is not known.");
    let first = asks(&engine, &shell("ls", Duration::ZERO)).await;
    assert!(first.reason.as_ref().unwrap().contains(&named), "{first:?}");
    let waiting = asking_by(&engine, shell("ls", LONG));
    until_present(&harness, first.task_id, |until| until > Time(0)).await;
    let second = asks(&engine, &shell("ls", Duration::ZERO)).await;
    assert_ne!(second.task_id, first.task_id);
    let reason = second.reason.unwrap();
    assert!(
        reason.contains("The same call waits") && reason.contains(&named),
        "{reason}"
    );
    abort(waiting).await;
}

#[apply(both)]
async fn late_unknown_outcome_of_a_canceled_call_holds_its_tool(fixture: StoreFixture) {
    let harness = with_shell(fixture).await;
    let engine = harness.engine(8);
    let task = asks(&engine, &bash(LONG)).await.task_id;
    engine.cancel(&alice(), task, None).await.unwrap();
    let held = asks(&engine, &shell("ls", Duration::ZERO)).await;
    assert_eq!((held.state, held.permit), (GateState::Pending, None));
    approve(&harness, &engine, held.task_id).await;
    assert!(asks(&engine, &shell("pwd", LONG)).await.permit.is_some());
    reported(&engine, task, ReportedOutcome::Unknown).await;
    let held = asks(&engine, &shell("du", Duration::ZERO)).await;
    assert_eq!((held.state, held.permit), (GateState::Pending, None));
}

#[apply(both)]
async fn equal_ask_of_a_call_whose_journal_is_unreadable_is_held(fixture: StoreFixture) {
    let harness = with_shell(fixture).await;
    let engine = harness.engine(8);
    unreadable_call(&harness, &engine).await;
    let other = asks(&engine, &shell("ls", Duration::ZERO)).await.task_id;
    approve(&harness, &engine, other).await;
    let equal = asks(&engine, &by_key("k", None, bash(Duration::ZERO))).await;
    assert_eq!((equal.state, equal.permit), (GateState::Pending, None));
}

#[apply(both)]
async fn lost_call_whose_tool_is_once_by_now_holds_its_tool(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    harness.replace("tools: [refund, lookup, Bash]", "tools: [tag]");
    let tag = |text: &str, wait| proposal("tag", &format!(r#"{{"text":"{text}"}}"#), wait);
    let process = Replica::start(&harness.parts(8));
    harness.tool.close();
    let (engine, lost) = (Arc::clone(&process.engine), tag("a", LONG));
    let asking = process.spawn(async move { engine.gates().ask(&agent(), &lost, None).await });
    harness.tool.reached(1).await;
    process.crash();
    assert!(asking.await.is_err());
    harness.tool.open();
    harness.replace("tag: { effect: idempotent", "tag: { effect: once");
    let engine = harness.engine(8);
    harness.fixture.forward(Duration::from_mins(10));
    driven(&engine).await;
    let task = until_proposed(&harness).await;
    until_open(&harness, task, RequestKind::Reconcile).await;
    let doubt = format!("({task}) was started, and its outcome is not known.");
    for text in ["a", "b"] {
        let held = asks(&engine, &tag(text, Duration::ZERO)).await;
        assert_ne!(held.task_id, task);
        assert_eq!(held.state, GateState::Pending);
        assert!(held.reason.as_ref().unwrap().contains(&doubt), "{held:?}");
    }
    assert_eq!(harness.tool.count(), 1);
    let request = harness.only_request(task, RequestKind::Reconcile).await;
    let known = whole(Action::Respond, Some("it was tagged".into()));
    alice_decides(&engine, request, known).await;
    let after = asks(&engine, &tag("c", LONG)).await;
    assert_eq!(after.outcome, Some(Outcome::Succeeded));
    assert_eq!(harness.tool.count(), 2);
}

#[apply(both)]
async fn call_without_a_report_whose_tool_is_once_by_now_holds_its_tool(fixture: StoreFixture) {
    let mut harness = with_shell(fixture).await;
    let (once, repeatable) = ("Bash: { external", "Bash: { effect: idempotent, external");
    harness.replace(once, repeatable);
    let named = |wait| by_key("k", None, bash(wait));
    let permitted = asks(&harness.engine(8), &named(LONG)).await;
    assert!(permitted.permit.is_some());
    harness.replace(repeatable, once);
    let engine = harness.engine(8);
    // The permit lasts for ten minutes.
    harness.fixture.forward(Duration::from_mins(11));
    let doubtful = asks(&engine, &named(Duration::ZERO)).await;
    assert_eq!(doubtful.task_id, permitted.task_id);
    until_open(&harness, permitted.task_id, RequestKind::Reconcile).await;
    for command in ["make", "ls"] {
        let held = asks(&engine, &shell(command, Duration::ZERO)).await;
        assert_eq!((held.state, held.permit), (GateState::Pending, None));
        assert_ne!(held.task_id, permitted.task_id);
    }
}
