//! Tests that a value from `${…}` appears only where the service sends it. The value is not in
//! replies, logs, metrics or the database, even if an endpoint repeats it in another spelling.

use serde_json::{Value, json};

use super::holdpoint;
use super::served_binary::{Served, fakes};
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::fake_tool::FakeTool;

const MODEL_KEY: &str = "sk-model/0123456789+ab";
const TOOL_KEY: &str = "tool-key/0123456789~xyz";
const ENV_VALUE: &str = "shell-value/0123456789";
const API_KEY: &str = "alice-key-0123456789";

/// The environment of the service.
const VARIABLES: [(&str, &str); 5] = [
    ("MODEL_KEY", MODEL_KEY),
    ("TOOL_KEY", TOOL_KEY),
    ("ENV_VALUE", ENV_VALUE),
    ("API_KEY", API_KEY),
    ("PATH", "/usr/bin:/bin"),
];

/// Returns the value in plain, percent-encoded, base64 and JSON-escaped spellings. Each of them can
/// be decoded to the value.
pub(super) fn spellings(value: &str) -> Vec<String> {
    use base64::Engine as _;
    let percent = |keep: &str, lower: bool| {
        let byte = |byte: u8| match char::from(byte) {
            c if c.is_ascii_alphanumeric() || keep.contains(c) => c.to_string(),
            _ if lower => format!("%{byte:02x}"),
            _ => format!("%{byte:02X}"),
        };
        value.bytes().map(byte).collect::<String>()
    };
    let json = serde_json::to_string(value).unwrap();
    let json = json
        .trim_start_matches('"')
        .strip_suffix('"')
        .unwrap()
        .to_owned();
    let ascii: String = json
        .chars()
        .map(|c| {
            if c.is_ascii() {
                c.to_string()
            } else {
                format!("\\u{:04x}", c as u32)
            }
        })
        .collect();
    vec![
        value.to_owned(),
        percent("", false),
        percent("-_.~", true),
        percent("-_.~/", false),
        percent("-_.!~*'()", false),
        percent("-_. ~", true).replace(' ', "+"),
        base64::prelude::BASE64_STANDARD.encode(value),
        base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(value),
        json.clone(),
        json.replace('/', "\\/"),
        ascii.replace('/', "\\/"),
        ascii,
    ]
}

fn yaml(model: &FakeModel, tool: &FakeTool) -> String {
    format!(
        "models: {{ m: {{ provider: openai, model: x, base_url: '{}', api_key: '${{MODEL_KEY}}', retries: 0 }} }}
agents: {{ a: {{ model: m, tools: [look, sh] }} }}
tools:
  look: {{ effect: read_only, http: {{ url: '{}/look', headers: {{ X-Key: '${{TOOL_KEY}}' }} }} }}
  sh: {{ effect: read_only, shell: {{ env: {{ VALUE: '${{ENV_VALUE}}' }} }} }}
policy: [ {{ name: all, tools: [look, sh], decide: allow }} ]
auth: {{ api_keys: [ {{ user: alice, key: '${{API_KEY}}' }} ] }}
",
        model.base_url, tool.url
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn filled_in_value_is_never_shown_logged_counted_or_stored() {
    let (model, tool, folder) = fakes().await;
    let variables = [&VARIABLES[..], &[("RUST_LOG", "trace")]].concat();
    let values = [MODEL_KEY, TOOL_KEY, ENV_VALUE, API_KEY];
    let echoed: Vec<String> = values.iter().flat_map(|value| spellings(value)).collect();
    let mut served = Served::start(folder.path(), &yaml(&model, &tool), &variables).bearer(API_KEY);
    tool.answers(200, echoed.join(" | "));
    let shell = json!({"command": "echo $VALUE; printf '%s' \"$VALUE\" | base64; echo $VALUE >&2; tr '\\0' '\\n' </proc/$PPID/environ"});
    model.then(calls(&[("look", "{}"), ("sh", &shell.to_string())]));
    model.then(text_answer(&echoed.join(" ")));
    model.then_fails_with(
        401,
        json!({"error": {"message": format!("bad key {}", echoed.join(" "))}}),
    );
    let first = served.task("look").await;
    assert_eq!(first["status"], "Completed", "{first}");
    let second = served.task("again").await;
    assert_eq!(second["status"], "Failed", "{second}");

    let mut shown = vec![first.to_string(), second.to_string()];
    for task in [&first, &second] {
        let id = task["task_id"].as_str().unwrap();
        shown.push(served.get(&format!("/v1/tasks/{id}")).await);
        shown.push(served.get(&format!("/v1/tasks/{id}/items?limit=200")).await);
    }
    let items: Value = serde_json::from_str(&shown[3]).unwrap();
    let results = items["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|item| item["type"] == "tool_result");
    assert_eq!(
        results
            .filter(|item| item["content"].as_str().unwrap().contains("[secret "))
            .count(),
        2,
        "{items}"
    );
    shown.extend([
        served.get("/metrics").await,
        served.get("/v1/agents").await,
        served.get("/v1/me").await,
    ]);
    shown.extend(model.sent().iter().map(Value::to_string));
    assert!(served.terminate().success());
    shown.push(served.log());
    shown.extend(folder.database_files());
    shown.push(
        holdpoint(
            folder.path(),
            &["check", "--config", "holdpoint.yaml"],
            &variables,
        )
        .out,
    );
    for text in &shown {
        for spelling in &echoed {
            let at = text.find(spelling.as_str());
            assert!(
                at.is_none(),
                "{spelling} in {}",
                text.get(at.unwrap_or(0).saturating_sub(60)..)
                    .unwrap_or(text)
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn command_cannot_read_the_environment_of_the_service() {
    let (model, tool, folder) = fakes().await;
    let served = Served::without_tracing(folder.path(), &yaml(&model, &tool), &VARIABLES);
    let service = served.process.id();
    let served = served.bearer(API_KEY);
    let read = format!("cat /proc/{service}/environ >/dev/null 2>&1 && echo read || echo refused");
    let arguments = json!({"command": read}).to_string();
    model.then(calls(&[("sh", &arguments)]));
    model.then(text_answer("done"));
    let task = served.task("go").await;
    assert_eq!(task["status"], "Completed", "{task}");
    let id = task["task_id"].as_str().unwrap();
    let items = served.get(&format!("/v1/tasks/{id}/items?limit=200")).await;
    assert!(items.contains("stdout:\\nrefused"), "{items}");
}
