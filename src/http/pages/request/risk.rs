//! Renders the warnings about the calls' arguments, and a text that says whether the effects of the
//! calls can be undone. The page shows both before the buttons.

use maud::{Markup, html};

use super::View;
use super::arguments::is_shell;
use crate::http::pages::error_texts::untranslated;
use crate::http::pages::layout::visible;
use crate::http::pages::translations::fill;
use crate::http::wire::request::{RequestedCall, WireEffect};
use crate::task::restore::MAY_ALREADY_HAVE_RUN;
use crate::task::text_safety::{
    HIDDEN_CHARACTERS, LARGE, LONG_BLANKS, LOOK_ALIKE, MIXED_SCRIPTS, OVERLAY, RIGHT_TO_LEFT,
};

pub(super) fn warnings_and_risk(view: &View<'_>) -> Markup {
    let own: Vec<(usize, &RequestedCall)> = view.own_calls();
    html! {
        @if own.iter().any(|(_, call)| !call.warnings.is_empty()) {
            div.warnings role="note" {
                @for (index, call) in &own {
                    (warnings(view, call, (own.len() > 1).then_some(index + 1)))
                }
            }
        }
        @if view.request.kind.properties().decides_calls { (risk(view, &own)) }
    }
}

/// Renders the warnings about one call. If the request decides several calls, each warning names
/// the call by its `number` on the page; the first call has the number 1. For a single call,
/// `number` is `None`.
pub(super) fn warnings(view: &View<'_>, call: &RequestedCall, number: Option<usize>) -> Markup {
    let (words, texts) = (view.words, view.texts);
    html! {
        @for warning in &call.warnings {
            p.warning {
                (words.warning) (words.colon)
                @if let Some(number) = number {
                    (fill(texts.call_number, &[("number", &number)])) (words.colon)
                }
                (warning_subject(view, &warning.code)) (untranslated(words, &warning.detail))
                @if !warning.pointer.is_empty() { " " code { (visible(&warning.pointer)) } }
            }
        }
    }
}

/// Renders the kind of a warning in the reader's language; empty for an unknown code. The detail of
/// a warning exists only in English, so the kind tells every reader the subject.
fn warning_subject(view: &View<'_>, code: &str) -> Markup {
    let words = view.words;
    let about = match code {
        HIDDEN_CHARACTERS => words.warned_hidden,
        MIXED_SCRIPTS => words.warned_scripts,
        LOOK_ALIKE => words.warned_look_alike,
        RIGHT_TO_LEFT => words.warned_right_to_left,
        OVERLAY => words.warned_overlay,
        LONG_BLANKS => words.warned_blanks,
        LARGE => words.warned_large,
        MAY_ALREADY_HAVE_RUN => words.warned_may_have_run,
        _ => return html! {},
    };
    html! { (about) " " }
}

/// Renders a text that says whether the effects of the calls can be undone. The worst effect among
/// the calls determines the text. If calls run shell commands, a text about these comes first.
fn risk(view: &View<'_>, own: &[(usize, &RequestedCall)]) -> Markup {
    let texts = view.texts;
    let count_with = |effect| own.iter().filter(|(_, call)| call.effect == effect).count();
    let once = count_with(WireEffect::Once);
    let commands = own.iter().filter(|(_, call)| is_shell(call)).count();
    html! {
        @if commands > 0 && own.len() > 1 {
            p.risk.once { (fill(texts.risk_shell_several, &[("count", &commands)])) }
        } @else if commands > 0 {
            p.risk.once { (texts.risk_shell) }
        }
        @if once > 0 && once < own.len() {
            p.risk.once { (fill(texts.risk_once_several, &[("count", &once)])) }
        } @else if once > 0 {
            p.risk.once { (texts.risk_once) }
        } @else if count_with(WireEffect::Idempotent) > 0 {
            p.risk { (texts.risk_idempotent) }
        } @else if !own.is_empty() {
            p.risk { (texts.risk_read_only) }
        }
    }
}
