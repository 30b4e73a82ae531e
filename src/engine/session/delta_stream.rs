//! Publishes the parts (deltas) of a model's answer while they arrive. Deltas are never stored. If
//! the answer is not stored in the end, its deltas are retracted.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use uuid::Uuid;

use super::TaskSession;
use crate::engine::Engine;
use crate::engine::runtime::in_flight_model_calls::ModelCallGuard;
use crate::model::{Answer, Piece, PieceSink};
use crate::secret::{Redactor, StreamRedactor};
use crate::store::Store;
use crate::task::delta::{Delta, DeltaContent};
use crate::task::id::{CallId, TaskId};
use crate::world::{Clock, Ids, Locked};

/// The minimum time between two deltas of text, so that a client gets fewer than 20 deltas a
/// second. The deltas that complete an answer do not wait.
const MIN_DELTA_INTERVAL: Duration = Duration::from_millis(60);

/// The deltas of one answer. Dropping the stream before [`DeltaStream::mark_stored`] retracts the
/// deltas.
pub(crate) struct DeltaStream {
    publisher: Arc<DeltaPublisher>,
    /// Counts the model call against the tree's limit until the answer is stored or discarded.
    _guard: Option<ModelCallGuard>,
}

/// Publishes the deltas of one answer, and records which part of the answer is published.
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
    state: Locked<PublishState>,
    text_arrived: Notify,
}

struct PublishState {
    attempt: Uuid,
    calls: Vec<StreamedCall>,
    texts: BTreeMap<AnswerPart, PartText>,
    /// The parts with unpublished text, in the order in which the text arrived.
    waiting: VecDeque<AnswerPart>,
    /// The uptime from which the next delta of text may be published.
    next: Duration,
    /// Whether a subscriber may have received a delta.
    has_published: bool,
}

struct StreamedCall {
    id: CallId,
    name: Option<String>,
    is_published: bool,
}

/// A text inside a model's answer: the answer's own text, or the arguments of the call with this
/// index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AnswerPart {
    Text,
    Arguments(usize),
}

/// The text of an answer's part as received so far, redacted.
struct PartText {
    redacting: StreamRedactor,
    arrived: String,
    /// The length of the published prefix of `arrived`, in bytes. `offset` is the same length in
    /// characters.
    published_bytes: usize,
    offset: u64,
}

impl PartText {
    fn rest(&self) -> &str {
        self.arrived.get(self.published_bytes..).unwrap_or_default()
    }
}

impl PublishState {
    fn new(attempt: Uuid, next: Duration) -> Self {
        let (calls, texts, waiting) = (Vec::new(), BTreeMap::new(), VecDeque::new());
        Self {
            attempt,
            calls,
            texts,
            waiting,
            next,
            has_published: false,
        }
    }
}

impl PieceSink for DeltaPublisher {
    fn receive(&self, piece: Piece<'_>) {
        let mut state = self.state.lock();
        match piece {
            Piece::Text(text) => self.add(&mut state, AnswerPart::Text, text),
            Piece::Arguments { call, text } => {
                self.call_at(&mut state, call);
                self.add(&mut state, AnswerPart::Arguments(call), text);
            }
            Piece::CallName { call, name } => {
                let name = self.redactor.redact(name).into_owned();
                if let Some(call) = self.call_at(&mut state, call) {
                    call.name = Some(name);
                }
                self.publish_names(&mut state);
            }
            Piece::Reset => self.retract(&mut state),
        }
    }

    fn has_listener(&self) -> bool {
        self.store.is_listened_to(self.root_task_id)
    }
}

impl DeltaPublisher {
    fn call_at<'t>(
        &self,
        state: &'t mut PublishState,
        call: usize,
    ) -> Option<&'t mut StreamedCall> {
        while state.calls.len() <= call {
            state.calls.push(StreamedCall {
                id: CallId(self.ids.fresh()),
                name: None,
                is_published: false,
            });
        }
        state.calls.get_mut(call)
    }

    fn add(&self, state: &mut PublishState, part: AnswerPart, piece: &str) {
        let none = || PartText {
            redacting: StreamRedactor::new(self.redactor.clone()),
            arrived: String::new(),
            published_bytes: 0,
            offset: 0,
        };
        let text = state.texts.entry(part).or_insert_with(none);
        let piece = text.redacting.push(piece);
        text.arrived.push_str(&piece);
        if !text.rest().is_empty() && !state.waiting.contains(&part) {
            state.waiting.push_back(part);
            self.text_arrived.notify_one();
        }
    }

    fn publish(&self, state: &mut PublishState, content: DeltaContent) {
        state.has_published = true;
        self.store.publish_delta(Delta {
            root_task_id: self.root_task_id,
            task_id: self.task_id,
            agent_path: self.agent_path.clone(),
            turn: self.turn,
            after_seq: self.after_seq,
            asking: state.attempt,
            at: self.clock.now(),
            said: content,
        });
    }

    /// Publishes the names of calls without delay, so that a client can already show a form for a
    /// call while the model still writes the call's arguments.
    fn publish_names(&self, state: &mut PublishState) {
        let new = |call: &&mut StreamedCall| !call.is_published && call.name.is_some();
        let names = state.calls.iter_mut().filter(new).filter_map(|call| {
            call.is_published = true;
            call.name.clone().map(|name| DeltaContent::Named {
                tool_call_id: call.id,
                name,
            })
        });
        for content in names.collect::<Vec<_>>() {
            self.publish(state, content);
        }
    }

    fn publish_text(&self, state: &mut PublishState, part: AnswerPart) {
        let id = match part {
            AnswerPart::Text => None,
            AnswerPart::Arguments(call) => state.calls.get(call).map(|call| call.id),
        };
        let Some(text) = state
            .texts
            .get_mut(&part)
            .filter(|text| !text.rest().is_empty())
        else {
            return;
        };
        let (offset, delta) = (text.offset, text.rest().to_owned());
        text.published_bytes = text.arrived.len();
        text.offset += delta.chars().count() as u64;
        let content = match id {
            None => DeltaContent::Text { offset, delta },
            Some(tool_call_id) => DeltaContent::Arguments {
                tool_call_id,
                offset,
                delta,
            },
        };
        self.publish(state, content);
    }

    /// Publishes the answer's text while it arrives. The future never completes; the caller drops
    /// the future once the answer is complete.
    pub(crate) async fn publish_arriving_text(&self) -> Infallible {
        loop {
            self.text_arrived.notified().await;
            while let Some(wait) = self.time_to_next() {
                if !wait.is_zero() {
                    self.clock.sleep(wait).await;
                }
                let mut state = self.state.lock();
                if let Some(part) = state.waiting.pop_front() {
                    self.publish_text(&mut state, part);
                    state.next = self.clock.uptime() + MIN_DELTA_INTERVAL;
                }
            }
        }
    }

    fn time_to_next(&self) -> Option<Duration> {
        let state = self.state.lock();
        (!state.waiting.is_empty()).then(|| state.next.saturating_sub(self.clock.uptime()))
    }

    fn retract(&self, state: &mut PublishState) {
        if state.has_published {
            self.publish(state, DeltaContent::Reset);
        }
        *state = PublishState::new(self.ids.fresh(), state.next);
    }

    fn finish(&self, answer: &Answer) -> Vec<CallId> {
        let mut state = self.state.lock();
        let begun = !state.texts.is_empty() || !state.calls.is_empty();
        if begun && state.begins(answer) {
            for (number, call) in answer.calls.iter().enumerate() {
                if let Some(known) = self.call_at(&mut state, number) {
                    known.name = Some(call.name.clone());
                }
            }
            self.publish_names(&mut state);
            let texts = answer.calls.iter().enumerate();
            let texts = texts.map(|(number, call)| {
                (AnswerPart::Arguments(number), call.arguments_text.as_str())
            });
            for (part, whole) in [(AnswerPart::Text, answer.text.as_deref().unwrap_or_default())]
                .into_iter()
                .chain(texts)
            {
                self.add(&mut state, part, "");
                if let Some(text) = state.texts.get_mut(&part) {
                    whole.clone_into(&mut text.arrived);
                }
                self.publish_text(&mut state, part);
            }
            state.waiting.clear();
        } else if begun {
            self.retract(&mut state);
        }
        let fresh = |number| {
            self.call_at(&mut state, number)
                .map_or_else(|| CallId(self.ids.fresh()), |call| call.id)
        };
        (0..answer.calls.len()).map(fresh).collect()
    }
}

impl PublishState {
    /// Whether the published deltas are the beginning of `answer`.
    fn begins(&self, answer: &Answer) -> bool {
        let whole = |part: &AnswerPart| match part {
            AnswerPart::Text => answer.text.as_deref(),
            AnswerPart::Arguments(call) => answer
                .calls
                .get(*call)
                .map(|call| call.arguments_text.as_str()),
        };
        let known = answer
            .calls
            .iter()
            .map(|call| Some(call.name.as_str()))
            .chain(std::iter::repeat(None));
        let is_called = |(call, known): (&StreamedCall, _)| {
            call.name.as_deref().is_none_or(|name| Some(name) == known)
        };
        self.calls.iter().zip(known).all(is_called)
            && self.texts.iter().all(|(part, text)| {
                let published_text = text.arrived.get(..text.published_bytes).unwrap_or_default();
                whole(part).unwrap_or_default().starts_with(published_text)
            })
    }
}

impl DeltaStream {
    /// Opens the delta stream of a turn. Returns the handle that the session keeps, and the
    /// publisher to which the model's client writes.
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
            state: Locked::new(PublishState::new(engine.ids.fresh(), Duration::ZERO)),
            text_arrived: Notify::new(),
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
    pub(crate) fn mark_stored(self) {
        self.publisher.state.lock().has_published = false;
    }

    /// Publishes the part of the complete answer that is not published yet. If the published deltas
    /// are not a prefix of the answer, retracts them instead. If no part of the answer was
    /// streamed, publishes nothing. Returns the ids of the answer's calls. A call keeps the id that
    /// the deltas gave it, unless the deltas were retracted.
    pub(crate) fn finish(&self, answer: &Answer) -> Vec<CallId> {
        self.publisher.finish(answer)
    }
}

impl Drop for DeltaStream {
    fn drop(&mut self) {
        let mut state = self.publisher.state.lock();
        if state.has_published {
            self.publisher.publish(&mut state, DeltaContent::Reset);
        }
    }
}
