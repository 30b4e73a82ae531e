//! Tests the end of standing decisions: by their time, a change, a message or a person.

use std::time::Duration;

use holdpoint::engine::{Engine, Refusal};
use holdpoint::people::Caller;
use holdpoint::task::decision::Action;
use holdpoint::task::grant::{GrantEnd, GrantScope};
use holdpoint::task::verdict::Verdict;
use macro_rules_attribute::apply;

use super::super::approval_rights::{account, known};
use super::super::call_decisions::{last_open_request, question};
use super::super::engine_harness::{
    Calls, alice_writes, decides, drive, person, superseding, whole,
};
use super::{
    LARGE, OFFER, TAG, answered, asks, grant, harness, hours, judgements, ran, remembered,
};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn next_message_of_the_user_ends_what_was_remembered_for_the_task(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE], &[LARGE], &[], &[LARGE]]).await;
    let task = harness.stopped().await;
    answered(&harness, task, remembered(GrantScope::Task, hours(1))).await;
    ran(&harness, task, "/refund", 2).await;
    alice_writes(&harness.engine(0), task, superseding("and now")).await;
    harness.run().await;
    asks(&harness, task, "/refund", 2).await;
    let row = grant(&harness).await;
    assert_eq!(row.ended(), Some(GrantEnd::Message));
}

#[apply(both)]
async fn standing_decision_ends_with_its_time_its_rule_its_tool_and_a_restored_history(
    fixture: StoreFixture,
) {
    type Change = fn(&str) -> String;
    let same: Change = str::to_owned;
    let rule: Change = |yaml| {
        yaml.replace(
            "Refunds above 20 need a look.",
            "Refunds above 20 need two looks.",
        )
    };
    let offer: Change = |yaml| yaml.replace("uses: 3", "uses: 4");
    let tool: Change = |yaml| yaml.replace("exclusiveMinimum: 0", "minimum: 1");
    let gone: Change = |yaml| yaml.replace(&format!(", remember: {OFFER}"), "");
    for (what, change, later, doubted, counts) in [
        ("nothing", same, 59, false, true),
        ("its time", same, 61, false, false),
        ("its rule", rule, 0, false, false),
        ("its offer", offer, 0, false, false),
        ("its tool", tool, 0, false, false),
        ("its remember", gone, 0, false, false),
        ("its history", same, 0, true, false),
    ] {
        let mut harness = harness(StoreFixture::like(&fixture).await, &[&[LARGE]]).await;
        let first = harness.stopped().await;
        answered(&harness, first, remembered(GrantScope::Owner, hours(1))).await;
        harness.configure(change);
        harness.fixture.forward(Duration::from_mins(later));
        if doubted {
            let doubt = "update database_identity set doubted_at = (select max(updated_at) from agent_task) returning doubted_at";
            harness.fixture.execute(doubt).await;
            harness.fixture.forward(Duration::from_secs(1));
        }
        let second = harness.stopped().await;
        let row = grant(&harness).await;
        let end = harness.engine(0).grants().ended(&row);
        assert_eq!(
            (harness.executions(second, "/refund"), end.is_none()),
            (usize::from(counts), counts),
            "{what}: {end:?}"
        );
    }
}

#[apply(both)]
async fn standing_decision_ends_with_the_right_of_its_giver(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE]]).await;
    let first = harness.stopped().await;
    answered(&harness, first, remembered(GrantScope::Owner, hours(1))).await;
    let parts = holdpoint::engine::EngineParts {
        roster: known([account("web", &[])]),
        ..harness.parts(4)
    };
    let engine = Engine::new(parts);
    let task = harness.queued().await;
    drive(&engine).await;
    asks(&harness, task, "/refund", 0).await;
    assert_eq!(
        engine.grants().ended(&grant(&harness).await),
        Some(GrantEnd::Giver)
    );
}

#[apply(both)]
async fn standing_decision_that_is_ended_before_the_start_does_not_count(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE], &[LARGE, TAG]]).await;
    let task = harness.stopped().await;
    answered(&harness, task, remembered(GrantScope::Task, hours(1))).await;
    // The standing decision allows the refund, but the refund waits until the request about the
    // tag is answered.
    asks(&harness, task, "/refund", 1).await;
    assert!(
        judgements(&harness, task)
            .await
            .iter()
            .any(|it| it.grant_id.is_some())
    );
    let row = grant(&harness).await;
    let engine = harness.engine(0);
    assert!(matches!(
        engine.grants().end(&person("carol"), row.grant_id).await,
        Err(Refusal::Forbidden(_))
    ));
    let foreign = Caller {
        tenant: "other".to_owned(),
        ..person("bob")
    };
    assert!(matches!(
        engine.grants().end(&foreign, row.grant_id).await,
        Err(Refusal::NotFound)
    ));
    engine
        .grants()
        .end(&person("bob"), row.grant_id)
        .await
        .unwrap();
    engine
        .grants()
        .end(&person("bob"), row.grant_id)
        .await
        .unwrap();
    answered(&harness, task, whole(Action::Approve, None)).await;
    asks(&harness, task, "/refund", 1).await;
    assert_eq!(
        last_open_request(&harness, task)
            .await
            .own_calls()
            .next()
            .unwrap()
            .name,
        "refund"
    );
    assert_eq!(
        harness.executions(task, "/tag"),
        0,
        "nothing runs while it is asked about"
    );
    answered(&harness, task, whole(Action::Approve, None)).await;
    ran(&harness, task, "/refund", 2).await;
    assert_eq!(
        engine.grants().ended(&grant(&harness).await),
        Some(GrantEnd::Revoked)
    );
}

#[apply(both)]
async fn change_before_the_start_ends_what_a_standing_decision_allowed(fixture: StoreFixture) {
    type Change = fn(&str) -> String;
    let same: Change = str::to_owned;
    let rule: Change = |yaml| yaml.replace("need a look.", "need two looks.");
    let tool: Change = |yaml| yaml.replace("exclusiveMinimum: 0", "minimum: 1");
    for (what, change, is_giver_known) in [
        ("its rule", rule, true),
        ("its tool", tool, true),
        ("its giver", same, false),
    ] {
        let turns: &[Calls] = &[&[LARGE], &[LARGE, TAG]];
        let mut harness = harness(StoreFixture::like(&fixture).await, turns).await;
        let task = harness.stopped().await;
        answered(&harness, task, remembered(GrantScope::Task, hours(1))).await;
        // The standing decision allows the refund, but the refund waits until the request about
        // the tag is answered.
        let (request, calls) = question(&harness, task).await;
        assert_eq!(calls.len(), 1, "{what}");
        let (engine, yes) = (harness.engine(0), whole(Action::Approve, None));
        decides(&engine, &person("bob"), request, yes).await;
        harness.configure(change);
        let mut parts = harness.parts(4);
        if !is_giver_known {
            parts.roster = known([account("web", &[])]);
        }
        drive(&Engine::new(parts)).await;
        asks(&harness, task, "/refund", 1).await;
        let open = harness.open_specs(task).await;
        let mut asked = open.iter();
        let is_asked = asked.any(|it| it.own_calls().any(|call| call.name == "refund"));
        assert!(is_asked, "{what}: {open:#?}");
        assert_eq!(grant(&harness).await.used, 0, "{what}");
    }
}

#[apply(both)]
async fn call_that_a_rule_allows_by_now_starts_although_its_standing_decision_has_ended(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture, &[&[LARGE], &[LARGE, TAG]]).await;
    let task = harness.stopped().await;
    answered(&harness, task, remembered(GrantScope::Task, hours(1))).await;
    // The standing decision allows the refund, but the refund waits until the request about the
    // tag is answered.
    asks(&harness, task, "/refund", 1).await;
    let (bob, id) = (person("bob"), grant(&harness).await.grant_id);
    harness.engine(0).grants().end(&bob, id).await.unwrap();
    harness.replace(
        "policy:\n",
        "policy:\n  - { name: trusted, tools: [refund], decide: allow }\n",
    );
    // This process stores the answer and the start of the refund in one commit.
    let (request, _) = question(&harness, task).await;
    let engine = harness.engine(1);
    decides(&engine, &bob, request, whole(Action::Approve, None)).await;
    harness.until_stopped(task).await;
    ran(&harness, task, "/refund", 2).await;
    let last = judgements(&harness, task).await.pop().unwrap();
    assert_eq!(
        (last.verdict, last.rule.as_deref(), last.grant_id),
        (Verdict::Allow, Some("trusted"), None)
    );
    assert_eq!(grant(&harness).await.used, 0);
}
