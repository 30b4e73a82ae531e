//! Tests of requests as the API shows them: their members, long arguments, and the members that
//! depend on the caller.

use super::*;
use crate::http::openapi::sample;
use serde_json::json;

#[test]
fn arguments_are_shown_only_where_their_text_is_unambiguous() {
    assert_eq!(arguments(r#"{"a":[1,"x"]}"#), Some(json!({"a": [1, "x"]})));
    assert_eq!(
        (arguments(""), arguments(" \n")),
        (Some(json!({})), Some(json!({})))
    );
    for text in [
        r#"{"a":1,"a":1}"#,
        r#"{"a":{"b":1,"\u0062":2}}"#,
        "{",
        "{}{}",
        "nope",
        r#""\ud800""#,
        "NaN",
    ] {
        assert_eq!(arguments(text), None, "{text}");
    }
}

#[test]
fn request_shows_every_member() {
    let row = sample::request();
    let shown = serde_json::to_value(InterventionRequest::for_caller(
        &row,
        &sample::approver(),
        &sample::settings(),
    ))
    .unwrap();
    let id = row.spec.request_id;
    let call = &row.spec.pending_tool_calls[0];
    assert_eq!(
        shown,
        json!({
            "request_id": id.to_string(), "task_id": row.task_id.to_string(), "root_task_id": row.root_task_id.to_string(),
            "session_id": "desk-7", "agent_path": ["billing"], "kind": "approval", "status": "pending",
            "message": "Human intervention required.",
            "tool_calls": [{
                "tool_call_id": call.tool_call_id.to_string(), "name": "refund_payment", "arguments": {"amount": 120, "order": 17},
                "arguments_text": "{\"amount\":120, \"order\":17}", "effect": "once",
                "target": "POST http://payments.internal/refunds", "summary": "Refund 120 for order 17", "warnings": [],
                "needs_decision": true, "verdict": "hold", "rule": "large-refund", "reason": "Refunds above 20 need finance.",
                "parameters": call.parameters, "approvals": [], "remember": null, "digest": call.digest, "decision": null, "truncated": false
            }],
            "approvers": {"owner": false, "users": [], "groups": ["finance"], "required": 1},
            "allowed_actions": ["approve", "reject", "edit", "respond"], "can_decide": true,
            "question": null, "details": null, "form": null,
            "url": format!("http://127.0.0.1:8080/resume/{id}"),
            "approval_url": format!("http://127.0.0.1:8080/resume/{id}/approve"),
            "rejection_url": format!("http://127.0.0.1:8080/resume/{id}/reject"),
            "digest": row.spec.digest, "created_at": "2026-11-03T09:30:00.250000Z",
            "expires_at": "2026-11-04T09:30:00.250000Z", "decision": null
        })
    );
}

#[test]
fn call_that_may_have_run_before_a_restore_is_marked_while_open() {
    let mut row = RequestRow {
        history_uncertain: true,
        ..sample::request()
    };
    let codes = |row: &RequestRow| {
        let shown = InterventionRequest::for_caller(row, &sample::approver(), &sample::settings());
        shown.tool_calls[0]
            .warnings
            .iter()
            .map(|warning| warning.code.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(codes(&row), ["may_already_have_run"]);
    row.spec.pending_tool_calls[0].warnings = vec![Warning::may_already_have_run()];
    assert_eq!(codes(&row), ["may_already_have_run"], "said once");
    row.spec.pending_tool_calls[0].warnings.clear();
    row.status = status::RequestStatus::Resumed;
    assert!(codes(&row).is_empty());
    row.status = status::RequestStatus::Pending;
    row.spec.pending_tool_calls[0].effect = tool_spec::Effect::ReadOnly;
    assert!(codes(&row).is_empty());
}

#[test]
fn person_who_may_not_decide_is_offered_nothing() {
    let row = sample::request();
    let shown = InterventionRequest::for_caller(&row, &sample::caller(), &sample::settings());
    assert!(!shown.can_decide && shown.allowed_actions.is_empty());
}

#[test]
fn overdue_request_is_pending_but_takes_no_answer_until_it_is_closed() {
    let mut row = RequestRow {
        expired: true,
        ..sample::request()
    };
    let shown = InterventionRequest::for_caller(&row, &sample::approver(), &sample::settings());
    assert_eq!(
        (shown.status, shown.can_decide),
        (WireRequestStatus::Pending, false)
    );
    assert!(shown.allowed_actions.is_empty());
    row.status = status::RequestStatus::Expired;
    let shown = InterventionRequest::for_caller(&row, &sample::approver(), &sample::settings());
    assert_eq!(shown.status, WireRequestStatus::Expired);
}

#[test]
fn long_arguments_are_cut_in_lists_only() {
    let mut row = sample::request();
    let whole = |row: &RequestRow| {
        InterventionRequest::for_caller(row, &sample::approver(), &sample::settings())
    };
    let listed = |row: &RequestRow| {
        InterventionRequest::listed(row, &sample::approver(), &sample::settings())
    };
    // Each `é` has two bytes, so the text is longer than `MAX_LISTED_ARGUMENT_BYTES`.
    let text = format!(r#"{{"a":"{}"}}"#, "é".repeat(MAX_LISTED_ARGUMENT_BYTES / 2));
    row.spec.pending_tool_calls[0]
        .arguments_text
        .clone_from(&text);
    let (all, cut) = (
        whole(&row).tool_calls.remove(0),
        listed(&row).tool_calls.remove(0),
    );
    assert!(!all.truncated && all.arguments.is_some() && all.arguments_text == text);
    assert!(cut.truncated && cut.arguments.is_none());
    assert!(
        text.starts_with(&cut.arguments_text)
            && (MAX_LISTED_ARGUMENT_BYTES - 3..=MAX_LISTED_ARGUMENT_BYTES)
                .contains(&cut.arguments_text.len())
    );
    assert_eq!((cut.digest, cut.summary), (all.digest, all.summary));
    row.spec.pending_tool_calls[0].arguments_text = "x".repeat(MAX_LISTED_ARGUMENT_BYTES);
    assert_eq!(listed(&row), whole(&row), "16 KiB are not over 16 KiB");
}

#[test]
fn call_that_can_never_run_has_no_digest() {
    let mut call = sample::request().spec.pending_tool_calls[0].clone();
    assert!(call_as_opened(&call).digest.is_some());
    call.verdict = verdict::Verdict::Invalid;
    assert_eq!(
        call_as_opened(&call).digest,
        None,
        "its arguments do not fit"
    );
    call.digest = String::new();
    assert_eq!(call_as_opened(&call).digest, None, "its tool is not known");
}

#[test]
fn configured_request_url_replaces_the_built_in_page() {
    let row = sample::request();
    let mut settings = sample::settings();
    settings.request_url = Some("https://app.example/r/{request_id}".into());
    let shown = InterventionRequest::for_caller(&row, &sample::caller(), &settings);
    assert_eq!(
        shown.url,
        format!("https://app.example/r/{}", row.spec.request_id)
    );
    assert!(
        shown
            .approval_url
            .unwrap()
            .starts_with("http://127.0.0.1:8080/resume/")
    );
}

#[test]
fn ambiguous_arguments_are_not_shown_as_json() {
    let mut call = sample::request().spec.pending_tool_calls[0].clone();
    call.arguments_text = r#"{"a":1,"a":2}"#.into();
    assert_eq!(call_as_opened(&call).arguments, None);
}
