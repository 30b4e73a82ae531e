//! Tests of the conversations that a client keeps.

use std::sync::atomic::AtomicBool;

use axum::body::Body;
use axum::response::Response;

use super::super::super::fake::Seen;
use super::super::conversations::MAX_CONVERSATIONS;
use super::*;

#[tokio::test]
async fn conversation_beyond_the_bound_ends_the_session_of_the_least_recently_used() {
    let (ended, mut deleted) = watch::channel(None);
    let server = Fake::new(move |seen| {
        if seen.http == "DELETE" {
            ended.send_replace(Some(seen.clone()));
            return Some(answer(204, "text/plain", ""));
        }
        older(seen, "s1").or_else(|| Some(seen.result(&said("done"))))
    })
    .await;
    let http = streamable(&server);
    let key = |number: usize| {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_be_bytes());
        key
    };
    for number in 0..MAX_CONVERSATIONS {
        let conversation = Conversation {
            session: Some(HeaderValue::from(number)),
            ..Conversation::new(Revision::June2025)
        };
        let removed = http.conversations.insert(key(number), conversation);
        assert!(removed.is_none());
    }
    assert!(http.conversations.get(&key(0)).is_some());
    let asking = OwnedCall {
        headers: headers("x-user", "alice"),
        ..OwnedCall::default()
    };
    let outcome = http.call(&asking.call(), None, REQUEST_TIMEOUT, 0).await;
    assert_eq!(outcome, succeeded("done"));
    let waited = tokio::time::timeout(REQUEST_TIMEOUT, deleted.wait_for(Option::is_some)).await;
    let end = waited.unwrap().unwrap().clone().unwrap();
    let names = ["mcp-session-id", "mcp-protocol-version", "x-key", "x-user"];
    let sent = names.map(|name| end.header(name));
    assert_eq!(sent, [Some("1"), Some("2025-06-18"), Some("k3y"), None]);
    assert_eq!(http.conversations.take().len(), MAX_CONVERSATIONS);
}

#[tokio::test]
async fn listing_after_a_listing_without_an_answer_begins_a_new_session() {
    type Loss = fn(&Seen) -> Option<Response>;
    // Each answer is followed by the number of sessions that begin.
    let losses: [(Loss, usize); 6] = [
        (|_| None, 2),
        (|_| Some(answer(502, "text/html", "")), 2),
        (|_| Some(answer(200, "text/event-stream", "")), 2),
        (|seen| Some(seen.error(200, -32_001)), 2),
        (|_| Some(answer(429, "text/plain", "")), 1),
        (
            |_| {
                let broken = Err::<&str, _>(std::io::Error::other("cut"));
                let parts = futures_util::stream::iter([Ok("{"), broken]);
                Some(answer(200, "application/json", Body::from_stream(parts)))
            },
            2,
        ),
    ];
    for (index, (lost, sessions)) in losses.into_iter().enumerate() {
        let begun = Arc::new(AtomicUsize::new(0));
        let restarted = Arc::new(AtomicBool::new(false));
        let (starts, is_lost) = (Arc::clone(&begun), Arc::clone(&restarted));
        let server = Fake::new(move |seen| {
            if seen.method() == "initialize" {
                let number = starts.fetch_add(1, Ordering::SeqCst) + 1;
                return older(seen, &format!("s{number}"));
            }
            if is_lost.load(Ordering::SeqCst) && seen.header("mcp-session-id") == Some("s1") {
                return lost(seen);
            }
            older(seen, "").or_else(|| Some(seen.result(&json!({"tools": []}))))
        })
        .await;
        let (http, none) = (streamable(&server), HeaderMap::new());
        let list = |within: Duration| http.list(&none, Instant::now() + within);
        list(REQUEST_TIMEOUT).await.unwrap();
        restarted.store(true, Ordering::SeqCst);
        assert!(list(SHORT).await.is_err(), "{index}");
        let listing = list(REQUEST_TIMEOUT).await;
        assert_eq!(listing.is_ok(), sessions == 2, "{index}");
        assert_eq!(begun.load(Ordering::SeqCst), sessions, "{index}");
    }
}
