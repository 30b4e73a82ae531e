//! Writes questions: what is asked is fixed at that commit, bytes and terms.

use serde_json::{Value, json};

use super::Engine;
use super::drive::Stop;
use super::integrity::damage_before;
use super::session::TaskSession;
use crate::agent::Agent;
use crate::task::restore::FORGOTTEN;
use crate::task::text_safety;
use crate::task::id::{CallId, RequestId};
use crate::task::item::Fact;
use crate::task::question::Question;
use crate::task::request::{Address, RequestSpec, RequestedCall, RequestKind, Warning};
use crate::task::call_state::CallState;
use crate::task::step::Ending;
use crate::task::text::cut;
use crate::task::tool_spec::Effect;
use crate::task::verdict::{Terms, Verdict};
use crate::tool::human;

/// How much of a tool's name that does not exist is repeated.
const NAME: usize = 64;

/// What is said of a start without a result, where nothing else is known.
const CRASHED: &str = "The process that sent the call ended before its result was stored.";

impl Engine {
    /// Opens the questions of a turn. One about running calls shows all calls of their turn; any other shows the call
    /// that asks, or that somebody else runs.
    pub(super) async fn ask(&self, session: &mut TaskSession, agent: &Agent, questions: Vec<Question>) -> Result<(), Stop> {
        for question in questions {
            // That somebody else may run a call is looked at once more, as it is before one of ours starts.
            if question.kind == RequestKind::ExternalResult {
                if let Some(failure) = damage_before(session, &question.calls) {
                    self.finish(session, Ending::Failed(failure)).await?;
                    return Ok(());
                }
                if self.look_again(session, agent, &question.calls).await {
                    continue;
                }
            }
            let Some(first) = question.calls.first().and_then(|id| session.own.progress.call(*id)).cloned() else {
                continue;
            };
            let own = |state: &CallState| question.calls.contains(&state.call.tool_call_id);
            let shown = |state: &&CallState| match question.kind {
                RequestKind::Approval => state.turn == first.turn,
                RequestKind::Guidance
                | RequestKind::Credentials
                | RequestKind::Confirmation
                | RequestKind::ExternalResult
                | RequestKind::Reconcile => own(state),
            };
            let calls = session.own.progress.calls.iter().filter(shown);
            let calls = calls.map(|state| self.shown(session, agent, state, own(state))).collect();
            let mut asked = self.asked(question.kind, calls, question.terms);
            self.say(&mut asked, agent, &first);
            session.push(Fact::InterventionRequested(asked.sealed()));
        }
        Ok(())
    }

    /// What the agent asks in its own words, and the form of the answer.
    fn say(&self, asked: &mut RequestSpec, agent: &Agent, state: &CallState) {
        let entry = self.offered(agent, &state.call.name);
        if asked.kind == RequestKind::ExternalResult {
            asked.form = entry.and_then(|entry| entry.form.clone());
        }
        if asked.kind.tool() != Some(state.call.name.as_str()) {
            return;
        }
        let arguments = serde_json::from_str(state.arguments_text()).unwrap_or(Value::Null);
        if let Ok(question) = human::question(asked.kind, &arguments, self.catalog.services(&agent.name)) {
            asked.question = question.question;
            asked.details = question.details;
            asked.form = question.form;
        }
    }

    /// Asks what became of calls that were started and that nobody runs any more, or that a lost history may have run. One
    /// request for each, under the terms of the call's rule.
    pub(super) fn reconcile(&self, session: &mut TaskSession, agent: &Agent, calls: &[CallId]) {
        for id in calls {
            let Some(state) = session.own.progress.call(*id).cloned() else { continue };
            let problem = session.unknown.get(id).cloned();
            let start = state.start.clone();
            let details = json!({
                "sent_at": start.as_ref().map(|start| start.at.to_string()),
                "attempt": start.as_ref().map(|start| start.attempt),
                "replica": start.as_ref().map(|start| start.replica.clone()),
                "problem": problem.unwrap_or_else(|| if state.ready_but_uncertain() { FORGOTTEN } else { CRASHED }.to_owned()),
            });
            let calls = vec![self.shown(session, agent, &state, true)];
            let asked = self.asked(RequestKind::Reconcile, calls, state.terms());
            let asked = RequestSpec { details: Some(details), ..asked };
            session.push(Fact::InterventionRequested(asked.sealed()));
        }
    }

    /// A question about these calls, without its words and not sealed yet.
    pub(super) fn asked(&self, kind: RequestKind, calls: Vec<RequestedCall>, terms: Terms) -> RequestSpec {
        RequestSpec {
            request_id: RequestId(self.ids.fresh()),
            kind,
            pending_tool_calls: calls,
            terms,
            digest: String::new(),
            question: None,
            details: None,
            form: None,
            seal: None,
        }
    }

    /// One call as an approver sees it.
    pub(super) fn shown(&self, session: &TaskSession, agent: &Agent, state: &CallState, needs_decision: bool) -> RequestedCall {
        let call = &state.call;
        let judgement = state.judgement.as_ref();
        let rule = judgement.and_then(|judgement| judgement.rule.clone());
        let entry = self.offered(agent, &call.name);
        let text = state.arguments_text();
        let arguments = serde_json::from_str(text).unwrap_or(Value::Null);
        let digest =
            entry.map_or_else(String::new, |entry| session.digest(&entry.spec, call.tool_call_id, text, rule.as_deref()));
        let address = entry.map(|entry| (entry.address(&arguments), &entry.spec.target));
        let address = address.filter(|(address, target)| address != *target);
        RequestedCall {
            tool_call_id: call.tool_call_id,
            name: call.name.clone(),
            arguments_text: text.to_owned(),
            effect: entry.map_or(Effect::Once, |entry| entry.spec.effect),
            target: entry.map(|entry| entry.spec.target.clone()).unwrap_or_default(),
            address: address.map(|(address, _)| Address::of(&digest, address)),
            summary: entry.map_or_else(|| short(&call.name), |entry| entry.spec.summarize(&arguments)),
            warnings: if needs_decision { warnings(state) } else { Vec::new() },
            needs_decision,
            verdict: judgement.map_or(Verdict::Hold, |judgement| judgement.verdict),
            reason: judgement.and_then(|judgement| judgement.reason.clone()),
            parameters: entry.map_or_else(|| json!({}), |entry| entry.spec.parameters.clone()),
            digest,
            definition: entry.map(|entry| entry.spec.definition.clone()),
            editor: state.edited.as_ref().map(|edited| edited.by.clone()),
            rule,
        }
    }
}

/// A name that may be as long as the model likes.
fn short(name: &str) -> String {
    let shown = cut(name, NAME);
    if shown == name { name.to_owned() } else { format!("{shown}…") }
}

/// What an approver of a call should look at.
fn warnings(state: &CallState) -> Vec<Warning> {
    let may_have_run = state.may_have_run().then(Warning::may_already_have_run);
    may_have_run.into_iter().chain(text_safety::warnings(state.arguments_text())).collect()
}
