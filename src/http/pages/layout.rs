//! The layout of every page: frame, style, `Content-Security-Policy`, and the display of text from
//! models, tools and people. Pages work without scripts. Only the lists, the page of a request and
//! the page of a task can load scripts. The modules `times`, `inbox::script` and `follow` serve
//! these scripts.

use std::fmt::Display;
use std::sync::LazyLock;

use base64::Engine as _;
use http::HeaderValue;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use utoipa::IntoResponses;
use uuid::Uuid;

use super::error_texts::{self, localized, untranslated};
use super::language::Language;
use super::translations::{Translations, fill};
use crate::engine::{Detail, DetailCode, FieldError};
use crate::http::server::problem::{Code, Problem};
pub(crate) use crate::task::text_safety::visible;

/// Documents the response of an operation whose only successful response is a page.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only documents the response")]
pub(crate) enum HtmlPage {
    #[response(status = 200, description = "The page", content_type = "text/html")]
    Page(String),
}

const STYLE: &str = concat!(
    include_str!("layout.css"),
    include_str!("inbox/inbox.css"),
    include_str!("request/request.css")
);

static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| policy_with(""));

/// Returns `text` with each invisible character shown as `\u{…}`. Keeps the line breaks.
pub(crate) fn visible_lines(text: &str) -> String {
    text.split('\n').map(visible).collect::<Vec<_>>().join("\n")
}

/// Returns the `Content-Security-Policy` of a page without a script.
pub(crate) fn content_security_policy() -> HeaderValue {
    POLICY.clone()
}

/// Builds a policy that forbids framing, permits this service's own style, and permits form posts
/// to this service. `more_directives` holds further directives, each ending with `; `.
pub(super) fn policy_with(more_directives: &str) -> HeaderValue {
    let hash = base64::prelude::BASE64_STANDARD.encode(Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; {more_directives}form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    );
    HeaderValue::from_str(&policy)
        .unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'; form-action 'self'"))
}

/// Renders a whole page with `title` as its heading.
#[must_use]
pub(crate) fn titled_page(title: &str, language: Language, body: &Markup) -> Markup {
    frame_in(language, title, &html! { h1 { (title) } (body) })
}

/// Renders a whole page. `body` has the page's heading.
#[must_use]
pub(crate) fn frame_in(language: Language, title: &str, body: &Markup) -> Markup {
    frame_with_tab_title(language, &format!("{title} · Holdpoint"), body)
}

/// Renders a whole page. `title` is the complete title of the browser's tab.
#[must_use]
pub(super) fn frame_with_tab_title(language: Language, title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang=(language.tag()) {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="robots" content="noindex";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { main { (body) } }
        }
    }
}

/// Renders a problem as a page in `language`, with the English title and detail of the JSON problem
/// in a section for support. If the problem has the member `decision`, the page also shows this
/// earlier decision. `instance` is the id of the HTTP request, which the page shows. Without an id,
/// equal problems give equal pages. `sign_in_again` has a link to the sign-in page, if a sign-in
/// could help. `back_path` is the path of the page with the request or the form, if the reader can
/// return to it.
#[must_use]
pub(crate) fn problem_page(
    problem: &Problem,
    instance: Option<Uuid>,
    language: Language,
    sign_in_again: Option<&Markup>,
    back_path: Option<&str>,
) -> Markup {
    let words = Translations::for_language(language);
    let title = problem.code.title();
    let page_title = error_texts::title(language, problem.code);
    let (code, status) = (problem.code.as_str(), problem.code.status().as_u16());
    frame_in(
        language,
        page_title.unwrap_or(title),
        &html! {
            h1 {
                @match page_title {
                    Some(text) => (text),
                    None => (untranslated(words, title)),
                }
            }
            // The detail of `invalid` repeats the first mistake, which the list below shows.
            @if problem.code != Code::Invalid { p { (localized(words, &problem.detail)) } }
            @for FieldError { pointer, detail } in &problem.errors {
                p { code { (visible(pointer)) } " " (localized(words, detail)) }
            }
            @if let Some(decision) = problem.member("decision").filter(Value::is_object) {
                p { (earlier_decision_text(words, &decision)) }
            }
            @if let Some(sign_in_again) = sign_in_again { (sign_in_again) }
            @if let Some(path) = back_path { p { a href=(path) { (back_text(words, problem)) } } }
            details {
                summary { (words.for_support) }
                p.soft lang="en" { (title) ". " (visible(&problem.detail.to_string())) }
                p.soft { (fill(words.code_line, &[("code", &code), ("status", &status)])) }
                @if let Some(id) = instance { p.soft { (fill(words.id_line, &[("id", &id)])) } }
            }
        },
    )
}

/// Returns the text of the link that leads back. If the form was from a page of another user, the
/// link loads that page again, for the user who is signed in now.
fn back_text(words: &Translations, problem: &Problem) -> &'static str {
    if problem.detail == Detail::Coded(DetailCode::ShownToAnother) {
        words.live_reload
    } else {
        words.back
    }
}

fn earlier_decision_text(words: &Translations, decision: &Value) -> String {
    let what = match member(decision, "action") {
        "approve" => words.has_approve,
        "reject" => words.has_reject,
        "edit" => words.has_edit,
        "respond" => words.has_respond,
        "retry" => words.has_retry,
        _ => words.has_mixed,
    };
    let by = visible(member(decision, "by"));
    let at = utc_text(&member(decision, "at"));
    let text = words.first_decision;
    fill(text, &[("what", &what), ("user", &by), ("at", &at)])
}

/// Returns whether a text has right-to-left characters, which change the order in which neighboring
/// text and digits are displayed.
#[must_use]
pub(crate) fn has_right_to_left(text: &str) -> bool {
    let is_right_to_left = |c: char| {
        matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{feff}'
            | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}')
    };
    text.chars().any(is_right_to_left)
}

/// Adds a left-to-right override to a text with right-to-left characters. The override keeps the
/// characters in their stored order where no CSS applies, such as in the title of a tab.
#[must_use]
pub(crate) fn force_left_to_right(text: String) -> String {
    if has_right_to_left(&text) {
        format!("\u{202d}{text}\u{202c}")
    } else {
        text
    }
}

/// Formats a timestamp of the API in UTC, without fractions of a second.
#[must_use]
pub(crate) fn utc_text(at: &impl Display) -> String {
    let at = at.to_string();
    match at.get(..19) {
        Some(seconds) => format!("{} UTC", seconds.replace('T', " ")),
        None => at,
    }
}

/// Renders a timestamp in UTC. The script `pages/times.js` shows it in the reader's own zone, with
/// the time in UTC beside it.
#[must_use]
pub(crate) fn time_tag(at: &impl Display) -> Markup {
    let exact = at.to_string();
    html! { time datetime=(exact) { (utc_text(&exact)) } }
}

fn member<'a>(error: &'a Value, name: &str) -> &'a str {
    error.get(name).and_then(Value::as_str).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn policy_names_the_style_by_its_hash() {
        let policy = content_security_policy();
        assert!(
            policy.to_str().unwrap().contains("style-src 'sha256-"),
            "{policy:?}"
        );
    }

    #[test]
    fn title_with_right_to_left_letters_keeps_its_order() {
        assert_eq!(
            force_left_to_right("Approved by bob.".into()),
            "Approved by bob."
        );
        assert_eq!(force_left_to_right("中文 é 17".into()), "中文 é 17");
        assert_eq!(
            force_left_to_right("by א: 1 ran".into()),
            "\u{202d}by א: 1 ran\u{202c}"
        );
        for letter in [
            "ש",
            "ب",
            "ܐ",
            "ߊ",
            "\u{fb1d}",
            "\u{fe8d}",
            "\u{10840}",
            "\u{1e900}",
        ] {
            assert!(has_right_to_left(letter), "{letter}");
        }
    }

    #[test]
    fn style_shows_exact_texts_in_the_order_of_their_characters() {
        assert!(
            STYLE.contains("\n.exact, code { unicode-bidi: bidi-override; direction: ltr; }\n")
        );
        assert!(STYLE.contains("pre:not(.exact) { unicode-bidi: isolate; }"));
        assert_eq!(
            STYLE.matches("unicode-bidi").count(),
            2,
            "nothing else undoes it"
        );
    }

    #[test]
    fn problem_page_escapes_what_it_shows() {
        let page = problem_page(
            &Problem::invalid_at("/<b>", "no such member"),
            Some(Uuid::nil()),
            Language::English,
            None,
            None,
        )
        .into_string();
        assert!(page.contains("/&lt;b&gt;") && !page.contains("/<b>"));
        assert!(!page.contains("Back to the request"));
    }

    #[test]
    fn problem_page_is_in_the_readers_language() {
        let late = Problem::new(Code::RequestExpired, DetailCode::RequestExpired);
        let page =
            problem_page(&late, Some(Uuid::nil()), Language::Chinese, None, None).into_string();
        assert!(
            page.contains("lang=\"zh-Hans\"") && page.contains("请求的期限已过。"),
            "{page}"
        );
        let other = problem_page(
            &Problem::forbidden("Only <b>."),
            Some(Uuid::nil()),
            Language::Chinese,
            None,
            None,
        )
        .into_string();
        assert!(
            other.contains("<span lang=\"en\">Only &lt;b&gt;.</span>"),
            "{other}"
        );
    }

    #[test]
    fn problem_page_names_the_http_request_only_if_it_is_given() {
        let nothing = Problem::not_found();
        for (instance, is_named) in [(Some(Uuid::nil()), true), (None, false)] {
            let page = problem_page(&nothing, instance, Language::English, None, None);
            let page = page.into_string();
            let line = format!("Request {}.", Uuid::nil());
            assert_eq!(page.contains(&line), is_named, "{page}");
            assert!(page.contains("Code not_found, status 404."), "{page}");
        }
    }

    #[test]
    fn late_decider_reads_the_first_decision() {
        let late = Problem::new(Code::AlreadyDecided, "An earlier answer decided this.").with(
            "decision",
            json!({"action": "reject", "by": "<b>", "at": "now"}),
        );
        let page = problem_page(
            &late,
            Some(Uuid::nil()),
            Language::English,
            None,
            Some("/base/resume/r"),
        )
        .into_string();
        assert!(
            page.contains("The first decision counts: &lt;b&gt; rejected at now.")
                && page.contains(r#"href="/base/resume/r""#),
            "{page}"
        );
    }
}
