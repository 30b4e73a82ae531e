//! Tests that the bytes of an MCP server's result are kept, that a stored result text is checked
//! against the `outputSchema`, and that the text about a call says whether the call was started.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{ResultWriter, gateway_result, text_block};
use crate::engine::gate::{GateCall, GateDecision, GateState, Repetition};
use crate::http::api::mcp::tools::OutputCheck;
use crate::http::openapi::sample;
use crate::store::RequestRow;
use crate::task::item::Outcome;
use crate::task::mcp_revision::Revision;
use crate::task::status::RequestStatus;

fn writer(revision: Revision) -> ResultWriter {
    ResultWriter {
        revision,
        next_repetition: None,
        is_named: false,
        is_continuation: false,
        output: None,
    }
}

fn raw(revision: Revision, raw: &str, edit: Option<&str>) -> Option<String> {
    writer(revision).pass_through(raw, edit.map(text_block), &json!(7))
}

#[test]
fn result_of_a_server_keeps_its_bytes_and_gets_only_the_members_that_it_lacks() {
    let own = r#"{ "content" : [ ],"x":1.0,"b":"\u00e9", "isError":false }"#;
    let open = own.strip_suffix('}').unwrap();
    let account = r#""_meta":{"holdpoint/gate":7}}"#;
    assert_eq!(
        raw(Revision::June2025, own, None).unwrap(),
        format!("{open},{account}")
    );
    assert_eq!(
        raw(Revision::July2026, own, None).unwrap(),
        format!("{open},\"resultType\":\"complete\",{account}")
    );
    assert_eq!(
        raw(Revision::June2025, "{}", None).unwrap(),
        format!("{{{account}")
    );
    let whole = r#"{"content":[],"_meta":{"a":1},"resultType":"complete"}"#;
    for revision in Revision::ALL {
        assert_eq!(raw(revision, whole, None).unwrap(), whole);
    }
    assert_eq!(raw(Revision::June2025, "[]", None), None);
}

#[test]
fn edited_arguments_are_shown_in_a_block_after_the_servers_content() {
    let block = r#"{"text":"Changed","type":"text"}"#;
    for (content, expected) in [
        ("[ ]", format!("[ {block}]")),
        ("[{}]", format!("[{{}},{block}]")),
    ] {
        let own = format!(r#"{{"n":1.0,"content":{content} ,"_meta":{{}}}}"#);
        let expected = format!(r#"{{"n":1.0,"content":{expected} ,"_meta":{{}}}}"#);
        let told = raw(Revision::June2025, &own, Some("Changed"));
        assert_eq!(told.unwrap(), expected);
    }
    assert_eq!(raw(Revision::June2025, "{}", Some("Changed")), None);
}

/// Returns a writer for a tool whose structured results have a whole number `sum`.
fn adding() -> ResultWriter {
    let fits = |value: &Value| value["sum"].is_u64();
    ResultWriter {
        output: Some(OutputCheck(Arc::new(fits))),
        ..writer(Revision::June2025)
    }
}

#[test]
fn stored_text_of_a_success_is_no_error_and_has_the_structured_content_that_fits() {
    let sum = json!({"sum": 3});
    for (text, structured) in [
        (r#"{"sum":3}"#, Some(&sum)),
        ("It is 3.\n{\"sum\":3}", Some(&sum)),
        ("It is 3.\n{\n\"sum\":3}", None),
        ("{\"sum\":3}\nIt is 3.", None),
        ("It is 3.\n{\"sum\":\"3\"}", None),
        ("It is 3.\n{\"sum\":3,\"sum\":4}", None),
        ("no JSON", None),
    ] {
        let told = adding().tool_result(text);
        assert_eq!(
            (&told["content"][0]["text"], &told["isError"]),
            (&json!(text), &json!(false))
        );
        assert_eq!(told.get("structuredContent"), structured, "{text}");
    }
    let free = writer(Revision::June2025).tool_result("It is 3.\n{\"sum\":3}");
    assert_eq!(free.get("structuredContent"), None);
}

#[test]
fn persons_text_is_structured_content_where_it_fits_the_schema_and_an_error_where_not() {
    let told = adding().persons_result(r#"{"sum":3}"#);
    assert_eq!(
        (&told["structuredContent"], &told["isError"]),
        (&json!({"sum": 3}), &json!(false))
    );
    for text in [
        r#"{"sum":"3"}"#,
        "3",
        "no JSON",
        r#"{"sum":3,"sum":4}"#,
        "It is 3.\n{\"sum\":3}",
    ] {
        let told = adding().persons_result(text);
        assert_eq!(
            (&told["content"][0]["text"], &told["isError"]),
            (&json!(text), &json!(true))
        );
        assert!(told.get("structuredContent").is_none(), "{text}");
    }
    let free = writer(Revision::June2025).persons_result("3");
    assert_eq!(
        (&free["isError"], free.get("structuredContent")),
        (&json!(false), None)
    );
}

/// Returns the texts of the blocks that a gateway's client gets for `call`, joined by `|`.
fn told(call: &GateCall) -> String {
    told_of(call, false)
}

fn told_of(call: &GateCall, is_continuation: bool) -> String {
    let (caller, settings) = (sample::caller(), sample::settings());
    let revision = Revision::June2025;
    let result = gateway_result(call, &caller, &settings, revision, is_continuation);
    let blocks = result["content"].as_array().unwrap();
    let texts: Vec<&str> = blocks
        .iter()
        .map(|block| block["text"].as_str().unwrap())
        .collect();
    texts.join("|")
}

#[test]
fn approved_call_that_was_started_before_is_told_as_such() {
    let call = |attempts| GateCall {
        state: GateState::Approved,
        attempts,
        ..sample::gate_call()
    };
    assert_eq!(
        told(&call(0)),
        "APPROVED. The call of refund_payment has NOT run yet: make exactly the same call again to run it."
    );
    assert_eq!(
        told(&call(1)),
        "APPROVED. The call of refund_payment was started before, and its next attempt has NOT been started yet: make exactly the same call again to start it."
    );
    let message = call(1).message();
    assert!(
        message.starts_with("Approved; the call was started before"),
        "{message}"
    );
}

#[test]
fn client_of_a_continuation_is_not_told_to_make_it_again() {
    for state in [
        GateState::Pending,
        GateState::Approved,
        GateState::Started,
        GateState::OutcomeUnknown,
    ] {
        for attempts in [0, 1] {
            let call = GateCall {
                state,
                attempts,
                ..sample::gate_call()
            };
            let text = told_of(&call, true);
            assert!(!text.contains("make exactly"), "{text}");
            let is_advised = text.ends_with("a call that you make now is another call.");
            assert!(is_advised || text.starts_with("It may have run."), "{text}");
        }
    }
}

#[test]
fn queued_call_that_equal_calls_do_not_continue_is_told_to_start_by_itself() {
    let queued = |attempts| GateCall {
        state: GateState::Approved,
        repetition: Repetition::RunsAgain,
        attempts,
        ..sample::gate_call()
    };
    // After a lost attempt, the next attempt of a repeatable call starts by itself, too.
    for call in [queued(0), queued(1)] {
        assert_eq!(
            told(&call),
            "QUEUED. The call of refund_payment has no result yet, and starts by itself. Do not make it again: that would run it a second time."
        );
        assert_eq!(
            call.message(),
            "Allowed; the call is queued and starts by itself. Read it to get its result: the same call without its key is run again."
        );
    }
    // A call that its caller runs starts only once it is asked for again.
    let elsewhere = GateCall {
        runs_elsewhere: true,
        ..queued(0)
    };
    assert!(told(&elsewhere).starts_with("APPROVED."));
}

#[test]
fn request_of_a_pending_call_is_named_only_while_it_is_open() {
    let (caller, settings) = (sample::caller(), sample::settings());
    for (state, status, is_named) in [
        (GateState::Pending, RequestStatus::Pending, true),
        (GateState::Approved, RequestStatus::Resumed, false),
        (GateState::Started, RequestStatus::Resumed, false),
    ] {
        let request = RequestRow {
            status,
            ..sample::request()
        };
        let call = GateCall {
            state,
            request: Some(Box::new(request)),
            ..sample::gate_call()
        };
        let result = gateway_result(&call, &caller, &settings, Revision::June2025, false);
        let meta = &result["_meta"]["holdpoint/gate"];
        let named = (meta["request_id"].is_string(), meta["url"].is_string());
        assert_eq!(named, (is_named, is_named), "{meta}");
    }
}

#[test]
fn call_that_failed_at_its_caller_is_told_with_the_text_of_its_end() {
    let call = |end_text: Option<&str>| GateCall {
        state: GateState::Settled,
        decision: GateDecision::Allow,
        outcome: Some(Outcome::Failed),
        end_text: end_text.map(str::to_owned),
        attempts: 1,
        runs_elsewhere: true,
        ..sample::gate_call()
    };
    let unreported =
        "The call was let through, and no outcome was reported. It may have taken effect.";
    assert_eq!(told(&call(Some(unreported))), unreported);
    assert_eq!(told(&call(None)), "The call was started and failed.");
}

#[test]
fn edit_is_told_only_of_a_call_that_was_started() {
    let arguments = r#"{"order":17,"amount":50}"#;
    let call = |decision, outcome, attempts| GateCall {
        arguments_text: arguments.to_owned(),
        edited: true,
        state: GateState::Settled,
        decision,
        outcome: Some(outcome),
        end_text: Some("Approved, but its agent did not ask for it again in time.".to_owned()),
        attempts,
        ..sample::gate_call()
    };
    assert_eq!(
        told(&call(GateDecision::Deny, Outcome::Expired, 0)),
        "The call of refund_payment was expired: Approved, but its agent did not ask for it again in time. It has not run."
    );
    let unknown = told(&call(GateDecision::Allow, Outcome::Unknown, 1));
    let notice = format!("A person changed the arguments before it ran: {arguments}");
    assert_eq!(
        unknown,
        format!("It may have run. Do not repeat it.|{notice}")
    );
}
