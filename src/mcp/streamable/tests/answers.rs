//! Tests of the outcomes that follow from a server's answers, and of requests that a server makes
//! in its answers.

use std::sync::Mutex;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::super::content::NO_RESULT;
use super::super::super::fake::{Seen, endless, events};
use super::super::super::refusal::STREAM_ENDED;
use super::*;
use crate::secret::{Redactor, Secret};
use crate::tool::credential::Credentials;

const CANARY: &str = "can4ry-can4ry-can4ry";

/// Starts a server of the stateless revision, and calls it. The server answers the call with the
/// response of `with`. Returns the outcome.
async fn answered(
    with: impl Fn(&Seen) -> Option<Response> + Clone + Send + Sync + 'static,
) -> McpOutcome {
    let server = Fake::new(move |seen| modern(seen).or_else(|| with(seen))).await;
    let outcome = called(&server.client()).await;
    assert_eq!(server.calls().len(), 1, "a call is sent once");
    outcome
}

async fn answered_with(status: u16, body: &'static str) -> McpOutcome {
    answered(move |_| Some(answer(status, "application/json", body))).await
}

#[tokio::test]
async fn status_and_error_decide_about_the_outcome() {
    let error = |status: u16, code: i64| answered(move |seen| Some(seen.error(status, code)));
    for status in [301, 302, 307, 400, 404, 409, 422, 429] {
        let outcome = answered_with(status, "{}").await;
        assert!(
            matches!(outcome, McpOutcome::Failed(_)),
            "{status} {outcome:?}"
        );
    }
    for status in [500, 501, 503, 507] {
        let outcome = answered_with(status, "no").await;
        assert!(
            matches!(outcome, McpOutcome::Suspect(_)),
            "{status} {outcome:?}"
        );
    }
    for status in [502, 504] {
        assert!(matches!(
            answered_with(status, "").await,
            McpOutcome::Unknown(_)
        ));
        assert!(matches!(
            error(status, -32602).await,
            McpOutcome::Unknown(_)
        ));
    }
    for code in [-32700, -32600, -32601, -32602, -32020, -32021, -32022] {
        for status in [200, 400, 500] {
            let outcome = error(status, code).await;
            assert!(
                matches!(outcome, McpOutcome::Failed(_)),
                "{code} {outcome:?}"
            );
        }
    }
    for (status, code) in [(200, -32603), (400, -32000), (500, -32603)] {
        assert!(
            matches!(error(status, code).await, McpOutcome::Suspect(_)),
            "{code}"
        );
    }
    let unread = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}"#;
    assert!(matches!(
        answered_with(400, unread).await,
        McpOutcome::Failed(_)
    ));
    let failed = answered(|seen| {
        let text = json!([{"type": "text", "text": "no ticket"}]);
        Some(seen.result(&json!({"content": text, "isError": true})))
    });
    assert_eq!(failed.await, McpOutcome::Failed("no ticket".to_owned()));
}

#[tokio::test]
async fn answer_that_is_no_result_of_the_call_leaves_the_outcome_unknown() {
    for body in [
        "",
        "done",
        "{}",
        "[]",
        r#"{"jsonrpc":"2.0","id":"other","result":{"content":[]}}"#,
        r#"{"jsonrpc":"2.0","id":null,"result":{"content":[]}}"#,
        r#"{"jsonrpc":"2.0","id":"other","error":{"code":-32602}}"#,
        r#"{"jsonrpc":"2.0","id":"00000000-0000-0000-0000-000000000002","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":"00000000-0000-0000-0000-000000000002","result":{"content":[]}"#,
    ] {
        for (kind, text) in [
            ("application/json", body.to_owned()),
            ("text/event-stream", events(&[body.to_owned()])),
        ] {
            let outcome = answered(move |_| Some(answer(200, kind, text.clone()))).await;
            assert!(
                matches!(outcome, McpOutcome::Unknown(_)),
                "{body} {outcome:?}"
            );
        }
    }
}

#[tokio::test]
async fn characters_that_no_text_can_hold_are_replaced_in_an_answer_and_in_its_bytes() {
    for (kind, field) in [("application/json", ""), ("text/event-stream", "data: ")] {
        let server = Fake::new(move |seen| {
            let text = seen.result_text(&said("a?!"));
            let text = text.replace('?', "\\ud83d");
            let (before, after) = text.split_once('!').unwrap_or_default();
            let begin = [field, before].concat();
            let body = [begin.as_bytes(), b"\xff", after.as_bytes(), b"\n\n"].concat();
            modern(seen).or_else(|| Some(answer(200, kind, body)))
        })
        .await;
        let asking = OwnedCall::default();
        let outcome = server.client().call(asking.call()).await;
        assert_eq!(outcome, succeeded("a\u{FFFD}\u{FFFD}"), "{kind}");
        let raw: Value = serde_json::from_str(&asking.raw.take().unwrap()).unwrap();
        assert_eq!(raw, said("a\u{FFFD}\u{FFFD}"), "{kind}");
    }
}

#[tokio::test]
async fn result_with_the_status_of_a_failure_is_no_success() {
    for (status, suspect) in [(500, true), (400, false)] {
        let outcome = answered(move |seen| {
            let text = seen.result_text(&said("done"));
            Some(answer(status, "application/json", text))
        });
        let outcome = outcome.await;
        assert_eq!(
            matches!(outcome, McpOutcome::Suspect(_)),
            suspect,
            "{outcome:?}"
        );
        assert_eq!(
            matches!(outcome, McpOutcome::Failed(_)),
            !suspect,
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn redirect_is_not_followed() {
    let server = Fake::new(|seen| {
        let mut response = answer(307, "text/plain", "");
        let place = HeaderValue::from_static("/elsewhere");
        response.headers_mut().insert("location", place);
        modern(seen).or(Some(response))
    })
    .await;
    let told = "The call failed: the server answered 307, which is not followed.";
    let outcome = called(&server.client()).await;
    assert_eq!(outcome, McpOutcome::Failed(told.to_owned()));
    assert!(server.seen().iter().all(|seen| seen.path == "/mcp"));
}

#[tokio::test]
async fn answer_in_a_stream_counts_before_the_stream_ends() {
    let outcome = answered(|seen| {
        let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{}}"#;
        let other = r#"{"jsonrpc":"2.0","id":"other","result":{"content":[]}}"#;
        let result = seen.result_text(&said("done"));
        Some(endless(&[progress.to_owned(), other.to_owned(), result]))
    });
    assert_eq!(outcome.await, succeeded("done"));
}

#[tokio::test]
async fn stream_that_ends_is_cut_or_silent_leaves_the_outcome_unknown() {
    let without_answer = McpOutcome::Unknown(STREAM_ENDED.to_owned());
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#;
    let stream = events(&[notification.to_owned()]);
    let ended = answered(move |_| Some(answer(200, "text/event-stream", stream.clone())));
    assert_eq!(ended.await, without_answer);
    let half = answered(|seen| {
        let text = events(&[seen.result_text(&said("done"))]);
        Some(answer(200, "text/event-stream", text.trim_end().to_owned()))
    });
    assert_eq!(half.await, without_answer);
    let cut = answered(|_| {
        let broken = Err::<&str, _>(std::io::Error::other("cut"));
        let parts = futures_util::stream::iter([Ok("data: {"), broken]);
        Some(answer(200, "text/event-stream", Body::from_stream(parts)))
    });
    assert!(matches!(cut.await, McpOutcome::Unknown(_)));
    for begins in [false, true] {
        let silent = move || begins.then(|| endless(&[]));
        let server = Fake::new(move |seen| modern(seen).or_else(silent)).await;
        // Even on a busy machine, the server must receive the call within this time.
        let client = server.client_with(None, None, Duration::from_secs(2));
        let late = McpOutcome::Unknown(net::NO_ANSWER_IN_TIME.to_owned());
        assert_eq!(called(&client).await, late);
        assert_eq!(server.calls().len(), 1);
    }
}

#[tokio::test]
async fn message_over_16_mib_leaves_the_outcome_unknown() {
    for kind in ["application/json", "text/event-stream"] {
        let outcome = answered(move |_| {
            let begun = futures_util::stream::iter([Bytes::from_static(b"data: ")]);
            let spaces = || Bytes::from(vec![b' '; 64 * 1024]);
            let body = begun.chain(futures_util::stream::repeat_with(spaces));
            let body = Body::from_stream(body.map(Ok::<_, std::io::Error>));
            Some(answer(200, kind, body))
        });
        let unreadable = McpOutcome::Unknown(NO_RESULT.to_owned());
        assert_eq!(outcome.await, unreadable, "{kind}");
    }
}

#[tokio::test]
async fn answer_of_16_mib_of_json_is_read_and_a_longer_answer_is_not() {
    let unreadable = McpOutcome::Unknown(NO_RESULT.to_owned());
    for (length, expected) in [(16 << 20, succeeded("done")), ((16 << 20) + 1, unreadable)] {
        let outcome = answered(move |seen| {
            let json = seen.result_text(&said("done"));
            let body = " ".repeat(length - json.len()) + &json;
            Some(answer(200, "application/json", body))
        });
        assert_eq!(outcome.await, expected, "{length}");
    }
}

#[tokio::test]
async fn requests_of_a_server_in_its_answer_are_replied_to_while_the_call_waits() {
    let replies = Arc::new(Mutex::new(Vec::new()));
    let got = Arc::clone(&replies);
    let (all, mut here) = watch::channel(false);
    let server = Fake::new(move |seen| {
        if let Some(response) = older(seen, "s1") {
            return Some(response);
        }
        if seen.method().is_empty() {
            assert_eq!(seen.header("mcp-session-id"), Some("s1"));
            let mut got = got.lock().unwrap();
            got.push(seen.json());
            all.send_replace(got.len() == 4);
            return Some(answer(202, "text/plain", ""));
        }
        let methods = [
            "ping",
            "sampling/createMessage",
            "roots/list",
            "elicitation/create",
        ];
        let asked = methods.iter().enumerate().map(|(id, method)| {
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {}}).to_string()
        });
        Some(endless(&asked.collect::<Vec<_>>()))
    });
    let server = server.await;
    let client = server.client();
    tokio::select! {
        outcome = called(&client) => panic!("{outcome:?}"),
        waited = tokio::time::timeout(REQUEST_TIMEOUT, here.wait_for(|all| *all)) => assert!(waited.is_ok()),
    }
    let mut replies = replies.lock().unwrap().clone();
    replies.sort_by_key(|reply| reply["id"].as_u64());
    assert_eq!(replies[0]["result"], json!({}));
    assert_eq!(replies[1]["error"]["code"], -32601);
    assert_eq!(replies[2]["error"]["code"], -32601);
    assert_eq!(replies[3]["result"], json!({"action": "cancel"}));
}

/// Answers the requests of one call: the first with a form for a password and a question for a
/// person, the second with a form for a pin, the third with `last`. The answers in a request
/// (`inputResponses`) show which of the three requests it is.
fn asks_for_secrets(seen: &Seen, last: impl Fn(&Seen) -> Response) -> Response {
    let form = |field: &str| {
        let schema = json!({"type": "object", "properties": {field: {"type": "string"}}});
        let params = json!({"mode": "form", "message": "m", "requestedSchema": schema});
        json!({"method": "elicitation/create", "params": params})
    };
    let asks = |requests: Value| json!({"resultType": "input_required", "inputRequests": requests, "requestState": "s"});
    let answers = seen.json()["params"]["inputResponses"].clone();
    if answers.get("pin").is_some() {
        last(seen)
    } else if answers.get("folder").is_some() {
        seen.result(&asks(json!({"pin": form("pin")})))
    } else {
        let both = json!({"password": form("password"), "folder": form("folder")});
        seen.result(&asks(both))
    }
}

#[tokio::test]
async fn secret_that_was_declined_in_an_earlier_attempt_or_request_is_named_in_the_outcome() {
    let lasts: [fn(&Seen) -> Response; 4] = [
        |seen| seen.result(&said("done")),
        |seen| seen.error(200, -32602),
        |seen| seen.error(200, -32603),
        |_| answer(504, "text/plain", ""),
    ];
    for (index, last) in lasts.into_iter().enumerate() {
        let server =
            Fake::new(move |seen| modern(seen).or_else(|| Some(asks_for_secrets(seen, last))));
        let server = server.await;
        let client = server.client();
        let McpOutcome::Elicitation(asked) = called(&client).await else {
            panic!("it asks for a folder");
        };
        assert_eq!(asked.declined, ["password"]);
        let mut responses = asked.responses;
        responses.insert("folder".to_owned(), json!({"action": "decline"}));
        let resume = Resume {
            round: 1,
            request_state: None,
            responses,
            declined: asked.declined,
        };
        let asking = OwnedCall::default();
        let call = McpCall {
            resume: Some(resume),
            ..asking.call()
        };
        let outcome = format!("{:?}", client.call(call).await);
        let named = "the user for a secret in a form (`password`, `pin`)";
        assert!(outcome.contains(named), "{index} {outcome}");
        assert_eq!(server.calls().len(), 3, "{index}");
    }
}

async fn stateful() -> Fake {
    Fake::new(|seen| {
        let more = json!({"resultType": "input_required", "requestState": "s"});
        modern(seen).or_else(|| Some(seen.result(&more)))
    })
    .await
}

#[tokio::test]
async fn server_that_only_keeps_state_is_asked_a_hundred_times_with_growing_pauses() {
    let server = stateful().await;
    let client = server.client_with(None, None, Duration::from_mins(10));
    assert!(matches!(called(&client).await, McpOutcome::Unknown(_)));
    assert_eq!(server.calls().len(), 100);
    let pauses = server.pauses.0.lock().unwrap().clone();
    let expected = [50, 100, 200, 400, 800, 1600, 2000, 2000].map(Duration::from_millis);
    assert_eq!(pauses[..8], expected);
}

#[tokio::test]
async fn state_is_kept_no_longer_than_the_timeout() {
    let server = stateful().await;
    let client = server.client_with(None, None, Duration::from_millis(1500));
    // `list` begins the conversation, so the call's timeout does not include this beginning.
    assert!(client.list(&HeaderMap::new()).await.is_err());
    assert!(matches!(called(&client).await, McpOutcome::Unknown(_)));
    // The pause after the sixth call, 1600 ms, is longer than the timeout.
    assert!(server.calls().len() <= 6);
}

#[tokio::test]
async fn later_leg_that_cannot_be_sent_leaves_the_outcome_unknown() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let result = json!({"resultType": "input_required", "requestState": "s"});
    let id = "00000000-0000-0000-0000-000000000002";
    let more = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
    let versions = json!({"supportedVersions": ["2026-07-28"]});
    let found = json!({"jsonrpc": "2.0", "id": "discover", "result": versions}).to_string();
    let serving = async move {
        let mut listener = Some(listener);
        for body in [found, more] {
            let (mut peer, _) = listener.as_ref().unwrap().accept().await.unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"}}}") {
                assert_ne!(peer.read_buf(&mut read).await.unwrap(), 0);
            }
            // Only `found` contains `supported`, so the listener closes before `more` answers the
            // attempt's first request. The connection for the second request is then refused.
            listener = listener.filter(|_| body.contains("supported"));
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}");
            let all = format!("{head}\r\n\r\n{body}");
            peer.write_all(all.as_bytes()).await.unwrap();
        }
    };
    let mut server = modern_server().await;
    server.url = url.parse().unwrap();
    let client = server.client();
    let (outcome, ()) = tokio::join!(called(&client), serving);
    let refused = "the connection was refused";
    assert_eq!(outcome, McpOutcome::Unknown(refused.to_owned()));
}

#[tokio::test]
async fn secret_that_a_server_sends_back_is_in_no_outcome() {
    let echoes: [fn(&Seen) -> Option<Response>; 7] = [
        |seen| Some(seen.result(&said(&format!("it is {CANARY}")))),
        |seen| Some(seen.result(&json!({"content": [], "structuredContent": {CANARY: CANARY}}))),
        |seen| Some(seen.result(&json!({"content": [{"type": CANARY}], "isError": true}))),
        |seen| {
            let error = json!({"code": -32000, "message": CANARY});
            let text = json!({"jsonrpc": "2.0", "id": seen.json()["id"], "error": error});
            Some(answer(200, "application/json", text.to_string()))
        },
        |seen| Some(endless(&[seen.result_text(&said(CANARY))])),
        |_| Some(answer(500, "text/plain", CANARY)),
        |seen| Some(seen.result(&json!({"resultType": CANARY}))),
    ];
    let mut credentials = Credentials::default();
    let fields = [("token".to_owned(), Secret::new(CANARY.to_owned()))];
    credentials.insert("tickets", fields.into());
    let operator = Redactor::new([("TOKEN", &Secret::new(CANARY.to_owned()))]);
    for redactor in [operator, credentials.redactor()] {
        for (index, echo) in echoes.into_iter().enumerate() {
            let server = Fake::new(move |seen| modern(seen).or_else(|| echo(seen))).await;
            let asking = OwnedCall {
                headers: headers("authorization", CANARY),
                redactor: redactor.merged_with(&Redactor::default()),
                ..OwnedCall::default()
            };
            let outcome = server.client().call(asking.call()).await;
            assert_eq!(server.calls()[0].header("authorization"), Some(CANARY));
            let text = format!("{outcome:?}");
            assert!(!text.contains("can4ry"), "{index} {text}");
        }
    }
    let server = Fake::new(|seen| {
        let error = json!({"code": -32000, "message": CANARY});
        let text = json!({"jsonrpc": "2.0", "id": seen.json()["id"], "error": error});
        modern(seen).or_else(|| Some(answer(200, "application/json", text.to_string())))
    });
    let (client, sent) = (server.await.client(), headers("authorization", CANARY));
    let failure = client.list(&sent).await.unwrap_err();
    assert!(!failure.contains("can4ry"), "{failure}");
}
