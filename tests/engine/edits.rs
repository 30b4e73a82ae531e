//! Tests arguments that a person has edited. The edited arguments are parsed as strictly as the
//! model's arguments, judged again, and sent byte for byte.

mod attempts;
mod damage;
mod required_approvals;

use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::{DecisionInput, Engine, Refusal};
use holdpoint::people::Caller;
use holdpoint::people::authorization::permitted_actions;
use holdpoint::task::decision::Action;
use holdpoint::task::id::{CallId, RequestId, TaskId};
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::call_decisions::{
    approve, became, each, edit, last_open_request, places, question, ran_as, refused, reject,
    shown,
};
use super::engine_harness::{
    EngineHarness, alice, alice_decides, alice_is_refused, decides, person, turn, whole,
};
use crate::store::store_fixture::{StoreFixture, both};

const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];

/// Arguments that would change if they were parsed and printed again: the spacing, the order of the
/// keys and the trailing zero would be lost.
const EDITED: &str = r#"{ "amount": 41.10, "order": 2 }"#;

/// Rules that depend on the arguments. The function `harness` inserts them before the rule `small`:
/// it replaces the beginning of that rule by this text, whose last line is the same beginning.
const RULES: &str = r#"
  - { name: odd, tools: [refund], when: "args.order == 666", decide: deny, reason: Not that order. }
  - { name: huge, tools: [refund], when: "args.amount > 1000.0", decide: hold, approvers: { users: [carol] } }
  - { name: alike, tools: [refund], when: "args.amount > 500.0", decide: hold, approvers: {approvers} }
  - { name: small"#;

pub(super) async fn harness(fixture: StoreFixture, approvers: &str) -> EngineHarness {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    let rules = RULES.replace("{approvers}", approvers);
    harness.configure(|yaml| {
        yaml.replace("{ owner: true }", approvers)
            .replace("\n  - { name: small", &rules)
    });
    harness
}

/// Terms that require the approvals of two people among Alice (the owner), Bob and Carol.
pub(super) const TWO: &str = "{ owner: true, users: [bob, carol], required: 2 }";

pub(super) async fn held_call(harness: &EngineHarness) -> (TaskId, RequestId, CallId, Arc<Engine>) {
    let task = harness.held().await;
    let (request, calls) = question(harness, task).await;
    (task, request, calls[0], harness.engine(0))
}

/// Creates a task with a call that needs two approvals, and edits the call as Bob. `text` holds the
/// new arguments. Returns the task, the request about the edited call, the call, and an engine.
pub(super) async fn rewritten(
    harness: &EngineHarness,
    text: &str,
) -> (TaskId, RequestId, CallId, Arc<Engine>) {
    let (task, request, call, api) = held_call(harness).await;
    decides(&api, &person("bob"), request, each([(call, edit(text))])).await;
    assert_eq!(
        harness.status(task).await,
        TaskStatus::Paused,
        "it is asked anew at once: nothing of it may start"
    );
    harness.run().await;
    let (anew, calls) = question(harness, task).await;
    assert_eq!((calls, anew == request), (vec![call], false));
    (task, anew, call, api)
}

pub(super) async fn offered(harness: &EngineHarness, task: TaskId, caller: &Caller) -> Vec<Action> {
    permitted_actions(
        &harness.parts(0).roster,
        caller,
        "acme",
        "alice",
        &last_open_request(harness, task).await,
    )
}

/// Asserts that Bob may reject or edit the call, but may approve neither the request nor the call.
pub(super) async fn bob_may_not_approve(
    harness: &EngineHarness,
    api: &Arc<Engine>,
    task: TaskId,
    call: CallId,
) {
    let bob = offered(harness, task, &person("bob")).await;
    assert!(
        !bob.contains(&Action::Approve)
            && bob.contains(&Action::Reject)
            && bob.contains(&Action::Edit),
        "{bob:?}"
    );
    for own in [whole(Action::Approve, None), each([(call, approve())])] {
        assert!(matches!(
            refused(harness, api, &person("bob"), task, own).await,
            Refusal::Forbidden(_)
        ));
    }
}

/// Returns two lists of digests: those of the first call of each request, and those of the started
/// calls.
async fn digests(harness: &EngineHarness, task: TaskId) -> (Vec<String>, Vec<String>) {
    let (mut asked, mut ran) = (Vec::new(), Vec::new());
    for item in harness.journal(task).await.items {
        match item.fact {
            Fact::InterventionRequested(question) => {
                asked.push(question.pending_tool_calls[0].digest.clone());
            }
            Fact::ToolStarted { digest, .. } => ran.push(digest),
            Fact::TaskStatus { .. }
            | Fact::UserMessage { .. }
            | Fact::AssistantMessage(_)
            | Fact::Judged { .. }
            | Fact::Decision { .. }
            | Fact::RequestClosed { .. }
            | Fact::ToolResult(_)
            | Fact::LateResult(_)
            | Fact::SubAgentStarted { .. } => {}
        }
    }
    (asked, ran)
}

#[apply(both)]
async fn edited_arguments_are_read_as_strictly_as_a_models(fixture: StoreFixture) {
    let harness = harness(fixture, "{ owner: true }").await;
    let (task, _, call, api) = held_call(&harness).await;
    let blanks = " ".repeat(256 * 1024);
    let long = format!(r#"{{"order":1,"amount":50{blanks}}}"#);
    let cases = [
        (r#"{"order":1,"amount":50,"amount":51}"#, "/amount"),
        (r#"{"order":1,"amount":50,"Amount":51}"#, "/Amount"),
        (r#"{"order":1,"amount":20.000000000000000001}"#, "/amount"),
        (r#"{"order":9007199254740993,"amount":50}"#, "/order"),
        (r#"{"order":1,"amount":-50}"#, "/amount"),
        (r#"{"order":"777777","amount":50}"#, "/order"),
        (r#"{"order":1,"amount":50,"more":777777}"#, ""),
        (r#"{"order":777777}"#, ""),
        (r#"{"order":1,"amount":50} 777777"#, ""),
        (r#"{"order":1,"amount":50,"\ud800":1}"#, ""),
        ("[777777]", ""),
        ("null", ""),
        ("", ""),
        ("777777", ""),
        (&long, ""),
    ];
    for (text, place) in cases {
        let refusal = refused(&harness, &api, &alice(), task, each([(call, edit(text))])).await;
        let expected = format!("/decisions/{call}/arguments{place}");
        assert!(
            places(&refusal).iter().all(|at| at.starts_with(&expected)),
            "{text:.80}: {refusal:?}"
        );
        assert!(
            !format!("{refusal:?}").contains("777777"),
            "never the value: {refusal:?}"
        );
    }
    assert!(matches!(
        refused(
            &harness,
            &api,
            &person("bob"),
            task,
            each([(call, edit(EDITED))])
        )
        .await,
        Refusal::Forbidden(_)
    ));
}

#[apply(both)]
async fn edited_arguments_run_byte_for_byte(fixture: StoreFixture) {
    let harness = harness(fixture, "{ owner: true }").await;
    let (task, request, call, api) = held_call(&harness).await;
    alice_decides(&api, request, each([(call, edit(EDITED))])).await;
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    ran_as(&harness, task, "/refund", call, EDITED);
    let (asked, ran) = digests(&harness, task).await;
    assert_eq!((asked.len(), ran.len(), asked[0] == ran[0]), (1, 1, false));
    let row = harness.fixture.request(request).await;
    assert_eq!(row.spec.pending_tool_calls[0].arguments_text, LARGE[0].1);
    let (_, decision) = &row.answers[0];
    let kept = &decision.decisions[&call];
    assert_eq!((decision.by.as_str(), kept.action), ("alice", Action::Edit));
    assert_eq!(kept.edit.as_ref().unwrap().arguments_text, EDITED);
    assert_eq!(kept.edit.as_ref().unwrap().digest, ran[0]);
    let told = shown(&harness);
    assert!(
        told[0].contains(EDITED) && told[0].contains(r#"{"ok":true}"#),
        "{told:?}"
    );
    assert_eq!(
        harness.tool.ledger()[0].header("holdpoint-decided-by"),
        "alice"
    );
}

#[apply(both)]
async fn edited_arguments_are_judged_by_the_rules(fixture: StoreFixture) {
    let harness = harness(fixture, "{ owner: true }").await;
    let (task, _, call, api) = held_call(&harness).await;
    let denied = refused(
        &harness,
        &api,
        &alice(),
        task,
        each([(call, edit(r#"{"order":666,"amount":5}"#))]),
    )
    .await;
    assert_eq!(places(&denied), [format!("/decisions/{call}/arguments")]);
    assert!(
        format!("{denied:?}").contains("Not that order"),
        "{denied:?}"
    );
    // A rule allows the amount 5. The request's own rule holds 77.70, and another rule with
    // equal terms holds 700.0.
    for text in [
        r#"{"order":1,"amount":5}"#,
        r#"{"order":1,"amount":77.70}"#,
        r#"{"order":1,"amount":700.0}"#,
    ] {
        let (task, request, call, api) = held_call(&harness).await;
        alice_decides(&api, request, each([(call, edit(text))])).await;
        harness.run().await;
        assert_eq!(harness.status(task).await, TaskStatus::Completed);
        ran_as(&harness, task, "/refund", call, text);
    }
    // A rule with other approvers holds these arguments.
    let text = r#"{"order":1,"amount":5000.00}"#;
    let (task, request, call, api) = held_call(&harness).await;
    alice_decides(&api, request, each([(call, edit(text))])).await;
    harness.run().await;
    assert_eq!(harness.executions(task, "/refund"), 0);
    let anew = last_open_request(&harness, task).await;
    assert_eq!(
        anew.terms.approvers.users.as_slice(),
        &["carol".to_owned()][..]
    );
    assert_eq!(anew.pending_tool_calls[0].arguments_text.as_str(), text);
    assert_eq!(anew.pending_tool_calls[0].rule.as_deref(), Some("huge"));
    let own = alice_is_refused(&api, anew.request_id, whole(Action::Approve, None)).await;
    assert!(matches!(own, Refusal::Forbidden(_)));
    decides(
        &api,
        &person("carol"),
        anew.request_id,
        whole(Action::Approve, None),
    )
    .await;
    harness.run().await;
    ran_as(&harness, task, "/refund", call, text);
}

#[apply(both)]
async fn denied_edit_is_refused_before_the_state_of_its_request_is_looked_at(
    fixture: StoreFixture,
) {
    const DENIED: &str = r#"{"order":666,"amount":5}"#;
    let refusals = async |api: &Arc<Engine>, request, call, digest: Option<&str>| {
        let mut refusals = Vec::new();
        for text in [DENIED, EDITED] {
            let digest = digest.map(str::to_owned);
            let answer = DecisionInput {
                digest,
                ..each([(call, edit(text))])
            };
            refusals.push(api.decide(&alice(), request, answer, None).await.err());
        }
        let [Some(Refusal::Invalid(errors)), Some(later)] = &refusals[..] else {
            panic!("{refusals:?}")
        };
        assert_eq!(errors[0].pointer, format!("/decisions/{call}/arguments"));
        later.clone()
    };
    let harness = harness(StoreFixture::like(&fixture).await, "{ owner: true }").await;
    let (task, request, call, api) = held_call(&harness).await;
    let before = harness.journal(task).await.items;
    assert_eq!(
        refusals(&api, request, call, Some("sha256:00")).await,
        Refusal::DigestMismatch(request)
    );
    assert_eq!(harness.journal(task).await.items, before);
    alice_decides(&api, request, each([(call, reject())])).await;
    let later = refusals(&api, request, call, None).await;
    assert_eq!(
        later,
        Refusal::AlreadyDecided {
            request,
            call: Some(call)
        }
    );
    let (_, request, call, api) = held_call(&harness).await;
    harness.fixture.forward(Duration::from_hours(25));
    assert_eq!(
        refusals(&api, request, call, None).await,
        Refusal::Expired(request)
    );

    let harness = super::edits::harness(fixture, TWO).await;
    let (_, request, call, api) = held_call(&harness).await;
    alice_decides(&api, request, each([(call, approve())])).await;
    let later = refusals(&api, request, call, None).await;
    assert_eq!(
        later,
        Refusal::AlreadyDecided {
            request,
            call: Some(call)
        }
    );
}

#[apply(both)]
async fn stricter_rule_holds_or_denies_edited_arguments_before_the_start(fixture: StoreFixture) {
    for (now, asked_again) in [
        ("decide: deny", false),
        ("decide: hold, approvers: { users: [carol] }", true),
    ] {
        let mut harness = harness(StoreFixture::like(&fixture).await, "{ owner: true }").await;
        harness.script(|asked| Ok(turn(if asked == 1 { LARGE } else { &[] })));
        let (task, request, call, api) = held_call(&harness).await;
        alice_decides(&api, request, each([(call, edit(EDITED))])).await;
        let rule = format!(
            "policy:\n  - {{ name: late, tools: [refund], when: \"args.order == 2\", {now} }}\n"
        );
        harness.replace("policy:\n", &rule);
        harness.run().await;
        assert_eq!(harness.executions(task, "/refund"), 0);
        if !asked_again {
            assert_eq!(
                became(&harness, task, [call]).await,
                [Some(Outcome::Denied)]
            );
            continue;
        }
        let anew = last_open_request(&harness, task).await;
        assert_eq!(anew.pending_tool_calls[0].arguments_text, EDITED);
        decides(
            &harness.engine(0),
            &person("carol"),
            anew.request_id,
            whole(Action::Approve, None),
        )
        .await;
        harness.run().await;
        ran_as(&harness, task, "/refund", call, EDITED);
    }
}
