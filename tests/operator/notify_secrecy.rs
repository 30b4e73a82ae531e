//! Tests that the token of Slack and the password of the mail server appear only where they are
//! sent. They are in no log line, row, answer or metric, even if the receiver repeats them.

use serde_json::Value;

use super::served_binary::{Folder, Served};
use super::variable_secrecy::spellings;
use crate::support::fake_chat_completions::{FakeModel, calls, says};
use crate::support::fake_mail_server::{FakeMailServer, Then};
use crate::support::fake_receiver::FakeReceiver;
use crate::support::fake_slack::{CHANNEL, FakeSlack, TOKEN};
use crate::support::fake_tool::FakeTool;

const PASSWORD: &str = "mail-password/0123456789+canary";
const ALICE: &str = "alice-key-0123456789";

fn yaml(model: &FakeModel, tool: &FakeTool, slack: &FakeReceiver, mail: &FakeMailServer) -> String {
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
",
        model.base_url, tool.url, mail.port, slack.url
    )
}

/// Waits until the service has tried to send both deliveries. Returns the list of deliveries.
async fn attempted(served: &Served) -> String {
    loop {
        let text = served.get("/v1/deliveries").await;
        let listed: Value = serde_json::from_str(&text).unwrap();
        let all = listed["deliveries"].as_array().unwrap();
        if all.len() == 2 && all.iter().all(|one| one["attempts"] != 0) {
            return text;
        }
        crate::support::pause().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slack_token_and_mail_password_are_in_no_log_line_row_answer_or_metric() {
    let (model, tool) = (FakeModel::start().await, FakeTool::start().await);
    for fails in [false, true] {
        let (mail, hook) = (FakeMailServer::start().await, FakeReceiver::start().await);
        let (slack, folder) = (FakeSlack::play(&hook), Folder::new());
        if fails {
            slack.fails("chat.postMessage", TOKEN);
            mail.then(Then::RefuseSignIn);
        }
        let variables = [
            ("SLACK_TOKEN", TOKEN),
            ("MAIL_PASSWORD", PASSWORD),
            ("RUST_LOG", "trace"),
        ];
        let yaml = yaml(&model, &tool, &hook, &mail);
        let mut served = Served::start(folder.path(), &yaml, &variables).bearer(ALICE);
        model
            .then(calls(&[("pay", "{}")]))
            .then(says(&format!("{TOKEN} {PASSWORD}")));
        let held = served.task("go").await;
        let mut shown = vec![held.to_string(), attempted(&served).await];
        shown.push(served.approve(&held).await.to_string());
        let task = format!("/v1/tasks/{}/items", held["task_id"].as_str().unwrap());
        for path in [&task, "/metrics", "/v1/agents", "/openapi.json"] {
            shown.push(served.get(path).await);
        }
        let said = &shown[3];
        let redacted = "[secret SLACK_TOKEN] [secret MAIL_PASSWORD]";
        assert!(said.contains(redacted), "{said}");
        let signed = spellings(&format!("\0holdpoint\0{PASSWORD}"));
        let used = mail.heard().join("\n");
        assert!(signed.iter().any(|one| used.contains(one)), "{used}");
        assert_eq!(
            hook.all()[0].header("authorization"),
            format!("Bearer {TOKEN}")
        );
        assert!(served.terminate().success());
        shown.push(served.log());
        shown.extend(folder.database_files());
        let secrets = [TOKEN, PASSWORD].map(spellings).concat();
        for secret in secrets.iter().chain(&signed) {
            for text in &shown {
                assert!(!text.contains(secret.as_str()), "{secret} in {text}");
            }
        }
    }
}

#[test]
fn check_and_ping_say_nothing_of_token_and_password() {
    let folder = Folder::new();
    let text = "models: { m: { provider: openai, model: x, base_url: 'http://127.0.0.1:9/v1' } }
agents: { a: { model: m } }
auth: { api_keys: [ { user: alice, key: '${ALICE}' } ], people: [ { user: alice, email: alice@acme.com } ] }
notify:
  mail: { url: 'smtp://127.0.0.1:9', user: holdpoint, password: '${MAIL_PASSWORD}', from: holdpoint@acme.com }
  to:
    - { name: room, slack: { token: '${SLACK_TOKEN}', channel: C012AB3CD, api_url: 'http://127.0.0.1:9/api' } }
    - { name: by-mail, mail: {} }
";
    std::fs::write(folder.file("holdpoint.yaml"), text).unwrap();
    let variables = [
        ("SLACK_TOKEN", TOKEN),
        ("MAIL_PASSWORD", PASSWORD),
        ("ALICE", ALICE),
    ];
    for arguments in [&["check"][..], &["notify", "room"], &["notify", "by-mail"]] {
        let arguments = [arguments, &["--config", "holdpoint.yaml"]].concat();
        let done = super::holdpoint(folder.path(), &arguments, &variables);
        let said = format!("{}{}", done.out, done.err);
        assert!(!said.is_empty(), "{arguments:?}");
        assert!(!said.contains(TOKEN) && !said.contains(PASSWORD), "{said}");
    }
}
