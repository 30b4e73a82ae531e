//! A task while somebody works on it: itself, the tree around it, and what the next commit will add.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::alone::LoneDrive;
use super::delta_stream::DeltaStream;
use super::tree::{TaskTree, RelatedDraft, written};
use super::in_flight::InFlightCall;
use super::lease::Lease;
use super::draft::TaskDraft;
use crate::store::{self, CommitError};
use crate::task::change::{Change, Committed, Counters, IdempotencyRow, Journal, LeaseChange, TaskChange, TaskRow};
use crate::task::credential::SealedCredential;
use crate::task::failure::{Failure, FailureCode};
use crate::task::id::{CallId, ChangeId, RequestId, TaskId};
use crate::task::item::{CloseReason, Fact, Outcome, ToolResult};
use crate::task::request::call_digest;
use crate::task::call_state::{Phase, CallState};
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::step::Budget;
use crate::task::time::Time;
use crate::task::tool_spec::{ToolKind, ToolSpec};
use crate::task::turn::Progress;

/// A task in hand. Facts that are pushed count at once for `next_step`; they are durable after the next commit.
pub(super) struct TaskSession {
    /// The task itself.
    pub own: Box<TaskDraft>,
    /// The tree around it.
    pub tree: Box<TaskTree>,
    /// The database's clock at the last read or commit.
    pub now: Time,
    /// Up to when its history was in doubt at the last reading.
    pub history_uncertain_until: Option<Time>,
    /// Goes into the next commit.
    pub idempotency: Option<IdempotencyRow>,
    /// What was filled in, sealed: goes into the next commit.
    pub credentials: Vec<SealedCredential>,
    /// Who waits for the next commit: the operation that this is the effect of. Told once.
    pub reply: Option<oneshot::Sender<Result<Committed, CommitError>>>,
    /// Attempts that this process made and that ended without an answer: what went wrong.
    pub unknown: BTreeMap<CallId, String>,
    /// Attempts of this process that were provably never sent, by their number: that says nothing about any other attempt.
    pub not_sent: BTreeMap<CallId, u32>,
    /// Calls whose answer is pushed and not durable: nobody else may ask what became of them.
    pub in_flight_calls: Vec<InFlightCall>,
    /// The deltas of the model's answer, until that is stored.
    pub delta_stream: Option<DeltaStream>,
    /// When the last commit was handed over, by the machine's uptime.
    pub saved_since: Duration,
    /// The hold on the task, once it is taken.
    pub lease: Option<Lease>,
    /// The right to run in this process; without one the task is queued at its next effect.
    pub slot: Option<OwnedSemaphorePermit>,
    /// Nothing else is driven in this process: until the next new item.
    pub lone: Option<LoneDrive>,
    /// A new item was stored since it was taken in hand: it may give way to a task that is driven alone.
    pub moved: bool,
}

impl TaskSession {
    pub(super) fn read(journal: Journal) -> Self {
        let progress = Progress::replay(&journal.items, journal.history_uncertain_until);
        Self {
            tree: Box::new(TaskTree::of(journal.row.root_task_id)),
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
            moved: false,
        }
    }

    /// A task of which only the row can be read, with so many open questions.
    pub(super) fn unread(row: TaskRow, asking: usize, now: Time) -> Self {
        let mut session = Self::read(Journal { row: row.clone(), items: Vec::new(), now, history_uncertain_until: None });
        *session.own = TaskDraft::unread(row, asking);
        session
    }

    /// Whether its tree has more tasks than itself.
    pub(super) fn has_tree(&self) -> bool {
        self.own.row.parent.is_some() || self.own.progress.starts > 0
    }

    /// Takes in the tree as it was read now. `false` where the task itself is not any more as it is in hand.
    pub(super) fn meet(&mut self, tree: store::TreeSnapshot) -> bool {
        let task = self.task_id();
        let same = tree.rows.iter().any(|row| row.task_id == task && row.version == self.own.row.version);
        if !same {
            return false;
        }
        self.now = self.now.max(tree.now);
        self.tree.read(tree);
        let (Some(row), Some(mut progress)) = (self.tree.row(task), self.tree.progress(task)) else { return false };
        let open = usize::try_from(self.tree.row(row.root_task_id).map_or(0, |root| root.open_requests)).unwrap_or(0);
        progress.elsewhere = open.saturating_sub(progress.open.len());
        let responded = &self.own.progress.responded;
        progress.responded.retain(|known| responded.contains(known));
        (self.own.row.busy, self.own.row.open_requests) = (row.busy, row.open_requests);
        self.own.again(progress);
        true
    }

    /// Takes a newer reading of the same task; what was pushed and not committed is forgotten.
    pub(super) fn reread(&mut self, journal: Journal) {
        if self.history_uncertain_until == journal.history_uncertain_until {
            self.tree.forget();
        } else {
            *self.tree = TaskTree::of(journal.row.root_task_id);
        }
        self.history_uncertain_until = journal.history_uncertain_until;
        self.now = journal.now;
        self.credentials.clear();
        let progress = Progress::replay(&journal.items, journal.history_uncertain_until);
        *self.own = TaskDraft::new(journal.row, progress, journal.items);
    }

    pub(super) fn push(&mut self, fact: Fact) {
        self.own.push(fact, self.now);
    }

    /// A relative, to be changed by the next commit, and the moment that its facts are made at.
    pub(super) fn relative_mut(&mut self, task: TaskId) -> Option<(&mut RelatedDraft, Time)> {
        let now = self.now;
        self.tree.relative_mut(task).map(|related| (related, now))
    }

    pub(super) fn task_id(&self) -> TaskId {
        self.own.task_id()
    }

    /// The task and those above it, the nearest first: whose limits hold it, and whose credentials it sees.
    pub(super) fn path(&self) -> Vec<TaskId> {
        [self.task_id()].into_iter().chain(self.tree.above(&self.own.row)).collect()
    }

    /// Where it and those below it stand, what was pushed included.
    pub(super) fn subtree(&self) -> Vec<Progress> {
        let below = self.tree.below(self.task_id());
        let related = self.tree.related().map(|related| &related.draft);
        let related: BTreeMap<_, _> = related.map(|draft| (draft.task_id(), &draft.progress)).collect();
        let below = below.into_iter().filter_map(|task| related.get(&task).copied().or(self.tree.task(task)));
        [&self.own.progress].into_iter().chain(below).cloned().collect()
    }

    pub(super) fn unsaved(&self) -> bool {
        self.own.unsaved()
    }

    /// What came of calls, and is not durable.
    pub(super) fn results_in_hand(&self) -> Vec<ToolResult> {
        // What a sub-agent said is found again in its task.
        let said = |call| self.own.progress.call(call).is_some_and(|known| known.performer == ToolKind::Agent);
        let results = self.own.pushed().iter().filter_map(|item| {
            let (Fact::ToolResult(result) | Fact::LateResult(result)) = &item.fact else { return None };
            Some(result)
        });
        results.filter(|result| is_of_the_world(result.outcome) && !said(result.tool_call_id)).cloned().collect()
    }

    /// The model's answer or failure, where it is not durable.
    pub(super) fn answer_in_hand(&self) -> Option<Answered> {
        let failed = |failure: &Failure| failure.code == FailureCode::ModelFailed;
        let answers = |fact: &&Fact| {
            matches!(fact, Fact::AssistantMessage(_))
                || matches!(fact, Fact::TaskStatus { error: Some(error), .. } if failed(error))
        };
        let fact = self.own.pushed().iter().map(|item| &item.fact).find(answers)?.clone();
        let shown = self.own.items.iter().take(self.own.committed);
        Some(Answered { fact, shown: shown.map(|item| (item.seq, item.at)).collect() })
    }

    /// The answer follows a newer reading of the journal, where that is what the model was shown and late results at
    /// most. Elsewhere it is thrown away, and its deltas are taken back.
    pub(super) fn answer_again(&mut self, answered: Option<Answered>) {
        let follows = |answered: &Answered| {
            let (items, shown) = (&self.own.items, &answered.shown);
            let mut since = items.iter().skip(shown.len());
            items.iter().map(|item| (item.seq, item.at)).take(shown.len()).eq(shown.iter().copied())
                && since.all(|item| matches!(item.fact, Fact::LateResult(_)))
        };
        match answered.filter(follows) {
            Some(answered) => self.push(answered.fact),
            None => self.delta_stream = None,
        }
    }

    /// Whether a result is about the call as it stands now. That an attempt was not sent says nothing once there was
    /// another one, or somebody was asked.
    fn still_says(&self, result: &ToolResult) -> bool {
        let Some(attempt) = self.not_sent.get(&result.tool_call_id) else { return true };
        let state = self.own.progress.call(result.tool_call_id);
        state.is_some_and(|call| call.attempts == *attempt && call.phase == Phase::Done(Outcome::Unknown))
    }

    /// Whether this very result is written already (a commit whose answer was lost).
    fn written(&self, result: &ToolResult) -> bool {
        self.own
            .items
            .iter()
            .any(|item| matches!(&item.fact, Fact::ToolResult(known) | Fact::LateResult(known) if known == result))
    }

    /// What came of calls is carried over to a newer reading.
    pub(super) fn carry(&mut self, in_hand: Vec<ToolResult>) {
        for result in in_hand.into_iter().filter(|result| self.still_says(result)).collect::<Vec<_>>() {
            self.settle(result);
        }
    }

    /// A result is never thrown away: it is the call's result, or closes the question about it, or is a late one.
    fn settle(&mut self, result: ToolResult) {
        if self.written(&result) {
            return;
        }
        let state = self.own.progress.call(result.tool_call_id);
        // The history that knew of its start was lost; this is what became of it.
        let forgotten = state.is_some_and(CallState::ready_but_uncertain);
        match state.map(|state| state.phase.clone()) {
            Some(Phase::OutcomeUnknown(request_id)) => {
                self.push(Fact::RequestClosed {
                    request_id,
                    status: RequestStatus::Withdrawn,
                    reason: CloseReason::AnsweredLate,
                });
                self.goes_on();
                self.push(Fact::ToolResult(result));
            }
            // Between a human's `retry` and the new attempt, too, the first attempt's answer is the call's result.
            Some(Phase::Started(_) | Phase::Approved(_) | Phase::Settled(Outcome::Unknown, _)) => {
                self.push(Fact::ToolResult(result));
            }
            Some(Phase::Allowed) if forgotten => self.push(Fact::ToolResult(result)),
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

    /// What happened to a question lets a paused task go on, where something follows that waits for nobody.
    pub(super) fn goes_on(&mut self) {
        if self.own.progress.status == Some(TaskStatus::Paused) && self.own.progress.goes_on() {
            self.own.status(TaskStatus::Running, self.now);
        }
    }

    /// Writes down that these requests are closed, and why.
    pub(super) fn withdraw_open(&mut self, reason: CloseReason) {
        self.own.withdraw_open(reason, self.now);
    }

    /// What follows from what was pushed for those that run or do not run any more: called right before the change is made.
    pub(super) fn balance(&mut self, lease: &LeaseChange) {
        self.tree.balance(&mut self.own, lease, self.now);
    }

    /// The change that makes what was pushed durable. `seq` and version follow from the rows that were read.
    pub(super) fn change(&self, id: ChangeId, lease: &LeaseChange) -> Change {
        let own = written(&self.own, lease.clone(), Counters::default());
        let own = TaskChange { credentials: self.credentials.clone(), ..own };
        Change {
            id,
            root: self.own.row.root_task_id,
            tasks: self.tree.changes(&self.own, lease, own),
            resumed: self.resumed().collect(),
            idempotency: self.idempotency.clone(),
        }
    }

    /// The digest of one of its calls, as it would run now under `rule`.
    pub(super) fn digest(&self, tool: &ToolSpec, call: CallId, arguments_text: &str, rule: Option<&str>) -> String {
        call_digest(&self.own.row.tenant, self.task_id(), call, tool.into(), arguments_text, rule)
    }

    /// Requests whose decisions take effect with the next commit: nothing of their turn is asked any more.
    fn resumed(&self) -> impl Iterator<Item = RequestId> {
        let ended = self.tree.related().map(|related| &related.draft).filter(|draft| draft.is_over());
        let effective = ended.chain([&*self.own]).filter(|draft| !draft.progress.is_blocked());
        effective.flat_map(|draft| draft.progress.responded.iter().copied())
    }

    /// The names of what the next commit does: the types of its items, and what becomes of the lease.
    pub(super) fn points(&self, lease: &LeaseChange) -> Vec<&'static str> {
        let lease = match lease {
            LeaseChange::Keep => "keep",
            LeaseChange::Take { .. } => "take",
            LeaseChange::Queue => "queue",
            LeaseChange::Park { .. } => "park",
        };
        let others = self.tree.related().flat_map(|related| related.draft.pushed());
        let items = self.own.pushed().iter().chain(others);
        items.map(|item| item.fact.type_name()).chain([lease]).collect()
    }

    /// Whether the next commit has anything for the workers to take.
    pub(super) fn queues(&self) -> bool {
        self.tree.related().any(|related| related.lease == LeaseChange::Queue)
    }

    /// What was pushed is durable.
    pub(super) fn saved(&mut self, done: Committed, lease: &LeaseChange) {
        let sums = self.tree.sums(&self.own, lease).remove(&self.task_id()).unwrap_or_default();
        let members = self.tree.related().map(|related| &related.draft).chain([&*self.own]);
        members.for_each(|draft| super::measure::observe(draft, done.at));
        if !self.own.progress.is_blocked() {
            self.own.progress.responded.clear();
        }
        if self.own.pushed().iter().any(|item| matches!(item.fact, Fact::AssistantMessage(_))) {
            self.delta_stream.take().into_iter().for_each(DeltaStream::stored);
        }
        if self.own.unsaved() {
            self.lone = None;
            self.moved = true;
        }
        self.own.saved(lease, sums, done.at);
        self.tree.forget();
        self.now = done.at;
        self.idempotency = None;
        self.credentials.clear();
        self.in_flight_calls.clear();
        self.not_sent.clear();
    }

    /// What the driver knows and the journal does not. An attempt may still be running until its lease (`grace`) and its
    /// tool's timeout are over, unless its process is `gone`.
    pub(super) fn budget(&self, grace: Duration, gone: impl Fn(&str) -> bool) -> Budget {
        let mut budget = Budget::default();
        for state in self.own.progress.unfinished() {
            let Phase::Started(start) = &state.phase else { continue };
            let over = start.at + start.timeout + grace;
            if !gone(&start.replica) && self.now < over {
                budget.running.insert(state.call.tool_call_id);
            }
        }
        budget
    }
}

/// A model's answer or failure, and the `seq` and time of each item that it was shown.
pub(super) struct Answered {
    fact: Fact,
    shown: Vec<(i64, Time)>,
}

/// Whether somebody outside answered with it, so that it cannot be made again.
fn is_of_the_world(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Succeeded | Outcome::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::draft::tests::{message, row};
    use crate::task::item::{FinishReason, Item, Turn, Usage};
    use uuid::Uuid;

    fn journal(facts: &[Fact], at: Time) -> Journal {
        let items: Vec<_> = facts.iter().cloned().zip(1..).map(|(fact, seq)| Item { seq, at, fact }).collect();
        Journal {
            row: TaskRow { last_seq: i64::try_from(items.len()).unwrap(), ..row() },
            items,
            now: at,
            history_uncertain_until: None,
        }
    }

    #[test]
    fn answer_is_kept_only_where_it_follows_what_the_model_was_shown() {
        let status = |status| Fact::TaskStatus { status, error: None, output: None };
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
        let (shown, at, later) = (vec![status(TaskStatus::Running), message()], Time(1), Time(2));
        let with = |facts: &[&Fact]| shown.iter().chain(facts.iter().copied()).cloned().collect::<Vec<_>>();
        let canceled = status(TaskStatus::Canceled);
        for (name, newer, at, kept) in [
            ("the same journal", with(&[]), at, true),
            ("a late result", with(&[&late]), at, true),
            ("a cancel", with(&[&canceled]), at, false),
            ("the user's next message", with(&[&late, &canceled, &message()]), at, false),
            ("the answer itself", with(&[&answer]), at, false),
            ("a history whose end was lost", shown[..1].to_vec(), at, false),
            ("another history", with(&[]), later, false),
        ] {
            let mut session = TaskSession::read(journal(&shown, Time(1)));
            session.push(answer.clone());
            let answered = session.answer_in_hand();
            session.reread(journal(&newer, at));
            session.answer_again(answered);
            assert_eq!(session.unsaved(), kept, "{name}");
        }
    }
}
