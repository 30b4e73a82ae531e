//! Tests that calls with hostile arguments never run, and that hostile text does no harm to other
//! tasks.

use futures_util::future::join_all;
use macro_rules_attribute::apply;
use serde_json::json;

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ACCOUNTS, On, REFUNDS, TestApp};

/// Arguments that do not fit `{order: integer, amount: number > 0}`, or that can be read in two
/// ways. A usual run divides them between the two databases.
const HOSTILE: [&str; 30] = [
    r#"{"order": 1, "amount": "5"}"#,
    r#"{"order": "1", "amount": 5}"#,
    r#"{"order": 1, "amount": 5, "Amount": 500}"#,
    r#"{"order": 1, "Amount": 5}"#,
    r#"{"order": 1, "amount": 5, "amount": 500}"#,
    r#"{"order": 1, "amount": 500, "amount": 5}"#,
    r#"{"order": 1, "amount": 5, "amount": 5}"#,
    r#"{"order": 1, "amount": 20.000000000000000001}"#,
    r#"{"order": 9007199254740993, "amount": 5}"#,
    r#"{"order": 1, "amount": 5, "to": "mallory"}"#,
    r#"{"order": 1}"#,
    r#"{"order": 1, "amount": null}"#,
    r#"{"order": 1, "amount": NaN}"#,
    r#"{"order": 1, "amount": Infinity}"#,
    r#"{"order": 1, "amount": -5}"#,
    r#"{"order": 1, "amount": 0}"#,
    r#"{"order": 1, "amount": 1e999}"#,
    r#"{"order": 1.5, "amount": 5}"#,
    r#"{"order": 1, "amount": [5]}"#,
    r#"{"order": 1, "amount": {"value": 5}}"#,
    r#"{"order": 1, "amount": true}"#,
    r#"[{"order": 1, "amount": 5}]"#,
    r#"{"order": 1, "amount": 5} {"order": 1, "amount": 500}"#,
    r#"{"order": 1, "amount": 5,}"#,
    r"{'order': 1, 'amount': 5}",
    r#"{"order": 1, "amount": 0x5}"#,
    r#"{"order": 1, "amount": 5 // five
    }"#,
    r#""{\"order\": 1, \"amount\": 5}""#,
    "",
    "null",
];

#[apply(on_both)]
async fn hostile_arguments_never_run_whatever_the_rule_says(on: On) {
    for decide in ["allow", "hold", "deny"] {
        let policy = format!(
            "policy:\n  - {{ name: all, tools: [refund], when: \"args.amount <= 20.0\", decide: {decide} }}\n"
        );
        let (head, _) = REFUNDS.split_once("policy:").unwrap();
        let app = TestApp::with(on, &format!("{head}{policy}{ACCOUNTS}")).await;
        for arguments in on.share(HOSTILE) {
            app.model
                .then(calls(&[("refund", arguments)]))
                .then(text_answer("I see"));
            let done = app.owner().create_task("go").await;
            assert_eq!(
                done.str("/status"),
                "Completed",
                "{arguments}: {}",
                done.text
            );
            let items = app.owner().items(&done.str("/task_id")).await;
            items.about(&arguments).assert_has(r#""verdict":"invalid""#);
        }
        assert!(app.tool.ledger().is_empty());
        app.stop().await;
    }
}

#[apply(on_both)]
async fn call_of_a_tool_that_was_not_offered_never_runs(on: On) {
    let app = TestApp::start(on).await;
    let mut yaml_names = vec![
        "Refund",
        "refund ",
        "refund\u{200b}",
        "REFUND",
        "lookup\n",
        "",
        "shell",
        "../refund",
    ];
    yaml_names.push("refund\u{0}");
    for name in yaml_names {
        app.model
            .then(calls(&[(name, r#"{"order":1,"amount":5}"#)]))
            .then(text_answer("I see"));
        let done = app.owner().create_task("go").await;
        assert_eq!(done.str("/status"), "Completed", "{name:?}: {}", done.text);
    }
    assert!(app.tool.ledger().is_empty());
    app.stop().await;
}

#[apply(on_both)]
async fn nul_and_invalid_text_are_cleaned_or_refused(on: On) {
    let app = TestApp::start(on).await;
    app.tool.answers(200, b"a\0b\xff\xfec".to_vec());
    app.model.otherwise(|body| {
        let last = body["messages"].as_array().unwrap().last().unwrap().clone();
        if last["role"] == "tool" {
            text_answer("end\u{0}")
        } else {
            calls(&[
                ("refund", r#"{"order":1,"amount":5}"#),
                ("re\u{0}fund", "{\"a\": \"\u{0}\"}"),
            ])
        }
    });
    let innocent = json!({"input": "go"});
    let owner = app.owner().prefer("wait=60");
    let replies = join_all((0..24).map(|_| owner.post("/v1/tasks", &innocent))).await;
    for reply in replies {
        reply.assert_text(201, "/output", "end\u{FFFD}");
    }
    assert_eq!(app.tool.ledger().len(), 24, "no effect repeats");
    let shown = app
        .model
        .sent()
        .iter()
        .any(|body| body.to_string().contains("a\u{FFFD}b\u{FFFD}"));
    assert!(shown, "the result is shown with its invalid bytes replaced");
    for body in [
        json!({"input": "a\u{0}b"}),
        json!({"input": "x", "metadata": {"a": "\u{0}"}}),
        json!({"input": "x", "metadata": {"a\u{0}": 1}}),
        json!({"input": "x", "user_context": {"a": "\u{0}"}}),
        json!({"input": "x", "session_id": "a\u{0}"}),
        json!({"items": [{"content_type": "text", "content": "\u{0}"}]}),
    ] {
        let refused = app.owner().post("/v1/tasks", &body).await;
        refused.about(&body).assert_code(422, "invalid");
    }
    let raw = String::from_utf8_lossy(b"{\"input\": \"\xff\"}").into_owned();
    assert_eq!(
        app.owner()
            .bytes("/v1/tasks", raw.into_bytes())
            .await
            .status,
        201
    );
    app.stop().await;
}

#[apply(on_both)]
async fn secrets_in_responses_are_redacted(on: On) {
    let app = TestApp::start(on).await;
    app.tool
        .answers(200, "your key was tool-secret-0123456789, yes");
    app.model
        .then(calls(&[("refund", r#"{"order":1,"amount":5}"#)]))
        .then(text_answer("the key is sk-model-key-0123456789"));
    let done = app.owner().create_task("go").await;
    let items = app.owner().items(&done.str("/task_id")).await;
    for text in [&done.text, &items.text, &app.model.sent()[1].to_string()] {
        assert!(
            !text.contains("tool-secret-0123456789") && !text.contains("sk-model-key-0123456789"),
            "{text}"
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn model_answer_of_more_than_256_calls_fails_the_task_and_stores_nothing(on: On) {
    let app = TestApp::start(on).await;
    let lookups = |count: usize| calls(&vec![("lookup", r#"{"order": 1}"#); count]);
    for streaming in [true, false] {
        app.model.streaming(streaming);
        let asked = app.model.sent().len();
        app.model.then(lookups(257));
        let failed = app.owner().create_task("go").await;
        assert_eq!(failed.str("/error/code"), "model_failed", "{}", failed.text);
        assert!(
            failed.str("/error/detail").contains("more than 256 calls"),
            "{}",
            failed.text
        );
        assert_eq!(
            app.model.sent().len(),
            asked + 1,
            "the model is not asked again"
        );
        let items = app.owner().items(&failed.str("/task_id")).await;
        let types = items.texts("items", "type");
        assert_eq!(
            types,
            ["task_status", "user_message", "task_status"],
            "{}",
            items.text
        );

        app.model.then(lookups(256)).then(text_answer("done"));
        let done = app.owner().create_task("go").await;
        assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    }
    app.stop().await;
}
