//! Reads a person's answer to a request from the body of a POST. A body with any mistake is
//! refused. This module checks the structure of the body; the engine checks whether the request's
//! kind and rule allow the answer. Arguments, results and form values are kept as JSON text, so
//! that numbers keep every digit.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::engine::{CallReply, DecisionBody, DecisionInput, DetailCode};
use crate::http::server::fields::{Fields, pointer, variant};
use crate::http::server::json::{member, members};
use crate::http::server::problem::Problem;
use crate::http::wire::body as wire;
use crate::http::wire::decision::ThenAction;
use crate::secret::Secret;
use crate::task::decision::Action;
use crate::task::grant::GrantRequest;
use crate::task::units::parse_duration;

const MAX_REASON_BYTES: usize = 4 * 1024;

/// Reads the answer in a body. `text` is the JSON text of `body`, and `path_action` is the action
/// in the path, if any.
///
/// # Errors
/// Fails with `invalid` if the body has a mistake. The problem lists every mistake.
pub(crate) fn read(
    body: Value,
    text: &[u8],
    path_action: Option<Action>,
) -> Result<DecisionInput, Problem> {
    let answer = Fields::read(body, |fields| {
        let digest = fields.text("digest");
        match path_action {
            Some(action) => wire::WholeDecision::read(action, digest, text, fields)
                .map(wire::WireDecisionBody::Whole),
            None => wire::WireDecisionBody::read(digest, text, fields),
        }
    })?;
    Ok(answer.into())
}

impl wire::WireDecisionBody {
    fn read(digest: Option<String>, text: &[u8], fields: &mut Fields<'_>) -> Option<Self> {
        let (action, decisions) = (fields.raw("action"), fields.raw("decisions"));
        match (action, decisions) {
            (Some(_), Some(_)) => {
                fields.refuse("action", "no `action` beside `decisions`");
                None
            }
            (None | Some(Value::Null), None) => {
                fields.errors.add("", "`action` or `decisions`");
                None
            }
            (Some(word), None) => {
                let action = word.as_str().and_then(variant);
                let whole = action
                    .and_then(|action| wire::WholeDecision::read(action, digest, text, fields));
                if whole.is_none() {
                    let detail = if action == Some(Action::Edit) {
                        DecisionBody::per_call_hint(Action::Edit)
                    } else {
                        "`approve`, `reject`, `respond` or `retry`".to_owned()
                    };
                    fields.refuse("action", detail);
                }
                whole.map(Self::Whole)
            }
            (None, Some(decisions)) => {
                let text = member(text, "decisions").unwrap_or_default();
                let decisions = read_call_decisions(decisions, text.as_bytes(), fields)?;
                Some(Self::PerCall(wire::PerCallDecision { decisions, digest }))
            }
        }
    }
}

impl wire::WholeDecision {
    /// Reads an answer with this action. Returns `None` for an action that cannot answer a whole
    /// request, such as `edit`.
    fn read(
        action: Action,
        digest: Option<String>,
        text: &[u8],
        fields: &mut Fields<'_>,
    ) -> Option<Self> {
        Some(match action {
            Action::Approve => Self::Approve(wire::ApproveBody::read(digest, fields).into()),
            Action::Reject => Self::Reject(wire::RejectBody::read(digest, fields).into()),
            Action::Respond => Self::Respond(wire::RespondDecision::read(digest, text, fields)),
            Action::Retry => Self::Retry(wire::RetryDecision::read(digest, fields)),
            Action::Edit | Action::Mixed => return None,
        })
    }
}

impl wire::ApproveBody {
    fn read(digest: Option<String>, fields: &mut Fields<'_>) -> Self {
        let reason = read_reason(fields);
        refuse_then(fields);
        Self {
            reason,
            digest,
            remember: read_remember(fields),
        }
    }
}

impl From<wire::ApproveBody> for wire::ApproveDecision {
    fn from(body: wire::ApproveBody) -> Self {
        Self {
            action: Action::Approve,
            reason: body.reason,
            digest: body.digest,
            remember: body.remember,
        }
    }
}

impl wire::RejectBody {
    fn read(digest: Option<String>, fields: &mut Fields<'_>) -> Self {
        let reason = read_reason(fields);
        let then = read_then(fields);
        refuse_remember(fields);
        Self {
            then,
            reason,
            digest,
        }
    }
}

impl From<wire::RejectBody> for wire::RejectDecision {
    fn from(body: wire::RejectBody) -> Self {
        Self {
            action: Action::Reject,
            then: body.then,
            reason: body.reason,
            digest: body.digest,
        }
    }
}

impl wire::RespondDecision {
    fn read(digest: Option<String>, text: &[u8], fields: &mut Fields<'_>) -> Self {
        let reason = read_reason(fields);
        refuse_then(fields);
        refuse_remember(fields);
        // A `result` of `null` is a value; a `response` of `null` counts as absent.
        let response = fields
            .take("response")
            .and_then(|_| member(text, "response"))
            .map(Secret::new);
        let result = fields.raw("result").and_then(|_| member(text, "result"));
        if response.is_some() == result.is_some() {
            fields.refuse("response", "exactly one of `response` and `result`");
        }
        Self {
            action: Action::Respond,
            response,
            result,
            reason,
            digest,
        }
    }
}

impl wire::RetryDecision {
    fn read(digest: Option<String>, fields: &mut Fields<'_>) -> Self {
        let reason = read_reason(fields);
        refuse_then(fields);
        refuse_remember(fields);
        Self {
            action: Action::Retry,
            reason,
            digest,
        }
    }
}

fn read_reason(fields: &mut Fields<'_>) -> Option<String> {
    fields.text_within("reason", MAX_REASON_BYTES)
}

/// Reads `remember`, which asks for a standing decision together with an approval.
fn read_remember(fields: &mut Fields<'_>) -> Option<wire::NewRemember> {
    let pointer = fields.pointer("remember");
    let value = fields.take("remember")?;
    let mut members = Fields::from_value(value, &pointer, fields.errors)?;
    let remember = wire::NewRemember::read(&mut members);
    members.finish();
    remember
}

/// Adds a mistake if an answer that is not an approval has the member `remember`, even if its value
/// is `null`.
fn refuse_remember(fields: &mut Fields<'_>) {
    if fields.raw("remember").is_some() {
        fields.refuse("remember", "`remember` only beside `approve`");
    }
}

impl wire::NewRemember {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let scope = fields.take("for");
        let scope = scope.as_ref().and_then(Value::as_str).and_then(variant);
        if scope.is_none() {
            fields.refuse("for", "`task` or `owner`");
        }
        let time = fields.take("expires_in");
        let time = time.as_ref().and_then(Value::as_str);
        let time = time.and_then(parse_duration).filter(|time| !time.is_zero());
        if time.is_none() {
            let detail = "a time longer than 0, such as `30m` or `4h`";
            fields.refuse("expires_in", detail);
        }
        Some(Self {
            r#for: scope?,
            expires_in: time?,
        })
    }
}

fn read_then(fields: &mut Fields<'_>) -> Option<ThenAction> {
    let word = fields.take("then")?;
    let then = word.as_str().and_then(variant);
    if then.is_none() {
        fields.refuse("then", "`continue`, `cancel` or `cancel_root`");
    }
    then
}

/// Adds a mistake if the member `then` is present, even if its value is `null`. For answers other
/// than rejections.
fn refuse_then(fields: &mut Fields<'_>) {
    if fields.raw("then").is_some() {
        fields.refuse("then", DetailCode::ThenWithoutReject);
    }
}

fn read_call_decisions(
    decisions: Value,
    text: &[u8],
    fields: &mut Fields<'_>,
) -> Option<BTreeMap<String, wire::NewCallDecision>> {
    let Value::Object(decisions) = decisions else {
        fields.refuse("decisions", "an object: one answer by `tool_call_id`");
        return None;
    };
    if decisions.is_empty() {
        fields.refuse("decisions", DetailCode::AnswerRequired);
    }
    let at = fields.pointer("decisions");
    let (mut answers, mut texts) = (BTreeMap::new(), members(text));
    for (call, answer) in decisions {
        let place = pointer(&at, &call);
        if place == at {
            // The name `call` is too long for a pointer, so `pointer` has returned `at` unchanged.
            // No call has so long an id, so the name is a mistake. Its pointer is `at`.
            fields.refuse("decisions", "answers by `tool_call_id`");
            continue;
        }
        let text = texts.remove(&call).unwrap_or_default();
        let Some(mut members) = Fields::from_value(answer, &place, fields.errors) else {
            continue;
        };
        let answer = wire::NewCallDecision::read(text.as_bytes(), &mut members);
        members.finish();
        if let Some(answer) = answer {
            answers.insert(call, answer);
        }
    }
    Some(answers)
}

impl wire::NewCallDecision {
    fn read(text: &[u8], fields: &mut Fields<'_>) -> Option<Self> {
        let word = fields.take("action").unwrap_or_default();
        let action = word.as_str().and_then(variant);
        let is_known = |action: &Action| !matches!(action, Action::Retry | Action::Mixed);
        let Some(action) = action.filter(is_known) else {
            fields.refuse("action", DetailCode::CallAction);
            return None;
        };
        let reason = read_reason(fields);
        let then = if action == Action::Reject {
            read_then(fields)
        } else {
            refuse_then(fields);
            None
        };
        let remember = if action == Action::Approve {
            read_remember(fields)
        } else {
            refuse_remember(fields);
            None
        };
        match action {
            Action::Approve => Some(Self::Approve(wire::ApproveCall {
                action,
                reason,
                remember,
            })),
            Action::Reject => Some(Self::Reject(wire::RejectCall {
                action,
                then,
                reason,
            })),
            Action::Edit => Some(Self::Edit(wire::EditCall {
                action,
                arguments: read_arguments(text, fields)?,
                reason,
            })),
            Action::Respond => Some(Self::Respond(wire::RespondCall {
                action,
                result: read_result(text, fields)?,
                reason,
            })),
            Action::Retry | Action::Mixed => None,
        }
    }
}

fn read_arguments(text: &[u8], fields: &mut Fields<'_>) -> Option<String> {
    let replacement = fields.take("arguments").filter(Value::is_object);
    let arguments = replacement.and_then(|_| member(text, "arguments"));
    if arguments.is_none() {
        fields.refuse("arguments", DetailCode::ObjectReplacement);
    }
    arguments
}

fn read_result(text: &[u8], fields: &mut Fields<'_>) -> Option<String> {
    let result = fields.raw("result").and_then(|_| member(text, "result"));
    if result.is_none() {
        fields.refuse("result", "the result");
    }
    result
}

impl From<wire::WireDecisionBody> for DecisionInput {
    fn from(answer: wire::WireDecisionBody) -> Self {
        match answer {
            wire::WireDecisionBody::Whole(decision) => decision.into(),
            wire::WireDecisionBody::PerCall(decision) => {
                let answers = decision.decisions.into_iter();
                let replies = answers.map(|(call, answer)| (call, CallReply::from(answer)));
                Self {
                    digest: decision.digest,
                    body: DecisionBody::PerCall(replies.collect()),
                }
            }
        }
    }
}

impl From<wire::WholeDecision> for DecisionInput {
    fn from(decision: wire::WholeDecision) -> Self {
        let (mut then, mut response, mut result, mut remember) = (None, None, None, None);
        let (action, reason, digest) = match decision {
            wire::WholeDecision::Approve(body) => {
                remember = body.remember.map(GrantRequest::from);
                (body.action, body.reason, body.digest)
            }
            wire::WholeDecision::Reject(body) => {
                then = body.then.map(Into::into);
                (body.action, body.reason, body.digest)
            }
            wire::WholeDecision::Respond(body) => {
                (response, result) = (body.response, body.result);
                (body.action, body.reason, body.digest)
            }
            wire::WholeDecision::Retry(body) => (body.action, body.reason, body.digest),
        };
        let body = DecisionBody::Whole {
            action,
            reason,
            then,
            response,
            result,
            remember,
        };
        Self { digest, body }
    }
}

impl From<wire::NewCallDecision> for CallReply {
    fn from(decision: wire::NewCallDecision) -> Self {
        let (mut then, mut arguments, mut result, mut remember) = (None, None, None, None);
        let (action, reason) = match decision {
            wire::NewCallDecision::Approve(call) => {
                remember = call.remember.map(GrantRequest::from);
                (call.action, call.reason)
            }
            wire::NewCallDecision::Reject(call) => {
                then = call.then.map(Into::into);
                (call.action, call.reason)
            }
            wire::NewCallDecision::Edit(call) => {
                arguments = Some(call.arguments);
                (call.action, call.reason)
            }
            wire::NewCallDecision::Respond(call) => {
                result = Some(call.result);
                (call.action, call.reason)
            }
        };
        Self {
            action,
            reason,
            then,
            arguments,
            result,
            remember,
        }
    }
}

impl From<wire::NewRemember> for GrantRequest {
    fn from(remember: wire::NewRemember) -> Self {
        Self {
            scope: remember.r#for.into(),
            expires_in: remember.expires_in,
        }
    }
}

#[cfg(test)]
mod tests;
