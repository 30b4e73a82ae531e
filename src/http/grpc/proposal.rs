//! Builds the proposal of a call that a gateway asks about. An approval covers only a call with the
//! same place (for Envoy, the host and the path), the same tool and arguments, and the same other
//! members. On another server, the same arguments could have another effect. With other members,
//! such as other answers to an upstream's questions, the call would have input that the approvers
//! have not seen.

use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::json_rpc::{REQUEST_STATE, ToolCallParams};
use crate::engine::gate::{AskProgress, Identity, Proposal};
use crate::task::limits::MAX_CONTEXT_BYTES;
use crate::task::request::format_sha256;

/// Builds the proposal of `call` at the gate `gate`, with a wait of zero. `place` has the names and
/// the values that say where the gateway forwards the call. A text for the approvers that is too
/// long is cut.
pub(super) fn proposal(
    gate: &str,
    session_id: Option<String>,
    call: ToolCallParams,
    place: &[(&str, &str)],
) -> Proposal {
    let mut context = context(&call, place);
    let is_cut = context.len() > MAX_CONTEXT_BYTES;
    if is_cut {
        context.truncate(context.floor_char_boundary(MAX_CONTEXT_BYTES));
        context.push_str("… (cut)");
    }
    let rest = json!([place, call.others]).to_string();
    Proposal {
        gate: Some(gate.to_owned()),
        identity: Identity::Bytes {
            rest: format_sha256(&Sha256::digest(rest.as_bytes())),
            is_cut,
        },
        tool: call.name,
        arguments_text: call.arguments,
        session_id,
        context,
        metadata: "{}".to_owned(),
        runner: None,
        wait: Duration::ZERO,
        run_wait: Duration::ZERO,
        returns_within: Duration::ZERO,
        progress: AskProgress::default(),
    }
}

/// Returns the text that people see besides the tool and the arguments: the values of `place` that
/// are not empty, and the other members of the call. Of `requestState`, the text says only that the
/// call has it.
fn context(call: &ToolCallParams, place: &[(&str, &str)]) -> String {
    let place = place.iter().filter(|(_, value)| !value.is_empty());
    let mut lines: Vec<String> = place
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    let shown = call.others.iter();
    let shown: Vec<String> = shown
        .filter(|(name, _)| *name != REQUEST_STATE)
        .map(|(name, text)| format!("{}:{text}", Value::from(name.as_str())))
        .collect();
    if !shown.is_empty() {
        lines.push(format!("Besides the arguments: {{{}}}", shown.join(",")));
    }
    if call.others.contains_key(REQUEST_STATE) {
        lines.push("The call continues an earlier one (`requestState`).".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::grpc::json_rpc::read_tool_call;

    #[test]
    fn approvers_see_the_place_and_the_other_members_but_not_the_state() {
        let params = br#"{"requestState":"secret", "name":"pay","_meta":{"progressToken":1},
            "inputResponses": {"q": {"n": 1.0}}, "x": "a b"}"#;
        let shown = context(
            &read_tool_call(params).unwrap(),
            &[("Host", "acme.com"), ("Path", "")],
        );
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(
            lines,
            [
                "Host: acme.com",
                r#"Besides the arguments: {"inputResponses":{"q":{"n":1.0}},"x":"a b"}"#,
                "The call continues an earlier one (`requestState`).",
            ]
        );
        let bare = read_tool_call(br#"{"name":"pay","arguments":{},"_meta":{}}"#).unwrap();
        assert_eq!(context(&bare, &[]), "");
    }

    #[test]
    fn proposal_that_waits_keeps_no_large_input() {
        let proposed = |input: usize| {
            let text = "é".repeat(input);
            let params = format!(r#"{{"name":"pay","inputResponses":"{text}"}}"#);
            let call = read_tool_call(params.as_bytes()).unwrap();
            let proposal = proposal("g", None, call, &[("Path", "/mcp")]);
            let Identity::Bytes { rest, is_cut } = proposal.identity else {
                panic!("another identity")
            };
            (proposal.context, rest, is_cut)
        };
        let ((shown, one, is_cut), (cut, other, _)) = (proposed(8_000), proposed(500_000));
        assert!(!is_cut && shown.ends_with("é\"}"), "{shown}");
        assert!(cut.ends_with("é… (cut)") && cut.len() < 17 * 1024);
        assert!(one != other && one.len() == other.len(), "{one} {other}");
        assert!(proposed(8_200).2);
    }
}
