//! Publishes the deltas of a model's answer while they arrive. None is stored, and those of an answer that is never stored
//! are taken back.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::Notify;
use uuid::Uuid;

use super::Engine;
use super::asking::ModelCallGuard;
use super::drive::Stop;
use super::session::TaskSession;
use crate::agent::Agent;
use crate::model::{Answer, ModelClient, ModelError, Piece, Sink};
use crate::secret::{Redacting, Redactor};
use crate::store::Store;
use crate::task::delta::{Delta, Said};
use crate::task::id::{CallId, TaskId};
use crate::world::{Clock, Ids};

/// Between two pieces of text: fewer than 20 a second, with room for the last ones of an answer.
const BETWEEN: Duration = Duration::from_millis(60);

/// The deltas of one answer. Dropped before the answer is stored, it takes them back.
pub(super) struct DeltaStream {
    publisher: Arc<DeltaPublisher>,
    /// Counts the question against the tree's limit until the answer is stored or thrown away.
    _asked: Option<ModelCallGuard>,
}

/// Whose answer it is, and how far it is told.
struct DeltaPublisher {
    store: Store,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    root_task_id: TaskId,
    task_id: TaskId,
    agent_path: Vec<String>,
    turn: u32,
    /// The `seq` that the answer follows.
    after_seq: i64,
    redactor: Arc<Redactor>,
    told: Mutex<Told>,
    more: Notify,
}

struct Told {
    asking: Uuid,
    calls: Vec<Call>,
    texts: BTreeMap<Part, Text>,
    /// What has text to tell, in its order.
    waiting: VecDeque<Part>,
    /// From when on the next piece of text may be told, by the machine's uptime.
    next: Duration,
    /// Whether somebody may have heard of it.
    heard: bool,
}

struct Call {
    id: CallId,
    name: Option<String>,
    told: bool,
}

/// What a text is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Text,
    Arguments(usize),
}

/// A text so far.
struct Text {
    redacting: Redacting,
    whole: String,
    /// How much of it is told, in bytes and in characters.
    told: usize,
    offset: u64,
}

impl Text {
    fn rest(&self) -> &str {
        self.whole.get(self.told..).unwrap_or_default()
    }
}

impl Told {
    fn new(asking: Uuid, next: Duration) -> Self {
        let (calls, texts, waiting) = (Vec::new(), BTreeMap::new(), VecDeque::new());
        Self { asking, calls, texts, waiting, next, heard: false }
    }
}

impl Sink for DeltaPublisher {
    fn piece(&self, piece: Piece<'_>) {
        let mut told = self.told();
        match piece {
            Piece::Text(text) => self.add(&mut told, Part::Text, text),
            Piece::Arguments { call, text } => {
                self.call(&mut told, call);
                self.add(&mut told, Part::Arguments(call), text);
            }
            Piece::Named { call, name } => {
                let name = self.redactor.clean(name).into_owned();
                if let Some(call) = self.call(&mut told, call) {
                    call.name = Some(name);
                }
                self.tell_names(&mut told);
            }
            Piece::Reset => self.take_back(&mut told),
        }
    }

    fn heard(&self) -> bool {
        self.store.is_listened_to(self.root_task_id)
    }
}

impl DeltaPublisher {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<'t>(&self, told: &'t mut Told, call: usize) -> Option<&'t mut Call> {
        while told.calls.len() <= call {
            told.calls.push(Call { id: CallId(self.ids.fresh()), name: None, told: false });
        }
        told.calls.get_mut(call)
    }

    fn add(&self, told: &mut Told, part: Part, piece: &str) {
        let none =
            || Text { redacting: Redacting::new(self.redactor.clone()), whole: String::new(), told: 0, offset: 0 };
        let text = told.texts.entry(part).or_insert_with(none);
        let piece = text.redacting.push(piece);
        text.whole.push_str(&piece);
        if !text.rest().is_empty() && !told.waiting.contains(&part) {
            told.waiting.push_back(part);
            self.more.notify_one();
        }
    }

    fn say(&self, told: &mut Told, said: Said) {
        told.heard = true;
        self.store.say(Delta {
            root_task_id: self.root_task_id,
            task_id: self.task_id,
            agent_path: self.agent_path.clone(),
            turn: self.turn,
            after_seq: self.after_seq,
            asking: told.asking,
            at: self.clock.now(),
            said,
        });
    }

    /// Names are told at once: a form may be opened while the arguments are still written.
    fn tell_names(&self, told: &mut Told) {
        let new = |call: &&mut Call| !call.told && call.name.is_some();
        let names = told.calls.iter_mut().filter(new).filter_map(|call| {
            call.told = true;
            call.name.clone().map(|name| Said::Named { tool_call_id: call.id, name })
        });
        for said in names.collect::<Vec<_>>() {
            self.say(told, said);
        }
    }

    /// All that the part of an answer has that is not told yet, as one piece.
    fn tell_text(&self, told: &mut Told, part: Part) {
        let id = match part {
            Part::Text => None,
            Part::Arguments(call) => told.calls.get(call).map(|call| call.id),
        };
        let Some(text) = told.texts.get_mut(&part).filter(|text| !text.rest().is_empty()) else { return };
        let (offset, delta) = (text.offset, text.rest().to_owned());
        text.told = text.whole.len();
        text.offset += delta.chars().count() as u64;
        let said = match id {
            None => Said::Text { offset, delta },
            Some(tool_call_id) => Said::Arguments { tool_call_id, offset, delta },
        };
        self.say(told, said);
    }

    /// Tells text as it comes, for as long as somebody waits for the answer.
    async fn tell(&self) -> Infallible {
        loop {
            self.more.notified().await;
            while let Some(wait) = self.wait() {
                if !wait.is_zero() {
                    self.clock.sleep(wait).await;
                }
                let mut told = self.told();
                if let Some(part) = told.waiting.pop_front() {
                    self.tell_text(&mut told, part);
                    told.next = self.clock.uptime() + BETWEEN;
                }
            }
        }
    }

    /// How long the next piece has to wait; `None` when there is none.
    fn wait(&self) -> Option<Duration> {
        let told = self.told();
        (!told.waiting.is_empty()).then(|| told.next.saturating_sub(self.clock.uptime()))
    }

    fn take_back(&self, told: &mut Told) {
        if told.heard {
            self.say(told, Said::Reset);
        }
        *told = Told::new(self.ids.fresh(), told.next);
    }

    /// The answer is whole: tells what is missing, or takes back what was told where it was another text.
    fn finish(&self, answer: &Answer) -> Vec<CallId> {
        let mut told = self.told();
        let begun = !told.texts.is_empty() || !told.calls.is_empty();
        if begun && told.is_of(answer) {
            for (number, call) in answer.calls.iter().enumerate() {
                if let Some(known) = self.call(&mut told, number) {
                    known.name = Some(call.name.clone());
                }
            }
            self.tell_names(&mut told);
            let texts = answer.calls.iter().enumerate();
            let texts = texts.map(|(number, call)| (Part::Arguments(number), call.arguments_text.as_str()));
            for (part, whole) in [(Part::Text, answer.text.as_deref().unwrap_or_default())].into_iter().chain(texts) {
                self.add(&mut told, part, "");
                if let Some(text) = told.texts.get_mut(&part) {
                    whole.clone_into(&mut text.whole);
                }
                self.tell_text(&mut told, part);
            }
            told.waiting.clear();
        } else if begun {
            self.take_back(&mut told);
        }
        let fresh = |number| self.call(&mut told, number).map_or_else(|| CallId(self.ids.fresh()), |call| call.id);
        (0..answer.calls.len()).map(fresh).collect()
    }
}

impl Told {
    /// Whether what was told so far is the beginning of that answer.
    fn is_of(&self, answer: &Answer) -> bool {
        let whole = |part: &Part| match part {
            Part::Text => answer.text.as_deref(),
            Part::Arguments(call) => answer.calls.get(*call).map(|call| call.arguments_text.as_str()),
        };
        let known = answer.calls.iter().map(|call| Some(call.name.as_str())).chain(std::iter::repeat(None));
        let is_called = |(call, known): (&Call, _)| call.name.as_deref().is_none_or(|name| Some(name) == known);
        self.calls.iter().zip(known).all(is_called)
            && self.texts.iter().all(|(part, text)| {
                let told = text.whole.get(..text.told).unwrap_or_default();
                whole(part).unwrap_or_default().starts_with(told)
            })
    }
}

impl DeltaStream {
    /// The answer is stored: its deltas stay.
    pub(super) fn stored(self) {
        self.publisher.told().heard = false;
    }

    /// The ids of the answer's calls: those that the deltas named.
    pub(super) fn ids(&self, answer: &Answer) -> Vec<CallId> {
        self.publisher.finish(answer)
    }
}

impl Drop for DeltaStream {
    fn drop(&mut self) {
        let mut told = self.publisher.told();
        if told.heard {
            self.publisher.say(&mut told, Said::Reset);
        }
    }
}

impl Engine {
    /// Asks a model about what is stored, and publishes its answer while it arrives.
    ///
    /// # Errors
    /// As [`Engine::credentials`], and `Lost` where something is not stored: then nothing was asked.
    pub(super) async fn call_model_streaming(
        &self,
        session: &mut TaskSession,
        agent: &Agent,
        client: &dyn ModelClient,
        asked: Option<ModelCallGuard>,
    ) -> Result<Result<Answer, ModelError>, Stop> {
        let redactor = Arc::new(self.searched(session).await?);
        let Some(stored) = session.own.stored() else {
            tracing::error!(task = %session.task_id(), "a model was about to be shown what is not stored");
            return Err(Stop::Lost);
        };
        let prompt = self.prompt(stored, agent);
        let publisher = Arc::new(DeltaPublisher {
            store: self.store.clone(),
            clock: self.clock.clone(),
            ids: self.ids.clone(),
            root_task_id: session.own.row.root_task_id,
            task_id: session.task_id(),
            agent_path: session.own.row.agent_path.clone(),
            turn: prompt.turn,
            after_seq: session.own.row.last_seq,
            redactor,
            told: Mutex::new(Told::new(self.ids.fresh(), Duration::ZERO)),
            more: Notify::new(),
        });
        session.delta_stream = Some(DeltaStream { publisher: Arc::clone(&publisher), _asked: asked });
        match select(client.answer(&prompt, &*publisher), std::pin::pin!(publisher.tell())).await {
            Either::Left((answer, _)) => Ok(answer),
            Either::Right((never, _)) => match never {},
        }
    }
}
