//! Tests of an MCP client whose server is on loopback: the requests, the permits to send calls, and
//! the conversations.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::super::fake::{Fake, NET, OwnedCall, answer, called, modern, older, said, succeeded};
use super::*;
use crate::tool::AttemptPermit;

mod answers;
mod conversations;

const SHORT: Duration = Duration::from_millis(100);

async fn modern_server() -> Fake {
    Fake::new(|seen| modern(seen).or_else(|| Some(seen.result(&said("done"))))).await
}

async fn older_server() -> Fake {
    Fake::new(|seen| older(seen, "s1").or_else(|| Some(seen.result(&said("done"))))).await
}

fn streamable(server: &Fake) -> Streamable {
    let (fixed, changes) = (headers("x-key", "k3y"), watch::channel(0).0);
    Streamable::new(server.url.clone(), fixed, None, None, &NET, changes)
}

fn headers(name: &'static str, value: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(
        HeaderName::from_static(name),
        HeaderValue::from_static(value),
    )])
}

#[tokio::test]
async fn call_sends_the_approved_bytes_with_its_id_to_a_stateless_server() {
    let server = modern_server().await;
    let text = "{ \"b\" : 1.0,\n\t\"a\": \"\\u00e9/\\/\", \"n\":1e2 , \"region\":\"é\" }";
    let properties =
        json!({"region": {"type": "string", "x-mcp-header": "Region"}, "a": {"type": "string"}});
    let asking = OwnedCall {
        arguments: text.to_owned(),
        schema: json!({"type": "object", "properties": properties}),
        headers: headers("x-key", "k3y"),
        ..OwnedCall::default()
    };
    assert_eq!(server.client().call(asking.call()).await, succeeded("done"));
    assert_eq!(server.methods(), ["server/discover", "tools/call"]);
    let [call] = &*server.calls() else {
        panic!("one call")
    };
    assert!(
        call.body.contains(&format!("\"arguments\":{text},")),
        "{}",
        call.body
    );
    let id = "00000000-0000-0000-0000-000000000002";
    let json = call.json();
    assert_eq!(json["id"], id);
    assert_eq!(json["params"]["name"], "ticket.close");
    let meta = &json["params"]["_meta"];
    assert_eq!(meta["holdpoint/call"], id);
    assert_eq!(
        meta["io.modelcontextprotocol/protocolVersion"],
        "2026-07-28"
    );
    for (name, value) in [
        ("idempotency-key", Some(id)),
        ("accept", Some("application/json, text/event-stream")),
        ("content-type", Some("application/json")),
        ("mcp-protocol-version", Some("2026-07-28")),
        ("mcp-method", Some("tools/call")),
        ("mcp-name", Some("ticket.close")),
        ("mcp-param-region", Some("=?base64?w6k=?=")),
        ("x-key", Some("k3y")),
        ("mcp-param-a", None),
        ("mcp-session-id", None),
        ("authorization", None),
    ] {
        assert_eq!(call.header(name), value, "{name}");
    }
}

#[tokio::test]
async fn call_to_an_older_server_is_in_its_session_and_has_no_newer_header() {
    let server = older_server().await;
    let client = server.client();
    assert_eq!(called(&client).await, succeeded("done"));
    assert_eq!(called(&client).await, succeeded("done"));
    let methods = [
        "server/discover",
        "initialize",
        "notifications/initialized",
        "tools/call",
        "tools/call",
    ];
    assert_eq!(server.methods(), methods);
    let seen = server.seen();
    assert_eq!(seen[1].header("mcp-session-id"), None);
    assert_eq!(seen[1].json()["params"]["protocolVersion"], "2025-11-25");
    assert_eq!(seen[2].json().get("id"), None);
    for message in &seen[2..] {
        assert_eq!(message.header("mcp-session-id"), Some("s1"));
        assert_eq!(message.header("mcp-protocol-version"), Some("2025-06-18"));
        assert_eq!(message.header("mcp-name"), None);
        assert_eq!(message.header("mcp-method"), None);
    }
    client.close(&HeaderMap::new()).await;
    let last = server.seen().pop().unwrap();
    assert_eq!(
        (last.http.as_str(), last.header("mcp-session-id")),
        ("DELETE", Some("s1"))
    );
}

#[tokio::test]
async fn session_is_ended_with_the_headers_of_the_operator_or_a_token() {
    let server = Fake::new(|seen| {
        if seen.path == "/token" {
            let token = json!({"access_token": "t0ken-t0ken", "token_type": "bearer"});
            return Some(answer(200, "application/json", token.to_string()));
        }
        older(seen, "s1").or_else(|| Some(seen.result(&said("done"))))
    })
    .await;
    let operator = headers("authorization", "k3y-k3y-k3y");
    let oauth = server.client_with(Some(server.oauth()), None, REQUEST_TIMEOUT);
    for (client, headers, sent) in [
        (server.client(), operator, "k3y-k3y-k3y"),
        (oauth, HeaderMap::new(), "Bearer t0ken-t0ken"),
    ] {
        let asking = OwnedCall {
            headers: headers.clone(),
            ..OwnedCall::default()
        };
        assert_eq!(client.call(asking.call()).await, succeeded("done"));
        client.close(&headers).await;
        let last = server.seen().pop().unwrap();
        let version = last.header("mcp-protocol-version");
        assert_eq!(
            (last.http.as_str(), version),
            ("DELETE", Some("2025-06-18"))
        );
        assert_eq!(last.header("authorization"), Some(sent));
    }
}

#[tokio::test]
async fn listing_whose_token_is_refused_ends_in_time_while_another_token_is_fetched() {
    let fetches = Arc::new(AtomicUsize::new(0));
    let server = Fake::new(move |seen| {
        if seen.path != "/token" {
            return modern(seen).or_else(|| Some(answer(401, "text/plain", "")));
        }
        // A token that lasts a minute is used once. The second fetch gets no answer.
        let token =
            json!({"access_token": "t0ken-t0ken", "token_type": "bearer", "expires_in": 60});
        let is_first = fetches.fetch_add(1, Ordering::SeqCst) == 0;
        is_first.then(|| answer(200, "application/json", token.to_string()))
    })
    .await;
    let (oauth, changes) = (Some(Box::new(server.oauth())), watch::channel(0).0);
    let none = HeaderMap::new();
    let http = Streamable::new(server.url.clone(), none.clone(), oauth, None, &NET, changes);
    // The listing is polled first, so it gets the first token. The second fetch follows at once.
    tokio::select! {
        biased;
        listed = http.list(&none, Instant::now() + Duration::from_secs(1)) => {
            assert!(listed.is_err());
        }
        _ = http.unbegun(&none) => panic!("the listing waits for the fetch"),
    }
}

#[tokio::test]
async fn server_that_refuses_to_be_discovered_is_spoken_to_in_an_older_revision() {
    type Refusal = fn(&super::super::fake::Seen) -> Response;
    use axum::response::Response;
    let refusals: [Refusal; 8] = [
        |seen| seen.error(200, -32601),
        |seen| seen.error(404, -32601),
        |seen| seen.error(400, -32022),
        |_| answer(400, "text/plain", "Bad Request: no session"),
        |_| answer(404, "text/html", "<h1>no</h1>"),
        |_| answer(405, "text/plain", ""),
        |seen| seen.result(&json!({"supportedVersions": ["2027-01-01"]})),
        |seen| seen.result(&json!({})),
    ];
    for (index, refusal) in refusals.into_iter().enumerate() {
        let server = Fake::new(move |seen| match seen.method().as_str() {
            "server/discover" => Some(refusal(seen)),
            _ => older(seen, "s1").or_else(|| Some(seen.result(&said("done")))),
        })
        .await;
        assert_eq!(called(&server.client()).await, succeeded("done"), "{index}");
        assert_eq!(server.calls().len(), 1, "{index}");
    }
}

#[tokio::test]
async fn server_that_is_silent_when_discovered_is_spoken_to_in_an_older_revision() {
    let server = Fake::new(|seen| match seen.method().as_str() {
        "server/discover" => None,
        _ => older(seen, "s1").or_else(|| Some(seen.result(&said("done")))),
    })
    .await;
    let mut http = streamable(&server);
    assert_eq!(http.probe_timeout, PROBE_TIMEOUT);
    http.probe_timeout = SHORT;
    let asking = OwnedCall::default();
    let outcome = http.call(&asking.call(), None, REQUEST_TIMEOUT, 0).await;
    assert_eq!(outcome, succeeded("done"));
}

#[tokio::test]
async fn server_that_was_silent_when_discovered_is_discovered_again_after_it_was_initialized() {
    let probes = Arc::new(AtomicUsize::new(0));
    let server = Fake::new(move |seen| {
        if seen.method() == "server/discover" && probes.fetch_add(1, Ordering::SeqCst) == 0 {
            return None;
        }
        let none = || Some(seen.result(&json!({"tools": [], "resultType": "complete"})));
        modern(seen).or_else(|| older(seen, "s1")).or_else(none)
    })
    .await;
    let mut http = streamable(&server);
    // Even on a busy machine, the server must answer the second `server/discover` within this time.
    http.probe_timeout = Duration::from_secs(2);
    let headers = HeaderMap::new();
    let listing = http.list(&headers, Instant::now() + REQUEST_TIMEOUT);
    assert_eq!(listing.await.unwrap().revision, Revision::July2026);
}

#[tokio::test]
async fn server_that_trickles_while_a_conversation_begins_is_given_up() {
    let server = Fake::new(|_| {
        use futures_util::StreamExt as _;
        let trickle = futures_util::stream::repeat(()).then(|()| async {
            tokio::time::timeout(SHORT / 4, std::future::pending::<()>())
                .await
                .ok();
            Ok::<_, std::io::Error>(": still there\n")
        });
        let body = axum::body::Body::from_stream(trickle);
        Some(answer(200, "text/event-stream", body))
    })
    .await;
    let mut http = streamable(&server);
    http.probe_timeout = SHORT;
    let unbegun = http.unbegun(&HeaderMap::new()).await.unwrap();
    let discovered = tokio::time::timeout(REQUEST_TIMEOUT, http.discover(&unbegun))
        .await
        .unwrap();
    assert_eq!(discovered.unwrap_err(), net::NO_ANSWER_IN_TIME);
}

#[tokio::test]
async fn server_that_hangs_for_one_user_delays_no_call_of_another() {
    let (asked, mut hangs) = watch::channel(false);
    let server = Fake::new(move |seen| {
        if seen.header("x-user") == Some("alice") {
            asked.send_replace(true);
            return None;
        }
        modern(seen).or_else(|| Some(seen.result(&said("done"))))
    })
    .await;
    let client = server.client();
    let asking = |user| OwnedCall {
        headers: headers("x-user", user),
        ..OwnedCall::default()
    };
    let (alice, bob) = (asking("alice"), asking("bob"));
    let second = async {
        hangs.wait_for(|hangs| *hangs).await.unwrap();
        client.call(bob.call()).await
    };
    tokio::select! {
        outcome = client.call(alice.call()) => panic!("{outcome:?}"),
        outcome = second => assert_eq!(outcome, succeeded("done")),
    }
}

#[tokio::test]
async fn call_whose_conversation_does_not_begin_in_its_time_is_not_sent() {
    let server = Fake::new(|_| None).await;
    let client = server.client_with(None, None, SHORT);
    let outcome = tokio::time::timeout(PROBE_TIMEOUT, called(&client)).await;
    let late = McpOutcome::NotSent(net::NO_ANSWER_IN_TIME.to_owned());
    assert_eq!(outcome.unwrap(), late);
}

#[tokio::test]
async fn refused_credentials_name_their_headers_and_never_a_value() {
    for status in [401, 403] {
        let server = Fake::new(move |seen| {
            assert_ne!(seen.method(), "tools/call");
            Some(answer(status, "text/plain", "k3y-k3y-k3y"))
        })
        .await;
        let asking = OwnedCall {
            headers: headers("x-key", "k3y-k3y-k3y"),
            ..OwnedCall::default()
        };
        let client = server.client();
        let told = format!("the server answered {status} to the headers `X-Key`");
        assert_eq!(
            client.call(asking.call()).await,
            McpOutcome::NotSent(told.clone())
        );
        assert_eq!(client.list(&asking.headers).await.unwrap_err(), told);
        let McpOutcome::NotSent(none) = called(&client).await else {
            panic!("sent")
        };
        assert!(
            none.ends_with("and no header for it is configured"),
            "{none}"
        );
        assert_eq!(server.methods(), ["server/discover"; 3]);
    }
}

#[tokio::test]
async fn wrong_hint_costs_a_request_and_no_call() {
    let new = Fake::new(|seen| match seen.method().as_str() {
        "initialize" => Some(seen.error(404, -32601)),
        _ => modern(seen).or_else(|| Some(seen.result(&said("done")))),
    })
    .await;
    let timeout = Duration::from_secs(20);
    let client = new.client_with(None, Some(Revision::November2025), timeout);
    assert_eq!(called(&client).await, succeeded("done"));
    assert_eq!(
        new.methods(),
        ["initialize", "server/discover", "tools/call"]
    );

    let old = older_server().await;
    let client = old.client_with(None, Some(Revision::July2026), timeout);
    assert_eq!(called(&client).await, succeeded("done"));
    assert_eq!(old.calls().len(), 1);

    let right = older_server().await;
    let client = right.client_with(None, Some(Revision::June2025), timeout);
    assert_eq!(called(&client).await, succeeded("done"));
    assert_eq!(right.methods()[0], "initialize");

    let stranger = Fake::new(|seen| match seen.method().as_str() {
        "server/discover" => Some(seen.error(200, -32601)),
        _ => Some(seen.result(&json!({"protocolVersion": "2024-11-05"}))),
    })
    .await;
    assert!(matches!(
        called(&stranger.client()).await,
        McpOutcome::NotSent(_)
    ));
    assert_eq!(stranger.calls().len(), 0);
}

#[tokio::test]
async fn lost_session_is_begun_anew_and_the_call_is_executed_once() {
    let (begun, executed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (starts, runs) = (Arc::clone(&begun), Arc::clone(&executed));
    let server = Fake::new(move |seen| {
        if seen.method() == "initialize" {
            let number = starts.fetch_add(1, Ordering::SeqCst) + 1;
            return older(seen, &format!("s{number}"));
        }
        if let Some(response) = older(seen, "") {
            return Some(response);
        }
        if seen.header("mcp-session-id") != Some("s2") {
            return Some(seen.error(404, -32001));
        }
        runs.fetch_add(1, Ordering::SeqCst);
        Some(seen.result(&said("done")))
    })
    .await;
    let client = server.client();
    assert_eq!(called(&client).await, succeeded("done"));
    assert_eq!(begun.load(Ordering::SeqCst), 2);
    assert_eq!(executed.load(Ordering::SeqCst), 1);
    let keys: Vec<_> = server
        .calls()
        .iter()
        .map(|call| call.header("idempotency-key").map(str::to_owned))
        .collect();
    assert_eq!((keys.len(), keys[0] == keys[1]), (2, true));
}

#[tokio::test]
async fn call_whose_404_names_its_own_request_is_not_sent_again() {
    let server =
        Fake::new(|seen| older(seen, "s1").or_else(|| Some(seen.error(404, -32000)))).await;
    let outcome = called(&server.client()).await;
    assert!(matches!(outcome, McpOutcome::Suspect(_)), "{outcome:?}");
    assert_eq!(server.calls().len(), 1);
}

#[tokio::test]
async fn session_that_is_always_lost_ends_after_one_repetition() {
    let server = Fake::new(|seen| {
        older(seen, "s1").or_else(|| Some(answer(404, "text/plain", "no session")))
    })
    .await;
    let McpOutcome::Failed(text) = called(&server.client()).await else {
        panic!("no failure")
    };
    assert_eq!(text, "The call failed: the server answered 404.");
    assert_eq!(server.calls().len(), 2);
}

#[tokio::test]
async fn sessions_of_two_users_are_never_shared() {
    let begun = Arc::new(AtomicUsize::new(0));
    let server = Fake::new(move |seen| {
        let number = begun.fetch_add(usize::from(seen.method() == "initialize"), Ordering::SeqCst);
        older(seen, &format!("s{number}")).or_else(|| Some(seen.result(&said("done"))))
    })
    .await;
    let client = server.client();
    for user in ["alice", "bob", "alice", "bob"] {
        let asking = OwnedCall {
            headers: headers("x-user", user),
            ..OwnedCall::default()
        };
        assert_eq!(client.call(asking.call()).await, succeeded("done"));
    }
    let sessions: Vec<_> = server
        .calls()
        .iter()
        .map(|call| {
            format!(
                "{:?} {:?}",
                call.header("x-user"),
                call.header("mcp-session-id")
            )
        })
        .collect();
    assert_eq!(sessions[0], sessions[2]);
    assert_eq!(sessions[1], sessions[3]);
    let of = |index: usize| sessions[index].rsplit(' ').next().unwrap().to_owned();
    assert_ne!(of(0), of(1));
}

#[tokio::test]
async fn refused_permit_lets_no_call_out() {
    let server = older_server().await;
    let client = server.client();
    let (decision, undecided) = AttemptPermit::undecided();
    drop(decision);
    for permit in [AttemptPermit::permitted_while(|| false), undecided] {
        let asking = OwnedCall {
            permit,
            ..OwnedCall::default()
        };
        let outcome = client.call(asking.call()).await;
        assert_eq!(outcome, McpOutcome::NotSent(net::NOT_PERMITTED.to_owned()));
    }
    assert_eq!(
        server.methods().last().unwrap(),
        "notifications/initialized"
    );
}

#[tokio::test]
async fn server_that_keeps_state_gets_the_call_until_it_answers_with_one_permit() {
    let legs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&legs);
    let server = Fake::new(move |seen| {
        if let Some(response) = modern(seen) {
            return Some(response);
        }
        let leg = count.fetch_add(1, Ordering::SeqCst);
        let state = format!("\u{e9}\"{leg}");
        let more = json!({"resultType": "input_required", "requestState": state});
        Some(seen.result(&if leg == 2 { said("done") } else { more }))
    })
    .await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let asking = OwnedCall {
        permit: AttemptPermit::permitted_while(move || count.fetch_add(1, Ordering::SeqCst) == 0),
        ..OwnedCall::default()
    };
    assert_eq!(server.client().call(asking.call()).await, succeeded("done"));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let states: Vec<_> = server
        .calls()
        .iter()
        .map(|call| call.json()["params"].get("requestState").cloned())
        .collect();
    assert_eq!(
        states,
        [None, Some(json!("\u{e9}\"0")), Some(json!("\u{e9}\"1"))]
    );
}
