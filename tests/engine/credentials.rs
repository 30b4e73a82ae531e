//! Tests credentials. The agent requests a credential, or the service requests the credential that
//! a call needs. Each call is sent with the value from the answer and runs once.

mod answers;
mod calls_in_flight;
mod config_changes;
mod validity;

use holdpoint::engine::Refusal;
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::{RequestKind, RequestSpec};
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::engine_harness::{
    Calls, EngineHarness, alice_decides, fills, outcomes, person, tool_results, whole,
};
use super::invariants::{check, check_ended};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::test_app::ACCOUNTS;

/// A configuration with these tools: tools that take credentials in a header, in a path and in a
/// query, a tool whose calls are held, and a tool without credentials.
const TOOLS: &str = r#"
secrets: { keys: [ { id: k1, key: "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=" } ] }
credentials:
  jira:  { description: Login of your Jira., fields: { email: { format: email }, token: { description: From your profile. } }, expires_in: 8h }
  crm:   { fields: { key: {} } }
  spare: { fields: { x: {} } }
models:
  main: { provider: openai, base_url: "{model}", model: fake, api_key: "${MODEL_KEY}", retries: 1 }
tools:
  comment: { http: { method: POST, url: "{tool}/comment", headers: { Authorization: "Bearer {{credential:jira.token}}" } } }
  pay: { http: { method: POST, url: "{tool}/pay", headers: { X-Mail: "{{credential:jira.email}}", X-Token: "{{credential:jira.token}}" } } }
  find: { effect: read_only, http: { method: GET, url: "{tool}/find/{{credential:crm.key}}?as={{credential:jira.email}}&all=1" } }
  look: { effect: read_only, http: { method: POST, url: "{tool}/look", headers: { X-Key: "{{credential:crm.key}}" } } }
  peek: { effect: read_only, http: { method: POST, url: "{tool}/peek", headers: { X-Key: "{{credential:crm.key}}" } } }
  plain: { effect: read_only, http: { method: POST, url: "{tool}/plain" } }
agents:
  clerk: { description: A clerk., model: main, tools: [comment, pay, find, look, peek, plain], human: [credentials] }
policy:
  - { name: held, tools: [pay], decide: hold, approvers: { users: [bob] } }
  - { name: rest, tools: ["*"], decide: allow }
"#;

pub(super) const TOKEN: &str = "tok/en-\"é+0123456789";

/// The agent's call that requests the credential `jira`.
pub(super) const ASKS_FOR_JIRA: (&str, &str) = ("request_credentials", r#"{"service":"jira"}"#);

pub(super) fn jira(token: &str) -> Value {
    json!({"email": "alice@acme.com", "token": token})
}

/// Creates a harness whose model makes the calls in `turns` (tool, JSON arguments), turn by turn,
/// and then finishes.
pub(super) async fn clerk(fixture: StoreFixture, turns: &'static [Calls]) -> EngineHarness {
    let mut harness = EngineHarness::new(fixture, &[]).await;
    harness.configure(|_| TOOLS.to_owned() + ACCOUNTS);
    harness.script_turns(turns);
    harness
}

pub(super) async fn only_open_request(harness: &EngineHarness, task: TaskId) -> RequestSpec {
    let mut open = harness.open_specs(task).await;
    assert_eq!(open.len(), 1, "{open:#?}");
    let asked = open.remove(0);
    assert_eq!(asked.kind, RequestKind::Credentials);
    asked
}

pub(super) async fn fill(harness: &EngineHarness, task: TaskId, response: &Value) {
    let asked = only_open_request(harness, task).await;
    alice_decides(&harness.engine(0), asked.request_id, fills(response)).await;
    harness.run().await;
}

pub(super) async fn approve(harness: &EngineHarness, task: TaskId) {
    let request = harness.only_request(task, RequestKind::Approval).await;
    harness
        .engine(0)
        .decide(&person("bob"), request, whole(Action::Approve, None), None)
        .await
        .unwrap();
    harness.run().await;
}

pub(super) async fn results(
    harness: &EngineHarness,
    task: TaskId,
) -> Vec<(String, Outcome, String)> {
    let journal = harness.journal(task).await;
    check(&journal.items);
    tool_results(&journal.items)
        .map(|result| (result.name.clone(), result.outcome, result.content.clone()))
        .collect()
}

pub(super) async fn times_asked(harness: &EngineHarness, task: TaskId) -> usize {
    let items = harness.journal(task).await.items;
    let credentials = |fact: &Fact| matches!(fact, Fact::InterventionRequested(asked) if asked.kind == RequestKind::Credentials);
    items.iter().filter(|item| credentials(&item.fact)).count()
}

/// Asserts that the task has completed, and that the tool at `path` was called `times` times, each
/// time with the header `header`.
pub(super) async fn ran(
    harness: &EngineHarness,
    task: TaskId,
    path: &str,
    header: (&str, &str),
    times: usize,
) {
    let journal = harness.journal(task).await;
    assert_eq!(
        journal.row.status,
        TaskStatus::Completed,
        "{:#?}",
        journal.items
    );
    check_ended(&journal.items);
    let task = task.to_string();
    let calls = harness.tool.ledger();
    let calls: Vec<_> = calls
        .iter()
        .filter(|call| call.uri == path && call.header("holdpoint-task-id") == task)
        .collect();
    assert_eq!(calls.len(), times, "{path}");
    for call in calls {
        let sent = call
            .headers
            .get(header.0)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        assert_eq!(sent.as_deref(), Some(header.1));
    }
}

/// Asserts that the task has completed, and that the tool `comment` was called `times` times, each
/// time with this token.
pub(super) async fn commented(harness: &EngineHarness, task: TaskId, token: &str, times: usize) {
    let bearer = format!("Bearer {token}");
    ran(harness, task, "/comment", ("authorization", &bearer), times).await;
}

#[apply(both)]
async fn credential_requested_by_the_agent_reaches_the_tool_and_stays_out_of_the_journal(
    fixture: StoreFixture,
) {
    let harness = clerk(
        fixture,
        &[
            &[(
                "request_credentials",
                r#"{"service":"jira","reason":"to comment"}"#,
            )],
            &[("comment", "{}")],
        ],
    )
    .await;
    let task = harness.stopped().await;
    let asked = only_open_request(&harness, task).await;
    assert_eq!(
        (asked.question.as_deref(), asked.details.as_ref()),
        (Some("to comment"), Some(&json!({"service": "jira"})))
    );
    let form = asked.form.clone().unwrap();
    assert_eq!(form["required"], json!(["email", "token"]), "{form}");
    assert_eq!(form["properties"]["email"]["format"], "email");
    assert_eq!(
        form["properties"]["token"]["description"],
        "From your profile."
    );
    let receivers = json!([
        format!("comment: POST {}", harness.tool.url),
        format!("find: GET {}", harness.tool.url),
        format!("pay: POST {}", harness.tool.url)
    ]);
    assert_eq!(
        (&form["x-receivers"], &form["x-expires-in"]),
        (&receivers, &json!(28800))
    );
    let offered = harness.prompted().1.tools;
    let asking = offered
        .iter()
        .find(|tool| tool.name == "request_credentials")
        .unwrap();
    assert_eq!(
        asking.parameters["properties"]["service"]["enum"],
        json!(["crm", "jira", "spare"]),
        "the spare one, too, which no tool takes"
    );
    fill(&harness, task, &jira(TOKEN)).await;
    commented(&harness, task, TOKEN, 1).await;
    let results = results(&harness, task).await;
    assert_eq!(results[0].0.as_str(), "request_credentials");
    assert_eq!(results[0].1, Outcome::Responded);
    let told: Value = serde_json::from_str(&results[0].2).unwrap();
    assert_eq!(
        (&told["provided"], &told["fields"]),
        (&json!(true), &json!(["email", "token"]))
    );
    assert_eq!(times_asked(&harness, task).await, 1);
    let journal = format!(
        "{:?}{:?}",
        harness.journal(task).await.items,
        harness.prompted().1
    );
    assert!(
        !journal.contains("0123456789") && !journal.contains("alice@acme.com"),
        "{journal}"
    );
    let responses = harness
        .journal(task)
        .await
        .items
        .into_iter()
        .filter_map(|item| {
            let Fact::Decision { decision, .. } = item.fact else {
                return None;
            };
            decision.response
        });
    assert_eq!(
        responses.collect::<Vec<_>>(),
        [json!({"email": null, "token": null})]
    );
}

#[apply(both)]
async fn unknown_credential_is_not_asked_for_and_one_that_no_tool_takes_is_sent_nowhere(
    fixture: StoreFixture,
) {
    let harness = clerk(
        fixture,
        &[
            &[
                ("request_credentials", r#"{"service":"spare"}"#),
                ("request_credentials", r#"{"service":"mail"}"#),
            ],
            &[("plain", "{}")],
        ],
    )
    .await;
    let task = harness.stopped().await;
    let form = only_open_request(&harness, task).await.form.unwrap();
    assert_eq!(
        (&form["title"], &form["x-receivers"]),
        (&json!("spare"), &json!([]))
    );
    fill(&harness, task, &json!({"x": "spare-0123456789"})).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/plain"), 1);
    assert_eq!(times_asked(&harness, task).await, 1);
    assert!(outcomes(&harness.journal(task).await).contains(&Outcome::Invalid));
    assert!(!format!("{:?}", harness.tool.ledger()).contains("spare-0123456789"));
}

#[apply(both)]
async fn call_without_its_credential_asks_for_it_then_runs_once(fixture: StoreFixture) {
    let harness = clerk(fixture, &[&[("comment", "{}"), ("comment", "{}")]]).await;
    let task = harness.stopped().await;
    let asked = only_open_request(&harness, task).await;
    assert_eq!(
        (asked.question.as_deref(), asked.details.as_ref()),
        (None, Some(&json!({"service": "jira"})))
    );
    assert_eq!(asked.pending_tool_calls.len(), 1);
    assert_eq!(harness.status(task).await, TaskStatus::Paused);
    assert_eq!(harness.tool.ledger().len(), 0);
    fill(&harness, task, &jira(TOKEN)).await;
    commented(&harness, task, TOKEN, 2).await;
    assert_eq!(times_asked(&harness, task).await, 1);
}

#[apply(both)]
async fn held_call_asks_for_a_credential_after_its_approval_and_keeps_the_approval(
    fixture: StoreFixture,
) {
    let harness = clerk(fixture, &[&[("pay", "{}")]]).await;
    let task = harness.stopped().await;
    approve(&harness, task).await;
    assert_eq!(harness.tool.ledger().len(), 0);
    let request = only_open_request(&harness, task).await.request_id;
    let bob = harness
        .engine(0)
        .decide(&person("bob"), request, fills(&jira(TOKEN)), None)
        .await;
    assert!(
        matches!(bob, Err(Refusal::Forbidden(_))),
        "it is the owner's login: {bob:?}"
    );
    fill(&harness, task, &jira(TOKEN)).await;
    ran(&harness, task, "/pay", ("x-token", TOKEN), 1).await;
    ran(&harness, task, "/pay", ("x-mail", "alice@acme.com"), 1).await;
    ran(&harness, task, "/pay", ("holdpoint-decided-by", "bob"), 1).await;
}

#[apply(both)]
async fn calls_that_lack_the_same_credential_ask_for_it_once(fixture: StoreFixture) {
    let harness = clerk(
        fixture,
        &[&[("look", "{}"), ("peek", "{}"), ("plain", "{}")]],
    )
    .await;
    let task = harness.stopped().await;
    fill(&harness, task, &json!({"key": "crm-key-0123456789"})).await;
    for path in ["/look", "/peek"] {
        ran(&harness, task, path, ("x-key", "crm-key-0123456789"), 1).await;
    }
    assert_eq!(times_asked(&harness, task).await, 1);
    assert_eq!(harness.executions(task, "/plain"), 1);
}

#[apply(both)]
async fn call_that_needs_two_credentials_asks_for_both_and_sends_them_in_path_and_query(
    fixture: StoreFixture,
) {
    let harness = clerk(fixture, &[&[("find", "{}")]]).await;
    let task = harness.stopped().await;
    for _ in 0..2 {
        assert_eq!(harness.tool.ledger().len(), 0);
        let service = only_open_request(&harness, task).await.details.unwrap()["service"].clone();
        let response = if service == "jira" {
            json!({"email": "a+b@acme.com", "token": "t"})
        } else {
            json!({"key": "a/x?é&\"1234"})
        };
        fill(&harness, task, &response).await;
    }
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(times_asked(&harness, task).await, 2);
    let uris: Vec<_> = harness
        .tool
        .ledger()
        .into_iter()
        .map(|call| call.uri)
        .collect();
    assert_eq!(uris.len(), 1);
    let url = url::Url::parse(&format!("http://h{}", uris[0])).unwrap();
    assert_eq!(
        url.path_segments().unwrap().collect::<Vec<_>>(),
        ["find", "a%2Fx%3F%C3%A9%26%221234"],
        "{url}"
    );
    let pairs: Vec<_> = url
        .query_pairs()
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect();
    assert_eq!(
        pairs,
        [
            ("as".to_owned(), "a+b@acme.com".to_owned()),
            ("all".to_owned(), "1".to_owned())
        ]
    );
}
