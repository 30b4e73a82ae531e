//! Opens requests to people. Invariant: the content and the terms of a request never change after
//! the request is committed.

use serde_json::{Value, json};

use super::verdict::terms_of_granting_rule;
use super::{Driver, Stop};
use crate::agent::gate::Report;
use crate::engine::recovery::integrity::approval_damage;
use crate::task::call_state::{AttemptStart, CallState};
use crate::task::decision::Action;
use crate::task::id::CallId;
use crate::task::item::Fact;
use crate::task::planned_request::PlannedRequest;
use crate::task::request::{RequestKind, RequestSpec};
use crate::task::request_kind::ResponseKind;
use crate::task::restore::MAY_HAVE_RUN_TEXT;
use crate::task::step::Ending;
use crate::task::tool_spec::ToolKind;
use crate::task::verdict::Terms;
use crate::tool::human;

/// The problem that a reconcile request shows for a started call without a result, if no other
/// problem is known.
const PROCESS_ENDED_TEXT: &str =
    "The process that sent the call ended before its result was stored.";
/// Like [`PROCESS_ENDED_TEXT`], for a call that its asker runs and whose outcome was not reported.
const NOT_REPORTED_TEXT: &str =
    "The caller was given leave to run the call and reported no outcome in time.";
const REPORTED_UNKNOWN_TEXT: &str =
    "The caller was given leave to run the call and reported that its outcome is unknown.";
/// The `replica` that a request shows for a call that its asker runs. This text replaces the name
/// of the asker's runner, because a client that knows this name and the call's idempotency key
/// could get the permit.
const ELSEWHERE: &str = "elsewhere";

impl Driver<'_> {
    /// Opens the requests that a turn needs. An approval shows all calls of the turn; a request of
    /// another kind shows the call that it is about.
    pub(crate) async fn open_requests(
        &mut self,
        requests: Vec<PlannedRequest>,
    ) -> Result<(), Stop> {
        for request in requests {
            // A request with `FormResult` asks a client to run an external tool and to send the
            // result. This service never starts the call of such a request. So the checks that
            // other calls pass right before their start are made before the request opens.
            if request.kind.properties().response == ResponseKind::FormResult {
                if let Some(failure) = approval_damage(self.session, &request.calls) {
                    self.finish(Ending::Failed(failure)).await?;
                    return Ok(());
                }
                if self.recheck(&request.calls).await? {
                    continue;
                }
            } else if self.deny_rejected(&request.calls) {
                continue;
            }
            let Some(first) = request
                .calls
                .first()
                .and_then(|id| self.session.own.progress.call(*id))
                .cloned()
            else {
                continue;
            };
            let is_asked_about =
                |state: &CallState| request.calls.contains(&state.call.tool_call_id);
            let decides_calls = request.kind.properties().decides_calls;
            let is_shown = |state: &&CallState| {
                if decides_calls {
                    state.turn == first.turn
                } else {
                    is_asked_about(state)
                }
            };
            let calls = self.session.own.progress.calls.iter().filter(is_shown);
            let calls = calls
                .map(|state| self.requested_call(state, is_asked_about(state)))
                .collect();
            let terms = self.terms_of(&request);
            if decides_calls {
                self.session.identify_pending_call();
            }
            let mut spec = self.new_request(request.kind, calls, terms);
            self.add_question_and_form(&mut spec, &first);
            self.session
                .push(Fact::InterventionRequested(spec.sealed()));
        }
        Ok(())
    }

    /// Returns the terms of a request. Removes `edit` from an approval if none of its calls could
    /// run with other arguments.
    fn terms_of(&self, request: &PlannedRequest) -> Terms {
        let mut terms = request.terms.clone();
        let progress = &self.session.own.progress;
        let mut calls = request.calls.iter().filter_map(|id| progress.call(*id));
        let decides_calls = request.kind.properties().decides_calls;
        if decides_calls && !calls.any(|state| self.is_editable(state)) {
            terms.allow.retain(|action| *action != Action::Edit);
            if terms.allow.is_empty() {
                terms.allow.push(Action::Reject);
            }
        }
        terms
    }

    /// Whether a call could run with other arguments. Returns `false` for a call that was sent,
    /// because its tool knows the call by an idempotency key. Also returns `false` for a call that
    /// a gateway runs, because a gateway cannot change the call. If a gate has `ext_authz` and
    /// requires no reports, a gateway is assumed to run every call that the asker runs.
    fn is_editable(&self, state: &CallState) -> bool {
        let gate = self.agent.gate.as_deref();
        let must_stay_unchanged =
            gate.is_some_and(|gate| gate.ext_authz.is_some() && gate.report == Report::Optional);
        let is_fixed = must_stay_unchanged && state.performer == ToolKind::External;
        state.attempts == 0 && !is_fixed
    }

    fn add_question_and_form(&self, spec: &mut RequestSpec, state: &CallState) {
        let entry = self.offered(&state.call.name);
        if spec.kind.properties().response == ResponseKind::FormResult {
            spec.form = entry.and_then(|entry| entry.result_schema.clone());
        }
        if spec.kind.tool() != Some(state.call.name.as_str()) {
            return;
        }
        let arguments = serde_json::from_str(state.arguments_text()).unwrap_or(Value::Null);
        if let Ok(question) = human::question(
            spec.kind,
            &arguments,
            self.engine.catalog.services(&self.agent.name),
        ) {
            spec.question = question.text;
            spec.details = question.details;
            spec.form = question.form;
        }
    }

    /// Opens a request about the unknown outcome of each of these calls. The outcome is unknown in
    /// two cases: the last attempt is over and left no known result, or the call may have run in a
    /// part of the history that a restore or failover has lost. First calls `refresh_tools`: the
    /// digest of a request covers the definition of the call's tool, and every replica must compute
    /// the same digest.
    ///
    /// # Errors
    /// `Lost` when the service goes down before the database answers.
    pub(super) async fn reconcile(&mut self, calls: &[CallId]) -> Result<(), Stop> {
        self.refresh_tools(calls).await?;
        for state in self.states_of(calls) {
            let id = state.call.tool_call_id;
            let problem = self.session.unknown_outcomes.get(&id).cloned();
            let problem = problem.or_else(|| self.earlier_problem(&state));
            let start = state.start.as_ref();
            let is_elsewhere = start.is_some_and(AttemptStart::is_run_by_asker);
            let usual_problem = if state.is_ready_but_uncertain() {
                MAY_HAVE_RUN_TEXT
            } else if is_elsewhere && state.is_attempt_over {
                REPORTED_UNKNOWN_TEXT
            } else if is_elsewhere {
                NOT_REPORTED_TEXT
            } else {
                PROCESS_ENDED_TEXT
            };
            let replica = start.map(|start| {
                if is_elsewhere {
                    ELSEWHERE
                } else {
                    &start.replica
                }
            });
            let details = json!({
                "sent_at": start.map(|start| start.at.to_string()),
                "attempt": start.map(|start| start.attempt),
                "replica": replica,
                "problem": problem.as_deref().unwrap_or(usual_problem),
            });
            if start.is_some_and(|start| !is_elsewhere && start.replica != self.engine.replica) {
                self.session.end_lost_presence();
            }
            if self.agent.gate.is_some() {
                self.session.identify_doubtful_call(&state.call);
            }
            let calls = vec![self.requested_call(&state, true)];
            let terms = self.reconcile_terms(&state);
            let spec = self.new_request(RequestKind::Reconcile, calls, terms);
            let spec = RequestSpec {
                details: Some(details),
                ..spec
            };
            self.session
                .push(Fact::InterventionRequested(spec.sealed()));
        }
        Ok(())
    }

    /// Returns the terms of a request about the outcome of a call. An approved call has the terms
    /// under which it was approved. For a call that a standing decision allowed, the present rule
    /// gives the terms. Any other allowed call is the owner's.
    fn reconcile_terms(&self, state: &CallState) -> Terms {
        let granting = || terms_of_granting_rule(&self.engine.policy, state.judgement.as_ref()?);
        let terms = state.recorded_terms().cloned().or_else(granting);
        terms.unwrap_or_default()
    }

    /// Returns the problem that an earlier request showed about the last attempt at a call; `None`
    /// if there was no such request.
    fn earlier_problem(&self, state: &CallState) -> Option<String> {
        let attempt = u64::from(state.start.as_ref()?.attempt);
        let id = state.call.tool_call_id;
        self.session.own.items.iter().rev().find_map(|item| {
            let Fact::InterventionRequested(asked) = &item.fact else {
                return None;
            };
            let is_about = asked.kind.properties().outcome_unknown
                && asked.own_calls().any(|call| call.tool_call_id == id);
            let details = asked.details.as_ref().filter(|_| is_about)?;
            let is_same = details.get("attempt")?.as_u64() == Some(attempt);
            let problem = details.get("problem")?.as_str()?;
            is_same.then(|| problem.to_owned())
        })
    }
}
