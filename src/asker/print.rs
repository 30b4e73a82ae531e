//! Builds the settings that make a coding agent run the hook before and after every tool call. The
//! settings are only printed: no command edits another program's files.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::hook::Host;

/// The margin, in seconds, in the host's timeout for a hook. A hook before a call waits for a
/// decision, so its timeout is this wait plus the margin. The hook must end before its timeout,
/// because the host runs the call if the timeout ends the hook. A hook after a call does not wait
/// for a decision, so its timeout is the margin alone.
const TIMEOUT_MARGIN_SECONDS: u64 = 40;

/// The last part of the command of a hook that proposes a call. This part turns each failure of the
/// hook into exit code 2 and a text on standard error. Codex, and Claude Code before 2.1.295, run
/// the call after a failure with any other exit code. Codex also runs the call if standard error is
/// empty. The setting `onFailure` is not enough, because Codex ignores it.
const BLOCK_ON_FAILURE: &str =
    "|| sh -c 'echo The hook has no answer, so the call is blocked. >&2; exit 2'";

/// Returns the settings for `host` as JSON text. The settings let the hook wait for `wait`, and set
/// a longer timeout after which the host ends the hook.
#[must_use]
pub fn settings(host: Host, wait: Duration) -> String {
    let name = match host {
        Host::ClaudeCode => "claude-code",
        Host::Codex => "codex",
    };
    let seconds = wait.as_secs();
    let report = format!("HOLDPOINT_WAIT={seconds}s holdpoint gate hook {name}");
    let ask = format!("{report} {BLOCK_ON_FAILURE}");
    let mut hooks = Map::new();
    let mut add = |event: &str, hook: Value| {
        hooks.insert(event.to_owned(), json!([{"matcher": "*", "hooks": [hook]}]));
    };
    add(
        "PreToolUse",
        hook(&ask, seconds + TIMEOUT_MARGIN_SECONDS, Some("block")),
    );
    // The hooks after a call have no `onFailure`. With `onFailure: block`, a failure of such a hook
    // would tell the model that the call was blocked, although the call has already run.
    add("PostToolUse", hook(&report, TIMEOUT_MARGIN_SECONDS, None));
    if host == Host::ClaudeCode {
        add(
            "PostToolUseFailure",
            hook(&report, TIMEOUT_MARGIN_SECONDS, None),
        );
    }
    format!("{:#}\n", json!({"hooks": hooks}))
}

fn hook(command: &str, timeout: u64, on_failure: Option<&str>) -> Value {
    let mut hook = Map::new();
    hook.insert("type".to_owned(), json!("command"));
    hook.insert("command".to_owned(), json!(command));
    hook.insert("timeout".to_owned(), json!(timeout));
    if let Some(on_failure) = on_failure {
        hook.insert("onFailure".to_owned(), json!(on_failure));
    }
    Value::Object(hook)
}
