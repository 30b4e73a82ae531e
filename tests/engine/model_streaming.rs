//! Tests the deltas of a model's answer. The deltas are published while the answer arrives:
//! complete, in order, and under the answer's final ids. No delta is published before the prompt is
//! stored. The deltas are reset if the answer is not stored.

mod delta_rate;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use holdpoint::engine::{Engine, EngineParts};
use holdpoint::model::{Answer, ModelClient, ModelError, Piece, PieceSink, Prompt};
use holdpoint::store::{Listener, Notification};
use holdpoint::task::delta::{Delta, DeltaContent};
use holdpoint::task::id::{CallId, TaskId};
use holdpoint::task::item::{Fact, Turn};
use holdpoint::task::status::TaskStatus;
use holdpoint::world::Clock;
use macro_rules_attribute::apply;
use sqlx::{Executor as _, PgConnection};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, oneshot, watch};

use super::credentials::{TOKEN, clerk, jira, only_open_request};
use super::engine_harness::{EngineHarness, alice, alice_decides, fills, go, turn};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::sqlite_file;

/// A step that the test tells the model to take.
enum Order {
    Text(String),
    Named(usize, &'static str),
    Arguments(usize, String),
    Reset,
    /// Reports the turn of the model's current prompt once all earlier orders are carried out.
    Reached(oneshot::Sender<u32>),
    Answer(Result<Answer, ModelError>),
}

/// A model that follows the test's orders and counts the prompts that it gets.
struct OrderedModel {
    orders: Mutex<UnboundedReceiver<Order>>,
    model_calls: Arc<AtomicUsize>,
}

#[async_trait]
impl ModelClient for OrderedModel {
    async fn answer(&self, prompt: &Prompt, sink: &dyn PieceSink) -> Result<Answer, ModelError> {
        self.model_calls.fetch_add(1, Ordering::SeqCst);
        let mut orders = self.orders.lock().await;
        loop {
            match orders.recv().await.unwrap() {
                Order::Text(text) => sink.receive(Piece::Text(&text)),
                Order::Named(call, name) => sink.receive(Piece::CallName { call, name }),
                Order::Arguments(call, text) => {
                    sink.receive(Piece::Arguments { call, text: &text });
                }
                Order::Reset => sink.receive(Piece::Reset),
                Order::Reached(told) => told.send(prompt.turn).unwrap(),
                Order::Answer(answer) => return answer,
            }
        }
    }
}

struct StreamingHarness {
    harness: EngineHarness,
    orders: UnboundedSender<Order>,
    model_calls: Arc<AtomicUsize>,
    task: TaskId,
    listener: Listener,
    engine: Arc<Engine>,
}

impl StreamingHarness {
    async fn new(fixture: StoreFixture) -> Self {
        let clock = fixture.clock.clone();
        Self::by(fixture, clock).await
    }

    async fn by(fixture: StoreFixture, clock: Arc<dyn Clock>) -> Self {
        Self::on(EngineHarness::new(fixture, &[]).await, clock).await
    }

    async fn on(harness: EngineHarness, clock: Arc<dyn Clock>) -> Self {
        let (orders, received) = unbounded_channel();
        let model_calls = Arc::new(AtomicUsize::new(0));
        let model: Arc<dyn ModelClient> = Arc::new(OrderedModel {
            orders: Mutex::new(received),
            model_calls: Arc::clone(&model_calls),
        });
        let engine = Engine::new(EngineParts {
            models: BTreeMap::from([("main".to_owned(), model)]),
            clock,
            ..harness.parts(8)
        });
        let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
        let listener = harness.fixture.store.listen(task);
        Self {
            harness,
            orders,
            model_calls,
            task,
            listener,
            engine,
        }
    }

    fn order(&self, order: Order) {
        self.orders
            .send(order)
            .unwrap_or_else(|_| panic!("the model is gone"));
    }

    fn text(&self, text: &str) {
        self.order(Order::Text(text.to_owned()));
    }

    /// Waits until the model has carried out all orders so far. Returns the turn of the prompt that
    /// the model is answering.
    async fn reached(&self) -> u32 {
        let (told, reached) = oneshot::channel();
        self.order(Order::Reached(told));
        reached.await.unwrap()
    }

    async fn next(&mut self) -> Delta {
        loop {
            if let Notification::Delta(delta) = self.listener.next().await {
                return (*delta).clone();
            }
        }
    }

    /// Returns the published deltas that the test has not read yet.
    fn heard(&mut self) -> Vec<Delta> {
        let mut heard = Vec::new();
        while let Some(delta) = self.listener.try_next_delta() {
            heard.push((*delta).clone());
        }
        heard
    }

    /// Waits until the task has this status. Returns the turns in the task's journal.
    async fn until(&self, status: TaskStatus) -> Vec<Turn> {
        let mut news = self.harness.fixture.store.watch(self.task);
        loop {
            let journal = self.harness.journal(self.task).await;
            if journal.row.status == status {
                let turns = journal.items.into_iter().filter_map(|item| {
                    if let Fact::AssistantMessage(turn) = item.fact {
                        Some(turn)
                    } else {
                        None
                    }
                });
                return turns.collect();
            }
            news.changed().await.unwrap();
        }
    }
}

fn answer(text: &str, calls: &[(&str, &str)]) -> Order {
    Order::Answer(Ok(Answer {
        text: Some(text.to_owned()),
        ..turn(calls)
    }))
}

/// Joins the deltas of one model call. Returns the text, and the calls in the order in which they
/// were named. Each call is given as (id, name, arguments).
fn sum(pieces: &[Delta]) -> (String, Vec<(CallId, String, String)>) {
    let (mut text, mut calls) = (String::new(), Vec::<(CallId, String, String)>::new());
    for piece in pieces {
        match &piece.said {
            DeltaContent::Text { offset, delta } => {
                assert_eq!(*offset, text.chars().count() as u64);
                text += delta;
            }
            DeltaContent::Named { tool_call_id, name } => {
                assert!(calls.iter().all(|call| call.0 != *tool_call_id));
                calls.push((*tool_call_id, name.clone(), String::new()));
            }
            DeltaContent::Arguments {
                tool_call_id,
                offset,
                delta,
            } => {
                let call = calls
                    .iter_mut()
                    .find(|call| call.0 == *tool_call_id)
                    .expect("a name comes first");
                assert_eq!(*offset, call.2.chars().count() as u64);
                call.2 += delta;
            }
            DeltaContent::Reset => (text, calls) = (String::new(), Vec::new()),
        }
    }
    (text, calls)
}

fn stored(turn: &Turn) -> (String, Vec<(CallId, String, String)>) {
    let calls = turn.tool_calls.iter();
    let calls = calls.map(|call| {
        (
            call.tool_call_id,
            call.name.clone(),
            call.arguments_text.clone(),
        )
    });
    (turn.text.clone().unwrap_or_default(), calls.collect())
}

/// A lock that keeps the database from storing anything until the test releases the lock.
enum Locked {
    Sqlite(rusqlite::Connection),
    Postgres(PgConnection),
}

impl Locked {
    async fn of(fixture: &StoreFixture) -> Self {
        if fixture.is_postgres() {
            let mut connection = fixture.connection().await;
            connection
                .execute("begin; lock table agent_task_item in exclusive mode")
                .await
                .unwrap();
            return Self::Postgres(connection);
        }
        let connection = sqlite_file::connect(fixture.settings.url.reveal());
        connection.execute_batch("begin immediate").unwrap();
        Self::Sqlite(connection)
    }

    async fn let_go(self) {
        match self {
            Self::Sqlite(connection) => connection.execute_batch("rollback").unwrap(),
            Self::Postgres(mut connection) => {
                connection.execute("rollback").await.map(|_| ()).unwrap();
            }
        }
    }
}

#[apply(both)]
async fn streamed_deltas_add_up_to_the_answer_under_its_final_call_ids(fixture: StoreFixture) {
    let mut streaming = StreamingHarness::new(fixture).await;
    let (one, two) = (
        r#"{"order":1,"amount":120}"#,
        r#"{"order":2,"amount":130,"ü":"\u00e9"}"#,
    );
    assert_eq!(streaming.reached().await, 1);
    streaming.text("Fü");
    streaming.order(Order::Named(0, "refund"));
    let mut pieces = vec![streaming.next().await, streaming.next().await];
    let named =
        |piece: &Delta| matches!(&piece.said, DeltaContent::Named { name, .. } if name == "refund");
    assert!(
        pieces.iter().any(named),
        "the call's name is published before its arguments: {pieces:#?}"
    );
    for (number, (first, second)) in one.chars().zip(two.chars()).enumerate() {
        streaming.order(Order::Arguments(0, first.to_string()));
        if number == 3 {
            streaming.order(Order::Named(1, "refund"));
        }
        if number >= 3 {
            streaming.order(Order::Arguments(1, second.to_string()));
        }
    }
    streaming.reached().await;
    // Some of the arguments are published before the answer is complete.
    pieces.push(streaming.next().await);
    pieces.extend(streaming.heard());
    let second: String = two.chars().take(one.len()).skip(3).collect();
    streaming.order(answer("Für dich.", &[("refund", one), ("refund", &second)]));
    let turns = streaming.until(TaskStatus::Paused).await;
    pieces.extend(streaming.heard());
    assert_eq!(sum(&pieces), stored(&turns[0]));
    assert!(
        pieces
            .iter()
            .all(|piece| (piece.turn, piece.after_seq) == (1, 2)),
        "{pieces:#?}"
    );
    assert!(
        pieces
            .iter()
            .all(|piece| piece.agent_path == ["billing"] && piece.asking == pieces[0].asking)
    );
}

#[apply(both)]
async fn model_is_asked_only_after_its_prompt_is_stored(fixture: StoreFixture) {
    let (batches, mut batch) = watch::channel(0);
    fixture
        .store
        .observe_batches(move |_| batches.send_modify(|count| *count += 1));
    let mut streaming = StreamingHarness::new(fixture).await;
    streaming.harness.tool.close();
    streaming.order(answer("I look.", &[("lookup", r#"{"order":1}"#)]));
    streaming.harness.tool.reached(1).await;
    let locked = Locked::of(&streaming.harness.fixture).await;
    batch.mark_unchanged();
    streaming.harness.tool.open();
    batch.changed().await.unwrap();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        streaming.model_calls.load(Ordering::SeqCst),
        1,
        "the tool's result is being committed"
    );
    locked.let_go().await;
    assert_eq!(streaming.reached().await, 2);
    let journal = streaming.harness.journal(streaming.task).await;
    assert!(
        matches!(journal.items.last().unwrap().fact, Fact::ToolResult(_)),
        "{:#?}",
        journal.items
    );
    streaming.text("It is ");
    assert_eq!(streaming.next().await.after_seq, journal.row.last_seq);
    streaming.order(answer("It is fine.", &[]));
    assert_eq!(streaming.until(TaskStatus::Completed).await.len(), 2);
    assert_eq!(streaming.model_calls.load(Ordering::SeqCst), 2);
}

#[apply(both)]
async fn streamed_call_that_is_missing_from_the_answer_is_reset(fixture: StoreFixture) {
    let mut streaming = StreamingHarness::new(fixture).await;
    streaming.order(Order::Named(0, "refund"));
    assert!(matches!(
        streaming.next().await.said,
        DeltaContent::Named { .. }
    ));
    streaming.order(answer("It is fine.", &[]));
    assert_eq!(streaming.next().await.said, DeltaContent::Reset);
    streaming.until(TaskStatus::Completed).await;
}

#[apply(both)]
async fn streamed_answer_stays_when_an_unrelated_commit_comes_first(fixture: StoreFixture) {
    let mut streaming = StreamingHarness::new(fixture).await;
    streaming.text("I am ");
    let mut heard = vec![streaming.next().await];
    super::interleavings::appended(&streaming.harness, streaming.task).await;
    streaming.order(answer("I am done.", &[]));
    streaming.order(answer("I am asked again.", &[]));
    let turns = streaming.until(TaskStatus::Completed).await;
    heard.extend(streaming.heard());
    assert!(
        !heard.iter().any(|piece| piece.said == DeltaContent::Reset),
        "{heard:#?}"
    );
    assert_eq!(sum(&heard), stored(&turns[0]));
    assert_eq!(streaming.model_calls.load(Ordering::SeqCst), 1);
}

#[apply(both)]
async fn streamed_text_is_reset_when_the_task_is_canceled(fixture: StoreFixture) {
    let mut streaming = StreamingHarness::new(fixture).await;
    streaming.text("I am about to");
    streaming.next().await;
    streaming
        .engine
        .cancel(&alice(), streaming.task, None)
        .await
        .unwrap();
    streaming.order(answer("I am about to pay.", &[]));
    loop {
        let piece = streaming.next().await;
        if piece.said == DeltaContent::Reset {
            break;
        }
    }
    assert_eq!(streaming.until(TaskStatus::Canceled).await, []);
}

#[apply(both)]
async fn streamed_text_is_reset_before_the_model_is_asked_again(fixture: StoreFixture) {
    let mut streaming = StreamingHarness::new(fixture).await;
    streaming.text("I will p");
    streaming.order(Order::Named(0, "forbidden"));
    streaming.reached().await;
    streaming.order(Order::Reset);
    streaming.text("All");
    streaming.order(answer("All is well.", &[]));
    let turns = streaming.until(TaskStatus::Completed).await;
    let heard = streaming.heard();
    let reset = heard
        .iter()
        .position(|piece| piece.said == DeltaContent::Reset)
        .expect("it was taken back");
    assert_eq!(sum(&heard), stored(&turns[0]));
    assert_ne!(heard[0].asking, heard.last().unwrap().asking);
    assert!(
        heard[..reset]
            .iter()
            .all(|piece| piece.asking == heard[0].asking)
    );
}

#[apply(both)]
async fn streamed_text_of_a_failed_answer_is_reset(fixture: StoreFixture) {
    let mut streaming = StreamingHarness::new(fixture).await;
    streaming.text("I am about to");
    streaming.next().await;
    streaming.order(Order::Answer(Err(ModelError::new("Model `main` is gone."))));
    streaming.until(TaskStatus::Failed).await;
    assert_eq!(streaming.next().await.said, DeltaContent::Reset);
}

#[apply(both)]
async fn delta_never_shows_a_filled_in_credential(fixture: StoreFixture) {
    let clock = fixture.clock.clone();
    let mut streaming = StreamingHarness::on(clerk(fixture, &[]).await, clock).await;
    streaming.order(Order::Answer(Ok(turn(&[("comment", "{}")]))));
    streaming.until(TaskStatus::Paused).await;
    let asked = only_open_request(&streaming.harness, streaming.task).await;
    alice_decides(&streaming.engine, asked.request_id, fills(&jira(TOKEN))).await;
    assert_eq!(streaming.reached().await, 2);
    let said = format!("It is {TOKEN}, no less.");
    for letter in said.chars() {
        streaming.text(&letter.to_string());
    }
    streaming.order(Order::Named(0, "plain"));
    for letter in format!("[\"{TOKEN}\"]").chars() {
        streaming.order(Order::Arguments(0, letter.to_string()));
    }
    streaming.reached().await;
    // The call's name and some of the text are published before the answer is complete.
    let mut heard = vec![streaming.next().await, streaming.next().await];
    streaming.order(Order::Answer(Ok(Answer {
        text: Some(said),
        ..turn(&[("plain", &format!("[\"{TOKEN}\"]"))])
    })));
    streaming.order(answer("Done.", &[]));
    let turns = streaming.until(TaskStatus::Completed).await;
    heard.extend(streaming.heard());
    heard.retain(|piece| piece.turn == 2);
    assert_eq!(sum(&heard), stored(&turns[1]));
    assert_eq!(sum(&heard).0, "It is [secret jira.token], no less.");
    assert_eq!(sum(&heard).1[0].2, "[\"[secret jira.token]\"]");
    assert!(
        !heard.iter().any(|piece| piece.said == DeltaContent::Reset),
        "no delta was reset"
    );
}

#[apply(both)]
async fn model_that_does_not_stream_sends_no_delta_and_still_answers(fixture: StoreFixture) {
    let mut streaming = StreamingHarness::new(fixture).await;
    streaming.order(answer("All is well.", &[]));
    assert_eq!(
        streaming.until(TaskStatus::Completed).await[0]
            .text
            .as_deref(),
        Some("All is well.")
    );
    assert_eq!(streaming.heard(), []);
}

#[apply(both)]
async fn argument_of_50_kib_streamed_byte_by_byte_equals_the_final_argument(fixture: StoreFixture) {
    let mut streaming = StreamingHarness::new(fixture).await;
    let arguments = format!(
        r#"{{"order":1,"amount":120,"note":"{}"}}"#,
        "aé\\n😀\\u00fc ".repeat(4_000)
    );
    assert!(arguments.len() > 50_000);
    streaming.order(Order::Named(0, "refund"));
    let mut heard = Vec::new();
    for (number, letter) in arguments.chars().enumerate() {
        streaming.order(Order::Arguments(0, letter.to_string()));
        if number % 50 == 0 {
            streaming.reached().await;
            heard.extend(streaming.heard());
        }
    }
    streaming.order(Order::Answer(Ok(turn(&[("refund", &arguments)]))));
    streaming.order(answer("It does not fit.", &[]));
    let turns = streaming.until(TaskStatus::Completed).await;
    heard.extend(streaming.heard());
    heard.retain(|piece| piece.turn == 1);
    assert!(
        heard.len() > 100,
        "the answer came in {} pieces",
        heard.len()
    );
    assert_eq!(sum(&heard), stored(&turns[0]));
}
