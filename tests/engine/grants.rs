//! Tests standing decisions. An approval with `remember` lets later calls under the same rule run
//! without a request, up to a number of uses and until it expires. Such an approval lets no other
//! call run, and a stricter verdict takes precedence over the approval.

use std::time::Duration;

use futures_util::future::join_all;
use holdpoint::engine::{CallReply, DecisionBody, DecisionInput, Engine, Refusal};
use holdpoint::people::Caller;
use holdpoint::store::{GrantFilter, GrantRow};
use holdpoint::task::decision::{Action, Door};
use holdpoint::task::grant::{GrantEnd, GrantRequest, GrantScope};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Fact;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::verdict::{Judgement, Verdict};
use macro_rules_attribute::apply;

use super::approval_rights::{account, directory};
use super::call_decisions::{
    approve, each, last_open_request, message, places, plain, question, refused,
};
use super::engine_harness::{
    Calls, EngineHarness, alice, claimed, drive, go, person, rejects, whole,
};
use super::takeover::{Drop, drive_and_drop};
use super::two_replicas::Pair;
use crate::store::store_fixture::{StoreFixture, both};

pub(super) const LARGE: (&str, &str) = ("refund", r#"{"order":1,"amount":120}"#);
pub(super) const OTHER: (&str, &str) = ("refund", r#"{"order":2,"amount":121}"#);
const HUGE: (&str, &str) = ("refund", r#"{"order":2,"amount":900}"#);
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
    engine
        .decide(&person("bob"), request, answer, None)
        .await
        .unwrap();
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
            decision.grants().next().map(|(_, grant)| grant.grant_id)
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
    harness.configure(|yaml| yaml.replace("policy:\n", "  other: { description: Refunds too., model: main, instructions: Refund., tools: [refund] }\ndefault_agent: billing\npolicy:\n"));
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
    harness.fixture.numbers(moved).await.unwrap();
    for task in [second, first] {
        while harness.executions(task, "/tag") == 0 {
            answered(&harness, task, whole(Action::Approve, None)).await;
        }
        asks(&harness, task, "/refund", 1).await;
    }
    assert_eq!(grant(&harness).await.used, 0);
}

#[apply(both)]
async fn next_message_of_the_user_ends_what_was_remembered_for_the_task(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE], &[LARGE], &[], &[LARGE]]).await;
    let task = harness.stopped().await;
    answered(&harness, task, remembered(GrantScope::Task, hours(1))).await;
    ran(&harness, task, "/refund", 2).await;
    harness
        .engine(0)
        .message(&alice(), task, message(), None)
        .await
        .unwrap();
    harness.run().await;
    asks(&harness, task, "/refund", 2).await;
    let row = grant(&harness).await;
    assert_eq!(row.ended(), Some(GrantEnd::Message));
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
    harness
        .engine(0)
        .decide(
            &person("bob"),
            request,
            each([(calls[0], yes), (calls[1], no)]),
            None,
        )
        .await
        .unwrap();
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
    harness.configure(|yaml| yaml.replace("policy:\n", "policy:\n  - { name: watch, tools: [refund], decide: hold, approvers: { users: [carol] } }\n"));
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
            harness.fixture.numbers(doubt).await.unwrap();
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
    let nobody = holdpoint::people::authorization::Roster::new(Some(directory(
        [account("web", &[])].into_iter(),
    )));
    let parts = holdpoint::engine::EngineParts {
        roster: nobody,
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
async fn calls_of_one_turn_use_no_more_than_is_left(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[TAG], &[TAG, TAG, TAG]]).await;
    let task = harness.stopped().await;
    answered(&harness, task, remembered(GrantScope::Task, hours(1))).await;
    asks(&harness, task, "/tag", 1).await;
    assert_eq!(
        question(&harness, task).await.1.len(),
        1,
        "two are let through"
    );
    answered(&harness, task, whole(Action::Approve, None)).await;
    ran(&harness, task, "/tag", 4).await;
    assert_eq!(
        (grant(&harness).await.used, grants(&harness).await.len()),
        (2, 1)
    );
}

#[apply(both)]
async fn tasks_of_two_replicas_use_no_more_than_is_left(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE]]).await;
    let first = harness.stopped().await;
    answered(&harness, first, remembered(GrantScope::Owner, hours(1))).await;
    let pair = Pair::of(harness).await;
    let begin = async |round: usize| {
        pair.turned(round)
            .0
            .create(&alice(), go(), None)
            .await
            .unwrap()
            .task_id
    };
    let tasks = join_all((0..8).map(begin)).await;
    for task in &tasks {
        let mut news = pair.harness.fixture.store.watch(*task);
        while pair.harness.status(*task).await == TaskStatus::Running {
            let _ = tokio::time::timeout(Duration::from_millis(50), news.changed()).await;
        }
    }
    let mut run = 0;
    for task in tasks {
        let calls = pair.harness.executions(task, "/refund");
        let status = if calls == 1 {
            TaskStatus::Completed
        } else {
            TaskStatus::Paused
        };
        assert_eq!(
            (pair.harness.status(task).await, calls <= 1),
            (status, true)
        );
        run += calls;
    }
    assert_eq!((run, grant(&pair.harness).await.used), (3, 3));
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
async fn wish_beyond_the_offer_is_refused(fixture: StoreFixture) {
    let mut harness = harness(fixture, &[&[LARGE, TAG], &[HUGE]]).await;
    let task = harness.stopped().await;
    let open = harness.open_specs(task).await;
    assert_eq!(open.len(), 1, "the terms are the same");
    let (request, calls) = question(&harness, task).await;
    let api = harness.engine(0);
    let bob = person("bob");
    let reply = |scope, time| CallReply {
        remember: Some(GrantRequest {
            scope,
            expires_in: time,
        }),
        ..approve()
    };
    let reject = |remember| CallReply {
        remember,
        ..plain(Action::Reject)
    };
    let wish = reply(GrantScope::Task, hours(1)).remember;
    for (answer, place) in [
        (
            remembered(GrantScope::Owner, hours(2)),
            "/remember/expires_in".to_owned(),
        ),
        (
            each([(calls[1], reply(GrantScope::Task, hours(2)))]),
            format!("/decisions/{}/remember/expires_in", calls[1]),
        ),
        (
            each([(
                calls[0],
                reply(GrantScope::Task, Duration::from_secs(4 * 3600 + 1)),
            )]),
            format!("/decisions/{}/remember/expires_in", calls[0]),
        ),
        (
            each([(calls[0], reject(wish))]),
            format!("/decisions/{}/remember", calls[0]),
        ),
    ] {
        assert_eq!(
            places(&refused(&harness, &api, &bob, task, answer).await),
            [place]
        );
    }
    for by in [Door::Link, Door::Slack] {
        let caller = Caller {
            door: Some(by),
            ..person("bob")
        };
        for answer in [
            remembered(GrantScope::Task, hours(1)),
            each([(calls[0], reply(GrantScope::Task, hours(1)))]),
        ] {
            assert!(matches!(
                refused(&harness, &api, &caller, task, answer).await,
                Refusal::Forbidden(_)
            ));
        }
    }
    // Changes the rule after the request was opened.
    let before = harness.yaml();
    harness.configure(|yaml| yaml.replace("args.amount <= 500.0", "args.amount <= 400.0"));
    let later = harness.engine(0);
    let changed = refused(
        &harness,
        &later,
        &bob,
        task,
        remembered(GrantScope::Task, hours(1)),
    )
    .await;
    assert_eq!(places(&changed), ["/remember"]);
    harness.configure(|_| before.clone());
    harness
        .engine(0)
        .decide(&bob, request, remembered(GrantScope::Task, hours(1)), None)
        .await
        .unwrap();
    assert_eq!(grants(&harness).await.len(), 2, "one for each call");
    harness.run().await;
    let beyond = refused(
        &harness,
        &api,
        &bob,
        task,
        remembered(GrantScope::Task, hours(1)),
    )
    .await;
    assert_eq!(
        places(&beyond),
        ["/remember"],
        "the condition does not hold"
    );
    answered(
        &harness,
        task,
        rejects(holdpoint::task::decision::Then::Continue),
    )
    .await;
}

#[apply(both)]
async fn scope_that_is_not_offered_is_refused(fixture: StoreFixture) {
    let mut harness = harness(fixture, &[&[LARGE]]).await;
    harness.configure(|yaml| yaml.replace("for: [task, owner], most: 4h", "for: [task], most: 4h"));
    let task = harness.stopped().await;
    let (api, wish) = (harness.engine(0), remembered(GrantScope::Owner, hours(1)));
    let said = refused(&harness, &api, &person("bob"), task, wish).await;
    assert_eq!(places(&said), ["/remember/for"]);
}

#[apply(both)]
async fn replayed_approval_gives_no_second_standing_decision(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE]]).await;
    let task = harness.stopped().await;
    let (request, _) = question(&harness, task).await;
    let engine = harness.engine(0);
    let once = remembered(GrantScope::Owner, hours(1));
    engine
        .decide(&person("bob"), request, once.clone(), None)
        .await
        .unwrap();
    let again = engine.decide(&person("bob"), request, once, None).await;
    assert!(
        matches!(again, Err(Refusal::AlreadyDecided { .. })),
        "{again:?}"
    );
    assert_eq!(grants(&harness).await.len(), 1);
}

#[apply(both)]
async fn retried_attempt_counts_once(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[TAG]]).await;
    let first = harness.stopped().await;
    answered(&harness, first, remembered(GrantScope::Owner, hours(1))).await;
    harness.tool.close();
    let second = harness.queued().await;
    let drivers = claimed(&harness.engine(1)).await;
    harness.tool.reached(2).await;
    for driver in drivers {
        driver.abort();
    }
    assert_eq!(grant(&harness).await.used, 1);
    harness.tool.open();
    harness.later();
    harness.run().await;
    ran(&harness, second, "/tag", 2).await;
    assert_eq!(
        grant(&harness).await.used,
        1,
        "the second attempt is the same call"
    );
}

#[apply(both)]
async fn call_that_is_let_through_runs_at_most_once_wherever_its_driver_is_dropped(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture, &[&[LARGE]]).await;
    harness.configure(|yaml| yaml.replace("uses: 3", "uses: 1000"));
    let first = harness.stopped().await;
    answered(&harness, first, remembered(GrantScope::Owner, hours(4))).await;
    let (mut polls, mut started) = (0, 0);
    loop {
        let (task, by_itself) = drive_and_drop(&harness, Drop::AtOnce, polls).await;
        let journal = harness.journal(task).await;
        let starts = journal.items.iter().filter(
            |item| matches!(&item.fact, Fact::ToolStarted { grant: Some(used), .. } if !used.again),
        );
        started += starts.count();
        assert!(
            harness.executions(task, "/refund") <= 1,
            "{polls}: {:#?}",
            journal.items
        );
        let used = grant(&harness).await.used;
        assert_eq!(
            usize::try_from(used),
            Ok(started),
            "{polls}: {:#?}",
            journal.items
        );
        polls += 1;
        if by_itself {
            break;
        }
    }
    assert!(polls > 5, "only {polls} await points");
}
