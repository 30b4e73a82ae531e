//! Derives from a task's progress which calls end, which requests the task opens, which calls and
//! sub-agents start, and which events the task waits for.

use std::collections::BTreeSet;

use super::call_state::{CallState, Phase};
use super::decision::Action;
use super::id::CallId;
use super::item::Outcome;
use super::progress::{Progress, RequestProgress};
use super::request::RequestKind;
use super::step::{AwaitedEvent, StepContext};
use super::verdict::{Approvers, Terms};

/// Maximum number of open requests in a tree. The driver opens further requests after others are
/// closed.
pub(crate) const MAX_OPEN_REQUESTS: usize = 20;

/// Maximum number of a task's calls that run in parallel.
const MAX_PARALLEL_CALLS: usize = 8;

#[derive(Clone, Debug, PartialEq)]
pub struct PlannedRequest {
    pub kind: RequestKind,
    pub calls: Vec<CallId>,
    /// Terms under which people decide the request.
    pub terms: Terms,
}

impl CallState {
    /// Whether the call needs an approval or is itself a request to a person, and the request is
    /// not open yet.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(self.phase, Phase::Held(_) | Phase::Human(_))
    }
}

impl Progress {
    /// Whether the turn is blocked, so that none of its calls may run. The turn is blocked while a
    /// request whose kind has `blocks_turn` is open, and while a call needs a request that is not
    /// open yet.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.open
            .iter()
            .any(|open| open.spec.kind.properties().blocks_turn)
            || self.unfinished().any(CallState::is_held)
    }

    /// Whether a driver has work to do for the task now. While a request blocks the turn, there is
    /// no work. Otherwise, there is work in two cases:
    /// - The task has neither an open request nor a running sub-agent.
    /// - An unfinished call neither waits for a decision, nor is settled, nor runs in a sub-agent's
    ///   task.
    #[must_use]
    pub fn has_work(&self) -> bool {
        let delegated = |state: &CallState| state.child().is_some();
        let may_go_on = |state: &CallState| {
            !matches!(
                state.phase,
                Phase::AwaitsDecision(_) | Phase::Settled(..) | Phase::Delegated(_)
            )
        };
        let waits_for_others = !self.open.is_empty() || self.unfinished().any(delegated);
        !self.is_blocked() && (!waits_for_others || self.unfinished().any(may_go_on))
    }

    /// Whether one of the task's calls needs a new request now, or may need a new request later. A
    /// parked task with such a call waits while the tree has `MAX_OPEN_REQUESTS` open requests. The
    /// close of any of these requests queues the task again.
    #[must_use]
    pub fn may_open_request(&self) -> bool {
        self.unfinished().any(|state| match state.phase {
            Phase::New
            | Phase::Allowed
            | Phase::Held(_)
            | Phase::Human(_)
            | Phase::ServerAsks
            | Phase::Approved(_)
            | Phase::Started(_) => true,
            Phase::AwaitsDecision(_)
            | Phase::Settled(..)
            | Phase::OutcomeUnknown(_)
            | Phase::Delegated(_)
            | Phase::Done(_) => false,
        })
    }

    /// Whether a person has supplied this call's result in an approval request that is still open,
    /// because other calls of the request are undecided. The result becomes final when the request
    /// is closed. If a later answer to the request ends the task, the result is discarded.
    pub(super) fn has_provisional_result(&self, state: &CallState) -> bool {
        let respond = Some(&Action::Respond);
        let decides =
            |open: &RequestProgress| open.decided.get(&state.call.tool_call_id) == respond;
        self.open
            .iter()
            .any(|open| open.spec.kind.properties().decides_calls && decides(open))
    }

    /// Returns the number of further requests that the tree may open.
    #[must_use]
    pub fn remaining_requests(&self) -> usize {
        MAX_OPEN_REQUESTS
            .saturating_sub(self.open.len())
            .saturating_sub(self.open_elsewhere)
    }
}

/// Returns the results of the calls that will not run again. Leaves out a call with a provisional
/// result, and a call whose last attempt ended with questions of the tool's server: a request asks
/// these questions next.
pub(super) fn settlements(
    progress: &Progress,
    context: &StepContext,
) -> Vec<(CallId, Outcome, String)> {
    let asks = |state: &CallState| {
        context
            .ended_with_questions
            .contains(&state.call.tool_call_id)
    };
    progress
        .unfinished()
        .filter(|state| !progress.has_provisional_result(state) && !asks(state))
        .filter_map(|state| state.settlement(context.is_driven_elsewhere))
        .collect()
}

/// Returns the requests to open now. All held calls with equal terms share one request. A call of a
/// `request_…` tool gets its own request. A call gets its own request, too, if a person has edited
/// its arguments. Requests beyond [`Progress::remaining_requests`] are opened later.
pub(super) fn planned_requests(progress: &Progress) -> Vec<PlannedRequest> {
    // Each planned request has a flag that says whether further calls may join the request.
    let mut requests: Vec<(bool, PlannedRequest)> = Vec::new();
    for state in progress.unfinished() {
        let (kind, terms) = match &state.phase {
            Phase::Held(terms) => (RequestKind::Approval, terms),
            // The verdict is `human`. A call of a `request_…` tool opens a request of the tool's
            // kind. Any other call opens an approval request.
            Phase::Human(terms) => (
                RequestKind::from_tool(&state.call.name).unwrap_or(RequestKind::Approval),
                terms,
            ),
            Phase::New
            | Phase::Allowed
            | Phase::ServerAsks
            | Phase::AwaitsDecision(_)
            | Phase::Approved(_)
            | Phase::Settled(..)
            | Phase::Started(_)
            | Phase::OutcomeUnknown(_)
            | Phase::Delegated(_)
            | Phase::Done(_) => continue,
        };
        let can_join = kind.properties().decides_calls && state.edited.is_none();
        let with = |(joinable, request): &&mut (bool, PlannedRequest)| {
            can_join && *joinable && request.terms == *terms
        };
        if let Some((_, request)) = requests.iter_mut().find(with) {
            request.calls.push(state.call.tool_call_id);
        } else {
            let calls = vec![state.call.tool_call_id];
            requests.push((
                can_join,
                PlannedRequest {
                    kind,
                    calls,
                    terms: terms.clone(),
                },
            ));
        }
    }
    requests
        .into_iter()
        .map(|(_, request)| request)
        .take(progress.remaining_requests())
        .collect()
}

/// Returns the requests that ask the API's client to run calls and to answer with their results.
/// `next_step` calls this function only if no request blocks the turn. Only the task's owner may
/// answer such a request, because the owner's client runs the call. This also holds for a call that
/// other people approved.
pub(super) fn external_result_requests(progress: &Progress) -> Vec<PlannedRequest> {
    let ready = progress.unfinished().filter(|state| {
        state.performer.properties().runs_at_client
            && matches!(state.phase, Phase::Allowed | Phase::Approved(_))
    });
    let requests = ready.map(|state| PlannedRequest {
        kind: RequestKind::ExternalResult,
        calls: vec![state.call.tool_call_id],
        terms: Terms {
            approvers: Approvers::default(),
            ..state.terms()
        },
    });
    requests.take(progress.remaining_requests()).collect()
}

/// Returns the calls to hand to sub-agents now. `sessions` names the sub-agents that have a single
/// conversation for all calls. Such a sub-agent performs one call at a time: if it is idle, it gets
/// its first ready call; otherwise, it gets none.
pub(super) fn sub_agents_to_start(progress: &Progress, sessions: &BTreeSet<String>) -> Vec<CallId> {
    let mut busy_sessions: BTreeSet<&str> = BTreeSet::new();
    let mut starting = Vec::new();
    for state in progress
        .unfinished()
        .filter(|state| state.performer.properties().starts_sub_agent)
    {
        let name = state.call.name.as_str();
        let ready = matches!(state.phase, Phase::Allowed | Phase::Approved(_));
        let is_running = state.child().is_some();
        if ready && !busy_sessions.contains(name) {
            starting.push(state.call.tool_call_id);
        }
        if (ready || is_running) && sessions.contains(name) {
            busy_sessions.insert(name);
        }
    }
    starting
}

/// Returns the next calls to run in parallel, in the model's order. They are either consecutive
/// repeatable calls, or a single call that is not repeatable. Returns at most
/// [`MAX_PARALLEL_CALLS`] calls. Also returns at most [`Progress::remaining_requests`] calls,
/// because each call that runs may need a request, for example about its unknown outcome.
pub(super) fn next_parallel_calls(progress: &Progress) -> Vec<CallId> {
    let mut calls = Vec::new();
    let is_performed_here =
        |state: &&CallState| !state.performer.properties().is_performed_elsewhere();
    for state in progress.unfinished().filter(is_performed_here) {
        let repeatable = state.effect.is_repeatable();
        let can_run = matches!(
            state.phase,
            Phase::Allowed | Phase::Approved(_) | Phase::Started(_)
        );
        if !can_run || !(calls.is_empty() || repeatable) {
            break;
        }
        calls.push(state.call.tool_call_id);
        if !repeatable || calls.len() == MAX_PARALLEL_CALLS {
            break;
        }
    }
    calls.truncate(progress.remaining_requests());
    calls
}

/// Returns the calls that need an elicitation now, which asks a person a question of the tool's
/// server. A call needs an elicitation in two cases:
/// - Its last attempt ended with questions. `ended` holds these calls.
/// - A person has answered a question, and another question of the server has no answer yet.
pub(super) fn calls_to_elicit(progress: &Progress, ended: &BTreeSet<CallId>) -> Vec<CallId> {
    unfinished_ids(progress, |state| {
        let has_ended = ended.contains(&state.call.tool_call_id);
        state.phase == Phase::ServerAsks || (has_ended && matches!(state.phase, Phase::Started(_)))
    })
}

pub(super) fn unfinished_ids(
    progress: &Progress,
    which: impl Fn(&CallState) -> bool,
) -> Vec<CallId> {
    progress
        .unfinished()
        .filter(|state| which(state))
        .map(|state| state.call.tool_call_id)
        .collect()
}

/// Returns the events that the task waits for. `attempts` lists the calls with an attempt that may
/// still be in flight.
pub(super) fn awaited_events(progress: &Progress, attempts: Vec<CallId>) -> Vec<AwaitedEvent> {
    let requests = progress
        .open
        .iter()
        .map(|open| AwaitedEvent::Request(open.spec.request_id));
    let children = progress
        .unfinished()
        .filter_map(CallState::child)
        .map(AwaitedEvent::Child);
    let request_closed = (progress.remaining_requests() == 0 && progress.may_open_request())
        .then_some(AwaitedEvent::RequestClosed);
    requests
        .chain(attempts.into_iter().map(AwaitedEvent::Attempt))
        .chain(children)
        .chain(request_closed)
        .collect()
}
