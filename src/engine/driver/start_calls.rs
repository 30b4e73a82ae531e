//! Starts calls that may run: judges each call once more, journals its start, and sends it. Each
//! attempt is sent at most once. Invariant: a permit is decided after the start is committed, and
//! the tool asks for the permit right before it sends the first byte.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join_all, maybe_done, select};
use tokio::sync::OwnedSemaphorePermit;

use super::prepare_tools::ToolPreparation;
use super::{Driver, Stop};
use crate::engine::recovery::integrity::approval_damage;
use crate::failpoint;
use crate::store::CommitError;
use crate::task::call_state::{CallState, Phase};
use crate::task::elicitation::Resume;
use crate::task::id::CallId;
use crate::task::item::{Fact, Item};
use crate::task::step::{Ending, StepContext};
use crate::task::tool_spec::ToolSpec;
use crate::tool::credential::Credentials;
use crate::tool::{AttemptPermit, Invocation, PermitDecision, Tool, ToolAnswer, arguments};

type ToolAttempt = (Arc<dyn Tool>, Invocation);

/// Attempts, and the handles that decide their permits. Both lists have the same order.
type ToolAttempts = (Vec<ToolAttempt>, Vec<PermitDecision>);

/// The current definition of each call's tool: the reviewed definition, unless the tool's server
/// has shown this task a changed definition.
type PresentTools<'e> = BTreeMap<CallId, Cow<'e, ToolSpec>>;

impl<'e> Driver<'e> {
    /// Starts and sends those of `calls` whose tool has a free slot or no limit of concurrent calls
    /// (see [`Tool::slots`]). Starts none of them if one of them may no longer run or lacks a
    /// credential, or if the service stops. In every case, the driver then asks `next_step` again.
    pub(crate) async fn start_calls(&mut self, calls: &[CallId]) -> Result<(), Stop> {
        let (calls, _slots) = self.take_slots(calls).await?;
        let calls = calls.as_slice();
        let connects_before_commit = self.has_late_tool(calls);
        if connects_before_commit {
            // Commits the pending facts before the tools connect, because the connections may take
            // seconds. Pending results, and commands that wait for this commit, must not wait for
            // the connections.
            self.save(self.engine.take_lease()).await?;
        }
        let Some((attempts, decisions)) = self.prepare_attempts(calls).await? else {
            return Ok(());
        };
        let in_flight_calls: Vec<_> = attempts
            .iter()
            .map(|(_, call)| self.engine.in_flight_calls.register(call.call_id))
            .collect();
        // This future performs the attempts. It is polled together with the commit of their starts,
        // so that a tool with `connects_first` opens its connection during the commit. A tool sends
        // nothing before the permit is decided.
        let mut answers = pin!(maybe_done(join_all(attempts.iter().map(perform))));
        if connects_before_commit {
            let awaited = join_all(decisions.iter().map(PermitDecision::awaited));
            select(pin!(awaited), &mut answers).await;
        }
        match select(pin!(self.save(self.engine.take_lease())), &mut answers).await {
            Either::Left((saved, _)) => saved?,
            Either::Right(((), save)) => save.await?,
        }
        if self.engine.is_outdated(self.session) {
            tracing::warn!(task = %self.session.task_id(), "the history was lost before a call was sent; it was not sent");
            return self
                .engine
                .handle_failure(self.session, CommitError::Stale)
                .await;
        }
        failpoint::reach("call.before");
        for (in_flight, decision) in in_flight_calls.iter().zip(&decisions) {
            decision.permit_while(self.send_permit(in_flight));
        }
        self.session.in_flight_calls = in_flight_calls;
        let began = self.engine.clock.uptime();
        answers.as_mut().await;
        failpoint::reach("call.answered");
        let answers = answers.take_output().unwrap_or_default();
        let answers = self.redact_tool_answers(answers).await?;
        self.record_answers(&attempts, answers, began)
    }

    /// Prepares the tools of these calls, and journals the start of each call. Returns `None` if
    /// the calls do not start now: for example, a tool cannot be prepared, or the service stops. If
    /// the service stops, the driver queues the task at its next step.
    async fn prepare_attempts(&mut self, calls: &[CallId]) -> Result<Option<ToolAttempts>, Stop> {
        self.save_openings().await?;
        let prepared = self.prepare_tools(calls).await?;
        if prepared == ToolPreparation::Failed || self.engine.stop.is_cancelled() {
            return Ok(None);
        }
        let compared = self.present_tools(calls);
        if !self.may_start(calls).await? {
            return Ok(None);
        }
        let credentials = self.credentials().await?;
        let Some(continuations) = self.continuations(calls).await? else {
            return Ok(None);
        };
        if self.request_missing_credentials(calls, &credentials) {
            return Ok(None);
        }
        if prepared == ToolPreparation::LacksCredentials || self.present_tools(calls) != compared {
            // While this function prepared or judged the calls, a person gave the credential that
            // was missing for a comparison, or another task found that a server has changed a tool.
            // So the judgements may be out of date: no call starts, and the driver asks `next_step`
            // again.
            return Ok(None);
        }
        let attempts = self.journal_starts(calls, &compared, &credentials, continuations);
        if attempts.0.is_empty() {
            // No tool of this service performs these calls. If they did not end, `next_step` would
            // return them forever.
            let text = "No tool of this service can run this call.";
            let ended = calls.iter().map(|id| (*id, text.to_owned()));
            self.end_unattempted(ended.collect()).await?;
            return Ok(None);
        }
        Ok(Some(attempts))
    }

    /// Commits the pending facts if a request or the start of a sub-agent is among them. The caller
    /// may then journal judgements, or results of calls that do not run. Within a commit, the
    /// journal has these facts before requests and starts, so they need a later commit.
    pub(super) async fn save_openings(&mut self) -> Result<(), Stop> {
        let opens = |item: &Item| {
            let fact = &item.fact;
            matches!(
                fact,
                Fact::InterventionRequested(_) | Fact::SubAgentStarted { .. }
            )
        };
        if self.session.own.pending_items().iter().any(opens) {
            self.save(self.engine.take_lease()).await?;
        }
        Ok(())
    }

    /// Whether the tool of one of these calls has missed the send window in an earlier call,
    /// because it connected too slowly (`InFlightCalls::mark_late`). Such a tool makes its
    /// connections before the start of its calls is committed.
    fn has_late_tool(&self, calls: &[CallId]) -> bool {
        let mut states = calls
            .iter()
            .filter_map(|id| self.session.own.progress.call(*id));
        states.any(|state| self.engine.in_flight_calls.is_late(&state.call.name))
    }

    /// Takes a slot for each call whose tool limits its concurrent calls. Returns the calls that
    /// may start now, because they got a slot or need none, and the slots. If no call may start
    /// now, commits the pending facts and waits for a slot for the first call. If the service stops
    /// during this wait, returns no call. During the wait, the driver holds no other tool slot, so
    /// drivers cannot deadlock.
    async fn take_slots(
        &mut self,
        calls: &[CallId],
    ) -> Result<(Vec<CallId>, Vec<OwnedSemaphorePermit>), Stop> {
        let slots_of = |id: &CallId| {
            let state = self.session.own.progress.call(*id)?;
            self.offered(&state.call.name)?.tool.as_ref()?.slots()
        };
        let (mut ready, mut taken, mut full) = (Vec::new(), Vec::new(), None);
        for id in calls {
            let Some(slots) = slots_of(id) else {
                ready.push(*id);
                continue;
            };
            match Arc::clone(&slots).try_acquire_owned() {
                Ok(slot) => {
                    ready.push(*id);
                    taken.push(slot);
                }
                Err(_) => full = full.or(Some((*id, slots))),
            }
        }
        if ready.is_empty()
            && let Some((id, slots)) = full
        {
            self.save(self.engine.take_lease()).await?;
            let began = self.engine.clock.uptime();
            tokio::select! {
                slot = slots.acquire_owned() => {
                    ready.push(id);
                    taken.extend(slot);
                }
                () = self.engine.stop.cancelled() => {}
            }
            self.advance_now(began);
        }
        Ok((ready, taken))
    }

    fn present_tools(&self, calls: &[CallId]) -> PresentTools<'e> {
        let task = self.session.task_id();
        let present = calls.iter().filter_map(|id| {
            let state = self.session.own.progress.call(*id)?;
            let current = match self.offered(&state.call.name)? {
                Cow::Borrowed(entry) => entry.current_spec(task),
                Cow::Owned(entry) => Cow::Owned(entry.current_spec(task).into_owned()),
            };
            Some((*id, current))
        });
        present.collect()
    }

    /// Journals the start of each call that a tool of this service performs. `compared` has the
    /// definitions of the tools as they were when the calls were judged. Returns the attempts and,
    /// in the same order, the handles that decide their permits.
    fn journal_starts(
        &mut self,
        calls: &[CallId],
        compared: &PresentTools<'_>,
        credentials: &Credentials,
        mut continuations: BTreeMap<CallId, Resume>,
    ) -> ToolAttempts {
        let (mut attempts, mut decisions) = (Vec::new(), Vec::new());
        for state in self.states_of(calls) {
            let id = state.call.tool_call_id;
            let Some((entry, spec)) = self.offered(&state.call.name).zip(compared.get(&id)) else {
                continue;
            };
            let (Some(tool), Ok(arguments)) = (
                entry.tool.clone(),
                arguments::read(state.arguments_text(), &entry.schema),
            ) else {
                continue;
            };
            self.session.push(Fact::ToolStarted {
                tool_call_id: id,
                name: entry.spec.name.clone(),
                digest: self
                    .session
                    .digest(spec, id, state.arguments_text(), state.rule()),
                attempt: state.attempts + 1,
                timeout_ms: u64::try_from(entry.spec.timeout.as_millis()).unwrap_or(u64::MAX),
                replica: self.engine.replica.clone(),
                grant: state.grant_use(),
            });
            let decided_by = state.approval.as_ref().map(|approval| {
                let names: Vec<_> = approval.by.iter().map(|vote| vote.by.as_str()).collect();
                names.join(",")
            });
            let (decision, permit) = AttemptPermit::undecided();
            decisions.push(decision);
            let invocation = self.invocation(&state, arguments, decided_by, permit);
            attempts.push((
                tool,
                Invocation {
                    credentials: credentials.clone(),
                    resume: continuations.remove(&id),
                    ..invocation
                },
            ));
        }
        (attempts, decisions)
    }

    /// Whether these calls may still start: the requests by which people approved the calls are
    /// undamaged, and the current policy permits the calls. After `false`, the driver asks
    /// `next_step` again. If the task's history has become uncertain by a restore or failover,
    /// fails as a stale commit does, because each commit of this session would be stale.
    pub(crate) async fn may_start(&mut self, calls: &[CallId]) -> Result<bool, Stop> {
        if self.engine.is_outdated(self.session) {
            self.engine
                .handle_failure(self.session, CommitError::Stale)
                .await?;
        }
        if let Some(failure) = approval_damage(self.session, calls) {
            self.finish(Ending::Failed(failure)).await?;
            return Ok(false);
        }
        Ok(!self.recheck(calls).await?)
    }

    /// Returns the part of the input of `next_step` that is not in the journal.
    pub(crate) fn step_context(&self) -> StepContext {
        let with_session = self.agent.sub_agents.iter().filter(|sub| sub.session);
        let is_driven_elsewhere = self.is_driven_elsewhere();
        StepContext {
            // The other driver may be in the middle of a model call, in which no limit ends the
            // task. It looks at the limits itself, before its next model call.
            spent_limit: if is_driven_elsewhere {
                None
            } else {
                self.spent_limit(&[])
            },
            running: self.running_calls(),
            is_driven_elsewhere,
            ended_with_questions: self.session.calls_with_questions(),
            asker: self.asker_state(),
            session_agents: with_session.map(|sub| sub.agent.clone()).collect(),
        }
    }

    /// Returns the started calls whose last attempt may still be running. An attempt that a replica
    /// runs counts as running until its timeout and the duration of one lease have passed, because
    /// the replica may notice the timeout late. An attempt that an asker runs counts as running
    /// until its permit ends, or until the asker returns the permit.
    fn running_calls(&self) -> BTreeSet<CallId> {
        let engine = self.engine;
        // Whether the filter `may_run` takes every attempt of `replica` as ended. If no other
        // process uses the store, all other replicas are dead. The filter also takes all attempts
        // of this process as ended: `in_flight_calls` has those that still run, and the last
        // statement adds them to the result.
        let has_ended = |replica: &str| engine.store.is_sole() || replica == engine.replica;
        let may_run = |state: &&CallState| {
            let Phase::Started(start) = &state.phase else {
                return false;
            };
            let is_process_gone = !start.is_run_by_asker() && has_ended(&start.replica);
            let end = start.ends_at(engine.settings.lease);
            !is_process_gone && !state.is_attempt_over && self.session.now < end
        };
        let started = self.session.own.progress.unfinished().filter(may_run);
        started
            .map(|state| state.call.tool_call_id)
            .chain(engine.in_flight_calls.calls())
            .collect()
    }

    /// Returns the time until every attempt that may be running counts as ended. `None` if no
    /// attempt may be running. Ignores a call that may be repeated and that this service runs,
    /// because `next_step` repeats such a call without waiting for its earlier attempt.
    pub(crate) fn time_until_attempts_end(&self) -> Option<Duration> {
        let running = self.running_calls();
        let attempts = self
            .session
            .own
            .progress
            .unfinished()
            .filter(|state| running.contains(&state.call.tool_call_id))
            // Excludes a call whose last attempt has ended with questions of the tool's server.
            // Such a call may be registered as in flight until the next commit, although no attempt
            // at it runs.
            .filter(|state| matches!(state.phase, Phase::Started(_)));
        let attempts = attempts
            .filter_map(|state| Some((state, state.start.as_ref()?)))
            .filter(|(state, start)| !state.effect.is_repeatable() || start.is_run_by_asker());
        attempts
            .map(|(_, start)| {
                let end = start.ends_at(self.engine.settings.lease);
                end.since(self.session.now)
            })
            .max()
    }
}

/// Performs one attempt. A tool with `connects_first` is called at once: it connects, and then
/// itself waits until the permit is decided. Any other tool is called after the permit is decided.
async fn perform((tool, call): &ToolAttempt) -> ToolAnswer {
    if !tool.connects_first() {
        call.permit.decided().await;
    }
    let answer = tool.call(call).await;
    call.permit.end_wait();
    answer
}
