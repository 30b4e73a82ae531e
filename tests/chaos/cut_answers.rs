//! Cuts the connection between a client and the service at any byte of the answer to an ask at a
//! gate. The same ask, with the same key, then gets the answer that was lost, and its call runs
//! once.

use std::time::Duration;

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::approval_cycle::on_both;
use crate::api::gate::{AGENT, bash, refund, yaml};
use crate::support::endless_sleep::EndlessSleep;
use crate::support::forwarder::Forwarder;
use crate::support::repetitions;
use crate::support::test_app::{Actor, On, TestApp};

const CALLS: &str = "/v1/gate/calls";
/// A lower bound of the length of every answer, in bytes.
const SHORTEST: usize = 600;

/// Returns the distance between two cuts, in bytes.
fn step() -> usize {
    repetitions(89, 1)
}

/// Posts `body` through the proxy, which cuts the answer after `bytes` bytes. Returns `None` if the
/// answer was cut.
async fn ask_through(
    line: &Forwarder,
    actor: Actor<'_>,
    path: &str,
    body: &Value,
    bytes: usize,
) -> Option<Value> {
    line.cut_after(bytes);
    let url = format!("{}{path}", line.url());
    let body = Some(("application/json", body.to_string().into_bytes()));
    let answer = actor.try_sent(Method::POST, &url, body).await.ok()?;
    let text = answer.text().await.ok()?;
    Some(serde_json::from_str(&text).unwrap())
}

/// Returns the number of calls that were stored, and how many of them were started.
async fn stored(app: &TestApp) -> (usize, usize) {
    let calls = app.database.texts("select status from agent_task").await;
    let starts = "select type from agent_task_item where type = 'tool_started'";
    (calls.len(), app.database.texts(starts).await.len())
}

/// Returns the members of an answer that describe its permit, except the remaining time.
fn permit(answer: &Value) -> Value {
    let permit = &answer["permit"];
    json!([
        answer["task_id"],
        permit["attempt"],
        permit["expires_at"],
        answer["digest"]
    ])
}

#[apply(on_both)]
async fn runner_whose_answer_is_cut_at_any_byte_gets_the_same_permit_again(on: On) {
    let app = TestApp::with(on, &yaml("")).await;
    let line = Forwarder::to_service(&app.url()).await;
    let (mut made, body) = (0, bash("ls"));
    for cut in (0..).step_by(step()) {
        let agent = || {
            app.actor(AGENT)
                .header("idempotency-key", &format!("cut-{cut}"))
        };
        let runner = || agent().header("holdpoint-runner", "r1");
        let lost = ask_through(&line, runner(), CALLS, &body, cut).await;
        made += 1;
        let again = runner().post(CALLS, &body).await;
        assert_eq!(
            (again.status, &again.body["permit"]["attempt"]),
            (200, &json!(1)),
            "{cut}: {}",
            again.text
        );
        assert_eq!(again.header("idempotency-replayed"), "true", "{cut}");
        let third = runner().post(CALLS, &body).await;
        assert_eq!(permit(&third.body), permit(&again.body), "{cut}");
        let unnamed = agent().post(CALLS, &body).await;
        assert_eq!(
            (unnamed.status, unnamed.str("/code").as_str()),
            (409, "call_in_hand"),
            "{cut}: {}",
            unnamed.text
        );
        if let Some(whole) = lost {
            assert_eq!(permit(&whole), permit(&again.body), "{cut}");
            assert!(cut > SHORTEST, "{cut}");
            break;
        }
    }
    assert_eq!(stored(&app).await, (made, made), "one permit of each call");
    app.stop().await;
}

#[apply(on_both)]
async fn client_whose_answer_is_cut_at_any_byte_gets_the_same_result_and_its_call_ran_once(on: On) {
    let app = TestApp::with(on, &yaml("")).await;
    let line = Forwarder::to_service(&app.url()).await;
    let (mut made, body) = (0, refund(5));
    for cut in (0..).step_by(step()) {
        let agent = || {
            app.actor(AGENT)
                .header("idempotency-key", &format!("cut-{cut}"))
        };
        let lost = ask_through(&line, agent(), CALLS, &body, cut).await;
        made += 1;
        let again = agent().post(CALLS, &body).await;
        assert_eq!(
            (again.status, again.str("/outcome").as_str()),
            (200, "succeeded"),
            "{cut}: {}",
            again.text
        );
        assert_eq!(again.body["result"]["content"], "{\"ok\":true}", "{cut}");
        let third = agent().post(CALLS, &body).await;
        assert_eq!(third.body, again.body, "{cut}");
        assert_eq!(app.tool.count(), made, "{cut}: each call runs once");
        if let Some(whole) = lost {
            assert_eq!(whole, again.body, "{cut}");
            assert!(cut > SHORTEST, "{cut}");
            break;
        }
    }
    assert_eq!(stored(&app).await, (made, made));
    app.stop().await;
}

#[apply(on_both)]
async fn mcp_client_whose_answer_is_cut_at_any_byte_gets_the_same_result_and_its_call_ran_once(
    on: On,
) {
    // If an answer is not ready after one second, the service sends it as an event stream. This
    // clock never ends the wait of one second, so the service sends every answer as JSON.
    let clock = EndlessSleep::new(|time| time == Duration::from_secs(1));
    let app = TestApp::timed(on, &yaml(""), clock).await;
    let line = Forwarder::to_service(&app.url()).await;
    let mut made = 0;
    for cut in (0..).step_by(step()) {
        let mut params = json!({"name": "refund", "arguments": {"order": 17, "amount": 5}});
        params["_meta"]["holdpoint/key"] = json!(format!("cut-{cut}"));
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let agent = || app.actor(AGENT);
        let lost = ask_through(&line, agent(), "/mcp/refunds", &body, cut).await;
        made += 1;
        let again = agent().post("/mcp/refunds", &body).await;
        let result = &again.body["result"];
        assert_eq!(
            result["content"][0]["text"], "{\"ok\":true}",
            "{cut}: {}",
            again.text
        );
        assert_eq!(app.tool.count(), made, "{cut}: each call runs once");
        if let Some(whole) = lost {
            assert_eq!(whole["result"], *result, "{cut}");
            break;
        }
    }
    assert!(made > 3, "{made}");
    assert_eq!(stored(&app).await, (made, made));
    app.stop().await;
}
