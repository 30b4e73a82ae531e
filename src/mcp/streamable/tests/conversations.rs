//! Tests of the conversations that a client keeps.

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
