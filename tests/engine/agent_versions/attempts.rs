//! Tests attempts at a call whose tool or rule has changed since the call was judged, or since its
//! first attempt.

use holdpoint::engine::Refusal;
use holdpoint::task::call_state::OUTCOME_UNKNOWN_TEXT;
use holdpoint::task::decision::Action;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::tool_spec::Effect;
use macro_rules_attribute::apply;
use serde_json::json;

use super::super::engine_harness::{
    EngineHarness, alice, alice_decides, alice_is_refused, beyond_the_maximum, fills, outcomes,
    whole,
};
use super::{LARGE, TAG, approved, run};
use crate::store::store_fixture::{StoreFixture, both};

/// A call that a person must approve, and then a repeatable call that a rule allows.
const LARGE_AND_TAG: &[(&str, &str)] = &[
    ("refund", r#"{"order":1,"amount":120}"#),
    ("tag", r#"{"text":"paid"}"#),
];

/// Loses the result of a repeatable call. Then replaces the tool's effect and URL in the
/// configuration by `now`. Asserts that the call is not repeated.
async fn not_repeated(fixture: StoreFixture, now: &str) {
    let mut harness = EngineHarness::new(fixture, TAG).await;
    let task = harness.lost_call().await;
    harness.later();
    harness.replace(
        "effect: idempotent, http: { method: POST, url: \"{tool}/tag\"",
        now,
    );
    harness.run().await;
    let [(_, RequestKind::Reconcile)] = harness.open(task).await[..] else {
        panic!("{:#?}", harness.journal(task).await)
    };
    harness.finish(task).await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Responded]);
    assert_eq!(harness.executions(task, "/tag"), 1);
    assert_eq!(harness.executions(task, "/tagged"), 0);
}

#[apply(both)]
async fn retry_of_a_call_whose_tool_has_changed_runs_nothing_and_is_asked_anew(
    fixture: StoreFixture,
) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    harness.tool.answers(502, "");
    let tasks = [approved(&harness).await, approved(&harness).await];
    harness.run().await;
    let mut before = Vec::new();
    for task in tasks {
        before.push(harness.open_specs(task).await.remove(0));
    }
    assert!(
        before
            .iter()
            .all(|asked| asked.kind == RequestKind::Reconcile)
    );
    harness.replace("{tool}/refund", "{tool}/elsewhere");
    let (first, api) = (before[0].request_id, harness.engine(0));
    let retried = alice_is_refused(&api, first, whole(Action::Retry, None)).await;
    assert_eq!(retried, Refusal::Withdrawn(first));
    let known = whole(Action::Respond, Some("it was paid".into()));
    alice_decides(&api, before[1].request_id, known).await;
    harness.later();
    harness.tool.answers(200, "paid");
    harness.run().await;
    assert_eq!(
        outcomes(&harness.journal(tasks[1]).await),
        [Outcome::Responded],
        "a known outcome needs no tool"
    );
    let anew = harness.open_specs(tasks[0]).await.remove(0);
    assert_eq!(anew.kind, RequestKind::Reconcile);
    assert_eq!(anew.details, before[0].details);
    assert!(anew.request_id != first && anew.digest != before[0].digest);
    assert_eq!(harness.executions(tasks[0], "/refund"), 1);
    assert_eq!(harness.executions(tasks[0], "/elsewhere"), 0);
    alice_decides(&api, anew.request_id, whole(Action::Retry, None)).await;
    harness.run().await;
    assert_eq!(
        outcomes(&harness.journal(tasks[0]).await),
        [Outcome::Succeeded]
    );
    assert_eq!(harness.executions(tasks[0], "/refund"), 1);
    assert_eq!(harness.executions(tasks[0], "/elsewhere"), 1);
}

#[apply(both)]
async fn retry_that_a_rule_denies_at_its_start_leaves_the_outcome_unknown(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    harness.tool.answers(502, "");
    let task = approved(&harness).await;
    harness.run().await;
    let asked = harness.open_specs(task).await.remove(0);
    harness.replace("decide: hold,", "decide: deny,");
    let retry = whole(Action::Retry, None);
    alice_decides(&harness.engine(0), asked.request_id, retry).await;
    harness.run().await;
    // The first attempt may have taken effect. So the denial of the second attempt leaves the
    // outcome of the call unknown.
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Unknown]);
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn lost_call_that_a_rule_holds_by_now_tells_the_approver_that_it_was_started(
    fixture: StoreFixture,
) {
    let mut harness = EngineHarness::new(fixture, TAG).await;
    let task = harness.lost_call().await;
    harness.later();
    let rule =
        "policy:\n  - { name: watch, tools: [tag], decide: hold, reason: Tags are watched }\n";
    harness.replace("policy:\n", rule);
    harness.run().await;
    let asked = harness.open_specs(task).await.remove(0);
    let reason = asked.pending_tool_calls[0].reason.as_deref();
    let told = format!("Tags are watched. {OUTCOME_UNKNOWN_TEXT}");
    assert_eq!(asked.kind, RequestKind::Approval);
    assert_eq!(reason, Some(told.as_str()));
    assert_eq!(harness.executions(task, "/tag"), 1);
}

#[apply(both)]
async fn lost_call_whose_tool_is_once_by_now_is_not_repeated(fixture: StoreFixture) {
    not_repeated(
        fixture,
        "effect: once, http: { method: POST, url: \"{tool}/tag\"",
    )
    .await;
}

#[apply(both)]
async fn lost_call_whose_tool_has_a_new_target_by_now_is_not_repeated(fixture: StoreFixture) {
    not_repeated(
        fixture,
        "effect: idempotent, http: { method: POST, url: \"{tool}/tagged\"",
    )
    .await;
}

#[apply(both)]
async fn lost_call_whose_tool_is_gone_offers_no_retry(fixture: StoreFixture) {
    let small = &[("refund", r#"{"order":1,"amount":5}"#)];
    let mut harness = EngineHarness::new(fixture, small).await;
    let task = harness.lost_call().await;
    harness.later();
    harness.configure(|yaml| {
        yaml.replace("  refund:\n", "  payment:\n")
            .replace("tag, refund,", "tag, payment,")
            .replace("tools: [refund]", "tools: [payment]")
    });
    harness.run().await;
    let asked = harness.open_specs(task).await.remove(0);
    assert_eq!(asked.kind, RequestKind::Reconcile);
    assert_eq!(asked.actions(1), [Action::Respond, Action::Reject]);
    let api = harness.engine(0);
    let retry = whole(Action::Retry, None);
    let refused = api.decide(&alice(), asked.request_id, retry, None).await;
    assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
    harness.answer_all(&api, task).await;
    harness.run().await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Responded]);
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn lost_call_whose_tool_is_external_by_now_is_asked_about_again_after_each_retry(
    fixture: StoreFixture,
) {
    let mut harness = EngineHarness::new(fixture, TAG).await;
    let task = harness.lost_call().await;
    harness.later();
    harness.replace(
        r#"http: { method: POST, url: "{tool}/tag" }"#,
        "external: {}",
    );
    harness.run().await;
    let api = harness.engine(0);
    for _ in 0..2 {
        let request = harness.only_request(task, RequestKind::Reconcile).await;
        alice_decides(&api, request, whole(Action::Retry, None)).await;
        harness.run().await;
        let asked = harness.open_specs(task).await.remove(0);
        assert_ne!(asked.request_id, request);
        let details = asked.details.unwrap();
        assert_eq!(details["attempt"], 1);
        let problem = details["problem"].as_str().unwrap();
        for part in ["can run this call", "may have taken effect"] {
            assert!(problem.contains(part), "{problem}");
        }
    }
    let request = harness.only_request(task, RequestKind::Reconcile).await;
    let known = whole(Action::Respond, Some("it was tagged".into()));
    alice_decides(&api, request, known).await;
    harness.run().await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Responded]);
    assert_eq!(harness.executions(task, "/tag"), 1);
}

#[apply(both)]
async fn allowed_call_whose_tool_is_external_by_now_asks_for_its_result(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE_AND_TAG).await;
    let task = approved(&harness).await;
    harness.replace(
        r#"http: { method: POST, url: "{tool}/tag" }"#,
        "external: {}",
    );
    run(&harness, task).await;
    harness
        .only_request(task, RequestKind::ExternalResult)
        .await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Succeeded]);
    assert_eq!(harness.executions(task, "/refund"), 1);
    assert_eq!(harness.executions(task, "/tag"), 0);
}

#[apply(both)]
async fn changed_effect_is_journaled_before_the_call_is_sent(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE_AND_TAG).await;
    let task = approved(&harness).await;
    harness.replace("effect: idempotent", "effect: once");
    harness.tool.answers(502, "");
    for _ in 0..2 {
        harness.run().await;
        harness.only_request(task, RequestKind::Reconcile).await;
        harness.answer_all(&harness.engine(0), task).await;
    }
    let journal = harness.journal(task).await;
    let effects = journal.items.iter().filter_map(|item| {
        let Fact::Judged { effect, .. } = &item.fact else {
            return None;
        };
        Some(*effect)
    });
    assert_eq!(
        effects.collect::<Vec<_>>(),
        [Effect::Once, Effect::Idempotent, Effect::Once]
    );
    assert_eq!(
        harness.executions(task, "/tag"),
        1,
        "the call is asked about, not repeated"
    );
}

#[apply(both)]
async fn held_call_that_its_request_shows_as_once_is_sent_once_after_its_approval(
    fixture: StoreFixture,
) {
    const CALLS: [(&str, &str); 21] = beyond_the_maximum(("tag", r#"{"text":"paid"}"#));
    let mut harness = EngineHarness::new(fixture, &CALLS).await;
    harness.configure(|yaml| {
        let yaml = yaml.replace(
            "tag, refund, forbidden] }",
            "tag, refund, forbidden], human: [guidance], limits: { max_calls: 32 } }",
        );
        let rule = "policy:\n  - { name: watch, tools: [tag], decide: hold }\n";
        yaml.replace("policy:\n", rule)
    });
    let task = harness.held().await;
    let open = harness.open(task).await;
    assert_eq!(open.len(), 20);
    // The call was judged as idempotent, and there is no room for its request yet.
    harness.replace("effect: idempotent", "effect: once");
    harness.tool.answers(502, "");
    let api = harness.engine(0);
    let so = || fills(&json!({"answer": "so"}));
    alice_decides(&api, open[0].0, so()).await;
    harness.run().await;
    let open = harness.open_specs(task).await;
    let (approvals, questions): (Vec<_>, Vec<_>) = open
        .into_iter()
        .partition(|asked| asked.kind == RequestKind::Approval);
    let shown = approvals[0].own_calls().map(|call| call.effect);
    assert_eq!(shown.collect::<Vec<_>>(), [Effect::Once]);
    for asked in questions {
        alice_decides(&api, asked.request_id, so()).await;
    }
    let yes = whole(Action::Approve, None);
    alice_decides(&api, approvals[0].request_id, yes).await;
    harness.run().await;
    harness.only_request(task, RequestKind::Reconcile).await;
    assert_eq!(harness.executions(task, "/tag"), 1);
}
