//! Tests questions that a tool's server asks in the middle of a call. The questions become
//! requests, and the next attempt at the call sends the answers back to the server.

mod allowed_calls;
mod answers_before_a_change;
mod sealed_states;
mod secrets;
mod unknown_outcomes;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use holdpoint::engine::DecisionInput;
use holdpoint::people::authorization::Roster;
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::elicitation::{Elicitation, MAX_ROUNDS, Resume, ServerQuestion, ServerState};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Item, Outcome};
use holdpoint::task::progress::Progress;
use holdpoint::task::request::{RequestKind, RequestSpec};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::step::{AwaitedEvent, Step, StepContext, next_step};
use holdpoint::task::tool_spec::ToolSpec;
use holdpoint::tool::{Invocation, Tool, ToolAnswer};
use serde_json::{Value, json};

use super::approval_rights::{account, driven, keyed, known, process};
use super::engine_harness::{
    Calls, EngineHarness, alice, alice_decides, decides, fills, outcomes, person, rejects,
    too_late, whole,
};
use crate::store::store_fixture::StoreFixture;

const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];
const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":500}"#)];
const SEALING: &str =
    "\nsecrets: { keys: [ { id: k1, key: \"MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\" } ] }\n";

/// The server of a tool. It answers the attempts at calls with the answers from a list, and records
/// the data that each attempt sends back.
#[derive(Default)]
struct Server {
    answers: Mutex<VecDeque<ToolAnswer>>,
    resumed: Mutex<Vec<Option<Resume>>>,
    /// The number of the attempt that never gets an answer; 0 if there is none.
    unanswered: AtomicUsize,
}

struct ElicitingTool(ToolSpec, Arc<Server>);

#[async_trait]
impl Tool for ElicitingTool {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn call(&self, call: &Invocation) -> ToolAnswer {
        assert!(call.permit.holds());
        self.1.resumed.lock().unwrap().push(call.resume.clone());
        if self.1.resumed().len() == self.1.unanswered.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let next = self.1.answers.lock().unwrap().pop_front();
        next.unwrap_or(ToolAnswer::Succeeded {
            content: "paid".to_owned(),
            http_status: None,
        })
    }
}

impl Server {
    fn resumed(&self) -> Vec<Option<Resume>> {
        self.resumed.lock().unwrap().clone()
    }
}

fn question(key: &str, url: Option<&str>) -> ServerQuestion {
    ServerQuestion {
        key: key.to_owned(),
        message: format!("Which {key}?\nSay it."),
        form: json!({"type": "object", "properties": {key: {"type": "string"}}, "required": [key],
            "additionalProperties": false}),
        url: url.map(str::to_owned),
    }
}

fn asks(keys: &[&str]) -> ToolAnswer {
    ToolAnswer::Elicitation(Box::new(Elicitation {
        server: "files".to_owned(),
        tool: "move".to_owned(),
        questions: keys.iter().map(|key| question(key, None)).collect(),
        state: Some(ServerState::Plain("state-of-server".to_owned())),
        ..Elicitation::default()
    }))
}

fn lost() -> ToolAnswer {
    ToolAnswer::Unknown {
        problem: "the connection broke".to_owned(),
    }
}

async fn harness(calls: Calls, answers: Vec<ToolAnswer>) -> (EngineHarness, Arc<Server>) {
    harness_on(StoreFixture::sqlite().await, calls, answers).await
}

async fn harness_on(
    fixture: StoreFixture,
    calls: Calls,
    answers: Vec<ToolAnswer>,
) -> (EngineHarness, Arc<Server>) {
    let mut harness = EngineHarness::new(fixture, calls).await;
    harness.configure(|yaml| yaml.to_owned() + SEALING);
    let server = Arc::new(Server::default());
    *server.answers.lock().unwrap() = answers.into();
    let shared = Arc::clone(&server);
    harness.refund = Some(Arc::new(move |spec| {
        Arc::new(ElicitingTool(spec.clone(), Arc::clone(&shared)))
    }));
    (harness, server)
}

/// Creates a task with a call of the tool `refund`, which has this effect. `answers` are the
/// answers of its server.
async fn asking(
    fixture: StoreFixture,
    effect: &str,
    calls: Calls,
    answers: Vec<ToolAnswer>,
) -> (EngineHarness, Arc<Server>, TaskId) {
    let (mut harness, server) = harness_on(fixture, calls, answers).await;
    let with_effect = format!("  refund:\n    effect: {effect}\n");
    harness.replace("  refund:\n", &with_effect);
    let task = harness.held().await;
    (harness, server, task)
}

async fn the_request(harness: &EngineHarness, task: TaskId) -> RequestSpec {
    let mut open = harness.open_specs(task).await;
    assert_eq!(open.len(), 1, "{open:?}");
    open.remove(0)
}

/// Answers the only open request through a new engine. Then drives the task on in another engine.
async fn answer(harness: &EngineHarness, task: TaskId, answer: DecisionInput) {
    let request = the_request(harness, task).await.request_id;
    let api = harness.engine(0);
    alice_decides(&api, request, answer).await;
    harness.run().await;
}

/// Lets the group finance approve large refunds. Returns a roster in which Bob and Carol are of
/// this group, and a later roster without Bob.
fn rosters_of_finance(harness: &mut EngineHarness) -> (Roster, Roster) {
    harness.replace("{ owner: true }", "{ groups: [finance] }");
    let [bob, carol] = ["bob", "carol"].map(|user| account(user, &["finance"]));
    (known([bob, carol.clone()]), known([carol]))
}

/// Answers the only open request as a member of finance, through a process with this roster.
async fn answer_as(
    harness: &EngineHarness,
    roster: &Roster,
    user: &str,
    task: TaskId,
    answer: DecisionInput,
) {
    let request = the_request(harness, task).await.request_id;
    let (api, member) = (process(harness, roster, 0), keyed(user, &["finance"]));
    decides(&api, &member, request, answer).await;
}

async fn attempts(harness: &EngineHarness, task: TaskId) -> Vec<u32> {
    let journal = harness.journal(task).await;
    let started = journal.items.iter().filter_map(|item| {
        let Fact::ToolStarted { attempt, .. } = &item.fact else {
            return None;
        };
        Some(*attempt)
    });
    started.collect()
}

fn resume(responses: &Value) -> Resume {
    Resume {
        round: 1,
        request_state: Some("state-of-server".to_owned()),
        responses: responses.as_object().unwrap().clone(),
        ..Resume::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn question_of_a_server_pauses_the_task_and_its_answer_returns_with_the_next_attempt() {
    let (harness, server) = harness(SMALL, vec![asks(&["folder"])]).await;
    let task = harness.held().await;
    let asked = the_request(&harness, task).await;
    assert_eq!(asked.kind, RequestKind::Elicitation);
    assert_eq!(
        asked.terms.message.as_deref(),
        Some("files asks: Which folder? Say it.")
    );
    assert_eq!(asked.question.as_deref(), Some("Which folder?\nSay it."));
    let details = json!({"server": "files", "tool": "move", "mode": "form", "url": null});
    assert_eq!(asked.details, Some(details));
    assert!(asked.form.is_some() && asked.has_valid_digests("acme", task));
    let stored = serde_json::to_string(&asked).unwrap();
    assert!(!stored.contains("state-of-server"), "{stored}");
    // An answer that does not fit the request's form changes nothing.
    let api = harness.engine(0);
    let misfit = fills(&json!({"folder": 1}));
    let refused = api.decide(&alice(), asked.request_id, misfit, None).await;
    assert!(refused.is_err());
    let bob = person("bob");
    let other = api.decide(&bob, asked.request_id, fills(&json!({"folder": "b"})), None);
    assert!(other.await.is_err());
    answer(&harness, task, fills(&json!({"folder": "a"}))).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    let accepted = json!({"folder": {"action": "accept", "content": {"folder": "a"}}});
    assert_eq!(server.resumed(), [None, Some(resume(&accepted))]);
    assert_eq!(attempts(&harness, task).await, [1, 2]);
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Succeeded]);
    let late = fills(&json!({"folder": "c"}));
    let late = api.decide(&alice(), asked.request_id, late, None).await;
    assert!(too_late(&late, asked.request_id));
}

#[tokio::test(flavor = "multi_thread")]
async fn declined_question_is_declined_to_the_server_and_the_call_goes_on() {
    let (harness, server) = harness(SMALL, vec![asks(&["folder"])]).await;
    let task = harness.held().await;
    answer(&harness, task, whole(Action::Reject, None)).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    let declined = resume(&json!({"folder": {"action": "decline"}}));
    assert_eq!(server.resumed(), [None, Some(declined)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejection_that_cancels_starts_no_further_attempt() {
    let (harness, server) = harness(SMALL, vec![asks(&["folder"])]).await;
    let task = harness.held().await;
    answer(&harness, task, rejects(Consequence::Cancel)).await;
    assert_eq!(harness.status(task).await, TaskStatus::Canceled);
    assert_eq!(server.resumed().len(), 1);
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Unknown]);
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_of_one_attempt_are_asked_one_after_the_other_and_answered_together() {
    let (harness, server) = harness(SMALL, vec![asks(&["folder", "name"])]).await;
    let task = harness.held().await;
    let first = the_request(&harness, task).await;
    answer(&harness, task, fills(&json!({"folder": "a"}))).await;
    let second = the_request(&harness, task).await;
    assert!(first.question != second.question && first.request_id != second.request_id);
    assert_eq!(server.resumed().len(), 1);
    answer(&harness, task, whole(Action::Reject, None)).await;
    let both = json!({"folder": {"action": "accept", "content": {"folder": "a"}}, "name": {"action": "decline"}});
    assert_eq!(server.resumed(), [None, Some(resume(&both))]);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_questions_wait_while_the_tree_has_the_maximum_number_of_open_requests() {
    let (harness, _) = harness(SMALL, vec![asks(&["folder", "name"])]).await;
    let task = harness.held().await;
    answer(&harness, task, fills(&json!({"folder": "a"}))).await;
    let items = harness.journal(task).await.items;
    let is_request = |item: &&Item| matches!(item.fact, Fact::InterventionRequested(_));
    let asked: Vec<_> = items
        .iter()
        .filter(is_request)
        .map(|item| item.seq)
        .collect();
    assert_eq!(asked.len(), 2);
    for (number, seq) in asked.into_iter().enumerate() {
        let before: Vec<_> = items
            .iter()
            .filter(|item| item.seq < seq)
            .cloned()
            .collect();
        let mut progress = Progress::from_items(&before);
        let call = progress.calls[0].call.tool_call_id;
        // Before the first request, only the process's memory has the server's questions. The
        // commit of the first request stores them, and the second request asks the next of them.
        let is_unstored = number == 0;
        let context = StepContext {
            ended_with_questions: BTreeSet::from_iter(is_unstored.then_some(call)),
            ..StepContext::default()
        };
        progress.open_elsewhere = 19;
        assert_eq!(next_step(&progress, &context), Step::Elicit(vec![call]));
        progress.open_elsewhere = 20;
        let expected = if is_unstored {
            Step::Elicit(vec![call])
        } else {
            Step::Wait(vec![AwaitedEvent::RequestClosed])
        };
        assert_eq!(next_step(&progress, &context), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn question_without_an_answer_in_time_ends_the_call_as_expired() {
    let (harness, server) = harness(SMALL, vec![asks(&["folder"])]).await;
    let task = harness.held().await;
    harness.fixture.forward(Duration::from_hours(25));
    harness.engine(4).worker().expire().await.unwrap();
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(server.resumed().len(), 1);
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Expired]);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_asks_too_often_fails_its_call() {
    let often = (0..=MAX_ROUNDS).map(|_| asks(&["folder"])).collect();
    let (harness, server) = harness(SMALL, often).await;
    let task = harness.held().await;
    for _ in 0..MAX_ROUNDS {
        answer(&harness, task, fills(&json!({"folder": "a"}))).await;
    }
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(server.resumed().len(), MAX_ROUNDS as usize + 1);
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Failed]);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_continuation_of_a_once_call_is_asked_about_and_a_retry_returns_the_same_answers() {
    let (harness, server) = harness(SMALL, vec![asks(&["folder"]), lost()]).await;
    let task = harness.held().await;
    answer(&harness, task, fills(&json!({"folder": "a"}))).await;
    let asked = the_request(&harness, task).await;
    assert_eq!(asked.kind, RequestKind::Reconcile);
    assert_eq!(server.resumed().len(), 2);
    answer(&harness, task, whole(Action::Retry, None)).await;
    let resumed = server.resumed();
    assert_eq!(resumed.len(), 3);
    assert!(resumed[1].is_some() && resumed[1] == resumed[2]);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn retried_call_whose_last_attempt_asked_needs_a_new_approval_once_its_approver_is_gone() {
    let (mut harness, server) = harness(LARGE, vec![lost(), asks(&["folder"])]).await;
    let (before, now) = rosters_of_finance(&mut harness);
    let task = harness.held().await;
    for action in [Action::Approve, Action::Retry] {
        answer_as(&harness, &before, "bob", task, whole(action, None)).await;
        driven(&harness, &before).await;
    }
    let asked = the_request(&harness, task).await;
    assert_eq!(asked.kind, RequestKind::Elicitation);
    let folder = fills(&json!({"folder": "a"}));
    answer_as(&harness, &now, "carol", task, folder).await;
    driven(&harness, &now).await;
    // The outcome of the last attempt is known: the attempt ended with the question. So no request
    // asks about the outcome.
    let anew = the_request(&harness, task).await;
    assert_eq!(anew.kind, RequestKind::Approval);
    let reason = anew.pending_tool_calls[0].reason.clone().unwrap();
    for part in ["has lost the right", "may have taken effect"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!(attempts(&harness, task).await, [1, 2]);
    answer_as(&harness, &now, "carol", task, whole(Action::Approve, None)).await;
    driven(&harness, &now).await;
    let accepted = json!({"folder": {"action": "accept", "content": {"folder": "a"}}});
    assert_eq!(server.resumed(), [None, None, Some(resume(&accepted))]);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_continuation_is_asked_about_again_once_the_person_who_retried_it_is_gone() {
    let (mut harness, server) = harness(LARGE, vec![asks(&["folder"]), lost()]).await;
    let (before, now) = rosters_of_finance(&mut harness);
    let task = harness.held().await;
    let folder = fills(&json!({"folder": "a"}));
    for said in [whole(Action::Approve, None), folder] {
        answer_as(&harness, &before, "bob", task, said).await;
        driven(&harness, &before).await;
    }
    let unknown = the_request(&harness, task).await;
    answer_as(&harness, &before, "bob", task, whole(Action::Retry, None)).await;
    driven(&harness, &now).await;
    let anew = the_request(&harness, task).await;
    assert_eq!(anew.kind, RequestKind::Reconcile);
    assert_eq!(anew.details, unknown.details);
    assert_ne!(anew.request_id, unknown.request_id);
    assert_eq!(attempts(&harness, task).await, [1, 2]);
    answer_as(&harness, &now, "carol", task, whole(Action::Retry, None)).await;
    driven(&harness, &now).await;
    let accepted = json!({"folder": {"action": "accept", "content": {"folder": "a"}}});
    let resumed = Some(resume(&accepted));
    assert_eq!(server.resumed(), [None, resumed.clone(), resumed]);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn canceled_task_with_an_open_question_starts_no_further_attempt() {
    let (harness, server) = harness(SMALL, vec![asks(&["folder"])]).await;
    let task = harness.held().await;
    let request = the_request(&harness, task).await.request_id;
    let api = harness.engine(0);
    api.cancel(&alice(), task, None).await.unwrap();
    let late = fills(&json!({"folder": "a"}));
    assert!(api.decide(&alice(), request, late, None).await.is_err());
    harness.run().await;
    assert_eq!(server.resumed().len(), 1);
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Unknown]);
}

#[tokio::test(flavor = "multi_thread")]
async fn approvers_of_an_exact_rule_answer_the_question_and_those_of_a_glob_do_not() {
    for (tools, bob_may) in [("[refund]", true), ("[\"ref*\"]", false)] {
        let (mut harness, server) = harness(LARGE, vec![asks(&["folder"])]).await;
        harness.configure(|yaml| {
            let large = "name: large, tools: [refund]";
            let yaml = yaml.replace(large, &format!("name: large, tools: {tools}"));
            yaml.replace("approvers: { owner: true }", "approvers: { users: [bob] }")
        });
        let task = harness.held().await;
        let approval = the_request(&harness, task).await.request_id;
        let api = harness.engine(0);
        let yes = whole(Action::Approve, None);
        decides(&api, &person("bob"), approval, yes).await;
        harness.run().await;
        let asked = the_request(&harness, task).await;
        assert_eq!(asked.kind, RequestKind::Elicitation);
        for who in ["alice", "bob"] {
            let who_answers = person(who);
            let said = api.decide(
                &who_answers,
                asked.request_id,
                fills(&json!({"folder": "a"})),
                None,
            );
            let may = (who == "bob") == bob_may;
            assert_eq!(said.await.is_ok(), may, "{tools} {who}");
            if may {
                break;
            }
        }
        harness.run().await;
        assert_eq!(server.resumed().len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn state_that_cannot_be_opened_any_more_fails_the_call_and_sends_nothing() {
    let (mut harness, server) = harness(SMALL, vec![asks(&["folder"])]).await;
    let task = harness.held().await;
    harness.replace(SEALING, "");
    answer(&harness, task, fills(&json!({"folder": "a"}))).await;
    assert_eq!(server.resumed().len(), 1);
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Failed]);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn question_with_a_page_is_answered_without_content() {
    let mut page = asks(&[]);
    if let ToolAnswer::Elicitation(asked) = &mut page {
        let form = json!({"type": "object", "properties": {"opened": {"type": "boolean", "const": true}},
            "required": ["opened"], "additionalProperties": false});
        asked.questions = vec![ServerQuestion {
            form,
            ..question("login", Some("https://acme.com/login"))
        }];
    }
    let (harness, server) = harness(SMALL, vec![page]).await;
    let task = harness.held().await;
    let asked = the_request(&harness, task).await;
    assert_eq!(asked.details.unwrap()["url"], "https://acme.com/login");
    answer(&harness, task, fills(&json!({"opened": true}))).await;
    let accepted = resume(&json!({"login": {"action": "accept"}}));
    assert_eq!(server.resumed(), [None, Some(accepted)]);
}
