//! One task in hand: its row, where it stands, and what the next commit appends to it.

use crate::task::change::{Counters, Guard, LeaseChange, TaskRow};
use crate::task::failure::Failure;
use crate::task::id::{CallId, RequestId, TaskId};
use crate::task::item::{CloseReason, Fact, Item, Outcome, ToolResult, Usage};
use crate::task::request::RequestKind;
use crate::task::call_state::CallState;
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::time::Time;
use crate::task::transcript::{Message, conversation};
use crate::task::turn::Progress;

/// Facts that are pushed count at once for `next_step`; they are durable after the next commit.
pub(super) struct TaskDraft {
    /// The row as of the last read or commit.
    pub row: TaskRow,
    /// Where it stands, pushed facts included.
    pub progress: Progress,
    /// The journal, pushed facts included; of a relative of the task that is driven the pushed facts alone.
    pub items: Vec<Item>,
    /// How many of the items are committed.
    pub committed: usize,
    /// Inserted by its first commit.
    pub guard: Option<Guard>,
    /// The next commit writes the row's agent version.
    pub repinned: bool,
    /// How many of its own questions were open at the last read or commit.
    asking: usize,
    /// Those of them that are known: which, of what kind, and since when.
    pub asked: Vec<(RequestId, RequestKind, Time)>,
}

/// A task of which nothing is pushed that is not durable: the only source of what a model is shown.
#[derive(Clone, Copy)]
pub(super) struct Stored<'m>(&'m TaskDraft);

impl Stored<'_> {
    pub(super) fn conversation(self) -> Vec<Message> {
        conversation(&self.0.items)
    }

    /// The number of the turn that the model is asked for.
    pub(super) fn next_turn(self) -> u32 {
        self.0.progress.turns + 1
    }
}

impl TaskDraft {
    /// A task as it was read: `items` is its journal, or empty.
    pub(super) fn new(row: TaskRow, progress: Progress, items: Vec<Item>) -> Self {
        let (committed, asked) = (items.len(), asked(&progress));
        Self { row, progress, items, committed, guard: None, repinned: false, asking: asked.len(), asked }
    }

    /// A task whose journal cannot be read, with so many open questions.
    pub(super) fn unread(row: TaskRow, asking: usize) -> Self {
        let progress = Progress { status: Some(row.status), ..Progress::new() };
        Self { asking, ..Self::new(row, progress, Vec::new()) }
    }

    pub(super) fn task_id(&self) -> TaskId {
        self.row.task_id
    }

    /// Whether it has ended, pushed facts included.
    pub(super) fn is_over(&self) -> bool {
        self.progress.status.unwrap_or(self.row.status).is_terminal()
    }

    pub(super) fn push(&mut self, fact: Fact, at: Time) {
        let seq = self.row.last_seq + i64::try_from(self.pushed().len()).unwrap_or(i64::MAX) + 1;
        let item = Item { seq, at, fact };
        self.progress.apply(&item);
        self.items.push(item);
    }

    /// Stands where a newer reading says, with what was pushed.
    pub(super) fn again(&mut self, progress: Progress) {
        self.progress = progress;
        for item in self.items.get(self.committed..).unwrap_or_default() {
            self.progress.apply(item);
        }
    }

    /// The task, where all that was pushed is durable.
    pub(super) fn stored(&self) -> Option<Stored<'_>> {
        (!self.unsaved()).then_some(Stored(self))
    }

    pub(super) fn unsaved(&self) -> bool {
        self.committed < self.items.len()
    }

    /// What the next commit will write.
    pub(super) fn pushed(&self) -> &[Item] {
        self.items.get(self.committed..).unwrap_or_default()
    }

    /// Writes down that its open requests are closed, and why.
    pub(super) fn withdraw_open(&mut self, reason: CloseReason, at: Time) {
        let open: Vec<_> = self.progress.open.iter().map(|open| open.asked.request_id).collect();
        for request_id in open {
            self.push(Fact::RequestClosed { request_id, status: RequestStatus::Withdrawn, reason }, at);
        }
    }

    /// Writes the results of calls that do not run.
    pub(super) fn refuse(&mut self, refusals: Vec<(CallId, Outcome, String)>, at: Time) {
        for (tool_call_id, outcome, content) in refusals {
            let name = self.progress.call(tool_call_id).map(|state| state.call.name.clone()).unwrap_or_default();
            self.push(Fact::ToolResult(ToolResult { tool_call_id, name, outcome, content, http_status: None }), at);
        }
    }

    /// Gives these calls without a result one: `unknown` if it had started, what a human had said, or else `outcome`.
    pub(super) fn close_calls(&mut self, which: impl Fn(&CallState) -> bool, outcome: Outcome, text: &str, at: Time) {
        let open = self.progress.unfinished().filter(|state| which(state));
        let closed = open.map(|state| {
            let (id, given, why) = state.canceled();
            let told = given == Outcome::Canceled && state.child().is_none();
            if told { (id, outcome, text.to_owned()) } else { (id, given, why) }
        });
        let closed = closed.collect();
        self.refuse(closed, at);
    }

    pub(super) fn status(&mut self, status: TaskStatus, at: Time) {
        self.push(Fact::TaskStatus { status, error: None, output: None }, at);
    }

    /// It could not go on: what it asks is closed, what it had started stays without a result.
    pub(super) fn fail(&mut self, failure: Failure, at: Time) {
        self.withdraw_open(CloseReason::Canceled, at);
        self.push(Fact::TaskStatus { status: TaskStatus::Failed, error: Some(failure), output: None }, at);
    }

    /// What is pinned to a version of the agent is, from the next commit on, pinned to this one.
    pub(super) fn pin(&mut self, version: &str) {
        if self.row.agent_version != version {
            version.clone_into(&mut self.row.agent_version);
            self.repinned = true;
        }
    }

    /// Whether it was its own turn at the last read or commit.
    fn ran(&self) -> bool {
        self.guard.is_none() && !self.row.parked && self.row.status == TaskStatus::Running
    }

    /// Whether it is its own turn after a commit with that lease: somebody has it in hand, is to take it, or a moment
    /// wakes it.
    fn runs_after(&self, lease: &LeaseChange) -> bool {
        match lease {
            _ if self.is_over() => false,
            LeaseChange::Keep => self.guard.is_some() || self.ran(),
            LeaseChange::Take { .. } | LeaseChange::Queue => true,
            LeaseChange::Park { wake_in } => wake_in.is_some(),
        }
    }

    /// What the next commit, with that lease, adds for this task alone to the sums over its subtree.
    pub(super) fn adds(&self, lease: &LeaseChange) -> Counters {
        let mut usage = Usage::default();
        let mut model_calls = 0;
        for item in self.pushed() {
            if let Fact::AssistantMessage(turn) = &item.fact {
                usage.prompt_tokens += turn.usage.prompt_tokens;
                usage.completion_tokens += turn.usage.completion_tokens;
                usage.total_tokens += turn.usage.total_tokens;
                model_calls += 1;
            }
        }
        let count = |questions: usize| i32::try_from(questions).unwrap_or(i32::MAX);
        Counters {
            busy: i32::from(self.runs_after(lease)) - i32::from(self.ran()),
            open_requests: count(self.progress.open.len()) - count(self.asking),
            usage,
            model_calls,
        }
    }

    /// What was pushed is durable, and so are the `sums` over its subtree.
    pub(super) fn saved(&mut self, lease: &LeaseChange, sums: Counters, at: Time) {
        self.row.parked = !self.runs_after(lease);
        self.row.busy += sums.busy;
        self.row.open_requests += sums.open_requests;
        self.row.version += 1;
        self.row.status = self.progress.status.unwrap_or(self.row.status);
        self.row.last_seq += i64::try_from(self.pushed().len()).unwrap_or(i64::MAX);
        for item in self.items.iter_mut().skip(self.committed) {
            item.at = at;
        }
        let pushed = self.items.get(self.committed..).unwrap_or_default();
        self.progress.committed(pushed.iter().map(|item| &item.fact), at);
        self.committed = self.items.len();
        self.asked = asked(&self.progress);
        self.asking = self.asked.len();
        self.guard = None;
        self.repinned = false;
    }
}

fn asked(progress: &Progress) -> Vec<(RequestId, RequestKind, Time)> {
    progress.open.iter().map(|open| (open.asked.request_id, open.asked.kind, open.asked_at)).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::engine::moves::unsaved_row;
    use crate::task::change::NewTask;
    use crate::task::item::{Part, PartType};
    use uuid::Uuid;

    /// The row of a new task.
    pub fn row() -> TaskRow {
        let (id, text) = (TaskId(Uuid::from_u128(1)), |text: &str| text.to_owned());
        let new = NewTask {
            tenant: text("acme"),
            user_id: text("alice"),
            session_id: text("s"),
            agent: text("billing"),
            agent_version: text("sha256:0"),
            parent: None,
            agent_path: vec![text("billing")],
            metadata: text("{}"),
        };
        unsaved_row(id, id, &new)
    }

    pub fn message() -> Fact {
        let items = vec![Part { content_type: PartType::Text, content: "go".to_owned() }];
        Fact::UserMessage { items, user_context: None, by: "alice".to_owned(), groups: Vec::new() }
    }

    #[test]
    fn task_with_unsaved_facts_has_no_conversation() {
        let mut draft = TaskDraft::new(row(), Progress::new(), Vec::new());
        draft.push(message(), Time::default());
        assert!(draft.stored().is_none());
        draft.saved(&LeaseChange::Queue, Counters::default(), Time::default());
        assert_eq!(draft.stored().map(|stored| stored.conversation().len()), Some(1));
    }
}
