//! Filters the deltas (parts of models' answers) for one stream.
//!
//! Invariants: before the first delta of a model's answer, the stream sends every event that the
//! model's prompt contained. Once the stream has sent an event of the same task that is later than
//! the prompt, it sends no delta of the answer except `Reset`. If the model is called again for the
//! same turn, the stream sends a reset before the deltas of the second call, so that clients never
//! join the texts of the two calls.

use std::collections::HashMap;

use uuid::Uuid;

use super::rendered::RenderedEvent;
use crate::http::wire::event::TransientEvent;
use crate::store::{ReadError, Store, Subtree};
use crate::task::delta::{Delta, DeltaContent};
use crate::task::id::TaskId;

#[derive(Debug, Default)]
pub(crate) struct DeltaFilter {
    /// The `seq` of each task's last stored item, as far as this stream knows.
    stored: HashMap<TaskId, i64>,
    /// For each task, the turn and the model call of the last delta that was sent. The model's
    /// complete answer and a `Reset` delta remove the task.
    last_sent: HashMap<TaskId, (u32, Uuid)>,
    /// For each known task, whether the task is in the subtree that the stream sends.
    in_subtree: HashMap<TaskId, bool>,
}

impl DeltaFilter {
    /// Records whether the task of an event is in the subtree that the stream sends. If the event
    /// starts a sub-agent, records the same value for the sub-agent's task.
    pub(super) fn record_task(&mut self, event: &RenderedEvent, in_subtree: bool) {
        let tasks = event.child.into_iter().chain([event.task]);
        self.in_subtree.extend(tasks.map(|task| (task, in_subtree)));
    }

    /// Records that a durable event (not a delta) was sent.
    pub(super) fn record_sent(&mut self, event: &RenderedEvent) {
        self.stored.insert(event.task, event.seq);
        if event.is_answer {
            self.last_sent.remove(&event.task);
        }
    }

    /// Returns whether `task` is `part.task` or a task below it.
    pub(super) async fn is_in_subtree(
        &mut self,
        store: &Store,
        part: Subtree,
        task: TaskId,
    ) -> Result<bool, ReadError> {
        if part.task == part.root {
            return Ok(true);
        }
        let (mut path, mut next) = (Vec::new(), Some(task));
        let in_subtree = loop {
            let Some(task) = next.filter(|task| !path.contains(task)) else {
                break false;
            };
            if task == part.task {
                break true;
            }
            if let Some(known) = self.in_subtree.get(&task) {
                break *known;
            }
            path.push(task);
            next = store
                .task(task)
                .await?
                .and_then(|row| row.parent)
                .map(|(parent, _)| parent);
        };
        self.in_subtree
            .extend(path.into_iter().map(|task| (task, in_subtree)));
        Ok(in_subtree)
    }

    /// Returns whether the prompt of the delta's model call may contain items that this stream has
    /// not sent yet.
    #[must_use]
    pub(super) fn is_ahead(&self, delta: &Delta) -> bool {
        self.stored
            .get(&delta.task_id)
            .is_none_or(|stored| *stored < delta.after_seq)
    }

    /// Returns the events to send for a delta. The stream must already have sent every item in the
    /// prompt of the delta's model call. The last of these items has the number `delta.after_seq`.
    /// If the task has a later item, the model's answer may already be stored or discarded. Then a
    /// `Reset` delta still causes its event, and any other delta causes none.
    pub(super) async fn visible_events(
        &mut self,
        store: &Store,
        delta: &Delta,
    ) -> Result<Vec<TransientEvent>, ReadError> {
        if delta.said == DeltaContent::Reset {
            return Ok(self.reset(delta));
        }
        let task = delta.task_id;
        let stored = if let Some(seq) = self.stored.get(&task) {
            *seq
        } else {
            let Some(row) = store.task(task).await? else {
                return Ok(Vec::new());
            };
            self.stored.insert(task, row.last_seq);
            row.last_seq
        };
        if delta.after_seq < stored {
            return Ok(Vec::new());
        }
        Ok(self.events_for(delta))
    }

    fn events_for(&mut self, delta: &Delta) -> Vec<TransientEvent> {
        let now = (delta.turn, delta.asking);
        let before = self
            .last_sent
            .insert(delta.task_id, now)
            .filter(|(turn, _)| *turn == delta.turn);
        let void = before
            .is_some_and(|before| before != now)
            .then(|| TransientEvent::reset(delta));
        void.into_iter()
            .chain([TransientEvent::from_delta(delta)])
            .collect()
    }

    /// Returns the event for a `Reset` delta. The event retracts the deltas that were sent for the
    /// model call of `delta`. Returns no event if `last_sent` does not name this model call.
    fn reset(&mut self, delta: &Delta) -> Vec<TransientEvent> {
        if self.last_sent.get(&delta.task_id) != Some(&(delta.turn, delta.asking)) {
            return Vec::new();
        }
        self.last_sent.remove(&delta.task_id);
        vec![TransientEvent::reset(delta)]
    }
}
