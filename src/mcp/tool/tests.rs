//! Tests with a server that describes the same tool differently to different users.

use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::super::fake::{Fake, NET, Quick, answer, modern, said};
use super::super::lock::LockedTool;
use super::*;
use crate::secret::Secret;
use crate::task::elicitation::Resume;
use crate::task::id::CallId;
use crate::task::tool_spec::{Effect, ToolKind};
use crate::tool::{AttemptPermit, LateSlot, RawSlot};

const REVIEWED: &str = "x";

/// Starts a server that lists one tool. For the token `t-bob`, the tool has another description.
/// For the token `t-mallory`, the request fails.
async fn server() -> Fake {
    Fake::new(|seen| {
        let text = match seen.header("authorization") {
            Some("Bearer t-bob") => "y",
            Some("Bearer t-mallory") => return Some(seen.error(401, -32000)),
            _ => REVIEWED,
        };
        let list = json!({"tools": [definition(text)], "resultType": "complete"});
        modern(seen).or_else(|| Some(seen.result(&list)))
    })
    .await
}

fn definition(text: &str) -> Value {
    json!({"name": "a", "description": text, "inputSchema": {"type": "object"}})
}

/// Creates the tool of the server. The calls of each user carry the user's token.
fn tool(server: &Fake) -> Arc<dyn Tool> {
    tool_with(server, Effect::ReadOnly)
}

fn tool_with(server: &Fake, effect: Effect) -> Arc<dyn Tool> {
    let token = Secret::new("Bearer {{credential:tickets.token}}".to_owned());
    let settings = Settings {
        url: Some(server.url.to_string()),
        headers: BTreeMap::from([("Authorization".to_owned(), token)]),
        ..Settings::default()
    };
    let locked = LockedServer {
        server: Value::Null,
        protocol: "2026-07-28".to_owned(),
        locked_at: String::new(),
        tools: BTreeMap::from([("a".to_owned(), LockedTool::new(definition(REVIEWED)))]),
    };
    let mut lock = Lock::default();
    lock.servers.insert("s".to_owned(), locked);
    let settings = BTreeMap::from([("s".to_owned(), settings)]);
    let redactor = Arc::new(Redactor::default());
    let clock: Arc<dyn Clock> = Arc::new(Quick::default());
    let servers = Servers::new(&settings, &lock, &NET, &redactor, &clock, false);
    let spec = ToolSpec {
        name: "s_a".to_owned(),
        effect,
        kind: ToolKind::Mcp,
        definition: "sha256:reviewed".to_owned(),
        description: String::new(),
        parameters: json!({"type": "object"}),
        target: server.url.to_string(),
        summary: None,
        timeout: Duration::from_secs(20),
        needs: vec!["tickets".to_owned()],
    };
    servers.tool(&spec, "s", "a", &redactor).unwrap()
}

fn of(user: &str) -> Credentials {
    let mut credentials = Credentials::default();
    let token = Secret::new(format!("t-{user}"));
    credentials.insert("tickets", [("token".to_owned(), token)].into());
    credentials
}

fn invocation() -> Invocation {
    Invocation {
        tenant: "acme".to_owned(),
        owner: "alice".to_owned(),
        task_id: task(1),
        call_id: CallId(Uuid::from_u128(2)),
        may_be_lost: true,
        arguments_text: "{}".to_owned(),
        arguments: json!({}),
        decided_by: None,
        traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
        permit: AttemptPermit::permitted_while(|| true),
        credentials: of("alice"),
        resume: None,
        late: LateSlot::default(),
        raw: RawSlot::default(),
    }
}

fn task(number: u128) -> TaskId {
    TaskId(Uuid::from_u128(number))
}

#[tokio::test]
async fn tool_that_a_server_changed_for_one_user_is_unchanged_for_another() {
    let server = server().await;
    let tool = tool(&server);
    let (alice, bob) = (task(1), task(2));
    let start = Some(StartReason::Allowed);
    tool.prepare(start, bob, &of("bob")).await.unwrap();
    assert!(tool.definition_change(bob).is_some());
    assert_eq!(tool.definition_change(alice), None);
    tool.prepare(start, alice, &of("alice")).await.unwrap();
    assert!(tool.definition_change(bob).is_some());
    assert_eq!(tool.definition_change(alice), None);
    assert_eq!(lists(&server), 2);
    // The third task first has bob's credentials, then alice's. The first two tasks have already
    // compared the tools with these credentials. The third task uses the results of these two
    // comparisons, so the number of requests for the list of tools stays at 2.
    let other = task(3);
    tool.prepare(start, other, &of("bob")).await.unwrap();
    assert!(tool.definition_change(other).is_some() && lists(&server) == 2);
    tool.prepare(start, other, &of("alice")).await.unwrap();
    assert_eq!((tool.definition_change(other), lists(&server)), (None, 2));
}

#[tokio::test]
async fn failed_comparison_of_one_user_fails_no_call_of_another() {
    let server = server().await;
    let tool = tool(&server);
    let start = Some(StartReason::Approved);
    let (mallory, alice) = (of("mallory"), of("alice"));
    let (refused, compared) = tokio::join!(
        tool.prepare(start, task(1), &mallory),
        tool.prepare(start, task(2), &alice)
    );
    assert!(refused.unwrap_err().contains("401"));
    assert_eq!(compared, Ok(()));
}

#[tokio::test]
async fn answer_with_a_task_fails_a_repeatable_call_and_leaves_other_outcomes_unknown() {
    let server = Fake::new(|seen| {
        let task = json!({"resultType": "task", "task": {}});
        modern(seen).or_else(|| Some(seen.result(&task)))
    })
    .await;
    for effect in [Effect::ReadOnly, Effect::Idempotent] {
        let answer = tool_with(&server, effect).call(&invocation()).await;
        let text = "The tool needs tasks, which are not supported.";
        assert_eq!(answer, ToolAnswer::failed(text.to_owned()), "{effect:?}");
    }
    let answer = tool_with(&server, Effect::Once).call(&invocation()).await;
    assert!(matches!(answer, ToolAnswer::Unknown { .. }), "{answer:?}");
    assert_eq!(server.calls().len(), 3, "each call is sent once");
}

#[tokio::test]
async fn attempt_without_a_permit_or_a_credential_is_reported_as_not_sent() {
    let server = server().await;
    let tool = tool(&server);
    let refused = || Invocation {
        permit: AttemptPermit::permitted_while(|| false),
        ..invocation()
    };
    let without_credential = Invocation {
        credentials: Credentials::default(),
        ..invocation()
    };
    let continued = Invocation {
        resume: Some(Resume::default()),
        ..refused()
    };
    for call in [refused(), without_credential, continued] {
        let answer = tool.call(&call).await;
        assert!(matches!(answer, ToolAnswer::NotSent { .. }), "{answer:?}");
    }
    assert!(server.calls().is_empty());
}

#[tokio::test]
async fn answer_with_a_repeated_member_leaves_the_outcome_unknown() {
    let server = Fake::new(|seen| {
        modern(seen).or_else(|| {
            let text = seen.result_text(&said("paid"));
            let twice = text.replacen(
                "\"content\"",
                "\"isError\":true,\"isError\":false,\"content\"",
                1,
            );
            assert_ne!(twice, text);
            Some(answer(200, "application/json", twice))
        })
    })
    .await;
    let found = tool_with(&server, Effect::Once).call(&invocation()).await;
    assert!(matches!(found, ToolAnswer::Unknown { .. }), "{found:?}");
    assert_eq!(server.calls().len(), 1, "the call is sent once");
}

#[tokio::test]
async fn calls_of_a_server_over_http_share_sixteen_slots() {
    let server = server().await;
    let tool = tool(&server);
    let slots = tool.slots().unwrap();
    assert_eq!(slots.available_permits(), 16);
    let _taken = slots.try_acquire().unwrap();
    assert_eq!(tool.slots().unwrap().available_permits(), 15);
}

#[tokio::test]
async fn comparisons_of_a_server_are_bounded_in_number() {
    let comparisons = Comparisons::default();
    let headers = |user: u128| {
        let value = user.to_string().parse().unwrap();
        HeaderMap::from_iter([(reqwest::header::AUTHORIZATION, value)])
    };
    for user in 0..1200 {
        comparisons.for_headers(Some(task(user)), &headers(user));
    }
    assert!(comparisons.last_used_by(Some(task(1199))).is_some());
    assert!(comparisons.last_used_by(Some(task(0))).is_none());
    assert_eq!(comparisons.counts(), (1024, 1024));
}

fn lists(server: &Fake) -> usize {
    let methods = server.methods();
    let lists = methods.iter().filter(|method| *method == "tools/list");
    lists.count()
}
