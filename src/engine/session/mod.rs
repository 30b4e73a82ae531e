//! A session is the working state of a driver or a command: a loaded task, the tree around the
//! task, and the facts that the next commit stores.

mod commit;
mod commit_conflict;
mod delta_stream;
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

pub(in crate::engine) use self::delta_stream::DeltaStream;
pub(in crate::engine) use self::pending::{LateAttempt, ReceivedResult};
pub(crate) use self::save::Stop;
use self::task_draft::TaskDraft;
use self::tree::TaskTree;
use super::runtime::in_flight_calls::InFlightCall;
use super::runtime::leases::Lease;
use super::runtime::lone_drive::LoneDrive;
use super::runtime::metrics;
use crate::store::{CommitError, TreeSnapshot};
use crate::task::call_state::AttemptStart;
use crate::task::change::{
    ASKER_UNTIL_DELIVERED, AskerPresence, Change, Committed, Counters, IdempotencyRow, Journal,
    KeyedCall, LeaseChange, TaskChange, TaskRow,
};
use crate::task::credential::SealedCredential;
use crate::task::elicitation::Elicitation;
use crate::task::id::{CallId, ChangeId, RequestId, TaskId};
use crate::task::item::{CloseReason, Fact, Outcome};
use crate::task::progress::Progress;
use crate::task::request::call_digest;
use crate::task::time::Time;
use crate::task::tool_spec::ToolSpec;
use crate::task::verdict::Judgement;
use crate::tool::catalog::CatalogEntry;

/// A loaded task with its pending facts. `next_step` treats pending facts like durable facts. The
/// next commit makes the pending facts durable.
pub(crate) struct TaskSession {
    pub own: Box<TaskDraft>,
    pub tree: Box<TaskTree>,
    /// The present time: the database's time of the last read or commit, plus the time that calls
    /// and waits have taken since (`Driver::advance_now`).
    pub now: Time,
    /// The time up to which stored journals may lack items, because the database is a restored
    /// backup or a promoted standby. Each load reads this time. `None` if no items can be missing.
    pub history_uncertain_until: Option<Time>,
    /// The row of the command's `Idempotency-Key`. The next commit stores the row.
    pub idempotency: Option<IdempotencyRow>,
    /// The sealed credentials that a person gave. The next commit stores them.
    pub credentials: Vec<SealedCredential>,
    /// The ask whose connection waits for this gate call: the ask's id, and the name of the runner
    /// in its proposal (`""` without a runner). `None` if no connection waits for this session, or
    /// if the session was reloaded.
    pub ask: Option<(Uuid, String)>,
    /// The key by which equal calls find a gate call, for a call that is stored without its key.
    /// The call gets this key once it must wait for a person (see
    /// [`TaskSession::identify_pending_call`]). `None` if the call got its key when it was
    /// proposed, or can have no key.
    pub key_if_pending: Option<KeyedCall>,
    /// The channel to the command that waits for the next commit. The engine sends the commit's
    /// result into the channel, even if the commit fails.
    pub reply: Option<oneshot::Sender<Result<Committed, CommitError>>>,
    /// For each call whose attempt in this process has an unknown outcome: a description of the
    /// problem.
    pub unknown_outcomes: BTreeMap<CallId, String>,
    /// The attempts of this process with an unknown outcome, whose answers may still come.
    pub late_attempts: Vec<LateAttempt>,
    /// For each call whose attempt in this process ended with questions from the tool's server: the
    /// number of the attempt, and the questions.
    pub elicitations: BTreeMap<CallId, (u32, Box<Elicitation>)>,
    /// The calls whose pending results say that the attempt of this process was never sent. Later
    /// attempts at the same calls may have been sent.
    pub not_sent: BTreeSet<CallId>,
    /// For the `seq` of each pending result from outside the process: the start of the attempt that
    /// it answers, if known. A reload keeps these results, because they cannot be computed again.
    pub received_results: BTreeMap<i64, Option<AttemptStart>>,
    /// The registrations of the started calls whose results are not committed yet. While a call is
    /// registered, no other driver of this process opens a reconcile request about the call.
    pub in_flight_calls: Vec<InFlightCall>,
    /// The stream of the deltas (parts) of the model's answer, kept until the answer is stored.
    /// Dropping the stream retracts the deltas.
    pub delta_stream: Option<DeltaStream>,
    /// The uptime right before the last commit was sent to the store. The lease and the send window
    /// begin at this uptime.
    pub commit_started_at: Duration,
    /// The task's lease; `None` until a commit or a claim has taken the lease.
    pub lease: Option<Lease>,
    /// The slot in which the task is driven. A driver without a slot tries to get a slot before it
    /// calls a model or a tool. If it gets no slot, it queues the task.
    pub slot: Option<OwnedSemaphorePermit>,
    /// The right to drive this task alone; `None` if the task is not driven alone. The right is
    /// dropped when the task's next item is stored.
    pub lone_drive: Option<LoneDrive>,
    /// Whether this session has stored an item of the task. While `false`, the driver keeps its
    /// slot, even if another task waits for a lone drive.
    pub has_saved_items: bool,
}

/// Receives the result of a session's first commit. Receives an error if the driver ends without a
/// commit.
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
            key_if_pending: None,
            reply: None,
            unknown_outcomes: BTreeMap::new(),
            late_attempts: Vec::new(),
            elicitations: BTreeMap::new(),
            not_sent: BTreeSet::new(),
            received_results: BTreeMap::new(),
            in_flight_calls: Vec::new(),
            delta_stream: None,
            commit_started_at: Duration::ZERO,
            lease: None,
            slot: None,
            lone_drive: None,
            has_saved_items: false,
        }
    }

    /// Ends the presence of a gate call's asker. The driver calls this function if the call's last
    /// attempt was lost with another replica, because the asker's connection was most likely lost
    /// with that replica, too. The next equal proposal then continues the call, and its client is
    /// told that the call may have run. If the asker's connection still waits after all, its ask
    /// stores the presence again.
    pub(crate) fn end_lost_presence(&mut self) {
        let until = self.own.row.asker_until;
        if until.is_some_and(|until| until != ASKER_UNTIL_DELIVERED) {
            self.own.asker = Some(AskerPresence::Absent);
        }
    }

    /// Sets the key by which equal calls find this gate call, because the call now waits for a
    /// person. Does nothing if the call has its key already. A call has no key if it was allowed
    /// when it was proposed. It may have to wait all the same: for example, its tool has changed
    /// since the proposal, or the tool's server asks a question.
    pub(crate) fn identify_pending_call(&mut self) {
        if let (Some(key), None) = (&self.key_if_pending, self.own.row.asker_until) {
            self.own.call = Some(key.clone());
            // Right after this commit, the waiting ask (the HTTP request that proposed the call)
            // stores its own presence, but only if the row already has a presence. So this commit
            // stores `Absent`, a presence that has already ended.
            self.own.asker = Some(AskerPresence::Absent);
        }
    }

    /// Returns a session of a task whose journal is unreadable, made from the task's row in `tree`
    /// and the number of its open requests.
    pub(crate) fn from_row(row: TaskRow, open_requests: usize, tree: &TreeSnapshot) -> Self {
        let mut session = Self::new(Journal {
            row: row.clone(),
            items: Vec::new(),
            now: tree.now,
            history_uncertain_until: tree.history_uncertain_until,
        });
        *session.own = TaskDraft::from_row(row, open_requests);
        session
    }

    pub(crate) fn expect_commit(&mut self) -> FirstCommit {
        let (reply, receiver) = oneshot::channel();
        self.reply = Some(reply);
        receiver
    }

    /// Returns the session without the parts that exist only in this process: the lease, the slot,
    /// the lone drive, the registrations of calls in flight, and the unstored deltas.
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

    /// Whether the tree has, or ever had, a task other than the session's own task.
    pub(crate) fn has_tree(&self) -> bool {
        self.own.row.parent.is_some() || self.own.progress.sub_agent_starts > 0
    }

    /// Whether there is no tree, or the last read of it still counts as current.
    pub(crate) fn has_fresh_tree(&self) -> bool {
        self.tree.fresh || !self.has_tree()
    }

    /// Merges a newer snapshot of the tree. Returns `false` if the snapshot has no row or no items
    /// of the session's task, or if this row has another version than the session.
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

    /// Replaces the session's state of its task by a newly read `journal`, and drops the facts that
    /// are not committed.
    pub(crate) fn replace(&mut self, journal: Journal) {
        if self.history_uncertain_until == journal.history_uncertain_until {
            self.tree.clear_drafts();
        } else {
            *self.tree = TaskTree::new(journal.row.root_task_id);
        }
        self.history_uncertain_until = journal.history_uncertain_until;
        self.now = journal.now;
        self.credentials.clear();
        self.received_results.clear();
        // The asker's connection may have ended since the last read, so from now on only the row
        // says whether the asker waits. If the connection still waits, it claims the call again.
        self.ask = None;
        let progress = Progress::replay(&journal.items, journal.history_uncertain_until);
        *self.own = TaskDraft::new(journal.row, progress, journal.items);
    }

    pub(crate) fn push(&mut self, fact: Fact) {
        self.own.push(fact, self.now);
    }

    /// Pushes a new judgement of a call. The effect and the performer of the call stay the same.
    pub(crate) fn push_judgement(&mut self, tool_call_id: CallId, judgement: Judgement) {
        let Some(state) = self.own.progress.call(tool_call_id) else {
            return;
        };
        let (effect, performer) = (state.effect, state.performer);
        self.push(Fact::Judged {
            tool_call_id,
            judgement,
            effect,
            performer,
        });
    }

    pub(crate) fn task_id(&self) -> TaskId {
        self.own.task_id()
    }

    /// Returns the task and its ancestors, the nearest first. The limits and credentials of
    /// ancestors also apply to the task.
    pub(crate) fn path(&self) -> Vec<TaskId> {
        [self.task_id()]
            .into_iter()
            .chain(self.tree.ancestors(&self.own.row))
            .collect()
    }

    /// Returns the progress of the session's own task or of another task of the tree.
    pub(crate) fn progress_of(&self, task: TaskId) -> Option<&Progress> {
        if task == self.task_id() {
            Some(&self.own.progress)
        } else {
            self.tree.task(task)
        }
    }

    /// Calls `of` on the progress of `task` and of each descendant, and returns the sum of the
    /// values. `of` must return a count since the user's last message. Pending facts count only for
    /// the session's own task. Exception: while the user's message to a root is pending, the
    /// descendants are left out, because the commit of the message resets their counts.
    pub(crate) fn sum_since_message(&self, task: TaskId, of: impl Fn(&Progress) -> u32) -> u32 {
        let mut pending = self.own.pending_items().iter();
        let resets_counts = self.own.row.parent.is_none()
            && pending.any(|item| matches!(item.fact, Fact::UserMessage { .. }));
        let descendants = if resets_counts {
            Vec::new()
        } else {
            self.tree.descendants(task)
        };
        let subtree = [task].into_iter().chain(descendants);
        subtree
            .filter_map(|id| self.progress_of(id).map(&of))
            .fold(0, u32::saturating_add)
    }

    /// Returns the progress of the session's own task and of its descendants, each with its pending
    /// facts.
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

    pub(crate) fn settle_calls(&mut self, results: Vec<(CallId, Outcome, String)>) {
        self.own.settle_calls(results, self.now);
    }

    pub(crate) fn withdraw_open(&mut self, reason: CloseReason) {
        self.own.withdraw_open(reason, self.now);
    }

    /// Returns the change that makes the pending facts durable. The commit fails as `Stale` if a
    /// row no longer has the version that the session has read, or if the database was restored or
    /// promoted since that read.
    pub(crate) fn change(&self, id: ChangeId, lease: &LeaseChange) -> Change {
        let own = self.own.change(lease.clone(), Counters::default());
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
            history_uncertain_until: self.history_uncertain_until,
        }
    }

    /// Returns the digest of a call with these arguments under `rule`. `rule` names the rule that
    /// judged the call, and `tool` is the current definition of the call's tool.
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

    /// Like [`TaskSession::digest`], with the current definition of the tool `entry`.
    pub(crate) fn current_digest(
        &self,
        entry: &CatalogEntry,
        call: CallId,
        arguments_text: &str,
        rule: Option<&str>,
    ) -> String {
        let spec = entry.current_spec(self.task_id());
        self.digest(&spec, call, arguments_text, rule)
    }

    /// Returns the decided requests whose status becomes `resumed` by the next commit, because
    /// their decisions take effect. Looks at the session's own task, and at each other task that
    /// the commit ends. Skips a task whose turn a request still blocks (`Progress::is_blocked`).
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

    /// Returns the names of the next commit's failpoints: the type of each item in the commit, and
    /// the kind of the lease change.
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

    /// Whether the next commit queues another task of the tree, so that any worker can claim it.
    pub(crate) fn queues_relative(&self) -> bool {
        self.tree
            .drafts()
            .any(|related| related.lease == LeaseChange::Queue)
    }

    /// Applies a successful commit, and writes its metrics and log lines. `is_configured` tells
    /// whether the configuration has a tool name.
    pub(crate) fn mark_committed(
        &mut self,
        done: Committed,
        lease: &LeaseChange,
        is_configured: impl Fn(&str) -> bool,
    ) {
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
        members.for_each(|draft| metrics::observe(draft, done.at, &is_configured));
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
        self.received_results.clear();
    }

    /// Returns the calls whose last attempt ended with questions from the tool's server, if no
    /// request with these questions has been opened yet.
    pub(crate) fn calls_with_questions(&self) -> BTreeSet<CallId> {
        let ended = |(id, (attempt, _)): (&CallId, &(u32, _))| {
            let state = self.own.progress.call(*id)?;
            state.awaits_result_of(*attempt).then_some(*id)
        };
        self.elicitations.iter().filter_map(ended).collect()
    }
}
