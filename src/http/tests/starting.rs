//! Tests of the answers before the database is open.

use super::*;
use crate::http::edge::starting;

/// Returns the routers of the service and of the metrics, before the database is open. If `open` is
/// true, the service has no accounts.
fn routers(open: bool) -> (Router, Router) {
    let http = http(open, &[]);
    starting::routers(&http.edge)
}

#[tokio::test]
async fn health_is_answered_under_every_name_while_the_service_starts() {
    let (app, _) = routers(true);
    let host = [("host", "probe.internal"), ("x-forwarded-for", "10.0.0.1")];
    assert_eq!(ask(&app, "GET", "/healthz", &host, "").await.text, "ok\n");
    let head = ask(&app, "HEAD", "/healthz", &host, "").await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    assert_eq!(ask(&app, "POST", "/healthz", &host, "").await.status, 405);
    assert_eq!(ask(&app, "GET", "/readyz", &host, "").await.status, 503);
    assert_eq!(ask(&app, "GET", "/v1/me", &host, "").await.status, 403);
}

#[tokio::test]
async fn answers_while_the_service_starts_equal_those_of_an_outage() {
    let (starting, outage) = (routers(false).0, app(false, &[]));
    for path in ["/readyz", "/v1/tasks"] {
        let mut problems = Vec::new();
        for app in [&starting, &outage] {
            let answer = ask(app, "GET", path, &[KEY], "").await;
            assert_eq!(
                (answer.status, answer.header("retry-after")),
                (503, "1"),
                "{path}"
            );
            let mut problem = answer.json();
            assert_eq!(problem["instance"], answer.header("x-request-id"));
            problem["instance"] = Value::Null;
            problems.push(problem);
        }
        assert_eq!(problems[0], problems[1], "{path}");
    }
}

/// A browser's `EventSource` reconnects after a stream with status 200 ends, and gives up after any
/// other status. So the service answers 200 with a stream that ends at once.
#[tokio::test]
async fn stream_that_is_asked_for_without_a_database_ends_at_once() {
    let (starting, outage) = (routers(false).0, app(false, &[]));
    let (task, cookie) = (
        "/v1/tasks/019a4b2c-7000-7000-8000-000000000001/events",
        format!("holdpoint_session={}", "A".repeat(43)),
    );
    let stream = ("accept", "text/event-stream");
    for app in [&starting, &outage] {
        for path in ["/v1/events", task] {
            for credential in [KEY, ("cookie", cookie.as_str())] {
                let answer = ask(app, "GET", path, &[credential, stream], "").await;
                let got = (answer.status, answer.text.as_str());
                assert_eq!(got, (200, "retry: 1000\n\n"), "{path}");
                assert_eq!(answer.header("content-type"), "text/event-stream");
                let other = ask(app, "GET", path, &[credential], "").await;
                assert_eq!((other.status, other.header("retry-after")), (503, "1"));
            }
        }
        let probe = ask(app, "GET", "/readyz", &[stream], "").await;
        assert_eq!(probe.status, 503, "the service is not ready");
        let list = ask(app, "GET", "/v1/tasks", &[KEY, stream], "").await;
        assert_eq!(list.status, 503, "only `…/events` is a stream");
        let post = ask(app, "POST", "/v1/tasks", &[KEY, JSON, stream], "{}").await;
        assert_ne!(post.status, 200, "{}", post.text);
    }
    let unknown = [("authorization", "Bearer other"), stream];
    for refused in [&unknown[..], &unknown[1..]] {
        let answer = ask(&outage, "GET", task, refused, "").await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (401, "unauthorized")
        );
    }
}

#[tokio::test]
async fn listener_of_the_metrics_answers_nothing_while_the_service_starts() {
    let (_, metrics) = routers(false);
    for path in ["/metrics", "/healthz"] {
        let answer = ask(&metrics, "GET", path, &[], "").await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (503, "unavailable"),
            "{path}"
        );
    }
}
