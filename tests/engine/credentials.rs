//! Tests credentials. The agent requests a credential, or the service requests the credential that
//! a call needs. The answer must fit the form. Each call is sent with the value from the answer and
//! runs once.

use std::time::Duration;

use holdpoint::engine::{DecisionBody, MessageInput, Refusal};
use holdpoint::task::decision::{Action, Then};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{CloseReason, Fact, Outcome};
use holdpoint::task::request::{RequestKind, RequestSpec};
use holdpoint::task::status::{RequestStatus, TaskStatus};
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::engine_harness::{
    Calls, EngineHarness, alice, fills, go, outcomes, person, rejects, turn, whole,
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
    harness
        .engine(0)
        .decide(&alice(), asked.request_id, fills(response), None)
        .await
        .unwrap();
    harness.run().await;
}

pub(super) async fn approve(harness: &EngineHarness, task: TaskId) {
    let [(request, RequestKind::Approval)] = harness.open(task).await[..] else {
        panic!("an approval is open")
    };
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
    let results = journal.items.into_iter().filter_map(|item| {
        let Fact::ToolResult(result) = item.fact else {
            return None;
        };
        Some((result.name, result.outcome, result.content))
    });
    results.collect()
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

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
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
    ran(
        &harness,
        task,
        "/comment",
        ("authorization", &bearer(TOKEN)),
        1,
    )
    .await;
    let results = results(&harness, task).await;
    assert_eq!(
        (results[0].0.as_str(), results[0].1),
        ("request_credentials", Outcome::Responded)
    );
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
async fn credential_repeated_in_the_reason_of_its_answer_stays_out_of_the_journal(
    fixture: StoreFixture,
) {
    let harness = clerk(
        fixture,
        &[&[("request_credentials", r#"{"service":"jira"}"#)]],
    )
    .await;
    let task = harness.stopped().await;
    let request = only_open_request(&harness, task).await.request_id;
    let mut answer = fills(&jira(TOKEN));
    if let DecisionBody::Whole { reason, .. } = &mut answer.body {
        *reason = Some(format!("alice@acme.com has {TOKEN}"));
    }
    harness
        .engine(0)
        .decide(&alice(), request, answer, None)
        .await
        .unwrap();
    let (_, decision) = harness.fixture.request(request).await.answers.remove(0);
    let shown = Some("alice@acme.com has [secret jira.token]");
    assert_eq!(decision.reason.as_deref(), shown);
    assert!(
        decision
            .decisions
            .values()
            .all(|answer| answer.reason.as_deref() == shown)
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
    assert_eq!(
        (
            harness.status(task).await,
            harness.executions(task, "/plain")
        ),
        (TaskStatus::Completed, 1)
    );
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
    assert_eq!(
        (harness.status(task).await, harness.tool.ledger().len()),
        (TaskStatus::Paused, 0)
    );
    fill(&harness, task, &jira(TOKEN)).await;
    ran(
        &harness,
        task,
        "/comment",
        ("authorization", &bearer(TOKEN)),
        2,
    )
    .await;
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
    assert_eq!(
        (
            times_asked(&harness, task).await,
            harness.executions(task, "/plain")
        ),
        (1, 1)
    );
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
    assert_eq!(
        (
            harness.status(task).await,
            times_asked(&harness, task).await
        ),
        (TaskStatus::Completed, 2)
    );
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

#[apply(both)]
async fn declined_credential_rejects_its_call_and_others_go_on(fixture: StoreFixture) {
    let harness = clerk(fixture, &[&[("comment", "{}"), ("plain", "{}")]]).await;
    let task = harness.stopped().await;
    let request = only_open_request(&harness, task).await.request_id;
    let refused = harness
        .engine(0)
        .decide(&alice(), request, whole(Action::Approve, None), None)
        .await;
    assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
    harness
        .engine(0)
        .decide(&alice(), request, whole(Action::Reject, None), None)
        .await
        .unwrap();
    harness.run().await;
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Rejected, Outcome::Succeeded]
    );
    assert_eq!(
        (
            harness.status(task).await,
            harness.executions(task, "/comment")
        ),
        (TaskStatus::Completed, 0)
    );
    let other = harness.stopped().await;
    let request = only_open_request(&harness, other).await.request_id;
    harness
        .engine(0)
        .decide(&alice(), request, rejects(Then::Cancel), None)
        .await
        .unwrap();
    assert_eq!(harness.status(other).await, TaskStatus::Canceled);
    assert_eq!(
        harness.tool.ledger().len(),
        1,
        "only the plain one of the first task"
    );
}

#[apply(both)]
async fn unanswered_credential_request_expires(fixture: StoreFixture) {
    let harness = clerk(
        fixture,
        &[
            &[("request_credentials", r#"{"service":"jira"}"#)],
            &[("comment", "{}"), ("plain", "{}")],
        ],
    )
    .await;
    let task = harness.stopped().await;
    for _ in 0..2 {
        let request = only_open_request(&harness, task).await.request_id;
        harness.fixture.forward(Duration::from_hours(25));
        let late = harness
            .engine(0)
            .decide(&alice(), request, fills(&jira(TOKEN)), None)
            .await;
        assert!(matches!(late, Err(Refusal::Expired(_))), "{late:?}");
        assert_eq!(harness.engine(0).worker().expire().await.unwrap(), 1);
        harness.run().await;
    }
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Expired, Outcome::Expired, Outcome::Succeeded]
    );
    assert_eq!(
        (
            harness.status(task).await,
            harness.executions(task, "/comment")
        ),
        (TaskStatus::Completed, 0)
    );
    assert_eq!(
        harness
            .fixture
            .number("select count(*) from credential")
            .await,
        0
    );
}

#[apply(both)]
async fn credential_answer_that_does_not_fit_is_refused_by_place_without_its_value(
    fixture: StoreFixture,
) {
    const VALUE: &str = "val-0123456789";
    let harness = clerk(fixture, &[&[("comment", "{}")]]).await;
    let task = harness.stopped().await;
    let request = only_open_request(&harness, task).await.request_id;
    let token = |token: Value| json!({"email": "a@acme.com", "token": token});
    let cases = [
        (
            token(json!(format!("{VALUE}\r\nX-Evil: 1"))),
            "/response/token",
        ),
        (token(json!(format!("{VALUE}\u{0}"))), "/response/token"),
        (token(json!(format!("{VALUE}\u{7f}"))), "/response/token"),
        (token(json!("x".repeat(8193))), "/response/token"),
        (token(json!("")), "/response/token"),
        (token(json!(null)), "/response/token"),
        (token(json!([VALUE])), "/response/token"),
        (token(json!({VALUE: 1})), "/response/token"),
        (token(json!(1_234_567_890)), "/response/token"),
        (json!({"email": "a@acme.com"}), "/response/token"),
        (
            json!({"email": "a@acme.com", "token": VALUE, "more": VALUE}),
            "/response/more",
        ),
        (json!({"email": VALUE, "token": VALUE}), "/response/email"),
        (json!(VALUE), "/response"),
        (json!([VALUE]), "/response"),
        (json!(null), "/response"),
    ];
    for (response, place) in cases {
        let refused = harness
            .engine(0)
            .decide(&alice(), request, fills(&response), None)
            .await;
        let Err(Refusal::Invalid(errors)) = &refused else {
            panic!("{response}: {refused:?}")
        };
        let places: Vec<_> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(places, [place], "{response}");
        assert!(!errors[0].detail.to_string().is_empty());
        let told = format!("{refused:?}");
        assert!(
            !told.contains("0123456789") && !told.contains("1234567890") && !told.contains("Evil"),
            "{told}"
        );
    }
    assert_eq!(
        harness
            .fixture
            .number("select count(*) from credential")
            .await,
        0
    );
    fill(&harness, task, &jira(TOKEN)).await;
    ran(
        &harness,
        task,
        "/comment",
        ("authorization", &bearer(TOKEN)),
        1,
    )
    .await;
}

#[apply(both)]
async fn credential_of_one_letter_and_the_maximum_length_is_sent(fixture: StoreFixture) {
    let harness = clerk(fixture, &[&[("comment", "{}")]]).await;
    let task = harness.stopped().await;
    let token = "a".repeat(8192);
    fill(&harness, task, &jira(&token)).await;
    ran(
        &harness,
        task,
        "/comment",
        ("authorization", &bearer(&token)),
        1,
    )
    .await;
}

#[apply(both)]
async fn first_of_two_credential_answers_is_stored_and_sent(fixture: StoreFixture) {
    let harness = clerk(fixture, &[&[("comment", "{}")]]).await;
    let task = harness.stopped().await;
    let request = only_open_request(&harness, task).await.request_id;
    let (one, other) = (harness.engine(0), harness.engine(0));
    let caller = alice();
    let (first, second) = tokio::join!(
        one.decide(&caller, request, fills(&jira("first-0123456789")), None),
        other.decide(&caller, request, fills(&jira("second-0123456789")), None),
    );
    assert_ne!(first.is_ok(), second.is_ok(), "{first:?} {second:?}");
    let lost = if first.is_ok() { &second } else { &first };
    assert!(
        matches!(lost, Err(Refusal::AlreadyDecided { .. })),
        "{lost:?}"
    );
    harness.run().await;
    let won = if first.is_ok() {
        "first-0123456789"
    } else {
        "second-0123456789"
    };
    ran(
        &harness,
        task,
        "/comment",
        ("authorization", &bearer(won)),
        1,
    )
    .await;
}

#[apply(both)]
async fn expired_credential_is_asked_for_again(fixture: StoreFixture) {
    let harness = clerk(
        fixture,
        &[
            &[("request_credentials", r#"{"service":"jira"}"#)],
            &[("pay", "{}")],
        ],
    )
    .await;
    let task = harness.stopped().await;
    fill(&harness, task, &jira("old-0123456789")).await;
    harness.fixture.forward(Duration::from_hours(9));
    approve(&harness, task).await;
    assert_eq!(harness.tool.ledger().len(), 0);
    fill(&harness, task, &jira("new-0123456789")).await;
    ran(&harness, task, "/pay", ("x-token", "new-0123456789"), 1).await;
}

#[apply(both)]
async fn reopened_task_asks_for_its_credential_again(fixture: StoreFixture) {
    let harness = clerk(fixture, &[&[("comment", "{}")], &[], &[("comment", "{}")]]).await;
    let task = harness.stopped().await;
    fill(&harness, task, &jira("old-0123456789")).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(
        harness
            .fixture
            .number("select count(*) from credential")
            .await,
        0
    );
    let message = MessageInput {
        items: go().items,
        user_context: None,
        supersede: false,
    };
    harness
        .engine(0)
        .message(&alice(), task, message, None)
        .await
        .unwrap();
    harness.run().await;
    assert_eq!(
        (
            harness.tool.ledger().len(),
            times_asked(&harness, task).await
        ),
        (1, 2)
    );
    fill(&harness, task, &jira("new-0123456789")).await;
    let sent: Vec<_> = harness
        .tool
        .ledger()
        .iter()
        .map(|call| call.header("authorization").to_owned())
        .collect();
    assert_eq!(sent, ["Bearer old-0123456789", "Bearer new-0123456789"]);
}

#[apply(both)]
async fn message_to_a_running_task_keeps_its_credentials(fixture: StoreFixture) {
    let harness = clerk(
        fixture,
        &[
            &[("request_credentials", r#"{"service":"jira"}"#)],
            &[("pay", "{}")],
            &[("comment", "{}")],
        ],
    )
    .await;
    let task = harness.stopped().await;
    fill(&harness, task, &jira(TOKEN)).await;
    let message = MessageInput {
        items: go().items,
        user_context: None,
        supersede: true,
    };
    harness
        .engine(0)
        .message(&alice(), task, message, None)
        .await
        .unwrap();
    harness.run().await;
    ran(
        &harness,
        task,
        "/comment",
        ("authorization", &bearer(TOKEN)),
        1,
    )
    .await;
    assert_eq!(
        (
            harness.executions(task, "/pay"),
            times_asked(&harness, task).await
        ),
        (0, 1)
    );
}

#[apply(both)]
async fn credential_of_one_task_is_not_used_by_another_of_the_same_user(fixture: StoreFixture) {
    let harness = clerk(
        fixture,
        &[
            &[("request_credentials", r#"{"service":"jira"}"#)],
            &[("pay", "{}")],
        ],
    )
    .await;
    let first = harness.stopped().await;
    fill(&harness, first, &jira("first-0123456789")).await;
    harness.script_turns(&[&[("comment", "{}")]]);
    let second = harness.stopped().await;
    assert_eq!(
        harness.tool.ledger().len(),
        0,
        "what the other task was given is not sent for this one"
    );
    fill(&harness, second, &jira("second-0123456789")).await;
    ran(
        &harness,
        second,
        "/comment",
        ("authorization", &bearer("second-0123456789")),
        1,
    )
    .await;
    approve(&harness, first).await;
    ran(&harness, first, "/pay", ("x-token", "first-0123456789"), 1).await;
}

#[apply(both)]
async fn credential_request_whose_fields_or_receivers_changed_is_asked_anew(fixture: StoreFixture) {
    const MORE: (&str, &str) = (
        "email: { format: email },",
        "email: { format: email }, site: {},",
    );
    const RECEIVER: (&str, &str) = (
        "url: \"{tool}/plain\"",
        "url: \"{tool}/plain\", headers: { X: \"{{credential:jira.token}}\" }",
    );
    const CALL: &[(&str, &str)] = &[("comment", "{}")];
    const AGENT: &[(&str, &str)] = &[("request_credentials", r#"{"service":"jira"}"#)];
    let mut harness = clerk(fixture, &[]).await;
    let before = harness.yaml();
    for calls in [CALL, AGENT] {
        for (from, to) in [MORE, RECEIVER, ("expires_in: 8h", "expires_in: 80h")] {
            harness.configure(|_| before.clone());
            harness.script(move |asked| Ok(turn(if asked == 1 { calls } else { &[] })));
            let task = harness.stopped().await;
            let old = only_open_request(&harness, task).await;
            harness.configure(|yaml| yaml.replacen(from, to, 1));
            let refused = harness
                .engine(0)
                .decide(&alice(), old.request_id, fills(&jira(TOKEN)), None)
                .await;
            assert!(
                matches!(refused, Err(Refusal::Withdrawn(_))),
                "{calls:?} {to}: {refused:?}"
            );
            let row = harness.fixture.request(old.request_id).await;
            assert_eq!(row.status, RequestStatus::Withdrawn);
            let items = harness.journal(task).await.items;
            let closed = |fact: &Fact| {
                matches!(
                    fact,
                    Fact::RequestClosed {
                        reason: CloseReason::ToolChanged,
                        ..
                    }
                )
            };
            assert!(items.iter().any(|item| closed(&item.fact)));
            harness.run().await;
            let anew = only_open_request(&harness, task).await;
            assert!(
                anew.request_id != old.request_id && anew.form != old.form,
                "{anew:?}"
            );
            harness.finish(task).await;
            assert_eq!(harness.status(task).await, TaskStatus::Completed);
        }
    }
}

#[apply(both)]
async fn credential_request_with_only_other_wording_is_not_withdrawn(fixture: StoreFixture) {
    let mut harness = clerk(fixture, &[&[("comment", "{}")]]).await;
    let task = harness.stopped().await;
    harness.configure(|yaml| {
        yaml.replace("Login of your Jira.", "The Jira login.")
            .replace("From your profile.", "A token.")
    });
    fill(&harness, task, &jira(TOKEN)).await;
    ran(
        &harness,
        task,
        "/comment",
        ("authorization", &bearer(TOKEN)),
        1,
    )
    .await;
}

#[apply(both)]
async fn call_that_no_longer_needs_a_credential_withdraws_the_request_and_runs(
    fixture: StoreFixture,
) {
    let mut harness = clerk(fixture, &[&[("find", "{}")]]).await;
    let task = harness.stopped().await;
    harness.configure(|yaml| {
        yaml.replace(
            "{tool}/find/{{credential:crm.key}}?as={{credential:jira.email}}&all=1",
            "{tool}/find",
        )
    });
    let old = only_open_request(&harness, task).await;
    let refused = harness
        .engine(0)
        .decide(&alice(), old.request_id, fills(&json!({"key": "k"})), None)
        .await;
    assert!(matches!(refused, Err(Refusal::Withdrawn(_))), "{refused:?}");
    harness.run().await;
    assert_eq!(
        (
            harness.status(task).await,
            harness.executions(task, "/find")
        ),
        (TaskStatus::Completed, 1)
    );
}
