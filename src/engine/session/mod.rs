//! A task that this process has loaded: the task, the tree around it, and the pending facts of the
//! next commit.

mod commit_conflict;
pub(crate) mod ending;
mod load;
mod pending;
mod save;
mod status;
mod stopped;
pub(crate) mod task_draft;
pub(crate) mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use uuid::Uuid;

use self::task_draft::TaskDraft;
use self::tree::{RelatedDraft, TaskTree, draft_change};
use super::commands::late_answer::LateAttempt;
use super::driver::DeltaStream;
use super::runtime::in_flight_calls::InFlightCall;
use super::runtime::leases::Lease;
use super::runtime::lone_drive::LoneDrive;
use super::runtime::metrics;
use crate::store::{CommitError, TreeSnapshot};
use crate::task::call_state::Phase;
use crate::task::change::{
    Change, Committed, Counters, IdempotencyRow, Journal, LeaseChange, TaskChange, TaskRow,
};
use crate::task::credential::SealedCredential;
use crate::task::elicitation::Elicitation;
use crate::task::id::{CallId, ChangeId, RequestId, TaskId};
use crate::task::item::{CloseReason, Fact, Outcome};
use crate::task::request::call_digest;
use crate::task::step::Budget;
use crate::task::time::Time;
use crate::task::tool_spec::ToolSpec;
use crate::task::turn::Progress;

/// A loaded task with its pending facts. Pending facts count at once for `next_step`; the next
/// commit makes them durable.
pub(crate) struct TaskSession {
    /// The task itself.
    pub own: Box<TaskDraft>,
    /// The tree around the task.
    pub tree: Box<TaskTree>,
    /// The database's clock at the last read or commit.
    pub now: Time,
    /// As of the last load: the time up to which the history is uncertain after a restore.
    pub history_uncertain_until: Option<Time>,
    /// The command's idempotency row, for the next commit.
    pub idempotency: Option<IdempotencyRow>,
    /// Sealed values that a person provided, for the next commit.
    pub credentials: Vec<SealedCredential>,
    /// Set where the connection of a gate call's asker answers from this session: the id of the ask,
    /// and the runner that it names, or `""`.
    pub ask: Option<(Uuid, String)>,
    /// Reply channel of the command that waits for the next commit. Answered once.
    pub reply: Option<oneshot::Sender<Result<Committed, CommitError>>>,
    /// By call: the problem of this process's attempt whose outcome is unknown.
    pub unknown: BTreeMap<CallId, String>,
    /// Attempts of this process whose outcome is unknown, and whose answer may still come.
    pub late: Vec<LateAttempt>,
    /// By call: the number of this process's attempt that ended with questions, and the questions.
    pub elicitations: BTreeMap<CallId, (u32, Box<Elicitation>)>,
    /// By call: the number of this process's attempt that was provably never sent. Says nothing
    /// about the call's other attempts.
    pub not_sent: BTreeMap<CallId, u32>,
    /// The registrations of calls whose results are pending. While they exist, no other driver of
    /// this process opens a reconcile request about these calls.
    pub in_flight_calls: Vec<InFlightCall>,
    /// The deltas of the model's answer, until the answer is stored.
    pub delta_stream: Option<DeltaStream>,
    /// The machine's uptime right before the last commit was sent to the store.
    pub saved_since: Duration,
    /// The lease, once a commit or a claim has taken it.
    pub lease: Option<Lease>,
    /// The right to run in this process. Without a slot the task is queued at its next effect.
    pub slot: Option<OwnedSemaphorePermit>,
    /// Held while this task is driven alone, until its next item is stored.
    pub lone: Option<LoneDrive>,
    /// Whether an item was stored since the task was claimed, so that the task may give way to a
    /// lone drive.
    pub has_saved_items: bool,
}

/// The answer of a session's first commit.
pub(crate) type FirstCommit = oneshot::Receiver<Result<Committed, CommitError>>;

impl TaskSession {
    pub(crate) fn new(journal: Journal) -> Self {
        let progress = Progress::replay(&journal.items, journal.history_uncertain_until);
        Self {
            tree: Box::new(TaskTree::new(journal.row.root_task_id)),
            own: Box::new(TaskDraft::new(journal.row, progress, journal.items)),
            now: journal.now,
            history_uncertain_until: journal.history_uncertain_until,
            idempotency: None,
            credentials: Vec::new(),
            ask: None,
            reply: None,
            unknown: BTreeMap::new(),
            late: Vec::new(),
            elicitations: BTreeMap::new(),
            not_sent: BTreeMap::new(),
            in_flight_calls: Vec::new(),
            delta_stream: None,
            saved_since: Duration::ZERO,
            lease: None,
            slot: None,
            lone: None,
            has_saved_items: false,
        }
    }

    /// The session of a task whose journal cannot be read, made from the task's row and the number
    /// of its open requests.
    pub(crate) fn from_row(row: TaskRow, open_requests: usize, now: Time) -> Self {
        let mut session = Self::new(Journal {
            row: row.clone(),
            items: Vec::new(),
            now,
            history_uncertain_until: None,
        });
        *session.own = TaskDraft::from_row(row, open_requests);
        session
    }

    /// Lets the next commit answer to the receiver.
    pub(crate) fn expect_commit(&mut self) -> FirstCommit {
        let (reply, written) = oneshot::channel();
        self.reply = Some(reply);
        written
    }

    /// The session without its holds on this process: lease, slot, calls in flight.
    pub(crate) fn released(self) -> Self {
        Self {
            in_flight_calls: Vec::new(),
            delta_stream: None,
            lease: None,
            slot: None,
            lone: None,
            ..self
        }
    }

    /// Whether the tree has, or had, more tasks than this one.
    pub(crate) fn has_tree(&self) -> bool {
        self.own.row.parent.is_some() || self.own.progress.starts > 0
    }

    /// Merges a newer snapshot of the tree. `false` where the snapshot does not have the task at
    /// this session's version.
    pub(crate) fn merge_tree(&mut self, tree: TreeSnapshot) -> bool {
        let task = self.task_id();
        let same = tree
            .rows
            .iter()
            .any(|row| row.task_id == task && row.version == self.own.row.version);
        if !same {
            return false;
        }
        self.now = self.now.max(tree.now);
        self.tree.apply(tree);
        let (Some(row), Some(mut progress)) = (self.tree.row(task), self.tree.progress(task))
        else {
            return false;
        };
        let open = usize::try_from(
            self.tree
                .row(row.root_task_id)
                .map_or(0, |root| root.open_requests),
        )
        .unwrap_or(0);
        progress.elsewhere = open.saturating_sub(progress.open.len());
        let responded = &self.own.progress.responded;
        progress.responded.retain(|known| responded.contains(known));
        (self.own.row.busy, self.own.row.open_requests) = (row.busy, row.open_requests);
        self.own.rebase(progress);
        true
    }

    /// Replaces the task by `journal`, which was read later, and drops the pending facts.
    pub(crate) fn replace(&mut self, journal: Journal) {
        if self.history_uncertain_until == journal.history_uncertain_until {
            self.tree.clear_drafts();
        } else {
            *self.tree = TaskTree::new(journal.row.root_task_id);
        }
        self.history_uncertain_until = journal.history_uncertain_until;
        self.now = journal.now;
        self.credentials.clear();
        let progress = Progress::replay(&journal.items, journal.history_uncertain_until);
        *self.own = TaskDraft::new(journal.row, progress, journal.items);
    }

    pub(crate) fn push(&mut self, fact: Fact) {
        self.own.push(fact, self.now);
    }

    /// The draft of a relative, which the next commit changes too, and the time for new facts of
    /// that draft. `None` if the relative is not known.
    pub(crate) fn relative_mut(&mut self, task: TaskId) -> Option<(&mut RelatedDraft, Time)> {
        let now = self.now;
        self.tree.relative_mut(task).map(|related| (related, now))
    }

    pub(crate) fn task_id(&self) -> TaskId {
        self.own.task_id()
    }

    /// The task and its ancestors, the nearest first. The ancestors' limits and credentials apply
    /// to the task as well.
    pub(crate) fn path(&self) -> Vec<TaskId> {
        [self.task_id()]
            .into_iter()
            .chain(self.tree.above(&self.own.row))
            .collect()
    }

    /// The sum of `of` over the progress of `task` and of its descendants. Pending facts count for
    /// the session's own task only.
    pub(crate) fn sum_over_subtree(&self, task: TaskId, of: impl Fn(&Progress) -> u32) -> u32 {
        let own = self.task_id();
        let known = |id: TaskId| {
            if id == own {
                Some(&self.own.progress)
            } else {
                self.tree.task(id)
            }
        };
        let subtree = [task].into_iter().chain(self.tree.below(task));
        subtree
            .filter_map(|id| known(id).map(&of))
            .fold(0, u32::saturating_add)
    }

    /// The progress of the task and of its descendants, pending facts included.
    pub(crate) fn subtree(&self) -> Vec<Progress> {
        let below = self.tree.below(self.task_id());
        let related = self.tree.drafts().map(|related| &related.draft);
        let related: BTreeMap<_, _> = related
            .map(|draft| (draft.task_id(), &draft.progress))
            .collect();
        let below = below
            .into_iter()
            .filter_map(|task| related.get(&task).copied().or(self.tree.task(task)));
        [&self.own.progress]
            .into_iter()
            .chain(below)
            .cloned()
            .collect()
    }

    pub(crate) fn unsaved(&self) -> bool {
        self.own.unsaved()
    }

    /// Writes the results of calls that do not run.
    pub(crate) fn settle_calls(&mut self, results: Vec<(CallId, Outcome, String)>) {
        self.own.settle_calls(results, self.now);
    }

    pub(crate) fn withdraw_open(&mut self, reason: CloseReason) {
        self.own.withdraw_open(reason, self.now);
    }

    /// The change that makes the pending facts durable, fenced by the versions of the rows that
    /// were read.
    pub(crate) fn change(&self, id: ChangeId, lease: &LeaseChange) -> Change {
        let own = draft_change(&self.own, lease.clone(), Counters::default());
        let own = TaskChange {
            credentials: self.credentials.clone(),
            ..own
        };
        Change {
            id,
            root: self.own.row.root_task_id,
            tenant: self.own.row.tenant.clone(),
            root_agent: self.own.row.root_agent().to_owned(),
            tasks: self.tree.changes(&self.own, lease, own),
            resumed: self.resumed().collect(),
            idempotency: self.idempotency.clone(),
        }
    }

    /// The digest of a call as it would run now under `rule`.
    pub(crate) fn digest(
        &self,
        tool: &ToolSpec,
        call: CallId,
        arguments_text: &str,
        rule: Option<&str>,
    ) -> String {
        call_digest(
            &self.own.row.tenant,
            self.task_id(),
            call,
            tool.into(),
            arguments_text,
            rule,
        )
    }

    /// Requests whose decisions take effect with the next commit, because their turn is no longer
    /// blocked (`Progress::is_blocked`).
    fn resumed(&self) -> impl Iterator<Item = RequestId> {
        let ended = self
            .tree
            .drafts()
            .map(|related| &related.draft)
            .filter(|draft| draft.is_over());
        let effective = ended
            .chain([&*self.own])
            .filter(|draft| !draft.progress.is_blocked());
        effective.flat_map(|draft| draft.progress.responded.iter().copied())
    }

    /// The failpoints of the next commit: the types of its items and its change of the lease.
    pub(crate) fn failpoints(&self, lease: &LeaseChange) -> Vec<&'static str> {
        let lease = match lease {
            LeaseChange::Keep => "keep",
            LeaseChange::Take { .. } => "take",
            LeaseChange::Queue => "queue",
            LeaseChange::Park { .. } => "park",
        };
        let others = self
            .tree
            .drafts()
            .flat_map(|related| related.draft.pushed());
        let items = self.own.pushed().iter().chain(others);
        items
            .map(|item| item.fact.type_name())
            .chain([lease])
            .collect()
    }

    /// Whether the next commit queues a relative for the workers.
    pub(crate) fn queues(&self) -> bool {
        self.tree
            .drafts()
            .any(|related| related.lease == LeaseChange::Queue)
    }

    /// Records a successful commit: the pending facts are durable now.
    pub(crate) fn saved(&mut self, done: Committed, lease: &LeaseChange) {
        let sums = self
            .tree
            .counter_changes(&self.own, lease)
            .remove(&self.task_id())
            .unwrap_or_default();
        let members = self
            .tree
            .drafts()
            .map(|related| &related.draft)
            .chain([&*self.own]);
        members.for_each(|draft| metrics::observe(draft, done.at));
        if !self.own.progress.is_blocked() {
            self.own.progress.responded.clear();
        }
        if self
            .own
            .pushed()
            .iter()
            .any(|item| matches!(item.fact, Fact::AssistantMessage(_)))
        {
            self.delta_stream
                .take()
                .into_iter()
                .for_each(DeltaStream::stored);
        }
        if self.own.unsaved() {
            self.lone = None;
            self.has_saved_items = true;
        }
        self.own.saved(lease, sums, done.at);
        self.tree.clear_drafts();
        self.now = done.at;
        self.idempotency = None;
        self.credentials.clear();
        self.in_flight_calls.clear();
        self.not_sent.clear();
    }

    /// The calls whose last attempt has ended with questions that no request asks yet.
    pub(crate) fn asking(&self) -> BTreeSet<CallId> {
        let ended = |(id, (attempt, _)): (&CallId, &(u32, _))| {
            let state = self.own.progress.call(*id)?;
            state.ended_asking(*attempt).then_some(*id)
        };
        self.elicitations.iter().filter_map(ended).collect()
    }

    /// The calls whose last attempt may still be running. An attempt may run until the tool's
    /// timeout and then `grace` (the duration of a lease) have passed since its start, unless its
    /// process is `gone`.
    pub(crate) fn budget(&self, grace: Duration, gone: impl Fn(&str) -> bool) -> Budget {
        let mut budget = Budget::default();
        for state in self.own.progress.unfinished() {
            let Phase::Started(start) = &state.phase else {
                continue;
            };
            let gone = !start.is_elsewhere() && gone(&start.replica);
            if !gone && !state.given_back && self.now < start.over(grace) {
                budget.running.insert(state.call.tool_call_id);
            }
        }
        budget
    }
}
