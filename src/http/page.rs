//! What all pages share: the frame, the style, the policy that forbids everything else, and how text that somebody
//! else wrote is shown. Pages work without a script, and load nothing.

use std::sync::LazyLock;

use base64::Engine as _;
use http::HeaderValue;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::problem::{Problem, prefix};
pub use crate::task::eyes::visible;

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem}\
pre,code{font-family:ui-monospace,monospace}\
pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid GrayText;padding:.75rem;margin:.5rem 0}\
section{border:1px solid GrayText;border-radius:.5rem;padding:0 1rem 1rem;margin:1rem 0}\
dt{font-weight:600}dd{margin:0 0 .5rem;overflow-wrap:anywhere}\
label{display:block;margin:.5rem 0}textarea,select{display:block;width:100%;box-sizing:border-box;font:inherit}\
button{font:inherit;padding:.5rem 1.25rem;margin:.5rem 0}\
table{border-collapse:collapse}td,th{border:1px solid GrayText;padding:.25rem .5rem;text-align:left}";

/// Nothing is loaded but our own style, nothing is sent but to us, nobody frames us.
static POLICY: LazyLock<Option<HeaderValue>> = LazyLock::new(|| {
    let hash = base64::prelude::BASE64_STANDARD.encode(Sha256::digest(STYLE));
    HeaderValue::from_str(&format!(
        "default-src 'none'; style-src 'sha256-{hash}'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ))
    .ok()
});

/// The `Content-Security-Policy` of a page.
pub fn content_security_policy() -> HeaderValue {
    POLICY.clone().unwrap_or_else(|| HeaderValue::from_static("default-src 'none'; form-action 'self'"))
}

/// A whole page.
#[must_use]
pub fn frame(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="robots" content="noindex";
                title { (title) " · Holdpoint" }
                style { (PreEscaped(STYLE)) }
            }
            body { main { h1 { (title) } (body) } }
        }
    }
}

/// A problem as a page: the same words, what was decided instead, and the way back to the request.
#[must_use]
pub fn problem(problem: &Problem, instance: Uuid, public_url: &str) -> Markup {
    let errors = problem.members.get("errors").and_then(|errors| errors.as_array());
    let request = problem.members.get("request").map(|request| member(request, "request_id"));
    frame(
        problem.code.title(),
        &html! {
            p { (problem.detail) }
            @for error in errors.into_iter().flatten() {
                p { code { (visible(member(error, "pointer"))) } " " (member(error, "detail")) }
            }
            @if let Some(decision) = problem.members.get("decision").filter(|decision| decision.is_object()) {
                p { (member(decision, "action")) " by " (visible(member(decision, "by"))) ", " (member(decision, "at")) }
            }
            @if let Some(id) = request {
                p { a href=(format!("{}/resume/{id}", prefix(public_url))) { "Back to the request" } }
            }
            p { "Code " code { (problem.code.as_str()) } ", status " (problem.code.status().as_u16()) ", request " code { (instance) } "." }
        },
    )
}

fn member<'a>(error: &'a Value, name: &str) -> &'a str {
    error.get(name).and_then(Value::as_str).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::problem::Code;
    use serde_json::json;

    #[test]
    fn the_policy_names_the_style_by_its_hash() {
        let policy = content_security_policy();
        assert!(policy.to_str().unwrap().contains("style-src 'sha256-"), "{policy:?}");
    }

    #[test]
    fn a_problem_page_escapes_what_it_shows() {
        let page = problem(&Problem::invalid_at("/<b>", "no such member"), Uuid::nil(), "http://x").into_string();
        assert!(page.contains("/&lt;b&gt;") && !page.contains("/<b>"));
        assert!(!page.contains("Back to the request"));
    }

    #[test]
    fn who_comes_too_late_reads_who_was_first() {
        let late = Problem::new(Code::AlreadyDecided, "Somebody decided first.")
            .with("request", json!({"request_id": "r"}))
            .with("decision", json!({"action": "reject", "by": "<b>", "at": "now"}));
        let page = problem(&late, Uuid::nil(), "https://x/base").into_string();
        assert!(page.contains("reject by &lt;b&gt;, now") && page.contains(r#"href="/base/resume/r""#), "{page}");
    }
}
