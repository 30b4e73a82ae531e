//! The random steps of a run (one random sequence of events at a gate): actions of askers, people
//! and processes, and the passing of time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::gate::{AskProgress, Identity, OutcomeReport, Proposal, ReportedOutcome};
use holdpoint::engine::{CallReply, DecisionBody, DecisionInput};
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Item};
use holdpoint::task::request::{RequestKind, RequestSpec};
use serde_json::Value;
use tokio::task::JoinHandle;

use super::super::engine_harness::{alice, whole};
use super::super::gates::agent;
use super::super::worker_steps::WorkerSteps as _;
use super::invariants::call_of;
use super::{Ask, CALLS, Presence, ProposedCall, Replica, RunState, WAIT};

const POLLS: u32 = 400;

impl RunState<'_> {
    pub(super) async fn step(&mut self) {
        match self.rng.below(30) {
            0..=8 => self.asks().await,
            9..=10 => self.leaves().await,
            11..=15 => self.decides().await,
            16 => self.cancels().await,
            17..=18 => self.reports().await,
            19 => self.works().await,
            20 => self.hangs(),
            21..=22 => self.crashes().await,
            23 => {
                let jump = self.rng.pick(&[11, 11, 70, 200]);
                self.later(Duration::from_mins(jump)).await;
            }
            _ => self.redefines().await,
        }
    }

    fn any_replica(&mut self) -> usize {
        let count = self.replicas.len() as u64;
        usize::try_from(self.rng.below(count)).unwrap()
    }

    /// Lets `work` run in parallel with the next steps. In half of the cases, waits for all
    /// parallel work.
    async fn beside_or_not(&mut self, work: JoinHandle<()>) {
        self.beside.push(work);
        if self.rng.one_in(2) {
            self.polls().await;
        }
    }

    /// Waits until all spawned tasks in `beside` have ended, but yields at most `POLLS` times.
    async fn polls(&mut self) {
        for _ in 0..POLLS {
            if self.beside.iter().all(JoinHandle::is_finished) {
                break;
            }
            tokio::task::yield_now().await;
        }
    }

    pub(super) async fn asks(&mut self) {
        let call = self.rng.pick(&self.calls.clone());
        let ProposedCall {
            gate,
            tool,
            spellings,
        } = CALLS[call];
        let key = format!("{} {call} {}", self.session, self.rng.below(2));
        let known = self.tasks().await;
        let identity = match self.rng.below(10) {
            1 if !known.is_empty() => Identity::CallOrKey {
                task: self.rng.pick(&known),
                key,
            },
            0..=1 => Identity::Key { key, attach: false },
            2 => Identity::Key { key, attach: true },
            3 if !known.is_empty() => Identity::Call(self.rng.pick(&known)),
            _ => Identity::Value,
        };
        let by_bytes = identity == Identity::Value;
        let spelling = if by_bytes {
            self.rng.pick(&spellings)
        } else {
            spellings[0]
        };
        let runner = self.rng.pick(&[None, None, Some("r1"), Some("r2")]);
        let progress = AskProgress::default();
        let proposal = Proposal {
            gate: Some(gate.to_owned()),
            tool: tool.to_owned(),
            arguments_text: spelling.to_owned(),
            session_id: Some(self.session.clone()),
            context: String::new(),
            metadata: "{}".to_owned(),
            identity,
            runner: runner.map(str::to_owned),
            wait: self.rng.pick(&[Duration::ZERO, WAIT, WAIT]),
            run_wait: Duration::ZERO,
            returns_within: Duration::ZERO,
            progress: progress.clone(),
        };
        let replica = self.any_replica();
        let from = self.now().await;
        let engine = Arc::clone(&self.replicas[replica].engine);
        let handle = self.replicas[replica]
            .spawn(async move { engine.gates().ask(&agent(), &proposal, None).await });
        self.last_ask += 1;
        self.presences.push(Presence {
            ask: self.last_ask,
            call,
            from,
            until: None,
        });
        self.asks.push(Ask {
            number: self.last_ask,
            call,
            by_bytes,
            runner,
            replica,
            progress,
            handle,
        });
        if !self.rng.one_in(4) {
            self.until_shown().await;
        }
    }

    /// Waits until the last ask is answered or its call waits for a person. Gives up after `POLLS`
    /// polls.
    async fn until_shown(&mut self) {
        let ask = self.asks.last().unwrap();
        for _ in 0..POLLS {
            if ask.handle.is_finished() || ask.progress.request().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Aborts a random ask that still waits for its answer, as if the asker had disconnected.
    async fn leaves(&mut self) {
        if self.asks.is_empty() {
            return;
        }
        let place = usize::try_from(self.rng.below(self.asks.len() as u64)).unwrap();
        let ask = &self.asks[place];
        ask.handle.abort();
        while !ask.handle.is_finished() {
            tokio::task::yield_now().await;
        }
        let (number, call) = (ask.number, ask.call);
        self.answers().await;
        let others = self.asks.iter().any(|other| other.call == call);
        if others || self.crashed_lately {
            return;
        }
        // The store soon shows that the asker has left.
        self.seen.leaves += 1;
        let mut polls = 0;
        while self.is_awaited(call).await {
            polls += 1;
            assert!(
                polls < 3_000,
                "seed {}: the presence of ask {number} stays: {}",
                self.seed,
                self.journals().await
            );
            // The replica's only thread may be suspended for longer than many polls take.
            if polls > 1_000 {
                crate::support::pause().await;
            } else {
                tokio::task::yield_now().await;
            }
        }
        let now = self.now().await;
        for presence in &mut self.presences {
            if presence.call == call {
                presence.until.get_or_insert(now);
            }
        }
    }

    async fn journals(&self) -> String {
        let mut text = String::new();
        for task in self.tasks().await {
            let journal = self.harness.journal(task).await;
            let row = &journal.row;
            let _ = write!(
                text,
                "\n{task} asker {:?} version {}",
                row.asker_until, row.version
            );
            for item in &journal.items {
                let _ = write!(text, "\n  {} {} {:?}", item.seq, item.at.0, item.fact);
            }
        }
        text
    }

    /// Returns whether a stored task of this call has not ended and a client (the asker) still
    /// waits for the call.
    async fn is_awaited(&self, call: usize) -> bool {
        let now = self.now().await;
        for task in self.live_tasks().await {
            let journal = self.harness.journal(task).await;
            let until = journal.row.asker_until.unwrap_or_default();
            if call_of(&journal) == call
                && !journal.row.status.is_terminal()
                && until > now
                && until != holdpoint::task::change::ASKER_UNTIL_DELIVERED
            {
                return true;
            }
        }
        false
    }

    async fn open(&self) -> Vec<(TaskId, RequestSpec)> {
        let mut open = Vec::new();
        for task in self.live_tasks().await {
            let asked = self.harness.open_specs(task).await;
            open.extend(asked.into_iter().map(|asked| (task, asked)));
        }
        open
    }

    async fn decides(&mut self) {
        let open = self.open().await;
        if open.is_empty() {
            return;
        }
        let (_, asked) = self.rng.pick(&open);
        let call = asked.own_calls().next().unwrap();
        let (id, name) = (call.tool_call_id.to_string(), call.name.clone());
        let answer = if asked.kind == RequestKind::Reconcile {
            match self.rng.below(3) {
                0 => whole(Action::Reject, None),
                1 => whole(Action::Respond, Some(Value::from("it ran"))),
                _ => whole(Action::Retry, None),
            }
        } else {
            match self.rng.below(10) {
                0 => whole(Action::Reject, None),
                1 => one(id, Action::Respond, None, Some("\"done by hand\"")),
                2..=5 if name == "refund" => {
                    one(id, Action::Edit, Some(r#"{"order":7,"amount":50}"#), None)
                }
                2..=3 if name == "Bash" => {
                    one(id, Action::Edit, Some(r#"{"command":"test"}"#), None)
                }
                _ => whole(Action::Approve, None),
            }
        };
        let replica = self.any_replica();
        let engine = Arc::clone(&self.replicas[replica].engine);
        let decided = self.replicas[replica].spawn(async move {
            let _ = engine
                .decide(&alice(), asked.request_id, answer, None)
                .await;
        });
        self.beside_or_not(decided).await;
    }

    pub(super) async fn settle(&mut self, task: TaskId) {
        for asked in self.harness.open_specs(task).await {
            let reconcile = asked.kind == RequestKind::Reconcile;
            let answer = if reconcile && self.rng.one_in(2) {
                whole(Action::Respond, Some(Value::from("it ran")))
            } else {
                whole(Action::Reject, None)
            };
            let engine = Arc::clone(&self.replicas[0].engine);
            let decided = self.replicas[0].spawn(async move {
                let _ = engine
                    .decide(&alice(), asked.request_id, answer, None)
                    .await;
            });
            decided.await.unwrap();
        }
    }

    async fn cancels(&mut self) {
        let known = self.tasks().await;
        if known.is_empty() {
            return;
        }
        let task = self.rng.pick(&known);
        let replica = self.any_replica();
        let engine = Arc::clone(&self.replicas[replica].engine);
        let canceled = self.replicas[replica].spawn(async move {
            let _ = engine.cancel(&alice(), task, None).await;
        });
        self.beside_or_not(canceled).await;
    }

    async fn reports(&mut self) {
        let permits: Vec<_> = self.permits.keys().copied().collect();
        if permits.is_empty() {
            return;
        }
        let (task, attempt) = self.rng.pick(&permits);
        let report = OutcomeReport {
            call: Ok(task),
            attempt: self.rng.pick(&[None, Some(attempt)]),
            outcome: self.rng.pick(&[
                ReportedOutcome::Succeeded,
                ReportedOutcome::Succeeded,
                ReportedOutcome::Failed,
                ReportedOutcome::Unknown,
            ]),
            content: "reported".to_owned(),
        };
        let replica = self.any_replica();
        let engine = Arc::clone(&self.replicas[replica].engine);
        let reported = self.replicas[replica].spawn(async move {
            let _ = engine.gates().report(&agent(), &report, None).await;
        });
        self.beside_or_not(reported).await;
    }

    /// Lets a worker of a random replica close the overdue requests and drive the due tasks.
    async fn works(&mut self) {
        let replica = self.any_replica();
        let work = self.claims(replica);
        self.beside_or_not(work).await;
    }

    fn claims(&self, replica: usize) -> JoinHandle<()> {
        let engine = Arc::clone(&self.replicas[replica].engine);
        self.replicas[replica].spawn(async move {
            let _ = engine.worker().expire().await;
            for driver in engine.claim().await.unwrap_or_default() {
                driver.await;
            }
        })
    }

    fn hangs(&mut self) {
        if self.rng.one_in(2) {
            self.harness.tool.close();
        } else {
            self.harness.tool.open();
        }
    }

    /// Changes the definition of `refund` at its server, or restores it. Before the change, a
    /// person may answer a request. After the change, an asker may ask.
    async fn redefines(&mut self) {
        self.decides().await;
        let waits = self.refund_waits().await;
        let is_changed = match self.rng.below(5) {
            0..=1 => self.server.restore(),
            denied => {
                self.server.change(denied == 2);
                true
            }
        };
        self.seen.changes += usize::from(waits && is_changed);
        if self.rng.one_in(2) {
            self.asks().await;
        }
    }

    /// Returns whether a call of `refund` has not ended and was never started.
    async fn refund_waits(&self) -> bool {
        for task in self.live_tasks().await {
            let journal = self.harness.journal(task).await;
            let started = |item: &Item| matches!(item.fact, Fact::ToolStarted { .. });
            if CALLS[call_of(&journal)].tool == "refund"
                && !journal.row.status.is_terminal()
                && !journal.items.iter().any(started)
            {
                return true;
            }
        }
        false
    }

    /// Kills a random process and starts another process, whose rules and whose reviewed definition
    /// of `refund` may differ.
    async fn crashes(&mut self) {
        let replica = self.any_replica();
        self.restarts(replica);
        self.crashes += 1;
        self.crashed_lately = true;
        self.seen.crashes += 1;
        self.answers().await;
    }

    fn restarts(&mut self, replica: usize) {
        let rules = self.rng.pick(&[0, 0, 0, 0, 1, 2]);
        let is_other = self.reviews.one_in(4);
        self.seen.other_reviews += usize::from(is_other);
        let next = Replica::start(&self.rules[rules][usize::from(is_other)]);
        std::mem::replace(&mut self.replicas[replica], next).crash();
    }

    /// Lets `time` pass. If an ask or parallel work still runs, first kills and replaces all
    /// processes, so that no ask and no work runs while the time passes. Otherwise, replaces all
    /// processes with a probability of 1/4.
    pub(super) async fn later(&mut self, time: Duration) {
        self.harness.tool.open();
        self.polls().await;
        let idle = self.asks.is_empty() && self.beside.iter().all(JoinHandle::is_finished);
        if !idle || self.rng.one_in(4) {
            for replica in 0..self.replicas.len() {
                self.restarts(replica);
            }
        }
        self.answers().await;
        for work in std::mem::take(&mut self.beside) {
            let _ = work.await;
        }
        // The parallel work and the replaced processes may have queued tasks with their last
        // commits. Claims and drives these tasks before the time passes.
        for replica in 0..self.replicas.len() {
            self.claims(replica).await.unwrap();
        }
        self.crashes += 1;
        self.crashed_lately = false;
        self.harness.fixture.forward(time);
        let now = self.now().await;
        for presence in &mut self.presences {
            presence.until.get_or_insert(now);
        }
        for _ in 0..2 {
            for replica in 0..self.replicas.len() {
                self.claims(replica).await.unwrap();
            }
        }
    }
}

fn one(id: String, action: Action, arguments: Option<&str>, result: Option<&str>) -> DecisionInput {
    let reply = CallReply {
        action,
        reason: None,
        then: None,
        arguments: arguments.map(str::to_owned),
        result: result.map(str::to_owned),
        remember: None,
    };
    let body = DecisionBody::PerCall(BTreeMap::from([(id, reply)]));
    DecisionInput { digest: None, body }
}
