//! Tests the rate at which deltas are published. The test's clock advances with each delta.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use holdpoint::world::Clock;
use tokio::sync::Notify;

use super::{StreamingHarness, answer, stored, sum};
use crate::store::store_fixture::StoreFixture;

/// A clock that only the test advances. A sleep ends once the test has advanced the clock far
/// enough.
pub struct PacedClock {
    pub micros: AtomicI64,
    pub advanced: Notify,
}

impl PacedClock {
    pub fn forward(&self, by: Duration) {
        self.micros
            .fetch_add(i64::try_from(by.as_micros()).unwrap(), Ordering::SeqCst);
        self.advanced.notify_waiters();
    }
}

#[async_trait]
impl Clock for PacedClock {
    fn now(&self) -> Time {
        Time(self.micros.load(Ordering::SeqCst))
    }

    fn uptime(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.micros.load(Ordering::SeqCst)).unwrap())
    }

    async fn sleep(&self, time: Duration) {
        let until = self.uptime() + time;
        loop {
            let advanced = self.advanced.notified();
            if self.uptime() >= until {
                return;
            }
            advanced.await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
pub async fn deltas_are_limited_to_twenty_a_second() {
    let clock = Arc::new(PacedClock {
        micros: AtomicI64::new(1_700_000_000_000_000),
        advanced: Notify::new(),
    });
    let mut streaming = StreamingHarness::by(StoreFixture::sqlite().await, clock.clone()).await;
    let mut heard = Vec::new();
    let mut whole = String::new();
    for number in 0..3_000 {
        let word = format!("{number} ");
        whole += &word;
        streaming.text(&word);
        streaming.reached().await;
        clock.forward(Duration::from_millis(1));
        if number % 5 == 0 {
            tokio::task::yield_now().await;
            heard.extend(streaming.heard());
        }
    }
    streaming.order(answer(&whole, &[]));
    let turns = streaming.until(TaskStatus::Completed).await;
    heard.extend(streaming.heard());
    assert_eq!(sum(&heard), stored(&turns[0]));
    assert!(
        heard.len() > 10,
        "deltas arrive while the answer does: {}",
        heard.len()
    );
    for (first, piece) in heard.iter().enumerate() {
        let within = heard[first..]
            .iter()
            .take_while(|next| next.at.0 < piece.at.0 + 1_000_000)
            .count();
        assert!(within <= 20, "{within} pieces in a second");
    }
}
