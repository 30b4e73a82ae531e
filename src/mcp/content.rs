//! Converts the result of a tool into text for a model. Texts and embedded text resources keep
//! their order. If no text repeats the structured content, this content is added at the end as
//! JSON. Any other content becomes a short note. Links in a result are not fetched.

use serde_json::Value;

use super::client::McpOutcome;
use super::elicitation::{self, InputQuestion, InputRequest};
use super::wire::{NOT_EXECUTED, RpcAnswer};
use crate::secret::Redactor;
use crate::task::text::cut;
use crate::tool::output;

const MAX_ERROR_BYTES: usize = 2 * 1024;
const MAX_METHOD_BYTES: usize = 64;

pub(super) fn outcome(answer: RpcAnswer, redactor: &Redactor) -> McpOutcome {
    match answer {
        RpcAnswer::Error { code, message } => {
            let message = redactor.redact(&message).into_owned();
            let text = format!(
                "The server reported error {code}: {}",
                cut(&message, MAX_ERROR_BYTES)
            );
            if NOT_EXECUTED.contains(&code) {
                McpOutcome::Failed(text)
            } else {
                McpOutcome::Suspect(text)
            }
        }
        RpcAnswer::Result(result) => match result.get("resultType").and_then(Value::as_str) {
            None | Some("complete") => complete(&result, redactor),
            Some("input_required") => match input_request(&result, redactor) {
                Ok(input_request) => match elicitation::check(input_request, redactor) {
                    Ok(input) => McpOutcome::Elicitation(Box::new(input)),
                    Err(text) => McpOutcome::Failed(text),
                },
                Err(outcome) => outcome,
            },
            Some("task") => McpOutcome::NeedsTasks,
            Some(_) => McpOutcome::Unknown(NO_RESULT.to_owned()),
        },
    }
}

/// The error text for an answer that is not a valid result.
pub(super) const NO_RESULT: &str = "the answer was not a result that can be read";

fn complete(result: &Value, redactor: &Redactor) -> McpOutcome {
    let Some(blocks) = result.get("content").and_then(Value::as_array) else {
        return McpOutcome::Unknown(NO_RESULT.to_owned());
    };
    let mut parts: Vec<String> = blocks.iter().map(block_text).collect();
    let structured = result
        .get("structuredContent")
        .filter(|value| !value.is_null());
    if let Some(structured) = structured
        && !parts.iter().any(|part| is_json_of(part, structured))
    {
        parts.push(structured.to_string());
    }
    let text = output::result(redactor, parts.join("\n").as_bytes(), true);
    match result.get("isError") {
        Some(Value::Bool(true)) => McpOutcome::Failed(text),
        None | Some(Value::Bool(false) | Value::Null) => McpOutcome::Succeeded(text),
        Some(_) => McpOutcome::Unknown(NO_RESULT.to_owned()),
    }
}

fn is_json_of(text: &str, value: &Value) -> bool {
    text.trim_start().starts_with(['{', '['])
        && serde_json::from_str::<Value>(text).is_ok_and(|parsed| parsed == *value)
}

/// Returns the whole text of a block, uncut. The caller redacts the whole result before it cuts the
/// result, because a secret that is cut in two would not be found.
fn block_text(block: &Value) -> String {
    let text = |name: &str| block.get(name).and_then(Value::as_str).unwrap_or_default();
    match text("type") {
        "text" => text("text").to_owned(),
        kind @ ("image" | "audio") => {
            // Four characters of Base64 encode three bytes.
            let size = text("data").len() / 4 * 3;
            let mime = text("mimeType");
            let mime = if mime.is_empty() { kind } else { mime };
            format!("[{mime}, {} KiB, not shown]", size.div_ceil(1024))
        }
        "resource" => {
            let resource = block.get("resource");
            let member = |name: &str| {
                resource
                    .and_then(|all| all.get(name))
                    .and_then(Value::as_str)
            };
            let uri = member("uri").unwrap_or("a resource");
            match member("text") {
                Some(text) => format!("{uri}:\n{text}"),
                None => format!("[{uri}, not shown]"),
            }
        }
        "resource_link" => format!("[link: {} {}]", text("name"), text("uri")),
        "" => "[unknown content, not shown]".to_owned(),
        kind => format!("[{kind}, not shown]"),
    }
}

/// Returns the questions and the state of a result of the type `input_required`. Fails if the
/// result has neither questions nor a state, or if its `inputRequests` are no object. Also fails if
/// the server requests anything but an elicitation: the client declares no other capability.
fn input_request(result: &Value, redactor: &Redactor) -> Result<InputRequest, McpOutcome> {
    let state = result.get("requestState");
    let request_state = state.and_then(Value::as_str).map(str::to_owned);
    let listed = match result.get("inputRequests") {
        None | Some(Value::Null) => None,
        Some(Value::Object(listed)) => Some(listed),
        Some(_) => {
            let text = "The server asks for input, but its `inputRequests` are no object.";
            return Err(McpOutcome::Failed(text.to_owned()));
        }
    };
    let mut requests = Vec::new();
    for (key, request) in listed.into_iter().flatten() {
        let Some(question) = question(request) else {
            let name = unsupported_request_name(request, redactor);
            let text = format!("The server asks for {name}, which is not offered here.");
            return Err(McpOutcome::Failed(text));
        };
        requests.push((key.clone(), question));
    }
    if requests.is_empty() && request_state.is_none() {
        return Err(McpOutcome::Unknown(NO_RESULT.to_owned()));
    }
    Ok(InputRequest {
        requests,
        request_state,
    })
}

/// Returns a name for a request of the server that this client does not support. The name is part
/// of the error text for the model.
fn unsupported_request_name(request: &Value, redactor: &Redactor) -> String {
    match request.get("method").and_then(Value::as_str) {
        Some("sampling/createMessage") => "sampling".to_owned(),
        Some("roots/list") => "roots".to_owned(),
        Some("elicitation/create") => "an elicitation of another kind".to_owned(),
        Some(method) => format!("`{}`", cut(&redactor.redact(method), MAX_METHOD_BYTES)),
        None => "something without a name".to_owned(),
    }
}

fn question(request: &Value) -> Option<InputQuestion> {
    if request.get("method").and_then(Value::as_str) != Some("elicitation/create") {
        return None;
    }
    let params = request.get("params")?;
    let text = |name: &str| params.get(name).and_then(Value::as_str).map(str::to_owned);
    let message = text("message").unwrap_or_default();
    match text("mode").as_deref() {
        None | Some("form") => Some(InputQuestion::Form {
            message,
            schema: params.get("requestedSchema")?.clone(),
        }),
        Some("url") => Some(InputQuestion::Url {
            message,
            url: text("url")?,
        }),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::task::elicitation::ServerState;

    fn of(result: Value) -> McpOutcome {
        outcome(RpcAnswer::Result(result), &Redactor::default())
    }

    #[test]
    fn blocks_become_text_in_their_order() {
        let result = json!({"content": [
            {"type": "text", "text": "one"},
            {"type": "image", "mimeType": "image/png", "data": "AAAA".repeat(512)},
            {"type": "audio", "data": "AAAA"},
            {"type": "resource", "resource": {"uri": "file:///a", "text": "two"}},
            {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAA"}},
            {"type": "resource_link", "name": "c", "uri": "https://h/c"},
            {"type": "hologram"},
            {},
        ], "structuredContent": {"a": 1}});
        assert_eq!(
            of(result),
            McpOutcome::Succeeded(
                "one\n[image/png, 2 KiB, not shown]\n[audio, 1 KiB, not shown]\nfile:///a:\ntwo\n[file:///b, not shown]\n\
                 [link: c https://h/c]\n[hologram, not shown]\n[unknown content, not shown]\n{\"a\":1}"
                    .to_owned()
            )
        );
        let said = json!({"content": [{"type": "text", "text": "{ \"a\": 1 }"}], "structuredContent": {"a": 1}});
        assert_eq!(of(said), McpOutcome::Succeeded("{ \"a\": 1 }".to_owned()));
    }

    #[test]
    fn secret_in_a_kind_of_content_leaves_nothing_behind_wherever_it_begins() {
        let secret = crate::secret::Secret::new("canary-0123456789".to_owned());
        let redactor = Redactor::new([("KEY", &secret)]);
        for before in 40..70 {
            let kind = "x".repeat(before) + secret.reveal();
            for block in [
                json!({"type": "image", "mimeType": kind}),
                json!({"type": kind}),
            ] {
                let result = RpcAnswer::Result(json!({"content": [block]}));
                let McpOutcome::Succeeded(text) = outcome(result, &redactor) else {
                    panic!("no success")
                };
                assert!(!text.contains("can"), "{text}");
            }
        }
    }

    #[test]
    fn answer_is_a_success_a_failure_a_suspicion_or_unknown() {
        let text = |text: &str| json!([{"type": "text", "text": text}]);
        assert_eq!(
            of(json!({"content": text("no"), "isError": true})),
            McpOutcome::Failed("no".to_owned())
        );
        for result in [
            json!({}),
            json!(null),
            json!({"content": "x"}),
            json!({"content": [], "isError": "yes"}),
            json!({"resultType": "later", "content": []}),
            json!({"resultType": "input_required"}),
        ] {
            assert!(
                matches!(of(result.clone()), McpOutcome::Unknown(_)),
                "{result}"
            );
        }
        let task = json!({"resultType": "task", "task": {}});
        assert_eq!(of(task), McpOutcome::NeedsTasks);
        for code in NOT_EXECUTED {
            let error = RpcAnswer::Error {
                code,
                message: "no".to_owned(),
            };
            let found = outcome(error, &Redactor::default());
            assert_eq!(
                found,
                McpOutcome::Failed(format!("The server reported error {code}: no"))
            );
        }
        for code in [-32603, -32000, -32042, 1] {
            let error = RpcAnswer::Error {
                code,
                message: String::new(),
            };
            assert!(matches!(
                outcome(error, &Redactor::default()),
                McpOutcome::Suspect(_)
            ));
        }
    }

    #[test]
    fn only_questions_for_a_person_are_taken() {
        let form = json!({"method": "elicitation/create", "params": {"message": "m", "requestedSchema": {"type": "object"}}});
        let url = json!({"method": "elicitation/create", "params": {"mode": "url", "message": "m", "url": "https://h/"}});
        let McpOutcome::Elicitation(read) = of(
            json!({"resultType": "input_required", "inputRequests": {"a": form, "b": url}, "requestState": "s"}),
        ) else {
            panic!("asks");
        };
        assert_eq!(
            (read.questions.len(), read.state),
            (2, Some(ServerState::Plain("s".to_owned())))
        );
        let video = json!({"method": "elicitation/create", "params": {"mode": "video"}});
        for (request, name) in [
            (json!({"method": "sampling/createMessage"}), "sampling"),
            (json!({"method": "roots/list"}), "roots"),
            (json!({"method": "x/y"}), "`x/y`"),
            (video, "an elicitation of another kind"),
            (json!({}), "something without a name"),
        ] {
            let requests = json!({"a": form, "b": request});
            let refused = of(json!({"resultType": "input_required", "inputRequests": requests}));
            let text = format!("The server asks for {name}, which is not offered here.");
            assert_eq!(refused, McpOutcome::Failed(text));
        }
    }

    #[test]
    fn input_requests_that_are_no_object_fail_the_call_also_beside_a_state() {
        let form = json!({"method": "elicitation/create", "params": {"message": "m", "requestedSchema": {"type": "object"}}});
        let result = |requests: Value| json!({"resultType": "input_required", "inputRequests": requests, "requestState": "s"});
        for requests in [json!([form]), json!("a")] {
            let refused = of(result(requests));
            let text = "The server asks for input, but its `inputRequests` are no object.";
            assert_eq!(refused, McpOutcome::Failed(text.to_owned()));
        }
        let state_only = of(result(Value::Null));
        assert!(matches!(state_only, McpOutcome::Elicitation(_)));
    }
}
