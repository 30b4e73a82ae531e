//! Writes questions: what is asked is fixed at that commit, bytes and terms.

use serde_json::{Value, json};

use super::Engine;
use super::live::Live;
use crate::agent::Agent;
use crate::task::doubt::FORGOTTEN;
use crate::task::eyes;
use crate::task::id::{CallId, RequestId};
use crate::task::item::Fact;
use crate::task::request::{Asked, AskedCall, RequestKind, Warning, request_digest};
use crate::task::standing::Standing;
use crate::task::step::Question;
use crate::task::text::cut;
use crate::task::tool_spec::Effect;
use crate::task::verdict::{Terms, Verdict};

/// How much of a tool's name that does not exist is repeated.
const NAME: usize = 64;

/// What is said of a start without a result, where nothing else is known.
const CRASHED: &str = "The process that sent the call ended before its result was stored.";

impl Engine {
    /// Opens the questions of a turn: each shows all of its calls, and decides its own.
    pub(super) fn ask(&self, live: &mut Live, agent: &Agent, questions: Vec<Question>) {
        for question in questions {
            let of_turn = |standing: &&Standing| {
                live.progress
                    .call(question.calls.first().copied().unwrap_or(standing.call.tool_call_id))
                    .map(|c| c.turn)
                    == Some(standing.turn)
            };
            let calls = live.progress.calls.iter().filter(of_turn);
            let calls: Vec<_> = calls
                .map(|standing| self.shown(live, agent, standing, question.calls.contains(&standing.call.tool_call_id)))
                .collect();
            let asked = self.asked(question.kind, calls, question.terms, None, None);
            live.push(Fact::InterventionRequested(asked));
        }
    }

    /// Asks what became of calls that were started and that nobody runs any more, or that a lost history may have run. One request for each, under the
    /// terms of the call's rule.
    pub(super) fn reconcile(&self, live: &mut Live, agent: &Agent, calls: &[CallId]) {
        for id in calls {
            let Some(standing) = live.progress.call(*id).cloned() else { continue };
            let of_rule = standing.judgement.as_ref().and_then(|judgement| judgement.terms.clone());
            let terms = standing.approval.as_ref().map(|approval| approval.terms.clone()).or(of_rule);
            let problem = live.unknown.get(id).cloned();
            let start = standing.start.clone();
            let details = json!({
                "sent_at": start.as_ref().map(|start| start.at.to_string()),
                "attempt": start.as_ref().map(|start| start.attempt),
                "replica": start.as_ref().map(|start| start.replica.clone()),
                "problem": problem.unwrap_or_else(|| if standing.ready_in_doubt() { FORGOTTEN } else { CRASHED }.to_owned()),
            });
            let calls = vec![self.shown(live, agent, &standing, true)];
            let asked =
                self.asked(RequestKind::Reconcile, calls, terms.unwrap_or_else(Terms::default), None, Some(details));
            live.push(Fact::InterventionRequested(asked));
        }
    }

    fn asked(
        &self,
        kind: RequestKind,
        calls: Vec<AskedCall>,
        terms: Terms,
        question: Option<String>,
        details: Option<Value>,
    ) -> Asked {
        let own = calls.iter().filter(|call| call.needs_decision).map(|call| call.digest.as_str());
        Asked {
            request_id: RequestId(self.ids.fresh()),
            kind,
            digest: request_digest(own),
            pending_tool_calls: calls,
            terms,
            question,
            details,
            form: None,
        }
    }

    /// One call as an approver sees it.
    fn shown(&self, live: &Live, agent: &Agent, standing: &Standing, needs_decision: bool) -> AskedCall {
        let call = &standing.call;
        let judgement = standing.judgement.as_ref();
        let rule = judgement.and_then(|judgement| judgement.rule.clone());
        let entry = self.offered(agent, &call.name);
        let arguments = serde_json::from_str(&call.arguments_text).unwrap_or(Value::Null);
        AskedCall {
            tool_call_id: call.tool_call_id,
            name: call.name.clone(),
            arguments_text: call.arguments_text.clone(),
            effect: entry.map_or(Effect::Once, |entry| entry.spec.effect),
            target: entry.map(|entry| entry.spec.target.clone()).unwrap_or_default(),
            summary: entry.map_or_else(|| cut(&call.name, NAME).to_owned(), |entry| entry.spec.summarize(&arguments)),
            warnings: if needs_decision { warnings(standing) } else { Vec::new() },
            needs_decision,
            verdict: judgement.map_or(Verdict::Hold, |judgement| judgement.verdict),
            reason: judgement.and_then(|judgement| judgement.reason.clone()),
            parameters: entry.map_or_else(|| json!({}), |entry| entry.spec.parameters.clone()),
            digest: entry.map_or_else(String::new, |entry| {
                live.digest(&entry.spec, call.tool_call_id, &call.arguments_text, rule.as_deref())
            }),
            definition: entry.map(|entry| entry.spec.definition.clone()),
            rule,
        }
    }
}

/// What an approver of a call should look at.
fn warnings(standing: &Standing) -> Vec<Warning> {
    let may_have_run = standing.may_have_run().then(Warning::may_already_have_run);
    may_have_run.into_iter().chain(eyes::warnings(&standing.call.arguments_text)).collect()
}
