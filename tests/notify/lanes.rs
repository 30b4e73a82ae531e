//! Tests that one receiver does not delay another, and that no message is in flight twice at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use macro_rules_attribute::apply;

use super::{BACKEND, NotifyFixture};
use crate::api::approval_cycle::on_both;
use crate::support::fake_receiver::{FakeReceiver, Received};
use crate::support::test_app::On;

/// The time limit of an attempt. After this time, a receiver that does not answer loses its slot to
/// the next message.
const ATTEMPT: Duration = Duration::from_secs(15);

fn ends(name: &str) -> String {
    let named = "tenants: [acme], events: [task.completed]";
    BACKEND
        .replace("backend", name)
        .replace("tenants: [acme]", named)
}

/// Returns how often each message arrived at this path.
fn arrivals(hook: &FakeReceiver, path: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for message in hook.all().iter().filter(|message| message.path == path) {
        *counts.entry(message.id().to_owned()).or_default() += 1;
    }
    counts
}

#[apply(on_both)]
async fn dead_receiver_delays_no_other(on: On) {
    let dead = FakeReceiver::start().await;
    dead.close();
    let slow = ends("slow").replace("{hook}", &dead.url);
    let fixture = NotifyFixture::start(on, &format!("{slow}\n{}", ends("backend"))).await;
    let began = Instant::now();
    for _ in 0..12 {
        fixture.short().await;
    }
    fixture
        .until(|found| {
            let sent =
                |one: &&serde_json::Value| one["target"] == "backend" && one["state"] == "sent";
            found.iter().filter(sent).count() == 12
        })
        .await;
    dead.reached(4).await;
    assert_eq!(fixture.server.count(), 12);
    assert!(
        dead.count() == 4 || began.elapsed() >= ATTEMPT,
        "the dead one holds its own four slots"
    );
}

#[apply(on_both)]
async fn eight_slow_receivers_that_take_every_slot_delay_no_other(on: On) {
    let slow = FakeReceiver::start().await;
    slow.close();
    let slow_entries: Vec<String> = (0..8)
        .map(|number| ends(&format!("slow{number}")))
        .collect();
    let slow_entries = slow_entries.join("\n").replace("{hook}", &slow.url);
    let fixture = NotifyFixture::start(on, &format!("{slow_entries}\n{}", ends("backend"))).await;
    let began = Instant::now();
    for _ in 0..4 {
        fixture.short().await;
    }
    slow.reached(32).await;
    for _ in 0..4 {
        fixture.short().await;
    }
    fixture
        .until(|found| {
            let sent =
                |one: &&serde_json::Value| one["target"] == "backend" && one["state"] == "sent";
            found.iter().filter(sent).count() == 8
        })
        .await;
    assert_eq!(fixture.server.count(), 8);
    assert!(
        slow.count() == 32 || began.elapsed() >= ATTEMPT,
        "no slow receiver has given up a slot"
    );
}

#[apply(on_both)]
async fn lease_covers_one_message_so_a_slow_receiver_gets_none_twice(on: On) {
    let fixture = NotifyFixture::start(on, &ends("backend")).await;
    fixture.server.close();
    for _ in 0..10 {
        fixture.short().await;
    }
    fixture.server.reached(4).await;
    // The advance is far shorter than the time limit of an attempt, so no attempt fails. The
    // advance ends the sender's sleep, so the sender looks for due messages again.
    fixture.advance(Duration::from_secs(5));
    fixture.server.open();
    fixture.counted(&[("sent", 10), ("due", 0)]).await;
    let counts = arrivals(&fixture.server, "/backend");
    assert_eq!((counts.len(), counts.values().max()), (10, Some(&1)));
}

#[apply(on_both)]
async fn messages_of_one_claim_are_sent_at_the_same_time(on: On) {
    let fixture = NotifyFixture::start(on, BACKEND).await;
    fixture.server.close();
    // With the stopped clock, a failed attempt is not made again.
    fixture.clock.stop();
    // One commit opens the request and pauses the task, so both messages are due together.
    fixture.app.held().await;
    fixture.server.reached(2).await;
    fixture.server.open();
    fixture.counted(&[("sent", 2), ("due", 0)]).await;
}

#[apply(on_both)]
async fn two_replicas_send_each_message_once(on: On) {
    if on == On::Sqlite {
        return;
    }
    let fixture = NotifyFixture::start(on, &ends("backend")).await;
    let other = fixture.app.replica().await;
    for _ in 0..20 {
        fixture.short().await;
    }
    fixture.counted(&[("sent", 20), ("due", 0)]).await;
    let counts = arrivals(&fixture.server, "/backend");
    assert_eq!((counts.len(), counts.values().max()), (20, Some(&1)));
    other.stop().await;
}

#[apply(on_both)]
async fn shutdown_waits_for_the_messages_in_flight_and_begins_no_other(on: On) {
    let mut fixture = NotifyFixture::start(on, &ends("backend")).await;
    fixture.server.close();
    for _ in 0..6 {
        fixture.short().await;
    }
    fixture.server.reached(4).await;
    let hook = fixture.server.clone();
    let (restarted, ()) = tokio::join!(fixture.app.restart(), async {
        // `join!` polls the restart first. From this poll on, the sender begins no message. Only
        // then does the receiver answer the messages in flight.
        hook.open();
    });
    let () = restarted;
    fixture.counted(&[("sent", 6), ("due", 0)]).await;
    let counts = arrivals(&fixture.server, "/backend");
    assert_eq!((counts.len(), counts.values().max()), (6, Some(&1)));
    assert_eq!(
        fixture
            .server
            .all()
            .iter()
            .map(Received::id)
            .collect::<BTreeSet<_>>()
            .len(),
        6
    );
}
