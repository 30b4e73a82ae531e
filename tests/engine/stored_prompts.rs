//! Tests of prompts: a model receives no message that the journal lacks, and is asked once for each
//! stored answer.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use holdpoint::engine::{DecisionBody, DecisionInput, TaskInput};
use holdpoint::model::Prompt;
use holdpoint::store::{Store, TaskFilter};
use holdpoint::task::change::Journal;
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::id::{CallId, TaskId};
use holdpoint::task::item::{Fact, Item, Part, PartType};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::transcript::{Message, conversation};
use macro_rules_attribute::apply;
use serde_json::json;

use super::call_decisions::{each, respond};
use super::engine_harness::{
    EngineHarness, alice, alice_writes, fills, go, message, tool_results, turn, whole,
};
use super::takeover::{Drop, drive_and_drop, steps_of_polls};
use super::trees::harness::{Shape, one_large, said};
use super::two_replicas::Pair;
use super::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::repetitions;

/// Compares each prompt with the journal while the model is asked. Records the prompts that are not
/// in the journal.
pub struct PromptChecker {
    store: Store,
    missing: Mutex<Vec<String>>,
}

impl PromptChecker {
    pub fn new(store: Store) -> Self {
        Self {
            store,
            missing: Mutex::default(),
        }
    }

    pub async fn reads(&self, prompt: &Prompt) {
        let journals = self.journals(prompt).await;
        if !journals
            .iter()
            .any(|journal| stands_in(&prompt.messages, &journal.items))
        {
            let missing = format!("{:#?}\nis not in {journals:#?}", prompt.messages);
            self.missing
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(missing);
        }
    }

    /// Returns the journals of the newest tree whose session id is the text of the prompt's first
    /// message. If there is no such tree, returns the journals of the newest tree of all.
    async fn journals(&self, prompt: &Prompt) -> Vec<Journal> {
        let session = first_message(prompt);
        let all = TaskFilter {
            tenant: "acme".to_owned(),
            limit: 1,
            ..TaskFilter::default()
        };
        let named = TaskFilter {
            sessions: vec![session],
            ..all.clone()
        };
        let mut roots = self.store.tasks(&named).await.unwrap();
        if roots.is_empty() {
            roots = self.store.tasks(&all).await.unwrap();
        }
        let Some(root) = roots.first().map(|row| row.task_id) else {
            return Vec::new();
        };
        let tree = TaskFilter {
            roots: vec![root],
            limit: 200,
            ..all
        };
        let mut journals = Vec::new();
        for row in self.store.tasks(&tree).await.unwrap() {
            journals.extend(self.store.journal(row.task_id).await.unwrap());
        }
        journals
    }

    /// Returns a description of each prompt whose messages no journal contained when the prompt was
    /// sent.
    pub fn missing(&self) -> Vec<String> {
        self.missing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Returns whether these messages are the conversation of some prefix of a journal.
fn stands_in(messages: &[Message], items: &[Item]) -> bool {
    (0..=items.len())
        .rev()
        .any(|length| conversation(&items[..length]) == messages)
}

fn first_message(prompt: &Prompt) -> String {
    let first = prompt.messages.iter().find_map(|message| match message {
        Message::User { parts, .. } => Some(parts),
        Message::Assistant { .. } | Message::Result { .. } => None,
    });
    first
        .unwrap()
        .iter()
        .map(|part| part.content.as_str())
        .collect()
}

pub fn answers(items: &[Item]) -> usize {
    items
        .iter()
        .filter(|item| matches!(item.fact, Fact::AssistantMessage(_)))
        .count()
}

/// Returns the input of a task in its own session. The task's message is also the session's name.
fn named(session: &str) -> TaskInput {
    let items = vec![Part {
        content_type: PartType::Text,
        content: session.to_owned(),
    }];
    TaskInput {
        items,
        session_id: Some(session.to_owned()),
        ..go()
    }
}

/// Returns a harness whose model asks for guidance if the task's message begins with `guide`, and
/// otherwise makes a refund that is held.
async fn asking(fixture: StoreFixture) -> EngineHarness {
    let mut harness = EngineHarness::new(fixture, &[]).await;
    harness.replace(
        "refund, forbidden] }",
        "refund, forbidden], human: [guidance] }",
    );
    harness.script_by_name(|_, prompt| {
        let guidance = ("request_human_guidance", r#"{"question":"Which shop?"}"#);
        let refund = ("refund", r#"{"order":1,"amount":120}"#);
        let asks = [if said(prompt).starts_with("guide") {
            guidance
        } else {
            refund
        }];
        Ok(turn(if prompt.turn == 1 { &asks } else { &[] }))
    });
    harness
}

/// Returns answer number `person`. Every text in the answer contains this number.
fn answer(kind: RequestKind, call: CallId, person: usize) -> DecisionInput {
    match (kind, person % 3) {
        (RequestKind::Guidance, _) => fills(&json!({"answer": format!("the shop of p{person}")})),
        (_, 0) => whole(Action::Approve, None),
        (_, 1) => each([(call, respond(&format!("\"paid by p{person}\"")))]),
        _ => {
            let reason = Some(format!("p{person} says no"));
            let (action, then) = (Action::Reject, Some(Consequence::Continue));
            DecisionInput {
                digest: None,
                body: DecisionBody::Whole {
                    action,
                    reason,
                    then,
                    response: None,
                    result: None,
                    remember: None,
                },
            }
        }
    }
}

/// Creates a task with one request. Sends `deciders` answers to the request at the same time,
/// through both replicas.
async fn answered_at_once(pair: &Pair, round: usize, deciders: usize) -> TaskId {
    let plan = if round.is_multiple_of(2) {
        "guide"
    } else {
        "pay"
    };
    let task = pair
        .here
        .create(&alice(), named(&format!("{plan} {round}")), None)
        .await
        .unwrap()
        .task_id;
    pair.settled(task).await;
    let asked = pair.harness.open_specs(task).await.remove(0);
    let (request, kind) = (asked.request_id, asked.kind);
    let call = asked.own_calls().next().unwrap().tool_call_id;
    let (here, there) = pair.turned(round);
    let racers = (0..deciders).map(|person| async move {
        let engine = if person % 2 == 0 { here } else { there };
        engine
            .decide(&alice(), request, answer(kind, call, person), None)
            .await
    });
    let won = join_all(racers).await.into_iter().flatten().count();
    assert_eq!(won, 1, "one answer is taken");
    task
}

async fn questions(fixture: StoreFixture, questions: usize, deciders: usize) {
    let mut harness = asking(fixture).await;
    let checker = harness.prompt_checker();
    let pair = Pair::of(harness).await;
    let races = (0..questions).map(|round| answered_at_once(&pair, round, deciders));
    let tasks: Vec<_> = stream::iter(races).buffer_unordered(2).collect().await;
    let mut stored = 0;
    let mut told: BTreeMap<&str, usize> = BTreeMap::new();
    for task in tasks {
        let journal = pair.checked_journal(task).await;
        stored += answers(&journal.items);
        for result in tool_results(&journal.items) {
            *told.entry(result.outcome.as_str()).or_default() += 1;
        }
    }
    let asked = pair.harness.prompt_count();
    let missing = checker.missing();
    let figures = format!(
        "{asked} asks, {stored} answers stored, {} prompts not in the journal",
        missing.len()
    );
    assert!(missing.is_empty(), "{figures}, e.g. {}", missing[0]);
    assert_eq!((asked, stored), (2 * questions, 2 * questions), "{figures}");
    assert!(told.len() > 1, "several kinds of answers won: {told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_is_shown_only_what_is_stored_with_sixty_four_deciders() {
    questions(StoreFixture::postgres().await, repetitions(12, 500), 64).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_is_shown_only_what_is_stored_with_sixty_four_deciders_on_sqlite() {
    questions(StoreFixture::sqlite().await, repetitions(10, 100), 64).await;
}

/// Polls a driver until its model call is in flight.
pub async fn thinks(harness: &EngineHarness, driver: &mut (impl Future<Output = ()> + Unpin)) {
    let before = harness.prompt_count();
    poll_fn(|context| {
        assert!(
            pin!(&mut *driver).poll(context).is_pending(),
            "the driver ended without asking its model"
        );
        if harness.prompt_count() > before {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

#[apply(both)]
async fn dropped_driver_has_shown_its_model_only_what_is_stored(fixture: StoreFixture) {
    let mut harness =
        EngineHarness::new(fixture, &[("refund", r#"{"order":1,"amount":120}"#)]).await;
    let checker = harness.prompt_checker();
    let (mut polls, step) = steps_of_polls(&harness.fixture, Drop::AtOnce);
    let (mut whole, mut dropped) = (0, 0);
    // On a fast disk, the first task may complete after few polls, so the loop goes on with
    // further tasks.
    while whole < 1 || polls <= 12 {
        let before = harness.prompt_count();
        let (task, over) = drive_and_drop(&harness, Drop::AtOnce, polls).await;
        polls += step;
        whole += usize::from(over);
        dropped += usize::from(!over);
        let journal = harness.journal(task).await;
        let (asked, stored) = (harness.prompt_count() - before, answers(&journal.items));
        // A dropped driver can lose one answer of the model: the answer to its last prompt.
        let thrown_away = usize::from(!over);
        assert!(
            stored <= asked && asked <= stored + thrown_away,
            "{polls}: {asked} asks, {stored} answers"
        );
    }
    assert!(dropped * step > 5, "only {dropped} await points");
    assert_eq!(checker.missing(), Vec::<String>::new());
}

#[apply(both)]
async fn tree_shows_its_models_only_what_is_stored_and_asks_once_for_each_answer(
    fixture: StoreFixture,
) {
    let mut harness = EngineHarness::of_trees(
        fixture,
        Shape {
            depth: 2,
            children: 3,
            wide: 1,
        },
        one_large,
    )
    .await;
    let checker = harness.prompt_checker();
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    harness
        .finish_tree(&parts, root, super::trees::harness::People::Approve)
        .await;
    let journals = harness.checked_journals(root).await;
    let stored: usize = journals
        .values()
        .map(|journal| answers(&journal.items))
        .sum();
    assert_eq!(checker.missing(), Vec::<String>::new());
    assert_eq!(
        harness.prompt_count(),
        stored,
        "{}",
        harness.description(root).await
    );
}

#[apply(both)]
async fn failed_model_call_is_not_repeated_when_a_relative_commits_first(fixture: StoreFixture) {
    let shape = Shape::flat(3);
    let harness = EngineHarness::of_trees(fixture, shape, one_large).await;
    harness.script_by_name(move |name, prompt| {
        if name == super::trees::harness::LEAF {
            Err(holdpoint::model::ModelError::new("Model `leaf` is gone."))
        } else {
            Ok(shape.answer(one_large, name, prompt))
        }
    });
    let root = harness.grown(&harness.parts(0)).await;
    assert_eq!(
        harness.checked_journals(root).await[&root].row.status,
        TaskStatus::Completed
    );
    assert_eq!(
        harness.prompt_count(),
        2 + 3,
        "two answers of the boss, and one failure of each leaf: {}",
        harness.description(root).await
    );
}

#[apply(both)]
async fn canceled_and_reopened_task_is_asked_by_its_new_driver_alone(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[]).await;
    let (api, engine) = (harness.engine(0), harness.engine(4));
    let task = api.create(&alice(), go(), None).await.unwrap().task_id;
    let mut first = engine.claim().await.unwrap().remove(0);
    thinks(&harness, &mut first).await;
    api.cancel(&alice(), task, None).await.unwrap();
    alice_writes(&api, task, message("go")).await;
    let mut second = engine.claim().await.unwrap().remove(0);
    thinks(&harness, &mut second).await;
    first.await;
    second.await;
    let journal = harness.journal(task).await;
    assert_eq!(
        (journal.row.status, answers(&journal.items)),
        (TaskStatus::Completed, 1),
        "{:#?}",
        journal.items
    );
    assert_eq!(
        harness.prompt_count(),
        2,
        "only the canceled task's answer is discarded"
    );
}
