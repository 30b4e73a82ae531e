//! A clock for tests of the store.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use holdpoint::task::time::Time;
use holdpoint::world::Clock;

/// A clock that advances by a microsecond with each reading, and by more if a test advances it. A
/// sleep ends at once.
#[derive(Debug)]
pub struct ManualClock {
    moment: AtomicI64,
    sleeps: AtomicUsize,
}

impl ManualClock {
    /// Returns a clock that shows this moment, in microseconds since 1970.
    pub fn at(moment: i64) -> Self {
        Self {
            moment: AtomicI64::new(moment),
            sleeps: AtomicUsize::new(0),
        }
    }

    /// Returns the number of sleeps so far.
    pub fn sleeps(&self) -> usize {
        self.sleeps.load(Ordering::Relaxed)
    }

    pub fn forward(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).unwrap();
        self.moment.fetch_add(micros, Ordering::Relaxed);
    }
}

#[async_trait::async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time(self.moment.fetch_add(1, Ordering::Relaxed))
    }
    fn uptime(&self) -> Duration {
        // Whole seconds hide the microsecond by which each reading advances the clock.
        Duration::from_secs(u64::try_from(self.moment.load(Ordering::Relaxed) / 1_000_000).unwrap())
    }
    async fn sleep(&self, _: Duration) {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
    }
}
