//! Writes the result of `tools/call`. Invariant: only a result that the tool or a person gave is a
//! success; any other result is an error result. This has two reasons. Clients refuse a success
//! that lacks the structured content that the tool's `outputSchema` promises. And a model that
//! reads an error does not continue as if the call had run.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::tools::OutputCheck;
use crate::engine::gate::{
    GateAnswer, GateCall, GateDecision, GateState, MAY_HAVE_RUN, Repetition,
};
use crate::http::Settings;
use crate::http::api::gate::PEOPLE_RETRY_SECONDS;
use crate::http::server::json::parse;
use crate::http::wire::gate::WireGateCall;
use crate::http::wire::request::{InterventionRequest, WireRequestStatus};
use crate::people::Caller;
use crate::task::item::Outcome;
use crate::task::mcp_revision::Revision;

#[cfg(test)]
mod tests;

pub(super) struct ResultWriter {
    pub(super) revision: Revision,
    /// The number that the client's next repetition of this request will have; the first repetition
    /// has 1. `None` if the client will not repeat the request by itself.
    pub(super) next_repetition: Option<u32>,
    /// Whether the client has named the call by a key. A repetition then continues the call.
    pub(super) is_named: bool,
    /// Whether the call continues an earlier request to an upstream MCP server. The client cannot
    /// make such a call again.
    pub(super) is_continuation: bool,
    pub(super) output: Option<OutputCheck>,
}

impl ResultWriter {
    /// Returns the result as JSON text. If the call is pending and `next_repetition` is set, the
    /// result is `input_required`, after which the client repeats the request by itself. If an MCP
    /// server ran the call during this request, the result is that server's own result with the
    /// additions of `pass_through`.
    pub(super) fn result(
        &self,
        answer: &GateAnswer,
        caller: &Caller,
        settings: &Settings,
    ) -> String {
        let call = &answer.call;
        if call.decision == GateDecision::Pending
            && let Some(repetition) = self.next_repetition
        {
            let state = format!("hp1.{}.{repetition}", call.task_id);
            return json!({"resultType": "input_required", "requestState": state}).to_string();
        }
        let request = WireGateCall::from_call(call, caller, settings).request;
        let meta = gate_meta(call, request.as_deref());
        if let Some(raw) = answer.raw.as_deref()
            && let Some(text) =
                self.pass_through(raw, call.edited.then(|| edit_notice(call)), &meta)
        {
            return text;
        }
        self.write_from_call(call, request.as_deref(), &meta)
            .to_string()
    }

    /// Writes the result from the stored call. Does not use an MCP server's own result.
    fn write_from_call(
        &self,
        call: &GateCall,
        request: Option<&InterventionRequest>,
        meta: &Value,
    ) -> Value {
        let mut result = match call.state {
            GateState::Settled => self.settled(call),
            GateState::Pending
            | GateState::Approved
            | GateState::Started
            | GateState::OutcomeUnknown => error_result(&open_call_text(self, call, request)),
        };
        // An edit matters to the client only if the call was started with the edited arguments.
        if call.state == GateState::Settled
            && call.edited
            && call.attempts > 0
            && let Some(Value::Array(blocks)) = result.get_mut("content")
        {
            blocks.push(edit_notice(call));
        }
        set_result_type(&mut result, self.revision);
        set_member(&mut result, "_meta", json!({ "holdpoint/gate": meta }));
        result
    }

    fn settled(&self, call: &GateCall) -> Value {
        let outcome = call.outcome.unwrap_or(Outcome::Canceled);
        let content = call.result.as_ref().map_or("", |result| &result.content);
        match outcome {
            Outcome::Succeeded => self.tool_result(content),
            Outcome::Responded => self.persons_result(content),
            // A failed call that the asker ran may have no stored result. In this case, only the
            // call's message says how the call failed, for example that no outcome was reported.
            Outcome::Failed if call.result.is_none() => error_result(&call.message()),
            Outcome::Failed => error_result(content),
            Outcome::Unknown | Outcome::Released => error_result(MAY_HAVE_RUN),
            Outcome::Invalid
            | Outcome::Denied
            | Outcome::Rejected
            | Outcome::Expired
            | Outcome::Withdrawn
            | Outcome::Canceled => error_result(&refusal_text(call, outcome, content)),
        }
    }

    /// Writes the result of a call that succeeded from its stored text `content`. If the whole text
    /// fits the tool's `outputSchema`, the text becomes the structured content. Otherwise, if the
    /// last line fits, this line becomes the structured content, because `mcp/content.rs` appends
    /// structured content as the last line. If neither the text nor the line fits, the result has
    /// no structured content, but still says that the call has succeeded.
    fn tool_result(&self, content: &str) -> Value {
        let mut result = json!({"content": [text_block(content)], "isError": false});
        let last_line = || content.rsplit_once('\n').map(|(_, line)| line);
        let structured = self
            .structured(content)
            .or_else(|| self.structured(last_line()?));
        if let Some(value) = structured {
            set_member(&mut result, "structuredContent", value);
        }
        result
    }

    /// Writes the result that a person gave in place of the tool. The result is an error result if
    /// the tool has an `outputSchema` and the person's text does not fit the schema.
    fn persons_result(&self, content: &str) -> Value {
        let mut result = json!({"content": [text_block(content)], "isError": false});
        match (&self.output, self.structured(content)) {
            (None, _) => {}
            (Some(_), Some(value)) => set_member(&mut result, "structuredContent", value),
            (Some(_), None) => set_member(&mut result, "isError", json!(true)),
        }
        result
    }

    /// Returns `text` as structured content. `None` if the tool has no `outputSchema`, or if the
    /// text is not a JSON object that fits the schema.
    fn structured(&self, text: &str) -> Option<Value> {
        let output = self.output.as_ref()?;
        let value = parse(text.as_bytes()).ok()?;
        (value.is_object() && (output.0)(&value)).then_some(value)
    }

    /// Returns the MCP server's own result `raw` with up to three additions: the content block
    /// `edit` if it is set, `_meta` if `raw` has none, and `resultType` if the revision needs it
    /// and `raw` has none. Returns `None` if `raw` is not an object, or if `edit` is set and `raw`
    /// has no list `content`.
    fn pass_through(&self, raw: &str, edit: Option<Value>, meta: &Value) -> Option<String> {
        let raw = match edit {
            Some(block) => with_content_block(raw, &block.to_string())?,
            None => raw.to_owned(),
        };
        let members: BTreeMap<String, &RawValue> = serde_json::from_str(&raw).ok()?;
        let mut added = Vec::new();
        if self.revision.is_stateless() && !members.contains_key("resultType") {
            added.push("\"resultType\":\"complete\"".to_owned());
        }
        if !members.contains_key("_meta") {
            added.push(format!("\"_meta\":{{\"holdpoint/gate\":{meta}}}"));
        }
        let comma = if members.is_empty() || added.is_empty() {
            ""
        } else {
            ","
        };
        let open = raw.trim_end().strip_suffix('}')?;
        Some(format!("{open}{comma}{}}}", added.join(",")))
    }
}

/// Writes the result of a call that a gateway does not let through, in the protocol revision of the
/// gateway's client. `is_continuation` says whether the call continues an earlier request to the
/// upstream MCP server. The result has no `requestState`: the client would send the state in its
/// next request, and the gateway may forward that request to the upstream MCP server. A result that
/// a person gave becomes an error result, because the client may refuse it as a success: the
/// upstream's tool may have an `outputSchema`, which this service does not know.
pub(crate) fn gateway_result(
    call: &GateCall,
    caller: &Caller,
    settings: &Settings,
    revision: Revision,
    is_continuation: bool,
) -> Value {
    let writer = ResultWriter {
        revision,
        next_repetition: None,
        is_named: false,
        is_continuation,
        output: None,
    };
    let request = WireGateCall::from_call(call, caller, settings).request;
    let meta = gate_meta(call, request.as_deref());
    let mut result = writer.write_from_call(call, request.as_deref(), &meta);
    if call.outcome == Some(Outcome::Responded) {
        set_member(&mut result, "isError", json!(true));
    }
    result
}

/// Writes the result of a call that the gateway must refuse. `text` tells the model the reason.
pub(crate) fn refusal_result(revision: Revision, text: &str) -> Value {
    let mut result = error_result(text);
    set_result_type(&mut result, revision);
    result
}

/// Returns the result `raw` with `block` added at the end of the list `content`. All other bytes
/// stay as they are. Returns `None` if `raw` has no list `content`.
fn with_content_block(raw: &str, block: &str) -> Option<String> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(raw).ok()?;
    let content = members.get("content")?.get();
    let blocks: Vec<&RawValue> = serde_json::from_str(content).ok()?;
    let comma = if blocks.is_empty() { "" } else { "," };
    // `content` borrows from `raw`, so the address of the end of `content` gives the position in
    // `raw` of the `]` that ends the list.
    let end = (content.as_ptr().addr() + content.len()).checked_sub(raw.as_ptr().addr() + 1)?;
    let (before, after) = raw.split_at_checked(end)?;
    Some(format!("{before}{comma}{block}{after}"))
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn edit_notice(call: &GateCall) -> Value {
    text_block(&format!(
        "A person changed the arguments before it ran: {}",
        call.arguments_text
    ))
}

fn error_result(text: &str) -> Value {
    json!({"content": [text_block(text)], "isError": true})
}

/// Writes the text for a call that did not run, or that started and ended without a result.
fn refusal_text(call: &GateCall, outcome: Outcome, content: &str) -> String {
    let tool = &call.tool;
    if call.decision == GateDecision::Allow {
        return format!(
            "The call of {tool} ended as {}. {MAY_HAVE_RUN}",
            outcome.as_str()
        );
    }
    let reason = call.end_text.as_deref().or(call.reason.as_deref());
    let reason = reason.unwrap_or(content).trim();
    let reason = if reason.is_empty() {
        String::new()
    } else {
        format!(": {}", reason.trim_end_matches('.'))
    };
    let again = if outcome == Outcome::Rejected {
        " Do not try again."
    } else {
        ""
    };
    format!(
        "The call of {tool} was {}{reason}. It has not run.{again}",
        outcome.as_str()
    )
}

/// Writes the text for a call without an outcome.
fn open_call_text(
    writer: &ResultWriter,
    call: &GateCall,
    request: Option<&InterventionRequest>,
) -> String {
    let tool = &call.tool;
    let url = request.map_or("the inbox", |request| &request.url);
    let again = advice(writer, call);
    match call.state {
        GateState::Pending
            if request.is_some_and(|asked| !asked.kind.properties().decides_calls) =>
        {
            format!("HELD. A person must answer a question of {tool} at {url} . {again}")
        }
        GateState::Pending => {
            let why = match (&call.rule, &call.reason) {
                (Some(rule), Some(reason)) => {
                    format!(" (rule {rule}: {})", reason.trim_end_matches('.'))
                }
                (Some(rule), None) => format!(" (rule {rule})"),
                (None, Some(reason)) => format!(" ({})", reason.trim_end_matches('.')),
                (None, None) => String::new(),
            };
            let (what, not_run) = if call.attempts > 0 {
                ("another attempt at ", "")
            } else {
                ("", " It has NOT run.")
            };
            format!(
                "HELD. A person must approve {what}this call of {tool}{why}.{not_run} Approve it at {url} . {again}"
            )
        }
        GateState::Approved if call.is_queued() => {
            format!("QUEUED. The call of {tool} has no result yet, and starts by itself. {again}")
        }
        GateState::Approved if writer.is_continuation => {
            format!("APPROVED. The call of {tool} is not being run. {again}")
        }
        GateState::Approved if call.attempts > 0 => format!(
            "APPROVED. The call of {tool} was started before, and its next attempt has NOT been started \
             yet: make exactly the same call again to start it."
        ),
        GateState::Approved => format!(
            "APPROVED. The call of {tool} has NOT run yet: make exactly the same call again to run it."
        ),
        GateState::OutcomeUnknown => {
            format!(
                "{MAY_HAVE_RUN} A person is asked at {url} about the outcome of this call of {tool}."
            )
        }
        GateState::Started | GateState::Settled => {
            format!("UNDER WAY. The call of {tool} is being run. {again}")
        }
    }
}

/// Returns the advice whether to make a call without an outcome again.
fn advice(writer: &ResultWriter, call: &GateCall) -> &'static str {
    if writer.is_continuation {
        "It continues an earlier request, and you cannot make it again: a call that you make now is another call."
    } else if writer.is_named || call.repetition == Repetition::Continues {
        "To get its result, make exactly the same call again later; do not change its arguments, and \
         do not try another way."
    } else if call.state == GateState::Pending {
        "Do not make it again: that would be another call."
    } else {
        "Do not make it again: that would run it a second time."
    }
}

/// Returns the member `holdpoint/gate` of the result's `_meta`: the state of the call, for client
/// programs.
fn gate_meta(call: &GateCall, request: Option<&InterventionRequest>) -> Value {
    let state = crate::http::wire::gate::WireGateState::from(call.state);
    let decision = call.decision.as_str();
    if call.decision == GateDecision::Pending {
        // A closed request asks nobody.
        let request = request.filter(|request| request.status == WireRequestStatus::Pending);
        return json!({
            "state": state,
            "decision": decision,
            "task_id": call.task_id,
            "request_id": request.map(|request| &request.request_id),
            "url": request.map(|request| &request.url),
            "expires_at": call.expires_at.map(|end| end.to_string()),
            "retry_after_ms": PEOPLE_RETRY_SECONDS * 1000,
        });
    }
    json!({
        "state": state,
        "decision": decision,
        "outcome": call.outcome.map(Outcome::as_str),
        "task_id": call.task_id,
        "rule": call.rule,
        "by": call.by,
        "edited": call.edited,
    })
}

/// Sets the result's member `resultType` to `complete`, if the revision requires this member.
fn set_result_type(result: &mut Value, revision: Revision) {
    if revision.is_stateless() {
        set_member(result, "resultType", json!("complete"));
    }
}

fn set_member(object: &mut Value, member: &str, value: Value) {
    if let Value::Object(members) = object {
        members.insert(member.to_owned(), value);
    }
}
