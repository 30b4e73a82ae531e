//! Handles asks. In an ask, a client proposes a call (or names an earlier call) and waits for the
//! verdict. The REST API, MCP and the protocols of gateways all ask through [`Gates::ask`].
//! As long as its connection waits, the client counts as the present asker of the call. This module
//! stores the presence, starts the call after an approval, and ends the presence when the wait
//! ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::attach::keyed_call;
use super::call::{CallViewer, GateCall, GateDecision, GateState};
use super::claim_limit::ClaimLimit;
use super::presence::{AskerGuard, PRESENCE_GRACE, ResultDelivery, present_until};
use super::propose::{GateProposal, Proposed};
use super::read_call::is_permit_open;
use super::{GateRefusal, Gates, Proposal};
use crate::engine::session::TaskSession;
use crate::engine::{MAX_TRIES, Refusal};
use crate::people::Caller;
use crate::people::authorization::may_ask_at_gate;
use crate::store::{CommitError, CommitListener};
use crate::task::change::{ASKER_UNTIL_DELIVERED, AskerPresence};

#[derive(Debug)]
pub struct GateAnswer {
    /// The call, as its asker sees it.
    pub call: GateCall,
    /// Whether the client names the call by an id, or by a key that an earlier ask has stored.
    /// `false` for the first ask with a key, also if it continues an equal call.
    pub replayed: bool,
    /// The handle by which the HTTP layer reports that the client has received the result. `Some`
    /// if the answer has a result that was not delivered yet.
    pub delivery: Option<ResultDelivery>,
    /// The bytes of the result as the MCP server wrote them. `None` if no MCP server wrote the
    /// result, if another process received it, or if no connection waited when it arrived.
    pub raw: Option<Arc<str>>,
}

/// The state of an ask that waits for a stored call.
struct Waiter<'w> {
    gates: Gates<'w>,
    gate_proposal: GateProposal<'w>,
    end: Instant,
    /// The condition under which this ask starts an approved call; `None` if there is none.
    claim_limit: Option<&'w ClaimLimit>,
    guard: Arc<AskerGuard>,
    /// Listens to the commits of this process. The listener is opened before the call is read, so
    /// that no commit is missed. The next pause turns this listener into `replica_commits`.
    local_commits: Option<CommitListener>,
    /// Listens to the commits of every replica. A pause makes this listener from `local_commits`.
    /// `None` before the first pause. When this ask starts a driver, the driver brings new
    /// `local_commits`, and this field is `None` until the next pause.
    replica_commits: Option<CommitListener>,
    /// The id of this ask (one HTTP request that proposes the call), and the runner that the
    /// proposal names (`""` if the proposal names no runner).
    ask: (Uuid, String),
    /// Whether the client names the call by key or id. Every ask that names the call gets the
    /// call's result. Of the asks that do not name the call, only a single ask gets the result.
    is_named: bool,
    /// The runner that the proposal names. If an earlier ask for the same call got a permit for
    /// this runner, this ask gets the permit, too. `""` if the proposal names no runner, or if this
    /// ask began as the continuation of an equal call that it did not name.
    permit_runner: String,
    /// Whether this ask continues a stored call instead of proposing a new call.
    continues: bool,
    /// Whether the session of the current round comes from a driver that this ask has started.
    own_drive: bool,
}

/// The result of one round of an ask. A round reads the call once, and starts the call if possible.
enum Round {
    /// The ask is answered with the call, [`GateAnswer::raw`] and [`GateAnswer::delivery`].
    Answer(Box<(GateCall, Option<Arc<str>>)>, Option<ResultDelivery>),
    /// The next round begins at once, because the call may have changed. It uses this session; with
    /// `None`, it loads the task again.
    Retry(Option<Box<TaskSession>>),
    /// The call cannot continue yet. The next round begins after a commit that may have changed the
    /// call, at the latest at this time.
    Pause(Instant),
    /// [`Gates::ask`] handles the proposal again from the start, for one of two reasons:
    /// - Another client waits for this call, or gets the call's result or permit. The proposal then
    ///   usually becomes a new call.
    /// - Another proposal has stored the same idempotency key. The key now names the call of that
    ///   proposal.
    TakenByOther,
}

impl Gates<'_> {
    /// Proposes a call, or asks again about an earlier call, and waits for the verdict. Starts an
    /// approved call only within the limit `claim_limit`.
    ///
    /// # Errors
    /// Fails if the gate gives no verdict. After `Unavailable` or `Internal`, the call may have
    /// been stored; after any other refusal, no new call was stored.
    pub async fn ask(
        self,
        caller: &Caller,
        proposal: &Proposal,
        claim_limit: Option<&ClaimLimit>,
    ) -> Result<GateAnswer, GateRefusal> {
        may_ask_at_gate(caller).map_err(|why| Refusal::Forbidden(why.into()))?;
        let agent = self.gate_of(caller, proposal.gate.as_deref())?;
        let gate_proposal = GateProposal::new(self.engine, caller, &agent, proposal)?;
        let end = Instant::now() + proposal.wait;
        let runner = proposal.runner.clone().unwrap_or_default();
        for _ in 0..MAX_TRIES {
            let ask = (self.engine.ids.fresh(), runner.clone());
            // All steps but the wait are boxed, so that the wait keeps no memory for their futures.
            let begun = gate_proposal.continue_or_propose(ask.clone(), claim_limit);
            let (is_named, proposed) = Box::pin(begun).await?;
            let waiter = |guard, listener, continues: bool| Waiter {
                gates: self,
                gate_proposal,
                end,
                claim_limit,
                guard,
                local_commits: Some(listener),
                replica_commits: None,
                permit_runner: permit_runner(&ask.1, is_named || !continues),
                ask,
                is_named,
                continues,
                own_drive: false,
            };
            let answer = match proposed {
                Proposed::Counted(session) => {
                    Some(Box::pin(self.answer_unstored_call(*session, gate_proposal.gate)).await?)
                }
                Proposed::Continues(task) => {
                    let guard = AskerGuard::new(self.engine, task);
                    let listener = self.engine.store.listen_to_local_commits(task);
                    let waiter = waiter(guard, listener, true);
                    waiter.wait_for_verdict(None, is_named).await?
                }
                Proposed::Stored(guard, drive) => {
                    let mut waiter = waiter(guard, drive.listener, false);
                    waiter.name_by_key();
                    let session = waiter.wait_for_drive(drive.end).await;
                    waiter.wait_for_verdict(session, false).await?
                }
                Proposed::Outdated => None,
            };
            if let Some(answer) = answer {
                let (gate, decision) = (&answer.call.gate, answer.call.decision.as_str());
                tracing::info!(target: "holdpoint::metric", metric = "gate_call", %gate, decision);
                return Ok(answer);
            }
        }
        Err(Refusal::Unavailable.into())
    }
}

impl Waiter<'_> {
    /// Waits until the driver that this ask started has ended, and returns the driver's session.
    /// Waits at most until the end of this ask, or for `run_wait` if that takes longer. Returns
    /// `None` if the driver still works then, or when the service stops. Also returns `None` if the
    /// driver lost the task or has left facts unstored, because its session may then differ from
    /// the journal.
    async fn wait_for_drive(
        &mut self,
        drive: tokio::task::JoinHandle<Option<TaskSession>>,
    ) -> Option<Box<TaskSession>> {
        let end = self
            .end
            .max(Instant::now() + self.gate_proposal.proposal.run_wait);
        let session = tokio::select! {
            ended = timeout_at(end, drive) => ended.ok()?.ok()?,
            () = self.gates.engine.stop.cancelled() => None,
        };
        self.own_drive = session.is_some();
        session.map(Box::new)
    }

    /// Waits until the call has a verdict for this asker, or until the wait is over. `replayed` is
    /// [`GateAnswer::replayed`]. Returns `None` if the proposal must be handled again from the start
    /// (see [`Round::TakenByOther`]).
    async fn wait_for_verdict(
        mut self,
        mut session: Option<Box<TaskSession>>,
        replayed: bool,
    ) -> Result<Option<GateAnswer>, GateRefusal> {
        loop {
            match Box::pin(self.round(session.take())).await? {
                Round::Answer(answer, delivery) => {
                    let (call, raw) = *answer;
                    return Ok(Some(GateAnswer {
                        call,
                        replayed,
                        delivery,
                        raw,
                    }));
                }
                Round::TakenByOther => return Ok(None),
                Round::Retry(known) => session = known,
                // The pause may last minutes. It is not a part of `round`, so that the ask holds no
                // session during the pause.
                Round::Pause(end) => self.pause_until(end).await,
            }
        }
    }

    /// Takes one round of the ask: reads the call, starts it if it can start, and returns the
    /// result of the round. `session` is the session of the call's task; with `None`, the task is
    /// loaded.
    async fn round(&mut self, session: Option<Box<TaskSession>>) -> Result<Round, GateRefusal> {
        let session = match session {
            Some(session) => *session,
            None => self
                .gates
                .engine
                .load(self.guard.task)
                .await?
                .ok_or(Refusal::NotFound)?,
        };
        self.guard.resolve_presence(&session);
        // By its name, a runner that has lost its connection gets its permit again. In an ask that
        // continues an equal call without naming it, `permit_runner` is empty, so the client does
        // not get the permit of another client.
        let viewer = CallViewer::Asker(self.ask.0, &self.permit_runner);
        let call = self.gates.gate_call(&session, viewer).await?;
        match (call.state, call.decision) {
            (GateState::Settled, _) => self.answer_settled(session, call).await,
            (GateState::Started, GateDecision::Allow) => {
                self.guard.forget_presence();
                Ok(Round::Answer(Box::new((call, None)), None))
            }
            _ if self.is_taken(&session, &call) => Ok(Round::TakenByOther),
            // This ask's own driver has ended and has not started the call, so the driver got no
            // slot and has queued the task. A worker will start the call.
            (GateState::Approved, _) if self.own_drive => self.wait_pending(session, call).await,
            (GateState::Approved, _) if self.is_late() => self.wait_pending(session, call).await,
            (GateState::Approved, _) => self.claim(session, call).await,
            (GateState::Started, _) if is_permit_open(&session, &call) => {
                Err(GateRefusal::InHand(Box::new(call)))
            }
            (GateState::Started, _) if call.runs_elsewhere && !self.is_late() => {
                self.claim(session, call).await
            }
            (GateState::Started | GateState::Pending | GateState::OutcomeUnknown, _) => {
                self.wait_pending(session, call).await
            }
        }
    }

    /// Whether the call is the client's own: the client names it, or this ask has proposed it. A
    /// call that is only equal to the proposal may belong to another ask.
    fn has_own_call(&self) -> bool {
        self.is_named || !self.continues
    }

    /// Whether another ask waits for this unsettled call or has its permit. The other ask came
    /// after [`GateProposal::propose`] had found that this ask may continue the call. Always
    /// `false` if the call is the client's own, or if this ask has stored its presence.
    fn is_taken(&self, session: &TaskSession, call: &GateCall) -> bool {
        if self.has_own_call() || self.guard.has_presence() {
            return false;
        }
        let until = session.own.row.asker_until;
        if until == Some(ASKER_UNTIL_DELIVERED) {
            is_permit_open(session, call)
        } else {
            until > Some(session.now)
        }
    }

    /// Answers a settled call. An ask gets the result at once if it names the call by key or id, or
    /// if its own driver has run the call. Among the other asks, only one gets the result: the ask
    /// that reserves it by a fenced commit.
    async fn answer_settled(
        &mut self,
        mut session: TaskSession,
        call: GateCall,
    ) -> Result<Round, GateRefusal> {
        let raw = self.gates.engine.awaited_calls.raw_result(&session);
        let until = session.own.row.asker_until;
        let is_undelivered = until.is_some_and(|until| until != ASKER_UNTIL_DELIVERED);
        let gets_result = self.own_drive || self.is_named;
        if !gets_result {
            // Although the row says that the result was delivered or is reserved, this ask gets the
            // result in two cases:
            // - The call is released, and this ask has its permit.
            // - This ask itself has reserved the result, but the confirmation of this commit was
            //   lost.
            let is_holder =
                call.permit.is_some() || until.is_some_and(|until| self.guard.owns(until));
            if let Some(until) = until.filter(|until| *until > session.now && !is_holder) {
                if until == ASKER_UNTIL_DELIVERED || self.is_over() {
                    return Ok(Round::TakenByOther);
                }
                // Another ask has reserved the result. If that reservation ends without a delivery,
                // this ask tries to reserve the result.
                let end = Instant::now() + until.since(session.now);
                return Ok(Round::Pause(end));
            }
        }
        if gets_result || !is_undelivered {
            self.guard.forget_presence();
        } else {
            // The stored presence reserves the result for this ask. If the result is not delivered,
            // the drop of the guard ends the presence, and the next ask gets the result at once.
            session = match self.store_presence(session, PRESENCE_GRACE).await {
                Ok(session) => session,
                Err(error) => return round_after_error(error),
            };
        }
        let delivery =
            is_undelivered.then(|| ResultDelivery::new(Arc::clone(&self.guard), session));
        Ok(Round::Answer(Box::new((call, raw)), delivery))
    }

    /// Starts an approved call for this asker. Either this service runs the call, or the answer
    /// gives the asker the permit to run the call.
    async fn claim(
        &mut self,
        mut session: TaskSession,
        call: GateCall,
    ) -> Result<Round, GateRefusal> {
        let store = &self.gates.engine.store;
        if ClaimLimit::session_has_ended(self.claim_limit, store).await? {
            // The guard still has the presence of this ask, so its drop ends the presence.
            return Ok(Round::Answer(Box::new((call, None)), None));
        }
        session.ask = Some(self.ask.clone());
        if session.own.row.asker_until.is_some() {
            session.own.asker = Some(AskerPresence::PresentFor(self.presence_lasts()));
        }
        self.record_key(&mut session);
        match self.guard.drive(session).await {
            Ok(Some(drive)) => {
                self.name_by_key();
                (self.local_commits, self.replica_commits) = (Some(drive.listener), None);
                Ok(Round::Retry(self.wait_for_drive(drive.end).await))
            }
            Ok(None) if self.is_over() => {
                self.guard.forget_presence();
                Ok(Round::Answer(Box::new((call, None)), None))
            }
            Ok(None) => Ok(Round::Pause(self.end)),
            Err(error) => round_after_error(error),
        }
    }

    /// Handles a call that cannot start yet. Stores that the asker is present, shows the request
    /// that the call waits for, and returns a pause until the call may change. Once the time of
    /// this ask is over, returns the pending call as the answer instead. The asker then counts as
    /// absent, unless it asks again by itself (`returns_within`).
    async fn wait_pending(
        &mut self,
        mut session: TaskSession,
        call: GateCall,
    ) -> Result<Round, GateRefusal> {
        self.identify_queued_call(&mut session, &call);
        let until = session.own.row.asker_until;
        let is_keyed = until.is_some() || session.own.call.is_some();
        let is_over = self.is_over();
        let returns = !self.gate_proposal.proposal.returns_within.is_zero();
        // The row may no longer have the presence that this ask stored: a driver ends the presence
        // if the call's last attempt was lost with another replica (`end_lost_presence`).
        let is_stored = self.guard.has_presence() && until > Some(session.now);
        let is_arriving = is_keyed && !is_stored && (!is_over || returns);
        let is_leaving = is_keyed && is_over && !returns && !self.has_other_asker(&session);
        if is_arriving {
            // This ask's earlier presence, if any, has ended. The guard forgets it, because
            // `is_taken` is always `false` while the guard has a presence. If another ask comes
            // first, the commit below is stale, and the next round finds the other ask by
            // `is_taken`.
            self.guard.forget_presence();
            let lasts = self.presence_lasts();
            if let Err(error) = self.store_presence(session, lasts).await {
                return round_after_error(error);
            }
        } else if is_leaving {
            self.record_key(&mut session);
            let left = self
                .gates
                .commit_asker(&mut session, AskerPresence::Absent)
                .await;
            if let Err(error) = left {
                return round_after_error(error);
            }
        }
        if is_over {
            self.guard.forget_presence();
            return Ok(Round::Answer(Box::new((call, None)), None));
        }
        self.gate_proposal
            .proposal
            .progress
            .show(call.request.as_deref());
        Ok(Round::Pause(self.end))
    }

    /// Adds the call's key to the next commit, if this ask has proposed the call, and the call is
    /// stored without a key and waits for a person. This happens if the call was allowed and
    /// queued: the driver that opened the request took the call from the queue, and did not know
    /// the key.
    fn identify_queued_call(&self, session: &mut TaskSession, call: &GateCall) {
        let has_no_key = session.own.row.asker_until.is_none();
        if has_no_key && call.state == GateState::Pending && !self.continues {
            session.own.call = keyed_call(self.gate_proposal.proposal);
        }
    }

    /// Waits until any replica commits a change of the call's task. Stops waiting at `end`, when
    /// the wait of this ask is over, or when the service stops.
    async fn pause_until(&mut self, end: Instant) {
        self.own_drive = false;
        if let Some(listener) = self.local_commits.take() {
            let store = &self.gates.engine.store;
            self.replica_commits = Some(store.subscribe_to_commits(self.guard.task, listener));
        }
        if let Some(listener) = &mut self.replica_commits {
            tokio::select! {
                _ = timeout_at(end.min(self.end), listener.next()) => {}
                () = self.gates.engine.stop.cancelled() => {}
            }
        }
    }

    /// Whether the row has the presence of another asker, which this ask must not end. The presence
    /// in the row counts as this client's own in three cases:
    /// - This ask has stored the presence.
    /// - The client names the call by its id, because it continues its own earlier ask.
    /// - The client names the call by key, this ask has stored no presence, and no other connection
    ///   of this process waits for the call.
    fn has_other_asker(&self, session: &TaskSession) -> bool {
        let is_shared = self.gates.engine.awaited_calls.is_shared(self.guard.task);
        let is_same_client = self.gate_proposal.proposal.identity.task() == Some(self.guard.task)
            || (self.is_named && !self.guard.has_presence() && !is_shared);
        !is_same_client && present_until(session).is_some_and(|until| !self.guard.owns(until))
    }

    /// Stores that the asker is present for the time `lasts`, and the proposal's key, if the key is
    /// new.
    async fn store_presence(
        &mut self,
        mut session: TaskSession,
        lasts: Duration,
    ) -> Result<TaskSession, CommitError> {
        self.record_key(&mut session);
        let stored = self.guard.store_presence(session, lasts).await?;
        self.name_by_key();
        Ok(stored)
    }

    /// If the proposal has a new idempotency key, and continues an equal stored call, adds the key
    /// to the next commit.
    fn record_key(&self, session: &mut TaskSession) {
        if !self.has_own_call() {
            let key = self.gate_proposal.key();
            session.idempotency = key.map(|key| key.row(self.gate_proposal.caller, session, None));
        }
    }

    /// Called after a commit that has stored the proposal's key, if it has one. From then on, the
    /// client names the call by this key.
    fn name_by_key(&mut self) {
        self.is_named |= self.gate_proposal.proposal.identity.key().is_some();
    }

    fn is_late(&self) -> bool {
        self.claim_limit.is_some_and(ClaimLimit::is_late)
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.end || self.gates.engine.stop.is_cancelled()
    }

    /// Returns the time for which the asker counts as waiting: the rest of its wait, plus the
    /// longer of `returns_within` and [`PRESENCE_GRACE`].
    fn presence_lasts(&self) -> Duration {
        let remaining = self.end.saturating_duration_since(Instant::now());
        remaining
            + self
                .gate_proposal
                .proposal
                .returns_within
                .max(PRESENCE_GRACE)
    }
}

/// Returns `runner` if the ask has had its own call from the beginning (`has_call`), because it
/// named the call by key or id, or proposed the call. Otherwise returns `""`.
fn permit_runner(runner: &str, has_call: bool) -> String {
    let name = if has_call { runner } else { "" };
    name.to_owned()
}

/// Returns the result of a round in which a commit of this ask failed with `error`.
/// `Refused` means that another proposal has stored the same idempotency key.
fn round_after_error(error: CommitError) -> Result<Round, GateRefusal> {
    match error {
        CommitError::Stale | CommitError::Unknown => Ok(Round::Retry(None)),
        CommitError::Refused => Ok(Round::TakenByOther),
        CommitError::Unavailable => Err(Refusal::Unavailable.into()),
    }
}
