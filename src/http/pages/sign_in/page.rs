//! The sign-in pages, in English and Chinese. The pages work without a script and never show a
//! submitted key.

use maud::{Markup, html};

use super::texts::SignInTexts;
use crate::http::pages::language::Language;
use crate::http::pages::layout::{titled_page, visible};
use crate::http::server::session::next::{local_path, sign_in_address};
use crate::people::Caller;
use crate::task::decision::Door;

/// Renders the page that takes a key. `is_wrong_key` tells whether the key that was just submitted
/// is unknown. `next` is the path to open after the sign-in, and `prefix` the path of `public_url`.
#[must_use]
pub(crate) fn sign_in_form(
    next: Option<&str>,
    is_wrong_key: bool,
    prefix: &str,
    language: Language,
) -> Markup {
    let words = SignInTexts::for_language(language);
    titled_page(
        words.title,
        language,
        &html! {
            @if is_wrong_key { p #problem role="alert" { strong { (words.unknown_key) } } }
            (key_form(next, is_wrong_key, prefix, words))
        },
    )
}

fn key_form(next: Option<&str>, is_wrong_key: bool, prefix: &str, words: &SignInTexts) -> Markup {
    html! {
        form method="post" action=(format!("{prefix}/sign-in")) {
            @if let Some(next) = next { input type="hidden" name="next" value=(next); }
            label for="key" { (words.key) }
            input #key type="password" name="key" required autocomplete="current-password" autocapitalize="none"
                spellcheck="false" aria-describedby=(if is_wrong_key { "problem hint" } else { "hint" })
                aria-invalid=[is_wrong_key.then_some("true")];
            p #hint { (words.hint) }
            button type="submit" { (words.submit) }
        }
    }
}

/// Renders the page of a signed-in person, with a link to the path `next` (if any) and a form to
/// sign in as another user.
#[must_use]
pub(crate) fn signed_in(
    caller: &Caller,
    next: Option<&str>,
    prefix: &str,
    language: Language,
) -> Markup {
    let words = SignInTexts::for_language(language);
    titled_page(
        words.is_signed_in,
        language,
        &html! {
            (signed_in_bar(caller, prefix, language))
            @if let Some(next) = next { p { a href=(next) { (words.continue_to_page) } } }
            h2 { (words.sign_in_as_other) }
            (key_form(next, false, prefix, words))
        },
    )
}

/// Renders the name of the signed-in user and a link to sign in as another user. After the sign-in,
/// the browser opens the path `return_path`. Empty if the service has no accounts. The result does
/// not depend on the resource at `return_path`, so it does not reveal whether the resource exists.
#[must_use]
pub(crate) fn sign_in_again(
    caller: &Caller,
    return_path: &str,
    prefix: &str,
    language: Language,
) -> Markup {
    let words = SignInTexts::for_language(language);
    let address = sign_in_address(prefix, local_path(return_path, prefix));
    html! {
        @if !caller.without_accounts {
            p { (identity(caller, words)) " " a href=(address) { (words.sign_in_as_other) } }
        }
    }
}

fn identity(caller: &Caller, words: &SignInTexts) -> Markup {
    html! { (words.signed_in) " " strong.exact { (visible(caller.user_id.as_str())) } " (" (visible(&caller.tenant)) ")" }
}

/// Renders the page of a service without accounts, which says that no sign-in is needed.
#[must_use]
pub(crate) fn not_needed(language: Language) -> Markup {
    let words = SignInTexts::for_language(language);
    titled_page(
        words.not_needed,
        language,
        &html! { p { (words.no_accounts) } },
    )
}

/// Renders the user, and for a browser session the sign-out button. Empty if the service has no
/// accounts. A caller with a key has no session to end, and so no button.
#[must_use]
pub(crate) fn signed_in_bar(caller: &Caller, prefix: &str, language: Language) -> Markup {
    let words = SignInTexts::for_language(language);
    html! {
        @if !caller.without_accounts {
            div lang=(language.tag()) {
                p { (identity(caller, words)) }
                @if caller.door == Some(Door::Session) {
                    form method="post" action=(format!("{prefix}/sign-out")) {
                        button type="submit" { (words.sign_out) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;

    #[test]
    fn sign_in_form_has_a_label_and_names_its_problem() {
        for language in [Language::English, Language::Chinese] {
            let page =
                sign_in_form(Some("/resume/x?a=\"><b>"), false, "/base", language).into_string();
            assert!(
                page.contains(r#"action="/base/sign-in""#) && page.contains(r#"method="post""#),
                "{page}"
            );
            assert!(
                page.contains(r#"<label for="key">"#)
                    && page.contains(r#"id="key" type="password""#),
                "{page}"
            );
            assert!(
                page.contains(r#"autocomplete="current-password""#)
                    && !page.contains(r#"aria-invalid="true""#),
                "{page}"
            );
            assert!(
                page.contains("&quot;&gt;&lt;b&gt;") && !page.contains("<script"),
                "{page}"
            );
            let again = sign_in_form(None, true, "", language).into_string();
            assert!(
                again.contains(r#"role="alert""#) && again.contains(r#"aria-invalid="true">"#),
                "{again}"
            );
            assert!(!again.contains(r#"name="next""#));
        }
        assert!(
            sign_in_form(None, false, "", Language::Chinese)
                .into_string()
                .contains("密钥")
        );
    }

    #[test]
    fn user_of_a_session_is_named_and_can_sign_out() {
        let mut caller = sample::caller();
        caller.user_id = "<b>\u{202e}".into();
        caller.door = Some(Door::Session);
        let bar = |caller: &Caller| signed_in_bar(caller, "/base", Language::English).into_string();
        assert!(
            bar(&caller).contains("&lt;b&gt;\\u{202e}")
                && bar(&caller).contains(r#"action="/base/sign-out""#)
        );
        caller.door = Some(Door::Key);
        assert!(
            !bar(&caller).contains("<form"),
            "a key has no session to end"
        );
        caller.without_accounts = true;
        assert_eq!(bar(&caller), "");
    }
}
