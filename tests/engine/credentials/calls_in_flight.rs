//! Tests logins that a person gives to a task of a tree while a call of another task is in flight.
//! The tool or the model did not know the login when the call was sent, but its answer is redacted
//! all the same. Also tests a login that is given while the tools of calls are compared.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use holdpoint::engine::Engine;
use holdpoint::model::{Answer, ModelClient, ModelError, PieceSink, Prompt};
use holdpoint::task::elicitation::{Elicitation, ServerQuestion};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Outcome;
use holdpoint::task::request::RequestKind;
use holdpoint::task::tool_spec::ToolSpec;
use holdpoint::tool::{Invocation, StartReason, Tool, ToolAnswer};
use macro_rules_attribute::apply;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::changed_tools::{Server, serve_refund};
use super::super::engine_harness::{
    Calls, EngineHarness, alice_decides, claimed, drive, fills, join, turn,
};
use super::{ASKS_FOR_JIRA, TOKEN, jira, only_open_request, results};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::test_app::ACCOUNTS;
use crate::support::until;

/// A configuration in which the boss starts an analyst and a clerk. The analyst starts a helper,
/// who needs a login.
const TREE: &str = r#"
secrets: { keys: [ { id: k1, key: "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=" } ] }
credentials:
  jira: { fields: { email: { format: email }, token: {} } }
models:
  boss: { provider: openai, base_url: "{model}", model: boss, retries: 1 }
  analyst: { provider: openai, base_url: "{model}", model: analyst, retries: 1 }
  clerk: { provider: openai, base_url: "{model}", model: clerk, retries: 1 }
  helper: { provider: openai, base_url: "{model}", model: helper, retries: 1 }
tools:
  comment: { http: { method: POST, url: "{tool}/comment", headers: { Authorization: "Bearer {{credential:jira.token}}" } } }
  refund: { http: { method: POST, url: "{tool}/refund" } }
default_agent: boss
agents:
  boss: { description: Leads., model: boss, sub_agents: [analyst, clerk] }
  analyst: { description: Analyzes., model: analyst, human: [guidance], sub_agents: [helper] }
  clerk: { description: A clerk., model: clerk, tools: [refund] }
  helper: { description: Helps., model: helper, tools: [comment], human: [credentials] }
policy:
  - { name: rest, tools: ["*"], decide: allow }
"#;

const SHOWN: &str = "found [secret jira.token]";

type ModelAnswer = Result<Answer, ModelError>;

/// The answer that the test sends; `None` once a call waits for it.
type Unsent<A> = Arc<Mutex<Option<oneshot::Receiver<A>>>>;

fn unsent<A>() -> (oneshot::Sender<A>, Unsent<A>) {
    let (answer, received) = oneshot::channel();
    (answer, Arc::new(Mutex::new(Some(received))))
}

/// A tool whose only answer the test sends.
struct AwaitedTool {
    spec: ToolSpec,
    answer: Unsent<ToolAnswer>,
    /// Whether the answer comes after the timeout of the attempt.
    is_late: bool,
}

#[async_trait]
impl Tool for AwaitedTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, call: &Invocation) -> ToolAnswer {
        assert!(call.permit.holds());
        let answer = self.answer.lock().unwrap().take().expect("an attempt");
        if self.is_late {
            call.late.put(Box::pin(async { answer.await.ok() }));
            return ToolAnswer::Unknown {
                problem: "no answer in time".to_owned(),
            };
        }
        answer.await.unwrap()
    }
}

/// A model whose only answer the test sends.
struct AwaitedModel(Unsent<ModelAnswer>);

#[async_trait]
impl ModelClient for AwaitedModel {
    async fn answer(&self, _: &Prompt, _: &dyn PieceSink) -> ModelAnswer {
        let answer = self.0.lock().unwrap().take().expect("a prompt");
        answer.await.unwrap()
    }
}

fn calls(model: &str, turn: u32) -> Calls {
    match (model, turn) {
        ("boss", 1) => &[
            ("analyst", r#"{"task":"analyze"}"#),
            ("clerk", r#"{"task":"pay"}"#),
        ],
        ("analyst", 1) => &[("request_human_guidance", r#"{"question":"Go on?"}"#)],
        ("analyst", 2) => &[("helper", r#"{"task":"comment"}"#)],
        ("helper", 1) => &[ASKS_FOR_JIRA],
        ("clerk", 1) => &[("refund", "{}")],
        _ => &[],
    }
}

async fn tree(fixture: StoreFixture) -> EngineHarness {
    let mut harness = EngineHarness::new(fixture, &[]).await;
    harness.configure(|_| TREE.to_owned() + ACCOUNTS);
    harness.script_by_name(|model, prompt| Ok(turn(calls(model, prompt.turn))));
    harness
}

/// A call of the clerk, or of its model, in a tree in which a helper got a login after the call was
/// sent.
struct CallInFlight<A> {
    harness: EngineHarness,
    clerk: TaskId,
    answer: oneshot::Sender<A>,
    drivers: Vec<JoinHandle<()>>,
}

impl CallInFlight<ToolAnswer> {
    async fn of_tool(fixture: StoreFixture, is_late: bool) -> Self {
        let mut harness = tree(fixture).await;
        let (answer, unsent) = unsent();
        let shared = Arc::clone(&unsent);
        harness.refund = Some(Arc::new(move |spec| {
            Arc::new(AwaitedTool {
                spec: spec.clone(),
                answer: Arc::clone(&shared),
                is_late,
            })
        }));
        let engine = harness.engine(4);
        Self::new(harness, engine, answer, unsent).await
    }
}

impl CallInFlight<ModelAnswer> {
    async fn of_model(fixture: StoreFixture) -> Self {
        let harness = tree(fixture).await;
        let (answer, unsent) = unsent();
        let model: Arc<dyn ModelClient> = Arc::new(AwaitedModel(Arc::clone(&unsent)));
        let mut parts = harness.parts(4);
        parts.models.insert("clerk".to_owned(), model);
        Self::new(harness, Engine::new(parts), answer, unsent).await
    }
}

impl<A> CallInFlight<A> {
    /// Drives a tree until the clerk's call is in flight. Then lets the analyst start the helper,
    /// and gives the helper a login.
    async fn new(
        harness: EngineHarness,
        engine: Arc<Engine>,
        answer: oneshot::Sender<A>,
        unsent: Unsent<A>,
    ) -> Self {
        let root = harness.queued().await;
        let api = harness.engine(0);
        drive(&engine).await;
        let drivers = claimed(&engine).await;
        let of_agent = async |name: &str| harness.of_agent(root, name).await.remove(0);
        let (clerk, analyst) = (of_agent("clerk").await, of_agent("analyst").await);
        let is_sent = async || unsent.lock().unwrap().is_none();
        until("the clerk's call is sent", is_sent).await;
        let is_asked = async || !harness.open(analyst).await.is_empty();
        until("the analyst asks", is_asked).await;
        let guidance = harness.only_request(analyst, RequestKind::Guidance).await;
        alice_decides(&api, guidance, fills(&json!({"answer": "yes"}))).await;
        // The first drive continues the analyst, and the second drives the helper.
        for _ in 0..2 {
            drive(&engine).await;
        }
        let login = only_open_request(&harness, of_agent("helper").await).await;
        alice_decides(&api, login.request_id, fills(&jira(TOKEN))).await;
        Self {
            harness,
            clerk,
            answer,
            drivers,
        }
    }

    /// Answers the call in flight, and drives the clerk until it stops. Returns the harness and the
    /// clerk.
    async fn answered(self, answer: A) -> (EngineHarness, TaskId) {
        let is_sent = self.answer.send(answer).is_ok();
        assert!(is_sent, "the call waits for its answer");
        join(self.drivers).await;
        (self.harness, self.clerk)
    }
}

fn found() -> String {
    format!("found {TOKEN}")
}

#[apply(both)]
async fn result_of_a_call_shows_no_login_that_another_task_got_while_the_call_was_in_flight(
    fixture: StoreFixture,
) {
    let succeeded = ToolAnswer::Succeeded {
        content: found(),
        http_status: None,
    };
    let failed = ToolAnswer::Failed {
        content: found(),
        http_status: None,
    };
    for (answer, outcome) in [
        (succeeded, Outcome::Succeeded),
        (failed, Outcome::Failed),
        (ToolAnswer::Suspect { content: found() }, Outcome::Failed),
    ] {
        let in_flight = CallInFlight::of_tool(StoreFixture::like(&fixture).await, false).await;
        let (harness, clerk) = in_flight.answered(answer).await;
        let expected = ("refund".to_owned(), outcome, SHOWN.to_owned());
        assert_eq!(results(&harness, clerk).await, [expected]);
    }
}

#[apply(both)]
async fn question_of_a_server_shows_no_login_that_another_task_got_while_the_call_was_in_flight(
    fixture: StoreFixture,
) {
    let in_flight = CallInFlight::of_tool(fixture, false).await;
    let question = ServerQuestion {
        key: "name".to_owned(),
        message: found(),
        form: json!({"type": "object", "properties": {"name": {"type": "string", "title": found()}}}),
        url: None,
    };
    let asking = Elicitation {
        questions: vec![question],
        ..Elicitation::default()
    };
    let (harness, clerk) = in_flight
        .answered(ToolAnswer::Elicitation(Box::new(asking)))
        .await;
    let asked = harness.open_specs(clerk).await.remove(0);
    assert_eq!(asked.kind, RequestKind::Elicitation);
    assert_eq!(asked.question.as_deref(), Some(SHOWN));
    assert_eq!(asked.form.unwrap()["properties"]["name"]["title"], SHOWN);
    let items = format!("{:?}", harness.journal(clerk).await.items);
    assert!(!items.contains("0123456789"), "{items}");
}

#[apply(both)]
async fn late_answer_shows_no_login_that_another_task_got_after_the_call_was_sent(
    fixture: StoreFixture,
) {
    let CallInFlight {
        harness,
        clerk,
        answer,
        drivers,
    } = CallInFlight::of_tool(fixture, true).await;
    join(drivers).await;
    harness.only_request(clerk, RequestKind::Reconcile).await;
    let late = ToolAnswer::Succeeded {
        content: found(),
        http_status: None,
    };
    answer.send(late).unwrap();
    let is_stored = async || !results(&harness, clerk).await.is_empty();
    until("the late answer is stored", is_stored).await;
    harness.until_stopped(clerk).await;
    let expected = ("refund".to_owned(), Outcome::Succeeded, SHOWN.to_owned());
    assert_eq!(results(&harness, clerk).await, [expected]);
}

#[apply(both)]
async fn answer_or_error_of_a_model_shows_no_login_that_another_task_got_after_the_prompt_was_sent(
    fixture: StoreFixture,
) {
    let answered = Ok(Answer {
        text: Some(found()),
        ..turn(&[])
    });
    for answer in [answered, Err(ModelError::new(found()))] {
        let in_flight = CallInFlight::of_model(StoreFixture::like(&fixture).await).await;
        let (harness, clerk) = in_flight.answered(answer).await;
        let items = format!("{:?}", harness.journal(clerk).await.items);
        assert!(items.contains(SHOWN), "{items}");
        assert!(!items.contains("0123456789"), "{items}");
    }
}

#[apply(both)]
async fn call_whose_login_is_given_while_another_tool_is_compared_is_compared_before_its_start(
    fixture: StoreFixture,
) {
    let mut harness = tree(fixture).await;
    for (part, by) in [
        ("model: boss, sub", "model: boss, tools: [comment], sub"),
        ("tools: [refund]", "tools: [refund, comment]"),
        ("comment: { http", "comment: { effect: read_only, http"),
        ("refund: { http", "refund: { effect: read_only, http"),
    ] {
        harness.replace(part, by);
    }
    harness.script_by_name(|model, prompt| {
        let calls: Calls = match (model, prompt.turn) {
            ("boss", 1) => &[("clerk", r#"{"task":"pay"}"#), ("comment", "{}")],
            ("clerk", 1) => &[("refund", "{}"), ("comment", "{}")],
            _ => &[],
        };
        Ok(turn(calls))
    });
    let (refund, comment) = (serve_refund(&mut harness), Arc::new(Server::default()));
    let goes_on = refund.hold_next();
    let mut parts = harness.parts(4);
    let catalog = (*parts.catalog).clone();
    let served = catalog.with_tools(|spec| (spec.name == "comment").then(|| comment.tool(spec)));
    parts.catalog = Arc::new(served);
    let engine = Engine::new(parts);
    let root = harness.queued().await;
    drive(&engine).await;
    let drivers = claimed(&engine).await;
    refund.until_held().await;
    // The boss lacks the login as well, and the clerk uses the boss's login.
    let login = only_open_request(&harness, root).await.request_id;
    alice_decides(&harness.engine(0), login, fills(&jira(TOKEN))).await;
    goes_on.send(()).unwrap();
    join(drivers).await;
    assert_eq!(comment.starts(), [Some(StartReason::Allowed)]);
    assert_eq!((refund.calls(), comment.calls()), (1, 1));
}
