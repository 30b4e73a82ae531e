//! Reads a gate call for a client that only watches the call. Such a read gives no permit, stores
//! no presence of an asker, and does not start the call.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::Gates;
use super::call::{CallViewer, GateCall, GateState};
use super::presence::present_until;
use crate::agent::Gate;
use crate::engine::Refusal;
use crate::engine::session::TaskSession;
use crate::people::Caller;
use crate::people::authorization::may_look_at_gate;
use crate::store::{ReadError, UserJournal};
use crate::task::call_state::Phase;
use crate::task::id::TaskId;

/// The state of a gate call's asker (the client that waits for the verdict), as of the last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskerStatus {
    /// Whether a client waits for the verdict.
    pub is_waiting: bool,
    /// Whether the client runs the call. If not, this service runs the call.
    pub runs_elsewhere: bool,
    /// The time after an approval within which the client must ask again. After this time, the call
    /// expires.
    pub use_within: Duration,
}

impl Gates<'_> {
    /// Returns the [`AskerStatus`] of the gate call that `task` stores. `agent` is the first name
    /// of the task's agent path; for a gate call, this is the name of the gate. Returns `None` if
    /// the task does not exist, if the configuration has no gate of this name, or if the definition
    /// that is pinned for the call is unusable.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the stored rows cannot be read.
    pub async fn asker_status(
        self,
        task: TaskId,
        agent: Option<&String>,
    ) -> Result<Option<AskerStatus>, ReadError> {
        let current = agent.and_then(|name| self.engine.agents.get(name));
        // The task of an agent with a model has no asker, so its journal need not be read.
        if current.is_none_or(|agent| agent.gate.is_none()) {
            return Ok(None);
        }
        let Some(session) = self.engine.load(task).await? else {
            return Ok(None);
        };
        // The call expires by the pinned `use_within`. The current configuration may have another.
        let pinned = self.engine.agent_of(&session.own.row).await?.ok();
        let gate = pinned.as_ref().and_then(|agent| agent.gate.as_deref());
        let call = session.own.progress.calls.first();
        Ok(gate.zip(call).map(|(gate, call)| AskerStatus {
            is_waiting: present_until(&session).is_some(),
            runs_elsewhere: call.performer.properties().runs_at_client,
            use_within: gate.use_within,
        }))
    }

    /// Whether this gate call may start (it is allowed or approved), but no asker waits for the
    /// verdict. Such a call starts only when its asker asks again. Returns `false` if the task is
    /// not a gate call.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the stored rows cannot be read.
    pub async fn awaits_its_asker(self, task: TaskId) -> Result<bool, ReadError> {
        let Some(session) = self.engine.load(task).await? else {
            return Ok(false);
        };
        let call = session.own.progress.calls.first();
        let may_start = |phase: &Phase| matches!(phase, Phase::Allowed | Phase::Approved(_));
        let is_approved = call.is_some_and(|call| may_start(&call.phase));
        let is_awaited =
            present_until(&session).is_some() || self.engine.awaited_calls.contains(task);
        Ok(is_approved && session.own.is_gate_call() && !is_awaited)
    }

    /// Whether this service runs the calls of `tool` at `gate`. `false` if the caller runs these
    /// calls, or if the gate does not offer the tool.
    #[must_use]
    pub fn runs_here(self, gate: &str, tool: &str) -> bool {
        let gate = self.engine.agents.get(gate);
        let entry = gate.and_then(|agent| self.engine.offered(agent, tool));
        entry.is_some_and(|entry| !entry.spec.kind.properties().runs_at_client)
    }

    /// Returns the gate call of this task, if the caller owns the call. First waits until the
    /// call's decision changes or the call is settled, but at most for the time `wait`.
    ///
    /// # Errors
    /// `NotFound` if the task is not a gate call or belongs to another tenant; `Forbidden` if the
    /// task belongs to another user, or the caller may not look at gates; `Unavailable` when the
    /// database does not answer.
    pub async fn read_call(
        self,
        caller: &Caller,
        task: TaskId,
        wait: Duration,
    ) -> Result<GateCall, Refusal> {
        let end = Instant::now() + wait;
        let mut listener = self.engine.store.listen_to_local_commits(task);
        let first = self.call_of(caller, task).await?;
        may_look_at_gate(caller).map_err(|why| Refusal::Forbidden(why.into()))?;
        if wait.is_zero() {
            return Ok(first);
        }
        listener = self.engine.store.subscribe_to_commits(task, listener);
        let mut call = self.call_of(caller, task).await?;
        let may_change =
            |call: &GateCall| call.decision == first.decision && call.state != GateState::Settled;
        while may_change(&call) && Instant::now() < end && !self.engine.stop.is_cancelled() {
            tokio::select! {
                _ = timeout_at(end, listener.next()) => {}
                () = self.engine.stop.cancelled() => {}
            }
            call = self.call_of(caller, task).await?;
        }
        Ok(call)
    }

    async fn call_of(self, caller: &Caller, task: TaskId) -> Result<GateCall, Refusal> {
        let session = self.load_call(caller, task).await?;
        self.gate_call(&session, CallViewer::Reader).await
    }

    /// Returns the gate call of the session's task, as `viewer` sees it.
    ///
    /// # Errors
    /// `NotFound` if the task is not a gate call; `Unavailable` when the database does not answer.
    pub(super) async fn gate_call(
        self,
        session: &TaskSession,
        viewer: CallViewer<'_>,
    ) -> Result<GateCall, Refusal> {
        let agent = self.engine.agent_of(&session.own.row).await?.ok();
        let gate = agent.as_ref().and_then(|agent| agent.gate.as_deref());
        let use_within = gate.map_or_else(|| Gate::default().use_within, |gate| gate.use_within);
        let mut call =
            GateCall::from_session(session, use_within, viewer).ok_or(Refusal::NotFound)?;
        let entry = agent
            .as_ref()
            .and_then(|agent| self.engine.offered(agent, &call.tool));
        if let (None, false, Some(entry)) = (&call.digest, call.can_never_run, entry) {
            let (id, rule) = (call.tool_call_id, call.rule.as_deref());
            let digest = session.current_digest(&entry, id, &call.arguments_text, rule);
            call.digest = Some(digest);
        }
        Ok(call)
    }

    /// Loads the gate call of this task, if the caller owns the call. Does not read the journal of
    /// a task that belongs to another user.
    ///
    /// # Errors
    /// As [`Gates::read_call`].
    pub(super) async fn load_call(
        self,
        caller: &Caller,
        task: TaskId,
    ) -> Result<TaskSession, Refusal> {
        let (tenant, user) = (&caller.tenant, &caller.user_id);
        let read = self.engine.store.user_journal(task, tenant, user).await?;
        let session = match read.ok_or(Refusal::NotFound)? {
            UserJournal::Own(journal) => self.engine.load_from(journal).await?,
            UserJournal::Foreign(row) if row.tenant == *tenant => {
                return Err(Refusal::Forbidden("The call is another user's.".into()));
            }
            UserJournal::Foreign(_) => None,
        };
        let call = session.filter(|session| session.own.is_gate_call());
        call.ok_or(Refusal::NotFound)
    }
}

/// Whether the permit of a started call has not ended, so that its holder may be running the call.
pub(super) fn is_permit_open(session: &TaskSession, call: &GateCall) -> bool {
    let state = session.own.progress.calls.first();
    call.state == GateState::Started
        && call.runs_elsewhere
        && call.expires_at.is_some_and(|end| end > call.now)
        && state.is_none_or(|state| !state.is_attempt_over)
}
