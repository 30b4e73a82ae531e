//! Tests that the secrets of receivers appear only where they are used: the token of Slack, the
//! password of the mail server, and the signing secrets, the path and the header of a webhook.
//! These secrets are in no log line, row, answer or metric, even if the receiver repeats them.

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use serde_json::Value;

use super::served_binary::{Folder, Served};
use super::variable_secrecy::spellings;
use crate::notify::{NEW, OLD};
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::fake_mail_server::{FakeMailServer, MailBehaviour};
use crate::support::fake_receiver::FakeReceiver;
use crate::support::fake_slack::{CHANNEL, FakeSlack, TOKEN};
use crate::support::fake_tool::FakeTool;

const PASSWORD: &str = "mail-password/0123456789+canary";
const BEARER: &str = "hook-bearer/0123456789+canary";
const PATH: &str = "hook-path-0123456789-canary";
/// The bytes of the signing secrets, which the file has in base64.
const SIGNING_KEYS: [&str; 2] = [
    "new-secret-0123456789-canary",
    "old-secret-0123456789-canary",
];
const ALICE: &str = "alice-key-0123456789";

fn yaml(
    model: &FakeModel,
    tool: &FakeTool,
    slack: &FakeReceiver,
    backend: &FakeReceiver,
    mail: &FakeMailServer,
) -> String {
    format!(
        "models: {{ m: {{ provider: openai, model: x, base_url: '{}', retries: 0 }} }}
tools: {{ pay: {{ http: {{ url: '{}/pay' }} }} }}
agents: {{ clerk: {{ model: m, tools: [pay] }} }}
auth:
  api_keys: [ {{ user: alice, key: {ALICE}, admin: true }} ]
  people: [ {{ user: alice, email: alice@acme.com }} ]
notify:
  mail: {{ url: 'smtp://127.0.0.1:{}', user: holdpoint, password: '${{MAIL_PASSWORD}}', from: holdpoint@acme.com }}
  to:
    - {{ name: room, slack: {{ token: '${{SLACK_TOKEN}}', channel: {CHANNEL}, api_url: '{}/api' }}, gather: 0s }}
    - {{ name: by-mail, mail: {{}}, gather: 0s }}
    - {{ name: backend, webhook: {{ url: '{}/${{HOOK_PATH}}', secrets: ['${{HOOK_NEW}}', '${{HOOK_OLD}}'], headers: {{ Authorization: 'Bearer ${{HOOK_BEARER}}' }} }}, events: [request.created] }}
",
        model.base_url, tool.url, mail.port, slack.url, backend.url
    )
}

const VARIABLES: [(&str, &str); 7] = [
    ("SLACK_TOKEN", TOKEN),
    ("MAIL_PASSWORD", PASSWORD),
    ("HOOK_NEW", NEW),
    ("HOOK_OLD", OLD),
    ("HOOK_BEARER", BEARER),
    ("HOOK_PATH", PATH),
    ("RUST_LOG", "trace"),
];

/// Waits until the service has tried to send the three deliveries. Returns the list of deliveries.
async fn attempted(served: &Served) -> String {
    loop {
        let text = served.get("/v1/deliveries").await;
        let listed: Value = serde_json::from_str(&text).unwrap();
        let all = listed["deliveries"].as_array().unwrap();
        if all.len() == 3 && all.iter().all(|one| one["attempts"] != 0) {
            return text;
        }
        crate::support::pause().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_receivers_are_in_no_log_line_row_answer_or_metric() {
    let (model, tool) = (FakeModel::start().await, FakeTool::start().await);
    for fails in [false, true] {
        let (mail, hook) = (FakeMailServer::start().await, FakeReceiver::start().await);
        let (slack, folder) = (FakeSlack::serve_on(&hook), Folder::new());
        let backend = FakeReceiver::start().await;
        if fails {
            slack.fails("chat.postMessage", TOKEN);
            mail.then(MailBehaviour::RefuseSignIn);
            let repeated = format!("{NEW} {OLD} {BEARER} {PATH}");
            backend.replies(move |_| {
                (StatusCode::INTERNAL_SERVER_ERROR, repeated.clone()).into_response()
            });
        }
        let yaml = yaml(&model, &tool, &hook, &backend, &mail);
        let mut served = Served::start(folder.path(), &yaml, &VARIABLES).bearer(ALICE);
        let repeated = format!("{TOKEN} {PASSWORD} {NEW} {OLD} {BEARER} {PATH}");
        model
            .then(calls(&[("pay", "{}")]))
            .then(text_answer(&repeated));
        let held = served.task("go").await;
        let mut shown = vec![held.to_string(), attempted(&served).await];
        shown.push(served.approve(&held).await.to_string());
        let task = format!("/v1/tasks/{}/items", held["task_id"].as_str().unwrap());
        for path in [&task, "/metrics", "/v1/agents", "/openapi.json"] {
            shown.push(served.get(path).await);
        }
        let said = &shown[3];
        let redacted = "[secret SLACK_TOKEN] [secret MAIL_PASSWORD] [secret HOOK_NEW] [secret HOOK_OLD] [secret HOOK_BEARER] [secret HOOK_PATH]";
        assert!(said.contains(redacted), "{said}");
        let signed = spellings(&format!("\0holdpoint\0{PASSWORD}"));
        let used = mail.heard().join("\n");
        assert!(signed.iter().any(|one| used.contains(one)), "{used}");
        assert_eq!(
            hook.all()[0].header("authorization"),
            format!("Bearer {TOKEN}")
        );
        let message = &backend.all()[0];
        assert!(message.is_signed_with(NEW) && message.is_signed_with(OLD));
        let sent = (message.path.as_str(), message.header("authorization"));
        assert_eq!(
            sent,
            (
                format!("/{PATH}").as_str(),
                format!("Bearer {BEARER}").as_str()
            )
        );
        assert!(served.terminate().success());
        shown.push(served.log());
        shown.extend(folder.database_files());
        let secrets = [TOKEN, PASSWORD, NEW, OLD, BEARER, PATH].map(spellings);
        let secrets = [secrets.concat(), SIGNING_KEYS.map(spellings).concat()].concat();
        for secret in secrets.iter().chain(&signed) {
            for text in &shown {
                assert!(!text.contains(secret.as_str()), "{secret} in {text}");
            }
        }
    }
}

#[test]
fn check_and_ping_say_nothing_of_the_secrets_of_receivers() {
    let folder = Folder::new();
    let text = "models: { m: { provider: openai, model: x, base_url: 'http://127.0.0.1:9/v1' } }
agents: { a: { model: m } }
auth: { api_keys: [ { user: alice, key: '${ALICE}' } ], people: [ { user: alice, email: alice@acme.com } ] }
notify:
  mail: { url: 'smtp://127.0.0.1:9', user: holdpoint, password: '${MAIL_PASSWORD}', from: holdpoint@acme.com }
  to:
    - { name: room, slack: { token: '${SLACK_TOKEN}', channel: C012AB3CD, api_url: 'http://127.0.0.1:9/api' } }
    - { name: by-mail, mail: {} }
    - { name: backend, webhook: { url: 'http://127.0.0.1:9/${HOOK_PATH}', secrets: ['${HOOK_NEW}', '${HOOK_OLD}'], headers: { Authorization: 'Bearer ${HOOK_BEARER}' } } }
";
    std::fs::write(folder.file("holdpoint.yaml"), text).unwrap();
    let variables = [&VARIABLES[..], &[("ALICE", ALICE)]].concat();
    for arguments in [
        &["check"][..],
        &["notify", "room"],
        &["notify", "by-mail"],
        &["notify", "backend"],
    ] {
        let arguments = [arguments, &["--config", "holdpoint.yaml"]].concat();
        let done = super::holdpoint(folder.path(), &arguments, &variables);
        let said = format!("{}{}", done.out, done.err);
        assert!(!said.is_empty(), "{arguments:?}");
        for secret in [TOKEN, PASSWORD, NEW, OLD, BEARER, PATH] {
            assert!(!said.contains(secret), "{secret} in {said}");
        }
    }
}
