//! The loop. It asks `next_step`, folds the steps that need no world into the change at hand, commits once before the
//! next effect, and asks again; it ends at `Wait` or `Finish`. Killing the process between any two lines loses at most
//! the effect under way, and that one is found again by its `tool_started`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Engine;
use super::lease::Lease;
use super::session::TaskSession;
use crate::agent::Agent;
use crate::store::BESIDE;
use crate::task::change::{LeaseChange, TaskRow};
use crate::task::decision::Then;
use crate::task::failure::{Failure, FailureCode};
use crate::task::item::{CloseReason, Fact};
use crate::task::call_state::CallState;
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
    pub(super) async fn drive(self: Arc<Self>, mut session: TaskSession) {
        while let Ok(true) | Err(Stop::Again) = self.step(&mut session).await {}
        drop(session);
        if self.backlog.load(Ordering::Relaxed) {
            self.room.notify_one();
        }
    }

    /// One step. `false` when there is nothing more to do here.
    async fn step(&self, session: &mut TaskSession) -> Result<bool, Stop> {
        self.refresh(session).await?;
        if Self::left_behind(session) {
            Self::canceled(session);
            self.save(session, LeaseChange::Park { wake_in: None }).await?;
            return Ok(false);
        }
        Self::take_in(session);
        let agent = match self.agent_in_hand(session).await? {
            Ok(agent) => agent,
            Err(failure) => return self.orphaned(session, failure).await,
        };
        let agent = agent.as_ref();
        if self.is_in_vain(&session.own.row) && session.own.progress.status == Some(TaskStatus::Running) {
            let detail = "The task was taken over again and again without getting any further.";
            return self.finish(session, Ending::Failed(Failure::new(FailureCode::NoProgress, detail))).await;
        }
        match next_step(&session.own.progress, &self.budget(session, agent)) {
            Step::Judge(calls) => self.judge(session, agent, &calls).await,
            Step::Settle(refusals) => Self::refuse(session, refusals),
            Step::Ask(questions) => self.ask(session, agent, questions).await?,
            Step::Reconcile(calls) => self.reconcile(session, agent, &calls),
            Step::Wait(_) | Step::CallModel | Step::Run(_) | Step::Start(_) if self.is_driven_by_another(session) => {
                self.save(session, LeaseChange::Keep).await?;
                return Ok(false);
            }
            Step::Wait(on) => return self.wait(session, agent, &on).await,
            Step::Finish(ending) => return self.finish(session, ending).await,
            Step::CallModel | Step::Run(_) if self.gives_way(session) => {
                self.save(session, LeaseChange::Queue).await?;
                return Ok(false);
            }
            Step::Start(calls) => self.start(session, agent, &calls).await?,
            Step::CallModel => self.call_model(session, agent).await?,
            Step::Run(calls) => self.run(session, agent, &calls).await?,
        }
        Ok(true)
    }

    /// Whether somebody else has the task in hand, with calls that may be out: he reads what is committed here before he
    /// commits what comes next, and goes on from there. Nobody waits for him with a task that a human has ended.
    fn is_driven_by_another(&self, session: &TaskSession) -> bool {
        let (Some(owner), Some(until)) = (&session.own.row.lease_owner, session.own.row.lease_until) else { return false };
        let lasts = if *owner == self.replica {
            self.leases.holds(session.task_id(), self.clock.uptime())
        } else {
            !self.store.is_sole() && session.now < until
        };
        lasts && session.lease.is_none() && session.own.progress.ending.is_none()
    }

    /// Whether another process, or this one later, is to carry out its next effect.
    fn gives_way(&self, session: &TaskSession) -> bool {
        let to_another = session.moved && session.lone.is_none() && self.alone.is_taken();
        session.slot.is_none() || self.stop.is_cancelled() || to_another
    }

    /// Whether as many processes as may be have died of a task, or with it, that they drove alone.
    pub(super) fn is_in_vain(&self, row: &TaskRow) -> bool {
        row.fruitless >= BESIDE + self.settings.takeovers
    }

    /// Nobody knows its agent as it was: it can only end. What a human has ended ends as he said.
    async fn orphaned(&self, session: &mut TaskSession, failure: Failure) -> Result<bool, Stop> {
        if session.own.progress.status.is_none_or(TaskStatus::is_terminal) {
            return Ok(false);
        }
        if session.own.progress.ending.is_some() {
            let rest = session.own.progress.unfinished().map(CallState::canceled).collect();
            Self::refuse(session, rest);
            return self.finish(session, Ending::Canceled).await;
        }
        self.finish(session, Ending::Failed(failure)).await
    }

    /// Parks the task: the commit is the parking, so an answer cannot come too early.
    async fn wait(&self, session: &mut TaskSession, agent: &Agent, on: &[On]) -> Result<bool, Stop> {
        if on.contains(&On::Message) && !session.unsaved() {
            return Ok(false);
        }
        let wake_in = self.attempts_over_in(session, agent);
        if wake_in.is_none() && session.own.progress.status == Some(TaskStatus::Running) {
            self.reopen(session).await?;
        }
        self.save(session, LeaseChange::Park { wake_in }).await?;
        Ok(false)
    }

    /// What was over is open again before it can pause or end in another way: the database takes no other change of it.
    async fn reopen(&self, session: &mut TaskSession) -> Result<(), Stop> {
        if session.own.row.status.is_terminal() && session.unsaved() {
            self.save(session, self.take()).await?;
        }
        Ok(())
    }

    pub(super) async fn finish(&self, session: &mut TaskSession, ending: Ending) -> Result<bool, Stop> {
        self.reopen(session).await?;
        let of_tree = session.own.progress.ending == Some(Then::CancelRoot);
        match ending {
            Ending::Completed(text) => {
                let (status, output) = (TaskStatus::Completed, Some(text));
                session.push(Fact::TaskStatus { status, error: None, output });
            }
            Ending::Failed(failure) => session.own.fail(failure, session.now),
            Ending::Canceled => session.own.status(TaskStatus::Canceled, session.now),
        }
        if of_tree {
            let all = session.tree.rows().map(|row| row.task_id).collect();
            Self::stop(session, all, CloseReason::Canceled);
        }
        Self::ends(session);
        self.save(session, LeaseChange::Park { wake_in: None }).await?;
        Ok(false)
    }

    /// Asks the model once everything that it is shown is durable.
    async fn call_model(&self, session: &mut TaskSession, agent: &Agent) -> Result<(), Stop> {
        let Some(client) = self.models.get(&agent.model) else {
            let failure = Failure::new(FailureCode::Configuration, format!("There is no model {}.", agent.model));
            return self.finish(session, Ending::Failed(failure)).await.map(|_| ());
        };
        let asked = match self.asks_now(session, agent).await? {
            Ok(asked) => asked,
            Err(limit) => return self.finish(session, Ending::Failed(Failure::limit(limit))).await.map(|_| ()),
        };
        self.save(session, self.take()).await?;
        if session.lease.as_ref().is_some_and(Lease::is_passed_on) {
            // Another driver of this process has the task by now, and asks.
            return Err(Stop::Lost);
        }
        let answer = self.call_model_streaming(session, agent, &**client, asked).await?;
        // That took its time: what holds for the tree may be another thing by now, also where nothing was written.
        session.tree.fresh = false;
        match answer {
            Ok(answer) => {
                let answer = self.cleaned(session, answer).await?;
                self.answered(session, answer);
            }
            Err(error) => {
                tracing::warn!(task_id = %session.task_id(), model = %agent.model, status = error.ended.status, reason = error.ended.reason, "the model failed");
                let detail = self.without_secrets(session, &error.detail).await?;
                let failure = Failure::new(FailureCode::ModelFailed, detail);
                self.finish(session, Ending::Failed(failure)).await?;
            }
        }
        Ok(())
    }
}
