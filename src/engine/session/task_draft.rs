//! A draft is a task's row and progress with the pending items that the next commit appends.

use crate::task::call_state::{CallState, Phase};
use crate::task::change::{
    AskerPresence, Counters, Guard, KeyedCall, LeaseChange, TaskChange, TaskRow,
};
use crate::task::failure::Failure;
use crate::task::id::{CallId, RequestId, TaskId};
use crate::task::item::{CloseReason, Fact, FinishReason, Item, Outcome, ToolResult, Usage};
use crate::task::progress::Progress;
use crate::task::request::RequestKind;
use crate::task::status::TaskStatus;
use crate::task::time::Time;
use crate::task::transcript::{Message, conversation};
use crate::task::verdict::Judgement;

/// A task's row, progress and journal, with its pending facts. `next_step` treats a pending fact
/// like a committed fact.
pub(crate) struct TaskDraft {
    /// The row as of the last read or commit.
    pub row: TaskRow,
    /// The progress, with the pending facts applied.
    pub progress: Progress,
    /// For the task that the session drives: the journal, then the pending facts. For another task
    /// of the tree: only the pending facts.
    pub items: Vec<Item>,
    /// The number of committed items, which come first in `items`.
    pub committed: usize,
    /// `Guard::New` if the next commit inserts the task's row. `None` if the row exists; the next
    /// commit then checks the version of the row.
    pub guard: Option<Guard>,
    /// Whether the next commit writes the agent version of `row`.
    pub has_new_agent_version: bool,
    /// For a gate call: the next commit stores this presence of the asker (the client that waits
    /// for the call). `None` keeps the stored presence.
    pub asker: Option<AskerPresence>,
    /// For a gate call: the next commit stores this identity of the call, by which equal calls are
    /// found. `None` keeps the stored identity.
    pub call: Option<KeyedCall>,
    /// The number of the task's own open requests at the last read or commit.
    open_requests: usize,
    /// The id, the kind and the opening time of each request that was open at the last read or
    /// commit. The list is empty when the journal is unreadable.
    pub known_requests: Vec<(RequestId, RequestKind, Time)>,
}

/// A task without pending facts. Conversations for models are built only from this type, so that
/// models see only durable facts.
#[derive(Clone, Copy)]
pub(crate) struct Stored<'m>(&'m TaskDraft);

impl Stored<'_> {
    pub(crate) fn conversation(self) -> Vec<Message> {
        conversation(&self.0.items)
    }

    pub(crate) fn next_turn(self) -> u32 {
        self.0.progress.turns + 1
    }
}

impl TaskDraft {
    /// Returns a draft without pending facts. `items` is the whole journal for the task that the
    /// session drives, and empty for another task of the tree.
    pub(crate) fn new(row: TaskRow, progress: Progress, items: Vec<Item>) -> Self {
        let (committed, known_requests) = (items.len(), known_requests(&progress));
        let open_requests = known_requests.len();
        Self {
            row,
            progress,
            items,
            committed,
            guard: None,
            has_new_agent_version: false,
            asker: None,
            call: None,
            open_requests,
            known_requests,
        }
    }

    /// Returns a draft of a task whose journal is unreadable. `open_requests` is the number of the
    /// task's own open requests.
    pub(crate) fn from_row(row: TaskRow, open_requests: usize) -> Self {
        let progress = Progress {
            status: Some(row.status),
            ..Progress::default()
        };
        Self {
            open_requests,
            ..Self::new(row, progress, Vec::new())
        }
    }

    pub(crate) fn task_id(&self) -> TaskId {
        self.row.task_id
    }

    /// Whether the task has ended, or will have ended once its pending facts are committed.
    pub(crate) fn has_ended(&self) -> bool {
        self.progress
            .status
            .unwrap_or(self.row.status)
            .is_terminal()
    }

    pub(crate) fn push(&mut self, fact: Fact, at: Time) {
        let seq =
            self.row.last_seq + i64::try_from(self.pending_items().len()).unwrap_or(i64::MAX) + 1;
        let item = Item { seq, at, fact };
        self.progress.apply(&item);
        self.items.push(item);
    }

    pub(crate) fn rebase(&mut self, progress: Progress) {
        self.progress = progress;
        for item in self.items.get(self.committed..).unwrap_or_default() {
            self.progress.apply(item);
        }
    }

    /// Whether the task is a call that an agent proposed at a gate.
    pub(crate) fn is_gate_call(&self) -> bool {
        self.items.iter().any(|item| {
            matches!(&item.fact, Fact::AssistantMessage(turn) if turn.finish_reason == FinishReason::Gate)
        })
    }

    /// Returns the presence of the asker that the next commit stores; `None` keeps the stored
    /// presence. This is `asker`, with one exception: if the commit stores the result of a call
    /// with a presence (in the row or in `asker`), and `asker` is not `Delivered`, returns
    /// `Absent`. `Absent` then means that the asker does not have the result yet.
    pub(crate) fn asker_change(&self) -> Option<AskerPresence> {
        let is_keyed = self.asker.is_some() || self.row.asker_until.is_some();
        let settles = || {
            let mut pushed = self.pending_items().iter();
            pushed.any(|item| matches!(item.fact, Fact::ToolResult(_)))
        };
        if is_keyed && self.asker != Some(AskerPresence::Delivered) && settles() {
            return Some(AskerPresence::Absent);
        }
        self.asker
    }

    /// Returns the value of [`TaskChange::in_quarantine`] for the next commit. A call whose journal
    /// is unreadable may have acted, so its end puts its tool into quarantine.
    fn quarantine_change(&self) -> Option<bool> {
        let is_keyed = self.asker.is_some() || self.row.asker_until.is_some();
        let is_unread = self.progress.calls.is_empty();
        let change = if is_unread && self.has_ended() && !self.row.status.is_terminal() {
            Some(true)
        } else {
            let quarantine = &self.progress.shared.quarantine;
            quarantine.change_since(self.row.last_seq)
        };
        change.filter(|_| is_keyed)
    }

    /// Replaces the pending judgement of a call, and computes the progress again from all items.
    /// The task must not be stored yet: `Progress::from_items` treats every item as certain, but a
    /// stored item may belong to the uncertain history.
    pub(crate) fn replace_judgement(&mut self, call: CallId, by: &Judgement) {
        let pending = self.items.iter_mut().skip(self.committed);
        for item in pending {
            if let Fact::Judged {
                tool_call_id,
                judgement,
                ..
            } = &mut item.fact
                && *tool_call_id == call
            {
                judgement.clone_from(by);
            }
        }
        self.progress = Progress::from_items(&self.items);
    }

    pub(crate) fn stored(&self) -> Option<Stored<'_>> {
        (!self.has_pending_facts()).then_some(Stored(self))
    }

    pub(crate) fn has_pending_facts(&self) -> bool {
        self.committed < self.items.len()
    }

    pub(crate) fn pending_items(&self) -> &[Item] {
        self.items.get(self.committed..).unwrap_or_default()
    }

    pub(crate) fn withdraw_open(&mut self, reason: CloseReason, at: Time) {
        let open: Vec<_> = self
            .progress
            .open
            .iter()
            .map(|open| open.spec.request_id)
            .collect();
        for request_id in open {
            self.push(Fact::withdrawn(request_id, reason), at);
        }
    }

    /// Pushes a result for each given call. No further attempt at these calls starts.
    pub(crate) fn settle_calls(&mut self, results: Vec<(CallId, Outcome, String)>, at: Time) {
        for (tool_call_id, outcome, content) in results {
            let name = self
                .progress
                .call(tool_call_id)
                .map(|state| state.call.name.clone())
                .unwrap_or_default();
            self.push(
                Fact::ToolResult(ToolResult {
                    tool_call_id,
                    name,
                    outcome,
                    content,
                    http_status: None,
                    suspect: false,
                    reported: false,
                }),
                at,
            );
        }
    }

    /// Pushes a result for each unfinished call that `which` selects. A call with a sub-agent gets
    /// its [`CallState::canceled_result`]. So does a call whose `canceled_result` has another
    /// outcome than `Canceled`, for example `Unknown` for a call that may have run. A call that has
    /// expired without a written result, for example because the task failed in the same commit,
    /// gets the result of the expiry. Every other call gets a result with `outcome` and `text`.
    pub(crate) fn close_calls(
        &mut self,
        which: impl Fn(&CallState) -> bool,
        outcome: Outcome,
        text: &str,
        at: Time,
    ) {
        let open = self.progress.unfinished().filter(|state| which(state));
        let closed = open.map(|state| {
            let (id, given, why) = state.canceled_result();
            let told = given == Outcome::Canceled && state.child().is_none();
            if let Phase::Settled(Outcome::Expired, expired) = &state.phase
                && told
            {
                (id, Outcome::Expired, expired.clone())
            } else if told {
                (id, outcome, text.to_owned())
            } else {
                (id, given, why)
            }
        });
        let closed = closed.collect();
        self.settle_calls(closed, at);
    }

    pub(crate) fn push_status(&mut self, status: TaskStatus, at: Time) {
        self.push(
            Fact::TaskStatus {
                status,
                error: None,
                output: None,
            },
            at,
        );
    }

    /// Fails the task and withdraws its open requests. Unfinished calls get no result, so that a
    /// retry of the task continues them.
    pub(crate) fn fail(&mut self, failure: Failure, at: Time) {
        self.withdraw_open(CloseReason::Canceled, at);
        self.push(
            Fact::TaskStatus {
                status: TaskStatus::Failed,
                error: Some(failure),
                output: None,
            },
            at,
        );
    }

    /// Pins the task to this version of its agent from the next commit on.
    pub(crate) fn pin(&mut self, version: &str) {
        if self.row.agent_version != version {
            version.clone_into(&mut self.row.agent_version);
            self.has_new_agent_version = true;
        }
    }

    fn was_busy(&self) -> bool {
        self.guard.is_none() && !self.row.parked && self.row.status == TaskStatus::Running
    }

    /// Whether the task counts as busy after a commit with `lease`. A task is busy if a driver
    /// holds the task, a worker will claim it, or a timer will wake it.
    fn busy_after(&self, lease: &LeaseChange) -> bool {
        match lease {
            _ if self.has_ended() => false,
            LeaseChange::Keep => self.guard.is_some() || self.was_busy(),
            LeaseChange::Take { .. } | LeaseChange::Queue => true,
            LeaseChange::Park { wake_in } => wake_in.is_some(),
        }
    }

    /// Returns the numbers that the next commit adds to the counters of this task and of each of
    /// its ancestors. The commit stores the pending facts and the lease change `lease`.
    pub(crate) fn counter_change(&self, lease: &LeaseChange) -> Counters {
        let mut usage = Usage::default();
        let mut model_calls = 0;
        for item in self.pending_items() {
            if let Fact::AssistantMessage(turn) = &item.fact {
                usage.prompt_tokens += turn.usage.prompt_tokens;
                usage.completion_tokens += turn.usage.completion_tokens;
                usage.total_tokens += turn.usage.total_tokens;
                model_calls += i32::from(turn.finish_reason != FinishReason::Gate);
            }
        }
        let count = |questions: usize| i32::try_from(questions).unwrap_or(i32::MAX);
        Counters {
            busy: i32::from(self.busy_after(lease)) - i32::from(self.was_busy()),
            open_requests: count(self.progress.open.len()) - count(self.open_requests),
            usage,
            model_calls,
        }
    }

    /// Returns the change of the next commit, which stores the pending facts and the lease change
    /// `lease`, and adds `counters` to the row's counters.
    pub(crate) fn change(&self, lease: LeaseChange, counters: Counters) -> TaskChange {
        let guard = self.guard.clone();
        TaskChange {
            task_id: self.task_id(),
            guard: guard.unwrap_or(Guard::Version(self.row.version)),
            facts: self
                .pending_items()
                .iter()
                .map(|item| item.fact.clone())
                .collect(),
            last_seq: self.row.last_seq,
            agent_version: self
                .has_new_agent_version
                .then(|| self.row.agent_version.clone()),
            counters,
            lease,
            asker: self.asker_change(),
            call: self.call.clone(),
            in_quarantine: self.quarantine_change(),
            credentials: Vec::new(),
        }
    }

    /// Updates `row` in the same way as a commit that stores the pending facts and the lease change
    /// `lease` at the time `at`. `sums` are the increments of the counters. The fields
    /// `next_event`, `takeovers` and `fruitless`, and the owner and the end of the lease, keep
    /// their values.
    pub(crate) fn advance(&self, row: &mut TaskRow, lease: &LeaseChange, sums: Counters, at: Time) {
        if self.guard.is_some() {
            row.created_at = at;
        }
        if self.has_pending_facts() {
            row.updated_at = at;
        }
        if let Some(asker) = self.asker_change() {
            row.asker_until = Some(asker.until(at));
        }
        row.parked = !self.busy_after(lease);
        row.busy += sums.busy;
        row.open_requests += sums.open_requests;
        row.usage.prompt_tokens += sums.usage.prompt_tokens;
        row.usage.completion_tokens += sums.usage.completion_tokens;
        row.usage.total_tokens += sums.usage.total_tokens;
        row.model_calls += i64::from(sums.model_calls);
        row.version += 1;
        row.last_seq += i64::try_from(self.pending_items().len()).unwrap_or(i64::MAX);
        for item in self.pending_items() {
            if let Fact::TaskStatus {
                status,
                output,
                error,
            } = &item.fact
            {
                row.status = *status;
                row.output.clone_from(output);
                row.error.clone_from(error);
            }
        }
    }

    /// Applies a successful commit at the time `at`: marks the pending facts as committed, and adds
    /// `sums` to the counters.
    pub(crate) fn mark_committed(&mut self, lease: &LeaseChange, sums: Counters, at: Time) {
        let mut row = self.row.clone();
        self.advance(&mut row, lease, sums, at);
        self.row = row;
        for item in self.items.iter_mut().skip(self.committed) {
            item.at = at;
        }
        let pushed = self.items.get(self.committed..).unwrap_or_default();
        self.progress
            .set_commit_time(pushed.iter().map(|item| &item.fact), at);
        self.committed = self.items.len();
        self.known_requests = known_requests(&self.progress);
        self.open_requests = self.known_requests.len();
        self.guard = None;
        self.has_new_agent_version = false;
        self.asker = None;
        self.call = None;
    }
}

fn known_requests(progress: &Progress) -> Vec<(RequestId, RequestKind, Time)> {
    progress
        .open
        .iter()
        .map(|open| (open.spec.request_id, open.spec.kind, open.opened_at))
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::task::change::{ClientColumns, NewTask};
    use crate::task::item::{Part, PartType};
    use std::time::Duration;
    use uuid::Uuid;

    pub(crate) fn row() -> TaskRow {
        let (id, text) = (TaskId(Uuid::from_u128(1)), |text: &str| text.to_owned());
        let new = NewTask {
            tenant: text("acme"),
            user_id: text("alice"),
            session_id: text("s"),
            agent: text("billing"),
            agent_version: text("sha256:0"),
            parent: None,
            agent_path: vec![text("billing")],
            client: ClientColumns::with_metadata(text("{}")),
        };
        TaskRow::unsaved(id, id, &new)
    }

    pub(crate) fn message() -> Fact {
        let items = vec![Part {
            content_type: PartType::Text,
            content: "go".to_owned(),
        }];
        Fact::UserMessage {
            items,
            user_context: None,
            by: "alice".to_owned(),
            groups: Vec::new(),
        }
    }

    #[test]
    fn saved_change_of_the_asker_is_in_the_row_and_leaves_the_time_of_the_last_item() {
        let mut draft = TaskDraft::new(row(), Progress::default(), Vec::new());
        draft.asker = Some(AskerPresence::PresentFor(Duration::from_secs(1)));
        assert!(!draft.has_pending_facts());
        draft.mark_committed(&LeaseChange::Keep, Counters::default(), Time(7));
        assert_eq!(draft.row.asker_until, Some(Time(1_000_007)));
        assert_eq!((draft.row.version, draft.row.updated_at), (1, Time(0)));
        assert_eq!(draft.asker, None);
        draft.push(message(), Time::default());
        draft.mark_committed(&LeaseChange::Keep, Counters::default(), Time(8));
        assert_eq!(draft.row.asker_until, Some(Time(1_000_007)));
    }

    #[test]
    fn task_with_unsaved_facts_has_no_conversation() {
        let mut draft = TaskDraft::new(row(), Progress::default(), Vec::new());
        draft.push(message(), Time::default());
        assert!(draft.stored().is_none());
        draft.mark_committed(&LeaseChange::Queue, Counters::default(), Time::default());
        assert_eq!(
            draft.stored().map(|stored| stored.conversation().len()),
            Some(1)
        );
    }
}
