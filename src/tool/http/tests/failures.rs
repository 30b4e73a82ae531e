//! Tests of calls that fail, and of calls whose outcome is unknown.

use super::*;

#[tokio::test]
async fn other_statuses_are_failures_with_the_beginning_of_their_body() {
    for (status, code) in [
        ("400 Bad Request", 400),
        ("404 Not Found", 404),
        ("409 Conflict", 409),
        ("500 Oops", 500),
        ("503 Later", 503),
    ] {
        let ToolAnswer::Failed {
            content,
            http_status,
        } = answered(answer(status, b"no such order")).await
        else {
            panic!("{status} is no failure")
        };
        assert_eq!(http_status, Some(code));
        assert_eq!(
            content,
            format!("The tool `pay` failed: it answered with status {code}.\nno such order")
        );
    }
    let ToolAnswer::Failed { content, .. } =
        answered(answer("500 Oops", "é".repeat(5000).as_bytes())).await
    else {
        panic!("no failure")
    };
    assert!(
        content.len() < 2200 && content.contains("[cut: the first 2 KiB of the answer]"),
        "{content}"
    );
}

#[tokio::test]
async fn redirect_is_a_failure_and_is_not_followed() {
    let (origin, seen) = endpoint(vec![Behaviour::Answer(
        b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /elsewhere\r\ncontent-length: 5\r\n\r\nmoved".to_vec(),
    )])
    .await;
    let failed = tool(Method::POST, origin).call(&invocation("{}")).await;
    let content = "The tool `pay` failed: it answered with status 307 (a redirect, which is not followed).\nmoved";
    assert_eq!(
        failed,
        ToolAnswer::Failed {
            content: content.to_owned(),
            http_status: Some(307)
        }
    );
    assert_eq!(seen.await.unwrap().len(), 1);
}

#[tokio::test]
async fn incomplete_answer_makes_the_outcome_unknown() {
    let half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".to_vec();
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n".to_vec();
    let failing = b"HTTP/1.1 500 Oops\r\ncontent-length: 100\r\n\r\nhalf".to_vec();
    for behaviour in [
        answer("502 Bad Gateway", b"upstream"),
        answer("504 Gateway Timeout", b"upstream"),
        Behaviour::Answer(half),
        Behaviour::Answer(chunked),
        Behaviour::Answer(failing),
        Behaviour::Answer(Vec::new()),
        Behaviour::Answer(b"not http at all\r\n\r\n".to_vec()),
        Behaviour::Reset,
    ] {
        let answer = answered(behaviour).await;
        assert!(unknown(&answer), "{answer:?}");
    }
}

#[tokio::test]
async fn silent_endpoint_is_unknown_at_the_timeout() {
    for effect in [Effect::Once, Effect::ReadOnly] {
        let (origin, _seen) = endpoint(vec![Behaviour::Silence, Behaviour::Silence]).await;
        let slow = tool_of(
            Method::POST,
            origin,
            effect,
            any(),
            // The timeout leaves enough time to send the request, even on a busy machine.
            Duration::from_secs(2),
        );
        let answer = slow.call(&invocation("{}")).await;
        assert!(unknown(&answer), "{answer:?}");
    }
}

#[tokio::test]
async fn request_that_was_provably_not_sent_is_a_failure() {
    let socket = crate::net::tests::refusing_socket();
    let closed = format!("http://{}", socket.local_addr().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let no_tls = format!("https://{}", listener.local_addr().unwrap());
    #[expect(clippy::disallowed_methods, reason = "the fake endpoint of a test")]
    tokio::spawn(async move {
        let (mut peer, _) = listener.accept().await.unwrap();
        let _ = peer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    });
    for url in [closed, no_tls] {
        let answer = tool(Method::POST, url).call(&invocation("{}")).await;
        assert_unsent(&answer);
        assert!(!format!("{answer:?}").contains("127.0.0.1"), "{answer:?}");
    }
    let parameters =
        json!({"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]});
    let url = "http://127.0.0.1:9/x/{id}".to_owned();
    let dots = tool_of(
        Method::POST,
        url,
        Effect::Once,
        parameters,
        Duration::from_secs(1),
    );
    let refused = dots.call(&invocation(r#"{"id":".."}"#)).await;
    assert!(matches!(refused, ToolAnswer::NotSent { .. }), "{refused:?}");
}
