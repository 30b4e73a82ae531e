//! Opens requests to people. Invariant: the content and the terms of a request never change after
//! the request is committed.

use serde_json::{Value, json};

use super::judge::other_tool;
use super::{Driver, Stop};
use crate::agent::gate::Report;
use crate::engine::recovery::integrity::approval_damage;
use crate::task::call_state::{AttemptStart, CallState};
use crate::task::decision::Action;
use crate::task::id::{CallId, RequestId};
use crate::task::item::Fact;
use crate::task::operator_text::OperatorText;
use crate::task::planned_request::PlannedRequest;
use crate::task::request::{Address, CallSpec, RequestKind, RequestSpec, Warning};
use crate::task::restore::MAY_HAVE_RUN_TEXT;
use crate::task::step::Ending;
use crate::task::text::cut;
use crate::task::text_safety;
use crate::task::tool_spec::{Effect, ToolKind};
use crate::task::verdict::{Judgement, Terms, Verdict};
use crate::tool::DefinitionChange;
use crate::tool::catalog::CatalogEntry;
use crate::tool::human;

/// The maximum length in bytes of the name that is shown for a tool that does not exist.
const MAX_NAME_BYTES: usize = 64;

/// The problem that a reconcile request shows for a started call without a result, if no other
/// problem is known.
const PROCESS_ENDED_TEXT: &str =
    "The process that sent the call ended before its result was stored.";
/// Like [`PROCESS_ENDED_TEXT`], for a call that its asker runs and whose outcome was not reported.
const NOT_REPORTED_TEXT: &str =
    "The caller was given leave to run the call and reported no outcome in time.";
const REPORTED_UNKNOWN_TEXT: &str =
    "The caller was given leave to run the call and reported that its outcome is unknown.";
/// The `replica` that a request shows for a call that its asker runs. The runner's name is not
/// shown: a client that knows the name and the call's idempotency key could get the permit.
const ELSEWHERE: &str = "elsewhere";

impl Driver<'_> {
    /// Opens the requests that a turn needs. An approval shows all calls of the turn; a request of
    /// another kind shows the call that it is about.
    pub(crate) async fn open_requests(
        &mut self,
        requests: Vec<PlannedRequest>,
    ) -> Result<(), Stop> {
        for request in requests {
            // The client that answers the request runs the external tool. This service never starts
            // the call, so the checks that precede the start of other calls are made here, before
            // the request opens.
            if request.kind == RequestKind::ExternalResult {
                if let Some(failure) = approval_damage(self.session, &request.calls) {
                    self.finish(Ending::Failed(failure)).await?;
                    return Ok(());
                }
                if self.recheck(&request.calls).await? {
                    continue;
                }
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
            let whole_turn = request.kind.properties().decides_calls;
            let is_shown = |state: &&CallState| {
                if whole_turn {
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
            if request.kind == RequestKind::Approval {
                self.session.identify_held_call();
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
        if request.kind == RequestKind::Approval && !calls.any(|state| self.is_editable(state)) {
            terms.allow.retain(|action| *action != Action::Edit);
            if terms.allow.is_empty() {
                terms.allow.push(Action::Reject);
            }
        }
        terms
    }

    /// Whether a call could run with other arguments. A call that was sent keeps its arguments,
    /// because its tool knows the call by an idempotency key. A call that a gateway runs keeps its
    /// arguments, because a gateway cannot change the call. If the gate has `ext_authz` and
    /// requires no reports, an asker that runs its call counts as a gateway.
    fn is_editable(&self, state: &CallState) -> bool {
        let gate = self.agent.gate.as_deref();
        let must_stay_unchanged =
            gate.is_some_and(|gate| gate.ext_authz.is_some() && gate.report == Report::Optional);
        let is_fixed = must_stay_unchanged && state.performer == ToolKind::External;
        state.attempts == 0 && !is_fixed
    }

    fn add_question_and_form(&self, spec: &mut RequestSpec, state: &CallState) {
        let entry = self.offered(&state.call.name);
        if spec.kind == RequestKind::ExternalResult {
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

    /// Opens a request for the unknown outcome of each of these calls. Some of the calls were
    /// started, and no process runs them any more. Others may have run in a part of the history
    /// that a restore or failover has lost. Calls `refresh_tools` first, so that the requests have
    /// the same digests on every replica.
    ///
    /// # Errors
    /// `Lost` when the service goes down before the database answers.
    pub(super) async fn reconcile(&mut self, calls: &[CallId]) -> Result<(), Stop> {
        self.refresh_tools(calls).await?;
        for id in calls {
            let Some(state) = self.session.own.progress.call(*id).cloned() else {
                continue;
            };
            let problem = self.session.unknown_outcomes.get(id).cloned();
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
            let calls = vec![self.requested_call(&state, true)];
            let spec = self.new_request(RequestKind::Reconcile, calls, state.terms());
            let spec = RequestSpec {
                details: Some(details),
                ..spec
            };
            self.session
                .push(Fact::InterventionRequested(spec.sealed()));
        }
        Ok(())
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
            let is_about = asked.kind == RequestKind::Reconcile
                && asked.own_calls().any(|call| call.tool_call_id == id);
            let details = asked.details.as_ref().filter(|_| is_about)?;
            let is_same = details.get("attempt")?.as_u64() == Some(attempt);
            let problem = details.get("problem")?.as_str()?;
            is_same.then(|| problem.to_owned())
        })
    }

    /// Returns a request about these calls. The caller adds the question, the details, the form and
    /// the seal.
    pub(crate) fn new_request(
        &self,
        kind: RequestKind,
        mut calls: Vec<CallSpec>,
        terms: Terms,
    ) -> RequestSpec {
        if !kind.properties().decides_calls {
            // Only an approval can give a standing decision.
            for call in &mut calls {
                call.offer = None;
            }
        }
        RequestSpec {
            request_id: RequestId(self.engine.ids.fresh()),
            kind,
            pending_tool_calls: calls,
            terms,
            digest: String::new(),
            question: None,
            details: None,
            form: None,
            elicitation: None,
            seal: None,
        }
    }

    /// Returns which texts of a call of the tool `name` come from the configuration. If the agent
    /// offers the tool, or if `tools` or a rule lists the tool, the name and the summary come from
    /// the configuration. For a sub-agent, only the name does, because the summary shows the task
    /// that the calling agent wrote.
    fn operator_text(&self, name: &str, entry: Option<&CatalogEntry>) -> OperatorText {
        let is_offered = entry.is_some() && other_tool(self.agent, name).is_none();
        let engine = self.engine;
        if !is_offered && engine.catalog.get(name).is_none() && !engine.policy.lists_tool(name) {
            return OperatorText::Nothing;
        }
        match entry {
            Some(entry) if entry.spec.kind == ToolKind::Agent => OperatorText::Name,
            _ => OperatorText::NameAndSummary,
        }
    }

    /// Returns a call as its approvers see it. With `needs_decision`, the request asks about this
    /// call. Without it, the request shows this call next to other calls of the same turn.
    pub(crate) fn requested_call(&self, state: &CallState, needs_decision: bool) -> CallSpec {
        let call = &state.call;
        let judgement = state.judgement.as_ref();
        let rule = judgement.and_then(|judgement| judgement.rule.clone());
        let entry = self.offered(&call.name);
        let entry = entry.as_deref();
        let text = state.arguments_text();
        let arguments = serde_json::from_str(text).unwrap_or(Value::Null);
        // Read once, because another task may find at any time that the tool has changed. The
        // digest must match the stored definition, and the approver must read of the change.
        let change = entry.and_then(|entry| entry.definition_change(self.session.task_id()));
        let spec = entry.map(|entry| DefinitionChange::applied_to(&entry.spec, change.clone()));
        let digest = spec.as_deref().map_or_else(String::new, |spec| {
            self.session
                .digest(spec, call.tool_call_id, text, rule.as_deref())
        });
        let address = entry.map(|entry| (entry.address(&arguments), &entry.spec.target));
        let address = address.filter(|(address, target)| address != *target);
        CallSpec {
            tool_call_id: call.tool_call_id,
            name: call.name.clone(),
            arguments_text: text.to_owned(),
            effect: entry.map_or(Effect::Once, |entry| entry.spec.effect),
            target: entry
                .map(|entry| entry.spec.target.clone())
                .unwrap_or_default(),
            address: address.map(|(address, _)| Address::new(&digest, address)),
            summary: entry.map_or_else(
                || shortened_name(&call.name),
                |entry| entry.spec.summarize(&arguments),
            ),
            operator_text: self.operator_text(&call.name, entry),
            warnings: if needs_decision {
                warnings(state)
            } else {
                Vec::new()
            },
            needs_decision,
            verdict: judgement.map_or(Verdict::Hold, |judgement| judgement.verdict),
            reason: shown_reason(judgement, change.as_ref()),
            parameters: entry.map_or_else(|| json!({}), |entry| entry.spec.parameters.clone()),
            digest,
            definition: spec.map(|spec| spec.definition.clone()),
            editor: state.edited.as_ref().map(|edited| edited.by.clone()),
            bars_editor: state
                .edited
                .as_ref()
                .is_some_and(|edited| edited.needs_others),
            offer: judgement
                .filter(|_| needs_decision && change.is_none())
                .and_then(|judgement| judgement.offer.clone()),
            rule,
        }
    }
}

/// Returns the reason that an approver reads. If the change of the tool was found after the
/// judgement, adds the change to the judgement's reason.
fn shown_reason(
    judgement: Option<&Judgement>,
    change: Option<&DefinitionChange>,
) -> Option<String> {
    let reason = judgement.and_then(|judgement| judgement.reason.as_deref());
    let change = change.map(|change| change.reason.as_str());
    let is_told = |change: &&str| reason.is_some_and(|reason| reason.contains(*change));
    let parts: Vec<&str> = reason
        .into_iter()
        .chain(change.filter(|change| !is_told(change)))
        .collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// Shortens the name of an unknown tool, because the model may write a name of any length.
fn shortened_name(name: &str) -> String {
    let shown = cut(name, MAX_NAME_BYTES);
    if shown == name {
        name.to_owned()
    } else {
        format!("{shown}…")
    }
}

fn warnings(state: &CallState) -> Vec<Warning> {
    let may_have_run = state.may_have_run().then(Warning::may_already_have_run);
    may_have_run
        .into_iter()
        .chain(text_safety::warnings(state.arguments_text()))
        .collect()
}
