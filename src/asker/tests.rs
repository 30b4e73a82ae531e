//! Tests of the input and the answers of hooks, and of the settings of askers.

use serde_json::{Value, json};

use super::client::ServiceAnswer;
use super::hook::{self, HookOptions, Host};
use super::hook_input::{HookEvent, HookInput};
use super::{AskerSettings, DEFAULT_WAIT};

fn input(text: &str) -> HookInput<'_> {
    HookInput::read(text).unwrap()
}

#[test]
fn input_of_a_hook_keeps_its_arguments_to_the_byte() {
    let text = r#"{"session_id":"s-1","hook_event_name":"PreToolUse","tool_use_id":"t_1","tool_name":"Bash","tool_input": { "b":1.0,  "a":"é" } ,"cwd":"/x","permission_mode":"plan"}"#;
    let input = input(text);
    assert_eq!(input.event, HookEvent::Before);
    assert_eq!(input.arguments().unwrap().get(), r#"{ "b":1.0,  "a":"é" }"#);
    assert_eq!(
        (
            input.key().unwrap().as_str(),
            input.session().unwrap().as_str()
        ),
        ("s-1:t_1", "s-1")
    );
    assert_eq!(input.context(), "Folder: /x\nPermission mode: plan");
}

#[test]
fn input_that_can_be_read_in_two_ways_is_refused() {
    for text in [
        "",
        "{",
        "[]",
        "{}",
        "{} {}",
        "\u{feff}{}",
        r#"{"hook_event_name":"PreToolUse","hook_event_name":"Stop"}"#,
        r#"{"hook_event_name":"PreToolUse","tool_input":{},"tool_input":{"a":1}}"#,
        r#"{"hook_event_name":7,"tool_input":{}}"#,
        r#"{"hook_event_name":"PermissionRequest","tool_input":{}}"#,
    ] {
        assert!(HookInput::read(text).is_err(), "{text}");
    }
    assert_eq!(
        input(r#"{"hook_event_name":"Stop"}"#).event,
        HookEvent::Other
    );
}

#[test]
fn session_and_key_outside_the_alphabet_are_hashed_without_collisions() {
    let of = |session: &str, usage: &str| {
        let text = serde_json::json!({"hook_event_name": "Stop", "session_id": session, "tool_use_id": usage}).to_string();
        let input = input(&text);
        (input.session().unwrap(), input.key().unwrap())
    };
    let long = "x".repeat(300);
    for session in ["a b", "ä", &long, "a\nb"] {
        let (session, key) = of(session, "t");
        assert!(
            session.starts_with("sha256-") && session.len() == 71,
            "{session}"
        );
        assert!(key.starts_with("sha256-"), "{key}");
    }
    assert_ne!(of("a:b", "c").1, of("a", "b:c").1);
    assert_ne!(of("a b", "c").1, of("a b", "d").1);
}

/// Returns the reason with which the hook denies a call after the service's answer `answer`.
fn denial_reason(answer: Value) -> String {
    let answer: ServiceAnswer = serde_json::from_value(answer).unwrap();
    let options = HookOptions {
        host: Host::Codex,
        is_final: false,
        includes_content: true,
    };
    let arguments = serde_json::value::RawValue::from_string("{}".to_owned()).unwrap();
    let told = hook::answer_for_verdict(options, &answer, &arguments).unwrap();
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    let told = &told["hookSpecificOutput"];
    assert_eq!(told["permissionDecision"], "deny");
    told["permissionDecisionReason"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn denial_has_a_reason_also_if_the_result_is_blank() {
    for content in ["", " \n"] {
        let reason = denial_reason(json!({
            "tool": "Bash", "arguments_text": "{}", "edited": false, "decision": "deny", "outcome": "responded",
            "message": "Answered by bob.", "by": [], "permit": null, "result": {"content": content}, "request": null,
        }));
        assert_ne!(reason.trim(), "");
    }
}

#[test]
fn denial_of_a_pending_call_advises_to_repeat_it_only_if_it_is_not_queued_or_started() {
    // A call that is `approved` may be queued. It then starts without an asker.
    for (state, advises) in [("pending", true), ("approved", false), ("started", false)] {
        let reason = denial_reason(json!({
            "tool": "look", "arguments_text": "{}", "edited": false, "decision": "pending", "state": state, "outcome": null,
            "message": "The service's message.", "by": [], "permit": null, "result": null, "request": null,
        }));
        assert!(reason.starts_with("The service's message."), "{reason}");
        let found = reason.contains("Make the same call again");
        assert_eq!(found, advises, "{state}: {reason}");
    }
}

#[test]
fn settings_without_variables_are_the_local_service() {
    let settings = AskerSettings::read(|_| None).unwrap();
    assert_eq!(
        (settings.url.as_str(), settings.wait),
        ("http://127.0.0.1:8080", DEFAULT_WAIT)
    );
    let bad = AskerSettings::read(|name| (name == "HOLDPOINT_WAIT").then_some("soon"));
    assert!(bad.is_err());
    let bad = AskerSettings::read(|name| (name == "HOLDPOINT_URL").then_some("holdpoint"));
    assert!(bad.is_err());
}

#[test]
fn setting_with_a_line_end_is_read_without_it_and_a_key_of_two_lines_is_refused() {
    let with_line_end = |name: &str| match name {
        "HOLDPOINT_URL" => Some("http://h/\n"),
        "HOLDPOINT_KEY" => Some("k-1\r\n"),
        "HOLDPOINT_GATE" => Some("\n"),
        _ => Some("7s\n"),
    };
    let settings = AskerSettings::read(with_line_end).unwrap();
    assert_eq!(
        (settings.url.as_str(), settings.key.as_deref()),
        ("http://h", Some("k-1"))
    );
    assert_eq!((settings.gate, settings.wait.as_secs()), (None, 7));
    let two = |name: &str| (name == "HOLDPOINT_KEY").then_some("k-1\nk-2");
    let why = AskerSettings::read(two).err();
    assert_eq!(
        why.as_deref(),
        Some("HOLDPOINT_KEY does not fit into an HTTP header")
    );
}

/// Examples of hook inputs from the hosts' documentation, each with its expected event and content.
const DOCUMENTED: [(&str, HookEvent, &str); 5] = [
    (
        r#"{"session_id":"00893aaf","transcript_path":"/home/u/t.jsonl","cwd":"/home/u","permission_mode":"default","hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{"command":"npm test","description":"Run tests","timeout":120000,"run_in_background":false},"tool_use_id":"toolu_01ABC"}"#,
        HookEvent::Before,
        "",
    ),
    (
        r#"{"session_id":"00893aaf","transcript_path":"/home/u/t.jsonl","cwd":"/home/u","permission_mode":"default","hook_event_name":"PostToolUse","tool_name":"Write","tool_input":{"file_path":"/f","content":"x"},"tool_response":{"filePath":"/f","success":true},"tool_use_id":"toolu_01ABC","duration_ms":12}"#,
        HookEvent::Succeeded,
        r#"{"filePath":"/f","success":true}"#,
    ),
    (
        r#"{"session_id":"00893aaf","transcript_path":"/home/u/t.jsonl","cwd":"/home/u","permission_mode":"default","hook_event_name":"PostToolUseFailure","tool_name":"Bash","tool_input":{"command":"npm test"},"tool_use_id":"toolu_01ABC","error":"Command exited with non-zero status code 1","is_interrupt":false}"#,
        HookEvent::Failed,
        "Command exited with non-zero status code 1",
    ),
    (
        r#"{"session_id":"00893aaf","turn_id":"t-1","transcript_path":null,"cwd":"/home/u","hook_event_name":"PreToolUse","model":"m","permission_mode":"default","tool_name":"Bash","tool_use_id":"toolu_01ABC","tool_input":{"command":"ls"}}"#,
        HookEvent::Before,
        "",
    ),
    (
        r#"{"session_id":"00893aaf","turn_id":"t-1","transcript_path":null,"cwd":"/home/u","hook_event_name":"PostToolUse","model":"m","permission_mode":"default","tool_name":"Bash","tool_use_id":"toolu_01ABC","tool_input":{"command":"ls"},"tool_response":"a.txt\n"}"#,
        HookEvent::Succeeded,
        "a.txt\n",
    ),
];

#[test]
fn documented_inputs_of_both_hosts_are_understood() {
    for (text, event, content) in DOCUMENTED {
        let input = input(text);
        assert_eq!(input.event, event, "{text}");
        assert_eq!(input.content(), content);
        let key = input.key().unwrap();
        assert_eq!(
            (key.as_str(), input.session().unwrap().as_str()),
            ("00893aaf:toolu_01ABC", "00893aaf")
        );
        assert!(text.contains(&format!("\"tool_input\":{}", input.arguments().unwrap())));
        assert!(text.contains(&format!("\"tool_name\":\"{}\"", input.tool().unwrap())));
    }
}
