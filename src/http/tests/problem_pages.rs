//! Tests of problems that browsers get as pages.

use super::*;

const HTML: (&str, &str) = ("accept", "text/html");
const CHINESE: (&str, &str) = ("accept-language", "zh-CN,zh;q=0.9");

#[tokio::test]
async fn response_varies_by_each_header_that_chose_it() {
    let app = app(false, &[]);
    for (path, headers, status, expected) in [
        ("/", vec![HTML], 303, vec!["Origin", "Accept"]),
        ("/", vec![], 404, vec!["Origin", "Accept"]),
        ("/nowhere", vec![], 404, vec!["Origin", "Accept"]),
        (
            "/nowhere",
            vec![HTML, CHINESE],
            404,
            vec!["Origin", "Accept", "Accept-Language"],
        ),
        ("/healthz", vec![HTML], 200, vec!["Origin"]),
    ] {
        let answer = ask(&app, "GET", path, &headers, "").await;
        let varies: Vec<&str> = answer
            .headers
            .get_all("vary")
            .iter()
            .map(|vary| vary.to_str().unwrap())
            .collect();
        assert_eq!((answer.status, varies), (status, expected), "{path}");
    }
}

#[tokio::test]
async fn page_of_a_form_that_is_not_taken_leads_back_to_its_request() {
    let app = app(false, &[]);
    let form = ("content-type", "application/x-www-form-urlencoded");
    let back = format!("<a href=\"{REQUEST}\">Back to the request</a>");
    for path in [REQUEST.to_owned(), format!("{REQUEST}/approve")] {
        for (headers, status) in [(vec![("content-length", "99999999")], 413), (vec![], 503)] {
            let headers: Vec<_> = headers.into_iter().chain([KEY, HTML, form]).collect();
            let answer = ask(&app, "POST", &path, &headers, "").await;
            assert_eq!(answer.status, status, "{path} {}", answer.text);
            assert!(answer.text.contains(&back), "{path} {}", answer.text);
        }
        let signed_out = ask(&app, "POST", &path, &[HTML, form], "").await;
        assert_eq!(signed_out.status, 401);
        assert!(!signed_out.text.contains(&back), "{}", signed_out.text);
        let sign_in = format!("href=\"/sign-in?next={path}\"");
        assert!(signed_out.text.contains(&sign_in), "{}", signed_out.text);
    }
}

#[tokio::test]
async fn sign_in_after_a_sign_out_without_a_session_leads_to_the_inbox() {
    let app = app(false, &[]);
    let answer = ask(&app, "POST", "/sign-out", &[HTML], "").await;
    assert_eq!(answer.status, 401, "{}", answer.text);
    let sign_in = "href=\"/sign-in?next=/inbox\"";
    assert!(answer.text.contains(sign_in), "{}", answer.text);
}

#[tokio::test]
async fn page_after_too_many_wrong_keys_leads_to_the_sign_in_page() {
    let app = app(false, &[]);
    let form = ("content-type", "application/x-www-form-urlencoded");
    let body = "key=wrong-key-0123456789";
    for _ in 0..10 {
        let wrong = ask(&app, "POST", "/sign-in", &[HTML, form], body).await;
        assert_eq!(wrong.status, 401);
    }
    let refused = ask(&app, "POST", "/sign-in", &[HTML, CHINESE, form], body).await;
    assert_eq!(refused.status, 429);
    for shown in [
        "<h1>请求过多</h1>",
        "有效的密钥仍可使用",
        "href=\"/sign-in?next=/inbox\"",
    ] {
        assert!(refused.text.contains(shown), "{shown}: {}", refused.text);
    }
}

#[tokio::test]
async fn missing_key_is_explained_in_the_readers_language() {
    let app = app(false, &[]);
    let answer = ask(&app, "POST", REQUEST, &[HTML, CHINESE], "").await;
    assert_eq!(answer.status, 401);
    assert!(
        answer.text.contains("请发送密钥") && !answer.text.contains("<span lang=\"en\">"),
        "{}",
        answer.text
    );
}
