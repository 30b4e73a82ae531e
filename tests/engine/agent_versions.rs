//! Tests which agent version a task uses. The version stays pinned from one user message to the
//! next, even if the configuration or the stored bytes change in between.

use holdpoint::engine::{MessageInput, Refusal};
use holdpoint::task::call_state::OUTCOME_UNKNOWN_TEXT;
use holdpoint::task::decision::Action;
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::{CallSpec, RequestKind};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::tool_spec::Effect;
use macro_rules_attribute::apply;

use super::engine_harness::{EngineHarness, alice, go, outcomes, whole};
use crate::store::store_fixture::{StoreFixture, both};

const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];
const TAG: &[(&str, &str)] = &[("tag", r#"{"text":"paid"}"#)];

/// Returns the configuration with a changed refund agent. The agent has other instructions, another
/// model and fewer tools, and the tool `refund` has another description.
fn changed(yaml: &str) -> String {
    with_another_model(yaml)
        .replace(
            "model: main, instructions: You handle refunds., tools: [lookup, tag, refund, forbidden]",
            "model: other, instructions: You are new., tools: [lookup, refund]",
        )
        .replace("Pay an order back.", "Give money back.")
}

fn with_another_model(yaml: &str) -> String {
    if yaml.contains("  other:") {
        return yaml.to_owned();
    }
    yaml.replace(
        "models:\n",
        "models:\n  other: { provider: openai, base_url: \"{model}\", model: fake }\n",
    )
}

/// Returns three parts of the last prompt: the model's name, the instructions, and the tools with
/// their descriptions.
fn shown(harness: &EngineHarness) -> (String, String, Vec<String>) {
    let (model, prompt) = harness.prompted();
    let tools = prompt
        .tools
        .iter()
        .map(|tool| format!("{}: {}", tool.name, tool.description))
        .collect();
    (model, prompt.system.unwrap_or_default(), tools)
}

fn before() -> (String, String, Vec<String>) {
    let tools = [
        "lookup: ",
        "tag: ",
        "refund: Pay an order back.",
        "forbidden: ",
    ];
    (
        "main".to_owned(),
        "You handle refunds.".to_owned(),
        tools.map(str::to_owned).to_vec(),
    )
}

fn after() -> (String, String, Vec<String>) {
    let tools = ["lookup: ", "refund: Give money back."];
    (
        "other".to_owned(),
        "You are new.".to_owned(),
        tools.map(str::to_owned).to_vec(),
    )
}

fn message() -> MessageInput {
    MessageInput {
        items: go().items,
        user_context: None,
        supersede: false,
    }
}

async fn failure(harness: &EngineHarness, task: TaskId) -> Option<FailureCode> {
    let row = harness.journal(task).await.row;
    assert_eq!(
        (row.status, row.open_requests, row.busy),
        (TaskStatus::Failed, 0, 0)
    );
    row.error.map(|error| error.code)
}

async fn retry(harness: &EngineHarness, task: TaskId) {
    harness.engine(0).retry(&alice(), task, None).await.unwrap();
    run(harness, task).await;
}

/// Drives the task until it no longer runs. A claim skips a task whose row is locked, so there may
/// be several claims.
async fn run(harness: &EngineHarness, task: TaskId) {
    for _ in 0..20 {
        harness.run().await;
        if harness.status(task).await != TaskStatus::Running {
            return;
        }
        harness.later();
    }
}

async fn approved(harness: &EngineHarness) -> TaskId {
    let task = harness.held().await;
    harness.answer_all(&harness.engine(0), task).await;
    task
}

async fn rewrite(fixture: &StoreFixture, task: TaskId, kind: &str, from: &str, to: &str) {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let id = fixture.literal(task.0);
    let sql = format!(
        "update agent_task_item set body = replace(body, {}, {}) where task_id = {id} and type = '{kind}'",
        quoted(from),
        quoted(to)
    );
    fixture.numbers(&sql).await.unwrap();
}

/// Returns pairs (before, after) of members of a call's JSON. In each pair, one byte of the
/// member's text is changed: the first, the middle or the last byte. The tests of
/// `RequestSpec::has_valid_digests` cover every byte.
fn flipped(call: &CallSpec) -> Vec<(String, String)> {
    let members = [
        ("arguments_text", &call.arguments_text),
        ("name", &call.name),
        ("target", &call.target),
        ("digest", &call.digest),
    ];
    let json =
        |member: &str, text: &str| format!("\"{member}\":{}", serde_json::to_string(text).unwrap());
    let all = members.into_iter().flat_map(|(member, text)| {
        [0, text.len() / 2, text.len() - 1].map(|at| {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            (
                json(member, text),
                json(member, &String::from_utf8(bytes).unwrap()),
            )
        })
    });
    all.collect()
}

async fn first_call_of_request(harness: &EngineHarness, task: TaskId) -> CallSpec {
    let items = harness.journal(task).await.items;
    let asked = items.iter().find_map(|item| {
        let Fact::InterventionRequested(asked) = &item.fact else {
            return None;
        };
        Some(asked.pending_tool_calls[0].clone())
    });
    asked.unwrap()
}

/// Loses the result of a repeatable call. Then replaces the tool's effect and URL in the
/// configuration by `now`. Asserts that the call is not repeated.
async fn not_repeated(fixture: StoreFixture, now: &str) {
    let mut harness = EngineHarness::new(fixture, TAG).await;
    let task = harness.lost_call().await;
    harness.later();
    harness.configure(|yaml| {
        yaml.replace(
            "effect: idempotent, http: { method: POST, url: \"{tool}/tag\"",
            now,
        )
    });
    harness.run().await;
    let [(_, RequestKind::Reconcile)] = harness.open(task).await[..] else {
        panic!("{:#?}", harness.journal(task).await)
    };
    harness.finish(task).await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Responded]);
    assert_eq!(
        (
            harness.executions(task, "/tag"),
            harness.executions(task, "/tagged")
        ),
        (1, 0)
    );
}

#[apply(both)]
async fn paused_task_keeps_its_agent_version_until_the_next_message(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    let task = harness.held().await;
    let version = harness.journal(task).await.row.agent_version;
    harness.configure(changed);
    harness.answer_all(&harness.engine(0), task).await;
    harness.run().await;
    assert_eq!(shown(&harness), before());
    let row = harness.journal(task).await.row;
    assert_eq!(
        (row.status, &row.agent_version),
        (TaskStatus::Completed, &version)
    );
    harness
        .engine(0)
        .message(&alice(), task, message(), None)
        .await
        .unwrap();
    assert_ne!(
        harness.journal(task).await.row.agent_version,
        version,
        "in the commit of the message"
    );
    harness.run().await;
    assert_eq!(shown(&harness), after());
    let current = harness.queued().await;
    assert_eq!(
        harness.journal(current).await.row.agent_version,
        harness.journal(task).await.row.agent_version
    );
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn tasks_of_two_agent_versions_run_side_by_side_on_either_replica(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    harness.configure(with_another_model);
    let (old, old_task) = (harness.engine(4), harness.held().await);
    harness.configure(changed);
    let (new, new_task) = (harness.engine(4), harness.held().await);
    for (engine, task, expected) in [(&new, old_task, before()), (&old, new_task, after())] {
        harness.answer_all(engine, task).await;
        harness.until_stopped(task).await;
        assert_eq!(harness.status(task).await, TaskStatus::Completed);
        assert_eq!(shown(&harness), expected);
        assert_eq!(harness.executions(task, "/refund"), 1);
    }
}

#[apply(both)]
async fn removed_model_fails_the_task_and_a_retry_goes_on_when_it_is_back(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    let whole_yaml = harness.yaml();
    let task = approved(&harness).await;
    let version = harness.journal(task).await.row.agent_version;
    harness.configure(|yaml| {
        yaml.replace("  main:", "  renamed:")
            .replace("model: main", "model: renamed")
    });
    harness.run().await;
    assert_eq!(
        failure(&harness, task).await,
        Some(FailureCode::Configuration)
    );
    retry(&harness, task).await;
    assert_eq!(
        failure(&harness, task).await,
        Some(FailureCode::Configuration),
        "the model is still gone"
    );
    harness.configure(|_| whole_yaml.clone());
    retry(&harness, task).await;
    let row = harness.journal(task).await.row;
    assert_eq!(
        (row.status, row.agent_version),
        (TaskStatus::Completed, version)
    );
    assert_eq!(
        (shown(&harness), harness.executions(task, "/refund")),
        (before(), 1)
    );
}

#[apply(both)]
async fn removed_variable_fails_the_task_and_a_retry_uses_its_new_value(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    harness.variables.push(("WHO", "Ada"));
    harness.configure(|yaml| yaml.replace("You handle refunds.", "\"You are ${WHO}.\""));
    let task = approved(&harness).await;
    harness.variables.pop();
    harness.configure(|yaml| yaml.replace("${WHO}", "nobody"));
    harness.run().await;
    assert_eq!(
        failure(&harness, task).await,
        Some(FailureCode::Configuration)
    );
    assert_eq!(harness.executions(task, "/refund"), 0);
    harness.variables.push(("WHO", "Eve"));
    retry(&harness, task).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(
        (shown(&harness).1, harness.executions(task, "/refund")),
        ("You are Eve.".to_owned(), 1)
    );
}

#[apply(both)]
async fn changed_limit_and_changed_policy_apply_at_once(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    let original = harness.yaml();
    let limited = approved(&harness).await;
    harness.configure(|yaml| {
        changed(yaml).replace(
            "model: other,",
            "model: other, limits: { max_model_calls: 1 },",
        )
    });
    harness.run().await;
    assert_eq!(
        failure(&harness, limited).await,
        Some(FailureCode::LimitReached)
    );
    harness.configure(|_| original.clone());
    let denied = approved(&harness).await;
    let deny = "decide: deny, reason: Refunds above 20 need a look. }";
    harness.configure(|yaml| {
        changed(yaml).replace(
            "decide: hold, reason: Refunds above 20 need a look., approvers: { owner: true } }",
            deny,
        )
    });
    harness.run().await;
    assert_eq!(outcomes(&harness.journal(denied).await), [Outcome::Denied]);
    assert_eq!(
        (
            harness.executions(limited, "/refund"),
            harness.executions(denied, "/refund")
        ),
        (1, 0)
    );
}

#[apply(both)]
async fn tool_with_a_changed_target_is_asked_about_anew(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    let (waiting, task) = (harness.held().await, approved(&harness).await);
    harness.configure(|yaml| yaml.replace("{tool}/refund", "{tool}/elsewhere"));
    harness.run().await;
    let [(_, RequestKind::Approval)] = harness.open(task).await[..] else {
        panic!("it is asked anew")
    };
    let [(request, RequestKind::Approval)] = harness.open(waiting).await[..] else {
        panic!("one is open")
    };
    let answered = harness
        .engine(0)
        .decide(&alice(), request, whole(Action::Approve, None), None)
        .await;
    assert_eq!(answered.err(), Some(Refusal::Withdrawn(request)));
    assert_eq!(harness.tool.ledger().len(), 0);
    harness.finish(task).await;
    assert_eq!(
        (
            harness.executions(task, "/refund"),
            harness.executions(task, "/elsewhere")
        ),
        (0, 1)
    );
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
    harness.configure(|yaml| yaml.replace("{tool}/refund", "{tool}/elsewhere"));
    let (first, api) = (before[0].request_id, harness.engine(0));
    let retried = api
        .decide(&alice(), first, whole(Action::Retry, None), None)
        .await;
    assert_eq!(retried.err(), Some(Refusal::Withdrawn(first)));
    let known = whole(Action::Respond, Some("it was paid".into()));
    api.decide(&alice(), before[1].request_id, known, None)
        .await
        .unwrap();
    harness.later();
    harness.tool.answers(200, "paid");
    harness.run().await;
    assert_eq!(
        outcomes(&harness.journal(tasks[1]).await),
        [Outcome::Responded],
        "a known outcome needs no tool"
    );
    let anew = harness.open_specs(tasks[0]).await.remove(0);
    assert_eq!(
        (anew.kind, &anew.details),
        (RequestKind::Reconcile, &before[0].details)
    );
    assert!(anew.request_id != first && anew.digest != before[0].digest);
    assert_eq!(
        (
            harness.executions(tasks[0], "/refund"),
            harness.executions(tasks[0], "/elsewhere")
        ),
        (1, 0)
    );
    api.decide(&alice(), anew.request_id, whole(Action::Retry, None), None)
        .await
        .unwrap();
    harness.run().await;
    assert_eq!(
        outcomes(&harness.journal(tasks[0]).await),
        [Outcome::Succeeded]
    );
    assert_eq!(
        (
            harness.executions(tasks[0], "/refund"),
            harness.executions(tasks[0], "/elsewhere")
        ),
        (1, 1)
    );
}

#[apply(both)]
async fn retry_that_a_rule_denies_at_its_start_leaves_the_outcome_unknown(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    harness.tool.answers(502, "");
    let task = approved(&harness).await;
    harness.run().await;
    let asked = harness.open_specs(task).await.remove(0);
    harness.configure(|yaml| yaml.replace("decide: hold,", "decide: deny,"));
    let retry = whole(Action::Retry, None);
    harness
        .engine(0)
        .decide(&alice(), asked.request_id, retry, None)
        .await
        .unwrap();
    harness.run().await;
    // The first attempt may have taken effect, so the outcome of the call is not `Denied`.
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
    harness.configure(|yaml| yaml.replace("policy:\n", rule));
    harness.run().await;
    let asked = harness.open_specs(task).await.remove(0);
    let reason = asked.pending_tool_calls[0].reason.as_deref();
    let told = format!("Tags are watched. {OUTCOME_UNKNOWN_TEXT}");
    assert_eq!(
        (asked.kind, reason),
        (RequestKind::Approval, Some(told.as_str()))
    );
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
async fn changed_effect_is_journaled_before_the_call_is_sent(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(
        fixture,
        &[
            ("refund", r#"{"order":1,"amount":120}"#),
            ("tag", r#"{"text":"paid"}"#),
        ],
    )
    .await;
    let task = approved(&harness).await;
    harness.configure(|yaml| yaml.replace("effect: idempotent", "effect: once"));
    harness.tool.answers(502, "");
    for _ in 0..2 {
        harness.run().await;
        let [(_, RequestKind::Reconcile)] = harness.open(task).await[..] else {
            panic!("it is asked about")
        };
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
async fn request_with_a_changed_byte_runs_nothing_after_its_approval(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let task = approved(&harness).await;
    for (was, is) in flipped(&first_call_of_request(&harness, task).await) {
        rewrite(&harness.fixture, task, "intervention_requested", &was, &is).await;
        if harness.status(task).await == TaskStatus::Running {
            run(&harness, task).await;
        } else {
            retry(&harness, task).await;
        }
        assert_eq!(
            failure(&harness, task).await,
            Some(FailureCode::Integrity),
            "{is}"
        );
        assert_eq!(harness.tool.ledger().len(), 0, "{is}");
        rewrite(&harness.fixture, task, "intervention_requested", &is, &was).await;
    }
    let (was, is) = (r#"\"amount\":120"#, r#"\"amount\":121"#);
    rewrite(&harness.fixture, task, "assistant_message", was, is).await;
    retry(&harness, task).await;
    assert_eq!(
        failure(&harness, task).await,
        Some(FailureCode::Integrity),
        "the model said something else"
    );
    rewrite(&harness.fixture, task, "intervention_requested", was, is).await;
    retry(&harness, task).await;
    assert_eq!(
        failure(&harness, task).await,
        Some(FailureCode::Integrity),
        "the same in both places"
    );
    for kind in ["assistant_message", "intervention_requested"] {
        rewrite(&harness.fixture, task, kind, is, was).await;
    }
    retry(&harness, task).await;
    assert_eq!(
        (
            harness.status(task).await,
            harness.executions(task, "/refund")
        ),
        (TaskStatus::Completed, 1)
    );
}

#[apply(both)]
async fn request_with_a_changed_byte_takes_no_answer(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let api = harness.engine(0);
    let first = harness.held().await;
    let count = flipped(&first_call_of_request(&harness, first).await).len();
    for at in 0..count {
        let task = harness.held().await;
        let (was, is) = flipped(&first_call_of_request(&harness, task).await).swap_remove(at);
        rewrite(&harness.fixture, task, "intervention_requested", &was, &is).await;
        let [(request, _)] = harness.open(task).await[..] else {
            panic!("one is open")
        };
        let answered = api
            .decide(&alice(), request, whole(Action::Approve, None), None)
            .await;
        assert_eq!(answered.err(), Some(Refusal::Withdrawn(request)), "{is}");
        assert_eq!(
            failure(&harness, task).await,
            Some(FailureCode::Integrity),
            "{is}"
        );
    }
    harness.later();
    harness.run().await;
    assert_eq!(harness.tool.ledger().len(), 0);
}

#[apply(both)]
async fn agent_version_that_differs_from_its_digest_drives_nothing(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    let original = harness.yaml();
    let (waiting, task) = (harness.held().await, approved(&harness).await);
    harness.configure(changed);
    for damage in [
        "update agent_version set definition = replace(definition, 'You handle refunds.', 'You give it away.')",
        "delete from agent_version",
    ] {
        harness.fixture.numbers(damage).await.unwrap();
        if harness.status(task).await == TaskStatus::Running {
            run(&harness, task).await;
        } else {
            retry(&harness, task).await;
        }
        assert_eq!(
            failure(&harness, task).await,
            Some(FailureCode::Integrity),
            "{damage}"
        );
    }
    let [(request, _)] = harness.open(waiting).await[..] else {
        panic!("one is open")
    };
    let answered = harness
        .engine(0)
        .decide(&alice(), request, whole(Action::Approve, None), None)
        .await;
    assert_eq!(answered.err(), Some(Refusal::Withdrawn(request)));
    assert_eq!(
        failure(&harness, waiting).await,
        Some(FailureCode::Integrity)
    );
    assert_eq!(harness.tool.ledger().len(), 0);
    // A replica that starts with the original configuration stores the lost definition again.
    harness.configure(|_| original.clone());
    harness.engine(0);
    harness.configure(changed);
    retry(&harness, task).await;
    assert_eq!(
        (
            harness.status(task).await,
            harness.executions(task, "/refund")
        ),
        (TaskStatus::Completed, 1)
    );
    assert_eq!(shown(&harness), before());
}
