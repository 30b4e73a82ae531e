//! Tests standing decisions. An approval with `remember` lets later calls under the same rule run
//! without a request, up to a number of uses and until it expires. Such an approval lets no other
//! call run, and a stricter verdict takes precedence over the approval.

mod endings;
mod offers;
mod uses;

use std::time::Duration;

use holdpoint::engine::{CallReply, DecisionBody, DecisionInput, Refusal};
use holdpoint::people::Caller;
use holdpoint::store::{GrantFilter, GrantRow};
use holdpoint::task::decision::Action;
use holdpoint::task::grant::{GrantRequest, GrantScope};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Fact;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::verdict::{Judgement, Verdict};
use macro_rules_attribute::apply;

use super::call_decisions::{approve, each, last_open_request, plain, question};
use super::engine_harness::{
    Calls, EngineHarness, alice, alice_is_refused, decides, go, person, whole,
};
use crate::store::store_fixture::{StoreFixture, both};

pub(super) const LARGE: (&str, &str) = ("refund", r#"{"order":1,"amount":120}"#);

pub(super) const OTHER: (&str, &str) = ("refund", r#"{"order":2,"amount":121}"#);

const HUGE: (&str, &str) = ("refund", r#"{"order":2,"amount":900}"#);

const SMALL: (&str, &str) = ("refund", r#"{"order":3,"amount":5}"#);

const TAG: (&str, &str) = ("tag", r#"{"text":"paid"}"#);

const TAG_AGAIN: (&str, &str) = ("tag", r#"{ "text" : "paid" }"#);

const OTHER_TAG: (&str, &str) = ("tag", r#"{"text":"open"}"#);

const OFFER: &str = r#"{ when: "args.amount <= 500.0", for: [task, owner], most: 4h, uses: 3 }"#;

const APPROVERS: &str = "approvers: { owner: true }";

const BY_BOB: &str = "approvers: { users: [bob] }";

/// Creates a harness whose model makes the calls in `turns`, turn by turn, and then finishes. Bob
/// decides about large refunds and may remember an approval. Calls of `tag` are also held, and an
/// approval of them can be remembered for the same arguments.
pub(super) async fn harness(fixture: StoreFixture, turns: &'static [Calls]) -> EngineHarness {
    let mut harness = EngineHarness::new(fixture, &[]).await;
    harness.script_turns(turns);
    harness.configure(|yaml| {
        let yaml = yaml.replace(APPROVERS, &format!("{BY_BOB}, remember: {OFFER}"));
        yaml.replace(
            "  - { name: reads, tools: [lookup, tag], decide: allow }\n",
            "  - { name: reads, tools: [lookup], decide: allow }\n  - { name: tags, tools: [tag], decide: hold, approvers: { users: [bob] }, remember: { same: true, for: [task, owner], most: 1h, uses: 2 } }\n",
        )
    });
    harness
}

pub(super) fn hours(hours: u64) -> Duration {
    Duration::from_hours(hours)
}

/// Returns an approval of all calls of a request, with `remember`.
pub(super) fn remembered(scope: GrantScope, expires_in: Duration) -> DecisionInput {
    let mut answer = whole(Action::Approve, None);
    if let DecisionBody::Whole { remember, .. } = &mut answer.body {
        *remember = Some(GrantRequest { scope, expires_in });
    }
    answer
}

async fn begun_by(harness: &EngineHarness, caller: &Caller) -> TaskId {
    let engine = harness.engine(0);
    let task = engine.create(caller, go(), None).await.unwrap().task_id;
    harness.run().await;
    task
}

/// Answers the open request as Bob. Then a new process drives the task on.
pub(super) async fn answered(harness: &EngineHarness, task: TaskId, answer: DecisionInput) {
    let (request, _) = question(harness, task).await;
    let engine = harness.engine(0);
    decides(&engine, &person("bob"), request, answer).await;
    harness.run().await;
}

pub(super) async fn judgements(harness: &EngineHarness, task: TaskId) -> Vec<Judgement> {
    let items = harness.journal(task).await.items.into_iter();
    items
        .filter_map(|item| {
            let Fact::Judged { judgement, .. } = item.fact else {
                return None;
            };
            Some(judgement)
        })
        .collect()
}

async fn grants(harness: &EngineHarness) -> Vec<GrantRow> {
    let filter = GrantFilter {
        tenant: "acme".to_owned(),
        limit: 50,
        ..GrantFilter::default()
    };
    harness.fixture.store.grants(&filter).await.unwrap().rows
}

pub(super) async fn grant(harness: &EngineHarness) -> GrantRow {
    let mut all = grants(harness).await;
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Asserts that the task waits for an answer, and that the tool at `path` was called `after` times
/// before.
pub(super) async fn asks(harness: &EngineHarness, task: TaskId, path: &str, after: usize) {
    let seen = (harness.status(task).await, harness.executions(task, path));
    assert_eq!(
        seen,
        (TaskStatus::Paused, after),
        "{:#?}",
        judgements(harness, task).await
    );
}

pub(super) async fn ran(harness: &EngineHarness, task: TaskId, path: &str, calls: usize) {
    let seen = (harness.status(task).await, harness.executions(task, path));
    assert_eq!(
        seen,
        (TaskStatus::Completed, calls),
        "{:#?}",
        judgements(harness, task).await
    );
}

#[apply(both)]
async fn approval_without_remember_remembers_nothing(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE], &[LARGE]]).await;
    let task = harness.stopped().await;
    answered(&harness, task, whole(Action::Approve, None)).await;
    asks(&harness, task, "/refund", 1).await;
    assert_eq!(grants(&harness).await, []);
    answered(
        &harness,
        task,
        each([(question(&harness, task).await.1[0], approve())]),
    )
    .await;
    ran(&harness, task, "/refund", 2).await;
    assert_eq!(grants(&harness).await, []);
}

#[apply(both)]
async fn remembered_approval_lets_later_calls_of_its_rule_through_and_says_so(
    fixture: StoreFixture,
) {
    let harness = harness(fixture, &[&[LARGE], &[OTHER], &[HUGE]]).await;
    let task = harness.stopped().await;
    answered(&harness, task, remembered(GrantScope::Task, hours(1))).await;
    asks(&harness, task, "/refund", 2).await;
    let judged = judgements(&harness, task).await;
    let verdicts: Vec<_> = judged
        .iter()
        .map(|it| (it.verdict, it.rule.as_deref()))
        .collect();
    let large = Some("large");
    assert_eq!(
        verdicts,
        [
            (Verdict::Hold, large),
            (Verdict::Allow, large),
            (Verdict::Hold, large)
        ]
    );
    let row = grant(&harness).await;
    assert_eq!(judged[1].grant_id, Some(row.grant_id));
    let minute = |at: holdpoint::task::time::Time| at.to_string()[11..16].to_owned();
    let reason = judged[1].reason.clone().unwrap();
    let (until, asked) = (minute(row.expires_at), minute(row.created_at));
    assert!(
        reason.starts_with("bob allowed this until ")
            && reason.contains(&until)
            && reason.contains(&asked),
        "{reason}"
    );
    assert_eq!(
        (row.used, row.uses, row.by.by.as_str(), row.agent.as_str()),
        (1, 3, "bob", "billing")
    );
    let given: Vec<_> = harness
        .journal(task)
        .await
        .items
        .into_iter()
        .filter_map(|item| {
            let Fact::Decision { decision, .. } = item.fact else {
                return None;
            };
            decision.grants().first().map(|grant| grant.grant_id)
        })
        .collect();
    assert_eq!(
        given,
        [row.grant_id],
        "the commit that gives it journals it"
    );
}

#[apply(both)]
async fn call_with_other_arguments_than_the_remembered_ones_is_asked_about(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[TAG], &[TAG_AGAIN], &[OTHER_TAG]]).await;
    let task = harness.stopped().await;
    answered(&harness, task, remembered(GrantScope::Owner, hours(1))).await;
    asks(&harness, task, "/tag", 2).await;
    assert_eq!(
        last_open_request(&harness, task)
            .await
            .own_calls()
            .next()
            .unwrap()
            .arguments_text,
        OTHER_TAG.1
    );
}

#[apply(both)]
async fn call_of_another_task_owner_agent_or_tenant_is_asked_about(fixture: StoreFixture) {
    let mut harness = harness(fixture, &[&[LARGE]]).await;
    harness.replace("policy:\n", "  other: { description: Refunds too., model: main, instructions: Refund., tools: [refund] }\ndefault_agent: billing\npolicy:\n");
    let first = harness.stopped().await;
    answered(&harness, first, remembered(GrantScope::Task, hours(1))).await;
    ran(&harness, first, "/refund", 1).await;
    let second = harness.stopped().await;
    asks(&harness, second, "/refund", 0).await;
    answered(&harness, second, remembered(GrantScope::Owner, hours(1))).await;
    let third = harness.stopped().await;
    ran(&harness, third, "/refund", 1).await;
    let spelled = begun_by(&harness, &person("ALICE")).await;
    ran(&harness, spelled, "/refund", 1).await;
    let carols = begun_by(&harness, &person("carol")).await;
    asks(&harness, carols, "/refund", 0).await;
    let foreign = begun_by(
        &harness,
        &Caller {
            tenant: "other".to_owned(),
            ..alice()
        },
    )
    .await;
    asks(&harness, foreign, "/refund", 0).await;
    let input = holdpoint::engine::TaskInput {
        agent: Some("other".to_owned()),
        ..go()
    };
    let other = harness
        .engine(0)
        .create(&alice(), input, None)
        .await
        .unwrap()
        .task_id;
    harness.run().await;
    asks(&harness, other, "/refund", 0).await;
}

#[apply(both)]
async fn standing_decision_of_a_task_counts_in_the_tree_that_both_its_row_and_the_journal_name(
    fixture: StoreFixture,
) {
    let harness = harness(fixture, &[&[LARGE], &[TAG], &[LARGE]]).await;
    let (first, second) = (harness.stopped().await, harness.stopped().await);
    answered(&harness, first, remembered(GrantScope::Task, hours(1))).await;
    asks(&harness, first, "/refund", 1).await;
    // Damages the row of the standing decision, so that it names the tree of the other task.
    let moved = "update standing_grant set root_task_id =
            (select a.task_id from agent_task a where a.task_id <> standing_grant.root_task_id) returning used";
    harness.fixture.execute(moved).await;
    for task in [second, first] {
        while harness.executions(task, "/tag") == 0 {
            answered(&harness, task, whole(Action::Approve, None)).await;
        }
        asks(&harness, task, "/refund", 1).await;
    }
    assert_eq!(grant(&harness).await.used, 0);
}

#[apply(both)]
async fn rejection_beats_a_standing_decision(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE, OTHER], &[OTHER], &[LARGE]]).await;
    let task = harness.stopped().await;
    let (request, calls) = question(&harness, task).await;
    let yes = CallReply {
        remember: Some(GrantRequest {
            scope: GrantScope::Owner,
            expires_in: hours(1),
        }),
        ..approve()
    };
    let no = plain(Action::Reject);
    decides(
        &harness.engine(0),
        &person("bob"),
        request,
        each([(calls[0], yes), (calls[1], no)]),
    )
    .await;
    harness.run().await;
    ran(&harness, task, "/refund", 2).await;
    let verdicts: Vec<_> = judgements(&harness, task)
        .await
        .into_iter()
        .map(|it| it.verdict)
        .collect();
    assert_eq!(
        verdicts,
        [Verdict::Hold, Verdict::Hold, Verdict::Deny, Verdict::Allow]
    );
}

#[apply(both)]
async fn deny_and_the_hold_of_another_rule_beat_a_standing_decision(fixture: StoreFixture) {
    let mut harness = harness(fixture, &[&[LARGE]]).await;
    let first = harness.stopped().await;
    answered(&harness, first, remembered(GrantScope::Owner, hours(1))).await;
    let before = harness.yaml();
    harness.replace("policy:\n", "policy:\n  - { name: watch, tools: [refund], decide: hold, approvers: { users: [carol] } }\n");
    let second = harness.stopped().await;
    asks(&harness, second, "/refund", 0).await;
    assert_eq!(
        last_open_request(&harness, second)
            .await
            .terms
            .approvers
            .users,
        ["carol"]
    );
    harness.configure(|_| {
        before.replace(
            "policy:\n",
            "policy:\n  - { name: stop, tools: [refund], decide: deny }\n",
        )
    });
    let third = harness.stopped().await;
    ran(&harness, third, "/refund", 0).await;
}

#[apply(both)]
async fn tool_in_doubt_is_asked_about_by_the_approvers_of_the_rule(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE], &[OTHER], &[LARGE]]).await;
    let task = harness.stopped().await;
    harness.tool.answers(500, "");
    answered(&harness, task, remembered(GrantScope::Task, hours(1))).await;
    asks(&harness, task, "/refund", 1).await;
    let asked = last_open_request(&harness, task).await;
    assert_eq!(asked.terms.approvers.users, ["bob"], "not the owner");
    let reason = asked.own_calls().next().unwrap().reason.clone().unwrap();
    assert!(reason.contains("failed with status 500"), "{reason}");
}

#[apply(both)]
async fn unknown_outcome_is_for_the_approvers_of_the_rule_only_after_a_standing_decision(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture, &[&[LARGE]]).await;
    let small = r#"tools: [refund], when: "args.amount <= 20.0", decide: allow"#;
    harness.replace(small, &format!("{small}, {BY_BOB}"));
    let first = harness.stopped().await;
    answered(&harness, first, remembered(GrantScope::Owner, hours(1))).await;
    ran(&harness, first, "/refund", 1).await;
    harness.tool.answers(502, "");
    let granted = harness.stopped().await;
    harness.script_turns(&[&[SMALL]]);
    let allowed = harness.stopped().await;
    for (task, users) in [(granted, vec!["bob"]), (allowed, Vec::new())] {
        asks(&harness, task, "/refund", 1).await;
        let asked = last_open_request(&harness, task).await;
        assert_eq!(asked.kind, RequestKind::Reconcile);
        let approvers = asked.terms.approvers;
        assert_eq!(approvers.owner, users.is_empty(), "{approvers:?}");
        assert_eq!(approvers.users, users);
    }
    harness.tool.answers(200, "paid");
    let (request, _) = question(&harness, granted).await;
    for answer in [
        whole(Action::Retry, None),
        whole(Action::Respond, Some("it was paid".into())),
    ] {
        let refused = alice_is_refused(&harness.engine(0), request, answer).await;
        assert!(matches!(refused, Refusal::Forbidden(_)), "{refused:?}");
    }
    answered(&harness, granted, whole(Action::Retry, None)).await;
    ran(&harness, granted, "/refund", 2).await;
}

/// A turn of more calls than `max_calls` (16) runs none of them.
#[apply(both)]
async fn turn_of_too_many_calls_uses_no_standing_decision(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE], &[OTHER; 17]]).await;
    let task = harness.stopped().await;
    answered(&harness, task, remembered(GrantScope::Task, hours(1))).await;
    ran(&harness, task, "/refund", 1).await;
    assert_eq!(grant(&harness).await.used, 0);
}
