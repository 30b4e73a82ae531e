//! Checks the forms of the page, and the page after an invalid submission.

use std::collections::BTreeMap;

use serde_json::json;

use super::form::to_json;
use super::invalid_form::page_with_mistakes;
use super::submitted::{FormName, SubmittedForm};
use super::tests::{decider, page};
use super::{View, has_single_call_forms};
use crate::engine::{DetailCode, FieldError};
use crate::http::openapi::sample;
use crate::http::pages::language::Language;
use crate::people::Caller;
use crate::store::RequestRow;
use crate::task::decision::Action;
use crate::task::id::TaskId;
use crate::task::request::RequestKind;

/// Renders the page after `fields` were submitted with mistakes. The page shows `errors` or, if
/// `errors` is empty, the errors that [`to_json`] reports.
pub(super) fn again(
    row: &RequestRow,
    caller: &Caller,
    in_path: Option<Action>,
    fields: &[(&str, &str)],
    errors: Vec<FieldError>,
) -> String {
    let fields: BTreeMap<String, String> = fields
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    let errors = if errors.is_empty() {
        to_json(row, &fields).unwrap_err()
    } else {
        errors
    };
    let settings = sample::settings();
    let mut view = View::new(row, caller, &settings, Language::English, sample::now());
    let typed = SubmittedForm::new(row, in_path, fields, &errors, has_single_call_forms(&view));
    view.submitted = Some(&typed);
    page_with_mistakes(&view, in_path).into_string()
}

/// Returns the names of all form fields on the page.
fn names(page: &str) -> Vec<&str> {
    let mut names: Vec<&str> = page
        .split(" name=\"")
        .skip(1)
        .filter_map(|rest| rest.split_once('"'))
        .map(|(name, _)| name)
        .collect();
    names.retain(|name| *name != "viewport" && *name != "robots");
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn every_kind_offers_the_fields_it_takes() {
    let names = |kind| {
        let page = page(&sample::of_kind(kind), &decider(kind));
        names(&page)
            .into_iter()
            .filter(|name| !name.starts_with("call.") && *name != "shown_to")
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(RequestKind::Approval), ["digest", "reason", "then"]);
    assert_eq!(
        names(RequestKind::Guidance),
        ["action", "digest", "field.answer", "reason", "then"]
    );
    assert_eq!(
        names(RequestKind::Confirmation),
        ["action", "comment", "confirmed", "digest", "then"]
    );
    assert_eq!(
        names(RequestKind::Credentials),
        [
            "action",
            "digest",
            "field.email",
            "field.token",
            "reason",
            "then"
        ]
    );
    assert_eq!(
        names(RequestKind::ExternalResult),
        [
            "action",
            "digest",
            "field.orders",
            "field.since",
            "reason",
            "then"
        ]
    );
    assert_eq!(
        names(RequestKind::Reconcile),
        [
            "action",
            "digest",
            "reason",
            "result",
            "result_type",
            "then"
        ]
    );
}

#[test]
fn confirmation_has_one_yes_and_one_no() {
    let row = sample::of_kind(RequestKind::Confirmation);
    let asked = page(&row, &sample::caller());
    let buttons = |text: &str| asked.matches(text).count();
    assert_eq!(
        (
            buttons("<button"),
            buttons(">No</button>"),
            buttons(">Yes, confirmed</button>")
        ),
        (2, 1, 1),
        "{asked}"
    );
    assert!(
        asked.contains("After a no") && !asked.contains("/reject\""),
        "{asked}"
    );
    let wrong = FieldError {
        pointer: "/reason".into(),
        detail: DetailCode::AtMostBytes(4096).into(),
    };
    let no = [
        ("action", "respond"),
        ("confirmed", "false"),
        ("comment", "x"),
        ("then", "cancel"),
    ];
    let again = again(&row, &sample::caller(), None, &no, vec![wrong]);
    assert!(
        again.contains("<a href=\"#answer-comment\">")
            && again.contains("id=\"answer-comment-error\""),
        "{again}"
    );
    assert!(
        again.contains("<option value=\"cancel\" selected"),
        "{again}"
    );
}

#[test]
fn rejection_form_says_whether_it_ends_the_task_or_a_sub_agent() {
    let (root, alone) = (sample::request(), "the task is canceled");
    let mut sub = root.clone();
    sub.task_id = TaskId(uuid::Uuid::from_u128(9));
    sub.agent_path = vec!["supervisor".into(), "billing".into()];
    let told = "this agent's task is canceled, and the agent that called it is told";
    let says = |row: &RequestRow| {
        let page = page(row, &sample::approver());
        (
            page.contains(alone),
            page.contains(told),
            page.contains("the whole task tree is canceled"),
        )
    };
    assert_eq!(says(&root), (true, false, true));
    assert_eq!(says(&sub), (false, true, true));
    assert!(page(&sub, &sample::approver()).contains("supervisor › billing"));
}

#[test]
fn each_of_several_calls_offers_only_allowed_choices() {
    let row = sample::several(3);
    let many = page(&row, &sample::approver());
    assert_eq!(many.matches("<fieldset>").count(), 3);
    assert!(many.contains("Approve all 3<") && many.contains("Reject all 3 and cancel the task<"));
    for call in &row.spec.pending_tool_calls {
        let name = format!("name=\"call.{}.action\"", call.tool_call_id);
        assert!(many.matches(&name).count() >= 3, "leave, approve, reject");
        assert!(
            many.contains(&format!("{name} value=\"\" checked")),
            "no choice is preselected"
        );
    }
    let mut narrow = row.clone();
    narrow.spec.terms.allow = vec![Action::Reject];
    let only = page(&narrow, &sample::approver());
    assert!(
        only.contains("value=\"reject\"")
            && !only.contains("value=\"approve\"")
            && !only.contains("Approve all")
    );
    let mut context = row;
    context.spec.pending_tool_calls[1].needs_decision = false;
    let beside = page(&context, &sample::approver());
    assert_eq!(beside.matches("<fieldset>").count(), 2);
    assert!(beside.contains("Shown for context, not for you to decide"));
}

#[test]
fn schema_form_has_matching_inputs() {
    let mut row = sample::of_kind(RequestKind::ExternalResult);
    row.spec.form = Some(
        json!({"type": "object", "required": ["mail", "sure"], "properties": {
        "mail": {"type": "string", "format": "email", "title": "Address", "description": "Where it <went>", "maxLength": 90},
        "site": {"type": "string", "format": "uri"}, "day": {"type": "string", "format": "date"},
        "count": {"type": "integer", "minimum": 1, "maximum": 9}, "share": {"type": "number"},
        "sure": {"type": "boolean"}, "colour": {"enum": ["red", "blue"]}, "note": {"type": "string", "minLength": 2}}}),
    );
    let page = page(&row, &sample::caller());
    for expected in [
        "name=\"field.mail\" type=\"email\" required autocomplete=\"off\" aria-describedby=\"answer-field_2e_mail-hint\"",
        "id=\"answer-field_2e_mail-hint\"><bdi>Where it &lt;went&gt;",
        "<label for=\"answer-field_2e_mail\"><bdi>Address</bdi></label>",
        "name=\"field.site\" type=\"url\"",
        "name=\"field.day\" type=\"date\"",
        "name=\"field.count\" type=\"number\" step=\"1\" min=\"1\" max=\"9\"",
        "name=\"field.share\" type=\"number\" step=\"any\"",
        "<select id=\"answer-field_2e_sure\" name=\"field.sure\" required",
        "<option value=\"blue\">blue</option>",
        "name=\"field.note\" rows=\"2\"",
        "<bdi>note</bdi> <span class=\"soft\">(optional)</span>",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    assert!(
        !page.contains("minlength") && !page.contains("maxlength"),
        "a browser counts a character beyond U+FFFF twice: {page}"
    );
    row.spec.form = None;
    let free = self::page(&row, &sample::caller());
    assert!(free.contains("name=\"result\"") && free.contains("<option value=\"text\" selected"));
    row.spec.form = Some(json!({"type": "array"}));
    assert!(self::page(&row, &sample::caller()).contains("<option value=\"json\" selected"));
}

#[test]
fn options_proposed_by_an_agent_are_offered_only_where_fully_visible() {
    let mut row = sample::of_kind(RequestKind::Guidance);
    row.spec.details = Some(json!({"options": ["<17>", "18\u{202e}", "", 4]}));
    let page = page(&row, &sample::caller());
    assert!(
        page.contains("<datalist") && page.matches("<option value=\"&lt;17&gt;\"").count() == 1
    );
    let list = page
        .split("<datalist")
        .nth(1)
        .unwrap()
        .split("</datalist>")
        .next()
        .unwrap();
    assert_eq!(list.matches("<option").count(), 1);
}

#[test]
fn invalid_answer_comes_back_with_the_typed_values() {
    let row = sample::of_kind(RequestKind::ExternalResult);
    let fields = [
        ("action", "respond"),
        ("field.orders", "three"),
        ("field.since", "2026-01-02"),
        ("reason", ""),
    ];
    let page = again(&row, &sample::caller(), None, &fields, Vec::new());
    assert!(page.contains("<title>Error: "), "{page}");
    assert!(page.contains("<a href=\"#answer-field_2e_orders\">orders</a>: a whole number"));
    assert!(page.find("role=\"alert\"").unwrap() < page.find("<h1 ").unwrap());
    assert!(page.contains(
        "<p class=\"error\" id=\"answer-field_2e_orders-error\">Error: a whole number</p>"
    ));
    assert!(page.contains(
        "value=\"three\" aria-invalid=\"true\" aria-describedby=\"answer-field_2e_orders-error\""
    ));
    assert!(page.contains("value=\"2026-01-02\""));
}

#[test]
fn mistake_inside_an_edit_is_shown_at_its_place() {
    let row = sample::several(2);
    let mut row = row;
    row.spec.terms.allow = vec![
        Action::Approve,
        Action::Reject,
        Action::Edit,
        Action::Respond,
    ];
    let id = row.spec.pending_tool_calls[1].tool_call_id.to_string();
    let (action, arguments) = (format!("call.{id}.action"), format!("call.{id}.arguments"));
    let wrong = FieldError {
        pointer: format!("/decisions/{id}/arguments/amount"),
        detail: "more than 0".into(),
    };
    let fields = [
        (action.as_str(), "edit"),
        (arguments.as_str(), "{\"amount\":-1}\n"),
    ];
    let page = again(&row, &sample::approver(), None, &fields, vec![wrong]);
    assert!(
        page.contains("refund_payment: ") && page.contains("<code>/amount</code> more than 0"),
        "{page}"
    );
    let reason = [("reason", "x"), ("then", "continue")];
    let wrong = FieldError {
        pointer: "/reason".into(),
        detail: DetailCode::AtMostBytes(4096).into(),
    };
    let page = again(
        &row,
        &sample::approver(),
        Some(Action::Reject),
        &reason,
        vec![wrong],
    );
    assert!(
        page.contains("href=\"#reject-reason\"") && page.contains("id=\"reject-reason-error\"")
    );
    assert!(
        !page.contains("id=\"approve-reason-error\""),
        "only in the form that was posted"
    );
    assert!(page.contains("<option value=\"continue\" selected"));
}

#[test]
fn credential_that_no_tool_takes_says_so_instead_of_naming_receivers() {
    let mut row = sample::of_kind(RequestKind::Credentials);
    let none = "No tool of this agent or of its sub-agents takes it.";
    assert!(!page(&row, &sample::caller()).contains(none));
    row.spec.form.as_mut().unwrap()["x-receivers"] = json!([]);
    assert!(page(&row, &sample::caller()).contains(none));
}

#[test]
fn credentials_are_never_shown_again() {
    let row = sample::of_kind(RequestKind::Credentials);
    let fields = [
        ("action", "respond"),
        ("field.email", "me@acme.example"),
        ("field.token", ""),
        ("reason", ""),
    ];
    let page = again(&row, &sample::caller(), None, &fields, Vec::new());
    assert!(
        page.contains("a value is required") && page.contains("your input was not kept"),
        "{page}"
    );
    assert!(!page.contains("me@acme.example"));
    let kept: BTreeMap<String, String> = [("field.token", "hunter2"), ("reason", "r")]
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .into();
    let typed = SubmittedForm::new(&row, None, kept, &[], true);
    assert_eq!(
        typed.text(FormName::Answer, "field.token"),
        None,
        "not even kept"
    );
    assert_eq!(typed.text(FormName::Answer, "reason"), Some("r"));
    let unknown = [("action", "respond"), ("field.tokne", "hunter2hunter2")];
    assert!(!again(&row, &sample::caller(), None, &unknown, Vec::new()).contains("hunter2"));
}

#[test]
fn typed_markup_cannot_break_out_of_the_page() {
    let row = sample::of_kind(RequestKind::Reconcile);
    let fields = [
        ("action", "respond"),
        ("result", "</textarea><script>"),
        ("result_type", "json"),
        ("<x>", "<y>"),
    ];
    let page = again(&row, &sample::approver(), None, &fields, Vec::new());
    assert!(
        page.contains("&lt;/textarea&gt;&lt;script&gt;")
            && !page.contains("<script>")
            && !page.contains("<x>")
    );
}

#[test]
fn agent_field_named_like_a_form_field_stays_the_agents() {
    let mut row = sample::of_kind(RequestKind::Guidance);
    row.spec.form = Some(json!({
        "type": "object", "required": ["action", "count"],
        "properties": {"action": {"type": "string", "enum": ["approve", "reject"]}, "count": {"type": "integer"}},
    }));
    let fields = [
        ("action", "respond"),
        ("field.action", "reject"),
        ("field.count", "many"),
    ];
    let page = again(&row, &sample::caller(), None, &fields, Vec::new());
    assert!(
        page.contains("value=\"reject\" selected") && page.contains("value=\"many\""),
        "{page}"
    );
}

#[test]
fn question_of_a_server_is_shown_as_unverified_with_its_form() {
    let row = sample::of_kind(RequestKind::Elicitation);
    let page = page(&row, &sample::caller());
    for shown in [
        "files asks: Which folder?",
        "Asked by the server of the tool, not verified",
        "name=\"field.folder\"",
        "Decline",
    ] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    assert!(!page.contains("Written by the agent, not verified</p><pre"));
}

#[test]
fn page_that_a_server_names_is_shown_with_host_and_whole_address_and_no_field() {
    let mut row = sample::of_kind(RequestKind::Elicitation);
    let url = "https://xn--bcher-kva.example/login?next=1";
    row.spec.details = Some(json!({"server": "files", "tool": "add", "mode": "url", "url": url}));
    row.spec.form = Some(json!({
        "type": "object", "properties": {"opened": {"type": "boolean", "const": true}},
        "required": ["opened"], "additionalProperties": false,
    }));
    let page = page(&row, &sample::caller());
    for shown in [
        "dir=\"ltr\">xn--bcher-kva.example</strong>",
        "dir=\"ltr\">bücher.example</strong>",
        "href=\"https://xn--bcher-kva.example/login?next=1\" target=\"_blank\" rel=\"noopener noreferrer\"",
        "<input type=\"hidden\" name=\"field.opened\" value=\"true\">",
        "Done: I have visited the page",
    ] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    assert!(!page.contains("name=\"field.opened\" required"));
}

#[test]
fn choice_of_several_texts_is_a_group_of_ticks_that_are_sent_as_a_list() {
    let mut row = sample::of_kind(RequestKind::Elicitation);
    let several = json!({"type": "array", "title": "Toppings", "description": "Any <two>", "maxItems": 2,
        "items": {"type": "string", "enum": ["ham", "c<b>"]}, "uniqueItems": true});
    row.spec.form = Some(json!({
        "type": "object", "properties": {"toppings": several, "note": {"type": "string"}},
        "required": ["toppings"], "additionalProperties": false,
    }));
    let shown = page(&row, &sample::caller());
    for expected in [
        "<fieldset id=\"answer-field_2e_toppings\" tabindex=\"-1\" aria-describedby=\"answer-field_2e_toppings-hint\"><legend><bdi>Toppings</bdi></legend>",
        "<bdi>Any &lt;two&gt;</bdi>",
        "<input type=\"checkbox\" id=\"answer-field_2e_toppings-1\" name=\"choice.1.toppings\" value=\"c&lt;b&gt;\" autocomplete=\"off\">",
        "<label for=\"answer-field_2e_toppings-1\"><bdi>c&lt;b&gt;</bdi></label>",
        "name=\"field.note\"",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let body = |fields: &[(&str, &str)]| {
        let fields = fields
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        to_json(&row, &fields.collect())
    };
    let both = [
        ("action", "respond"),
        ("choice.0.toppings", "ham"),
        ("choice.1.toppings", "c<b>"),
    ];
    let sent = r#"{"action":"respond","response":{"toppings":["ham","c<b>"]}}"#;
    assert_eq!(body(&both).unwrap(), sent);
    let none = r#"{"action":"respond","response":{"toppings":[]}}"#;
    assert_eq!(body(&both[..1]).unwrap(), none);
    let other = [("action", "respond"), ("choice.0.toppings", "fish")];
    assert_eq!(body(&other).unwrap_err()[0].pointer, "/response/toppings");
    assert!(body(&[("action", "respond"), ("choice.2.toppings", "ham")]).is_err());
    let wrong = FieldError {
        pointer: "/response/toppings".to_owned(),
        detail: "must have at most 1 elements".into(),
    };
    let again = again(&row, &sample::caller(), None, &both, vec![wrong]);
    assert!(again.contains("<a href=\"#answer-field_2e_toppings\">toppings</a>"));
    assert_eq!(again.matches(" checked").count(), 2, "{again}");
}
