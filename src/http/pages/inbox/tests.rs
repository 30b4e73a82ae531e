//! Checks that the script of the inbox turns no text into markup and sends no decision, and that a
//! row leads to the request's page of this service and counts only approvals that are needed.

use super::decided::missing_approvals_text;
use super::rows::open_row;
use super::script::SCRIPT;
use crate::http::openapi::sample;
use crate::http::pages::follow::assert_makes_no_markup;
use crate::http::pages::language::Language;
use crate::http::pages::site::Site;
use crate::people::Caller;
use crate::task::request::RequestKind;

#[test]
fn script_makes_no_markup_from_text_and_decides_nothing() {
    assert_makes_no_markup(SCRIPT);
    for way in ["POST", "fetch(", "submit"] {
        assert!(!SCRIPT.contains(way), "{way}");
    }
    assert!(SCRIPT.len() <= 12_000, "{} bytes", SCRIPT.len());
}

#[test]
fn row_leads_to_the_page_of_this_service_whatever_request_url_says() {
    let (caller, row, mut settings) = (sample::approver(), sample::request(), sample::settings());
    settings.request_url = Some("https://app.example/r/{request_id}".into());
    let site = Site {
        caller: &caller,
        prefix: String::new(),
        language: Language::English,
    };
    let shown = open_row(&site, &row, &settings, row.created_at).into_string();
    let link = format!(
        "href=\"http://127.0.0.1:8080/resume/{}\"",
        row.spec.request_id
    );
    assert!(
        shown.contains(&link) && !shown.contains("app.example"),
        "{shown}"
    );
}

#[test]
fn row_counts_approvals_only_of_a_request_that_needs_several() {
    let settings = sample::settings();
    let shown = |kind: RequestKind, caller: &Caller| {
        let mut row = sample::of_kind(kind);
        row.spec.terms.approvers.required = 2;
        let site = Site {
            caller,
            prefix: String::new(),
            language: Language::English,
        };
        let open = open_row(&site, &row, &settings, row.created_at).into_string();
        [
            open.contains("0 of 2 have approved"),
            open.contains("class=\"approved\""),
            missing_approvals_text(&site, &row, &settings).is_some(),
        ]
    };
    let local = Caller {
        without_accounts: true,
        ..sample::approver()
    };
    for kind in RequestKind::ALL {
        let needs_several = matches!(kind, RequestKind::Approval | RequestKind::Reconcile);
        assert_eq!(
            shown(kind, &sample::approver()),
            [needs_several; 3],
            "{kind:?}"
        );
        assert_eq!(shown(kind, &local), [false; 3], "{kind:?} without accounts");
    }
}
