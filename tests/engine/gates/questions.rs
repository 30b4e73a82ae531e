//! Tests gate calls about which a person is asked between the judgement and the result: questions
//! of the tool's server, credentials, and a definition that changes right before the start.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use holdpoint::engine::gate::{GateDecision, GateRefusal, GateState, Proposal};
use holdpoint::engine::{DecisionInput, Engine};
use holdpoint::task::change::ASKER_UNTIL_DELIVERED;
use holdpoint::task::decision::Action;
use holdpoint::task::elicitation::{Elicitation, ServerQuestion};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use holdpoint::task::tool_spec::ToolSpec;
use holdpoint::tool::{Credentials, DefinitionChange, Invocation, StartReason, Tool, ToolAnswer};
use macro_rules_attribute::apply;
use serde_json::json;

use super::super::engine_harness::{EngineHarness, alice_decides, fills, outcomes, whole};
use super::failures::by_key;
use super::{
    LONG, abort, agent, approve, asking_by, asks, driven, harness, read, refund, small,
    until_asked, until_at_rest, until_open, until_present, until_proposed,
};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::until;

const CREDENTIAL: &str = r#"
secrets: { keys: [ { id: k1, key: "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=" } ] }
credentials: { jira: { fields: { token: {} } } }
"#;

/// The MCP server of the tool `refund`, as the engine sees it.
#[derive(Default)]
pub struct Server {
    /// The answers to the next attempts. Every further attempt succeeds.
    answers: Mutex<VecDeque<ToolAnswer>>,
    attempts: Mutex<u32>,
    /// Whether the server leaves requests for its tools unanswered.
    down: Mutex<bool>,
    /// The changed definition of the tool, and whether a comparison has found the change.
    change: Mutex<(Option<DefinitionChange>, bool)>,
    /// While a test holds this lock, the server answers no attempt.
    pub open: tokio::sync::Mutex<()>,
}

struct Served(ToolSpec, Arc<Server>);

#[async_trait]
impl Tool for Served {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn definition_change(&self, _: TaskId) -> Option<DefinitionChange> {
        let (change, is_known) = self.1.change.lock().unwrap().clone();
        change.filter(|_| is_known)
    }

    fn may_ask(&self) -> bool {
        true
    }

    fn is_stale(&self, start: Option<StartReason>) -> bool {
        start.is_some()
    }

    async fn prepare(
        &self,
        _: Option<StartReason>,
        _: TaskId,
        _: &Credentials,
    ) -> Result<(), String> {
        self.1.change.lock().unwrap().1 = true;
        let down = *self.1.down.lock().unwrap();
        if down {
            Err("no connection".to_owned())
        } else {
            Ok(())
        }
    }

    async fn call(&self, call: &Invocation) -> ToolAnswer {
        assert!(call.permit.holds());
        *self.1.attempts.lock().unwrap() += 1;
        drop(self.1.open.lock().await);
        call.raw.put("{}".into());
        let next = self.1.answers.lock().unwrap().pop_front();
        next.unwrap_or(ToolAnswer::Succeeded {
            content: "paid".to_owned(),
            http_status: None,
        })
    }
}

impl Server {
    pub fn attempts(&self) -> u32 {
        *self.attempts.lock().unwrap()
    }
}

/// Returns the answer to an attempt in which the server asks for a folder. This answer ends the
/// attempt.
fn question() -> ToolAnswer {
    let folder = ServerQuestion {
        key: "folder".to_owned(),
        message: "Which folder?".to_owned(),
        form: json!({"type": "object", "properties": {"folder": {"type": "string"}}}),
        url: None,
    };
    ToolAnswer::Elicitation(Box::new(Elicitation {
        server: "files".to_owned(),
        tool: "move".to_owned(),
        questions: vec![folder],
        ..Elicitation::default()
    }))
}

/// Returns the harness of the gate, whose tool `refund` gives these answers first.
pub async fn served(
    fixture: StoreFixture,
    answers: Vec<ToolAnswer>,
) -> (EngineHarness, Arc<Server>) {
    let mut harness = harness(fixture).await;
    let server = Arc::new(Server::default());
    *server.answers.lock().unwrap() = answers.into();
    let shared = Arc::clone(&server);
    harness.refund = Some(Arc::new(move |spec| {
        Arc::new(Served(spec.clone(), Arc::clone(&shared)))
    }));
    (harness, server)
}

/// Returns the harness of the gate, whose tool `refund` needs a login.
async fn with_login(fixture: StoreFixture) -> EngineHarness {
    let mut harness = harness(fixture).await;
    harness
        .configure(|yaml| yaml.replace("${TOOL_SECRET}", "{{credential:jira.token}}") + CREDENTIAL);
    harness
}

fn read_only(yaml: &str) -> String {
    yaml.replacen("  refund:\n", "  refund:\n    effect: read_only\n", 1)
}

/// Makes a call and waits until its server has asked a question. Returns the call's task.
async fn questioned(harness: &EngineHarness, engine: &Arc<Engine>, proposal: &Proposal) -> TaskId {
    asks(engine, proposal).await;
    until_asked(harness, RequestKind::Elicitation).await
}

async fn answer(harness: &EngineHarness, engine: &Arc<Engine>, task: TaskId, with: DecisionInput) {
    let (request, _) = harness.only_open(task).await;
    alice_decides(engine, request, with).await;
}

/// Returns a change of the tool's definition, for which the next attempt is held.
fn changed_definition() -> DefinitionChange {
    DefinitionChange {
        definition: "sha256:1".to_owned(),
        reason: "The server changed this tool.".to_owned(),
        denied: false,
    }
}

fn folder() -> DecisionInput {
    fills(&json!({"folder": "a"}))
}

fn token() -> DecisionInput {
    fills(&json!({"token": "token-0123456789"}))
}

/// Answers the server's question and waits until no replica drives the task.
async fn answer_question(harness: &EngineHarness, engine: &Arc<Engine>, task: TaskId) {
    answer(harness, engine, task, folder()).await;
    until_at_rest(harness, task).await;
}

#[apply(both)]
async fn answer_after_use_within_continues_the_call_whose_asker_waits(fixture: StoreFixture) {
    for (proposal, is_held) in [
        (small(1, Duration::from_mins(5)), false),
        (refund(2, Duration::from_mins(5)), true),
    ] {
        let (harness, server) = served(StoreFixture::like(&fixture).await, vec![question()]).await;
        let engine = harness.engine(8);
        let asking = asking_by(&engine, proposal);
        if is_held {
            let task = until_asked(&harness, RequestKind::Approval).await;
            approve(&harness, &engine, task).await;
        }
        let task = until_asked(&harness, RequestKind::Elicitation).await;
        harness.fixture.forward(Duration::from_hours(2));
        answer(&harness, &engine, task, folder()).await;
        let call = asking.await.unwrap().unwrap().call;
        assert_eq!(call.outcome, Some(Outcome::Succeeded));
        assert_eq!(server.attempts(), 2);
    }
}

#[apply(both)]
async fn answered_call_waits_for_its_asker_for_use_within_from_the_answer(fixture: StoreFixture) {
    let (harness, server) = served(fixture, vec![question()]).await;
    let engine = harness.engine(8);
    let task = questioned(&harness, &engine, &small(1, Duration::ZERO)).await;
    harness.fixture.forward(Duration::from_mins(50));
    answer_question(&harness, &engine, task).await;
    let told = read(&engine, task).await;
    let items = harness.journal(task).await.items;
    let answered = items
        .iter()
        .find(|item| matches!(item.fact, Fact::Decision { .. }));
    let end = answered.map(|item| item.at + Duration::from_hours(1));
    assert_eq!((told.state, told.expires_at), (GateState::Approved, end));
    harness.fixture.forward(Duration::from_mins(50));
    driven(&engine).await;
    let call = asks(&engine, &small(1, LONG)).await;
    assert_eq!(call.task_id, task);
    assert_eq!(call.outcome, Some(Outcome::Succeeded));
    assert_eq!(server.attempts(), 2);
}

#[apply(both)]
async fn answered_call_without_its_asker_expires_after_use_within(fixture: StoreFixture) {
    let (harness, server) = served(fixture, vec![question()]).await;
    let engine = harness.engine(8);
    let task = questioned(&harness, &engine, &small(1, Duration::ZERO)).await;
    answer_question(&harness, &engine, task).await;
    harness.fixture.forward(Duration::from_mins(61));
    driven(&engine).await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Expired]);
    assert_eq!(server.attempts(), 1);
}

#[apply(both)]
async fn answered_call_without_a_stored_presence_continues_only_with_its_asker(
    fixture: StoreFixture,
) {
    let (mut harness, server) = served(fixture, vec![question()]).await;
    harness.configure(read_only);
    let engine = harness.engine(8);
    let named = |wait| by_key("k", None, small(1, wait));
    let task = questioned(&harness, &engine, &named(Duration::ZERO)).await;
    // Changes the row to the form in which an earlier version of the service stored it: without
    // the call's tool and key, and without a presence.
    let bare = "update agent_task set call_tool = null, call_key = null, asker_until = null, asker_owner = null returning version";
    assert!(harness.fixture.number(bare).await > 0);
    answer_question(&harness, &engine, task).await;
    driven(&engine).await;
    assert_eq!(harness.status(task).await, TaskStatus::Running);
    assert_eq!(server.attempts(), 1);
    let call = asks(&engine, &named(LONG)).await;
    assert_eq!(call.outcome, Some(Outcome::Succeeded));
    assert_eq!(server.attempts(), 2);
}

#[apply(both)]
async fn call_of_a_tool_with_a_credential_runs_once_a_person_has_entered_it(fixture: StoreFixture) {
    let harness = with_login(fixture).await;
    let engine = harness.engine(8);
    let asking = asking_by(&engine, small(1, Duration::from_mins(5)));
    let task = until_asked(&harness, RequestKind::Credentials).await;
    let held = read(&engine, task).await;
    let says = "Held: a person must enter a credential that its tool needs. It has not run.";
    assert_eq!(held.message(), says);
    harness.fixture.forward(Duration::from_hours(2));
    answer(&harness, &engine, task, token()).await;
    let call = asking.await.unwrap().unwrap().call;
    assert_eq!(call.outcome, Some(Outcome::Succeeded));
    let sent = harness.tool.ledger();
    assert_eq!(
        sent.iter()
            .map(|call| call.header("x-secret"))
            .collect::<Vec<_>>(),
        ["token-0123456789"]
    );
}

#[apply(both)]
async fn equal_call_after_a_declined_login_asks_for_the_login_again(fixture: StoreFixture) {
    let harness = with_login(fixture).await;
    let engine = harness.engine(8);
    let asking = asking_by(&engine, small(1, Duration::from_mins(5)));
    let task = until_asked(&harness, RequestKind::Credentials).await;
    answer(&harness, &engine, task, whole(Action::Reject, None)).await;
    let declined = asking.await.unwrap().unwrap();
    assert_eq!(declined.call.outcome, Some(Outcome::Rejected));
    declined.delivery.unwrap().delivered();
    until_present(&harness, task, |until| until == ASKER_UNTIL_DELIVERED).await;
    let again = asks(&engine, &small(1, Duration::ZERO)).await;
    assert_ne!(again.task_id, task);
    assert_eq!(again.state, GateState::Pending);
    until_open(&harness, again.task_id, RequestKind::Credentials).await;
}

#[apply(both)]
async fn approval_of_a_call_whose_login_is_declined_ends_an_earlier_rejection(
    fixture: StoreFixture,
) {
    let harness = with_login(fixture).await;
    let engine = harness.engine(8);
    let named = |key| by_key(key, None, refund(1, Duration::ZERO));
    let reject = || whole(Action::Reject, None);
    let rejected = asks(&engine, &named("a")).await.task_id;
    let approved = asks(&engine, &named("b")).await.task_id;
    answer(&harness, &engine, rejected, reject()).await;
    harness.fixture.forward(Duration::from_secs(1));
    approve(&harness, &engine, approved).await;
    until_at_rest(&harness, approved).await;
    asks(&engine, &named("b")).await;
    until_open(&harness, approved, RequestKind::Credentials).await;
    harness.fixture.forward(Duration::from_secs(1));
    answer(&harness, &engine, approved, reject()).await;
    until_at_rest(&harness, approved).await;
    assert_eq!(
        outcomes(&harness.journal(approved).await),
        [Outcome::Rejected]
    );
    let again = asks(&engine, &named("c")).await;
    assert_eq!(again.state, GateState::Pending);
    until_open(&harness, again.task_id, RequestKind::Approval).await;
}

#[apply(both)]
async fn started_call_with_a_question_of_its_server_does_not_say_that_it_has_not_run(
    fixture: StoreFixture,
) {
    let (harness, _) = served(fixture, vec![question()]).await;
    let engine = harness.engine(8);
    let task = questioned(&harness, &engine, &small(1, Duration::ZERO)).await;
    let held = read(&engine, task).await;
    let says =
        "The call was started and has not ended: a person must answer a question of its tool.";
    assert_eq!(held.state, GateState::Pending);
    assert_eq!(held.message(), says.to_owned());
}

#[apply(both)]
async fn started_call_that_a_person_rejects_stays_allowed_and_says_that_it_may_have_run(
    fixture: StoreFixture,
) {
    let (harness, server) = served(fixture, vec![question()]).await;
    let engine = harness.engine(8);
    let task = questioned(&harness, &engine, &small(1, Duration::ZERO)).await;
    // The next comparison finds the change, right before the next attempt.
    *server.change.lock().unwrap() = (Some(changed_definition()), false);
    answer_question(&harness, &engine, task).await;
    let asking = asking_by(&engine, small(1, LONG));
    assert_eq!(until_asked(&harness, RequestKind::Approval).await, task);
    answer(&harness, &engine, task, whole(Action::Reject, None)).await;
    let told = asking.await.unwrap().unwrap().call;
    let read = read(&engine, task).await;
    for call in [told, read] {
        assert_eq!((call.task_id, call.state), (task, GateState::Settled));
        assert_eq!(call.decision, GateDecision::Allow);
        assert_eq!(call.outcome, Some(Outcome::Rejected));
        let says = "The call was started and ended as rejected. It may have run. Do not repeat it.";
        assert_eq!(call.message(), says);
    }
    assert_eq!(server.attempts(), 1);
}

#[apply(both)]
async fn call_that_fails_before_its_start_says_why(fixture: StoreFixture) {
    let (harness, server) = served(fixture, Vec::new()).await;
    *server.down.lock().unwrap() = true;
    let call = asks(&harness.engine(8), &small(1, LONG)).await;
    assert_eq!(call.decision, GateDecision::Deny);
    assert_eq!(call.outcome, Some(Outcome::Failed));
    let told = call.message();
    let begins = told.starts_with("The call was not run (failed): The tool `refund` failed");
    assert!(begins && told.ends_with("no connection."), "{told}");
    assert_eq!(server.attempts(), 0);
}

#[apply(both)]
async fn repeatable_call_that_is_held_at_its_start_is_continued_by_an_equal_ask(
    fixture: StoreFixture,
) {
    let (mut harness, server) = served(fixture, Vec::new()).await;
    harness.configure(read_only);
    let engine = harness.engine(8);
    server.change.lock().unwrap().0 = Some(changed_definition());
    let held = asks(&engine, &small(1, Duration::ZERO)).await;
    let task = until_asked(&harness, RequestKind::Approval).await;
    assert_eq!(held.task_id, task);
    assert_eq!(asks(&engine, &small(1, Duration::ZERO)).await.task_id, task);
    approve(&harness, &engine, task).await;
    until_at_rest(&harness, task).await;
    assert_eq!(server.attempts(), 0);
    let call = asks(&engine, &small(1, LONG)).await;
    assert_eq!(call.task_id, task);
    assert_eq!(call.outcome, Some(Outcome::Succeeded));
    assert_eq!(server.attempts(), 1);
}

/// Asserts that an equal ask finds the call whose server has asked, and that after the answer the
/// call makes its second attempt only with the next equal ask.
async fn assert_continued_by_an_equal_ask(
    harness: &EngineHarness,
    engine: &Arc<Engine>,
    server: &Server,
    task: TaskId,
) {
    let again = asks(engine, &small(1, Duration::ZERO)).await;
    assert_eq!((again.task_id, again.state), (task, GateState::Pending));
    answer_question(harness, engine, task).await;
    driven(engine).await;
    assert_eq!(server.attempts(), 1);
    let call = asks(engine, &small(1, LONG)).await;
    assert_eq!(call.task_id, task);
    assert_eq!(call.outcome, Some(Outcome::Succeeded));
    assert_eq!(server.attempts(), 2);
}

#[apply(both)]
async fn repeatable_call_whose_server_asked_is_continued_by_an_equal_ask(fixture: StoreFixture) {
    let (mut harness, server) = served(fixture, vec![question()]).await;
    harness.configure(read_only);
    let engine = harness.engine(8);
    let task = questioned(&harness, &engine, &small(1, Duration::ZERO)).await;
    assert_continued_by_an_equal_ask(&harness, &engine, &server, task).await;
}

/// On `SQLite`, because no feed tells the waiting ask of commits of another replica here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_repeatable_call_whose_server_asked_is_continued_by_an_equal_ask() {
    let fixture = StoreFixture::sqlite().await;
    let (mut harness, server) = served(fixture, vec![question()]).await;
    harness.configure(read_only);
    // The engine of the ask has no slot, so another engine runs the call.
    let (without_slots, engine) = (harness.engine(0), harness.engine(8));
    let asking = asking_by(&without_slots, small(1, Duration::from_mins(5)));
    let task = until_proposed(&harness).await;
    let is_asked = async || {
        driven(&engine).await;
        matches!(
            harness.open(task).await[..],
            [(_, RequestKind::Elicitation)]
        )
    };
    until("the server has asked", is_asked).await;
    until_present(&harness, task, |until| until > Time(0)).await;
    abort(asking).await;
    until_present(&harness, task, |until| until == Time(0)).await;
    assert_continued_by_an_equal_ask(&harness, &engine, &server, task).await;
}

#[apply(both)]
async fn repeatable_call_that_needs_a_credential_is_continued_by_an_equal_ask(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    harness.configure(|yaml| {
        read_only(&yaml.replace("${TOOL_SECRET}", "{{credential:jira.token}}")) + CREDENTIAL
    });
    harness.configure(|yaml| yaml.replacen("  coding: {", "  coding: { max_open: 1,", 1));
    let engine = harness.engine(8);
    let held = asks(&engine, &small(1, Duration::ZERO)).await;
    let task = until_asked(&harness, RequestKind::Credentials).await;
    let other = engine
        .gates()
        .ask(&agent(), &small(2, Duration::ZERO), None)
        .await;
    assert!(matches!(other, Err(GateRefusal::TooManyOpen)));
    answer(&harness, &engine, task, token()).await;
    let call = asks(&engine, &small(1, LONG)).await;
    assert_eq!(
        (held.task_id, call.task_id, call.outcome),
        (task, task, Some(Outcome::Succeeded))
    );
    assert_eq!(harness.tool.ledger().len(), 1);
}
