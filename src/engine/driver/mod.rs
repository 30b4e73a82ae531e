//! The loop that drives a task: asks `next_step` for the next step, takes the step, and asks again,
//! until `Wait` or `Finish`. A step that only adds facts to the journal leaves these facts pending.
//! The pending facts are committed before the next step that acts outside the journal, such as a
//! model call. So a crash can lose two things: the pending facts, and the results of the last step
//! that acted outside the journal. The next driver computes the pending facts again. It finds the
//! calls without a result, because the start of a call is committed before the call is sent.

mod config_changes;
mod context;
pub(in crate::engine) mod credentials;
mod elicit;
mod finish;
mod grants;
mod hand_over;
mod judge;
mod limits;
mod model_turn;
mod open_requests;
mod prepare_tools;
mod request_spec;
mod send;
mod slots;
mod start_calls;
mod sub_agents;
mod unattempted;
mod uncertainty;
pub(in crate::engine) mod verdict;

use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) use self::context::Driver;
use self::finish::{finish, finish_without_agent, reopen};
use super::Engine;
use super::recovery::damaged_task::{is_out_of_takeovers, no_progress};
use super::session::{Stop, TaskSession};
use crate::store::CommitError;
use crate::task::change::LeaseChange;
use crate::task::status::TaskStatus;
use crate::task::step::{AwaitedEvent, Ending, Step, next_step};

impl Engine {
    /// Drives a task until it waits, ends, is queued, or belongs to another driver. Returns the
    /// session only if the session equals the journal. Returns `None` if the driver had to stop
    /// early ([`Stop::Lost`]), or if facts are still pending. If the driver had to stop before its
    /// first commit, refuses the command that waits for this commit as unavailable.
    pub(in crate::engine) async fn drive(
        self: Arc<Self>,
        mut session: TaskSession,
    ) -> Option<TaskSession> {
        let ended = loop {
            match step(&self, &mut session).await {
                Ok(true) | Err(Stop::Reloaded) => {}
                Ok(false) => break true,
                Err(Stop::Lost) => break false,
            }
        };
        if !ended && let Some(reply) = session.reply.take() {
            let _ = reply.send(Err(CommitError::Unavailable));
        }
        self.await_late_answers(
            session.task_id(),
            std::mem::take(&mut session.late_attempts),
        );
        let session = session.released();
        if self.backlog.load(Ordering::Relaxed) {
            self.wake_worker.notify_one();
        }
        (ended && !session.has_pending_facts()).then_some(session)
    }
}

/// Takes one step. Returns `false` when the driver has nothing more to do.
async fn step(engine: &Engine, session: &mut TaskSession) -> Result<bool, Stop> {
    engine.refresh_tree(session).await?;
    if session.is_abandoned() {
        session.cancel();
        engine.save(session, LeaseChange::PARK).await?;
        return Ok(false);
    }
    if session.own.has_ended() && session.lease.is_some() {
        // Only a commit gives the lease back. Without it, the lease would run out, and the ended
        // task would be claimed again and again.
        engine.save(session, LeaseChange::PARK).await?;
        return Ok(false);
    }
    session.record_sub_agent_results();
    let agent = match engine.load_agent(session).await? {
        Ok(agent) => agent,
        Err(failure) => {
            finish_without_agent(engine, session, failure).await?;
            return Ok(false);
        }
    };
    if is_out_of_takeovers(session.own.row.fruitless)
        && session.own.progress.status == Some(TaskStatus::Running)
    {
        finish(engine, session, Ending::Failed(no_progress())).await?;
        return Ok(false);
    }
    Driver::new(engine, session, &agent).advance().await
}

impl Driver<'_> {
    async fn advance(mut self) -> Result<bool, Stop> {
        let context = self.step_context();
        match next_step(&self.session.own.progress, &context) {
            Step::Judge(calls) => self.judge_calls(&calls).await?,
            Step::Settle(results) => self.session.settle_calls(results),
            Step::OpenRequests(requests) => self.open_requests(requests).await?,
            Step::Elicit(calls) => self.elicit(&calls).await?,
            Step::Reconcile(calls) => self.reconcile(&calls).await?,
            Step::Wait(_)
            | Step::CallModel
            | Step::RunCalls(_)
            | Step::HandOver(_)
            | Step::StartSubAgents(_)
                if context.is_driven_elsewhere =>
            {
                self.save(LeaseChange::Keep).await?;
                return Ok(false);
            }
            Step::Wait(events) => return self.park(&events).await.map(|()| false),
            Step::Finish(ending) => return self.finish(ending).await.map(|()| false),
            Step::CallModel | Step::RunCalls(_) if self.must_queue_task().await => {
                self.save(LeaseChange::Queue).await?;
                return Ok(false);
            }
            Step::StartSubAgents(calls) => self.start_sub_agents(&calls).await?,
            Step::CallModel => self.call_model().await?,
            Step::RunCalls(calls) => self.start_calls(&calls).await?,
            Step::HandOver(call) => return self.hand_over(call).await,
        }
        Ok(true)
    }

    /// Whether another driver holds the lease of the task, and may have calls in flight. On `true`,
    /// the caller commits the facts of this driver and stops. The other driver reads these facts
    /// before its next commit, and continues the task. Returns `false` if a decision or a deadline
    /// demands the end of the task: this driver then ends the task itself.
    fn is_driven_elsewhere(&self) -> bool {
        let (engine, own) = (self.engine, &self.session.own);
        let (Some(owner), Some(until)) = (&own.row.lease_owner, own.row.lease_until) else {
            return false;
        };
        let lasts = if *owner == engine.replica {
            engine.leases.holds(own.task_id(), engine.clock.uptime())
        } else {
            !engine.store.is_sole() && self.session.now < until
        };
        lasts && self.session.lease.is_none() && own.progress.ending.is_none()
    }

    /// Parks the task until a later commit or a timer wakes it. The commit that parks the task also
    /// opens its requests, so no answer can come before the task is parked. An ended task gets no
    /// timer: people are asked about its started calls only once a command has continued the task.
    async fn park(&mut self, events: &[AwaitedEvent]) -> Result<(), Stop> {
        if events.contains(&AwaitedEvent::Message) && !self.session.has_pending_facts() {
            return Ok(());
        }
        let wake_in = self
            .time_until_attempts_end()
            .or_else(|| self.time_until_late())
            .filter(|_| !self.session.own.has_ended());
        if wake_in.is_none() && self.session.own.progress.status == Some(TaskStatus::Running) {
            reopen(self.engine, self.session).await?;
        }
        self.save(LeaseChange::Park { wake_in }).await
    }
}
