//! Tests that the page of a request shows the user's message and, after the decision, the events
//! that followed it.

use macro_rules_attribute::apply;
use serde_json::json;

use super::super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{On, TestApp};

#[apply(on_both)]
async fn page_shows_the_users_message_and_after_the_decision_what_followed(on: On) {
    let app = TestApp::open(on).await;
    app.model
        .then(calls(&[("refund", r#"{"order":17,"amount":50}"#)]));
    let held = app
        .anonymous()
        .create_task("<b>Refund</b> it\u{202e}, please.")
        .await;
    let path = format!("/resume/{}", held.str("/pending/0/request_id"));
    let page = app.anonymous().accept_html().get(&path).await;
    let message =
        "<blockquote dir=\"auto\">&lt;b&gt;Refund&lt;/b&gt; it\\u{202e}, please.</blockquote>";
    assert!(
        page.text.find(message).unwrap() < page.text.find("<button").unwrap(),
        "{}",
        page.text
    );
    app.model.then(text_answer("It is done."));
    app.tool.answers(200, r#"{"paid":true}"#);
    let done = app
        .anonymous()
        .prefer("wait=30")
        .hit(&format!("{path}/approve"))
        .await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    let after = app.anonymous().accept_html().get(&path).await;
    let (_, history) = after.text.split_once("id=\"past\"").unwrap();
    let found: Vec<usize> = [
        "Asked.",
        "Approved by local.",
        "refund was started.",
        "refund: done",
        "paid",
        "The task is completed.",
        "It is done.",
    ]
    .iter()
    .map(|text| {
        history
            .find(text)
            .unwrap_or_else(|| panic!("no {text}: {history}"))
    })
    .collect();
    assert!(
        found.is_sorted() && history.find("id=\"live\"").unwrap() > found[6],
        "{history}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn page_shows_the_users_message_however_many_calls_come_before_the_question(on: On) {
    let app = TestApp::open(on).await;
    for turn in 0..6 {
        let orders = (0..8).map(|place| json!({"order": 8 * turn + place}).to_string());
        let orders: Vec<String> = orders.collect();
        let lookups: Vec<_> = orders
            .iter()
            .map(|order| ("lookup", order.as_str()))
            .collect();
        app.model.then(calls(&lookups));
    }
    app.model
        .then(calls(&[("refund", r#"{"order":17,"amount":50}"#)]));
    let body = json!({"input": "Refund order 17."});
    let held = app
        .anonymous()
        .prefer("wait=30")
        .post("/v1/tasks", &body)
        .await;
    held.assert_status(201, "Paused");
    let path = format!("/v1/tasks/{}/items?limit=200", held.str("/task_id"));
    let journal = app.anonymous().get(&path).await;
    assert!(journal.count("items") > 135, "{}", journal.text);
    let path = format!("/resume/{}", held.str("/pending/0/request_id"));
    let page = app.anonymous().accept_html().get(&path).await;
    let message = "<blockquote dir=\"auto\">Refund order 17.</blockquote>";
    page.assert_has(message);
    app.stop().await;
}
