//! Builds the settings that make a coding agent run the hook before and after every tool call. The
//! settings are only printed: no command edits another program's files.

use std::time::Duration;

use serde_json::{Value, json};

use super::hook::Host;

/// The seconds by which the host's timeout for the hook exceeds the hook's own wait. A hook must
/// end before this timeout, because the host runs the call if the timeout ends the hook.
const TIMEOUT_MARGIN_SECONDS: u64 = 40;

/// Returns the settings for `host` as JSON text. The settings let the hook wait for `wait`, and set
/// a longer timeout after which the host ends the hook.
#[must_use]
pub fn settings(host: Host, wait: Duration) -> String {
    let name = match host {
        Host::ClaudeCode => "claude-code",
        Host::Codex => "codex",
    };
    let seconds = wait.as_secs();
    let hook = |timeout: u64| {
        json!([{"matcher": "*", "hooks": [{
            "type": "command",
            "command": format!("HOLDPOINT_WAIT={seconds}s holdpoint gate hook {name}"),
            "timeout": timeout,
            "onFailure": "block",
        }]}])
    };
    let mut hooks = json!({"PreToolUse": hook(seconds + TIMEOUT_MARGIN_SECONDS), "PostToolUse": hook(TIMEOUT_MARGIN_SECONDS)});
    if let (Host::ClaudeCode, Value::Object(hooks)) = (host, &mut hooks) {
        hooks.insert(
            "PostToolUseFailure".to_owned(),
            hook(TIMEOUT_MARGIN_SECONDS),
        );
    }
    format!("{:#}\n", json!({"hooks": hooks}))
}
