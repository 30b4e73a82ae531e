//! Tests of streams that deviate from the documentation, as real endpoints send them.

use super::*;

#[test]
fn calls_without_an_index_or_with_the_same_index_are_told_apart_by_their_ids() {
    for index in [json!(null), json!(0)] {
        let whole = |id: &str, name: &str, arguments: &str| {
            let mut fragment = json!({"id": id, "type": "function", "extra_content": {"sig": id},
                "function": {"name": name, "arguments": arguments}});
            if !index.is_null() {
                fragment["index"] = index.clone();
            }
            fragment
        };
        let both = json!([
            whole("a", "look", "{\"n\":1}"),
            whole("b", "look", "{\"n\":2}")
        ]);
        let both = delta(json!({"role": "assistant", "tool_calls": both}));
        let (answer, told) = answered(&stream(&[
            both,
            call(whole("c", "pay", "")),
            finish("stop"),
        ]));
        assert_eq!(
            calls(&answer),
            [
                ("a", "look", "{\"n\":1}"),
                ("b", "look", "{\"n\":2}"),
                ("c", "pay", "")
            ]
        );
        assert_eq!(
            (answer.finish_reason, told.resets),
            (FinishReason::ToolCalls, 0)
        );
        assert_eq!(
            answer.raw["tool_calls"][1]["extra_content"],
            json!({"sig": "b"})
        );
        assert_eq!(answer.raw["tool_calls"][1].get("index"), None);
    }
}

#[test]
fn calls_without_ids_are_told_apart_by_their_content() {
    for with in [
        json!({}),
        json!({"id": ""}),
        json!({"id": null}),
        json!({"index": 0}),
        json!({"index": 0, "id": "x"}),
    ] {
        let whole = |name: &str, arguments: &str| {
            let mut fragment = with.clone();
            fragment["function"] = json!({"name": name, "arguments": arguments});
            call(fragment)
        };
        let chunks = [
            whole("look", "{\"n\":1}"),
            whole("look", "{\"n\":2}"),
            whole("pay", "{}"),
            finish("tool_calls"),
        ];
        let (answer, told) = answered(&stream(&chunks));
        let read: Vec<_> = calls(&answer)
            .into_iter()
            .map(|(_, name, arguments)| (name, arguments))
            .collect();
        assert_eq!(
            read,
            [("look", "{\"n\":1}"), ("look", "{\"n\":2}"), ("pay", "{}")],
            "{with}"
        );
        assert_eq!(told.resets, 0);
    }
}

#[test]
fn fragments_that_repeat_the_name_or_bring_new_ids_go_on_with_their_call() {
    for repeated in [
        json!({"name": "pay"}),
        json!({"name": ""}),
        json!({"name": null}),
        json!({}),
    ] {
        let more = |id: &str, arguments: &str| {
            let mut function = repeated.clone();
            function["arguments"] = json!(arguments);
            let id = if repeated["name"] == "pay" {
                json!(null)
            } else {
                json!(id)
            };
            call(json!({"index": 0, "id": id, "type": "function", "function": function}))
        };
        let (answer, told) = answered(&stream(&[
            call(
                json!({"index": 0, "id": "r1", "type": "function", "function": {"name": "pay", "arguments": ""}}),
            ),
            more("r2", "{\"n\""),
            more("r3", ":1}"),
            more("r4", ""),
            finish("tool_calls"),
        ]));
        assert_eq!(calls(&answer), [("r1", "pay", "{\"n\":1}")], "{repeated}");
        assert_eq!(told.resets, 0);
    }
}

#[test]
fn continued_tool_name_is_reported_anew() {
    let (answer, told) = answered(&stream(&[
        delta(json!({"content": "So: "})),
        call(json!({"index": 0, "id": "a", "function": {"name": "look"}})),
        call(json!({"index": 0, "function": {"name": "_up", "arguments": null}})),
        call(json!({"index": 0, "function": {"arguments": "{}"}})),
        finish("tool_calls"),
    ]));
    assert_eq!(calls(&answer), [("a", "look_up", "{}")]);
    assert_eq!((told.resets, told.text.as_str()), (1, "So: "));
}

#[test]
fn late_tool_name_is_reported_before_the_arguments() {
    let (answer, told) = answered(&stream(&[
        call(json!({"index": 0, "id": "a", "type": "function"})),
        call(json!({"index": 0, "function": {"arguments": "{\"n\":"}})),
        call(json!({"index": 0, "function": {"name": "pay", "arguments": "1}"}})),
        call(json!({"index": 1, "function": {"arguments": "{}"}})),
        finish("tool_calls"),
    ]));
    assert_eq!(calls(&answer), [("a", "pay", "{\"n\":1}"), ("", "", "{}")]);
    assert_eq!(told.resets, 0);
}

#[test]
fn calls_stand_in_the_order_of_their_index() {
    let (answer, told) = answered(&stream(&[
        delta(json!({"content": "x"})),
        call(json!({"index": 2, "id": "c", "function": {"name": "three", "arguments": "{\"n\":"}})),
        call(json!({"index": 0, "id": "a", "function": {"name": "one", "arguments": "{}"}})),
        call(json!({"index": 2, "function": {"arguments": "3}"}})),
        call(json!({"index": 1, "id": "b", "function": {"name": "two", "arguments": "{}"}})),
        finish("tool_calls"),
    ]));
    assert_eq!(
        calls(&answer),
        [
            ("a", "one", "{}"),
            ("b", "two", "{}"),
            ("c", "three", "{\"n\":3}")
        ]
    );
    assert_eq!((told.resets, told.text.as_str()), (2, "x"));
}

#[test]
fn arguments_sent_as_json_keep_their_bytes() {
    let text = r#"{ "amount":  20.000000000000000001, "amount": 1, "to": "a\ud800b" }"#;
    let calls_ = format!(
        "{{\"index\":0,\"id\":\"a\"}},{{\"index\":1,\"id\":\"b\",\"function\":{{\"name\":\"pay\",\"arguments\":{text}}}}},\
         {{\"index\":0,\"function\":{{\"name\":\"look\",\"arguments\":\"{{}}\"}}}}"
    );
    let first = format!(
        "{{\"index\":0,\"delta\":{{\"tool_calls\":[{calls_}]}},\"finish_reason\":\"stop\"}}"
    );
    let chunk = format!("{{\"choices\":[{{\"index\":1,\"delta\":{{}}}},{first}]}}");
    let (answer, _) = answered(&format!("data: {chunk}\n\ndata: [DONE]\n\n"));
    assert_eq!(calls(&answer), [("a", "look", "{}"), ("b", "pay", text)]);
}

#[test]
fn thinking_and_unknown_members_are_kept_and_not_shown() {
    let detail = |text: &str, signature: Value| {
        let detail = json!({"index": 0, "type": "reasoning.text", "text": text, "format": "f", "signature": signature});
        delta(json!({"reasoning_details": [detail]}))
    };
    let (answer, told) = answered(&stream(&[
        delta(json!({"role": "assistant", "content": "", "reasoning_content": "Let me "})),
        delta(json!({"role": "assistant", "content": null, "reasoning_content": "think."})),
        detail("a", json!(null)),
        detail("b", json!("s")),
        delta(json!({"content": "Hi", "reasoning_content": null})),
        finish("stop"),
    ]));
    let details = json!([{"index": 0, "type": "reasoning.text", "text": "ab", "format": "f", "signature": "s"}]);
    let (earlier_thinking, message) = (
        "Let me think.",
        json!({"role": "assistant", "content": "Hi"}),
    );
    assert_eq!(
        (
            &answer.raw["reasoning_content"],
            &answer.raw["reasoning_details"]
        ),
        (&json!(earlier_thinking), &details)
    );
    assert_eq!(
        (&answer.raw["role"], &answer.raw["content"]),
        (&message["role"], &message["content"])
    );
    assert_eq!((told.text.as_str(), told.pieces), ("Hi", 1));
}

#[test]
fn content_may_come_as_parts() {
    let (answer, told) = answered(&stream(&[
        delta(
            json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
        ),
        delta(json!({"content": [{"type": "text", "text": "Hel"}]})),
        delta(json!({"content": "lo"})),
        finish("stop"),
    ]));
    assert_eq!((answer.text.as_deref(), told.resets), (Some("Hello"), 0));
    let thinking = json!({"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]});
    assert_eq!(
        answer.raw["content"],
        json!([thinking, {"type": "text", "text": "Hello"}])
    );
}

#[test]
fn refusal_is_the_text_unless_there_is_other_content() {
    let refusal = [
        delta(json!({"content": null, "refusal": "I "})),
        delta(json!({"refusal": "won't."})),
    ];
    let (answer, told) = answered(&stream(&[&refusal[..], &[finish("stop")]].concat()));
    assert_eq!((answer.text.as_deref(), told.resets), (Some("I won't."), 0));
    assert_eq!(answer.raw, json!({"content": null, "refusal": "I won't."}));
    let more = [
        delta(json!({"content": "But"})),
        delta(json!({"refusal": "No."})),
        finish("stop"),
    ];
    let (answer, told) = answered(&stream(&[&refusal[..], &more].concat()));
    assert_eq!((answer.text.as_deref(), told.resets), (Some("But"), 1));
}

#[test]
fn whole_message_in_one_chunk_is_an_answer() {
    let message = json!({"role": "assistant", "content": "On it.", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        {"id": "b", "type": "function", "function": {"name": "pay", "arguments": "{}"}}]});
    let chunk =
        json!({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]});
    let (answer, _) = answered(&stream(&[chunk]));
    assert_eq!(calls(&answer), [("a", "look", "{}"), ("b", "pay", "{}")]);
    assert_eq!(answer.text.as_deref(), Some("On it."));
    assert!(answer.raw.is_null(), "it has nothing but text and calls");
}

#[test]
fn legacy_function_call_is_a_call() {
    let (answer, _) = answered(&stream(&[
        delta(
            json!({"role": "assistant", "content": null, "function_call": {"name": "pay", "arguments": ""}}),
        ),
        delta(json!({"function_call": {"arguments": "{\"a\":"}})),
        delta(json!({"function_call": {"arguments": "1}"}, "tool_calls": null})),
        finish("function_call"),
    ]));
    assert_eq!(calls(&answer), [("", "pay", "{\"a\":1}")]);
    assert_eq!(
        answer.raw["function_call"],
        json!({"name": "pay", "arguments": "{\"a\":1}"})
    );
    let (answer, _) = answered(&stream(&[
        delta(json!({"content": "x", "function_call": null})),
        finish("stop"),
    ]));
    assert_eq!(answer.calls, []);
}

#[test]
fn comments_carriage_returns_byte_order_marks_and_other_choices_change_nothing() {
    let other = json!({"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "length"}]});
    let plain = [
        delta(json!({"content": "a"})),
        other,
        delta(json!({"content": "b"})),
        finish("stop"),
        used(),
    ];
    let (expected, _) = answered(&stream(&plain));
    assert_eq!(expected.text.as_deref(), Some("ab"));
    let windows = format!("\u{FEFF}: waiting\n\ndata:\n\n{}", stream(&plain)).replace('\n', "\r\n");
    assert_eq!(answered(&windows).0, expected);
    let noisy = stream(&plain).replace("\n\n", "\nid: 7\nretry: 5\n\n: processing\n\ndata: \n\n");
    assert_eq!(answered(&noisy).0, expected);
    let late = "data: {\"choices\":[{\"delta\":{\"content\":\"late\"}}]}\n\n";
    assert_eq!(answered(&(stream(&plain) + late)).0, expected);
}

#[test]
fn usage_may_come_repeatedly_or_never() {
    let chunk = |tokens: i64| {
        let mut chunk = delta(json!({"content": "x"}));
        chunk["usage"] = json!({"prompt_tokens": 1, "completion_tokens": tokens});
        chunk
    };
    let (answer, _) = answered(&stream(&[chunk(1), chunk(2), finish("stop")]));
    assert_eq!(
        answer.usage,
        Usage {
            prompt_tokens: 1,
            completion_tokens: 2,
            total_tokens: 3
        }
    );
    let (answer, _) = answered(&stream(&[delta(json!({"content": "x"})), finish("stop")]));
    assert_eq!(
        answer.usage,
        Usage {
            prompt_tokens: 0,
            completion_tokens: 0,
            total_tokens: 0
        }
    );
}

#[test]
fn halves_of_surrogate_pairs_are_replaced() {
    let cut = "data: {\"choices\":[{\"delta\":{\"content\":\"a\\ud83d\"}}]}\n\n\
               data: {\"choices\":[{\"delta\":{\"content\":\"\\ude00b\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    assert_eq!(answered(cut).0.text.as_deref(), Some("a\u{FFFD}\u{FFFD}b"));
}
