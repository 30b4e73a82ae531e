//! Tests a tool whose definition the server changes after the review: before a person is asked
//! about the tool's call, while the call is held, or after the call was approved. A call runs only
//! under the definition that was approved.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use holdpoint::engine::Refusal;
use holdpoint::task::decision::Action;
use holdpoint::task::elicitation::{Elicitation, ServerQuestion};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::{RequestKind, RequestSpec};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::tool_spec::ToolSpec;

use holdpoint::tool::{Credentials, DefinitionChange, Invocation, StartReason, Tool, ToolAnswer};
use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};

use super::call_decisions::{each, edit};
use super::engine_harness::{
    Calls, EngineHarness, alice, alice_decides, fills, go, outcomes, whole,
};
use crate::store::store_fixture::StoreFixture;

const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];
const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":500}"#)];
/// A call that a client answers, a call that the service sends, and then `refund`.
const BESIDE_OUTSIDE: &[(&str, &str)] = &[
    ("outside", "{}"),
    ("lookup", r#"{"order":1}"#),
    ("refund", r#"{"order":1,"amount":5}"#),
];
const REASON: &str = "The server changed this tool.";

#[derive(Default)]
pub struct Server {
    /// The difference between the reviewed definition and the definition that the server has now.
    live: Mutex<Option<DefinitionChange>>,
    /// The difference that the last comparison with the server found.
    known: Mutex<Option<DefinitionChange>>,
    /// If `None`, `prepare` compares the definitions and so finds the difference. If `Some(n)`, the
    /// n-th call of `definition_change` after `prepare` finds it, as if another task had meanwhile
    /// compared the definitions.
    finds: Mutex<Option<u32>>,
    /// The number of calls of `definition_change` since the last `prepare`.
    looks: Mutex<u32>,
    /// Whether the server leaves requests for its tools unanswered.
    down: Mutex<bool>,
    /// If set, the next `prepare` with a `StartReason` notifies `preparing`. It then waits until
    /// the test sends on this channel.
    held: Mutex<Option<oneshot::Receiver<()>>>,
    preparing: Notify,
    starts: Mutex<Vec<Option<StartReason>>>,
    calls: Mutex<u32>,
    /// Whether the server answers the next call with a question.
    asks: Mutex<bool>,
}

struct Changing(ToolSpec, Arc<Server>);

#[async_trait]
impl Tool for Changing {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn definition_change(&self, _: TaskId) -> Option<DefinitionChange> {
        let mut looks = self.1.looks.lock().unwrap();
        *looks += 1;
        if *self.1.finds.lock().unwrap() == Some(*looks) {
            let live = self.1.live.lock().unwrap().clone();
            *self.1.known.lock().unwrap() = live;
        }
        self.1.known.lock().unwrap().clone()
    }

    fn is_stale(&self, _: Option<StartReason>) -> bool {
        true
    }

    async fn prepare(
        &self,
        start: Option<StartReason>,
        _: TaskId,
        _: &Credentials,
    ) -> Result<(), String> {
        self.1.starts.lock().unwrap().push(start);
        let held = start.and_then(|_| self.1.held.lock().unwrap().take());
        if let Some(held) = held {
            self.1.preparing.notify_one();
            held.await.unwrap();
        }
        if *self.1.down.lock().unwrap() {
            return Err("no connection".to_owned());
        }
        *self.1.looks.lock().unwrap() = 0;
        if self.1.finds.lock().unwrap().is_none() {
            let live = self.1.live.lock().unwrap().clone();
            *self.1.known.lock().unwrap() = live;
        }
        Ok(())
    }

    async fn call(&self, call: &Invocation) -> ToolAnswer {
        assert!(call.permit.holds());
        *self.1.calls.lock().unwrap() += 1;
        if std::mem::take(&mut *self.1.asks.lock().unwrap()) {
            return ToolAnswer::Elicitation(Box::new(Elicitation {
                questions: vec![ServerQuestion {
                    key: "name".to_owned(),
                    message: "Which name?".to_owned(),
                    form: json!({"type": "object", "properties": {"name": {"type": "string"}}}),
                    url: None,
                }],
                ..Elicitation::default()
            }));
        }
        ToolAnswer::Succeeded {
            content: "paid".to_owned(),
            http_status: None,
        }
    }
}

impl Server {
    fn changes(&self, definition: &str, denied: bool) {
        *self.live.lock().unwrap() = Some(DefinitionChange {
            definition: definition.to_owned(),
            reason: REASON.to_owned(),
            denied,
        });
    }

    /// Holds the next `prepare` with a `StartReason` until the test sends on the returned channel.
    pub fn hold_next(&self) -> oneshot::Sender<()> {
        let (goes_on, held) = oneshot::channel();
        *self.held.lock().unwrap() = Some(held);
        goes_on
    }

    /// Waits until a `prepare` is held.
    pub async fn until_held(&self) {
        self.preparing.notified().await;
    }

    pub fn calls(&self) -> u32 {
        *self.calls.lock().unwrap()
    }

    /// Returns the argument `start` of each `prepare`.
    pub fn starts(&self) -> Vec<Option<StartReason>> {
        self.starts.lock().unwrap().clone()
    }

    pub fn tool(self: &Arc<Self>, spec: &ToolSpec) -> Arc<dyn Tool> {
        Arc::new(Changing(spec.clone(), Arc::clone(self)))
    }
}

/// Gives the tool `refund` a server, whose tools are compared before each judgement, decision and
/// start. Returns the server.
pub fn serve_refund(harness: &mut EngineHarness) -> Arc<Server> {
    let server = Arc::new(Server::default());
    let shared = Arc::clone(&server);
    harness.refund = Some(Arc::new(move |spec| shared.tool(spec)));
    server
}

async fn harness(calls: Calls) -> (EngineHarness, Arc<Server>) {
    let mut harness = EngineHarness::new(StoreFixture::sqlite().await, calls).await;
    let server = serve_refund(&mut harness);
    (harness, server)
}

/// Returns the only open request. Asserts that it asks about the changed tool.
async fn asked_about_change(harness: &EngineHarness, task: TaskId) -> RequestSpec {
    let mut open = harness.open_specs(task).await;
    assert_eq!(open.len(), 1, "{open:?}");
    let asked = open.remove(0);
    assert_eq!(asked.kind, RequestKind::Approval);
    let reason = asked.pending_tool_calls[0].reason.as_deref();
    assert!(reason.unwrap().contains(REASON), "{reason:?}");
    asked
}

/// Drives the task. Asserts that a new request asks about the changed tool in place of `first`, and
/// that nothing was called. Returns the new request.
async fn asked_anew(
    harness: &EngineHarness,
    server: &Server,
    task: TaskId,
    first: &RequestSpec,
) -> RequestSpec {
    harness.run().await;
    let second = asked_about_change(harness, task).await;
    assert!(first.request_id != second.request_id && first.digest != second.digest);
    assert_eq!(server.calls(), 0);
    second
}

async fn approve(harness: &EngineHarness, asked: &RequestSpec) -> Result<(), Refusal> {
    let yes = whole(Action::Approve, None);
    let api = harness.engine(0);
    api.decide(&alice(), asked.request_id, yes, None)
        .await
        .map(drop)
}

/// Returns whether the page with one button for this action says, in a new process, that the tool
/// has changed since the request was opened. The process has not compared the definitions before.
async fn page_says_changed(
    harness: &EngineHarness,
    server: &Server,
    asked: &RequestSpec,
    action: Action,
) -> bool {
    *server.known.lock().unwrap() = None;
    let row = harness.fixture.request(asked.request_id).await;
    let (api, caller) = (harness.engine(0), alice());
    let decisions = api.decisions();
    let changed = decisions.asks_about_changed_tool(&caller, &row, action);
    changed.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn page_that_approves_a_changed_tool_compares_it_and_page_that_rejects_it_does_not() {
    let (harness, server) = harness(SMALL).await;
    server.changes("sha256:other", false);
    let task = harness.held().await;
    let asked = asked_about_change(&harness, task).await;
    assert!(!page_says_changed(&harness, &server, &asked, Action::Approve).await);
    // A POST that rejects compares nothing, so a new process refuses it.
    assert!(page_says_changed(&harness, &server, &asked, Action::Reject).await);
    server.changes("sha256:third", false);
    assert!(page_says_changed(&harness, &server, &asked, Action::Approve).await);
    assert_eq!(server.calls(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn call_that_a_rule_allows_is_held_while_its_tool_is_changed() {
    let (harness, server) = harness(SMALL).await;
    server.changes("sha256:other", false);
    let task = harness.held().await;
    let asked = asked_about_change(&harness, task).await;
    assert_eq!(server.calls(), 0);
    approve(&harness, &asked).await.unwrap();
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(server.calls(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn change_that_is_known_while_a_call_is_held_withdraws_its_request() {
    let (harness, server) = harness(LARGE).await;
    let task = harness.held().await;
    let first = harness.open_specs(task).await.remove(0);
    server.changes("sha256:other", false);
    *server.known.lock().unwrap() = server.live.lock().unwrap().clone();
    let refused = approve(&harness, &first).await;
    assert!(refused.is_err(), "{refused:?}");
    asked_anew(&harness, &server, task, &first).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn change_that_no_comparison_has_found_refuses_an_approval_and_is_asked_about() {
    let (harness, server) = harness(LARGE).await;
    let task = harness.held().await;
    let first = harness.open_specs(task).await.remove(0);
    server.changes("sha256:other", false);
    let refused = approve(&harness, &first).await;
    assert!(
        matches!(refused, Err(Refusal::Withdrawn(id)) if id == first.request_id),
        "{refused:?}"
    );
    let second = asked_anew(&harness, &server, task, &first).await;
    // A rejection lets no call run, so the service stores it without a comparison of definitions.
    let compared = server.starts.lock().unwrap().len();
    let no = whole(Action::Reject, None);
    let api = harness.engine(0);
    let stored = api.decide(&alice(), second.request_id, no, None).await;
    stored.map(drop).unwrap();
    assert_eq!(server.starts.lock().unwrap().len(), compared);
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_whose_tool_cannot_be_compared_is_stored_and_its_call_is_not_sent() {
    let (harness, server) = harness(LARGE).await;
    let task = harness.held().await;
    let asked = harness.open_specs(task).await.remove(0);
    *server.down.lock().unwrap() = true;
    approve(&harness, &asked).await.unwrap();
    harness.run().await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Failed]);
    assert_eq!(server.calls(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_of_the_reviewed_definition_starts_nothing_after_a_change() {
    let (harness, server) = harness(LARGE).await;
    let task = harness.held().await;
    let first = harness.open_specs(task).await.remove(0);
    approve(&harness, &first).await.unwrap();
    server.changes("sha256:other", false);
    harness.run().await;
    let second = asked_about_change(&harness, task).await;
    assert_eq!(server.calls(), 0);
    // If the tool changes again after the second approval, a person is asked about that change,
    // too.
    approve(&harness, &second).await.unwrap();
    server.changes("sha256:third", false);
    harness.run().await;
    let third = asked_about_change(&harness, task).await;
    assert!(second.request_id != third.request_id && server.calls() == 0);
    approve(&harness, &third).await.unwrap();
    harness.run().await;
    assert_eq!(server.calls(), 1);
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Succeeded]);
    let ground = server.starts.lock().unwrap().last().copied();
    assert_eq!(ground, Some(Some(StartReason::Approved)));
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_to_a_question_of_a_changed_tool_is_taken_by_a_process_that_has_not_compared_it() {
    let (harness, server) = harness(SMALL).await;
    server.changes("sha256:other", false);
    *server.asks.lock().unwrap() = true;
    let task = harness.held().await;
    let approval = asked_about_change(&harness, task).await;
    approve(&harness, &approval).await.unwrap();
    harness.run().await;
    let question = harness.open_specs(task).await.remove(0);
    assert_eq!(question.kind, RequestKind::Elicitation);
    // A new process does not know the change until it compares the definitions.
    assert!(!page_says_changed(&harness, &server, &question, Action::Reject).await);
    *server.known.lock().unwrap() = None;
    let name = fills(&json!({"name": "a"}));
    alice_decides(&harness.engine(0), question.request_id, name).await;
    harness.run().await;
    assert_eq!(server.calls(), 2);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn call_of_a_changed_tool_is_refused_where_the_operator_says_so() {
    let (harness, server) = harness(SMALL).await;
    server.changes("sha256:other", true);
    let engine = harness.engine(0);
    let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
    harness.run().await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Denied]);
    assert_eq!(server.calls(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn call_whose_tool_cannot_be_compared_fails_and_is_not_sent() {
    let (harness, server) = harness(SMALL).await;
    *server.down.lock().unwrap() = true;
    let engine = harness.engine(0);
    let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
    harness.run().await;
    let journal = harness.journal(task).await;
    assert_eq!(outcomes(&journal), [Outcome::Failed]);
    let started = |fact: &Fact| matches!(fact, Fact::ToolStarted { .. });
    assert!(!journal.items.iter().any(|item| started(&item.fact)));
    assert_eq!(server.calls(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn call_whose_preparation_failed_has_one_result_after_another_commit_came_first() {
    let (mut harness, server) = harness(BESIDE_OUTSIDE).await;
    harness.configure(|yaml| {
        let yaml = yaml.replace(
            "  forbidden: {",
            "  outside: { parameters: { type: object }, external: {} }\n  forbidden: {",
        );
        yaml.replace(
            "tag, refund, forbidden]",
            "tag, refund, forbidden, outside]",
        )
    });
    *server.down.lock().unwrap() = true;
    let goes_on = server.hold_next();
    let engine = harness.engine(4);
    let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
    // The commit of the start of `lookup` also stores the request for the result of `outside`. The
    // service prepares `refund` after this commit.
    server.until_held().await;
    let asked = harness.open_specs(task).await.remove(0);
    assert_eq!(asked.kind, RequestKind::ExternalResult);
    let answer = whole(Action::Respond, Some(Value::from("it is there")));
    alice_decides(&engine, asked.request_id, answer).await;
    goes_on.send(()).unwrap();
    harness.until_stopped(task).await;
    let journal = harness.journal(task).await;
    let mut results = outcomes(&journal);
    results.sort_by_key(|outcome| *outcome == Outcome::Failed);
    let late = |fact: &Fact| matches!(fact, Fact::LateResult(_));
    assert!(!journal.items.iter().any(|item| late(&item.fact)));
    assert_eq!(results.last(), Some(&Outcome::Failed));
    assert_eq!((results.len(), server.calls()), (3, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn change_that_another_task_finds_before_the_start_is_judged() {
    let mut found = 0;
    for looks in 1.. {
        let (harness, server) = harness(SMALL).await;
        *server.finds.lock().unwrap() = Some(looks);
        let engine = harness.engine(0);
        let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
        server.changes("sha256:other", false);
        harness.run().await;
        if server.known.lock().unwrap().is_none() {
            assert_eq!(server.calls(), 1);
            break;
        }
        asked_about_change(&harness, task).await;
        assert_eq!(server.calls(), 0, "the change was found at look {looks}");
        found += 1;
    }
    assert!(found >= 4, "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn change_that_another_task_finds_before_a_request_is_opened_is_in_the_request() {
    let mut found = 0;
    for looks in 1.. {
        let (harness, server) = harness(LARGE).await;
        *server.finds.lock().unwrap() = Some(looks);
        server.changes("sha256:other", false);
        let task = harness.held().await;
        if server.known.lock().unwrap().is_none() {
            break;
        }
        let asked = asked_about_change(&harness, task).await;
        // The request's digest must cover the changed definition, or the approved task would fail.
        approve(&harness, &asked).await.unwrap();
        harness.run().await;
        let status = harness.status(task).await;
        assert_eq!(status, TaskStatus::Completed, "found at look {looks}");
        found += 1;
    }
    assert!(found >= 3, "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn change_that_another_task_finds_while_a_person_edits_a_call_holds_the_edited_call() {
    let mut found = 0;
    for looks in 1.. {
        let (harness, server) = harness(LARGE).await;
        let task = harness.held().await;
        let asked = harness.open_specs(task).await.remove(0);
        let call = asked.pending_tool_calls[0].tool_call_id;
        *server.finds.lock().unwrap() = Some(looks);
        *server.looks.lock().unwrap() = 0;
        server.changes("sha256:other", false);
        let edited = each([(call, edit(r#"{"order":1,"amount":50}"#))]);
        let api = harness.engine(0);
        let _ = api.decide(&alice(), asked.request_id, edited, None).await;
        if server.known.lock().unwrap().is_none() {
            break;
        }
        harness.run().await;
        asked_about_change(&harness, task).await;
        assert_eq!(server.calls(), 0, "the change was found at look {looks}");
        found += 1;
    }
    assert!(found >= 3, "{found}");
}
