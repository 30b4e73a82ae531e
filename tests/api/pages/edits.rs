//! Tests how a person edits the arguments of a call on its page, and what a refused edit returns.

use macro_rules_attribute::apply;

use super::super::approval_cycle::on_both;
use super::{HeldRefund, hold_refund};
use crate::support::fake_chat_completions::text_answer;
use crate::support::test_app::{Actor, On, REFUNDS, TestApp};

#[apply(on_both)]
async fn arguments_changed_in_the_fields_of_the_page_run(on: On) {
    let app = TestApp::open(on).await;
    let HeldRefund { path, digest, call } = hold_refund(&app).await;
    let edit = async |amount: &str| {
        let browser = app.anonymous().accept_html().header("origin", &app.url());
        browser
            .submit(
                &path,
                &[
                    ("digest", &digest),
                    (&format!("call.{call}.action"), "edit"),
                    (&format!("call.{call}.field.order"), "17"),
                    (&format!("call.{call}.field.amount"), amount),
                    (
                        &format!("call.{call}.arguments"),
                        r#"{"order":17,"amount":50}"#,
                    ),
                ],
            )
            .await
    };
    for (amount, said) in [("-3.25", "greater"), ("much", "a number")] {
        let page = edit(amount).await;
        assert_eq!(page.status, 422, "{}", page.text);
        let field = format!("href=\"#edit-call_2e_{call}_2e_field_2e_amount\"");
        assert!(
            page.text.contains(&field) && page.text.contains(&format!("value=\"{amount}\"")),
            "{said}: {}",
            page.text
        );
    }
    assert!(app.tool.ledger().is_empty(), "nothing was stored");
    app.model.then(text_answer("ok"));
    let done = edit("20.10").await;
    assert_eq!(done.status, 303, "{}", done.text);
    app.tool.reached(1).await;
    let after = app.anonymous().accept_html().get(&path).await;
    after.assert_has("{&quot;order&quot;:17,&quot;amount&quot;:20.10}");
    app.stop().await;
}

#[apply(on_both)]
async fn text_that_is_no_date_is_refused_with_the_form_of_a_date(on: On) {
    let yaml = REFUNDS.replace("{approvers}", "{ groups: [finance] }");
    let amount = "exclusiveMinimum: 0 }";
    let day = format!("{amount}, day: {{ type: string, format: date }}");
    let app = TestApp::with(on, &yaml.replace(amount, &day)).await;
    let HeldRefund { path, digest, call } = hold_refund(&app).await;
    let action = format!("call.{call}.action");
    let field = format!("call.{call}.field.day");
    let edit = async |language: &str, day: &str| {
        let browser = app.anonymous().accept_html().header("origin", &app.url());
        let browser = browser.header("accept-language", language);
        let fields = [
            ("digest", digest.as_str()),
            (action.as_str(), "edit"),
            (field.as_str(), day),
        ];
        browser.submit(&path, &fields).await
    };
    let shown = app.anonymous().accept_html().get(&path).await;
    shown.assert_has("type=\"text\" placeholder=\"YYYY-MM-DD\"");
    for (language, expected) in [
        ("en", "must be a date as YYYY-MM-DD"),
        ("zh", "须为日期，格式为 YYYY-MM-DD"),
    ] {
        for day in ["31.12.2026", "2026-02-30"] {
            let page = edit(language, day).await;
            assert_eq!(page.status, 422, "{}", page.text);
            page.assert_has(expected);
            page.assert_has(&format!("value=\"{day}\""));
        }
    }
    assert!(app.tool.ledger().is_empty(), "nothing was stored");
    app.model.then(text_answer("ok"));
    let done = edit("en", " 2026-12-31 ").await;
    assert_eq!(done.status, 303, "{}", done.text);
    app.tool.reached(1).await;
    let sent = r#"{"order":17,"amount":50,"day":"2026-12-31"}"#;
    assert_eq!(app.tool.ledger()[0].body, sent);
    app.stop().await;
}

#[apply(on_both)]
async fn form_that_does_not_fit_comes_back_with_what_was_typed(on: On) {
    let app = TestApp::open(on).await;
    let HeldRefund { path, digest, call } = hold_refund(&app).await;
    let edit = async |actor: Actor<'_>, text: &str| {
        actor
            .submit(
                &path,
                &[
                    ("digest", &digest),
                    (&format!("call.{call}.action"), "edit"),
                    (&format!("call.{call}.arguments"), text),
                ],
            )
            .await
    };
    let browser = || app.anonymous().accept_html().header("origin", &app.url());
    for (typed, said) in [
        (r#"{"order":17,"amount":-3.25}"#, "<code>/amount</code>"),
        ("{\"order\":17,", "unambiguous JSON"),
        (r#"{"order":17,"amount":1,"amount":2}"#, "unambiguous JSON"),
        (r#"{"order":17,"amount":1e999}"#, "unambiguous JSON"),
        (
            r#"{"order":17,"amount":1,"note":"\ud800"}"#,
            "unambiguous JSON",
        ),
        ("[]", "an object: the full replacement"),
    ] {
        let page = edit(browser(), typed).await;
        assert_eq!(page.status, 422, "{}", page.text);
        assert!(page.header("content-type").starts_with("text/html"));
        assert_eq!(page.header("cache-control"), "no-store");
        let shown = typed.replace('"', "&quot;");
        for part in [
            said,
            "role=\"alert\"",
            "aria-invalid=\"true\"",
            shown.as_str(),
            digest.as_str(),
        ] {
            page.assert_has(part);
        }
        let program = edit(app.anonymous(), typed).await;
        program.assert_header(422, "content-type", "application/problem+json");
    }
    let unknown = browser()
        .submit(&path, &[("action", "approve"), ("<x>", "1")])
        .await;
    assert_eq!(unknown.status, 422, "{}", unknown.text);
    unknown.assert_has("/&lt;x&gt;");
    assert!(app.tool.ledger().is_empty(), "nothing was stored");
    app.model.then(text_answer("ok"));
    let done = edit(browser(), "{\"order\": 17,\r\n \"amount\": 20.10}").await;
    assert_eq!(done.status, 303, "{}", done.text);
    app.tool.reached(1).await;
    let after = app.anonymous().accept_html().get(&path).await;
    after
        .about(&"as it was typed")
        .assert_has("&quot;amount&quot;:20.10");
    app.stop().await;
}

#[apply(on_both)]
async fn edit_that_holds_a_secret_comes_back_without_it(on: On) {
    let app = TestApp::open(on).await;
    let HeldRefund { path, call, .. } = hold_refund(&app).await;
    let (action, arguments) = (
        format!("call.{call}.action"),
        format!("call.{call}.arguments"),
    );
    let secret = "tool-secret-0123456789";
    for typed in [
        format!(r#"{{"order":17,"amount":1,"x":"{secret}"}}"#),
        format!(r#"{{"x":"{secret}""#),
    ] {
        let browser = app.anonymous().accept_html().header("origin", &app.url());
        let page = browser
            .submit(&path, &[(&action, "edit"), (&arguments, &typed)])
            .await;
        assert_eq!(page.status, 422, "{}", page.text);
        page.assert_lacks(secret);
    }
    assert!(app.tool.ledger().is_empty());
    app.stop().await;
}
