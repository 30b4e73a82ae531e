//! Tests of tokens from an endpoint on loopback.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use axum::response::Response;
use futures_util::future::join_all;
use reqwest::header::HeaderMap;
use serde_json::json;

use super::super::client::McpOutcome;
use super::super::fake::{
    Fake, NET, OwnedCall, Seen, answer, called, modern, older, said, succeeded,
};
use super::*;

const TOKEN: &str = "t0ken-t0ken";

fn granted(number: usize, lasts: u64) -> Response {
    let token = format!("{TOKEN}-{number}");
    let body = json!({"access_token": token, "token_type": "bearer", "expires_in": lasts});
    answer(200, "application/json", body.to_string())
}

/// Starts a server that issues tokens with a lifetime of `lasts` seconds. `call` returns the answer
/// to each call.
async fn server(
    lasts: u64,
    call: impl Fn(&Seen) -> Option<Response> + Clone + Send + Sync + 'static,
) -> Fake {
    issuing(lasts, move |seen| modern(seen).or_else(|| call(seen))).await
}

/// Starts a server that issues tokens with a lifetime of `lasts` seconds, and that answers all
/// other requests with `other`.
async fn issuing(
    lasts: u64,
    other: impl Fn(&Seen) -> Option<Response> + Clone + Send + Sync + 'static,
) -> Fake {
    let number = Arc::new(AtomicUsize::new(0));
    Fake::new(move |seen| {
        if seen.path == "/token" {
            return Some(granted(number.fetch_add(1, Ordering::SeqCst) + 1, lasts));
        }
        other(seen)
    })
    .await
}

fn fetches(server: &Fake) -> usize {
    server
        .seen()
        .iter()
        .filter(|seen| seen.path == "/token")
        .count()
}

fn client_of(server: &Fake) -> super::super::client::Client {
    server.client_with(Some(server.oauth()), None, Duration::from_secs(20))
}

#[tokio::test]
async fn ten_concurrent_calls_share_one_token() {
    let server = server(3600, |seen| Some(seen.result(&said("done")))).await;
    let client = client_of(&server);
    let outcomes = join_all((0..10).map(|_| called(&client))).await;
    assert_eq!(outcomes, vec![succeeded("done"); 10]);
    assert_eq!(fetches(&server), 1);
    for call in server.calls() {
        assert_eq!(call.header("authorization"), Some("Bearer t0ken-t0ken-1"));
    }
    let fetch = server
        .seen()
        .into_iter()
        .find(|seen| seen.path == "/token")
        .unwrap();
    let form =
        "grant_type=client_credentials&scope=a%20b&resource=https%3A%2F%2Fmcp.acme.com%2Fmcp";
    assert_eq!(fetch.body, form);
    // The Base64 text encodes `hold%20point:cl1ent-s3cret`.
    let basic = "Basic aG9sZCUyMHBvaW50OmNsMWVudC1zM2NyZXQ=";
    assert_eq!(fetch.header("authorization"), Some(basic));
}

#[tokio::test]
async fn token_is_renewed_a_minute_before_its_end() {
    for (lasts, fetched) in [(60, 3), (3600, 1)] {
        let lasts = Arc::new(AtomicU64::new(lasts));
        let number = AtomicUsize::new(0);
        let number = Arc::new(number);
        let server = Fake::new(move |_| {
            let lasts = lasts.load(Ordering::SeqCst);
            Some(granted(number.fetch_add(1, Ordering::SeqCst), lasts))
        })
        .await;
        let tokens = Tokens::new(server.oauth());
        for _ in 0..3 {
            tokens.token(&NET).await.unwrap();
        }
        assert_eq!(fetches(&server), fetched);
    }
}

#[tokio::test]
async fn refused_token_is_replaced_once_and_the_call_repeated_once() {
    let renewed = server(3600, |seen| {
        if seen.header("authorization") == Some("Bearer t0ken-t0ken-1") {
            return Some(answer(401, "text/plain", ""));
        }
        Some(seen.result(&said("done")))
    })
    .await;
    assert_eq!(called(&client_of(&renewed)).await, succeeded("done"));
    assert_eq!((fetches(&renewed), renewed.calls().len()), (2, 2));

    let refusing = server(3600, |_| Some(answer(401, "text/plain", TOKEN))).await;
    let told = "The call failed: the server answered 401 to the headers `Authorization`.";
    assert_eq!(
        called(&client_of(&refusing)).await,
        McpOutcome::Failed(told.to_owned())
    );
    assert_eq!((fetches(&refusing), refusing.calls().len()), (2, 2));
}

fn has_first_token(seen: &Seen) -> bool {
    seen.header("authorization") == Some("Bearer t0ken-t0ken-1")
}

#[tokio::test]
async fn token_refused_while_a_conversation_begins_is_replaced_once() {
    let newest = issuing(3600, |seen| {
        if has_first_token(seen) {
            return Some(answer(401, "text/plain", ""));
        }
        modern(seen).or_else(|| Some(seen.result(&said("done"))))
    });
    let stateful = issuing(3600, |seen| {
        if seen.method() == "initialize" && has_first_token(seen) {
            return Some(seen.error(401, -32000));
        }
        older(seen, "s1").or_else(|| Some(seen.result(&said("done"))))
    });
    for server in [newest.await, stateful.await] {
        assert_eq!(called(&client_of(&server)).await, succeeded("done"));
        assert_eq!((fetches(&server), server.calls().len()), (2, 1));
    }

    let refusing = issuing(3600, |_| Some(answer(401, "text/plain", TOKEN))).await;
    let told = "the server answered 401 to the headers `Authorization`";
    assert_eq!(
        called(&client_of(&refusing)).await,
        McpOutcome::NotSent(told.to_owned())
    );
    assert_eq!((fetches(&refusing), refusing.calls().len()), (2, 0));
}

/// Starts a server with sessions. The test sets the returned flag to simulate a restart of the
/// server: from then on, the server refuses the first token and the session `s1`.
async fn restarting() -> (Fake, Arc<AtomicBool>) {
    let restarted = Arc::new(AtomicBool::new(false));
    let is_restarted = Arc::clone(&restarted);
    let server = issuing(3600, move |seen| {
        let is_restarted = is_restarted.load(Ordering::SeqCst);
        if is_restarted && has_first_token(seen) {
            return Some(answer(401, "text/plain", ""));
        }
        let session = if is_restarted { "s2" } else { "s1" };
        if let Some(begun) = older(seen, session) {
            return Some(begun);
        }
        if seen.header("mcp-session-id") != Some(session) {
            return Some(seen.error(404, -32001));
        }
        let lists = seen.method() == "tools/list";
        let tools = json!({"tools": []});
        Some(seen.result(&if lists { tools } else { said("done") }))
    })
    .await;
    (server, restarted)
}

#[tokio::test]
async fn token_and_session_lost_together_are_both_replaced_and_the_call_is_executed_once() {
    let (server, restarted) = restarting().await;
    let client = client_of(&server);
    assert_eq!(called(&client).await, succeeded("done"));
    restarted.store(true, Ordering::SeqCst);
    assert_eq!(called(&client).await, succeeded("done"));
    let calls = server.calls();
    let executed = calls
        .iter()
        .filter(|call| call.header("mcp-session-id") == Some("s2"));
    assert_eq!((fetches(&server), executed.count()), (2, 1));
    assert_eq!(calls.len(), 4, "the first, two refused, the repetition");

    let (server, restarted) = restarting().await;
    let client = client_of(&server);
    assert_eq!(called(&client).await, succeeded("done"));
    restarted.store(true, Ordering::SeqCst);
    let listing = client.list(&HeaderMap::new()).await.unwrap();
    assert!(listing.tools.is_empty());
    assert_eq!(fetches(&server), 2);
}

#[tokio::test]
async fn token_that_a_server_sends_back_is_in_no_outcome() {
    let echoes: [fn(&Seen) -> Option<Response>; 2] = [
        |seen| Some(seen.result(&said(seen.header("authorization").unwrap()))),
        |seen| {
            let message = seen.header("authorization").unwrap();
            let error = json!({"code": -32000, "message": message});
            let text = json!({"jsonrpc": "2.0", "id": seen.json()["id"], "error": error});
            Some(answer(200, "application/json", text.to_string()))
        },
    ];
    let questions = |seen: &Seen| {
        let message = seen.header("authorization").unwrap();
        let field = json!({"type": "string", "title": message, "default": message});
        let schema = json!({"type": "object", "properties": {"a": field}});
        let params = json!({"message": message, "requestedSchema": schema});
        let asked = json!({"k": {"method": "elicitation/create", "params": params}});
        Some(seen.result(&json!({"resultType": "input_required", "inputRequests": asked})))
    };
    let asking = server(3600, questions).await;
    let outcome = called(&client_of(&asking)).await;
    assert!(matches!(outcome, McpOutcome::Elicitation(_)), "{outcome:?}");
    let outcome = format!("{outcome:?}");
    assert_eq!(outcome.matches("[secret the server's token]").count(), 3);
    assert!(!outcome.contains("t0ken"), "{outcome}");
    for echo in echoes {
        let server = server(3600, echo).await;
        let outcome = format!("{:?}", called(&client_of(&server)).await);
        assert!(outcome.contains("[secret the server's token]"), "{outcome}");
        assert!(!outcome.contains("t0ken"), "{outcome}");
    }
}

#[tokio::test]
async fn token_that_was_replaced_is_in_no_outcome() {
    // A token that lasts a minute is used once, so each call has a new token.
    let quoting = server(60, |seen| {
        let tokens = [1, 2, 3].map(|number| format!("{TOKEN}-{number}"));
        Some(seen.result(&said(&tokens.join(" "))))
    })
    .await;
    let client = client_of(&quoting);
    called(&client).await;
    called(&client).await;
    let redacted = ["[secret the server's token]"; 3].join(" ");
    assert_eq!(called(&client).await, succeeded(&redacted));
    assert_eq!(fetches(&quoting), 3);
}

#[tokio::test]
async fn last_32_tokens_and_the_token_of_the_request_are_redacted() {
    let server = server(60, |_| None).await;
    let tokens = Tokens::new(server.oauth());
    let first = tokens.token(&NET).await.unwrap();
    for _ in 2..=33 {
        tokens.token(&NET).await.unwrap();
    }
    let found_by = |redactor: Redactor| {
        let is_found = |number: &i32| redactor.finds_secret_in(&format!("{TOKEN}-{number}"));
        (1..=33).filter(is_found).collect::<Vec<_>>()
    };
    let last: Vec<_> = (2..=33).collect();
    assert_eq!(found_by(tokens.redactor(None)), last);
    let all: Vec<_> = (1..=33).collect();
    assert_eq!(found_by(tokens.redactor(Some(&first))), all);
}

#[test]
fn token_is_kept_for_the_redaction_until_it_expires() {
    let (mut issued, began) = (IssuedTokens::default(), Instant::now());
    for (number, minutes, kept) in [(1, 0, 1), (2, 4, 2), (3, 6, 2), (4, 30, 1)] {
        let now = began + Duration::from_mins(minutes);
        let token = AccessToken {
            text: Secret::new(format!("{TOKEN}-{number}")),
            until: now + DEFAULT_LIFETIME - RENEWAL_MARGIN,
        };
        issued.add(&token, now);
        assert_eq!(issued.0.len(), kept, "{number}");
    }
}

#[tokio::test]
async fn token_without_a_type_is_a_bearer_token() {
    let server = Fake::new(|seen| {
        if seen.path == "/token" {
            let token = json!({"access_token": TOKEN}).to_string();
            return Some(answer(200, "application/json", token));
        }
        modern(seen).or_else(|| Some(seen.result(&said("done"))))
    })
    .await;
    assert_eq!(called(&client_of(&server)).await, succeeded("done"));
    let sent = server.calls()[0].header("authorization").map(str::to_owned);
    assert_eq!(sent, Some(format!("Bearer {TOKEN}")));
}

#[tokio::test]
async fn endpoint_without_a_usable_token_lets_no_call_out() {
    let answers: [fn() -> Response; 7] = [
        || {
            answer(
                400,
                "application/json",
                r#"{"error":"invalid_client","x":"t0ken-t0ken"}"#,
            )
        },
        || answer(500, "text/plain", TOKEN),
        || answer(302, "text/plain", TOKEN),
        || answer(200, "text/plain", TOKEN),
        || {
            answer(
                200,
                "application/json",
                r#"{"access_token":"t0ken-t0ken","token_type":"mac"}"#,
            )
        },
        || {
            answer(
                200,
                "application/json",
                r#"{"access_token":"t0ken-t0ken\n","token_type":"Bearer"}"#,
            )
        },
        || {
            answer(
                200,
                "application/json",
                format!("\"{}\"", "t0ken".repeat(16 * 1024)),
            )
        },
    ];
    for (index, token) in answers.into_iter().enumerate() {
        let server = Fake::new(move |seen| {
            if seen.path == "/token" {
                return Some(token());
            }
            modern(seen).or_else(|| Some(seen.result(&said("done"))))
        })
        .await;
        let client = client_of(&server);
        let McpOutcome::NotSent(why) = client.call(OwnedCall::default().call()).await else {
            panic!("sent: {index}")
        };
        assert!(!why.contains("t0ken") && !why.contains("s3cret"), "{why}");
        assert_eq!(server.calls().len(), 0, "{index}");
    }
}
