//! Handles the proposal of a call: judges the call in memory, compares it with equal calls, and
//! stores it as a task in one commit. If the call may start at once, the same commit starts it.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::Either;
use serde_json::json;
use uuid::Uuid;

use super::attach::{JudgementAmendment, ProposalMatch, is_equal_json, keyed_call};
use super::call::{CallViewer, GateCall};
use super::claim_limit::ClaimLimit;
use super::drive::GateDrive;
use super::max_open::OpenCallGuard;
use super::presence::{AskerGuard, PRESENCE_GRACE};
use super::{GateAnswer, GateRefusal, Gates, Identity, Proposal};
use crate::agent::gate::RecordedCalls;
use crate::agent::{Agent, Gate};
use crate::engine::commands::IdempotencyKey;
use crate::engine::commands::create::unsaved_root;
use crate::engine::commands::submit::unless_conflict;
use crate::engine::driver::Driver;
use crate::engine::driver::verdict::{denied_again, held_despite_permission};
use crate::engine::runtime::keyed_tools::ToolPlace;
use crate::engine::session::{Stop, TaskSession};
use crate::engine::{Engine, Refusal};
use crate::people::Caller;
use crate::policy::Policy;
use crate::secret::seal::DigestedBody;
use crate::store::{CommitError, GATE_KEY_PATH};
use crate::task::call_state::{AttemptStart, CallState, Phase};
use crate::task::change::{AskerPresence, ClientColumns, KeyedCall};
use crate::task::id::{CallId, TaskId};
use crate::task::item::{Fact, FinishReason, Outcome, Part, PartType, ToolCall, Turn, Usage};
use crate::task::text::as_sentence;
use crate::task::tool_spec::Effect;
use crate::task::verdict::{Judgement, Verdict};

const UNSEEN_TEXT: &str =
    "A person must approve this call, but it has over 16 KiB to show besides its arguments.";

/// The first result of a proposal. The client that proposed the call gets the verdict later.
pub(super) enum Proposed {
    /// The proposal continues the call of this task.
    Continues(TaskId),
    /// The proposal is a new call, which is stored and driven in the background.
    Stored(Arc<AskerGuard>, GateDrive),
    /// The call is allowed. The gate has `record: held`, so the call is counted and not stored.
    Counted(Box<TaskSession>),
    /// The call is not stored, and the proposal must be handled again from the start. Either the
    /// judgement is out of date, because for example the standing decision that allows the call has
    /// ended meanwhile, or another proposal has stored the same idempotency key.
    Outdated,
}

/// A proposal, with the caller who makes it and the gate to which it is made.
#[derive(Clone, Copy)]
pub(super) struct GateProposal<'p> {
    pub engine: &'p Arc<Engine>,
    pub caller: &'p Caller,
    pub agent: &'p Agent,
    /// The settings of the gate `agent`.
    pub gate: &'p Gate,
    pub proposal: &'p Proposal,
}

impl<'p> GateProposal<'p> {
    /// # Errors
    /// `NotFound` if `agent` is no gate.
    pub(super) fn new(
        engine: &'p Arc<Engine>,
        caller: &'p Caller,
        agent: &'p Agent,
        proposal: &'p Proposal,
    ) -> Result<Self, Refusal> {
        Ok(Self {
            engine,
            caller,
            agent,
            gate: agent.gate.as_deref().ok_or(Refusal::NotFound)?,
            proposal,
        })
    }
}

impl Gates<'_> {
    /// Returns the gate called `name`. If `name` is `None`, returns the only gate that is open to
    /// the caller.
    ///
    /// # Errors
    /// `Invalid` if no such gate is open to the caller, or if there is no name and several gates
    /// are open to the caller.
    pub(super) fn gate_of(
        self,
        caller: &Caller,
        name: Option<&str>,
    ) -> Result<Arc<Agent>, Refusal> {
        let mut open = self.engine.agents.gates().filter(|(agent, _)| {
            name.is_none_or(|name| name == agent.name)
                && agent.is_open_to(&caller.tenant, &caller.user_id, &caller.groups)
        });
        match (open.next(), open.next()) {
            (Some((agent, _)), None) => Ok(Arc::clone(agent)),
            _ => Err(Refusal::invalid(
                "/gate",
                "the name of a gate that is open to you",
            )),
        }
    }

    /// Answers a call that the gate counts but does not store (`record: held`). The answer has a
    /// permit.
    pub(super) async fn answer_unstored_call(
        self,
        mut session: TaskSession,
        gate: &Gate,
    ) -> Result<GateAnswer, GateRefusal> {
        let ask = self.engine.ids.fresh();
        let state = session.own.progress.calls.first().cloned();
        let state = state.ok_or_else(|| Refusal::internal("an unstored call has no state"))?;
        let id = state.call.tool_call_id;
        session.push(Fact::ToolStarted {
            tool_call_id: id,
            name: state.call.name,
            digest: String::new(),
            attempt: 1,
            timeout_ms: u64::try_from(gate.run_within.as_millis()).unwrap_or(u64::MAX),
            replica: AttemptStart::replica_of_asker(ask, ""),
            grant: None,
        });
        session.settle_calls(vec![(id, Outcome::Released, String::new())]);
        let call = self.gate_call(&session, CallViewer::Asker(ask, "")).await?;
        Ok(GateAnswer {
            call: GateCall {
                digest: None,
                ..call
            },
            replayed: false,
            delivery: None,
            raw: None,
        })
    }
}

impl GateProposal<'_> {
    /// Returns the idempotency key of the proposal; `None` if the proposal has no key. The key's
    /// `body` is the part of the proposal that must be the same in a repetition.
    pub(super) fn key(self) -> Option<IdempotencyKey> {
        let (proposal, session) = (self.proposal, self.proposal.session());
        let key = proposal.identity.key()?;
        let (tool, text) = (&proposal.tool, &proposal.arguments_text);
        let same = json!([self.agent.name, tool, session, text]);
        let sealer = self.engine.sealer.as_ref();
        Some(IdempotencyKey {
            path: GATE_KEY_PATH.to_owned(),
            key: key.to_owned(),
            body: DigestedBody::new(Bytes::from(same.to_string()), sealer),
        })
    }

    /// Finds the call that the proposal names, or proposes the call. `ask` has the id of the ask and
    /// the name of the runner (`""` without a runner). Also returns whether the proposal names a
    /// call.
    ///
    /// # Errors
    /// `Unavailable` if the caller's browser session has ended while the body arrived or during an
    /// earlier try, because a new call may start at once.
    pub(super) async fn continue_or_propose(
        self,
        ask: (Uuid, String),
        claim_limit: Option<&ClaimLimit>,
    ) -> Result<(bool, Proposed), GateRefusal> {
        if ClaimLimit::session_has_ended(claim_limit, &self.engine.store).await? {
            return Err(Refusal::Unavailable.into());
        }
        let known = self.find_known_call().await?;
        let is_named = known.is_some() || self.proposal.identity.has_own_key();
        let proposed = match known {
            Some(task) => Proposed::Continues(task),
            None => self.propose(ask).await?,
        };
        Ok((is_named, proposed))
    }

    /// Judges the proposed call. Does not store the call if the proposal continues an equal call,
    /// or if the gate only counts the call in a metric (`record: held`). Otherwise stores the call.
    async fn propose(self, ask: (Uuid, String)) -> Result<Proposed, GateRefusal> {
        let mut session = self.unsaved_call();
        let call = self.judge(&mut session).await?;
        let state = state_of(&session, call)?;
        let held = state.is_held();
        let once = state.phase == Phase::Allowed && state.effect == Effect::Once;
        let key = keyed_call(self.proposal);
        // A call that waits for people, or that may run only once, gets a key by which later equal
        // proposals find it.
        let is_keyed = held || once || self.asks_for_credential(&state);
        // Every amendment applies to a call that gets such a key. To any other call, only the
        // rejection of an equal call applies, and only if a standing decision allows the call.
        let is_granted = state.grant().is_some();
        let applies = |amendment: &JudgementAmendment| {
            is_keyed || (is_granted && matches!(amendment, JudgementAmendment::Reject { .. }))
        };
        let is_compared = is_keyed || self.may_continue_question(&state).await?;
        if let Some(key) = key.as_ref().filter(|_| is_compared || is_granted) {
            match self.compare_with_earlier(key, !is_compared).await? {
                ProposalMatch::Continues(task) => return Ok(Proposed::Continues(task)),
                ProposalMatch::Amends(amendment) if applies(&amendment) => {
                    amend_judgement(&self.engine.policy, &mut session, call, amendment)?;
                }
                ProposalMatch::Amends(_) | ProposalMatch::Nothing => {}
            }
        }
        self.refuse_unseen(&mut session, call)?;
        let state = state_of(&session, call)?;
        let open = self.check_open(&state).await?;
        if self.gate.record == RecordedCalls::Held && is_only_counted(&state) {
            // The gate does not store this call, so it could answer without the database. But
            // during an outage of the database, the gate refuses this call like any other call.
            if self.engine.store.is_known_unreachable() {
                return Err(GateRefusal::Command(Refusal::Unavailable));
            }
            return Ok(Proposed::Counted(Box::new(session)));
        }
        // A denied call gets no call key (the key by which equal calls are found), because its
        // repetition is denied anyway. If denied calls had call keys, many of them could push a
        // person's rejection out of the look-up, which reads a bounded number of calls.
        let is_settled = matches!(state.phase, Phase::Settled(..));
        let keyed = key.clone().filter(|_| is_keyed && !is_settled);
        self.add_identity(&mut session, keyed);
        session.key_if_pending = key.filter(|_| !is_keyed);
        let guard = AskerGuard::new(self.engine, session.task_id());
        session.ask = Some(ask);
        if let Some(proposed) = self.drive_unsaved(session, guard, open).await? {
            return Ok(proposed);
        }
        // Another proposal with the same idempotency key was stored first. At the next try, the key
        // names the call of that proposal.
        let known = self.known_by_key().await?;
        known
            .map(|_| Proposed::Outdated)
            .ok_or(GateRefusal::Command(Refusal::Unavailable))
    }

    /// Whether the proposal may continue an equal earlier call whose tool's server has asked people
    /// a question. True if the rules allow the proposed call, the call may be repeated, its tool
    /// can ask such questions, the proposal may continue a call without naming it, and an earlier
    /// call of the tool has a call key.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    async fn may_continue_question(self, call: &CallState) -> Result<bool, Refusal> {
        let may_ask = || {
            let entry = self.engine.offered(self.agent, &call.call.name);
            entry.is_some_and(|entry| entry.tool.as_ref().is_some_and(|tool| tool.may_ask()))
        };
        let may_continue = !self.proposal.identity.is_new_if_unknown()
            && call.phase == Phase::Allowed
            && call.effect.is_repeatable()
            && may_ask();
        Ok(may_continue && self.has_keyed_calls().await?)
    }

    /// Whether an earlier call of the proposed tool, by the same user in the same session, has a
    /// call key. The result may be outdated by a second (see `runtime/keyed_tools.rs`).
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    async fn has_keyed_calls(self) -> Result<bool, Refusal> {
        let (engine, caller) = (self.engine, self.caller);
        let place = ToolPlace {
            tenant: caller.tenant.clone(),
            gate: self.agent.name.clone(),
            user: caller.user_id.key().clone(),
            session: self.proposal.session().to_owned(),
            tool: self.proposal.tool.clone(),
        };
        let number = match engine.keyed_tools.begin_read(&place) {
            Either::Left(has_keyed_calls) => return Ok(has_keyed_calls),
            Either::Right(number) => number,
        };
        let (tenant, gate, user) = (&place.tenant, &place.gate, &caller.user_id);
        let (session, tool) = (&place.session, &place.tool);
        let read = engine
            .store
            .has_keyed_calls(tenant, gate, user, session, tool);
        let has_keyed_calls = read.await?;
        engine.keyed_tools.remember(&place, number, has_keyed_calls);
        Ok(has_keyed_calls)
    }

    /// Returns the task of the earlier call that the proposal names by id or key; `None` if there
    /// is no such call. A call that is named by id must have the proposal's caller, gate, session,
    /// tool and arguments. Otherwise, the id counts as unknown, and the key decides, if there is a
    /// key.
    async fn find_known_call(self) -> Result<Option<TaskId>, GateRefusal> {
        if let Some(task) = self.proposal.identity.task() {
            match self.engine.gates().load_call(self.caller, task).await {
                Ok(call) if self.is_same_call(&call) => return Ok(Some(task)),
                Ok(_) | Err(Refusal::NotFound | Refusal::Forbidden(_)) => {}
                Err(refusal) => return Err(refusal.into()),
            }
        }
        self.known_by_key().await
    }

    /// Returns the task of an earlier proposal with the same key; `None` if there is no such
    /// proposal.
    ///
    /// # Errors
    /// `KeyReused` if the earlier proposal differs in gate, tool, session or arguments.
    async fn known_by_key(self) -> Result<Option<TaskId>, GateRefusal> {
        let Some(key) = self.key() else {
            return Ok(None);
        };
        let row = key.stored_row(&self.engine.store, self.caller).await?;
        Ok(row.map(|row| row.task_id))
    }

    /// Builds the task of the proposed call without storing the task. The last fact of the task is
    /// the turn with the call.
    fn unsaved_call(self) -> TaskSession {
        let (engine, proposal) = (self.engine, self.proposal);
        let session_id = proposal.session().to_owned();
        let client = ClientColumns::with_metadata(proposal.metadata.clone());
        let mut session = unsaved_root(engine, self.caller, self.agent, session_id, client);
        let redactor = engine.catalog.redactor();
        session.push(Fact::UserMessage {
            items: vec![Part {
                content_type: PartType::Text,
                content: redactor.redact(&proposal.context).into_owned(),
            }],
            user_context: None,
            by: self.caller.user_id.to_string(),
            groups: self.caller.groups.clone(),
        });
        // A gateway reports an outcome by the id of the call. The store can look a call up only by
        // the id of the call's task. So the call gets the id of its task.
        let tool_call_id = CallId(session.task_id().0);
        let text = proposal.arguments_text.as_str();
        session.push(Fact::AssistantMessage(Turn {
            turn: 1,
            text: None,
            tool_calls: vec![ToolCall {
                tool_call_id,
                name: redactor.redact(&proposal.tool).into_owned(),
                arguments_text: redactor.redact(text).into_owned(),
                holds_secret: redactor.finds_secret_in(text),
                provider_id: tool_call_id.to_string(),
            }],
            finish_reason: FinishReason::Gate,
            usage: Usage::default(),
            raw: serde_json::Value::Null,
        }));
        session
    }

    /// Makes a held call invalid if its approvers would not see its whole input.
    fn refuse_unseen(self, session: &mut TaskSession, call: CallId) -> Result<(), Refusal> {
        let identity = &self.proposal.identity;
        let is_cut = matches!(identity, Identity::Bytes { is_cut: true, .. });
        if is_cut && state_of(session, call)?.is_held() {
            let invalid = Judgement {
                reason: Some(UNSEEN_TEXT.to_owned()),
                ..Judgement::new(Verdict::Invalid)
            };
            session.own.replace_judgement(call, &invalid);
        }
        Ok(())
    }

    async fn judge(self, session: &mut TaskSession) -> Result<CallId, Refusal> {
        let calls = &session.own.progress.calls;
        let call = calls.first().map(|state| state.call.tool_call_id);
        let call = call.ok_or_else(|| Refusal::internal("a proposal has no call"))?;
        let judged = Driver::new(self.engine, session, self.agent)
            .judge_calls(&[call])
            .await;
        judged.map_err(|stop| match stop {
            Stop::Reloaded | Stop::Lost => Refusal::Unavailable,
        })?;
        Ok(call)
    }

    /// Adds the proposal's idempotency key, if it has one, to the first commit. If `keyed` is
    /// `Some`, also adds this call key and the client's presence. By the call key, a later proposal
    /// of an equal call finds this call. By the presence, the later proposal sees whether the
    /// client of this call still waits.
    fn add_identity(self, session: &mut TaskSession, keyed: Option<KeyedCall>) {
        let key = self.key();
        session.idempotency = key.map(|key| key.row(self.caller, session, None));
        if keyed.is_some() {
            let returns_within = self.proposal.returns_within;
            let lasts = self.proposal.wait + returns_within.max(PRESENCE_GRACE);
            session.own.asker = Some(AskerPresence::PresentFor(lasts));
        }
        session.own.call = keyed;
    }

    /// Like [`AskerGuard::drive`], for a task that is not stored yet. Returns `None` if the
    /// database refused the first commit, or if there was no commit. The background work holds
    /// `guard` and `open` until the first commit, even if the client leaves earlier. If `guard`
    /// were dropped earlier, it could not end the presence in the task's row, because the row would
    /// not exist yet. If `open` were dropped earlier, another proposal could count the user's
    /// pending calls without this call.
    async fn drive_unsaved(
        self,
        session: TaskSession,
        guard: Arc<AskerGuard>,
        open: Option<OpenCallGuard>,
    ) -> Result<Option<Proposed>, Refusal> {
        let asker = Arc::clone(&guard);
        let stored = self.engine.drivers.spawn(async move {
            let driven = asker.drive(session).await;
            drop(open);
            driven
        });
        let driven = stored
            .await
            .map_err(|_| Refusal::internal("the drive of a proposal panicked"))?;
        if matches!(driven, Err(CommitError::Stale)) {
            return Ok(Some(Proposed::Outdated));
        }
        let drive = unless_conflict(driven)?.flatten();
        Ok(drive.map(|drive| Proposed::Stored(guard, drive)))
    }

    /// Whether the session's task is a call of the proposal's gate, session, tool and arguments.
    fn is_same_call(self, session: &TaskSession) -> bool {
        let (row, proposal) = (&session.own.row, self.proposal);
        let is_equal = |state: &CallState| {
            let (name, text) = (&state.call.name, &state.call.arguments_text);
            *name == proposal.tool && is_equal_json(text, &proposal.arguments_text)
        };
        row.agent == self.agent.name
            && row.session_id == proposal.session()
            && session.own.progress.calls.first().is_some_and(is_equal)
    }
}

/// Whether a gate with `record: held` counts the call in the metrics and does not store it. The
/// gate does so if the call is allowed, is `read_only`, and does not run in this service.
fn is_only_counted(state: &CallState) -> bool {
    state.phase == Phase::Allowed
        && state.effect == Effect::ReadOnly
        && state.performer.properties().runs_at_client
}

fn state_of(session: &TaskSession, call: CallId) -> Result<CallState, Refusal> {
    let state = session.own.progress.call(call).cloned();
    state.ok_or_else(|| Refusal::internal("a proposal has no call"))
}

/// Changes the pending judgement of a call. `Reject` denies the call, and `Hold` holds an allowed
/// call. If the call is held already, `Hold` and `Notice` add their text to the reason, and no
/// standing decision is offered. `Notice` does not change the judgement of an allowed call.
fn amend_judgement(
    policy: &Policy,
    session: &mut TaskSession,
    call: CallId,
    amendment: JudgementAmendment,
) -> Result<(), Refusal> {
    let state = state_of(session, call)?;
    let Some(judgement) = state.judgement.clone() else {
        return Err(Refusal::internal("a proposed call has no judgement"));
    };
    let is_held = judgement.verdict != Verdict::Allow;
    let judgement = match amendment {
        JudgementAmendment::Reject { call, reason } => denied_again(call, reason.as_deref()),
        JudgementAmendment::Notice(_) if !is_held => return Ok(()),
        JudgementAmendment::Notice(notice) | JudgementAmendment::Hold(notice) if is_held => {
            Judgement {
                reason: Some(match &judgement.reason {
                    Some(reason) => format!("{} {notice}", as_sentence(reason)),
                    None => notice,
                }),
                offer: None,
                ..judgement
            }
        }
        JudgementAmendment::Notice(notice) | JudgementAmendment::Hold(notice) => {
            held_despite_permission(policy, judgement, notice)
        }
    };
    session.own.replace_judgement(call, &judgement);
    Ok(())
}
