//! Checks that submitted fields become the body of a decision, or errors with the pointers of the
//! fields.

use super::*;
use crate::http::openapi::sample;
use crate::task::request::RequestKind;

fn read(row: &RequestRow, fields: &[(&str, &str)]) -> Result<String, Vec<(String, String)>> {
    let fields = fields
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    to_json(row, &fields).map_err(|errors| {
        errors
            .into_iter()
            .map(|error| (error.pointer, error.detail.to_string()))
            .collect()
    })
}

fn places(row: &RequestRow, fields: &[(&str, &str)]) -> Vec<String> {
    read(row, fields)
        .unwrap_err()
        .into_iter()
        .map(|(place, _)| place)
        .collect()
}

fn named(call: &CallSpec, part: &str) -> String {
    format!("call.{}.{part}", call.tool_call_id)
}

#[test]
fn announced_consequence_counts_if_the_form_rejects_and_names_no_other() {
    let (approve, reject) = (Some(Action::Approve), Some(Action::Reject));
    for (path_action, field, expected) in [
        (reject, None, Some("cancel")),
        (None, Some(("action", "reject")), Some("cancel")),
        (reject, Some(("then", "continue")), Some("continue")),
        (reject, Some(("then", "")), Some("cancel")),
        (approve, None, None),
        (None, Some(("action", "approve")), None),
        (None, Some(("action", "nonsense")), None),
        (None, None, None),
    ] {
        let announced = ("reject.then", "cancel");
        let mut fields: BTreeMap<String, String> = [announced]
            .into_iter()
            .chain(field)
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .collect();
        apply_announced_then(&mut fields, path_action);
        let then = fields.get("then").map(String::as_str);
        assert_eq!(then, expected, "{path_action:?} {field:?}");
        assert!(!fields.contains_key("reject.then"));
    }
}

#[test]
fn whole_answer_contains_its_filled_in_fields() {
    let row = sample::request();
    let digest = row.spec.digest.as_str();
    assert_eq!(
        read(&row, &[("digest", digest), ("reason", ""), ("then", "")]),
        Ok(format!("{{\"digest\":\"{digest}\"}}"))
    );
    assert_eq!(
        read(&row, &[("action", "approve"), ("digest", "")]).unwrap(),
        r#"{"action":"approve","digest":""}"#,
        "an empty digest fits no request"
    );
    assert_eq!(
        read(
            &row,
            &[
                ("action", "reject"),
                ("reason", "a\n\"b\""),
                ("then", "continue")
            ]
        )
        .unwrap(),
        r#"{"action":"reject","then":"continue","reason":"a\n\"b\""}"#
    );
    assert_eq!(
        read(&row, &[("action", "nonsense")]).unwrap(),
        r#"{"action":"nonsense"}"#,
        "not judged here"
    );
    assert_eq!(
        places(
            &row,
            &[("action", "approve"), ("arguments", "{}"), ("x/y", "")]
        ),
        ["/arguments", "/x~1y"]
    );
    assert_eq!(
        places(&row, &[("action", "approve"), ("confirmed", "true")]),
        ["/confirmed"]
    );
    assert_eq!(
        places(&row, &[(r#"{"response":{"token":"hunter2"}}"#, "")]),
        [""],
        "JSON that was sent as a form"
    );
}

#[test]
fn only_chosen_calls_are_answered_with_their_text_unchanged() {
    let row = sample::several(4);
    let calls = &row.spec.pending_tool_calls;
    let name = |index: usize, part: &str| named(&calls[index], part);
    let (a0, a1, a2, a3) = (
        name(0, "action"),
        name(1, "action"),
        name(2, "action"),
        name(3, "action"),
    );
    let (r1, e0, e2) = (
        name(1, "reason"),
        name(0, "arguments"),
        name(2, "arguments"),
    );
    let body = read(
        &row,
        &[
            (&a0, "approve"),
            (&e0, &calls[0].arguments_text),
            (&a1, "reject"),
            (&r1, "no"),
            (&a2, "edit"),
            (&e2, " {\"amount\": 20.10, \"order\":\n17}\n"),
            (&a3, ""),
            ("then", "continue"),
            ("digest", "d"),
        ],
    );
    let [i0, i1, i2] = [0, 1, 2].map(|index: usize| calls[index].tool_call_id.to_string());
    assert_eq!(
        body.unwrap(),
        format!(
            "{{\"decisions\":{{\"{i0}\":{{\"action\":\"approve\"}},\
             \"{i1}\":{{\"action\":\"reject\",\"reason\":\"no\",\"then\":\"continue\"}},\
             \"{i2}\":{{\"action\":\"edit\",\"arguments\":{{\"amount\": 20.10, \"order\":\n17}}}}}},\"digest\":\"d\"}}"
        )
    );
}

#[test]
fn typed_text_that_the_answer_does_not_take_is_reported() {
    let row = sample::several(2);
    let call = &row.spec.pending_tool_calls[0];
    let id = &call.tool_call_id.to_string();
    let name = |part: &str| named(call, part);
    let (action, arguments, result, reason) = (
        name("action"),
        name("arguments"),
        name("result"),
        name("reason"),
    );
    let at = |part: &str| format!("/decisions/{id}{part}");
    for (fields, expected) in [
        (
            vec![(&action, "approve"), (&arguments, "{\"amount\":1}")],
            at("/arguments"),
        ),
        (
            vec![(&action, "approve"), (&arguments, "")],
            at("/arguments"),
        ),
        (vec![(&action, ""), (&arguments, "{}")], at("/arguments")),
        (vec![(&action, "approve"), (&result, "done")], at("/result")),
        (vec![(&action, ""), (&reason, "because")], at("/reason")),
        (vec![(&action, "approve!")], at("/action")),
        (vec![(&action, "retry")], at("/action")),
        (vec![(&action, "edit")], at("/arguments")),
        (
            vec![(&action, "edit"), (&arguments, "{\"a\":1,\"a\":2}")],
            at("/arguments"),
        ),
        (
            vec![(&action, "edit"), (&arguments, "{}]]]],[[[[{}")],
            at("/arguments"),
        ),
        (
            vec![
                (&action, "edit"),
                (&arguments, "{}},\"x\":{\"action\":\"approve\""),
            ],
            at("/arguments"),
        ),
        (vec![(&action, "respond")], at("/result")),
        (vec![(&action, "")], "/decisions".to_owned()),
    ] {
        let fields: Vec<(&str, &str)> = fields
            .iter()
            .map(|(name, text)| (name.as_str(), *text))
            .collect();
        assert_eq!(places(&row, &fields), [expected], "{fields:?}");
    }
    assert_eq!(
        places(&row, &[(&action, "approve"), ("then", "cancel")]),
        ["/then"]
    );
    assert_eq!(
        places(&row, &[(&action, "approve"), ("action", "approve")]),
        ["/action"]
    );
    assert_eq!(
        places(&row, &[(&action, "approve"), (&name("then"), "cancel")]),
        [format!("/{}", name("then"))]
    );
    let other = "call.00000000-0000-0000-0000-000000000001.action";
    assert_eq!(
        places(&row, &[(other, "approve")]),
        ["/decisions/00000000-0000-0000-0000-000000000001"]
    );
    assert_eq!(
        places(&row, &[("call.", "approve"), (&action, "approve")]),
        ["/call."]
    );
    let mut context = row.clone();
    context.spec.pending_tool_calls[0].needs_decision = false;
    assert_eq!(places(&context, &[(&action, "approve")]), [at("")]);
}

#[test]
fn result_is_text_unless_declared_as_json() {
    let row = sample::several(2);
    let call = &row.spec.pending_tool_calls[0];
    let (action, result, kind) = (
        named(call, "action"),
        named(call, "result"),
        named(call, "result_type"),
    );
    let one = |text: &str, typed: &str| {
        read(
            &row,
            &[(&action, "respond"), (&result, text), (&kind, typed)],
        )
    };
    assert!(
        one("{\"a\": 1.0}", "text")
            .unwrap()
            .contains(r#""result":"{\"a\": 1.0}""#)
    );
    assert!(
        one("{\"a\": 1.0}", "")
            .unwrap()
            .contains(r#""result":"{\"a\""#)
    );
    assert!(
        one("{\"a\": 1.0}", "json")
            .unwrap()
            .contains(r#""result":{"a": 1.0}"#)
    );
    assert_eq!(one("{a}", "json").unwrap_err()[0].1, "unambiguous JSON");
    assert!(one("x", "yaml").unwrap_err()[0].0.ends_with("/result_type"));
}

#[test]
fn answer_has_the_members_of_its_form() {
    let respond = |kind, fields: &[(&str, &str)]| {
        read(
            &sample::of_kind(kind),
            &[&[("action", "respond")], fields].concat(),
        )
    };
    let body = respond(RequestKind::Guidance, &[("field.answer", "17\n")]).unwrap();
    assert_eq!(body, r#"{"action":"respond","response":{"answer":"17\n"}}"#);
    let missing = respond(RequestKind::Guidance, &[("field.answer", "")]).unwrap_err();
    assert_eq!(
        missing,
        [(
            "/response/answer".to_owned(),
            "a value is required".to_owned()
        )]
    );
    let body = respond(
        RequestKind::Confirmation,
        &[("confirmed", "false"), ("comment", "no")],
    )
    .unwrap();
    assert_eq!(
        body,
        r#"{"action":"respond","response":{"confirmed":false,"comment":"no"}}"#
    );
    assert_eq!(
        respond(RequestKind::Confirmation, &[]).unwrap_err()[0].0,
        "/response/confirmed"
    );
    let no = [
        ("confirmed", "false"),
        ("comment", "not so"),
        ("then", "cancel"),
    ];
    let body = respond(RequestKind::Confirmation, &no).unwrap();
    assert_eq!(
        body,
        r#"{"action":"reject","then":"cancel","reason":"not so"}"#
    );
    let plain = [("confirmed", "false"), ("comment", ""), ("then", "")];
    let body = respond(RequestKind::Confirmation, &plain).unwrap();
    assert_eq!(
        body,
        r#"{"action":"respond","response":{"confirmed":false}}"#
    );
    for said in ["true", ""] {
        let yes = respond(
            RequestKind::Confirmation,
            &[("confirmed", said), ("then", "cancel")],
        )
        .unwrap_err();
        assert_eq!(
            yes[0],
            (
                "/then".to_owned(),
                "only together with a rejection".to_owned()
            )
        );
    }
    let body = respond(
        RequestKind::Credentials,
        &[("field.email", "a@b.c"), ("field.token", "t")],
    )
    .unwrap();
    assert_eq!(
        body,
        r#"{"action":"respond","response":{"email":"a@b.c","token":"t"}}"#
    );
    let unknown = respond(
        RequestKind::Credentials,
        &[("field.email", "a"), ("field.token", "t"), ("field.x", "1")],
    );
    assert_eq!(unknown.unwrap_err()[0].0, "/field.x");
    let body = respond(
        RequestKind::ExternalResult,
        &[("field.orders", "3"), ("field.since", "")],
    )
    .unwrap();
    assert_eq!(body, r#"{"action":"respond","result":{"orders":3}}"#);
    let body = respond(
        RequestKind::Reconcile,
        &[("result", "paid"), ("result_type", "text")],
    )
    .unwrap();
    assert_eq!(body, r#"{"action":"respond","result":"paid"}"#);
    assert_eq!(
        respond(RequestKind::Reconcile, &[]).unwrap_err()[0].0,
        "/result"
    );
    let body = read(
        &sample::of_kind(RequestKind::Reconcile),
        &[("action", "retry"), ("reason", "r")],
    )
    .unwrap();
    assert_eq!(body, r#"{"action":"retry","reason":"r"}"#);
}

#[test]
fn form_without_plain_fields_is_answered_as_json() {
    let mut row = sample::of_kind(RequestKind::Guidance);
    row.spec.form = Some(json!({"type": "object", "properties": {"a": {"type": "array"}}}));
    let one = |text: &str| read(&row, &[("action", "respond"), ("result", text)]);
    assert_eq!(
        one("{\"a\": [1.50]}").unwrap(),
        r#"{"action":"respond","response":{"a": [1.50]}}"#
    );
    assert_eq!(one("{\"a\": [1.50]").unwrap_err()[0].0, "/response");
    let mut row = sample::of_kind(RequestKind::ExternalResult);
    row.spec.form = None;
    let one = |kind: &str| {
        read(
            &row,
            &[
                ("action", "respond"),
                ("result", "[1]"),
                ("result_type", kind),
            ],
        )
        .unwrap()
    };
    assert_eq!(one("json"), r#"{"action":"respond","result":[1]}"#);
    assert_eq!(one("text"), r#"{"action":"respond","result":"[1]"}"#);
}

#[test]
fn editable_text_hides_nothing_and_means_the_same() {
    let text = "{\"a\":\"x\u{202e}\u{200b}\u{e0041}é漢\",\r\n\t\"b\": 1}";
    let shown = editable_text(text);
    assert_eq!(
        shown,
        "{\"a\":\"x\\u202e\\u200b\\udb40\\udc41é漢\",\n\t\"b\": 1}"
    );
    assert_eq!(json::parse(shown.as_bytes()), json::parse(text.as_bytes()));
    assert_eq!(editable_text(&shown), shown);
}
