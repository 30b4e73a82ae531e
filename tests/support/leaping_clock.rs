//! The machine's clock, which leaps ahead when a test calls `leap`. A sleep that would end within
//! the leap ends at once.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::task::time::Time;
use holdpoint::world::{Clock, SystemClock};
use tokio::sync::watch;

pub struct Leaping(watch::Sender<Duration>);

impl Leaping {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(Duration::ZERO)))
    }

    pub fn leap(&self, by: Duration) {
        self.0.send_modify(|ahead| *ahead += by);
    }
}

#[async_trait::async_trait]
impl Clock for Leaping {
    fn now(&self) -> Time {
        SystemClock.now() + *self.0.borrow()
    }

    fn uptime(&self) -> Duration {
        SystemClock.uptime() + *self.0.borrow()
    }

    async fn sleep(&self, time: Duration) {
        let (end, mut leaps) = (self.uptime() + time, self.0.subscribe());
        loop {
            let left = end.saturating_sub(self.uptime());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                ahead = leaps.changed() => ahead.unwrap(),
                () = SystemClock.sleep(left) => {}
            }
        }
    }
}
