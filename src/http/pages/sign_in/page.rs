//! The sign-in pages, in English and Chinese. The pages work without a script and never show a
//! submitted key.

use maud::{Markup, html};
use url::form_urlencoded::byte_serialize;

use super::next;
use crate::http::pages::language::Language;
use crate::http::pages::layout::{frame_in, visible};
use crate::people::Caller;

struct SignInTexts {
    title: &'static str,
    key: &'static str,
    hint: &'static str,
    submit: &'static str,
    unknown_key: &'static str,
    signed_in: &'static str,
    is_signed_in: &'static str,
    continue_to_page: &'static str,
    sign_out: &'static str,
    sign_in_as_other: &'static str,
    not_needed: &'static str,
    no_accounts: &'static str,
}

fn words(language: Language) -> &'static SignInTexts {
    match language {
        Language::English => &SignInTexts {
            title: "Sign in",
            key: "Key",
            hint: "The key that the operator of this service gave you. You stay signed in for 12 hours in this browser.",
            submit: "Sign in",
            unknown_key: "This key is unknown. Check it and try again.",
            signed_in: "Signed in as",
            is_signed_in: "You are signed in",
            continue_to_page: "Continue to the page you asked for",
            sign_out: "Sign out",
            sign_in_as_other: "Sign in as another user",
            not_needed: "No sign-in is needed",
            no_accounts: "This service has no accounts: everyone who reaches it is the user local. Close this page and continue.",
        },
        Language::Chinese => &SignInTexts {
            title: "登录",
            key: "密钥",
            hint: "请输入本服务的管理员提供给您的密钥。在此浏览器中，登录状态保持 12 小时。",
            submit: "登录",
            unknown_key: "此密钥无效。请检查后重试。",
            signed_in: "当前用户：",
            is_signed_in: "您已登录",
            continue_to_page: "前往您要访问的页面",
            sign_out: "退出登录",
            sign_in_as_other: "以其他用户身份登录",
            not_needed: "无需登录",
            no_accounts: "本服务未设置账户：所有访问者都是用户 local。请关闭此页面并继续。",
        },
    }
}

/// Renders the page that takes a key. `is_wrong_key` tells whether the key that was just submitted
/// is unknown. `next` is the path to open after the sign-in, and `prefix` the path of `public_url`.
#[must_use]
pub(crate) fn sign_in_form(
    next: Option<&str>,
    is_wrong_key: bool,
    prefix: &str,
    language: Language,
) -> Markup {
    let words = words(language);
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
    let words = words(language);
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
    let words = words(language);
    let next = next::local_path(return_path, prefix)
        .map(|next| byte_serialize(next.as_bytes()).collect::<String>());
    let address = next.map_or_else(
        || format!("{prefix}/sign-in"),
        |next| format!("{prefix}/sign-in?next={next}"),
    );
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
    let words = words(language);
    titled_page(
        words.not_needed,
        language,
        &html! { p { (words.no_accounts) } },
    )
}

/// Renders the signed-in user and the sign-out button. Empty if the service has no accounts. If a
/// service key speaks for the user, there is no session to end, and so no button.
#[must_use]
pub(crate) fn signed_in_bar(caller: &Caller, prefix: &str, language: Language) -> Markup {
    let words = words(language);
    html! {
        @if !caller.without_accounts {
            div lang=(language.tag()) {
                p { (identity(caller, words)) }
                @if caller.via.is_none() {
                    form method="post" action=(format!("{prefix}/sign-out")) {
                        button type="submit" { (words.sign_out) }
                    }
                }
            }
        }
    }
}

fn titled_page(title: &str, language: Language, body: &Markup) -> Markup {
    frame_in(language, title, &html! { h1 { (title) } (body) })
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
    fn signed_in_user_is_named_and_can_sign_out() {
        let mut caller = sample::caller();
        caller.user_id = "<b>\u{202e}".into();
        let bar = |caller: &Caller| signed_in_bar(caller, "/base", Language::English).into_string();
        assert!(
            bar(&caller).contains("&lt;b&gt;\\u{202e}")
                && bar(&caller).contains(r#"action="/base/sign-out""#)
        );
        caller.via = Some("web".into());
        assert!(!bar(&caller).contains("<form"));
        caller.without_accounts = true;
        assert_eq!(bar(&caller), "");
    }
}
