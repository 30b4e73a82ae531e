//! The loop. It asks `next_step`, folds the steps that need no world into the change at hand, commits once before the
//! next effect, and asks again; it ends at `Wait` or `Finish`. Killing the process between any two lines loses at most
//! the effect under way, and that one is found again by its `tool_started`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Engine;
use super::lease::Lease;
use super::live::Live;
use super::unreadable::no_progress;
use crate::agent::Agent;
use crate::task::change::LeaseChange;
use crate::task::decision::Then;
use crate::task::failure::{Failure, FailureCode};
use crate::task::item::{CloseReason, Fact};
use crate::task::standing::Standing;
use crate::task::status::TaskStatus;
use crate::task::step::{Ending, On, Step, next_step};

/// Why a driver stops before the task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Another commit came first; what is in hand was carried over to the new journal: ask again.
    Again,
    /// The task is not ours any more, or whoever opened the door was refused.
    Lost,
}

impl Engine {
    /// Drives a task until it waits, is over, or is not ours any more.
    pub(super) async fn drive(self: Arc<Self>, mut live: Live) {
        while let Ok(true) | Err(Stop::Again) = self.step(&mut live).await {}
        drop(live);
        if self.backlog.load(Ordering::Relaxed) {
            self.room.notify_one();
        }
    }

    /// One step. `false` when there is nothing more to do here.
    async fn step(&self, live: &mut Live) -> Result<bool, Stop> {
        self.refresh(live).await?;
        if Self::left_behind(live) {
            Self::canceled(live);
            self.save(live, LeaseChange::Park { wake_in: None }).await?;
            return Ok(false);
        }
        Self::take_in(live);
        let agent = match self.agent_in_hand(live).await? {
            Ok(agent) => agent,
            Err(failure) => return self.orphaned(live, failure).await,
        };
        let agent = agent.as_ref();
        if self.is_in_vain(live.own.row.fruitless) && live.own.progress.status == Some(TaskStatus::Running) {
            return self.finish(live, Ending::Failed(no_progress())).await;
        }
        match next_step(&live.own.progress, &self.budget(live, agent)) {
            Step::Judge(calls) => self.judge(live, agent, &calls).await,
            Step::Refuse(refusals) => Self::refuse(live, refusals),
            Step::Ask(questions) => self.ask(live, agent, questions).await?,
            Step::Reconcile(calls) => self.reconcile(live, agent, &calls),
            Step::Wait(_) | Step::CallModel | Step::Run(_) | Step::Start(_) if self.is_driven_by_another(live) => {
                self.save(live, LeaseChange::Keep).await?;
                return Ok(false);
            }
            Step::Wait(on) => return self.wait(live, agent, &on).await,
            Step::Finish(ending) => return self.finish(live, ending).await,
            Step::CallModel | Step::Run(_) if self.gives_way(live) => {
                self.save(live, LeaseChange::Queue).await?;
                return Ok(false);
            }
            Step::Start(calls) => self.start(live, agent, &calls).await?,
            Step::CallModel => self.call_model(live, agent).await?,
            Step::Run(calls) => self.run(live, agent, &calls).await?,
        }
        Ok(true)
    }

    /// Whether somebody else has the task in hand, with calls that may be out: he reads what is committed here before he
    /// commits what comes next, and goes on from there. Nobody waits for him with a task that a human has ended.
    fn is_driven_by_another(&self, live: &Live) -> bool {
        let (Some(owner), Some(until)) = (&live.own.row.lease_owner, live.own.row.lease_until) else { return false };
        let lasts = if *owner == self.replica {
            self.leases.holds(live.task_id(), self.clock.uptime())
        } else {
            !self.store.is_sole() && live.now < until
        };
        lasts && live.lease.is_none() && live.own.progress.ending.is_none()
    }

    /// Whether another process, or this one later, is to carry out its next effect.
    fn gives_way(&self, live: &Live) -> bool {
        let to_another = live.moved && live.lone.is_none() && self.alone.is_taken();
        live.slot.is_none() || self.stop.is_cancelled() || to_another
    }

    /// Nobody knows its agent as it was: it can only end. What a human has ended ends as he said.
    async fn orphaned(&self, live: &mut Live, failure: Failure) -> Result<bool, Stop> {
        if live.own.progress.status.is_none_or(TaskStatus::is_terminal) {
            return Ok(false);
        }
        if live.own.progress.ending.is_some() {
            let rest = live.own.progress.unfinished().map(Standing::canceled).collect();
            Self::refuse(live, rest);
            return self.finish(live, Ending::Canceled).await;
        }
        self.finish(live, Ending::Failed(failure)).await
    }

    /// Parks the task: the commit is the parking, so an answer cannot come too early.
    async fn wait(&self, live: &mut Live, agent: &Agent, on: &[On]) -> Result<bool, Stop> {
        if on.contains(&On::Message) && !live.unsaved() {
            return Ok(false);
        }
        let wake_in = self.attempts_over_in(live, agent);
        if wake_in.is_none() && live.own.progress.status == Some(TaskStatus::Running) {
            self.reopen(live).await?;
        }
        self.save(live, LeaseChange::Park { wake_in }).await?;
        Ok(false)
    }

    /// What was over is open again before it can pause or end in another way: the database takes no other change of it.
    async fn reopen(&self, live: &mut Live) -> Result<(), Stop> {
        if live.own.row.status.is_terminal() && live.unsaved() {
            self.save(live, self.take()).await?;
        }
        Ok(())
    }

    pub(super) async fn finish(&self, live: &mut Live, ending: Ending) -> Result<bool, Stop> {
        self.reopen(live).await?;
        let of_tree = live.own.progress.ending == Some(Then::CancelRoot);
        match ending {
            Ending::Completed(text) => {
                let (status, output) = (TaskStatus::Completed, Some(text));
                live.push(Fact::TaskStatus { status, error: None, output });
            }
            Ending::Failed(failure) => live.own.fail(failure, live.now),
            Ending::Canceled => live.own.status(TaskStatus::Canceled, live.now),
        }
        if of_tree {
            let all = live.family.rows().map(|row| row.task_id).collect();
            Self::stop(live, all, CloseReason::Canceled);
        }
        Self::ends(live);
        self.save(live, LeaseChange::Park { wake_in: None }).await?;
        Ok(false)
    }

    /// Asks the model once everything that it is shown is durable.
    async fn call_model(&self, live: &mut Live, agent: &Agent) -> Result<(), Stop> {
        let Some(client) = self.models.get(&agent.model) else {
            let failure = Failure::new(FailureCode::Configuration, format!("There is no model {}.", agent.model));
            return self.finish(live, Ending::Failed(failure)).await.map(|_| ());
        };
        let asked = match self.asks_now(live, agent).await? {
            Ok(asked) => asked,
            Err(limit) => return self.finish(live, Ending::Failed(Failure::limit(limit))).await.map(|_| ()),
        };
        self.save(live, self.take()).await?;
        if live.lease.as_ref().is_some_and(Lease::is_passed_on) {
            // Another driver of this process has the task by now, and asks.
            return Err(Stop::Lost);
        }
        let answer = self.call_model_streaming(live, agent, &**client, asked).await?;
        // That took its time: what holds for the tree may be another thing by now, also where nothing was written.
        live.family.fresh = false;
        match answer {
            Ok(answer) => {
                let answer = self.cleaned(live, answer).await?;
                self.answered(live, answer);
            }
            Err(error) => {
                tracing::warn!(task_id = %live.task_id(), model = %agent.model, status = error.ended.status, reason = error.ended.reason, "the model failed");
                let detail = self.without_secrets(live, &error.detail).await?;
                let failure = Failure::new(FailureCode::ModelFailed, detail);
                self.finish(live, Ending::Failed(failure)).await?;
            }
        }
        Ok(())
    }
}
