//! The agent version pinned to a task between two messages of the user, while the configuration or
//! stored bytes change.

use holdpoint::engine::{MessageInput, Refusal};
use holdpoint::task::decision::Action;
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::{CallSpec, RequestKind};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::tool_spec::Effect;

use super::stage::{Stage, alice, go, outcomes, whole};
use crate::store::house::{House, both};

const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];
const TAG: &[(&str, &str)] = &[("tag", r#"{"text":"paid"}"#)];

/// The refund agent with other instructions, another model, fewer tools and another description of
/// one.
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

/// The model's name, the instructions, and the tools with their descriptions, from the last prompt.
fn shown(stage: &Stage) -> (String, String, Vec<String>) {
    let (model, prompt) = stage.prompted();
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

async fn failure(stage: &Stage, task: TaskId) -> Option<FailureCode> {
    let row = stage.journal(task).await.row;
    assert_eq!(
        (row.status, row.open_requests, row.busy),
        (TaskStatus::Failed, 0, 0)
    );
    row.error.map(|error| error.code)
}

async fn retry(stage: &Stage, task: TaskId) {
    stage.engine(0).retry(&alice(), task, None).await.unwrap();
    stage.run().await;
}

/// A task whose call is approved and not started.
async fn approved(stage: &Stage) -> TaskId {
    let task = stage.held().await;
    stage.answer_all(&stage.engine(0), task).await;
    task
}

/// Replaces a text in the stored items of a type.
async fn rewrite(house: &House, task: TaskId, kind: &str, from: &str, to: &str) {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let id = task.to_string();
    let id = if house.is_postgres() {
        format!("'{id}'")
    } else {
        format!("x'{}'", id.replace('-', ""))
    };
    let sql = format!(
        "update agent_task_item set body = replace(body, {}, {}) where task_id = {id} and type = '{kind}'",
        quoted(from),
        quoted(to)
    );
    house.numbers(&sql).await.unwrap();
}

/// Each text with one byte changed, at its beginning, middle and end, as JSON with its name:
/// (before, after). The tests of `RequestSpec::is_sound` cover every byte.
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

async fn asked(stage: &Stage, task: TaskId) -> CallSpec {
    let items = stage.journal(task).await.items;
    let asked = items.iter().find_map(|item| {
        let Fact::InterventionRequested(asked) = &item.fact else {
            return None;
        };
        Some(asked.pending_tool_calls[0].clone())
    });
    asked.unwrap()
}

/// A task whose process was killed while its first call was in flight; no process saw the response.
async fn killed_on_the_way(stage: &Stage) -> TaskId {
    let task = stage
        .engine(0)
        .create(&alice(), go(), None)
        .await
        .unwrap()
        .task_id;
    stage.tool.close();
    let mut driver = stage.engine(1).claim().await.unwrap().remove(0);
    tokio::select! {
        () = &mut driver => panic!("the call does not come back"),
        () = stage.tool.reached(1) => {}
    }
    drop(driver);
    stage.tool.open();
    stage.later();
    task
}

/// A repeatable call is lost, and its tool is then changed.
async fn not_repeated(house: House, now: &str) {
    let mut stage = Stage::set(house, TAG).await;
    let task = killed_on_the_way(&stage).await;
    stage.configure(|yaml| {
        yaml.replace(
            "effect: idempotent, http: { method: POST, url: \"{tool}/tag\"",
            now,
        )
    });
    stage.run().await;
    let [(_, RequestKind::Reconcile)] = stage.open(task).await[..] else {
        panic!("{:#?}", stage.journal(task).await)
    };
    stage.finish(task).await;
    assert_eq!(outcomes(&stage.journal(task).await), [Outcome::Responded]);
    assert_eq!(
        (
            stage.executions(task, "/tag"),
            stage.executions(task, "/tagged")
        ),
        (1, 0)
    );
}

both! {
    async fn paused_task_keeps_its_agent_version_until_the_next_message(house) {
        let mut stage = Stage::set(house, LARGE).await;
        let task = stage.held().await;
        let version = stage.journal(task).await.row.agent_version;
        stage.configure(changed);
        stage.answer_all(&stage.engine(0), task).await;
        stage.run().await;
        assert_eq!(shown(&stage), before());
        let row = stage.journal(task).await.row;
        assert_eq!((row.status, &row.agent_version), (TaskStatus::Completed, &version));
        stage.engine(0).message(&alice(), task, message(), None).await.unwrap();
        assert_ne!(stage.journal(task).await.row.agent_version, version, "in the commit of the message");
        stage.run().await;
        assert_eq!(shown(&stage), after());
        let current = stage.engine(0).create(&alice(), go(), None).await.unwrap().task_id;
        assert_eq!(stage.journal(current).await.row.agent_version, stage.journal(task).await.row.agent_version);
        assert_eq!(stage.executions(task, "/refund"), 1);
    }

    async fn tasks_of_two_agent_versions_run_side_by_side_on_either_replica(house) {
        let mut stage = Stage::set(house, LARGE).await;
        stage.configure(with_another_model);
        let (old, old_task) = (stage.engine(4), stage.held().await);
        stage.configure(changed);
        let (new, new_task) = (stage.engine(4), stage.held().await);
        for (engine, task, expected) in [(&new, old_task, before()), (&old, new_task, after())] {
            stage.answer_all(engine, task).await;
            while stage.status(task).await == TaskStatus::Running {
                tokio::task::yield_now().await;
            }
            assert_eq!(stage.status(task).await, TaskStatus::Completed);
            assert_eq!(shown(&stage), expected);
            assert_eq!(stage.executions(task, "/refund"), 1);
        }
    }

    async fn removed_model_fails_the_task_and_a_retry_goes_on_when_it_is_back(house) {
        let mut stage = Stage::set(house, LARGE).await;
        let whole_yaml = stage.yaml();
        let task = approved(&stage).await;
        let version = stage.journal(task).await.row.agent_version;
        stage.configure(|yaml| yaml.replace("  main:", "  renamed:").replace("model: main", "model: renamed"));
        stage.run().await;
        assert_eq!(failure(&stage, task).await, Some(FailureCode::Configuration));
        retry(&stage, task).await;
        assert_eq!(failure(&stage, task).await, Some(FailureCode::Configuration), "the model is still gone");
        stage.configure(|_| whole_yaml.clone());
        retry(&stage, task).await;
        let row = stage.journal(task).await.row;
        assert_eq!((row.status, row.agent_version), (TaskStatus::Completed, version));
        assert_eq!((shown(&stage), stage.executions(task, "/refund")), (before(), 1));
    }

    async fn removed_variable_fails_the_task_and_a_retry_uses_its_new_value(house) {
        let mut stage = Stage::set(house, LARGE).await;
        stage.variables.push(("WHO", "Ada"));
        stage.configure(|yaml| yaml.replace("You handle refunds.", "\"You are ${WHO}.\""));
        let task = approved(&stage).await;
        stage.variables.pop();
        stage.configure(|yaml| yaml.replace("${WHO}", "nobody"));
        stage.run().await;
        assert_eq!(failure(&stage, task).await, Some(FailureCode::Configuration));
        assert_eq!(stage.executions(task, "/refund"), 0);
        stage.variables.push(("WHO", "Eve"));
        retry(&stage, task).await;
        assert_eq!(stage.status(task).await, TaskStatus::Completed);
        assert_eq!((shown(&stage).1, stage.executions(task, "/refund")), ("You are Eve.".to_owned(), 1));
    }

    async fn changed_limit_and_changed_policy_apply_at_once(house) {
        let mut stage = Stage::set(house, LARGE).await;
        let original = stage.yaml();
        let limited = approved(&stage).await;
        stage.configure(|yaml| changed(yaml).replace("model: other,", "model: other, limits: { max_model_calls: 1 },"));
        stage.run().await;
        assert_eq!(failure(&stage, limited).await, Some(FailureCode::LimitReached));
        stage.configure(|_| original.clone());
        let denied = approved(&stage).await;
        let deny = "decide: deny, reason: Refunds above 20 need a look. }";
        stage.configure(|yaml| {
            changed(yaml).replace("decide: hold, reason: Refunds above 20 need a look., approvers: { owner: true } }", deny)
        });
        stage.run().await;
        assert_eq!(outcomes(&stage.journal(denied).await), [Outcome::Denied]);
        assert_eq!((stage.executions(limited, "/refund"), stage.executions(denied, "/refund")), (1, 0));
    }

    async fn tool_with_a_changed_target_is_asked_about_anew(house) {
        let mut stage = Stage::set(house, LARGE).await;
        let (waiting, task) = (stage.held().await, approved(&stage).await);
        stage.configure(|yaml| yaml.replace("{tool}/refund", "{tool}/elsewhere"));
        stage.run().await;
        let [(_, RequestKind::Approval)] = stage.open(task).await[..] else { panic!("it is asked anew") };
        let [(request, RequestKind::Approval)] = stage.open(waiting).await[..] else { panic!("one is open") };
        let answered = stage.engine(0).decide(&alice(), request, whole(Action::Approve, None), None).await;
        assert_eq!(answered.err(), Some(Refusal::Withdrawn(request)));
        assert_eq!(stage.tool.ledger().len(), 0);
        stage.finish(task).await;
        assert_eq!((stage.executions(task, "/refund"), stage.executions(task, "/elsewhere")), (0, 1));
    }

    async fn lost_call_whose_tool_is_once_by_now_is_not_repeated(house) {
        not_repeated(house, "effect: once, http: { method: POST, url: \"{tool}/tag\"").await;
    }

    async fn lost_call_whose_tool_has_a_new_target_by_now_is_not_repeated(house) {
        not_repeated(house, "effect: idempotent, http: { method: POST, url: \"{tool}/tagged\"").await;
    }

    async fn changed_effect_is_journaled_before_the_call_is_sent(house) {
        let mut stage = Stage::set(house, &[("refund", r#"{"order":1,"amount":120}"#), ("tag", r#"{"text":"paid"}"#)]).await;
        let task = approved(&stage).await;
        stage.configure(|yaml| yaml.replace("effect: idempotent", "effect: once"));
        stage.tool.answers(502, "");
        for _ in 0..2 {
            stage.run().await;
            let [(_, RequestKind::Reconcile)] = stage.open(task).await[..] else { panic!("it is asked about") };
            stage.answer_all(&stage.engine(0), task).await;
        }
        let journal = stage.journal(task).await;
        let effects = journal.items.iter().filter_map(|item| {
            let Fact::Judged { effect, .. } = &item.fact else { return None };
            Some(*effect)
        });
        assert_eq!(effects.collect::<Vec<_>>(), [Effect::Once, Effect::Idempotent, Effect::Once]);
        assert_eq!(stage.executions(task, "/tag"), 1, "the call is asked about, not repeated");
    }

    async fn request_with_a_changed_byte_runs_nothing_after_its_approval(house) {
        let stage = Stage::set(house, LARGE).await;
        let task = approved(&stage).await;
        for (was, is) in flipped(&asked(&stage, task).await) {
            rewrite(&stage.house, task, "intervention_requested", &was, &is).await;
            if stage.status(task).await == TaskStatus::Running { stage.run().await } else { retry(&stage, task).await }
            assert_eq!(failure(&stage, task).await, Some(FailureCode::Integrity), "{is}");
            assert_eq!(stage.tool.ledger().len(), 0, "{is}");
            rewrite(&stage.house, task, "intervention_requested", &is, &was).await;
        }
        let (was, is) = (r#"\"amount\":120"#, r#"\"amount\":121"#);
        rewrite(&stage.house, task, "assistant_message", was, is).await;
        retry(&stage, task).await;
        assert_eq!(failure(&stage, task).await, Some(FailureCode::Integrity), "the model said something else");
        rewrite(&stage.house, task, "intervention_requested", was, is).await;
        retry(&stage, task).await;
        assert_eq!(failure(&stage, task).await, Some(FailureCode::Integrity), "the same in both places");
        for kind in ["assistant_message", "intervention_requested"] {
            rewrite(&stage.house, task, kind, is, was).await;
        }
        retry(&stage, task).await;
        assert_eq!((stage.status(task).await, stage.executions(task, "/refund")), (TaskStatus::Completed, 1));
    }

    async fn request_with_a_changed_byte_takes_no_answer(house) {
        let stage = Stage::set(house, LARGE).await;
        let door = stage.engine(0);
        let first = stage.held().await;
        let count = flipped(&asked(&stage, first).await).len();
        for at in 0..count {
            let task = stage.held().await;
            let (was, is) = flipped(&asked(&stage, task).await).swap_remove(at);
            rewrite(&stage.house, task, "intervention_requested", &was, &is).await;
            let [(request, _)] = stage.open(task).await[..] else { panic!("one is open") };
            let answered = door.decide(&alice(), request, whole(Action::Approve, None), None).await;
            assert_eq!(answered.err(), Some(Refusal::Withdrawn(request)), "{is}");
            assert_eq!(failure(&stage, task).await, Some(FailureCode::Integrity), "{is}");
        }
        stage.later();
        stage.run().await;
        assert_eq!(stage.tool.ledger().len(), 0);
    }

    async fn agent_version_that_differs_from_its_digest_drives_nothing(house) {
        let mut stage = Stage::set(house, LARGE).await;
        let original = stage.yaml();
        let (waiting, task) = (stage.held().await, approved(&stage).await);
        stage.configure(changed);
        for damage in [
            "update agent_version set definition = replace(definition, 'You handle refunds.', 'You give it away.')",
            "delete from agent_version",
        ] {
            stage.house.numbers(damage).await.unwrap();
            if stage.status(task).await == TaskStatus::Running { stage.run().await } else { retry(&stage, task).await }
            assert_eq!(failure(&stage, task).await, Some(FailureCode::Integrity), "{damage}");
        }
        let [(request, _)] = stage.open(waiting).await[..] else { panic!("one is open") };
        let answered = stage.engine(0).decide(&alice(), request, whole(Action::Approve, None), None).await;
        assert_eq!(answered.err(), Some(Refusal::Withdrawn(request)));
        assert_eq!(failure(&stage, waiting).await, Some(FailureCode::Integrity));
        assert_eq!(stage.tool.ledger().len(), 0);
        // A replica that still has the definition restores it.
        stage.configure(|_| original.clone());
        stage.engine(0);
        stage.configure(changed);
        retry(&stage, task).await;
        assert_eq!((stage.status(task).await, stage.executions(task, "/refund")), (TaskStatus::Completed, 1));
        assert_eq!(shown(&stage), before());
    }
}
