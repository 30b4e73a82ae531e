//! Checks the order and the emphasis of the parts of the page. All facts for the decision, with
//! every byte of the calls' arguments, come before the first button. The parts that only some
//! readers need come last, and are folded.

use std::collections::BTreeMap;

use serde_json::json;

use super::form::to_json;
use super::history::RequestHistory;
use super::tests::page;
use super::user_message::UserMessage;
use super::{View, request_page};
use crate::http::openapi::sample;
use crate::http::pages::language::Language;
use crate::store::RequestRow;
use crate::task::decision::{Action, Consequence};
use crate::task::id::RequestId;
use crate::task::item::{Fact, Item, Part, PartType};
use crate::task::request::{RequestKind, Warning};
use crate::task::status::RequestStatus;
use crate::task::text_safety::LARGE;
use crate::task::time::Time;
use crate::task::tool_spec::Effect;

/// Returns the byte offset of each of `texts` in the page. Panics if a text is missing.
fn places(page: &str, texts: &[&str]) -> Vec<usize> {
    texts
        .iter()
        .map(|text| {
            page.find(text)
                .unwrap_or_else(|| panic!("no {text}: {page}"))
        })
        .collect()
}

fn labeled(mut row: RequestRow) -> RequestRow {
    for call in &mut row.spec.pending_tool_calls {
        call.parameters = json!({"type": "object", "required": ["order", "amount"], "properties": {
            "order": {"type": "integer", "title": "Order number"},
            "amount": {"type": "number", "title": "Amount", "description": "In <euros>."}}});
    }
    row
}

fn warning() -> Warning {
    Warning {
        code: "x".into(),
        pointer: "/order".into(),
        detail: "Looks odd.".into(),
    }
}

#[test]
fn page_leads_from_the_question_to_the_buttons_and_then_to_the_rest() {
    let mut row = labeled(sample::request());
    row.spec.pending_tool_calls[0].warnings = vec![warning()];
    let page = page(&row, &sample::approver());
    let found = places(
        &page,
        &[
            "billing asks",
            "<h1 ",
            "class=\"why\"",
            "<table class=\"arguments\"",
            "Amount<span class=\"hint\">In &lt;euros&gt;.</span>",
            "Order number <span class=\"exact name\">order</span>",
            "POST http://payments.internal/refunds",
            "{&quot;amount&quot;:120, &quot;order&quot;:17}",
            "Looks odd.",
            "This cannot be undone here.",
            "id=\"decide-reason\"",
            ">Approve</button>",
            ">Reject and cancel the task</button>",
            "Change…",
            "Give the result yourself…",
            "Reject in another way…",
            ">Details</summary>",
            ">History</h2>",
        ],
    );
    assert!(found.is_sorted(), "{found:?}");
    assert_eq!(page.matches("id=\"decide-reason\"").count(), 1);
}

#[test]
fn page_begins_with_a_link_past_the_navigation_to_the_question() {
    let page = page(&sample::request(), &sample::approver());
    let found = places(
        &page,
        &[
            "<a class=\"skip\" href=\"#content\">",
            "<nav ",
            "id=\"content\" tabindex=\"-1\"",
            "<h1 ",
        ],
    );
    assert!(found.is_sorted(), "{found:?}");
}

#[test]
fn context_of_a_gate_call_stands_below_the_call_and_is_folded_after_two_kibibytes() {
    let (row, approver) = (labeled(sample::request()), sample::approver());
    let shown = |text: &str, is_context| {
        let items = vec![Part {
            content_type: PartType::Text,
            content: text.to_owned(),
        }];
        let settings = &sample::settings();
        let mut view = View::new(&row, &approver, settings, Language::English, sample::now());
        view.user_message = Some(UserMessage::new("alice".to_owned(), items, is_context));
        request_page(&view).into_string()
    };
    let text = format!("{}é", "x".repeat(2046));
    let context = shown(&text, true);
    let found = places(
        &context,
        &[
            "<h1 ",
            "<table class=\"arguments\"",
            "{&quot;amount&quot;:120, &quot;order&quot;:17}",
            "alice’s agent says (unverified)",
            text.as_str(),
            ">Approve</button>",
        ],
    );
    assert!(found.is_sorted(), "{found:?}");
    assert!(!context.contains("the whole message"), "{context}");
    let long = format!("x{text}");
    let folded = shown(&long, true);
    let beginning = format!(">x{}…</blockquote>", "x".repeat(2046));
    let found = places(
        &folded,
        &[beginning.as_str(), "the whole message", long.as_str()],
    );
    assert!(found.is_sorted(), "{found:?}");
    let message = shown(&text, false);
    let found = places(
        &message,
        &[
            "alice wrote",
            format!(">{}…</blockquote>", "x".repeat(240)).as_str(),
            "<table class=\"arguments\"",
        ],
    );
    assert!(found.is_sorted(), "{found:?}");
    assert!(!shown("", true).contains("class=\"said\""));
}

#[test]
fn exact_text_is_folded_only_where_the_table_shows_it_well() {
    let open = "<details class=\"raw\" open>";
    let mut row = sample::request();
    let plain = page(&row, &sample::approver());
    assert!(
        plain.contains("<details class=\"raw\">") && !plain.contains(open),
        "{plain}"
    );
    row.spec.pending_tool_calls[0].warnings = vec![warning()];
    assert!(page(&row, &sample::approver()).contains(open));
    row.spec.pending_tool_calls[0].warnings = Vec::new();
    for text in [
        r#"{"amount":1,"amount":2}"#,
        "[1]",
        "{",
        &format!("{{\"a\":\"{}\"}}", "x".repeat(64 * 1024)),
    ] {
        text.clone_into(&mut row.spec.pending_tool_calls[0].arguments_text);
        let page = page(&row, &sample::approver());
        assert!(page.contains(open), "{text}");
        assert!(
            page.find(&text.replace('"', "&quot;")).unwrap() < page.find("<button").unwrap(),
            "{text}"
        );
    }
}

#[test]
fn long_arguments_are_a_table_above_their_folded_exact_text() {
    let mut row = sample::request();
    let call = &mut row.spec.pending_tool_calls[0];
    call.arguments_text = format!("{{\"amount\":17,\"terms\":\"{}\"}}", "x".repeat(20_000));
    call.warnings = vec![Warning {
        code: LARGE.into(),
        ..warning()
    }];
    let long = page(&row, &sample::approver());
    assert!(long.contains("<span class=\"exact value\">17</span>"));
    assert!(
        long.contains("<details class=\"raw\">") && !long.contains("<details class=\"raw\" open>")
    );
}

#[test]
fn exact_texts_of_several_calls_are_folded_only_where_columns_have_every_argument() {
    let open = "<details class=\"raw each\" open>";
    let mut row = sample::several(3);
    let columns = page(&row, &sample::approver());
    assert!(
        columns.contains("<details class=\"raw each\">"),
        "{columns}"
    );
    let names: Vec<String> = (0..7).map(|name| format!("\"n{name}\":1")).collect();
    let wide = format!("{{{}}}", names.join(","));
    for text in [
        r#"{"order":[17],"amount":1}"#,
        r#"{"order":{"id":17}}"#,
        wide.as_str(),
    ] {
        text.clone_into(&mut row.spec.pending_tool_calls[1].arguments_text);
        let page = page(&row, &sample::approver());
        assert!(page.contains(open), "{text}: {page}");
        assert!(
            page.find(&text.replace('"', "&quot;")).unwrap() < page.find("<button").unwrap(),
            "{text}"
        );
    }
}

#[test]
fn worst_effect_determines_the_risk_and_a_command_is_shown_as_code() {
    let mut row = sample::several(2);
    row.spec.pending_tool_calls[1].effect = Effect::ReadOnly;
    assert!(page(&row, &sample::approver()).contains("1 of these cannot be undone here."));
    row.spec.pending_tool_calls[0].effect = Effect::Idempotent;
    assert!(page(&row, &sample::approver()).contains("Safe to repeat"));
    let mut row = sample::request();
    let call = &mut row.spec.pending_tool_calls[0];
    call.effect = Effect::ReadOnly;
    assert!(page(&row, &sample::approver()).contains("Reads only: changes nothing."));
    let call = &mut row.spec.pending_tool_calls[0];
    call.arguments_text = r#"{"command":"rm -rf /tmp/x"}"#.into();
    call.target = "shell /srv".into();
    call.address = None;
    let page = page(&row, &sample::approver());
    assert!(
        page.contains("<pre class=\"exact shell\" dir=\"ltr\"><span class=\"exact\">rm -rf /tmp/x</span></pre>")
            && page.contains("Runs in the folder") && page.contains("<td class=\"exact\">/srv</td>")
            && page.contains("Runs this command on the server."),
        "{page}"
    );
}

#[test]
fn button_of_a_rejection_names_the_consequence_in_the_rule() {
    for (then, said) in [
        (Consequence::Continue, "Reject and let the agent go on"),
        (Consequence::Cancel, "Reject and cancel the task"),
        (Consequence::CancelRoot, "Reject and cancel the whole task"),
    ] {
        let mut row = sample::request();
        row.spec.terms.on_reject = then;
        let page = page(&row, &sample::approver());
        assert!(
            page.contains(&format!(">{said}</button>")),
            "{said}: {page}"
        );
    }
}

#[test]
fn request_of_a_changed_tool_links_the_open_request_about_the_same_call() {
    let (mut row, approver) = (sample::request(), sample::approver());
    row.status = RequestStatus::Withdrawn;
    let mut later = row.spec.clone();
    later.request_id = RequestId(uuid::Uuid::from_u128(7));
    let link = format!(
        "<a href=\"/resume/{}\">Look at the new request</a>",
        later.request_id
    );
    let decision = sample::answer("bob", Action::Approve, &[], true).unwrap().1;
    let answered = Fact::Decision {
        request_id: later.request_id,
        decision,
    };
    let settings = &sample::settings();
    let mut view = View::new(&row, &approver, settings, Language::English, sample::now());
    let mut history = RequestHistory::new(&row);
    for (fact, is_linked) in [
        (Fact::InterventionRequested(later), true),
        (answered, false),
    ] {
        history.apply(&Item {
            seq: row.asked_seq + 1,
            at: row.created_at,
            fact,
        });
        view.history = Some(history.clone());
        let page = request_page(&view).into_string();
        assert_eq!(page.contains(&link), is_linked, "{page}");
    }
}

#[test]
fn last_hour_before_the_deadline_is_marked() {
    let mut row = sample::request();
    assert!(!page(&row, &sample::approver()).contains("class=\"urgent"));
    row.expires_at = Some(Time(sample::now().0 + 600_000_000));
    assert!(
        page(&row, &sample::approver())
            .contains("<time class=\"urgent\" id=\"standing\" datetime=\"2026-11-03T09:42:00.250000Z\" data-left>10 min left</time>")
    );
    row.expires_at = None;
    assert!(page(&row, &sample::approver()).contains("no deadline"));
}

#[test]
fn several_calls_are_a_table_with_the_sum_of_the_amounts() {
    let mut row = labeled(sample::several(8));
    for (index, call) in row.spec.pending_tool_calls.iter_mut().enumerate() {
        call.arguments_text = format!("{{\"order\":{index},\"amount\":20.10}}");
    }
    let eight = page(&row, &sample::approver());
    assert!(
        eight.contains("<td class=\"exact\"></td><td class=\"exact figure\">160.80</td>")
            || eight
                .contains("<td class=\"exact figure\"></td><td class=\"exact figure\">160.80</td>"),
        "{eight}"
    );
    assert_eq!(
        eight
            .matches("<td class=\"exact figure\">20.10</td>")
            .count(),
        8
    );
    assert!(eight.contains("<h1 class=\"exact\">Refund 120 for order 17, and 7 more</h1>"));
    assert!(eight.find("&quot;order&quot;:7,").unwrap() < eight.find("<button").unwrap());
    row.spec.pending_tool_calls[3].arguments_text = "[1]".into();
    let listed = page(&row, &sample::approver());
    assert!(
        !listed.contains("<tfoot>")
            && listed.contains("<td class=\"exact\">Refund 120 for order 20</td>"),
        "{listed}"
    );
}

#[test]
fn button_that_approves_the_last_open_call_names_it_without_a_number() {
    let mut row = sample::several(3);
    let [first, second] =
        [0, 1].map(|index: usize| row.spec.pending_tool_calls[index].tool_call_id);
    for (answered, text) in [
        (vec![first], ">Approve the other 2</button>"),
        (vec![first, second], ">Approve the other call</button>"),
    ] {
        row.answers = sample::answer("carol", Action::Approve, &answered, false)
            .into_iter()
            .collect();
        let page = page(&row, &sample::approver());
        assert!(page.contains(text), "{text}: {page}");
    }
}

#[test]
fn rest_of_the_calls_is_approved_by_its_button_only() {
    let row = sample::several(3);
    let [first, second, third] =
        [0, 1, 2].map(|index: usize| row.spec.pending_tool_calls[index].tool_call_id.to_string());
    let mut fields: BTreeMap<String, String> = [
        (format!("call.{first}.action"), "reject"),
        (format!("call.{second}.action"), ""),
        (format!("call.{second}.reason"), "fine"),
        ("then".to_owned(), "continue"),
        ("rest".to_owned(), "approve"),
    ]
    .map(|(name, text)| (name, text.to_owned()))
    .into();
    let body = to_json(&row, &fields).unwrap();
    assert!(
        body.contains(&format!(
            "\"{second}\":{{\"action\":\"approve\",\"reason\":\"fine\"}}"
        )) && body.contains(&format!("\"{first}\":{{\"action\":\"reject\"")),
        "{body}"
    );
    assert!(
        !body.contains(&third),
        "a call that was not in the form stays open"
    );
    fields.remove("rest");
    assert!(
        to_json(&row, &fields).is_err(),
        "a comment without a decision"
    );
    fields.insert("rest".to_owned(), "reject".to_owned());
    assert!(to_json(&row, &fields).is_err());
}

#[test]
fn arguments_are_changed_in_fields_or_as_json_but_not_in_both() {
    let row = labeled(sample::request());
    let id = row.spec.pending_tool_calls[0].tool_call_id.to_string();
    let posted = |changes: &[(&str, &str)]| {
        let mut fields: BTreeMap<String, String> = [
            ("action", "edit"),
            ("field.order", "17"),
            ("field.amount", "120"),
            ("arguments", r#"{"amount":120, "order":17}"#),
        ]
        .map(|(name, text)| (format!("call.{id}.{name}"), text.to_owned()))
        .into();
        for (name, text) in changes {
            fields.insert(format!("call.{id}.{name}"), (*text).to_owned());
        }
        to_json(&row, &fields)
    };
    let runs = |arguments: &str| {
        format!("{{\"decisions\":{{\"{id}\":{{\"action\":\"edit\",\"arguments\":{arguments}}}}}}}")
    };
    assert_eq!(
        posted(&[("field.amount", "20.10")]).unwrap(),
        runs(r#"{"amount":20.10,"order":17}"#),
        "in the agent's order"
    );
    assert_eq!(
        posted(&[("arguments", r#"{"order":1}"#)]).unwrap(),
        runs(r#"{"order":1}"#)
    );
    let both = posted(&[("field.amount", "1"), ("arguments", "{}")]).unwrap_err();
    assert!(
        both[0].detail.to_string().starts_with("changed both"),
        "{both:?}"
    );
    let wrong = posted(&[("field.amount", "much")]).unwrap_err();
    assert_eq!(
        (
            wrong[0].pointer.as_str(),
            wrong[0].detail.to_string().as_str()
        ),
        (
            format!("/decisions/{id}/arguments/amount").as_str(),
            "a number"
        )
    );
    let unchosen = posted(&[("action", "approve"), ("field.amount", "1")]).unwrap_err();
    assert!(
        unchosen[0].detail.to_string().contains("not chosen"),
        "{unchosen:?}"
    );
    let page = page(&row, &sample::approver());
    for shown in [
        format!("name=\"call.{id}.field.amount\" type=\"text\""),
        "value=\"120\"".to_owned(),
        "formnovalidate>Approve with these changes</button>".to_owned(),
    ] {
        assert!(page.contains(&shown), "{shown}: {page}");
    }
}

#[test]
fn fields_of_the_agents_form_have_the_agents_order() {
    let mut row = sample::of_kind(RequestKind::Guidance);
    let written = r#"{"question":"Q","form":{"type":"object","properties":{"zone":{"type":"string"},"area":{"type":"string"}}}}"#;
    written.clone_into(&mut row.spec.pending_tool_calls[0].arguments_text);
    row.spec.form = Some(json!({"type": "object", "properties": {
        "area": {"type": "string"}, "zone": {"type": "string"}}}));
    let page = page(&row, &sample::caller());
    let found = places(&page, &["name=\"field.zone\"", "name=\"field.area\""]);
    assert!(found.is_sorted(), "{found:?}");
    row.spec.details = Some(json!({"context": "C", "attempted": "A"}));
    r#"{"question":"Q","context":"C","attempted":"A"}"#
        .clone_into(&mut row.spec.pending_tool_calls[0].arguments_text);
    let page = self::page(&row, &sample::caller());
    let found = places(&page, &[">context</dt>", ">attempted</dt>"]);
    assert!(found.is_sorted(), "{found:?}");
}
