//! A task that this process has loaded: the task, the tree around it, and the pending facts of the
//! next commit.

mod commit_conflict;
pub(crate) mod ending;
mod load;
mod save;
mod status;
pub(crate) mod task_draft;
pub(crate) mod tree;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use self::task_draft::TaskDraft;
use self::tree::{RelatedDraft, TaskTree, draft_change};
use super::driver::DeltaStream;
use super::runtime::in_flight_calls::InFlightCall;
use super::runtime::leases::Lease;
use super::runtime::lone_drive::LoneDrive;
use super::runtime::metrics;
use crate::store::{CommitError, TreeSnapshot};
use crate::task::call_state::{CallState, Phase};
use crate::task::change::{
    Change, Committed, Counters, IdempotencyRow, Journal, LeaseChange, TaskChange, TaskRow,
};
use crate::task::credential::SealedCredential;
use crate::task::failure::{Failure, FailureCode};
use crate::task::id::{CallId, ChangeId, RequestId, TaskId};
use crate::task::item::{CloseReason, Fact, Outcome, ToolResult};
use crate::task::request::call_digest;
use crate::task::status::RequestStatus;
use crate::task::step::Budget;
use crate::task::text::cleaned;
use crate::task::time::Time;
use crate::task::tool_spec::{ToolKind, ToolSpec};
use crate::task::turn::Progress;
use crate::tool::ToolAnswer;

/// A loaded task with its pending facts. Pending facts count at once for `next_step`; the next
/// commit makes them durable.
pub(crate) struct TaskSession {
    /// The task itself.
    pub own: Box<TaskDraft>,
    /// The tree around it.
    pub tree: Box<TaskTree>,
    /// The database's clock at the last read or commit.
    pub now: Time,
    /// The moment up to which the history was uncertain at the last load, after a restore.
    pub history_uncertain_until: Option<Time>,
    /// The command's idempotency row, for the next commit.
    pub idempotency: Option<IdempotencyRow>,
    /// Sealed values that a person provided, for the next commit.
    pub credentials: Vec<SealedCredential>,
    /// Reply channel of the command that waits for the next commit. Answered once.
    pub reply: Option<oneshot::Sender<Result<Committed, CommitError>>>,
    /// The problems of this process's attempts that ended without a known outcome.
    pub unknown: BTreeMap<CallId, String>,
    /// The numbers of this process's attempts that were provably never sent. Says nothing about
    /// other attempts.
    pub not_sent: BTreeMap<CallId, u32>,
    /// Calls whose result is pending and not durable: no other driver may open a reconcile request
    /// about them.
    pub in_flight_calls: Vec<InFlightCall>,
    /// The deltas of the model's answer, until that is stored.
    pub delta_stream: Option<DeltaStream>,
    /// Uptime at which the last commit was handed over.
    pub saved_since: Duration,
    /// The lease, once a commit or a claim has taken it.
    pub lease: Option<Lease>,
    /// The right to run in this process. Without a slot the task is queued at its next effect.
    pub slot: Option<OwnedSemaphorePermit>,
    /// Held while this process drives no other task, until the next new item.
    pub lone: Option<LoneDrive>,
    /// Whether an item was stored since the task was claimed, so that it may give way to a lone
    /// drive.
    pub has_saved_items: bool,
}

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
            reply: None,
            unknown: BTreeMap::new(),
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

    /// A task whose journal cannot be read, from its row and the number of its open requests.
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

    /// Whether its tree has more tasks than itself.
    pub(crate) fn has_tree(&self) -> bool {
        self.own.row.parent.is_some() || self.own.progress.starts > 0
    }

    /// Merges a newer reading of the tree. `false` where the task itself has a newer version than
    /// this session.
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

    /// Replaces the task by a newer reading and drops its pending facts.
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

    /// The draft of a relative that the next commit changes, and the time of its facts.
    pub(crate) fn relative_mut(&mut self, task: TaskId) -> Option<(&mut RelatedDraft, Time)> {
        let now = self.now;
        self.tree.relative_mut(task).map(|related| (related, now))
    }

    pub(crate) fn task_id(&self) -> TaskId {
        self.own.task_id()
    }

    /// The task and its ancestors, the nearest first: their limits hold for it, and it uses their
    /// credentials.
    pub(crate) fn path(&self) -> Vec<TaskId> {
        [self.task_id()]
            .into_iter()
            .chain(self.tree.above(&self.own.row))
            .collect()
    }

    /// The sum of a figure over a task and its descendants.
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

    /// Results of calls that are not durable.
    pub(crate) fn pending_results(&self) -> Vec<ToolResult> {
        // The result of a sub-agent is read again from its task.
        let delegated = |call| {
            self.own
                .progress
                .call(call)
                .is_some_and(|known| known.performer == ToolKind::Agent)
        };
        let results = self.own.pushed().iter().filter_map(|item| {
            let (Fact::ToolResult(result) | Fact::LateResult(result)) = &item.fact else {
                return None;
            };
            Some(result)
        });
        results
            .filter(|result| is_external(result.outcome) && !delegated(result.tool_call_id))
            .cloned()
            .collect()
    }

    /// The model's answer or failure, where it is not durable.
    pub(crate) fn pending_answer(&self) -> Option<PendingAnswer> {
        let failed = |failure: &Failure| failure.code == FailureCode::ModelFailed;
        let answers = |fact: &&Fact| {
            matches!(fact, Fact::AssistantMessage(_))
                || matches!(fact, Fact::TaskStatus { error: Some(error), .. } if failed(error))
        };
        let fact = self
            .own
            .pushed()
            .iter()
            .map(|item| &item.fact)
            .find(answers)?
            .clone();
        let shown = self.own.items.iter().take(self.own.committed);
        Some(PendingAnswer {
            fact,
            shown: shown.map(|item| (item.seq, item.at)).collect(),
        })
    }

    /// Keeps a pending answer after a reload, where the journal is the one that the model was shown
    /// plus late results at most. Any other journal drops the answer and retracts its deltas.
    pub(crate) fn restore_answer(&mut self, answer: Option<PendingAnswer>) {
        let follows = |answer: &PendingAnswer| {
            let (items, shown) = (&self.own.items, &answer.shown);
            let mut since = items.iter().skip(shown.len());
            items
                .iter()
                .map(|item| (item.seq, item.at))
                .take(shown.len())
                .eq(shown.iter().copied())
                && since.all(|item| matches!(item.fact, Fact::LateResult(_)))
        };
        match answer.filter(follows) {
            Some(answer) => self.push(answer.fact),
            None => self.delta_stream = None,
        }
    }

    /// Whether a result still applies to its call. The result of an attempt that was never sent
    /// does not, once there was another attempt or a request about it.
    fn still_applies(&self, result: &ToolResult) -> bool {
        let Some(attempt) = self.not_sent.get(&result.tool_call_id) else {
            return true;
        };
        let state = self.own.progress.call(result.tool_call_id);
        state.is_some_and(|call| {
            call.attempts == *attempt && call.phase == Phase::Done(Outcome::Unknown)
        })
    }

    /// Whether the journal has this very result, because a commit whose answer was lost stored it.
    fn is_journaled(&self, result: &ToolResult) -> bool {
        self.own
            .items
            .iter()
            .any(|item| matches!(&item.fact, Fact::ToolResult(known) | Fact::LateResult(known) if known == result))
    }

    /// Adds results to a newer reading.
    pub(crate) fn add_results(&mut self, results: Vec<ToolResult>) {
        for result in results
            .into_iter()
            .filter(|result| self.still_applies(result))
            .collect::<Vec<_>>()
        {
            self.add_result(result);
        }
    }

    /// Journals a result: as the call's own, together with the end of its reconcile request, or as
    /// a late result.
    fn add_result(&mut self, result: ToolResult) {
        if self.is_journaled(&result) {
            return;
        }
        let state = self.own.progress.call(result.tool_call_id);
        // The journal lost the start of this attempt in a restore.
        let start_lost = state.is_some_and(CallState::ready_but_uncertain);
        match state.map(|state| state.phase.clone()) {
            Some(Phase::OutcomeUnknown(request_id)) => {
                self.push(Fact::RequestClosed {
                    request_id,
                    status: RequestStatus::Withdrawn,
                    reason: CloseReason::AnsweredLate,
                });
                self.resume_if_unblocked();
                self.push(Fact::ToolResult(result));
            }
            // After a person's `retry`, and before the new attempt, the first attempt's answer is
            // still the result.
            Some(Phase::Started(_) | Phase::Approved(_) | Phase::Settled(Outcome::Unknown, _)) => {
                self.push(Fact::ToolResult(result));
            }
            Some(Phase::Allowed) if start_lost => self.push(Fact::ToolResult(result)),
            Some(
                Phase::New
                | Phase::Allowed
                | Phase::Held(_)
                | Phase::Human(_)
                | Phase::Asked(_)
                | Phase::Settled(..)
                | Phase::Delegated(_)
                | Phase::Done(_),
            )
            | None => self.push(Fact::LateResult(result)),
        }
    }

    /// Writes the results of calls that do not run.
    pub(crate) fn settle_calls(&mut self, results: Vec<(CallId, Outcome, String)>) {
        self.own.settle_calls(results, self.now);
    }

    /// Records the answer to an attempt, or the problem of an attempt whose outcome is unknown.
    pub(crate) fn record_result(&mut self, tool_call_id: CallId, name: String, answer: ToolAnswer) {
        let (outcome, content, http_status) = match answer {
            ToolAnswer::Succeeded {
                content,
                http_status,
            } => (Outcome::Succeeded, content, http_status),
            ToolAnswer::Failed {
                content,
                http_status,
            } => (Outcome::Failed, content, http_status),
            ToolAnswer::Unknown { problem } => {
                self.unknown.insert(tool_call_id, problem);
                return;
            }
        };
        self.unknown.remove(&tool_call_id);
        self.push(Fact::ToolResult(ToolResult {
            tool_call_id,
            name,
            outcome,
            content: cleaned(content),
            http_status,
        }));
    }

    /// Withdraws every open request.
    pub(crate) fn withdraw_open(&mut self, reason: CloseReason) {
        self.own.withdraw_open(reason, self.now);
    }

    /// The change that makes the pending facts durable, fenced by the versions that were read.
    pub(crate) fn change(&self, id: ChangeId, lease: &LeaseChange) -> Change {
        let own = draft_change(&self.own, lease.clone(), Counters::default());
        let own = TaskChange {
            credentials: self.credentials.clone(),
            ..own
        };
        Change {
            id,
            root: self.own.row.root_task_id,
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

    /// Requests whose decisions take effect with the next commit: their turn has no open request
    /// any more.
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

    /// Takes over a commit: the pending facts are durable.
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

    /// Which attempts may still be running: until the lease (`grace`) and the tool's timeout are
    /// over, unless the process of the attempt is `gone`.
    pub(crate) fn budget(&self, grace: Duration, gone: impl Fn(&str) -> bool) -> Budget {
        let mut budget = Budget::default();
        for state in self.own.progress.unfinished() {
            let Phase::Started(start) = &state.phase else {
                continue;
            };
            let over = start.at + start.timeout + grace;
            if !gone(&start.replica) && self.now < over {
                budget.running.insert(state.call.tool_call_id);
            }
        }
        budget
    }
}

/// A model's answer or failure, with `seq` and time of each item that the model was shown.
pub(crate) struct PendingAnswer {
    fact: Fact,
    shown: Vec<(i64, Time)>,
}

/// Whether the outcome came from outside and cannot be computed again.
fn is_external(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Succeeded | Outcome::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::session::task_draft::tests::{message, row};
    use crate::task::item::{FinishReason, Item, Turn, Usage};
    use crate::task::status::TaskStatus;
    use uuid::Uuid;

    fn journal(facts: &[Fact], at: Time) -> Journal {
        let items: Vec<_> = facts
            .iter()
            .cloned()
            .zip(1..)
            .map(|(fact, seq)| Item { seq, at, fact })
            .collect();
        Journal {
            row: TaskRow {
                last_seq: i64::try_from(items.len()).unwrap(),
                ..row()
            },
            items,
            now: at,
            history_uncertain_until: None,
        }
    }

    #[test]
    fn answer_is_kept_only_where_it_follows_what_the_model_was_shown() {
        let status = |status| Fact::TaskStatus {
            status,
            error: None,
            output: None,
        };
        let late = Fact::LateResult(ToolResult {
            tool_call_id: CallId(Uuid::nil()),
            name: "pay".to_owned(),
            outcome: Outcome::Succeeded,
            content: String::new(),
            http_status: None,
        });
        let answer = Fact::AssistantMessage(Turn {
            turn: 1,
            text: Some("done".to_owned()),
            tool_calls: Vec::new(),
            finish_reason: FinishReason::Stop,
            usage: Usage::default(),
            raw: serde_json::Value::Null,
        });
        let (shown, at, later) = (
            vec![status(TaskStatus::Running), message()],
            Time(1),
            Time(2),
        );
        let with = |facts: &[&Fact]| {
            shown
                .iter()
                .chain(facts.iter().copied())
                .cloned()
                .collect::<Vec<_>>()
        };
        let canceled = status(TaskStatus::Canceled);
        for (name, newer, at, kept) in [
            ("the same journal", with(&[]), at, true),
            ("a late result", with(&[&late]), at, true),
            ("a cancel", with(&[&canceled]), at, false),
            (
                "the user's next message",
                with(&[&late, &canceled, &message()]),
                at,
                false,
            ),
            ("the answer itself", with(&[&answer]), at, false),
            (
                "a history whose end was lost",
                shown[..1].to_vec(),
                at,
                false,
            ),
            ("another history", with(&[]), later, false),
        ] {
            let mut session = TaskSession::new(journal(&shown, Time(1)));
            session.push(answer.clone());
            let answered = session.pending_answer();
            session.replace(journal(&newer, at));
            session.restore_answer(answered);
            assert_eq!(session.unsaved(), kept, "{name}");
        }
    }
}
