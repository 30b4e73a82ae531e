//! Tests of the result of a call that has ended, for each possible end of a call.

use macro_rules_attribute::apply;
use serde_json::json;

use super::streams::until_held;
use super::{about, answer, call, refund, result_text};
use crate::api::approval_cycle::on_both;
use crate::api::gate::{gate, yaml};
use crate::support::test_app::{On, TestApp};

#[apply(on_both)]
async fn call_whose_arguments_a_person_changed_is_told_with_the_changed_arguments(on: On) {
    let app = gate(on, "").await;
    let held = call(&app, "0", &refund(120)).await;
    let arguments = json!({"order": 17, "amount": 50});
    answer(
        &app,
        &held,
        &json!({"action": "edit", "arguments": arguments}),
    )
    .await;
    let (text, is_error) = result_text(&call(&app, "10", &refund(120)).await);
    let changed = "A person changed the arguments before it ran: ";
    let (result, rest) = text.split_once('|').expect("two blocks");
    assert_eq!((result, is_error), ("{\"ok\":true}", false));
    let ran: serde_json::Value = serde_json::from_str(rest.strip_prefix(changed).unwrap()).unwrap();
    assert_eq!(ran, arguments);
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn call_that_a_person_answered_is_told_with_that_answer(on: On) {
    let app = gate(on, "").await;
    let held = call(&app, "0", &refund(120)).await;
    answer(
        &app,
        &held,
        &json!({"action": "respond", "result": {"by": "hand"}}),
    )
    .await;
    let reply = call(&app, "10", &refund(120)).await;
    assert_eq!(result_text(&reply), ("{\"by\":\"hand\"}".to_owned(), false));
    assert_eq!(
        (&about(&reply)["outcome"], app.tool.count()),
        (&json!("responded"), 0)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn rejected_call_says_why_that_it_has_not_run_and_not_to_try_again(on: On) {
    let app = gate(on, "").await;
    let held = call(&app, "0", &refund(120)).await;
    answer(
        &app,
        &held,
        &json!({"action": "reject", "reason": "No money."}),
    )
    .await;
    for _ in 0..2 {
        let reply = call(&app, "10", &refund(120)).await;
        let (text, is_error) = result_text(&reply);
        let begins = text.starts_with("The call of refund was rejected: ");
        let says = text.ends_with("No money. It has not run. Do not try again.");
        assert!(begins && says && is_error, "{text}");
        assert_eq!(about(&reply)["decision"], "deny");
    }
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn canceled_call_says_that_it_has_not_run(on: On) {
    let app = gate(on, "").await;
    let held = call(&app, "0", &refund(120)).await;
    let path = format!(
        "/v1/tasks/{}/cancel",
        about(&held)["task_id"].as_str().unwrap()
    );
    app.owner().hit(&path).await;
    let reply = call(&app, "10", &refund(120)).await;
    let (text, is_error) = result_text(&reply);
    assert!(
        text.starts_with("The call of refund was canceled") && is_error,
        "{text}"
    );
    assert!(text.contains("It has not run."), "{text}");
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn call_whose_outcome_is_unknown_is_told_as_one_that_may_have_run(on: On) {
    let app = gate(on, "").await;
    app.tool.answers(502, "gone");
    let reply = call(&app, "5", &refund(5)).await;
    let (text, is_error) = result_text(&reply);
    assert!(
        text.starts_with("It may have run. Do not repeat it.") && is_error,
        "{text}"
    );
    assert!(text.contains("A person is asked at http"), "{text}");
    assert_eq!(
        (&about(&reply)["state"], app.tool.count()),
        (&json!("doubtful"), 1)
    );
    app.stop().await;
}

#[tokio::test]
async fn denied_and_invalid_calls_say_why_and_that_they_have_not_run() {
    let app = gate(On::Sqlite, "").await;
    let denied = call(&app, "10", &json!({"name": "forbidden"})).await;
    let says = "The call of forbidden was denied: Not this one. It has not run.";
    assert_eq!(result_text(&denied), (says.to_owned(), true));
    for params in [
        json!({"name": "refund", "arguments": {"order": 17}}),
        json!({"name": "unknown", "arguments": {}}),
    ] {
        let (text, is_error) = result_text(&call(&app, "10", &params).await);
        assert!(text.contains("was invalid") && is_error, "{text}");
        assert!(text.contains("It has not run."), "{text}");
    }
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[tokio::test]
async fn failed_call_is_an_error_with_the_text_of_its_tool() {
    let app = gate(On::Sqlite, "").await;
    app.tool.answers(404, "no such order");
    let (text, is_error) = result_text(&call(&app, "10", &refund(5)).await);
    assert!(text.contains("no such order") && is_error, "{text}");
    app.stop().await;
}

/// Asserts that the reply to a call of a quick tool is the call's result. The tool answers a moment
/// after the call has started.
async fn quick_call_is_told_with_its_result(app: &TestApp, wait: &str) {
    let params = json!({"name": "tag", "arguments": {"text": "x"}});
    // Even if the client does not wait, the service waits one second for the tool of a call that it
    // has started. On a busy machine the tool may answer later, so the test tries again.
    for tries in 1.. {
        app.tool.close();
        let answered_late = async {
            app.tool.reached(tries).await;
            app.tool.open();
        };
        let (reply, ()) = tokio::join!(call(app, wait, &params), answered_late);
        if result_text(&reply) == ("{\"ok\":true}".to_owned(), false) {
            break;
        }
        assert!(tries < 20, "{}", reply.text);
    }
}

#[tokio::test]
async fn quick_call_is_answered_with_its_result_even_if_the_client_does_not_wait() {
    let app = gate(On::Sqlite, "").await;
    quick_call_is_told_with_its_result(&app, "0").await;
    app.stop().await;
}

#[tokio::test]
async fn quick_call_is_answered_with_its_result_even_if_no_further_call_may_wait() {
    let yaml = yaml("") + "\nserver: { max_waiting: 1 }\n";
    let app = TestApp::with(On::Sqlite, &yaml).await;
    let held = refund(120);
    let further_calls = async {
        until_held(&app).await;
        let further = call(&app, "300", &refund(130)).await;
        assert_eq!(about(&further)["state"], "pending", "it does not wait");
        quick_call_is_told_with_its_result(&app, "300").await;
    };
    tokio::select! {
        waiting = call(&app, "300", &held) => panic!("{}", waiting.text),
        () = further_calls => {}
    }
    app.stop().await;
}
