//! A person's answer as sent, and its validation against the request. This module writes nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::remember::{check_door, grant_misfit};
use super::valid_decision::ValidDecision;
use super::{Detail, DetailCode, FieldError, Refusal};
use crate::people::Caller;
use crate::people::authorization::{Approver, Roster, is_barred_editor};
use crate::secret::Secret;
use crate::store::RequestRow;
use crate::task::decision::{Action, Consequence};
use crate::task::grant::GrantRequest;
use crate::task::request::{CallSpec, RequestSpec};
use crate::task::request_kind::ResponseKind;
use crate::task::text::pointer;
use crate::tool::arguments;
use crate::tool::credential::is_sendable;
use crate::tool::schema::{CompiledSchema, SchemaViolation, SchemaViolations};

/// The maximum length of a credential's field, in bytes. Every text of a model or a tool is
/// searched for the credential, and the search costs time and memory in proportion to this length.
const MAX_CREDENTIAL_BYTES: usize = 8192;
/// The cause of an internal error.
const UNUSABLE_FORM: &str = "the form of a request is unusable";

/// A person's answer to a request, as sent. `validate` checks the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionInput {
    /// The digest that the approver was shown. An answer is refused if its digest differs from the
    /// request's. `None` skips this check.
    pub digest: Option<String>,
    pub body: DecisionBody,
}

impl DecisionInput {
    fn requests_grant(&self) -> bool {
        match &self.body {
            DecisionBody::Whole { remember, .. } => remember.is_some(),
            DecisionBody::PerCall(replies) => {
                replies.values().any(|reply| reply.remember.is_some())
            }
        }
    }

    /// Returns each edited call: the id of the call and the new arguments. The ids are not
    /// validated yet.
    pub(super) fn edits(&self) -> impl Iterator<Item = (String, &str)> {
        let replies = if let DecisionBody::PerCall(replies) = &self.body {
            Some(replies)
        } else {
            None
        };
        let edits = replies
            .into_iter()
            .flatten()
            .filter(|(_, reply)| reply.action == Action::Edit);
        edits.filter_map(|(call, reply)| Some((call.clone(), reply.arguments.as_deref()?)))
    }
}

/// An answer: either for the whole request, or for single calls.
#[derive(Clone, Debug, PartialEq)]
pub enum DecisionBody {
    /// One `action` for every call of the request. The `action` is in the body or in the path.
    Whole {
        action: Action,
        reason: Option<String>,
        /// The consequence of a rejection. Allowed only with [`Action::Reject`].
        then: Option<Consequence>,
        /// The filled-in form of the request, as JSON text. The text is secret because the form may
        /// ask for a credential.
        response: Option<Secret<String>>,
        /// The result of the call, supplied by the person as JSON text.
        result: Option<String>,
        /// The standing decision that the person requests with the approval.
        remember: Option<GrantRequest>,
    },
    /// The body's `decisions`: an answer for each named call. The key is the `tool_call_id` as the
    /// client wrote it.
    PerCall(BTreeMap<String, CallReply>),
}

impl DecisionBody {
    /// Returns the hint for an approver who sent `action` for the whole request, although `action`
    /// can only answer single calls.
    #[must_use]
    pub fn per_call_hint(action: Action) -> String {
        let word = action.as_str();
        format!("`{word}` is about one call and belongs inside `decisions`")
    }
}

/// The answer to one call, as sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallReply {
    pub action: Action,
    pub reason: Option<String>,
    /// The consequence of a rejection. All replies of one answer must name the same consequence.
    pub then: Option<Consequence>,
    /// The new arguments of the call with [`Action::Edit`], as verbatim JSON text.
    pub arguments: Option<String>,
    /// The result of the call, supplied by the person as JSON text.
    pub result: Option<String>,
    /// The standing decision that the person requests with the approval of this call.
    pub remember: Option<GrantRequest>,
}

/// Validates an answer against its request.
///
/// # Errors
/// - `Forbidden` if the caller approves arguments that they wrote themselves and may not approve.
/// - `Forbidden` if the caller came by a link or through Slack and requests a standing decision.
/// - `Invalid` if parts of the answer do not fit the request. The error lists these parts.
/// - `Internal` if the request's form is unusable.
pub(crate) fn validate(
    roster: &Roster,
    approver: Approver<'_>,
    row: &RequestRow,
    answer: &DecisionInput,
) -> Result<ValidDecision, Refusal> {
    let caller = approver.caller();
    let allowed = approver.permitted_actions(roster, &row.owner, &row.spec);
    if answer.requests_grant() {
        check_door(caller)?;
    }
    match &answer.body {
        DecisionBody::PerCall(replies) => per_call(caller, &row.spec, &allowed, replies),
        DecisionBody::Whole {
            action,
            reason,
            then,
            response,
            result,
            remember,
        } => {
            let spec = &row.spec;
            let wrote = |call: &CallSpec| is_barred_editor(caller, spec, call);
            let wrote_all = *action == Action::Approve && spec.own_calls().all(wrote);
            if wrote_all && spec.kind.properties().decides_calls {
                return Err(own_arguments_refusal());
            }
            check_whole_action(spec, &allowed, *action)?;
            if then.is_some() && *action != Action::Reject {
                return Err(Refusal::invalid("/then", "only beside a reject"));
            }
            if let Some(requested) = remember {
                let misfit = |call| grant_misfit(caller, spec, call, *action, *requested);
                // The answer concerns the open calls alone.
                let state = row.state();
                if let Some((place, detail)) = state.open_calls(&caller.user_id).find_map(misfit) {
                    return Err(Refusal::invalid(place, detail));
                }
            }
            let response = read_response(spec, *action, response.as_ref())?;
            read_result(spec, *action, result.as_deref())?;
            Ok(ValidDecision {
                by_call: None,
                action: *action,
                reason: reason.clone(),
                then: *then,
                response,
                result: result.clone(),
                remember: *remember,
            })
        }
    }
}

/// Refuses an action that may not answer the whole request. `allowed` has all actions that the
/// caller may take, including those that answer only single calls: `edit` and `respond` in an
/// approval request. The client must send these two inside `decisions`.
fn check_whole_action(
    spec: &RequestSpec,
    allowed: &[Action],
    action: Action,
) -> Result<(), Refusal> {
    let is_of_call = |action: Action| {
        spec.kind.properties().decides_calls && matches!(action, Action::Edit | Action::Respond)
    };
    let (of_calls, whole): (Vec<Action>, Vec<Action>) = allowed
        .iter()
        .copied()
        .partition(|action| is_of_call(*action));
    if whole.contains(&action) {
        return Ok(());
    }
    let mut detail = one_of(&whole);
    if of_calls.contains(&action) {
        detail = format!("{detail}; {}", DecisionBody::per_call_hint(action));
    }
    Err(Refusal::invalid("/action", detail))
}

fn per_call(
    caller: &Caller,
    spec: &RequestSpec,
    allowed: &[Action],
    replies: &BTreeMap<String, CallReply>,
) -> Result<ValidDecision, Refusal> {
    if !spec.kind.properties().decides_calls {
        let detail = "this kind of request has one call: say `action`";
        return Err(Refusal::invalid("/decisions", detail));
    }
    let (mut errors, mut by_call, mut thens) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
    for (name, reply) in replies {
        let place = pointer("/decisions", name);
        let error = |(member, detail): (String, Detail)| FieldError {
            pointer: format!("{place}{member}"),
            detail,
        };
        let call = spec
            .own_calls()
            .find(|call| call.tool_call_id.to_string() == *name);
        let Some(call) = call else {
            let detail = "the `tool_call_id` of a call that needs a decision";
            errors.push(error((String::new(), detail.into())));
            continue;
        };
        if reply.action == Action::Approve && is_barred_editor(caller, spec, call) {
            return Err(own_arguments_refusal());
        }
        let found = reply_errors(caller, spec, call, allowed, reply);
        errors.extend(found.into_iter().map(error));
        thens.extend(reply.then);
        if reply.then.is_some() && thens.len() > 1 {
            let detail = "the same for every call: it holds for the request";
            errors.push(error(("/then".to_owned(), detail.into())));
        }
        by_call.insert(call.tool_call_id, reply.clone());
    }
    if !errors.is_empty() || by_call.is_empty() {
        return Err(Refusal::Invalid(errors));
    }
    let mut actions: Vec<Action> = by_call.values().map(|reply| reply.action).collect();
    actions.dedup();
    let action = if let [action] = actions.as_slice() {
        *action
    } else {
        Action::Mixed
    };
    let then = thens.pop_first();
    Ok(ValidDecision {
        by_call: Some(by_call),
        action,
        reason: None,
        then,
        response: None,
        result: None,
        remember: None,
    })
}

/// Checks a reply against its call. For each member that does not fit, returns the JSON pointer
/// relative to the reply, and the expected value.
fn reply_errors(
    caller: &Caller,
    spec: &RequestSpec,
    call: &CallSpec,
    allowed: &[Action],
    reply: &CallReply,
) -> Vec<(String, Detail)> {
    let mut errors: Vec<(String, Detail)> = Vec::new();
    let requested = reply.remember;
    let misfit =
        requested.and_then(|requested| grant_misfit(caller, spec, call, reply.action, requested));
    errors.extend(misfit.map(|(member, detail)| (member.to_owned(), detail.into())));
    if !allowed.contains(&reply.action) {
        errors.push(("/action".to_owned(), one_of(allowed).into()));
    }
    if reply.action == Action::Edit
        && let Err(found) = read_edit(call, reply.arguments.as_deref().unwrap_or_default())
    {
        let found = found.0.into_iter();
        errors.extend(found.map(|misfit| {
            let place = format!("/arguments{}", misfit.pointer);
            (place, detail_of(misfit))
        }));
    }
    if reply.then.is_some() && reply.action != Action::Reject {
        errors.push(("/then".to_owned(), "only beside a reject".into()));
    }
    errors
}

/// Parses the filled-in form and checks it against the request's `form`. Returns `None` if this
/// answer needs no form.
fn read_response(
    spec: &RequestSpec,
    action: Action,
    response: Option<&Secret<String>>,
) -> Result<Option<Secret<Value>>, Refusal> {
    let is_wanted = action == Action::Respond && spec.kind.properties().response.is_form();
    match (is_wanted, response) {
        (false, None) => Ok(None),
        (false, Some(_)) => Err(Refusal::invalid(
            "/response",
            "nothing is filled in with this answer",
        )),
        (true, None) => Err(Refusal::invalid(
            "/response",
            "the values of the request's `form`",
        )),
        (true, Some(text)) => {
            let form = spec.form.as_ref();
            let form = form.and_then(|form| CompiledSchema::closed(form).ok());
            let form = form.ok_or_else(|| Refusal::internal(UNUSABLE_FORM))?;
            let value = arguments::read(text.reveal(), &form)
                .map_err(|misfits| violations_at("/response", misfits))?;
            if spec.kind.takes_secrets() {
                check_credential(&value)?;
            }
            Ok(Some(Secret::new(value)))
        }
    }
}

/// Refuses credential fields that are too long or contain control characters. When the credential
/// is sent, a control character could inject a header or a line.
fn check_credential(value: &Value) -> Result<(), Refusal> {
    let Value::Object(fields) = value else {
        return Ok(());
    };
    let mistake = |value: &Value| match value.as_str() {
        Some(text) if text.len() > MAX_CREDENTIAL_BYTES => {
            Some(Detail::from(DetailCode::AtMostBytes(MAX_CREDENTIAL_BYTES)))
        }
        Some(text) if is_sendable(text) => None,
        Some(_) | None => Some(Detail::from("text without control characters")),
    };
    let errors: Vec<_> = fields
        .iter()
        .filter_map(|(name, value)| {
            Some(FieldError {
                pointer: pointer("/response", name),
                detail: mistake(value)?,
            })
        })
        .collect();
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Refusal::Invalid(errors))
    }
}

/// Checks that the answer has a result exactly if the request and the action need a result. Checks
/// the result of an external tool against the schema in the request's `form`.
fn read_result(spec: &RequestSpec, action: Action, result: Option<&str>) -> Result<(), Refusal> {
    let content = spec.kind.properties().response;
    let is_wanted = action == Action::Respond && content.is_result();
    match (is_wanted, result) {
        (false, None) => Ok(()),
        (false, Some(_)) => Err(Refusal::invalid("/result", "no result with this answer")),
        (true, None) => Err(Refusal::invalid("/result", "the result")),
        (true, Some(text)) => {
            let Some(form) = spec
                .form
                .as_ref()
                .filter(|_| content == ResponseKind::FormResult)
            else {
                return Ok(());
            };
            let form = CompiledSchema::open(form).map_err(|_| Refusal::internal(UNUSABLE_FORM))?;
            let fits = |value: Value| form.check(&value);
            serde_json::from_str(text)
                .map_err(|_| SchemaViolations::single("", "a JSON value"))
                .and_then(fits)
                .map_err(|misfits| violations_at("/result", misfits))
        }
    }
}

/// Parses and checks the edited arguments of a call, by the same rules as arguments from the model.
fn read_edit(call: &CallSpec, text: &str) -> Result<Value, SchemaViolations> {
    match CompiledSchema::closed(&call.parameters) {
        Ok(schema) => arguments::read(text, &schema),
        Err(_) => Err(SchemaViolations::single(
            "",
            "this call cannot be edited: its tool is gone",
        )),
    }
}

fn own_arguments_refusal() -> Refusal {
    Refusal::Forbidden("You wrote these arguments: other people have to approve them.".into())
}

fn one_of(actions: &[Action]) -> String {
    let words: Vec<_> = actions.iter().map(|action| action.as_str()).collect();
    if words.is_empty() {
        "nothing can be answered here".to_owned()
    } else {
        format!("one of: {}", words.join(", "))
    }
}

fn violations_at(at: &str, misfits: SchemaViolations) -> Refusal {
    let error = |misfit: SchemaViolation| FieldError {
        pointer: format!("{at}{}", misfit.pointer),
        detail: detail_of(misfit),
    };
    Refusal::Invalid(misfits.0.into_iter().map(error).collect())
}

/// Returns the text of the violation; for `format: date`, the code that the pages translate.
fn detail_of(violation: SchemaViolation) -> Detail {
    if violation.is_date_expected {
        DetailCode::Date.into()
    } else {
        violation.detail.into()
    }
}
