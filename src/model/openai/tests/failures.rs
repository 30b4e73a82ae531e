//! Tests of the endpoint's failures: some are retried, and some are final at once.

use super::*;

#[tokio::test]
async fn model_call_is_retried_where_that_may_help_and_waits_as_asked() {
    let cut = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 999\r\n\r\n{\"choices\":["
        .to_owned();
    let answers = vec![
        http("429 Too Many Requests", "retry-after: 7\r\n", "{}"),
        http(
            "503 Service Unavailable",
            "Retry-After: Wed, 21 Oct 2015 07:28:09 GMT\r\n",
            "busy",
        ),
        cut,
        http("200 OK", "", "{\"choices\":[{\"message\":"),
        hello(),
    ];
    let (answer, endpoint, clock) = ask(answers).await;
    assert_eq!(answer.unwrap().text.as_deref(), Some("hello"));
    let seen = endpoint.seen();
    assert_eq!(seen.len(), 5);
    assert!(seen.iter().all(|one| one.body == seen[0].body));
    let slept = clock.slept.lock().unwrap().clone();
    assert_eq!(slept[..2], [Duration::from_secs(7), Duration::from_secs(9)]);
    assert!(
        slept[2] >= Duration::from_secs(1) && slept[3] >= Duration::from_secs(2),
        "{slept:?}"
    );
}

#[tokio::test]
async fn model_call_gives_up_after_its_retries_with_the_reason() {
    let busy = http(
        "500 Internal Server Error",
        "",
        r#"{"error":{"message":"overloaded at https://x.internal/y"}}"#,
    );
    let (answer, endpoint, clock) = ask(vec![busy; 9]).await;
    assert_eq!(
        answer.unwrap_err().detail,
        "Model `main` gave no usable answer (after 5 attempts): it answered with status 500: overloaded at [address]"
    );
    assert_eq!(
        (endpoint.seen().len(), clock.slept.lock().unwrap().len()),
        (5, 4)
    );
}

#[tokio::test]
async fn unusable_success_has_a_reason_for_the_log_without_text_of_the_endpoint() {
    let stream = "content-type: text/event-stream\r\n";
    let reported = r#"{"error":{"message":"overloaded with a private text"}}"#;
    for (answer, reason) in [
        (
            http("200 OK", "", "<html>private</html>"),
            "its answer is not complete JSON",
        ),
        (
            http("200 OK", stream, ""),
            "its answer ended without a finish_reason",
        ),
        (http("200 OK", "", reported), "it reported an error"),
    ] {
        let (answer, _, _) = ask(vec![answer; 5]).await;
        let end = answer.unwrap_err().attempt_end;
        assert_eq!((end.status, end.reason), (Some(200), Some(reason)));
    }
}

#[tokio::test]
async fn refusal_is_final_at_once_and_shows_no_secret() {
    let said = r#"{"error":{"message":"bad key sk-very-secret\u0000","code":"invalid_api_key"}}"#;
    for status in [
        "400 Bad Request",
        "401 Unauthorized",
        "404 Not Found",
        "408 Request Timeout",
        "409 Conflict",
        "422 Unprocessable",
    ] {
        let (answer, endpoint, _) =
            ask(vec![http(status, "retry-after: 1\r\n", said), hello()]).await;
        let detail = answer.unwrap_err().detail;
        let number = &status[..3];
        let expected =
            format!("it answered with status {number}: bad key [secret OPENAI_API_KEY]\u{FFFD}");
        assert_eq!(
            detail,
            format!("Model `main` gave no usable answer: {expected}")
        );
        assert_eq!(endpoint.seen().len(), 1);
    }
}

#[tokio::test]
async fn secret_across_the_end_of_the_part_that_is_read_of_a_refusal_leaves_nothing_behind() {
    // The client reads 64 KiB of a refusal, and removes the blanks at the ends of the error text.
    for (begin, shown) in [("", ""), ("wrong:", ": wrong:…")] {
        let blanks = " ".repeat(64 * 1024 - begin.len() - 9);
        let body = format!("{begin}{blanks}sk-very-secret");
        let (answer, ..) = ask(vec![http("400 Bad Request", "", &body)]).await;
        let detail = answer.unwrap_err().detail;
        let expected = format!("it answered with status 400{shown}");
        assert!(detail.ends_with(&expected), "{detail}");
    }
}

#[tokio::test]
async fn error_inside_a_success_is_retried_unless_it_blames_the_request() {
    let overloaded = http("200 OK", "", r#"{"error":{"message":"overloaded"}}"#);
    let (answer, endpoint, _) = ask(vec![overloaded, hello()]).await;
    assert_eq!(answer.unwrap().text.as_deref(), Some("hello"));
    assert_eq!(endpoint.seen().len(), 2);
    for (error, why) in [
        (r#"{"message":"no credit","code":402}"#, "no credit"),
        (
            r#"{"message":"bad","code":0,"type":"invalid_request_error"}"#,
            "bad",
        ),
    ] {
        let blamed = http("200 OK", "", &format!("{{\"error\":{error}}}"));
        let (answer, endpoint, _) = ask(vec![blamed, hello()]).await;
        let detail = answer.unwrap_err().detail;
        let expected = format!("it reported an error: {why}");
        assert!(detail.ends_with(&expected), "{detail}");
        assert_eq!(endpoint.seen().len(), 1);
    }
}

/// Returns a prompt whose turn has reasoning, and the JSON of the turn with and without it.
fn prompt_with_reasoning() -> (Prompt, [Value; 2]) {
    let call =
        json!({"id": "call_0", "type": "function", "function": {"name": "pay", "arguments": "{}"}});
    let kept = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let mut raw = kept.clone();
    raw["reasoning"] = json!("hm");
    let turn = Message::Assistant {
        raw: raw.clone(),
        text: None,
        calls: vec![("call_0".to_owned(), "pay".to_owned(), "{}".to_owned())],
    };
    let result = Message::Result {
        provider_id: "call_0".to_owned(),
        name: "pay".to_owned(),
        content: "paid".to_owned(),
        succeeded: true,
    };
    (prompt(vec![user("go"), turn, result]), [raw, kept])
}

/// Asserts that a request without the reasoning follows this answer at once, and that no request
/// follows it if no turn has reasoning.
async fn assert_leaves_out_reasoning(refused: String) {
    let (asked, turns) = prompt_with_reasoning();
    let endpoint = Endpoint::new(vec![refused.clone(), hello()]).await;
    let (model, clock) = client(settings(&endpoint.url));
    let answer = model.answer(&asked, &DiscardingSink).await;
    assert_eq!(answer.unwrap().text.as_deref(), Some("hello"), "{refused}");
    let seen = endpoint.seen();
    let sent = seen.iter().map(|seen| &seen.body["messages"][2]);
    assert!(sent.eq(&turns), "{refused}");
    assert!(clock.slept.lock().unwrap().is_empty());
    let (answer, endpoint, _) = ask(vec![refused, hello()]).await;
    assert!(answer.is_err(), "nothing could be left out");
    assert_eq!(endpoint.seen().len(), 1);
}

#[tokio::test]
async fn reasoning_that_the_endpoint_refuses_is_left_out_of_a_second_request() {
    let extra = json!({"type": "extra_forbidden", "loc": ["body", "messages", 2, "assistant", "x"],
        "msg": "Extra inputs are not permitted", "input": "hm ".repeat(200)});
    for said in [
        json!({"message": {"detail": [extra]}}),
        json!({"message": "'messages.2' : property 'reasoning' is unsupported"}),
        json!({"message": "Unknown parameter: 'messages[2].x_sig'."}),
        json!({"message": "failed", "metadata": {"raw": "Invalid `signature` in `thinking` block"}}),
    ] {
        let refused = http("400 Bad Request", "", &json!({"error": said}).to_string());
        assert_leaves_out_reasoning(refused).await;
    }
}

#[tokio::test]
async fn endpoint_that_also_refuses_the_second_request_fails_with_both_refusals() {
    let answered = "it answered with status 400: ";
    let (old, other) = ("Old thought", "No `reasoning_effort`");
    let (long, cut) = ("thought ".repeat(99), "thought ".repeat(62) + "thou…");
    let (long, other_long) = (long.as_str(), "other ".repeat(99));
    let without =
        |second: &str| format!("{old}; without the earlier reasoning, {answered}{second}");
    for (first, second, shown) in [
        (old, other, without(other)),
        (old, "No signature", without("No signature")),
        (old, long, without(&cut)),
        (old, old, old.to_owned()),
        (
            long,
            other,
            format!("{other}; with the earlier reasoning, {answered}{cut}"),
        ),
        (long, other_long.as_str(), cut),
    ] {
        let refused = [first, second].map(|said| http("400 Bad Request", "", said));
        let endpoint = Endpoint::new(refused.into()).await;
        let (model, _) = client(settings(&endpoint.url));
        let (asked, _) = prompt_with_reasoning();
        let answer = model.answer(&asked, &DiscardingSink).await;
        let why = format!("(after 2 attempts): {answered}{shown}");
        assert_eq!(
            answer.unwrap_err().detail,
            format!("Model `main` gave no usable answer {why}")
        );
        assert_eq!(endpoint.seen().len(), 2);
    }
}

#[tokio::test]
async fn reasoning_that_an_error_inside_a_success_refuses_is_left_out_of_a_second_request() {
    let stream = "content-type: text/event-stream\r\n";
    let begun = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let coded = json!({"error": {"message": "failed", "code": 400,
        "metadata": {"raw": "Invalid `signature` in `thinking` block"}}});
    let typed = json!({"message": "Old thought", "type": "invalid_request_error"});
    for refused in [
        http("200 OK", "", &coded.to_string()),
        http("200 OK", stream, &format!("{begun}data: {coded}\n\n")),
        http(
            "200 OK",
            stream,
            &format!("event: error\ndata: {typed}\n\n"),
        ),
    ] {
        assert_leaves_out_reasoning(refused).await;
    }
}

#[tokio::test]
async fn answer_that_its_last_event_makes_too_long_is_given_up() {
    let half = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}},\"finish_reason\":\"stop\"}}]}}",
        "x".repeat(5 << 20)
    );
    let stream = "content-type: text/event-stream\r\n";
    for end in ["", "\n\ndata: [DONE]\n\n"] {
        let long = http("200 OK", stream, &format!("{half}\n\n{half}{end}"));
        let (answer, ..) = ask(vec![long, hello()]).await;
        assert_eq!(
            answer.unwrap_err().detail,
            "Model `main` gave no usable answer: its answer is longer than 8 MiB"
        );
    }
}

#[tokio::test]
async fn stream_parameter_that_a_refusal_names_counts_before_its_words_about_thinking() {
    let said = r#"{"message":"not with x-thinking","param":"stream_options"}"#;
    let (answer, endpoint, _) = ask(vec![http("400 Bad Request", "", said), hello()]).await;
    assert_eq!(answer.unwrap().text.as_deref(), Some("hello"));
    assert_eq!(endpoint.seen()[1].body.get("stream_options"), None);
}

#[test]
fn refusal_of_members_of_earlier_turns_is_recognized() {
    for text in [
        "messages.2: additional properties are not allowed ('x' was unexpected)",
        "messages.2.assistant.x: Extra inputs are not permitted",
        "'messages.2' : property 'x' is unsupported",
        "messages[2]: unknown field `x`",
        "Unknown name \"annotations\" at 'messages[2]': Cannot find field.",
        "Unknown parameter: 'messages[2].x'.",
        "Value is not a string: null",
        "Invalid extra_content.",
        "reasoning_content is not supported",
        "Invalid `signature` in `thinking` block",
        "Corrupted thought signature.",
    ] {
        assert!(ChatCompletions::is_about_thinking(text), "{text}");
    }
    for text in [
        "messages: at least one message is required",
        "tools.0.x: Extra inputs are not permitted",
        "Unknown parameter: 'verbosity'.",
        "enable_thinking must be false for non-streaming calls",
    ] {
        assert!(!ChatCompletions::is_about_thinking(text), "{text}");
    }
}

#[tokio::test]
async fn redirect_is_never_followed() {
    let elsewhere = Endpoint::new(vec![hello()]).await;
    let location = format!("location: {}/v1/chat/completions\r\n", elsewhere.url);
    let (answer, endpoint, _) = ask(vec![http("307 Temporary Redirect", &location, "")]).await;
    let detail = answer.unwrap_err().detail;
    assert!(
        detail.ends_with("status 307, a redirect, which is never followed"),
        "{detail}"
    );
    assert_eq!((endpoint.seen().len(), elsewhere.seen().len()), (1, 0));
    let (answer, ..) = ask(vec![http("304 Not Modified", "", "")]).await;
    let detail = answer.unwrap_err().detail;
    assert!(detail.ends_with("status 304"), "{detail}");
}

#[tokio::test]
async fn lost_or_refused_connection_is_retried_and_its_address_is_never_shown() {
    let (answer, endpoint, _) = ask(vec![String::new(), hello()]).await;
    assert_eq!(answer.unwrap().text.as_deref(), Some("hello"));
    assert_eq!(endpoint.seen().len(), 2);
    let socket = crate::net::tests::refusing_socket();
    let gone = format!("http://{}", socket.local_addr().unwrap());
    let (model, clock) = client(Settings {
        retries: 2,
        ..settings(&gone)
    });
    let detail = failure(&model, &DiscardingSink).await;
    assert_eq!(
        detail,
        "Model `main` gave no usable answer (after 3 attempts): the connection was refused"
    );
    assert_eq!(clock.slept.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn silent_endpoint_is_given_up_after_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (model, _) = client(Settings {
        retries: 0,
        timeout: Duration::from_millis(40),
        ..settings(&url)
    });
    let detail = failure(&model, &DiscardingSink).await;
    assert_eq!(
        detail,
        "Model `main` gave no usable answer: there was no complete answer within the timeout"
    );
}
