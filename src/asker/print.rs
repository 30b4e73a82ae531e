//! The settings of coding agents that run every tool through the hook. They are only printed: no
//! command edits another program's files.

use std::time::Duration;

use serde_json::{Value, json};

use super::hook::Host;

/// How much longer than its wait the host lets a hook live: a hook that its host ends is a call that
/// runs.
const MARGIN: u64 = 40;

/// The settings for a host, with both timeouts.
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
    let mut hooks = json!({"PreToolUse": hook(seconds + MARGIN), "PostToolUse": hook(MARGIN)});
    if let (Host::ClaudeCode, Value::Object(hooks)) = (host, &mut hooks) {
        hooks.insert("PostToolUseFailure".to_owned(), hook(MARGIN));
    }
    format!("{:#}\n", json!({"hooks": hooks}))
}
