//! A task while somebody works on it: its journal as it was read, and what the next commit will add.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::flight::Flight;
use super::lease::Lease;
use crate::store::CommitError;
use crate::task::change::{
    Change, Committed, Counters, Guard, IdempotencyRow, Journal, LeaseChange, TaskChange, TaskRow,
};
use crate::task::credential::SealedCredential;
use crate::task::id::{CallId, ChangeId, RequestId, TaskId};
use crate::task::item::{CloseReason, Fact, Item, Outcome, ToolResult, Usage};
use crate::task::limits::Limits;
use crate::task::request::call_digest;
use crate::task::standing::{Phase, Standing};
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::step::Budget;
use crate::task::time::Time;
use crate::task::tool_spec::ToolSpec;
use crate::task::turn::Progress;

/// A task in hand. Facts that are pushed count at once for `next_step`; they are durable after the next commit.
pub(super) struct Live {
    /// The row as of the last read or commit.
    pub row: TaskRow,
    /// Where it stands, pushed facts included.
    pub progress: Progress,
    /// The journal, pushed facts included.
    pub items: Vec<Item>,
    /// The database's clock at the last read or commit.
    pub now: Time,
    /// Up to when its history was in doubt at the last reading.
    pub doubted_at: Option<Time>,
    /// Inserted by its first commit.
    pub guard: Option<Guard>,
    /// How many of the items are committed.
    pub committed: usize,
    /// The next commit writes the row's agent version.
    pub repinned: bool,
    /// Goes into the next commit.
    pub idempotency: Option<IdempotencyRow>,
    /// What was filled in, sealed: goes into the next commit.
    pub credentials: Vec<SealedCredential>,
    /// Who waits for the next commit: the operation that this is the effect of. Told once.
    pub door: Option<oneshot::Sender<Result<Committed, CommitError>>>,
    /// Attempts that this process made and that ended without an answer: what went wrong.
    pub unknown: BTreeMap<CallId, String>,
    /// Attempts of this process that were provably never sent, by their number: that says nothing about any other attempt.
    pub not_sent: BTreeMap<CallId, u32>,
    /// Calls whose answer is pushed and not durable: nobody else may ask what became of them.
    pub flights: Vec<Flight>,
    /// When the last commit was handed over, by the machine's uptime.
    pub saved_since: Duration,
    /// The hold on the task, once it is taken.
    pub lease: Option<Lease>,
    /// The right to run in this process; without one the task is queued at its next effect.
    pub slot: Option<OwnedSemaphorePermit>,
}

impl Live {
    pub(super) fn read(journal: Journal) -> Self {
        let progress = Progress::doubting(&journal.items, journal.doubted_at);
        let committed = journal.items.len();
        Self {
            row: journal.row,
            progress,
            items: journal.items,
            now: journal.now,
            doubted_at: journal.doubted_at,
            guard: None,
            committed,
            repinned: false,
            idempotency: None,
            credentials: Vec::new(),
            door: None,
            unknown: BTreeMap::new(),
            not_sent: BTreeMap::new(),
            flights: Vec::new(),
            saved_since: Duration::ZERO,
            lease: None,
            slot: None,
        }
    }

    /// Takes a newer reading of the same task; what was pushed and not committed is forgotten, but for results.
    pub(super) fn reread(&mut self, journal: Journal) {
        let in_hand = self.results_in_hand();
        self.progress = Progress::doubting(&journal.items, journal.doubted_at);
        self.doubted_at = journal.doubted_at;
        self.committed = journal.items.len();
        self.row = journal.row;
        self.repinned = false;
        self.credentials.clear();
        self.items = journal.items;
        self.now = journal.now;
        for result in in_hand.into_iter().filter(|result| self.still_says(result)).collect::<Vec<_>>() {
            self.settle(result);
        }
    }

    pub(super) fn push(&mut self, fact: Fact) {
        let seq = i64::try_from(self.items.len()).unwrap_or(i64::MAX).saturating_add(1);
        let item = Item { seq, at: self.now, fact };
        self.progress.apply(&item);
        self.items.push(item);
    }

    pub(super) fn task_id(&self) -> TaskId {
        self.row.task_id
    }

    pub(super) fn unsaved(&self) -> bool {
        self.committed < self.items.len()
    }

    /// What came of calls, and is not durable.
    pub(super) fn results_in_hand(&self) -> Vec<ToolResult> {
        let pushed = self.items.get(self.committed..).unwrap_or_default();
        pushed
            .iter()
            .filter_map(|item| match &item.fact {
                Fact::ToolResult(result) | Fact::LateResult(result) if is_of_the_world(result.outcome) => {
                    Some(result.clone())
                }
                Fact::ToolResult(_)
                | Fact::LateResult(_)
                | Fact::TaskStatus { .. }
                | Fact::UserMessage { .. }
                | Fact::AssistantMessage(_)
                | Fact::Judged { .. }
                | Fact::InterventionRequested(_)
                | Fact::Decision { .. }
                | Fact::RequestClosed { .. }
                | Fact::ToolStarted { .. }
                | Fact::SubAgentStarted { .. } => None,
            })
            .collect()
    }

    /// Whether a result is about the call as it stands now. That an attempt was not sent says nothing once there was
    /// another one, or somebody was asked.
    fn still_says(&self, result: &ToolResult) -> bool {
        let Some(attempt) = self.not_sent.get(&result.tool_call_id) else { return true };
        let standing = self.progress.call(result.tool_call_id);
        standing.is_some_and(|call| call.attempts == *attempt && call.phase == Phase::Done(Outcome::Unknown))
    }

    /// Whether this very result is written already (a commit whose answer was lost).
    fn written(&self, result: &ToolResult) -> bool {
        self.items
            .iter()
            .any(|item| matches!(&item.fact, Fact::ToolResult(known) | Fact::LateResult(known) if known == result))
    }

    /// A result is never thrown away: it is the call's result, or closes the question about it, or is a late one.
    pub(super) fn settle(&mut self, result: ToolResult) {
        if self.written(&result) {
            return;
        }
        let standing = self.progress.call(result.tool_call_id);
        // The history that knew of its start was lost; this is what became of it.
        let forgotten = standing.is_some_and(Standing::ready_in_doubt);
        match standing.map(|standing| standing.phase.clone()) {
            Some(Phase::Doubtful(request_id)) => {
                self.push(Fact::RequestClosed {
                    request_id,
                    status: RequestStatus::Withdrawn,
                    reason: CloseReason::AnsweredLate,
                });
                self.goes_on();
                self.push(Fact::ToolResult(result));
            }
            // Between a human's `retry` and the new attempt, too, the first attempt's answer is the call's result.
            Some(Phase::Started(_) | Phase::Approved(_) | Phase::Refused(Outcome::Unknown, _)) => {
                self.push(Fact::ToolResult(result));
            }
            Some(Phase::Allowed) if forgotten => self.push(Fact::ToolResult(result)),
            Some(
                Phase::New
                | Phase::Allowed
                | Phase::Held(_)
                | Phase::Human(_)
                | Phase::Asked(_)
                | Phase::Refused(..)
                | Phase::Done(_),
            )
            | None => self.push(Fact::LateResult(result)),
        }
    }

    /// What happened to a question lets a paused task go on, where something follows that waits for nobody.
    pub(super) fn goes_on(&mut self) {
        if self.progress.status == Some(TaskStatus::Paused) && self.progress.goes_on() {
            self.push(Fact::TaskStatus { status: TaskStatus::Running, error: None, output: None });
        }
    }

    /// Writes down that these requests are closed, and why.
    pub(super) fn withdraw_open(&mut self, reason: CloseReason) {
        let open: Vec<_> = self.progress.open.iter().map(|open| open.asked.request_id).collect();
        for request_id in open {
            self.push(Fact::RequestClosed { request_id, status: RequestStatus::Withdrawn, reason });
        }
    }

    /// The change that makes what was pushed durable. `seq` and version follow from the row that was read.
    pub(super) fn change(&self, id: ChangeId, lease: LeaseChange) -> Change {
        Change {
            id,
            root: self.row.root_task_id,
            tasks: vec![TaskChange {
                task_id: self.row.task_id,
                guard: self.guard.clone().unwrap_or(Guard::Version(self.row.version)),
                counters: self.counters(),
                facts: self.pushed().cloned().collect(),
                last_seq: self.row.last_seq,
                agent_version: self.repinned.then(|| self.row.agent_version.clone()),
                lease,
                credentials: self.credentials.clone(),
            }],
            resumed: self.resumed(),
            idempotency: self.idempotency.clone(),
        }
    }

    /// The digest of one of its calls, as it would run now under `rule`.
    pub(super) fn digest(&self, tool: &ToolSpec, call: CallId, arguments_text: &str, rule: Option<&str>) -> String {
        call_digest(&self.row.tenant, self.row.task_id, call, tool.into(), arguments_text, rule)
    }

    /// What is pinned to a version of the agent is, from the next commit on, pinned to this one.
    pub(super) fn pin(&mut self, version: &str) {
        if self.row.agent_version != version {
            version.clone_into(&mut self.row.agent_version);
            self.repinned = true;
        }
    }

    /// Requests whose decisions take effect with the next commit: nothing of the turn is asked any more.
    fn resumed(&self) -> Vec<RequestId> {
        if self.progress.is_blocked() { Vec::new() } else { self.progress.responded.clone() }
    }

    /// The facts that the next commit will write.
    fn pushed(&self) -> impl Iterator<Item = &Fact> {
        self.items.get(self.committed..).unwrap_or_default().iter().map(|item| &item.fact)
    }

    /// The names of what the next commit does: the types of its items, and what becomes of the lease.
    pub(super) fn points<'l>(&'l self, lease: &LeaseChange) -> impl Iterator<Item = &'static str> + use<'l> {
        let lease = match lease {
            LeaseChange::Keep => "keep",
            LeaseChange::Take { .. } => "take",
            LeaseChange::Queue => "queue",
            LeaseChange::Park { .. } => "park",
        };
        self.pushed().map(Fact::type_name).chain([lease])
    }

    fn counters(&self) -> Counters {
        let mut usage = Usage::default();
        let mut model_calls = 0;
        for fact in self.pushed() {
            if let Fact::AssistantMessage(turn) = fact {
                usage.prompt_tokens += turn.usage.prompt_tokens;
                usage.completion_tokens += turn.usage.completion_tokens;
                usage.total_tokens += turn.usage.total_tokens;
                model_calls += 1;
            }
        }
        let runs = i32::from(self.progress.status == Some(TaskStatus::Running));
        let open = i32::try_from(self.progress.open.len()).unwrap_or(i32::MAX);
        Counters { busy: runs - self.row.busy, open_requests: open - self.row.open_requests, usage, model_calls }
    }

    /// What was pushed is durable.
    pub(super) fn saved(&mut self, done: Committed) {
        let counters = self.counters();
        self.row.busy += counters.busy;
        self.row.open_requests += counters.open_requests;
        self.row.version += 1;
        self.row.status = self.progress.status.unwrap_or(self.row.status);
        self.row.last_seq = i64::try_from(self.items.len()).unwrap_or(i64::MAX);
        for item in self.items.iter_mut().skip(self.committed) {
            item.at = done.at;
        }
        let pushed = self.items.get(self.committed..).unwrap_or_default();
        self.progress.committed(pushed.iter().map(|item| &item.fact), done.at);
        super::measure::observe(&self.items, self.committed);
        self.committed = self.items.len();
        self.now = done.at;
        for request in self.resumed() {
            self.progress.responded.retain(|known| *known != request);
        }
        self.guard = None;
        self.repinned = false;
        self.idempotency = None;
        self.credentials.clear();
        self.flights.clear();
        self.not_sent.clear();
    }

    /// What the driver knows and the journal does not. An attempt may still be running until its lease (`grace`) and its
    /// tool's timeout are over, unless its process is `gone`.
    pub(super) fn budget(&self, limits: &Limits, grace: Duration, gone: impl Fn(&str) -> bool) -> Budget {
        let mut budget = Budget::default();
        let ran = self.progress.ran + self.progress.running_since.map_or(Duration::ZERO, |since| self.now.since(since));
        if self.progress.turns_since_message >= limits.max_model_calls {
            budget.spent = Some("max_model_calls");
        } else if ran >= limits.max_duration {
            budget.spent = Some("max_duration");
        } else if self.progress.repeats > limits.max_rejections {
            budget.spent = Some("max_rejections");
        }
        for standing in self.progress.unfinished() {
            let Phase::Started(start) = &standing.phase else { continue };
            let over = start.at + start.timeout + grace;
            if !gone(&start.replica) && self.now < over {
                budget.running.insert(standing.call.tool_call_id);
            }
        }
        budget
    }
}

/// Whether somebody outside answered with it, so that it cannot be made again.
fn is_of_the_world(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Succeeded | Outcome::Failed)
}
