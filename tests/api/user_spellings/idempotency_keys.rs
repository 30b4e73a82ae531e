//! Tests that an idempotency key belongs to one user, under every spelling of the user's name.

use futures_util::future::join_all;
use macro_rules_attribute::apply;
use serde_json::json;

use super::super::approval_cycle::on_both;
use super::{ONE_PERSON, app, approval, finance, ids};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{On, WEB};

#[apply(on_both)]
async fn idempotency_key_replays_for_every_spelling_of_its_user(on: On) {
    let app = app(on).await;
    for (one, other) in ONE_PERSON {
        let keyed = |user: &str, key: &str| finance(&app, user).keyed(key);
        app.model
            .then(calls(&[("refund", r#"{"order": 1, "amount": 50}"#)]));
        let first = keyed(one, "create").create_task("go").await;
        let again = keyed(other, "create").create_task("go").await;
        again
            .about(&other)
            .assert_header(201, "idempotency-replayed", "true");
        assert_eq!(again.str("/task_id"), first.str("/task_id"));
        let reused = keyed(other, "create").create_task("else").await;
        reused
            .about(&other)
            .assert_code(422, "idempotency_key_reused");
        let cancel = format!("/v1/tasks/{}/cancel", first.str("/task_id"));
        assert_eq!(keyed(one, "cancel").hit(&cancel).await.status, 200);
        assert_eq!(
            keyed(other, "cancel")
                .hit(&cancel)
                .await
                .header("idempotency-replayed"),
            "true",
            "{other}"
        );
    }
    let ours = app.held_by(&app.owner()).await;
    let path = format!("/resume/{}", ours.request);
    let vote = |user: &str| finance(&app, user).keyed("vote");
    assert_eq!(vote("Zed").post(&path, &approval()).await.status, 200);
    let again = vote("zED").post(&path, &approval()).await;
    again.assert_header(200, "idempotency-replayed", "true");
}

#[apply(on_both)]
async fn key_over_a_day_old_is_as_new_in_every_spelling_of_its_user(on: On) {
    let app = app(on).await;
    app.model.otherwise(|_| text_answer("done"));
    let body = json!({"input": "go"});
    for (one, other) in ONE_PERSON {
        let keyed = |user: &str| finance(&app, user).keyed("k");
        let first = keyed(one).post("/v1/tasks", &body).await;
        app.database
            .execute("update idempotency set created_at = created_at - 86400000000")
            .await;
        let anew = keyed(other).post("/v1/tasks", &body).await;
        anew.about(&other)
            .assert_header(201, "idempotency-replayed", "");
        assert_ne!(anew.str("/task_id"), first.str("/task_id"));
        let again = keyed(one).post("/v1/tasks", &body).await;
        again
            .about(&one)
            .assert_header(201, "idempotency-replayed", "true");
        assert_eq!(again.str("/task_id"), anew.str("/task_id"));
    }
}

#[apply(on_both)]
async fn sixteen_spellings_at_once_create_one_task(on: On) {
    let app = app(on).await;
    app.model.otherwise(|_| text_answer("done"));
    for round in 0..4 {
        let name = |number: usize| -> String {
            "maxi"
                .chars()
                .enumerate()
                .map(|(at, c)| {
                    if number >> at & 1 == 1 {
                        c.to_ascii_uppercase()
                    } else {
                        c
                    }
                })
                .collect()
        };
        let replies = join_all((0..16).map(|number| {
            let (app, name) = (&app, name(number));
            async move {
                let key = format!("at-once-{round}");
                finance(app, &name).keyed(&key).create_task("go").await
            }
        }))
        .await;
        let told: Vec<_> = replies
            .iter()
            .map(|reply| (reply.status, reply.body["task_id"].clone()))
            .collect();
        assert!(
            told.iter()
                .all(|(status, task)| *status == 201 && *task == told[0].1),
            "{told:?}"
        );
    }
    assert_eq!(
        ids(&app
            .actor(WEB)
            .header("holdpoint-user", "MAXI")
            .get("/v1/tasks")
            .await)
        .len(),
        4
    );
}
