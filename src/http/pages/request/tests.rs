//! Checks that all facts come before the page's first button, and that no text becomes markup.

use serde_json::json;

use super::{View, request_page, single_action_page};
use crate::http::openapi::sample;
use crate::http::pages::language::Language;
use crate::people::Caller;
use crate::store::RequestRow;
use crate::task::decision::Action;
use crate::task::request::{RequestKind, Warning};
use crate::task::status::RequestStatus;
use crate::task::verdict::Approvers;

pub(crate) fn page_in(language: Language, row: &RequestRow, caller: &Caller) -> String {
    without_footer(
        &request_page(&View::new(
            row,
            caller,
            &sample::settings(),
            language,
            sample::now(),
        ))
        .into_string(),
    )
}

/// Returns the page without its footer, which has the sign-out button.
pub(crate) fn without_footer(page: &str) -> String {
    let (page, foot) = page.rsplit_once("<footer>").unwrap();
    assert_eq!(
        foot.matches("<button").count(),
        foot.matches("/sign-out").count()
    );
    page.to_owned()
}

pub(crate) fn page(row: &RequestRow, caller: &Caller) -> String {
    page_in(Language::English, row, caller)
}

pub(crate) fn decider(kind: RequestKind) -> Caller {
    if sample::of_kind(kind).spec.terms.approvers == Approvers::default() {
        sample::caller()
    } else {
        sample::approver()
    }
}

#[test]
fn buttons_come_after_the_last_byte_for_every_kind() {
    let hostile = "{\"a\":\"</pre></textarea><script>alert(1)</script>\u{202e}\u{0}\"}";
    let shown = "{&quot;a&quot;:&quot;&lt;/pre&gt;&lt;/textarea&gt;&lt;script&gt;alert(1)&lt;/script&gt;\\u{202e}\\u{0}&quot;}";
    for kind in RequestKind::ALL {
        for language in Language::ALL {
            let mut row = sample::of_kind(kind);
            row.spec.pending_tool_calls[0].arguments_text = hostile.into();
            row.spec.question = Some("<b>\u{202e}".into());
            row.spec.details = Some(json!({"<i>": "<u>\u{200b}"}));
            let page = page_in(language, &row, &decider(kind));
            let first = page
                .find("<button")
                .unwrap_or_else(|| panic!("{kind:?} has a button"));
            let last = page
                .rfind(shown)
                .unwrap_or_else(|| panic!("{kind:?} shows every byte: {page}"));
            assert!(last < first, "{kind:?}");
            assert!(
                page.matches("<script").count() == 2
                    && page.contains("<script src=\"/times.js\" defer></script>")
                    && page.contains("<script src=\"/follow.js\" defer></script>")
            );
            assert!(!page.contains("<b>") && !page.contains("<u>") && !page.contains("<i>"));
            assert!(
                !page.contains('\u{202e}') && !page.contains('\u{200b}') && !page.contains('\0')
            );
        }
    }
}

#[test]
fn long_text_is_shown_to_its_last_byte() {
    let mut row = sample::request();
    let long = format!("{{\"a\":\"{}END\"}}", "<x>".repeat(34_000));
    row.spec.pending_tool_calls[0]
        .arguments_text
        .clone_from(&long);
    let page = page(&row, &sample::approver());
    assert_eq!(page.matches("&lt;x&gt;").count() % 34_000, 0);
    assert!(page.find("END").unwrap() < page.find("<button").unwrap());
}

#[test]
fn every_form_carries_the_digest_of_what_was_shown_and_the_user_of_its_page() {
    for kind in RequestKind::ALL {
        let row = sample::of_kind(kind);
        let page = page(&row, &decider(kind));
        let forms = page.matches("<form ").count();
        let digest = format!(
            "<input type=\"hidden\" name=\"digest\" value=\"{}\">",
            row.spec.digest
        );
        let user = decider(kind).user_id;
        let user = format!("<input type=\"hidden\" name=\"shown_to\" value=\"{user}\">");
        let both = page.matches(&(digest + &user)).count();
        assert!(forms > 0 && both == forms, "{kind:?}");
    }
    let row = sample::several(3);
    let page = page(&row, &sample::approver());
    let digest = format!("name=\"digest\" value=\"{}\"", row.spec.digest);
    assert_eq!(
        page.matches("<form ").count(),
        page.matches(&digest).count()
    );
}

#[test]
fn call_is_shown_with_all_its_details() {
    let mut row = sample::request();
    let warning = Warning {
        code: "x".into(),
        pointer: "/order".into(),
        detail: "Looks <odd>.".into(),
    };
    row.spec.pending_tool_calls[0].warnings = vec![warning];
    let page = page(&row, &sample::approver());
    for shown in [
        "<bdi>billing asks</bdi> · <bdi>alice’s task</bdi> · ",
        ">23 h left</time>",
        "<h1 class=\"exact\">Refund 120 for order 17</h1>",
        "<title>Refund 120 for order 17 · Holdpoint</title>",
        "<p class=\"why\">Refunds above 20 need finance.</p>",
        "<td class=\"exact\">POST http://payments.internal/refunds</td>",
        "This cannot be undone here.",
        "once: cannot be undone here",
        "held for a person",
        "large-refund",
        "{&quot;amount&quot;:120, &quot;order&quot;:17}",
        "Warning: Looks &lt;odd&gt;. <code>/order</code>",
        "group finance",
        "2026-11-04 09:30:00 UTC</time> · in 23 h",
        " · 2 min ago",
    ] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    assert!(page.contains("Written by the agent, not verified. Exactly this runs."));
}

#[test]
fn agent_text_stands_in_its_box_and_operator_text_outside() {
    let row = sample::of_kind(RequestKind::Guidance);
    let guidance = page(&row, &sample::caller());
    let boxes: Vec<&str> = guidance.split("class=\"agent\"").skip(1).collect();
    assert_eq!(boxes.len(), 2, "question, form");
    assert!(boxes[0].starts_with(
        "><p class=\"by\">Written by the agent, not verified</p><pre class=\"exact words\" dir=\"ltr\">Which order is meant?"
    ));
    assert!(boxes[1].contains("The agent's questions, not verified"));
    assert!(guidance.contains("The agent reads your answer. It approves no call."));
    let row = sample::of_kind(RequestKind::Credentials);
    let login = page(&row, &sample::caller());
    let end = login.rfind("class=\"agent\"").unwrap();
    let outside = &login[end + login[end..].find("</div>").unwrap()..];
    for shown in [
        "Login of the caller's Jira.",
        "comment_ticket: POST https://jira.acme.com",
        "It is sealed",
        "deleted after 8 h at the latest",
    ] {
        assert!(outside.contains(shown), "{shown}");
    }
    assert_eq!(outside.matches("type=\"password\"").count(), 2);
    assert!(!login.contains("approves nothing"));
}

#[test]
fn person_who_may_not_decide_gets_no_button_but_the_reason() {
    let row = sample::request();
    let reader = page(&row, &sample::caller());
    assert!(!reader.contains("<button") && reader.contains("Other people decide this request"));
    for (status, said) in [
        (RequestStatus::Responded, "Approved by bob."),
        (RequestStatus::Resumed, "Approved by bob."),
        (RequestStatus::Expired, "No answer came in time."),
        (RequestStatus::Withdrawn, "Withdrawn."),
    ] {
        let mut closed = RequestRow {
            status,
            ..row.clone()
        };
        if matches!(status, RequestStatus::Responded | RequestStatus::Resumed) {
            let call = row.spec.pending_tool_calls[0].tool_call_id;
            closed.answers = sample::answer("bob", Action::Approve, &[call], true)
                .into_iter()
                .collect();
        }
        let page = page(&closed, &sample::approver());
        assert!(
            page.contains("<p id=\"headline\" class=\"exact state ")
                && page.contains(&format!("\">{said}</p>")),
            "{said}: {page}"
        );
        assert!(
            page.contains(&format!(
                "<title>{said} · Refund 120 for order 17 · Holdpoint</title>"
            )),
            "{said}"
        );
        assert!(
            !page.contains("<button") && !page.contains("h left</time>"),
            "{said}"
        );
        assert!(page.contains("<bdi>billing asked</bdi>"), "{said}");
    }
}

#[test]
fn overdue_request_page_takes_no_answer_and_says_why_before_it_is_closed() {
    let row = RequestRow {
        expired: true,
        ..sample::request()
    };
    let page = page(&row, &sample::approver());
    let why = "<p><strong>Nothing to decide here.</strong> This request has expired.</p>";
    assert!(
        page.contains("No answer came in time.") && page.contains(why),
        "{page}"
    );
    assert!(
        !page.contains("<button") && !page.contains("h left</time>"),
        "{page}"
    );
}

#[test]
fn page_for_other_approvers_offers_another_account_and_the_way_back() {
    let reader = page(&sample::request(), &sample::caller());
    let next = format!("/resume/{}", sample::request().spec.request_id);
    assert!(
        reader.contains(&format!(
            "<a href=\"/sign-in?next={next}\">Sign in as another user</a>"
        )),
        "{reader}"
    );
    assert!(
        reader.contains("Signed in as <strong class=\"exact\">alice</strong> (acme) <a"),
        "{reader}"
    );
    assert!(!page(&sample::request(), &sample::approver()).contains("another user"));
    let nobody = Caller {
        without_accounts: true,
        ..sample::approver()
    };
    let decided = RequestRow {
        status: RequestStatus::Withdrawn,
        ..sample::request()
    };
    assert!(!page(&decided, &nobody).contains("another user"));
}

#[test]
fn agent_text_is_shown_in_the_order_of_its_characters() {
    let hostile = "[\"from-א\",\"100\",\"200\",\"ב-to\"]";
    let shown = hostile.replace('"', "&quot;");
    for kind in RequestKind::ALL {
        let mut row = sample::of_kind(kind);
        row.spec.pending_tool_calls[0].arguments_text = hostile.into();
        row.spec.pending_tool_calls[0].summary = format!("Pay {hostile}");
        if row.spec.question.is_some() {
            row.spec.question = Some(hostile.into());
        }
        row.spec.details = Some(json!({hostile: hostile, "list": [hostile]}));
        let page = page(&row, &decider(kind));
        for (at, _) in page.match_indices(&shown) {
            let before = &page[..at];
            let element = &before[before.rfind('<').unwrap()..];
            let ours = kind == RequestKind::Reconcile
                && (element.starts_with("<dd>") || element.starts_with("<dt>"));
            assert!(
                element.contains("=\"exact")
                    || element.contains(" exact\"")
                    || element.starts_with("<title>\u{202d}")
                    || ours,
                "{kind:?}: {element}"
            );
        }
        assert!(page.contains(&shown), "{kind:?}");
    }
    let options = json!({"options": ["17", "from-א 100"]});
    let row = RequestRow {
        spec: crate::task::request::RequestSpec {
            details: Some(options),
            ..sample::of_kind(RequestKind::Guidance).spec
        },
        ..sample::request()
    };
    let page = page(&row, &sample::caller());
    assert!(
        page.contains("<option value=\"17\">") && !page.contains("<option value=\"from-א 100\">"),
        "{page}"
    );
}

#[test]
fn question_of_the_agent_has_no_card_of_a_call_and_its_warnings_stand_above_it() {
    for kind in [
        RequestKind::Guidance,
        RequestKind::Confirmation,
        RequestKind::Credentials,
    ] {
        let mut row = sample::of_kind(kind);
        row.spec.pending_tool_calls[0].warnings = vec![Warning {
            code: "x".into(),
            pointer: "/question".into(),
            detail: "Looks <odd>.".into(),
        }];
        let page = page(&row, &sample::caller());
        for of_a_call in [
            "<dt>Effect</dt>",
            "<dt>Verdict</dt>",
            ">Goes to<",
            "cannot be undone",
        ] {
            assert!(!page.contains(of_a_call), "{kind:?}: {of_a_call}");
        }
        let (warning, text) = (
            page.find("Looks &lt;odd&gt;.").unwrap(),
            page.find("class=\"agent\"").unwrap(),
        );
        assert!(warning < text, "{kind:?}");
        assert!(
            page.contains("The exact text that the agent wrote"),
            "{kind:?}"
        );
    }
    let mut login = sample::of_kind(RequestKind::Credentials);
    login.spec.pending_tool_calls[0].name = "comment_ticket".into();
    assert!(
        page(&login, &sample::caller()).contains("<dt>Effect</dt>"),
        "a call that waits for a login is to run"
    );
    assert!(
        page(
            &sample::of_kind(RequestKind::Reconcile),
            &sample::approver()
        )
        .contains("<dt>Effect</dt>")
    );
}

#[test]
fn page_names_approvers_so_far_and_those_missing() {
    let mut row = sample::request();
    let call = row.spec.pending_tool_calls[0].tool_call_id;
    row.spec.terms.approvers.required = 2;
    row.spec.terms.approvers.users = vec!["bob".into(), "dana".into()];
    row.answers = sample::answer("bob", Action::Approve, &[call], false)
        .into_iter()
        .collect();
    let mine = page(&row, &sample::approver());
    assert!(
        mine.contains("1 of 2; still needed: 1 of user dana, group finance"),
        "{mine}"
    );
    assert!(mine.contains("<li><bdi>bob</bdi> · <time datetime=\"2026-11-03T09:31:00.000000Z\">"));
    assert!(
        mine.contains("You have answered; other people have not answered yet.")
            && !mine.contains("<button")
    );
    let dana = Caller {
        user_id: "dana".into(),
        ..sample::approver()
    };
    assert!(page(&row, &dana).contains("<button"));
    row.answers
        .extend(sample::answer("dana", Action::Approve, &[call], true));
    row.status = RequestStatus::Resumed;
    let after = page(&row, &dana);
    assert!(
        after.contains("2 of 2<ul>")
            && after.contains("<strong>Approved</strong> <bdi>by dana</bdi> · <time"),
        "{after}"
    );
}

#[test]
fn decisions_are_shown_for_each_call_and_the_whole_request() {
    let mut row = sample::several(2);
    let [first, second] =
        [0, 1].map(|index: usize| row.spec.pending_tool_calls[index].tool_call_id);
    row.answers = sample::answer("bob", Action::Reject, &[first], false)
        .into_iter()
        .collect();
    let half = page(&row, &sample::approver());
    assert!(
        half.contains("<strong>Rejected</strong> <bdi>by bob</bdi> · <time")
            && half.contains("So it is.")
    );
    assert!(
        half.contains("Approve") && !half.contains(&format!("call.{first}.action")),
        "the decided one is not offered"
    );
    row.answers
        .extend(sample::answer("eve", Action::Approve, &[second], true));
    row.status = RequestStatus::Responded;
    assert!(page(&row, &sample::approver()).contains("Calls were decided differently"));
}

#[test]
fn credentials_are_shown_by_name_only() {
    let mut row = sample::of_kind(RequestKind::Credentials);
    let call = row.spec.pending_tool_calls[0].tool_call_id;
    let (at, mut answer) = sample::answer("alice", Action::Respond, &[call], true).unwrap();
    answer.response = Some(json!({"email": null, "token": "hunter2hunter2"}));
    row.answers = vec![(at, answer)];
    row.status = RequestStatus::Resumed;
    let page = page(&row, &sample::caller());
    assert!(page.contains("token") && page.contains("(kept sealed)") && !page.contains("hunter2"));
}

#[test]
fn page_for_one_action_has_one_button_or_none() {
    let one = |row: &RequestRow, caller: &Caller, action| {
        let settings = sample::settings();
        let view = View::new(row, caller, &settings, Language::English, sample::now());
        let refusal = view.refusal_reason(action);
        without_footer(&single_action_page(&view, action, refusal).into_string())
    };
    let (row, bob) = (sample::request(), sample::approver());
    for action in [Action::Approve, Action::Reject] {
        assert_eq!(one(&row, &bob, action).matches("<button").count(), 1);
        let expired = RequestRow {
            expired: true,
            ..row.clone()
        };
        let expired = one(&expired, &bob, action);
        assert!(
            !expired.contains("<button")
                && expired.contains("</strong> This request has expired.</p>")
        );
        let decided = RequestRow {
            status: RequestStatus::Resumed,
            ..row.clone()
        };
        assert!(
            one(&decided, &bob, action).contains("is decided")
                && !one(&decided, &bob, action).contains("<button")
        );
        let alice = one(&row, &sample::caller(), action);
        assert!(alice.contains("Other people decide this request") && !alice.contains("<button"));
    }
    for kind in RequestKind::ALL {
        let page = one(&sample::of_kind(kind), &decider(kind), Action::Approve);
        let has = kind.can_be_approved();
        assert_eq!(
            page.matches("<button").count(),
            usize::from(has),
            "{kind:?}"
        );
        assert_eq!(page.contains("does not take this answer"), !has, "{kind:?}");
        assert_eq!(
            one(&sample::of_kind(kind), &decider(kind), Action::Reject)
                .matches("<button")
                .count(),
            1
        );
    }
    let mut narrow = row;
    narrow.spec.terms.allow = vec![Action::Reject];
    let page = one(&narrow, &bob, Action::Approve);
    assert!(page.contains("The rule does not allow this answer.") && !page.contains("<button"));
}

#[test]
fn page_is_in_one_language() {
    for kind in RequestKind::ALL {
        let page = page_in(Language::Chinese, &sample::of_kind(kind), &decider(kind));
        assert!(
            page.contains("<html lang=\"zh-Hans\">") && page.contains("您的答复"),
            "{kind:?}"
        );
        for english in [
            "Approve",
            "Reject",
            "Decline",
            "Your answer",
            "Reason",
            "Waits",
            "optional",
        ] {
            assert!(!page.contains(english), "{kind:?}: {english}");
        }
    }
}
