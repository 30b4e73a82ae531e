//! Tests that the secrets of receivers are in no row, answer, metric or log line.

use super::{BACKEND, NEW, NotifyFixture, OLD};
use crate::support::test_app::On;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_and_addresses_of_receivers_are_in_no_row_answer_or_metric() {
    let entry = BACKEND
        .replace("secrets: [\"{new}\"]", "secrets: [\"{new}\", \"{old}\"], headers: { Authorization: \"Bearer header-canary-0123456789\" }")
        .replace("{hook}/backend", "{hook}/path-canary-0123456789");
    let fixture = NotifyFixture::start(On::Sqlite, &entry).await;
    fixture.server.answers(500);
    fixture.short().await;
    fixture.until_tried(1).await;
    assert_eq!(
        fixture.server.all()[0].header("authorization"),
        "Bearer header-canary-0123456789"
    );
    let texts = fixture.shown().await;
    let bare = |secret: &str| secret.strip_prefix("whsec_").unwrap().to_owned();
    for canary in [
        bare(NEW),
        bare(OLD),
        "header-canary".to_owned(),
        "path-canary".to_owned(),
        fixture.server.url.clone(),
    ] {
        assert!(texts.iter().all(|text| !text.contains(&canary)), "{canary}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secret_of_a_receiver_in_a_result_is_redacted() {
    let fixture = NotifyFixture::start(On::Sqlite, BACKEND).await;
    fixture
        .app
        .model
        .then(crate::support::fake_chat_completions::text_answer(
            &format!("the secret is {NEW}"),
        ));
    let reply = fixture
        .app
        .owner()
        .post("/v1/tasks", &serde_json::json!({"input": "hello"}))
        .await;
    assert!(
        !reply.text.contains(NEW) && reply.text.contains("[secret"),
        "{}",
        reply.text
    );
}
