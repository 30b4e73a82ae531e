//! Tests the link to the sign-in page for a person who is signed in to the wrong account. After the
//! sign-in as another user, the browser goes to the page that the person wanted.

use macro_rules_attribute::apply;

use super::super::approval_cycle::on_both;
use super::{ZH, finance};
use crate::support::test_app::{ALICE, BOB, CAROL, On, TestApp};

#[apply(on_both)]
async fn wrong_account_is_told_who_it_is_and_comes_back_as_another(on: On) {
    let app = TestApp::with(on, &finance()).await;
    let held = app.held().await;
    let missing = format!("/resume/{}", held.task);
    for path in [
        format!("/resume/{}", held.request),
        format!("/resume/{}/approve", held.request),
        missing,
    ] {
        let carol = app
            .anonymous()
            .header("cookie", &app.sign_in(CAROL).await)
            .accept_html();
        let refused = carol.get(&path).await;
        assert!([403, 404].contains(&refused.status), "{}", refused.text);
        let sign_in = format!("/sign-in?next={path}");
        let link = format!("<a href=\"{sign_in}\">Sign in as another user</a>");
        refused.assert_has("carol");
        refused.assert_has(&link);
        for of_it in [
            "refund", "alice", "bob", "finance", "billing", "17", "approval",
        ] {
            let said = refused
                .text
                .replace(&held.request, "")
                .replace(&held.task, "");
            let (_, said) = said.split_once("<main>").unwrap();
            let (said, _) = said.split_once("<p class=\"soft\">").unwrap();
            assert!(!said.contains(of_it), "{of_it}: {said}");
        }
        let other = carol.get(&sign_in).await;
        other.assert_has("carol");
        other.assert_has("name=\"key\"");
        other.assert_has(&format!("name=\"next\" value=\"{path}\""));
        let fields = [("key", BOB), ("next", path.as_str())];
        let entered = carol.submit("/sign-in", &fields).await;
        entered.assert_header(303, "location", &path);
        let session = entered.cookie();
        let bob = app
            .anonymous()
            .header("cookie", &session)
            .accept_html()
            .get(&path)
            .await;
        assert!(
            [200, 404].contains(&bob.status) && bob.text.contains("bob"),
            "{}",
            bob.text
        );
        let program = app.stranger().get(&path).await;
        program.assert_lacks("carol");
        program.assert_lacks("sign-in");
    }
    let alice = app
        .anonymous()
        .header("cookie", &app.sign_in(ALICE).await)
        .accept_html();
    let reader = alice
        .header("accept-language", ZH)
        .get(&format!("/resume/{}/reject", held.request))
        .await;
    assert_eq!(reader.status, 200);
    let link = format!(
        "/sign-in?next=/resume/{}/reject\">以其他用户身份登录",
        held.request
    );
    reader.assert_has(&link);
    reader.assert_has("alice");
    app.stop().await;
}

#[apply(on_both)]
async fn wrong_account_comes_back_to_the_page_whose_form_was_refused(on: On) {
    let app = TestApp::with(on, &finance()).await;
    let held = app.held().await;
    let carol = app
        .anonymous()
        .header("cookie", &app.sign_in(CAROL).await)
        .accept_html();
    let page = format!("/tasks/{}", held.task);
    for (action, page) in [
        (format!("{page}/cancel"), page.as_str()),
        (format!("/grants/{}", held.task), "/grants"),
    ] {
        let refused = carol.submit(&action, &[]).await;
        assert!([403, 404].contains(&refused.status), "{}", refused.text);
        let link = format!("<a href=\"/sign-in?next={page}\">");
        refused.assert_has(&link);
        let bob = app
            .anonymous()
            .header("cookie", &app.sign_in(BOB).await)
            .accept_html();
        assert_ne!(bob.get(page).await.status, 405, "{page}");
    }
    app.stop().await;
}
