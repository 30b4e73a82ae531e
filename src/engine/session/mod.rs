//! A session: a loaded task, the tree around it, and the pending facts of the next commit.

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
use crate::task::progress::Progress;
use crate::task::request::call_digest;
use crate::task::step::StepContext;
use crate::task::time::Time;
use crate::task::tool_spec::ToolSpec;

/// A loaded task with its pending facts, which count for `next_step` at once. The next commit makes
/// them durable.
pub(crate) struct TaskSession {
    /// The session's own task, with its pending facts.
    pub own: Box<TaskDraft>,
    /// The tree around the task, with the drafts of relatives that the next commit changes.
    pub tree: Box<TaskTree>,
    /// The database's clock at the last read or commit.
    pub now: Time,
    /// The time up to which the history is uncertain after a restore, as of the last load.
    pub history_uncertain_until: Option<Time>,
    /// The command's idempotency row, for the next commit.
    pub idempotency: Option<IdempotencyRow>,
    /// Sealed values that a person provided, for the next commit.
    pub credentials: Vec<SealedCredential>,
    /// Set if the connection of a gate call's asker answers from this session: the id of the ask,
    /// and the runner that the proposal names, or `""`.
    pub ask: Option<(Uuid, String)>,
    /// The reply channel of the command that waits for the next commit, also if the commit fails.
    pub reply: Option<oneshot::Sender<Result<Committed, CommitError>>>,
    /// By call: the problem of an attempt of this process whose outcome is unknown.
    pub unknown_outcomes: BTreeMap<CallId, String>,
    /// Attempts of this process whose outcome is unknown, and whose answer may still come.
    pub late_attempts: Vec<LateAttempt>,
    /// By call: the number of an attempt of this process that ended with questions, and the
    /// questions.
    pub elicitations: BTreeMap<CallId, (u32, Box<Elicitation>)>,
    /// By call: the number of an attempt of this process that was provably never sent. Other
    /// attempts of the call may have been sent.
    pub not_sent: BTreeMap<CallId, u32>,
    /// The registrations of calls whose results are pending. While they exist, no other driver of
    /// this process opens a reconcile request about these calls.
    pub in_flight_calls: Vec<InFlightCall>,
    /// The deltas of the model's answer, until the answer is stored. Dropping them retracts the
    /// answer.
    pub delta_stream: Option<DeltaStream>,
    /// The uptime right before the last commit was sent to the store: the lease and the send window
    /// count from it.
    pub commit_started_at: Duration,
    /// The lease, once a commit or a claim has taken it.
    pub lease: Option<Lease>,
    /// The right to run in this process. Without a slot the task is queued at its next effect.
    pub slot: Option<OwnedSemaphorePermit>,
    /// The lone drive of this task, if it is driven alone. It ends when the task's next item is
    /// stored.
    pub lone_drive: Option<LoneDrive>,
    /// Whether an item was stored since the task was claimed. Only then does the task give way to a
    /// lone drive.
    pub has_saved_items: bool,
}

/// Receives the result of a session's first commit; an error if the driver ends without a commit.
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
            unknown_outcomes: BTreeMap::new(),
            late_attempts: Vec::new(),
            elicitations: BTreeMap::new(),
            not_sent: BTreeMap::new(),
            in_flight_calls: Vec::new(),
            delta_stream: None,
            commit_started_at: Duration::ZERO,
            lease: None,
            slot: None,
            lone_drive: None,
            has_saved_items: false,
        }
    }

    /// Returns a session of a task whose journal is unreadable, made from the task's row and the
    /// number of its open requests.
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

    /// Lets the next commit send its result to the returned receiver.
    pub(crate) fn expect_commit(&mut self) -> FirstCommit {
        let (reply, receiver) = oneshot::channel();
        self.reply = Some(reply);
        receiver
    }

    /// Drops everything that the session holds in this process: lease, slot, lone drive, calls in
    /// flight, and unstored deltas.
    pub(crate) fn released(self) -> Self {
        Self {
            in_flight_calls: Vec::new(),
            delta_stream: None,
            lease: None,
            slot: None,
            lone_drive: None,
            ..self
        }
    }

    /// Whether the tree has, or had, more tasks than this one.
    pub(crate) fn has_tree(&self) -> bool {
        self.own.row.parent.is_some() || self.own.progress.sub_agent_starts > 0
    }

    /// Merges a newer snapshot of the tree. Returns `false`, with the session unchanged, if the
    /// snapshot does not have the task in this session's version.
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
        progress.open_elsewhere = open.saturating_sub(progress.open.len());
        let responded = &self.own.progress.responded;
        progress.responded.retain(|known| responded.contains(known));
        (self.own.row.busy, self.own.row.open_requests) = (row.busy, row.open_requests);
        self.own.rebase(progress);
        true
    }

    /// Replaces the task by `journal`, a later read, and drops the pending facts.
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

    /// Returns the draft of a relative, so that the next commit changes the relative too, and the
    /// time for the draft's new facts. `None` if the tree has no such task.
    pub(crate) fn relative_mut(&mut self, task: TaskId) -> Option<(&mut RelatedDraft, Time)> {
        let now = self.now;
        self.tree.relative_mut(task).map(|related| (related, now))
    }

    pub(crate) fn task_id(&self) -> TaskId {
        self.own.task_id()
    }

    /// Returns the task and its ancestors, the nearest first. The limits and credentials of
    /// ancestors apply to the task as well.
    pub(crate) fn path(&self) -> Vec<TaskId> {
        [self.task_id()]
            .into_iter()
            .chain(self.tree.ancestors(&self.own.row))
            .collect()
    }

    /// Returns the sum of `of` over the progress of `task` and its descendants. Only the session's
    /// own task counts with its pending facts.
    pub(crate) fn sum_over_subtree(&self, task: TaskId, of: impl Fn(&Progress) -> u32) -> u32 {
        let own = self.task_id();
        let known = |id: TaskId| {
            if id == own {
                Some(&self.own.progress)
            } else {
                self.tree.task(id)
            }
        };
        let subtree = [task].into_iter().chain(self.tree.descendants(task));
        subtree
            .filter_map(|id| known(id).map(&of))
            .fold(0, u32::saturating_add)
    }

    /// Returns the progress of the task and of its descendants, pending facts included.
    pub(crate) fn subtree(&self) -> Vec<Progress> {
        let descendants = self.tree.descendants(self.task_id());
        let related = self.tree.drafts().map(|related| &related.draft);
        let related: BTreeMap<_, _> = related
            .map(|draft| (draft.task_id(), &draft.progress))
            .collect();
        let descendants = descendants
            .into_iter()
            .filter_map(|task| related.get(&task).copied().or(self.tree.task(task)));
        [&self.own.progress]
            .into_iter()
            .chain(descendants)
            .cloned()
            .collect()
    }

    pub(crate) fn has_pending_facts(&self) -> bool {
        self.own.has_pending_facts()
    }

    /// Pushes a result for each of these calls, which do not run.
    pub(crate) fn settle_calls(&mut self, results: Vec<(CallId, Outcome, String)>) {
        self.own.settle_calls(results, self.now);
    }

    pub(crate) fn withdraw_open(&mut self, reason: CloseReason) {
        self.own.withdraw_open(reason, self.now);
    }

    /// Returns the change that makes the pending facts durable. It is fenced by the versions of the
    /// rows that were read.
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

    /// Returns the digest of a call with these arguments, under `rule`, with the tool as it is now.
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

    /// Returns the requests whose decisions take effect with the next commit, because their turn is
    /// no longer blocked (`Progress::is_blocked`).
    fn resumed(&self) -> impl Iterator<Item = RequestId> {
        let ended = self
            .tree
            .drafts()
            .map(|related| &related.draft)
            .filter(|draft| draft.has_ended());
        let effective = ended
            .chain([&*self.own])
            .filter(|draft| !draft.progress.is_blocked());
        effective.flat_map(|draft| draft.progress.responded.iter().copied())
    }

    /// Returns the names of the next commit's failpoints: the types of its items and its lease
    /// change.
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
            .flat_map(|related| related.draft.pending_items());
        let items = self.own.pending_items().iter().chain(others);
        items
            .map(|item| item.fact.type_name())
            .chain([lease])
            .collect()
    }

    /// Whether the next commit queues a relative for the workers.
    pub(crate) fn queues_relative(&self) -> bool {
        self.tree
            .drafts()
            .any(|related| related.lease == LeaseChange::Queue)
    }

    /// Records a successful commit: the pending facts are durable now.
    pub(crate) fn mark_committed(&mut self, done: Committed, lease: &LeaseChange) {
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
            .pending_items()
            .iter()
            .any(|item| matches!(item.fact, Fact::AssistantMessage(_)))
        {
            self.delta_stream
                .take()
                .into_iter()
                .for_each(DeltaStream::mark_stored);
        }
        if self.own.has_pending_facts() {
            self.lone_drive = None;
            self.has_saved_items = true;
        }
        self.own.mark_committed(lease, sums, done.at);
        self.tree.clear_drafts();
        self.now = done.at;
        self.idempotency = None;
        self.credentials.clear();
        self.in_flight_calls.clear();
        self.not_sent.clear();
    }

    /// Returns the calls whose last attempt ended with questions that are not in a request yet.
    pub(crate) fn calls_with_questions(&self) -> BTreeSet<CallId> {
        let ended = |(id, (attempt, _)): (&CallId, &(u32, _))| {
            let state = self.own.progress.call(*id)?;
            state.awaits_result_of(*attempt).then_some(*id)
        };
        self.elicitations.iter().filter_map(ended).collect()
    }

    /// Returns the calls whose last attempt may still be running. An attempt of this service counts
    /// as running until `grace` (the duration of a lease) after the tool's timeout, unless its
    /// process `has_ended`. An attempt elsewhere counts as running until the timeout, unless the
    /// asker has returned the permit.
    pub(crate) fn step_context(
        &self,
        grace: Duration,
        has_ended: impl Fn(&str) -> bool,
    ) -> StepContext {
        let mut context = StepContext::default();
        for state in self.own.progress.unfinished() {
            let Phase::Started(start) = &state.phase else {
                continue;
            };
            let is_process_gone = !start.is_run_by_asker() && has_ended(&start.replica);
            if !is_process_gone && !state.is_permit_returned && self.now < start.ends_at(grace) {
                context.running.insert(state.call.tool_call_id);
            }
        }
        context
    }
}
