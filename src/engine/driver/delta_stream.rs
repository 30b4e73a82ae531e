//! Publishes the deltas of a model's answer while they arrive. Deltas are never stored. If the
//! answer is not stored in the end, its deltas are retracted.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use uuid::Uuid;

use crate::engine::Engine;
use crate::engine::runtime::in_flight_model_calls::ModelCallGuard;
use crate::engine::session::TaskSession;
use crate::model::{Answer, Piece, Sink};
use crate::secret::{Redacting, Redactor};
use crate::store::Store;
use crate::task::delta::{Delta, Said};
use crate::task::id::{CallId, TaskId};
use crate::world::{Clock, Ids};

/// The minimum time between two deltas of text, so that a client gets fewer than 20 a second. The
/// deltas that complete an answer do not wait.
const BETWEEN: Duration = Duration::from_millis(60);

/// The deltas of one answer. Dropping this before the answer is stored retracts the deltas.
pub(crate) struct DeltaStream {
    publisher: Arc<DeltaPublisher>,
    /// Counts the model call against the tree's limit until the answer is stored or dropped.
    _guard: Option<ModelCallGuard>,
}

/// Publishes the deltas of one answer, and keeps track of the published part.
pub(crate) struct DeltaPublisher {
    store: Store,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    root_task_id: TaskId,
    task_id: TaskId,
    agent_path: Vec<String>,
    turn: u32,
    /// The `seq` of the last item before the answer.
    after_seq: i64,
    redactor: Arc<Redactor>,
    published: Mutex<Published>,
    more: Notify,
}

struct Published {
    attempt: Uuid,
    calls: Vec<Call>,
    texts: BTreeMap<Part, Text>,
    /// The parts with unpublished text, in order of arrival.
    waiting: VecDeque<Part>,
    /// Uptime from which the next delta of text may be published.
    next: Duration,
    /// Whether a subscriber may have received a delta.
    received: bool,
}

struct Call {
    id: CallId,
    name: Option<String>,
    published: bool,
}

/// A text of an answer: the answer's own text, or the arguments of the call with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Text,
    Arguments(usize),
}

/// The redacted text of a part, as far as it has arrived.
struct Text {
    redacting: Redacting,
    whole: String,
    /// Length of the published prefix, in bytes; `offset` counts it in characters.
    published: usize,
    offset: u64,
}

impl Text {
    fn rest(&self) -> &str {
        self.whole.get(self.published..).unwrap_or_default()
    }
}

impl Published {
    fn new(attempt: Uuid, next: Duration) -> Self {
        let (calls, texts, waiting) = (Vec::new(), BTreeMap::new(), VecDeque::new());
        Self {
            attempt,
            calls,
            texts,
            waiting,
            next,
            received: false,
        }
    }
}

impl Sink for DeltaPublisher {
    fn piece(&self, piece: Piece<'_>) {
        let mut published = self.published();
        match piece {
            Piece::Text(text) => self.add(&mut published, Part::Text, text),
            Piece::Arguments { call, text } => {
                self.call(&mut published, call);
                self.add(&mut published, Part::Arguments(call), text);
            }
            Piece::Named { call, name } => {
                let name = self.redactor.clean(name).into_owned();
                if let Some(call) = self.call(&mut published, call) {
                    call.name = Some(name);
                }
                self.publish_names(&mut published);
            }
            Piece::Reset => self.retract(&mut published),
        }
    }

    fn heard(&self) -> bool {
        self.store.is_listened_to(self.root_task_id)
    }
}

impl DeltaPublisher {
    fn published(&self) -> MutexGuard<'_, Published> {
        self.published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn call<'t>(&self, published: &'t mut Published, call: usize) -> Option<&'t mut Call> {
        while published.calls.len() <= call {
            published.calls.push(Call {
                id: CallId(self.ids.fresh()),
                name: None,
                published: false,
            });
        }
        published.calls.get_mut(call)
    }

    fn add(&self, published: &mut Published, part: Part, piece: &str) {
        let none = || Text {
            redacting: Redacting::new(self.redactor.clone()),
            whole: String::new(),
            published: 0,
            offset: 0,
        };
        let text = published.texts.entry(part).or_insert_with(none);
        let piece = text.redacting.push(piece);
        text.whole.push_str(&piece);
        if !text.rest().is_empty() && !published.waiting.contains(&part) {
            published.waiting.push_back(part);
            self.more.notify_one();
        }
    }

    fn publish(&self, published: &mut Published, said: Said) {
        published.received = true;
        self.store.say(Delta {
            root_task_id: self.root_task_id,
            task_id: self.task_id,
            agent_path: self.agent_path.clone(),
            turn: self.turn,
            after_seq: self.after_seq,
            asking: published.attempt,
            at: self.clock.now(),
            said,
        });
    }

    /// Publishes names without delay: a client may open a form while the model still writes the
    /// arguments.
    fn publish_names(&self, published: &mut Published) {
        let new = |call: &&mut Call| !call.published && call.name.is_some();
        let names = published.calls.iter_mut().filter(new).filter_map(|call| {
            call.published = true;
            call.name.clone().map(|name| Said::Named {
                tool_call_id: call.id,
                name,
            })
        });
        for said in names.collect::<Vec<_>>() {
            self.publish(published, said);
        }
    }

    /// Publishes the unpublished text of a part, as one delta.
    fn publish_text(&self, published: &mut Published, part: Part) {
        let id = match part {
            Part::Text => None,
            Part::Arguments(call) => published.calls.get(call).map(|call| call.id),
        };
        let Some(text) = published
            .texts
            .get_mut(&part)
            .filter(|text| !text.rest().is_empty())
        else {
            return;
        };
        let (offset, delta) = (text.offset, text.rest().to_owned());
        text.published = text.whole.len();
        text.offset += delta.chars().count() as u64;
        let said = match id {
            None => Said::Text { offset, delta },
            Some(tool_call_id) => Said::Arguments {
                tool_call_id,
                offset,
                delta,
            },
        };
        self.publish(published, said);
    }

    /// Publishes text while it arrives. Never returns: the caller drops the future once the answer
    /// is complete.
    pub(crate) async fn publish_as_it_comes(&self) -> Infallible {
        loop {
            self.more.notified().await;
            while let Some(wait) = self.wait() {
                if !wait.is_zero() {
                    self.clock.sleep(wait).await;
                }
                let mut published = self.published();
                if let Some(part) = published.waiting.pop_front() {
                    self.publish_text(&mut published, part);
                    published.next = self.clock.uptime() + BETWEEN;
                }
            }
        }
    }

    /// Time until the next delta of text may be published; `None` when no text waits.
    fn wait(&self) -> Option<Duration> {
        let published = self.published();
        (!published.waiting.is_empty()).then(|| published.next.saturating_sub(self.clock.uptime()))
    }

    fn retract(&self, published: &mut Published) {
        if published.received {
            self.publish(published, Said::Reset);
        }
        *published = Published::new(self.ids.fresh(), published.next);
    }

    /// Publishes the unpublished rest of the complete answer, or retracts the deltas if they are
    /// not a prefix of the answer. Returns the ids of the answer's calls.
    fn finish(&self, answer: &Answer) -> Vec<CallId> {
        let mut published = self.published();
        let begun = !published.texts.is_empty() || !published.calls.is_empty();
        if begun && published.is_of(answer) {
            for (number, call) in answer.calls.iter().enumerate() {
                if let Some(known) = self.call(&mut published, number) {
                    known.name = Some(call.name.clone());
                }
            }
            self.publish_names(&mut published);
            let texts = answer.calls.iter().enumerate();
            let texts =
                texts.map(|(number, call)| (Part::Arguments(number), call.arguments_text.as_str()));
            for (part, whole) in [(Part::Text, answer.text.as_deref().unwrap_or_default())]
                .into_iter()
                .chain(texts)
            {
                self.add(&mut published, part, "");
                if let Some(text) = published.texts.get_mut(&part) {
                    whole.clone_into(&mut text.whole);
                }
                self.publish_text(&mut published, part);
            }
            published.waiting.clear();
        } else if begun {
            self.retract(&mut published);
        }
        let fresh = |number| {
            self.call(&mut published, number)
                .map_or_else(|| CallId(self.ids.fresh()), |call| call.id)
        };
        (0..answer.calls.len()).map(fresh).collect()
    }
}

impl Published {
    /// Whether the published deltas are the beginning of `answer`.
    fn is_of(&self, answer: &Answer) -> bool {
        let whole = |part: &Part| match part {
            Part::Text => answer.text.as_deref(),
            Part::Arguments(call) => answer
                .calls
                .get(*call)
                .map(|call| call.arguments_text.as_str()),
        };
        let known = answer
            .calls
            .iter()
            .map(|call| Some(call.name.as_str()))
            .chain(std::iter::repeat(None));
        let is_called =
            |(call, known): (&Call, _)| call.name.as_deref().is_none_or(|name| Some(name) == known);
        self.calls.iter().zip(known).all(is_called)
            && self.texts.iter().all(|(part, text)| {
                let published = text.whole.get(..text.published).unwrap_or_default();
                whole(part).unwrap_or_default().starts_with(published)
            })
    }
}

impl DeltaStream {
    /// Opens the deltas of turn `turn`. Returns the handle that the session keeps, and the
    /// publisher that the model's client writes to.
    pub(crate) fn open(
        engine: &Engine,
        session: &TaskSession,
        turn: u32,
        redactor: Redactor,
        guard: Option<ModelCallGuard>,
    ) -> (Self, Arc<DeltaPublisher>) {
        let publisher = Arc::new(DeltaPublisher {
            store: engine.store.clone(),
            clock: engine.clock.clone(),
            ids: engine.ids.clone(),
            root_task_id: session.own.row.root_task_id,
            task_id: session.task_id(),
            agent_path: session.own.row.agent_path.clone(),
            turn,
            after_seq: session.own.row.last_seq,
            redactor: Arc::new(redactor),
            published: Mutex::new(Published::new(engine.ids.fresh(), Duration::ZERO)),
            more: Notify::new(),
        });
        (
            Self {
                publisher: Arc::clone(&publisher),
                _guard: guard,
            },
            publisher,
        )
    }

    /// Marks the answer as stored, so that its deltas are not retracted.
    pub(crate) fn stored(self) {
        self.publisher.published().received = false;
    }

    /// Publishes the rest of the answer, or retracts its deltas. Returns the ids of the answer's
    /// calls, the same as in the deltas.
    pub(crate) fn ids(&self, answer: &Answer) -> Vec<CallId> {
        self.publisher.finish(answer)
    }
}

impl Drop for DeltaStream {
    fn drop(&mut self) {
        let mut published = self.publisher.published();
        if published.received {
            self.publisher.publish(&mut published, Said::Reset);
        }
    }
}
