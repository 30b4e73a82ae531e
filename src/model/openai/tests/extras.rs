//! Tests of configured additions to requests, and of undocumented or further parts of answers.

use super::*;

#[tokio::test]
async fn configured_additions_are_sent_unchanged() {
    let body = json!({"max_completion_tokens": 4096, "parallel_tool_calls": false, "reasoning_effort": "high",
        "seed": 7, "response_format": {"type": "text"}, "provider": {"order": ["a", "b"], "allow_fallbacks": false}});
    let endpoint = Endpoint::new(vec![hello()]).await;
    let secret = |text: &str| Secret::new(text.to_owned());
    let headers = [
        ("HTTP-Referer", "https://acme.com"),
        ("X-Title", "Acme"),
        ("Authorization", "Basic xyz"),
    ];
    let settings = Settings {
        headers: headers
            .map(|(name, value)| (name.to_owned(), secret(value)))
            .into(),
        body: body.as_object().unwrap().clone(),
        ..settings(&endpoint.url)
    };
    let mut mistakes = Mistakes::default();
    settings.check::<ChatCompletions>(&mut mistakes, &[]);
    assert_eq!(mistakes.found, []);
    client(settings)
        .0
        .answer(&prompt(vec![user("hi")]), &DiscardingSink)
        .await
        .unwrap();
    let seen = endpoint.seen().remove(0);
    for (name, value) in body.as_object().unwrap() {
        assert_eq!(&seen.body[name], value);
    }
    let head = seen.head.to_lowercase();
    for (name, value) in headers {
        assert!(
            head.contains(&format!(
                "{}: {}\r\n",
                name.to_lowercase(),
                value.to_lowercase()
            )),
            "{head}"
        );
    }
    assert!(
        !head.contains("bearer"),
        "a header of the configuration takes the place of the key: {head}"
    );
}

#[test]
fn reserved_members_cannot_be_set_by_the_configuration() {
    let ours = ["messages", "model", "stream", "stream_options", "tools"];
    let body = ours
        .map(|name| (name.to_owned(), json!(null)))
        .into_iter()
        .collect();
    let mut mistakes = Mistakes::default();
    let settings = Settings {
        body,
        ..settings("http://host")
    };
    settings.check::<ChatCompletions>(&mut mistakes, &[]);
    let found: Vec<_> = mistakes
        .found
        .iter()
        .map(|mistake| mistake.place.join("."))
        .collect();
    assert_eq!(found.len(), ours.len());
    assert!(
        ours.iter()
            .all(|name| found.contains(&format!("body.{name}"))),
        "{found:?}"
    );
}

#[tokio::test]
async fn finish_reason_of_an_answer_is_read() {
    let calls = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "pay", "arguments": "{\"amount\": 12"}}]});
    let refusal = json!({"role": "assistant", "content": null, "refusal": "I will not."});
    for (message, said, reason, text) in [
        (&calls, "stop", FinishReason::ToolCalls, None),
        (&calls, "function_call", FinishReason::ToolCalls, None),
        (&calls, "tool_calls", FinishReason::ToolCalls, None),
        (&calls, "length", FinishReason::Length, None),
        (&calls, "content_filter", FinishReason::ContentFilter, None),
        (&refusal, "stop", FinishReason::Stop, Some("I will not.")),
        (
            &refusal,
            "content_filter",
            FinishReason::ContentFilter,
            Some("I will not."),
        ),
        (&refusal, "weird", FinishReason::Other, Some("I will not.")),
    ] {
        let (answer, ..) = ask(vec![ok(message, said)]).await;
        let answer = answer.unwrap();
        assert_eq!(
            (answer.finish_reason, answer.text.as_deref()),
            (reason, text),
            "{said}"
        );
        let has_more = message == &refusal;
        let raw = if has_more { message } else { &Value::Null };
        assert_eq!(&answer.raw, raw, "{said}");
    }
}

#[tokio::test]
async fn call_and_its_arguments_are_of_the_choice_with_index_0() {
    let choice = |index: u32, id: &str, amount: u32| {
        let function = json!({"name": "pay", "arguments": {"amount": amount}});
        let message = json!({"tool_calls": [{"id": id, "function": function}]});
        json!({"index": index, "message": message, "finish_reason": "tool_calls"})
    };
    let body = json!({"choices": [choice(1, "b", 900), choice(0, "a", 5)]});
    let (answer, ..) = ask(vec![http("200 OK", "", &body.to_string())]).await;
    let call = &answer.unwrap().calls[0];
    assert_eq!(
        (call.provider_id.as_str(), call.arguments_text.as_str()),
        ("a", "{\"amount\":5}")
    );
}

#[tokio::test]
async fn sole_choice_is_the_answer_whatever_its_index() {
    let choice = json!({"index": 1, "message": {"content": "hi"}, "finish_reason": "stop"});
    let body = json!({"choices": [choice]}).to_string();
    let (answer, ..) = ask(vec![http("200 OK", "", &body)]).await;
    assert_eq!(answer.unwrap().text.as_deref(), Some("hi"));
}

#[tokio::test]
async fn answer_that_ended_in_an_error_is_retried() {
    for said in [
        "abort",
        "error",
        "insufficient_system_resource",
        "network_error",
        "MALFORMED_FUNCTION_CALL",
        "function_call_filter: UNEXPECTED_TOOL_CALL",
    ] {
        let (answer, endpoint, _) = ask(vec![ok(&json!({"content": "half"}), said), hello()]).await;
        assert_eq!(
            (answer.unwrap().text.as_deref(), endpoint.seen().len()),
            (Some("hello"), 2),
            "{said}"
        );
    }
}
