//! Tests when a message is tried again and when its attempts end.

use std::collections::BTreeSet;
use std::time::Duration;

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::{BACKEND, NotifyFixture, micros};
use crate::api::approval_cycle::on_both;
use crate::support::fake_receiver::Received;
use crate::support::test_app::{OPS, On};

const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

/// Returns an entry that gets one message about each task: the task's end.
fn ends() -> String {
    BACKEND.replace(
        "tenants: [acme]",
        "tenants: [acme], events: [task.completed]",
    )
}

/// Returns the wait from the last attempt to the next attempt, in seconds.
fn wait(delivery: &Value) -> i64 {
    (micros(delivery, "/due_at") - micros(delivery, "/last/at")) / 1_000_000
}

#[apply(on_both)]
async fn message_is_tried_ten_times_by_the_schedule_under_one_id_and_is_dead_then(on: On) {
    let fixture = NotifyFixture::start(on, &ends()).await;
    fixture.server.answers(503);
    fixture.short().await;
    let waits = [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400];
    for (attempts, usual) in (1..).zip(waits) {
        let found = fixture
            .until(|found| found.len() == 1 && found[0]["attempts"] == attempts)
            .await;
        let wait = wait(&found[0]);
        assert!(
            usual * 8 / 10 - 1 <= wait && wait <= usual * 12 / 10,
            "{attempts}: {wait}"
        );
        assert_eq!(found[0]["last"]["http_status"], 503);
        assert_eq!(
            (&found[0]["state"], &found[0]["last"]["problem"]),
            (&json!("due"), &json!("no 2xx"))
        );
        fixture.advance(Duration::from_secs(u64::try_from(wait).unwrap() + 2));
    }
    let dead = fixture.counted(&[("dead", 1)]).await;
    assert_eq!(
        (&dead[0]["attempts"], dead[0]["ended_at"].is_string()),
        (&json!(10), true)
    );
    let all = fixture.server.all();
    assert_eq!(all.len(), 10);
    let ids: BTreeSet<_> = all.iter().map(Received::id).collect();
    assert_eq!(
        ids,
        BTreeSet::from([dead[0]["webhook_id"].as_str().unwrap()])
    );
    let times: BTreeSet<_> = all
        .iter()
        .map(|one| one.header("webhook-timestamp"))
        .collect();
    assert_eq!(times.len(), 10, "each attempt has its own time");
    assert!(all.iter().all(|one| one.is_signed_with(super::NEW)));
}

#[apply(on_both)]
async fn receiver_that_asks_to_wait_is_waited_for_an_hour_at_most(on: On) {
    let fixture = NotifyFixture::start(on, &ends()).await;
    fixture
        .server
        .answers_by(|_| (503, vec![("retry-after", "600".to_owned())]));
    fixture.short().await;
    let found = fixture
        .until(|found| found.len() == 1 && found[0]["attempts"] == 1)
        .await;
    assert_eq!(wait(&found[0]), 600);
    fixture
        .server
        .answers_by(|_| (503, vec![("retry-after", "86400".to_owned())]));
    fixture.advance(11 * MINUTE);
    let found = fixture.until(|found| found[0]["attempts"] == 2).await;
    assert_eq!(wait(&found[0]), 3600);
}

#[apply(on_both)]
async fn wait_that_a_429_asks_for_is_kept_to_and_ends_no_young_message(on: On) {
    let fixture = NotifyFixture::start(on, &ends()).await;
    fixture
        .server
        .answers_by(|_| (429, vec![("retry-after", "30".to_owned())]));
    fixture.short().await;
    let mut before = 0;
    for round in 1..=11_u32 {
        let found = fixture
            .until(|found| {
                found.len() == 1
                    && !found[0]["last"].is_null()
                    && micros(&found[0], "/last/at") > before
            })
            .await;
        before = micros(&found[0], "/last/at");
        assert_eq!(
            (&found[0]["state"], &found[0]["attempts"]),
            (&json!("due"), &json!(round))
        );
        assert!((30..=36).contains(&wait(&found[0])), "{}", found[0]);
        if round == 11 {
            fixture.server.answers(200);
        }
        fixture.advance(Duration::from_secs(38));
    }
    fixture.counted(&[("sent", 1)]).await;
}

#[apply(on_both)]
async fn old_message_that_is_resent_keeps_to_the_wait_that_a_429_asks_for(on: On) {
    let fixture = NotifyFixture::start(on, &ends()).await;
    fixture.server.answers(410);
    fixture.short().await;
    let dead = fixture.counted(&[("dead", 1)]).await;
    let older = "update delivery set created_at = created_at - 360000000000";
    fixture.app.database.execute(older).await;
    fixture
        .server
        .answers_by(|_| (429, vec![("retry-after", "30".to_owned())]));
    let path = format!(
        "/v1/deliveries/{}/resend",
        dead[0]["delivery_id"].as_str().unwrap()
    );
    assert_eq!(fixture.app.actor(OPS).hit(&path).await.status, 202);
    for round in 1..=3 {
        let found = fixture.until(|found| found[0]["attempts"] == round).await;
        assert_eq!(found[0]["state"], "due");
        assert!((30..=36).contains(&wait(&found[0])), "{}", found[0]);
        fixture.advance(Duration::from_secs(38));
    }
}

#[apply(on_both)]
async fn message_that_a_receiver_puts_off_for_ever_ends_by_the_schedule(on: On) {
    let fixture = NotifyFixture::start(on, &ends()).await;
    fixture
        .server
        .answers_by(|_| (429, vec![("retry-after", "1800".to_owned())]));
    fixture.short().await;
    fixture
        .until(|found| found.len() == 1 && found[0]["attempts"] == 1)
        .await;
    fixture.advance(61 * HOUR);
    let found = fixture.until(|found| found[0]["attempts"] == 2).await;
    assert_eq!(wait(&found[0]), 1800);
    fixture
        .app
        .database
        .execute("update delivery set attempts = 9")
        .await;
    fixture.advance(HOUR);
    fixture.counted(&[("dead", 1)]).await;
}

#[apply(on_both)]
async fn wait_that_a_receiver_asked_for_is_kept_to_when_it_accepts_another_message(on: On) {
    let fixture = NotifyFixture::start(on, &ends()).await;
    fixture
        .server
        .answers_by(|_| (503, vec![("retry-after", "600".to_owned())]));
    fixture.short().await;
    fixture
        .until(|found| found.len() == 1 && found[0]["attempts"] == 1)
        .await;
    // A success makes waiting messages to the same receiver due earlier, if they have had at
    // least two attempts. So the test sets the number of attempts to 2.
    fixture
        .app
        .database
        .execute("update delivery set attempts = 2")
        .await;
    fixture.server.answers(503);
    fixture.short().await;
    fixture
        .until(|found| found.len() == 2 && found[0]["attempts"] == 1)
        .await;
    let hour_later =
        "update delivery set attempts = 2, due_at = due_at + 3600000000 where attempts = 1";
    fixture.app.database.execute(hour_later).await;
    fixture.server.answers(200);
    fixture.short().await;
    // The success of the third message makes the second message due at once, because the
    // receiver asked for no wait. For the first message, the receiver asked for 600 s. The
    // success does not shorten this wait.
    let found = fixture
        .until(|found| found.len() == 3 && found[1]["state"] == "sent")
        .await;
    let waiting = &found[2];
    assert_eq!(
        (&waiting["state"], wait(waiting), &waiting["attempts"]),
        (&json!("due"), 600, &json!(2))
    );
    fixture.advance(11 * MINUTE);
    fixture.counted(&[("sent", 3)]).await;
}

#[apply(on_both)]
async fn success_after_half_a_minute_makes_due_what_failed_in_another_process(on: On) {
    let fixture = NotifyFixture::start(on, &ends()).await;
    fixture.short().await;
    fixture.counted(&[("sent", 1)]).await;
    let failed = "update delivery set state = 'due', ended_at = null, attempts = 2, due_at = due_at + 36000000000";
    fixture.app.database.execute(failed).await;
    fixture.advance(Duration::from_secs(31));
    fixture.short().await;
    fixture.counted(&[("sent", 2), ("due", 0)]).await;
}

#[apply(on_both)]
async fn message_that_a_receiver_wants_no_more_is_dead_at_once(on: On) {
    let fixture = NotifyFixture::start(on, &ends()).await;
    fixture.server.answers(410);
    fixture.short().await;
    let dead = fixture.counted(&[("dead", 1)]).await;
    assert_eq!(
        (&dead[0]["attempts"], &dead[0]["last"]["http_status"]),
        (&json!(1), &json!(410))
    );
    fixture.server.answers(200);
    fixture.short().await;
    fixture.counted(&[("dead", 1), ("sent", 1)]).await;
    assert_eq!(fixture.server.count(), 2, "the entry goes on");
}

#[apply(on_both)]
async fn redirect_is_a_failure_and_is_not_followed(on: On) {
    let fixture = NotifyFixture::start(on, &ends()).await;
    let to = format!("{}/elsewhere", fixture.server.url);
    fixture
        .server
        .answers_by(move |_| (307, vec![("location", to.clone())]));
    fixture.short().await;
    let found = fixture.until_tried(1).await;
    assert_eq!(found[0]["last"]["problem"], "a redirect is not followed");
    let all = fixture.server.all();
    assert!(all.iter().all(|one| one.path == "/backend"));
}

#[apply(on_both)]
async fn receiver_that_does_not_answer_costs_fifteen_seconds_and_counts_as_a_failure(on: On) {
    let fixture = NotifyFixture::start(on, &ends()).await;
    fixture.server.close();
    fixture.short().await;
    fixture.server.reached(1).await;
    fixture.advance(Duration::from_secs(16));
    let found = fixture.until(|found| found[0]["attempts"] == 1).await;
    let last = &found[0]["last"];
    assert_eq!(
        last["problem"],
        "there was no complete answer within the timeout"
    );
    assert!(
        last["http_status"].is_null() && last["milliseconds"].as_i64() >= Some(15_000),
        "{last}"
    );
}

#[apply(on_both)]
async fn address_at_which_nothing_listens_counts_as_a_failure(on: On) {
    // The socket is bound but does not listen. While it exists, no other process gets its port.
    let closed = tokio::net::TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = closed.local_addr().unwrap();
    let entry = ends().replace("{hook}", &format!("http://{address}"));
    let fixture = NotifyFixture::start(on, &entry).await;
    fixture.short().await;
    let found = fixture.until_tried(1).await;
    assert_eq!(found[0]["last"]["problem"], "the connection was refused");
    drop(closed);
}

#[apply(on_both)]
async fn first_success_after_failures_makes_everything_due_that_waits(on: On) {
    let fixture = NotifyFixture::start(on, &ends()).await;
    fixture.short().await;
    fixture.counted(&[("sent", 1)]).await;
    fixture.server.answers(500);
    for _ in 0..6 {
        fixture.short().await;
    }
    let failed = |least: i64| {
        move |found: &[Value]| {
            let attempts = |one: &Value| one["attempts"].as_i64().unwrap();
            found
                .iter()
                .filter(|one| one["state"] == "due" && attempts(one) >= least)
                .count()
                == 6
        }
    };
    fixture.until(failed(1)).await;
    fixture.advance(Duration::from_secs(7));
    fixture.until(failed(2)).await;
    fixture.server.answers(200);
    fixture.short().await;
    fixture.counted(&[("sent", 8), ("due", 0)]).await;
}

#[apply(on_both)]
async fn message_that_is_refused_for_ever_backs_off_alone(on: On) {
    let fixture = NotifyFixture::start(on, &ends()).await;
    let poison = fixture.short().await;
    fixture.counted(&[("sent", 1)]).await;
    let (refused, pattern) = (poison.clone(), poison.clone());
    fixture.server.answers_by(move |message| {
        (
            if message.text.contains(&pattern) {
                500
            } else {
                200
            },
            Vec::new(),
        )
    });
    let path = format!(
        "/v1/deliveries/{}/resend",
        fixture.deliveries("").await[0]["delivery_id"]
            .as_str()
            .unwrap()
    );
    assert_eq!(fixture.app.actor(OPS).hit(&path).await.status, 202);
    fixture.until(|found| found[0]["attempts"] == 1).await;
    for sent in 1..=12 {
        fixture.short().await;
        fixture.counted(&[("sent", sent), ("due", 1)]).await;
    }
    let found = fixture
        .deliveries(&format!("&root_task_id={refused}"))
        .await;
    assert_eq!((found.len(), &found[0]["state"]), (1, &json!("due")));
    assert!(found[0]["attempts"].as_i64() <= Some(2), "{}", found[0]);
    let waits = micros(&found[0], "/due_at") - micros(&found[0], "/last/at");
    assert!(waits > 3_000_000, "{waits}");
}
