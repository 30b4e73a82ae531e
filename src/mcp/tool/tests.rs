//! Tests with a server that describes the same tool differently to different users.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use serde_json::json;
use tokio::sync::watch;
use uuid::Uuid;

use super::super::fake::{Fake, NET, Quick, Seen, answer, modern, said};
use super::super::lock::LockedTool;
use super::*;
use crate::secret::Secret;
use crate::task::elicitation::Resume;
use crate::task::id::CallId;
use crate::task::tool_spec::{Effect, ToolKind};
use crate::tool::{AttemptPermit, LateAnswerCell, RawResultCell};

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
        modern(seen).or_else(|| Some(seen.result(&list_of(text))))
    })
    .await
}

/// Answers `server/discover` and `tools/list` like a server that has not changed its tool. Returns
/// `None` for any other method.
fn unchanged(seen: &Seen) -> Option<Response> {
    let is_list = seen.method() == "tools/list";
    modern(seen).or_else(|| is_list.then(|| seen.result(&list_of(REVIEWED))))
}

fn list_of(text: &str) -> Value {
    json!({"tools": [definition(text)], "resultType": "complete"})
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
        late: LateAnswerCell::default(),
        raw: RawResultCell::default(),
    }
}

fn task(number: u128) -> TaskId {
    TaskId(Uuid::from_u128(number))
}

/// Compares the tool, and then makes the call of [`invocation`].
async fn called(tool: &dyn Tool) -> ToolAnswer {
    let (call, start) = (invocation(), Some(StartReason::Allowed));
    let compared = tool.prepare(start, call.task_id, &call.credentials);
    compared.await.unwrap();
    tool.call(&call).await
}

/// Prepares the tool for so many other tasks that every earlier record of a comparison is removed.
async fn use_by_other_tasks(tool: &dyn Tool) {
    let (start, alice) = (Some(StartReason::Allowed), of("alice"));
    for other in 1000..2024 {
        let compared = tool.prepare(start, task(other), &alice);
        compared.await.unwrap();
    }
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
        unchanged(seen).or_else(|| Some(seen.result(&task)))
    })
    .await;
    for effect in [Effect::ReadOnly, Effect::Idempotent] {
        let answer = called(&*tool_with(&server, effect)).await;
        let text = "The tool needs tasks, which are not supported.";
        assert_eq!(answer, ToolAnswer::failed(text.to_owned()), "{effect:?}");
    }
    let answer = called(&*tool_with(&server, Effect::Once)).await;
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
    let start = Some(StartReason::Allowed);
    tool.prepare(start, task(1), &of("alice")).await.unwrap();
    for call in [refused(), without_credential, continued] {
        let answer = tool.call(&call).await;
        assert!(matches!(answer, ToolAnswer::NotSent { .. }), "{answer:?}");
    }
    assert!(server.calls().is_empty());
}

#[tokio::test]
async fn answer_with_a_repeated_member_leaves_the_outcome_unknown() {
    let server = Fake::new(|seen| {
        unchanged(seen).or_else(|| {
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
    let found = called(&*tool_with(&server, Effect::Once)).await;
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

/// Starts a server that lists a changed tool for the token `t-bob`, once `held` is true. For other
/// tokens, the tool is unchanged.
async fn server_that_holds_bobs_list(held: watch::Receiver<bool>) -> Fake {
    Fake::new(move |seen| {
        if seen.method() != "tools/list" || seen.header("authorization") != Some("Bearer t-bob") {
            return unchanged(seen).or_else(|| Some(seen.result(&said("done"))));
        }
        let (mut held, list) = (held.clone(), seen.result_text(&list_of("y")));
        let body = futures_util::stream::once(async move {
            held.wait_for(|released| *released).await.unwrap();
            Ok::<_, std::io::Error>(list)
        });
        Some(answer(200, "application/json", Body::from_stream(body)))
    })
    .await
}

#[tokio::test]
async fn change_found_by_a_comparison_whose_record_was_removed_meanwhile_is_known() {
    let (released, held) = watch::channel(false);
    let server = server_that_holds_bobs_list(held).await;
    let (tool, bob) = (tool(&server), task(1));
    // `join!` polls the comparison of bob's task first, so its record is the oldest.
    let evicting = async {
        use_by_other_tasks(&*tool).await;
        released.send_replace(true);
    };
    let (start, credentials) = (Some(StartReason::Allowed), of("bob"));
    let (compared, ()) = tokio::join!(tool.prepare(start, bob, &credentials), evicting);
    assert_eq!((compared, lists(&server)), (Ok(()), 2));
    assert!(tool.definition_change(bob).is_some());
}

#[tokio::test]
async fn comparison_that_ends_after_a_newer_comparison_of_its_task_does_not_replace_it() {
    let (released, held) = watch::channel(false);
    let server = server_that_holds_bobs_list(held).await;
    let (tool, call) = (tool(&server), invocation());
    let (start, bob) = (Some(StartReason::Approved), of("bob"));
    // `join!` polls the comparison with bob's token first, so the other comparison is newer.
    let newer = async {
        let compared = tool.prepare(start, call.task_id, &call.credentials);
        compared.await.unwrap();
        released.send_replace(true);
    };
    let (older, ()) = tokio::join!(tool.prepare(start, call.task_id, &bob), newer);
    assert_eq!((older, lists(&server)), (Ok(()), 2));
    tool.call(&call).await;
    assert_eq!(server.calls().len(), 1);
}

#[tokio::test]
async fn call_whose_comparison_is_not_recorded_is_not_sent() {
    let server = server().await;
    let tool = tool(&server);
    let start = Some(StartReason::Allowed);
    let (alice, bob, mallory) = (of("alice"), of("bob"), of("mallory"));
    let not_sent = async |credentials: &Credentials| {
        let call = Invocation {
            credentials: credentials.clone(),
            ..invocation()
        };
        let answer = tool.call(&call).await;
        let ToolAnswer::NotSent { content } = answer else {
            panic!("{answer:?}")
        };
        assert!(content.contains(NOT_COMPARED), "{content}");
    };
    not_sent(&alice).await;
    assert!(tool.prepare(start, task(1), &mallory).await.is_err());
    not_sent(&mallory).await;
    tool.prepare(start, task(1), &alice).await.unwrap();
    tool.prepare(start, task(1), &bob).await.unwrap();
    not_sent(&alice).await;
    tool.prepare(start, task(1), &alice).await.unwrap();
    use_by_other_tasks(&*tool).await;
    not_sent(&alice).await;
    assert!(server.calls().is_empty());
    called(&*tool).await;
    assert_eq!(server.calls().len(), 1);
}

fn lists(server: &Fake) -> usize {
    let methods = server.methods();
    let lists = methods.iter().filter(|method| *method == "tools/list");
    lists.count()
}
