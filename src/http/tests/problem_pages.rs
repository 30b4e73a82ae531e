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
