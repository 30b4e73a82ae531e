//! Tests tools behind TLS. The program calls them with the certificates that the machine trusts.

use serde_json::json;

use super::served_binary::{Served, fakes};
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::tls_front::{self, AUTHORITY, OTHER_AUTHORITY};

fn paying(model: &FakeModel, url: &str) -> String {
    format!(
        "models: {{ m: {{ provider: openai, model: x, base_url: '{}' }} }}
agents: {{ a: {{ model: m, tools: [pay] }} }}
tools: {{ pay: {{ http: {{ url: '{}/pay' }} }} }}
policy: [ {{ name: all, tools: [pay], decide: allow }} ]
",
        model.base_url, url
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tool_behind_tls_is_called_if_the_machine_trusts_its_certificate_and_only_then() {
    let (model, tool, folder) = fakes().await;
    let url = tls_front::serve(&tool.url).await;
    for (trusted, answer) in [
        (AUTHORITY, json!(r#"{"ok":true}"#)),
        (
            OTHER_AUTHORITY,
            json!(
                "The tool `pay` failed before anything was sent: no secure connection could be made (TLS)."
            ),
        ),
    ] {
        std::fs::write(folder.path().join("trusted.pem"), trusted).unwrap();
        let served = Served::start(
            folder.path(),
            &paying(&model, &url),
            &[("SSL_CERT_FILE", "trusted.pem")],
        );
        model
            .then(calls(&[("pay", "{}")]))
            .then(text_answer("done"));
        let task = served.task("pay").await;
        assert_eq!(task["status"], "Completed", "{task}");
        let sent = model.sent();
        let result = sent.last().unwrap()["messages"].as_array().unwrap().last();
        assert_eq!(result.unwrap()["content"], answer);
    }
    let called = tool.ledger();
    assert_eq!(called.len(), 1);
    assert!(
        called[0].header("host").starts_with("localhost:"),
        "{:?}",
        called[0].headers
    );
}
