//! Derives the state of a gate call, as its asker sees it, from the journal.

use std::time::Duration;

use uuid::Uuid;

use crate::engine::session::TaskSession;
use crate::store::RequestRow;
use crate::task::asker::startable_since;
use crate::task::call_state::{CallState, Phase};
use crate::task::change::TaskRow;
use crate::task::failure::Failure;
use crate::task::id::{CallId, TaskId};
use crate::task::item::{Fact, Item, Outcome, ToolResult, newest_decisions};
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::time::Time;
use crate::task::verdict::Verdict;
use crate::task::words::word_enum;

word_enum! {
    /// The verdict for an asker (a client that proposes the call and waits for it).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum GateDecision {
        /// The call may run now, or has run.
        Allow = "allow",
        /// The call never started, and never will.
        Deny = "deny",
        /// There is no verdict for this client yet. The reason is one of these: the call is not
        /// judged; a person must answer a request about the call; the call is approved, and starts
        /// when its agent proposes it again; the call was started, and this client has no permit.
        Pending = "pending",
    }
}

/// The state of a gate call, as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// The call waits for a judgement, for a person's decision, or for a person's answer to
    /// questions of the MCP server.
    Pending,
    /// The call may start as soon as its asker (the client that proposed the call) waits for it.
    Approved,
    /// The call runs, in this service or elsewhere.
    Started,
    /// The outcome of the call is unknown, and a person is asked about the outcome.
    OutcomeUnknown,
    /// The call has its result and will not run again.
    Settled,
}

/// The right to run one attempt at a call outside this service, given to one asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// The number of the permitted attempt, from 1.
    pub attempt: u32,
    /// The end of the permit, by the database's clock.
    pub expires_at: Time,
    /// The time that was left until `expires_at` when the call was read, for clients with another
    /// clock.
    pub expires_in: Duration,
}

/// A gate call as an asker or a reader sees it.
#[derive(Clone, Debug)]
pub struct GateCall {
    pub task_id: TaskId,
    /// The id of the call, which the tool may use as its idempotency key.
    pub tool_call_id: CallId,
    pub gate: String,
    pub tool: String,
    /// The caller's session id; `gate` if the proposal named no session.
    pub session_id: String,
    /// The arguments with which the call runs; after an edit, the edited text.
    pub arguments_text: String,
    /// Whether a person replaced the arguments.
    pub edited: bool,
    /// The call's digest in its last start or last request, whichever is newer. If there is
    /// neither: the digest under the current configuration, or `None` if the call is invalid or its
    /// tool is gone. Also `None` for a call that has no journal, because of the gate's `record:
    /// held`.
    pub digest: Option<String>,
    pub decision: GateDecision,
    pub state: GateState,
    /// The outcome of the call; `None` until the call is settled.
    pub outcome: Option<Outcome>,
    /// The name of the rule that judged the call; `None` if no rule judged the call.
    pub rule: Option<String>,
    /// The reason that a person gave for a rejection, otherwise the reason of the judgement.
    pub reason: Option<String>,
    /// The text about the end of the call; `None` except in three cases:
    /// - The call expired, failed, was withdrawn or was canceled, and was never started. The text
    ///   is the text of the call's result.
    /// - The asker started the call, and the call has such a result, but the asker did not report
    ///   this result. The text is the text of the result.
    /// - The task failed before the call was started. The text is the text of the failure.
    pub end_text: Option<String>,
    /// The user ids of the people who approved the call, each once.
    pub by: Vec<String>,
    /// The open permit; `None` if the client to which the call is shown has no permit.
    pub permit: Option<Permit>,
    /// The result of a call that this service ran, or that a person supplied. `None` for a result
    /// that the asker reported, and for a call without a result.
    pub result: Option<ToolResult>,
    /// The last request about the call, whether open or closed.
    pub request: Option<Box<RequestRow>>,
    /// The number of attempts at the call that were started.
    pub attempts: u32,
    /// Whether the call is invalid, so that no decision can let it run.
    pub can_never_run: bool,
    pub repetition: Repetition,
    /// Whether the asker runs the call, and not this service.
    pub runs_elsewhere: bool,
    /// The time at which the call was proposed, by the database's clock.
    pub created_at: Time,
    /// The time at which the present state ends if nothing else happens. `None` if the state does
    /// not end by itself.
    pub expires_at: Option<Time>,
    /// The time at which the call was read, by the database's clock.
    pub now: Time,
}

/// The treatment of a later proposal that equals this call, until this call is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repetition {
    /// The later proposal continues this call, unless another asker waits for this call. If this
    /// call was proposed as `Identity::CallOrKey`, or as `Identity::Key` without `attach`, the
    /// later proposal must also name it by key or id.
    Continues,
    /// The later proposal is a new call, unless it names this call by key or id.
    RunsAgain,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum CallViewer<'v> {
    /// A client that reads the call but has not proposed it. Such a client never gets a permit.
    Reader,
    /// The client of an ask (one HTTP request that proposes the call). The fields are the id of the
    /// ask and the runner that the proposal names (`""` if the proposal names no runner).
    Asker(Uuid, &'v str),
}

impl GateCall {
    /// Returns the call of the session's task, as `viewer` sees it; `None` if the task is not a
    /// gate call. `use_within` is the gate's time for starting an approved call.
    pub(super) fn from_session(
        session: &TaskSession,
        use_within: Duration,
        viewer: CallViewer<'_>,
    ) -> Option<Self> {
        let own = &session.own;
        let state = own.progress.calls.first()?;
        let call = CallView {
            items: &own.items,
            state,
            status: own.progress.status?,
            failure: own.row.error.as_ref(),
        };
        let request = call.request(&own.row);
        let gate_state = call.state();
        let permit = call.permit(session.now, viewer);
        let result = call.result();
        let judgement = state.judgement.as_ref();
        Some(Self {
            task_id: own.row.task_id,
            tool_call_id: state.call.tool_call_id,
            gate: own.row.agent.clone(),
            tool: state.call.name.clone(),
            session_id: own.row.session_id.clone(),
            arguments_text: state.arguments_text().to_owned(),
            edited: state.edited.is_some(),
            digest: call.digest(),
            can_never_run: judgement.is_some_and(|found| found.verdict == Verdict::Invalid),
            decision: call.decision(gate_state, permit.is_some()),
            state: gate_state,
            outcome: call.outcome(result),
            rule: judgement.and_then(|judgement| judgement.rule.clone()),
            reason: call.rejection().or_else(|| judgement?.reason.clone()),
            end_text: call.end_text(result),
            by: call.approvers(),
            permit,
            result: result.filter(|result| call.is_shown(result)).cloned(),
            expires_at: call.expires_at(request.as_ref(), use_within),
            request: request.map(Box::new),
            attempts: state.attempts,
            repetition: if own.row.asker_until.is_some() {
                Repetition::Continues
            } else {
                Repetition::RunsAgain
            },
            runs_elsewhere: state.performer.properties().runs_at_client,
            created_at: own.items.first().map(|item| item.at).unwrap_or_default(),
            now: session.now,
        })
    }

    /// Whether the call was allowed, needs no person and waits for a slot. The service starts such
    /// a call by itself, also if its asker leaves, and an equal proposal is a new call.
    #[must_use]
    pub fn is_queued(&self) -> bool {
        self.state == GateState::Approved
            && self.repetition == Repetition::RunsAgain
            && self.request.is_none()
            && !self.runs_elsewhere
    }
}

struct CallView<'c> {
    items: &'c [Item],
    state: &'c CallState,
    status: TaskStatus,
    /// The failure of the task; `None` if the task has not failed.
    failure: Option<&'c Failure>,
}

impl<'c> CallView<'c> {
    /// Calls `find` on the facts, the last fact first, and returns the first value that is not
    /// `None`.
    fn find_last<T>(&self, find: impl Fn(&'c Fact) -> Option<T>) -> Option<T> {
        self.items.iter().rev().find_map(|item| find(&item.fact))
    }

    fn state(&self) -> GateState {
        match self.state.phase {
            Phase::Done(_) | Phase::Settled(..) => GateState::Settled,
            _ if self.status.is_terminal() => GateState::Settled,
            Phase::OutcomeUnknown(_) => GateState::OutcomeUnknown,
            Phase::Started(_) => GateState::Started,
            Phase::Allowed | Phase::Approved(_) => GateState::Approved,
            Phase::New
            | Phase::Held(_)
            | Phase::Human(_)
            | Phase::ServerAsks
            | Phase::AwaitsDecision(_)
            | Phase::Delegated(_) => GateState::Pending,
        }
    }

    fn decision(&self, shown: GateState, has_permit: bool) -> GateDecision {
        match shown {
            GateState::Settled if self.state.attempts > 0 => GateDecision::Allow,
            GateState::Settled => GateDecision::Deny,
            GateState::Started if has_permit => GateDecision::Allow,
            GateState::Started
            | GateState::Pending
            | GateState::Approved
            | GateState::OutcomeUnknown => GateDecision::Pending,
        }
    }

    /// Returns the open permit if it was given to `viewer` or to the runner of `viewer`, otherwise
    /// `None`.
    fn permit(&self, now: Time, viewer: CallViewer<'_>) -> Option<Permit> {
        let start = self.state.start.as_ref()?;
        let (permitted_ask, permitted_runner) = start.permit_holder()?;
        let CallViewer::Asker(ask, runner) = viewer else {
            return None;
        };
        let is_holder = ask == permitted_ask || (!runner.is_empty() && runner == permitted_runner);
        let is_running =
            matches!(self.state.phase, Phase::Started(_)) && !self.state.is_attempt_over;
        // A released call has its result at once, although the asker may still run the call. So the
        // permit stays open until it ends or the asker reports the outcome.
        let is_released =
            matches!(self.state.phase, Phase::Done(Outcome::Released)) && !self.is_reported();
        let expires_at = start.ends_at(Duration::ZERO);
        (is_holder && (is_running || is_released) && now < expires_at).then(|| Permit {
            attempt: start.attempt,
            expires_at,
            expires_in: expires_at.since(now),
        })
    }

    /// Whether the asker has reported an outcome of a released call.
    fn is_reported(&self) -> bool {
        let report = |fact: &Fact| matches!(fact, Fact::LateResult(result) if result.reported);
        self.items.iter().any(|item| report(&item.fact))
    }

    /// Returns the last result; `None` if the call is open, or if its task has failed before the
    /// call had a result.
    fn result(&self) -> Option<&'c ToolResult> {
        self.find_last(|fact| {
            let Fact::ToolResult(result) = fact else {
                return None;
            };
            Some(result)
        })
    }

    /// Returns the outcome for [`GateCall::outcome`]. A failed task never runs its call again. So if
    /// the call of a failed task has no result, the outcome is final: `Unknown` if the call was
    /// started, otherwise `Withdrawn`.
    fn outcome(&self, result: Option<&ToolResult>) -> Option<Outcome> {
        match (result, self.failure) {
            (Some(result), _) => Some(result.outcome),
            (None, Some(_)) if self.state.attempts > 0 => Some(Outcome::Unknown),
            (None, Some(_)) => Some(Outcome::Withdrawn),
            (None, None) => None,
        }
    }

    /// Returns the text for [`GateCall::end_text`].
    fn end_text(&self, result: Option<&ToolResult>) -> Option<String> {
        let was_started = self.state.attempts > 0;
        let Some(result) = result else {
            let failure = self.failure.filter(|_| !was_started)?;
            return Some(failure.detail.clone());
        };
        let has_text = matches!(
            result.outcome,
            Outcome::Expired | Outcome::Withdrawn | Outcome::Canceled | Outcome::Failed
        );
        let is_unreported = self.state.performer.properties().runs_at_client && !result.reported;
        let is_told = has_text && (!was_started || is_unreported) && !result.content.is_empty();
        is_told.then(|| result.content.clone())
    }

    /// Whether the asker is shown the result. A result that the asker itself reported is not shown.
    fn is_shown(&self, result: &ToolResult) -> bool {
        !self.state.performer.properties().runs_at_client || result.outcome == Outcome::Responded
    }

    fn request(&self, row: &TaskRow) -> Option<RequestRow> {
        let id = self.find_last(|fact| {
            let Fact::InterventionRequested(asked) = fact else {
                return None;
            };
            Some(asked.request_id)
        })?;
        let closed = self.find_last(|fact| {
            if let Fact::RequestClosed { status, .. } = fact {
                return (fact.request_id() == Some(id)).then_some(*status);
            }
            let Fact::Decision { decision, .. } = fact else {
                return None;
            };
            let decides = decision.closes && fact.request_id() == Some(id);
            decides.then_some(RequestStatus::Resumed)
        });
        let timed = self.items.iter().map(|item| (item.at, item));
        let request = RequestRow::from_journal(row, timed, id)?;
        Some(RequestRow {
            status: closed.unwrap_or(request.status),
            ..request
        })
    }

    /// Returns the reason that a person gave for rejecting the call; `None` if there is no
    /// rejection, or if it has no reason.
    fn rejection(&self) -> Option<String> {
        let Phase::Done(Outcome::Rejected) = self.state.phase else {
            return None;
        };
        let id = self.state.call.tool_call_id;
        newest_decisions(self.items)
            .find_map(|(_, _, decision)| decision.reason_about(id).map(str::to_owned))
    }

    fn approvers(&self) -> Vec<String> {
        let mut by: Vec<String> = Vec::new();
        for vote in self.state.approval.iter().flat_map(|approval| &approval.by) {
            if !by.contains(&vote.by) {
                by.push(vote.by.clone());
            }
        }
        by
    }

    fn digest(&self) -> Option<String> {
        let id = self.state.call.tool_call_id;
        self.find_last(|fact| {
            if let Fact::ToolStarted { digest, .. } = fact {
                return Some(digest.clone());
            }
            let Fact::InterventionRequested(asked) = fact else {
                return None;
            };
            let own = asked.own_calls().find(|call| call.tool_call_id == id);
            own.map(|call| call.digest.clone())
        })
    }

    fn expires_at(&self, request: Option<&RequestRow>, use_within: Duration) -> Option<Time> {
        match self.state() {
            GateState::Started => {
                let start = self.state.start.as_ref()?;
                let is_elsewhere = start.is_run_by_asker();
                is_elsewhere.then(|| start.ends_at(Duration::ZERO))
            }
            GateState::Approved => startable_since(self.items).map(|at| at + use_within),
            GateState::Pending | GateState::OutcomeUnknown => {
                request.and_then(|row| row.expires_at)
            }
            GateState::Settled => None,
        }
    }
}
