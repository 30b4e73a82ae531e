//! Tests of the response to a POST if the database stops answering after the POST is committed.

use axum::extract::State;
use axum::routing::post;
use uuid::Uuid;

use super::*;
use crate::engine::Accepted;
use crate::http::api::respond::{SuccessStatus, respond};
use crate::http::api::tasks::create;
use crate::http::server::body::PostRequest;
use crate::http::{guarded, with_layers};
use crate::task::id::TaskId;

#[tokio::test]
async fn problem_after_a_commit_has_the_location_of_the_created_task_and_tells_a_replay() {
    let task = TaskId(Uuid::from_u128(7));
    let location = format!("http://127.0.0.1:8080/v1/tasks/{task}");
    for (success, replayed, expected) in [
        (SuccessStatus::Created, false, (location.as_str(), "")),
        (SuccessStatus::Created, true, (location.as_str(), "true")),
        (SuccessStatus::Ok, true, ("", "true")),
    ] {
        let http = Arc::new(http(false, &[]));
        let handler = move |State(http): State<Arc<Http>>, posted: PostRequest| async move {
            let accepted = Accepted::without_events(task, task, replayed);
            respond(&http, posted, accepted, success, None).await
        };
        let route = guarded(&http, &create::OP, post(handler));
        let app = with_layers(Router::new().route("/v1/tasks", route), http);
        let answer = ask(&app, "POST", "/v1/tasks", &[KEY], "").await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
        let found = (
            answer.header("location"),
            answer.header("idempotency-replayed"),
        );
        assert_eq!(found, expected, "{success:?}");
    }
}
