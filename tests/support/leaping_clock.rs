//! The machine's clock, which leaps ahead when a test calls `leap`. A sleep that would end within
//! the leap ends at once. A test can also stop the clock, so that only leaps advance it.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::task::time::Time;
use holdpoint::world::{Clock, SystemClock};
use tokio::sync::watch;

pub struct Leaping(watch::Sender<Leaps>);

#[derive(Clone, Copy, Default)]
struct Leaps {
    ahead: Duration,
    /// The time and the uptime at which the clock was stopped, without the leaps.
    stopped_at: Option<(Time, Duration)>,
}

impl Leaping {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(Leaps::default())))
    }

    pub fn leap(&self, by: Duration) {
        self.0.send_modify(|leaps| leaps.ahead += by);
    }

    /// Stops the clock. From now on, it shows a later time only after a leap.
    pub fn stop(&self) {
        let now = (SystemClock.now(), SystemClock.uptime());
        self.0.send_modify(|leaps| leaps.stopped_at = Some(now));
    }

    /// Lets the stopped clock go on, as if it had never been stopped.
    pub fn go_on(&self) {
        self.0.send_modify(|leaps| leaps.stopped_at = None);
    }
}

#[async_trait::async_trait]
impl Clock for Leaping {
    fn now(&self) -> Time {
        let leaps = *self.0.borrow();
        let stopped = leaps.stopped_at.map(|(now, _)| now);
        stopped.unwrap_or_else(|| SystemClock.now()) + leaps.ahead
    }

    fn uptime(&self) -> Duration {
        let leaps = *self.0.borrow();
        let stopped = leaps.stopped_at.map(|(_, uptime)| uptime);
        stopped.unwrap_or_else(|| SystemClock.uptime()) + leaps.ahead
    }

    async fn sleep(&self, time: Duration) {
        let (end, mut leaps) = (self.uptime() + time, self.0.subscribe());
        loop {
            let left = end.saturating_sub(self.uptime());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                changed = leaps.changed() => changed.unwrap(),
                () = SystemClock.sleep(left) => {}
            }
        }
    }
}
