//! Opens requests to people. Invariant: the content and the terms of a request never change after
//! the request is committed.

use serde_json::{Value, json};

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
use crate::task::verdict::{Judgement, Terms};
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
    /// Opens the requests that a turn needs. Opens none of them if a call needs another judgement
    /// first, because the journal has the judgements of a commit before its requests. The driver
    /// then asks `next_step` again. Also opens none, and fails the task, if an approval is damaged.
    pub(crate) async fn open_requests(
        &mut self,
        requests: Vec<PlannedRequest>,
    ) -> Result<(), Stop> {
        let mut specs = Vec::new();
        for request in &requests {
            // A request with `FormResult` asks a client to run an external tool and to send the
            // result. This service never starts the call of such a request. So the checks that
            // other calls pass right before their start are made before the request opens.
            if request.kind.properties().response == ResponseKind::FormResult {
                if let Some(failure) = approval_damage(self.session, &request.calls) {
                    self.finish(Ending::Failed(failure)).await?;
                    return Ok(());
                }
                if self.recheck(&request.calls).await? {
                    return Ok(());
                }
            } else if self.deny_rejected(&request.calls) {
                return Ok(());
            }
            let mut calls = request.calls.iter();
            let Some(first) = calls.find_map(|id| self.session.own.progress.call(*id)) else {
                continue;
            };
            match self.planned_spec(request, first) {
                Ok(spec) => specs.push(spec),
                Err(why) => {
                    let id = first.call.tool_call_id;
                    self.session.push_judgement(id, Judgement::invalid(why));
                    return Ok(());
                }
            }
        }
        for spec in specs {
            if spec.kind.properties().decides_calls {
                self.session.identify_pending_call();
            }
            self.session
                .push(Fact::InterventionRequested(spec.sealed()));
        }
        Ok(())
    }

    /// Returns a planned request, whose first call is `first`. An approval shows all calls of the
    /// turn; a request of another kind shows the call that it is about.
    ///
    /// # Errors
    /// As `add_question_and_form`.
    fn planned_spec(
        &self,
        request: &PlannedRequest,
        first: &CallState,
    ) -> Result<RequestSpec, String> {
        let is_asked_about = |state: &CallState| request.calls.contains(&state.call.tool_call_id);
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
        let mut spec = self.new_request(request.kind, calls, self.terms_of(request));
        self.add_question_and_form(&mut spec, first)?;
        Ok(spec)
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
        let is_fixed = must_stay_unchanged && state.performer.properties().runs_at_client;
        state.attempts == 0 && !is_fixed
    }

    /// Adds the question and the form of the call that the request is about.
    ///
    /// # Errors
    /// Fails if the call of a `request_…` tool has become invalid while it waited for its request:
    /// the configuration may have lost the credential. The error is the reason.
    fn add_question_and_form(
        &self,
        spec: &mut RequestSpec,
        state: &CallState,
    ) -> Result<(), String> {
        let entry = self.offered(&state.call.name);
        if spec.kind.properties().response == ResponseKind::FormResult {
            spec.form = entry.and_then(|entry| entry.result_schema.clone());
        }
        if spec.kind.tool() != Some(state.call.name.as_str()) {
            return Ok(());
        }
        let arguments = serde_json::from_str(state.arguments_text()).unwrap_or(Value::Null);
        let services = self.engine.catalog.services(&self.agent.name);
        let question = human::question(spec.kind, &arguments, services)?;
        spec.question = question.text;
        spec.details = question.details;
        spec.form = question.form;
        Ok(())
    }

    /// Opens a request about the unknown outcome of each of these calls. The outcome is unknown in
    /// two cases: the last attempt is over and left no known result, or the call may have run in a
    /// part of the history that a restore or failover has lost. First calls `refresh_tools`: the
    /// digest of a request covers the definition of the call's tool, and every replica must compute
    /// the same digest.
    ///
    /// # Errors
    /// The [`Stop`] of a read or commit that failed.
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
                self.session.key_call_of_unknown_outcome(&state.call);
            }
            let calls = vec![self.requested_call(&state, true)];
            let terms = self.reconcile_terms(&state).await;
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
    /// under which it was approved. If a standing decision allowed the call, the rule that
    /// `current_rule` returns gives the terms. The owner decides about any other allowed call.
    async fn reconcile_terms(&self, state: &CallState) -> Terms {
        if state.grant().is_none() {
            return state.terms();
        }
        let rule = self.current_rule(state).await;
        let terms = rule.and_then(|rule| self.engine.policy.terms(&rule));
        terms.cloned().unwrap_or_default()
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
