//! Tests of HTTP tools with a loopback endpoint that records its requests.

use std::sync::LazyLock;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::super::AttemptPermit;
use super::super::credential::Credentials;
use super::*;
use crate::task::id::{CallId, TaskId};
use crate::task::tool_spec::Effect;
use crate::tool::catalog::{self, Catalog};
use crate::world::Mistakes;

mod credentials;
mod failures;
mod keepalive;
mod wire;

/// The endpoint's behaviour on a connection once it has read the request.
enum Behaviour {
    Answer(Vec<u8>),
    Reset,
    Silence,
}

/// Serves one connection for each behaviour. Returns the origin, and a task that returns the
/// received requests.
async fn endpoint(behaviours: Vec<Behaviour>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    #[expect(clippy::disallowed_methods, reason = "the fake endpoint of a test")]
    let seen = tokio::spawn(async move {
        let mut seen = Vec::new();
        let mut open = Vec::new();
        for behaviour in behaviours {
            let (mut peer, _) = listener.accept().await.unwrap();
            seen.push(request(&mut peer).await);
            match behaviour {
                Behaviour::Answer(answer) => {
                    let _ = peer.write_all(&answer).await;
                    let _ = peer.shutdown().await;
                }
                Behaviour::Reset => peer.set_zero_linger().unwrap(),
                Behaviour::Silence => open.push(peer),
            }
        }
        seen
    });
    (origin, seen)
}

async fn request(peer: &mut TcpStream) -> String {
    let (head, body) = crate::net::tests::receive(peer).await;
    format!("{head}\r\n\r\n{body}")
}

fn answer(status: &str, body: &[u8]) -> Behaviour {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    Behaviour::Answer([head.as_bytes(), body].concat())
}

fn redactor() -> Arc<Redactor> {
    Arc::new(Redactor::new([(
        "ORDERS_KEY",
        &Secret::new("s3cr3t-s3cr3t".to_owned()),
    )]))
}

fn any() -> Value {
    json!({"type": "object", "properties": {
        "id": {"type": "string"}, "amount": {"type": "number"}, "note": {"type": "string"}}})
}

/// All tests share this value, because reading the machine's certificates is slow.
static NET: LazyLock<Net> = LazyLock::new(|| Net::new().unwrap());

fn tool_of(
    method: Method,
    url: String,
    effect: Effect,
    parameters: Value,
    timeout: Duration,
) -> Arc<dyn Tool> {
    let headers = BTreeMap::from([("X-Key".to_owned(), Secret::new("s3cr3t-s3cr3t".to_owned()))]);
    let settings = catalog::Settings {
        description: String::new(),
        effect,
        parameters: Some(parameters),
        summary: None,
        http: Some(Settings {
            method,
            url,
            headers,
            timeout,
        }),
        ..catalog::Settings::default()
    };
    built(settings)
}

fn built(settings: catalog::Settings) -> Arc<dyn Tool> {
    let mut mistakes = Mistakes::default();
    let tools = BTreeMap::from([("pay".to_owned(), settings)]);
    let catalog = Catalog::build(tools, &NET, &redactor(), &mut mistakes);
    assert_eq!(mistakes.found, []);
    Arc::clone(catalog.get("pay").unwrap().tool.as_ref().unwrap())
}

/// Asserts that an attempt ended before its request was sent.
fn assert_unsent(answer: &ToolAnswer) {
    assert!(
        matches!(answer, ToolAnswer::NotSent { content }
            if content.starts_with("The tool `pay` failed before anything was sent: ")),
        "{answer:?}"
    );
}

fn tool(method: Method, url: String) -> Arc<dyn Tool> {
    tool_of(method, url, Effect::Once, any(), Duration::from_secs(5))
}

fn invocation(text: &str) -> Invocation {
    Invocation {
        tenant: "acme".to_owned(),
        owner: "alice".to_owned(),
        task_id: TaskId(Uuid::from_u128(1)),
        call_id: CallId(Uuid::from_u128(2)),
        may_be_lost: true,
        arguments_text: text.to_owned(),
        arguments: serde_json::from_str(if text.is_empty() { "{}" } else { text }).unwrap(),
        decided_by: Some("jürgen 100%".to_owned()),
        traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
        permit: AttemptPermit::permitted_while(|| true),
        credentials: Credentials::default(),
        resume: None,
        late: crate::tool::LateAnswerCell::default(),
        raw: crate::tool::RawResultCell::default(),
    }
}

async fn answered(behaviour: Behaviour) -> ToolAnswer {
    let (origin, _seen) = endpoint(vec![behaviour]).await;
    let answer = tool(Method::POST, format!("{origin}/secret-path"))
        .call(&invocation("{}"))
        .await;
    let text = format!("{answer:?}");
    assert!(
        !text.contains("127.0.0.1") && !text.contains("secret-path"),
        "{text}"
    );
    answer
}

fn unknown(answer: &ToolAnswer) -> bool {
    matches!(answer, ToolAnswer::Unknown { problem } if problem.contains("`pay`"))
}

#[tokio::test]
async fn post_sends_the_models_text_unchanged_with_the_standard_headers() {
    let (origin, seen) = endpoint(vec![answer("200 OK", b"done"), answer("200 OK", b"")]).await;
    let tool = tool(Method::POST, format!("{origin}/orders/{{id}}/refunds"));
    let text = "{\"id\" : \"a/b\",\n  \"amount\":20.0 }";
    let done = tool.call(&invocation(text)).await;
    assert_eq!(
        done,
        ToolAnswer::Succeeded {
            content: "done".to_owned(),
            http_status: Some(200)
        }
    );
    let failed = tool.call(&invocation("")).await;
    assert!(
        matches!(failed, ToolAnswer::NotSent { .. }),
        "the id is missing: {failed:?}"
    );
    let other = tool_of(
        Method::PUT,
        format!("{origin}/x"),
        Effect::Idempotent,
        any(),
        Duration::from_secs(5),
    );
    other.call(&invocation("")).await;
    let seen = seen.await.unwrap();
    assert!(
        seen[0].starts_with("POST /orders/a%2Fb/refunds HTTP/1.1\r\n"),
        "{}",
        seen[0]
    );
    assert!(seen[0].ends_with(&format!("\r\n\r\n{text}")), "{}", seen[0]);
    for line in [
        "content-type: application/json",
        "x-key: s3cr3t-s3cr3t",
        "idempotency-key: 00000000-0000-0000-0000-000000000002",
        "holdpoint-tool-call-id: 00000000-0000-0000-0000-000000000002",
        "holdpoint-task-id: 00000000-0000-0000-0000-000000000001",
        "holdpoint-user: alice",
        "holdpoint-tenant: acme",
        "holdpoint-decided-by: j%C3%BCrgen%20100%25",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "content-length: 32",
    ] {
        assert!(
            seen[0].lines().any(|found| found == line),
            "{line} in {}",
            seen[0]
        );
    }
    assert!(
        seen[1].starts_with("PUT /x HTTP/1.1\r\n") && seen[1].ends_with("\r\n\r\n{}"),
        "{}",
        seen[1]
    );
}

#[tokio::test]
async fn get_puts_other_arguments_into_the_query_and_sends_no_body() {
    let (origin, seen) =
        endpoint(vec![answer("200 OK", b"[]"), answer("204 No Content", b"")]).await;
    let get = tool(Method::GET, format!("{origin}/orders/{{id}}?all=1"));
    get.call(&invocation(r#"{"id":"17","note":"a&b"}"#)).await;
    let delete = tool(Method::DELETE, format!("{origin}/orders"));
    let mut unheld = invocation("{}");
    (unheld.decided_by, unheld.traceparent) = (None, String::new());
    let gone = delete.call(&unheld).await;
    assert_eq!(
        gone,
        ToolAnswer::Succeeded {
            content: String::new(),
            http_status: Some(204)
        }
    );
    let seen = seen.await.unwrap();
    assert!(
        seen[0].starts_with("GET /orders/17?all=1&note=a%26b HTTP/1.1\r\n"),
        "{}",
        seen[0]
    );
    assert!(
        !seen[0].contains("content-type") && seen[0].ends_with("\r\n\r\n"),
        "{}",
        seen[0]
    );
    assert!(
        seen[1].starts_with("DELETE /orders HTTP/1.1\r\n"),
        "{}",
        seen[1]
    );
    assert!(
        !seen[1].contains("decided-by") && !seen[1].contains("traceparent"),
        "{}",
        seen[1]
    );
}

#[tokio::test]
async fn response_with_2xx_is_never_a_failure_and_a_long_one_is_cut() {
    let long = vec![b'x'; 3 * 1024 * 1024];
    let ToolAnswer::Succeeded {
        content,
        http_status,
    } = answered(answer("201 Created", &long)).await
    else {
        panic!("no success")
    };
    assert_eq!(http_status, Some(201));
    assert!(
        content.len() <= 1024 * 1024 && content.len() > 1024 * 1024 - 200,
        "{}",
        content.len()
    );
    assert!(content.ends_with("[cut: the result is longer than 1 MiB]"));
    let binary = answered(answer("200 OK", b"a\0b\xff\xfe")).await;
    let content = "a\u{FFFD}b\u{FFFD}\u{FFFD}".to_owned();
    assert_eq!(
        binary,
        ToolAnswer::Succeeded {
            content,
            http_status: Some(200)
        }
    );
}

#[tokio::test]
async fn secret_that_is_sent_back_is_redacted() {
    let echo = answered(answer(
        "200 OK",
        b"your key is s3cr3t-s3cr3t, czNjcjN0LXMzY3IzdA==",
    ))
    .await;
    let ToolAnswer::Succeeded { content, .. } = echo else {
        panic!("{echo:?}")
    };
    assert!(
        content.starts_with("your key is [secret ORDERS_KEY], [secret ORDERS_KEY]"),
        "{content}"
    );
    for pad in 2030..2050 {
        let body = format!("{}s3cr3t-s3cr3t{}", "x".repeat(pad), "y".repeat(500));
        let ToolAnswer::Failed { content, .. } =
            answered(answer("403 Forbidden", body.as_bytes())).await
        else {
            panic!("no failure")
        };
        assert!(!content.contains("s3c"), "{content}");
    }
}

#[tokio::test]
async fn built_in_endpoints_answer_without_a_network() {
    let parameters = json!({"type": "object", "properties": {"order": {"type": "integer"}, "amount": {"type": "number"}}});
    let url = "builtin:refunds/refund_payment".to_owned();
    let tool = tool_of(
        Method::POST,
        url,
        Effect::Once,
        parameters,
        Duration::from_secs(1),
    );
    assert_eq!(tool.spec().target, "POST builtin:refunds");
    let first = tool.call(&invocation(r#"{"order":17,"amount":120}"#)).await;
    assert!(
        matches!(&first, ToolAnswer::Succeeded { content, .. } if content.contains("refunded")),
        "{first:?}"
    );
    assert_eq!(
        tool.call(&invocation(r#"{"order":17,"amount":120}"#)).await,
        first
    );
    let missing = tool.call(&invocation(r#"{"order":0,"amount":120}"#)).await;
    assert!(
        matches!(
            missing,
            ToolAnswer::Failed {
                http_status: Some(404),
                ..
            }
        ),
        "{missing:?}"
    );
}

#[tokio::test]
async fn invalid_headers_are_mistakes() {
    let headers = BTreeMap::from([(
        "Authorization".to_owned(),
        Secret::new("Bearer {{credential:jira.token}}".to_owned()),
    )]);
    let settings = Settings {
        method: Method::POST,
        url: "http://127.0.0.1:9/".to_owned(),
        headers,
        timeout: Duration::from_secs(1),
    };
    let (checked, mistakes) = settings.checked();
    assert_eq!(mistakes.found, []);
    assert_eq!(
        checked.unwrap().credential_names(),
        BTreeSet::from(["jira".to_owned()])
    );
    let wrong = |name: &str, value: &str| {
        let headers = BTreeMap::from([(name.to_owned(), Secret::new(value.to_owned()))]);
        let (_, mistakes) = Settings {
            headers,
            ..settings.clone()
        }
        .checked();
        assert!(!format!("{mistakes:?}").contains("v4lue"), "{mistakes:?}");
        mistakes.found.len()
    };
    for (name, value) in [
        ("Authorization", "v4lue {{credential:jira}}"),
        ("Idempotency-Key", "v4lue"),
        ("holdpoint-user", "v4lue"),
        ("X Y", "v4lue"),
        ("X", "v4lue\r\nY: z"),
        ("Traceparent", "v4lue"),
        ("Content-Length", "1"),
    ] {
        assert_eq!(wrong(name, value), 1, "{name}");
    }
}
