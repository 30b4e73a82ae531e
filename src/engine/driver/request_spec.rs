//! Builds requests, and the calls that requests show to their approvers.

use serde_json::{Value, json};

use super::Driver;
use super::verdict::other_tool;
use crate::task::call_state::CallState;
use crate::task::id::RequestId;
use crate::task::operator_text::OperatorText;
use crate::task::request::{Address, CallSpec, RequestKind, RequestSpec, Warning};
use crate::task::text::cut;
use crate::task::text_safety;
use crate::task::tool_spec::Effect;
use crate::task::verdict::{Judgement, Terms, Verdict};
use crate::tool::DefinitionChange;
use crate::tool::catalog::CatalogEntry;

/// The maximum length in bytes of the name that is shown for a tool that does not exist.
const MAX_NAME_BYTES: usize = 64;

impl Driver<'_> {
    /// Returns a request about these calls. The caller adds the question, the details, the form and
    /// the seal.
    pub(crate) fn new_request(
        &self,
        kind: RequestKind,
        mut calls: Vec<CallSpec>,
        terms: Terms,
    ) -> RequestSpec {
        if !kind.properties().decides_calls {
            // This request is no approval, and only an approval offers standing decisions.
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

    /// Returns which texts of a call of the tool `name` come from the configuration:
    /// - `Nothing` if the agent does not offer the tool, and neither `tools` nor a rule lists it.
    /// - `Name` for a sub-agent, because the calling agent wrote the text in the summary.
    /// - `NameAndSummary` for any other tool.
    fn operator_text(&self, name: &str, entry: Option<&CatalogEntry>) -> OperatorText {
        let is_offered = entry.is_some() && other_tool(self.agent, name).is_none();
        let engine = self.engine;
        if !is_offered && engine.catalog.get(name).is_none() && !engine.policy.lists_tool(name) {
            return OperatorText::Nothing;
        }
        if entry.is_some_and(|entry| entry.spec.kind.properties().starts_sub_agent) {
            OperatorText::Name
        } else {
            OperatorText::NameAndSummary
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
        // Another task may find a change of the tool's definition at any time. `change` is read
        // once, so that the digest, the stored definition and the approver's reason all agree.
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
                |entry| entry.spec.summarize(text),
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

/// Returns the reason that an approver reads: the judgement's reason, followed by the reason of the
/// tool's `change` if the judgement's reason does not contain it yet.
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
