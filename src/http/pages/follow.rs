//! `/follow.js`: a script that shows new events on the open page of a request or a task. On a new
//! event, the script loads the page of the task again, and moves the new entries from this page
//! into the log. So the server writes the text of every entry. Every page works without the script.
//!
//! Invariant: the `Content-Security-Policy` of a page that loads a script permits scripts from this
//! service's origin alone. The policy of any other page permits no script.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use maud::{Markup, html};

use super::layout::policy_with;
use super::translations::Translations;
use crate::http::server::operation::Op;

pub(crate) const OP: Op = Op::public("get_follow_script", &[]);

pub(crate) const SCRIPT: &str = include_str!("follow.js");

/// The `Content-Security-Policy` of a page with a script: scripts and event streams from this
/// service's origin.
static POLICY: LazyLock<HeaderValue> =
    LazyLock::new(|| policy_with("script-src 'self'; connect-src 'self'; "));

/// Renders a tag for each script. The scripts run in the order of `names`.
#[must_use]
pub(crate) fn script_tags(prefix: &str, names: &[&str]) -> Markup {
    html! {
        @for name in names { script src=(format!("{prefix}/{name}")) defer {} }
    }
}

/// Responds with a page that loads a script, and with the policy that permits the script.
#[must_use]
pub(crate) fn page_with_script(page: Markup) -> Response {
    ([(CONTENT_SECURITY_POLICY, POLICY.clone())], page).into_response()
}

/// Renders the log (see [`event_log`]), and above and below it the elements that the script fills
/// or shows.
#[must_use]
pub(crate) fn live_elements(words: &Translations, log: &Markup) -> Markup {
    html! {
        p.status #live-state role="status" aria-live="polite" {}
        p.soft #live-earlier hidden { (words.live_earlier) }
        (log)
        div #live-now {}
        p.soft #live-connection aria-live="polite" {}
    }
}

/// Renders the entries of a task's events up to the number `end`. The script adds the entries of
/// later events.
#[must_use]
pub(crate) fn event_log(entries: &[Markup], end: i64) -> Markup {
    html! {
        ol.timeline #live-log aria-live="polite" data-after=(end) {
            @for entry in entries { (entry) }
        }
    }
}

pub(crate) async fn get_follow_script() -> Response {
    script_response(SCRIPT)
}

/// Responds with a script. `no-cache` makes the browser revalidate the script on each load of a
/// page, so the script is never older than the page.
pub(crate) fn script_response(script: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/javascript; charset=utf-8"),
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, script).into_response()
}

/// Panics if a script names a function that turns text into markup or code.
#[cfg(test)]
pub(crate) fn assert_makes_no_markup(script: &str) {
    for way in [
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval",
        "Function(",
        "DOMParser",
    ] {
        assert!(!script.contains(way), "{way}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::http::openapi::event_schema::EVENT_COMPONENTS;
    use crate::http::pages::layout::content_security_policy;

    #[test]
    fn page_with_the_script_permits_only_that_script() {
        let others = content_security_policy();
        let response = page_with_script(html! {});
        let (others, own) = (
            others.to_str().unwrap(),
            response.headers()[CONTENT_SECURITY_POLICY]
                .to_str()
                .unwrap(),
        );
        assert!(
            !others.contains("script-src") && !others.contains("connect-src"),
            "{others}"
        );
        assert_eq!(
            own.replace("script-src 'self'; connect-src 'self'; ", ""),
            others
        );
        assert!(
            own.starts_with("default-src 'none'; ") && !own.contains("unsafe"),
            "{own}"
        );
    }

    #[test]
    fn script_makes_no_markup_from_text() {
        assert_makes_no_markup(SCRIPT);
    }

    #[test]
    fn script_listens_to_every_event_of_a_task() {
        let listed: BTreeSet<&str> = SCRIPT.split([' ', '\n', '`', '"']).collect();
        for (event, _) in EVENT_COMPONENTS {
            assert!(listed.contains(event), "{event}");
        }
    }
}
