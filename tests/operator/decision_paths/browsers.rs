//! Tests decisions of a person with a key, in a browser and with `curl`.

use macro_rules_attribute::apply;
use serde_json::Value;

use super::{DecisionFixture, EVIL, HTML, bearer, form, hidden, serve};
use crate::api::approval_cycle::on_both;
use crate::support::test_app::{ALICE, BOB, On};

/// Opens `path` without a session, follows the redirect to the sign-in page, and signs Bob in with
/// his key. Returns the cookie of the session.
async fn sign_in(fixture: &DecisionFixture, origin: &str, path: &str) -> String {
    let asked = fixture.page(path, &[("accept", HTML)]).await;
    let sign_in = asked.header("location");
    assert_eq!((asked.status, asked.text.as_str()), (303, ""));
    assert!(sign_in.starts_with("/sign-in?next="), "{sign_in}");
    let page = fixture.page(sign_in, &[("accept", HTML)]).await;
    assert!(
        page.status == 200 && page.text.contains(r#"type="password""#),
        "{}",
        page.text
    );
    let browser = [
        ("accept", HTML),
        ("origin", origin),
        ("sec-fetch-site", "same-origin"),
    ];
    let body = form(&[("key", BOB), ("next", path)]);
    let entered = fixture.post_form("/sign-in", &browser, body).await;
    assert_eq!(
        (entered.status, entered.header("location")),
        (303, path),
        "{}",
        entered.text
    );
    entered
        .header("set-cookie")
        .split(';')
        .next()
        .unwrap()
        .to_owned()
}

#[apply(on_both)]
async fn person_with_a_browser_and_a_key_decides(on: On) {
    let fixture = serve(on, "{ groups: [finance] }").await;
    let alice = bearer(ALICE);
    let (path, task) = fixture.held(&[("authorization", &alice)]).await;
    let origin = format!("http://{}", fixture.served.address);
    assert_eq!(task.str("/pending/0/url"), format!("{origin}{path}"));

    let cookie = sign_in(&fixture, &origin, &path).await;
    let browser = [
        ("cookie", cookie.as_str()),
        ("accept", HTML),
        ("origin", origin.as_str()),
        ("sec-fetch-site", "same-origin"),
    ];
    let shown = fixture.page(&path, &browser[..2]).await;
    assert!(
        shown.status == 200 && shown.text.contains("Refund 120 for order 17"),
        "{}",
        shown.text
    );
    let digest = hidden(&shown.text, "digest");
    assert_eq!(
        digest,
        task.str("/pending/0/digest"),
        "the page posts what it showed"
    );
    let approve = format!("{path}/approve");
    let foreign = [
        ("cookie", cookie.as_str()),
        ("origin", EVIL),
        ("sec-fetch-site", "cross-site"),
    ];
    let body = form(&[("digest", &digest)]);
    let refused = fixture.post_form(&approve, &foreign, body).await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert!(fixture.tool.ledger().is_empty());
    let body = form(&[("digest", &digest), ("reason", "looks right")]);
    let decided = fixture.post_form(&approve, &browser, body.clone()).await;
    assert_eq!(
        (decided.status, decided.header("location")),
        (303, path.as_str()),
        "{}",
        decided.text
    );
    let again = fixture.post_form(&approve, &browser, body).await;
    assert_eq!(
        again.status, 409,
        "a second click is told that it is decided: {}",
        again.text
    );
    fixture.tool.reached(1).await;
    let headers = [("authorization", alice.as_str()), ("prefer", "wait=5")];
    let request = fixture.as_("GET", &path, &headers, &Value::Null).await;
    assert_eq!(request.str("/decision/by"), "bob".to_owned());
    assert_eq!(request.str("/decision/reason"), "looks right".to_owned());
    fixture.assert_counted_under("session").await;

    let left = fixture
        .post_form("/sign-out", &browser, String::new())
        .await;
    assert_eq!(
        (left.status, left.header("location")),
        (303, "/sign-in"),
        "{}",
        left.text
    );
    let after = fixture.page(&path, &browser[..2]).await;
    assert_eq!(after.status, 303, "the session is over");
    fixture.ran_once();
}

#[apply(on_both)]
async fn person_with_curl_and_a_cookie_jar_decides(on: On) {
    let fixture = serve(on, "{ groups: [finance] }").await;
    let alice = bearer(ALICE);
    let (path, task) = fixture.held(&[("authorization", &alice)]).await;
    let url = task.str("/pending/0/url");
    let origin = format!("http://{}", fixture.served.address);
    let curl = |arguments: &[&str]| {
        let mut command = std::process::Command::new("curl");
        command.args([
            "-s",
            "--noproxy",
            "*",
            "-b",
            "jar",
            "-c",
            "jar",
            "-H",
            "Accept: text/html",
            "-w",
            "\n%{http_code} %{url_effective}",
        ]);
        let done = command
            .args(arguments)
            .current_dir(fixture.folder.path())
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout).unwrap()
    };
    let way_in = curl(&["-L", &url]);
    assert!(
        way_in.contains(r#"type="password""#) && way_in.contains("\n200 "),
        "{way_in}"
    );
    let next = format!("next={path}");
    let key = format!("key={BOB}");
    let shown = curl(&[
        "-L",
        "--data-urlencode",
        &key,
        "--data-urlencode",
        &next,
        &format!("{origin}/sign-in"),
    ]);
    assert!(
        shown.contains("Refund 120 for order 17") && shown.ends_with(&format!("200 {url}")),
        "{shown}"
    );
    let digest = format!("digest={}", hidden(&shown, "digest"));
    let decided = curl(&["-L", "--data-urlencode", &digest, &format!("{url}/approve")]);
    assert!(
        decided.contains("bob")
            && decided.ends_with(&format!("200 {url}"))
            && !decided.contains("<button type=\"submit\" class=\"approve"),
        "{decided}"
    );
    fixture.tool.reached(1).await;
    let out = curl(&["-L", "-X", "POST", &format!("{origin}/sign-out")]);
    assert!(!out.contains(BOB), "{out}");
    let after = curl(&["-L", &url]);
    assert!(after.contains("/sign-in?next="), "{after}");
    fixture.ran_once();
}
