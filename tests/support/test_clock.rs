//! A clock that shows the machine's time plus the sum of all calls of `advance`. A sleep ends at
//! once if an advance reaches its end. A test can also stop the clock. Then only `advance` changes
//! the time that the clock shows.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::task::time::Time;
use holdpoint::world::{Clock, SystemClock};
use tokio::sync::watch;

pub struct TestClock(watch::Sender<Offset>);

#[derive(Clone, Copy, Default)]
struct Offset {
    ahead: Duration,
    /// The machine's time and uptime when the test stopped the clock. A stopped clock shows these
    /// plus `ahead`.
    stopped_at: Option<(Time, Duration)>,
}

impl TestClock {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(Offset::default())))
    }

    pub fn advance(&self, by: Duration) {
        self.0.send_modify(|offset| offset.ahead += by);
    }

    /// Stops the clock. From now on, it shows a later time only after an advance.
    pub fn stop(&self) {
        let now = (SystemClock.now(), SystemClock.uptime());
        self.0.send_modify(|offset| offset.stopped_at = Some(now));
    }

    /// Lets the stopped clock go on. It shows the same time as if it had never been stopped.
    pub fn go_on(&self) {
        self.0.send_modify(|offset| offset.stopped_at = None);
    }
}

#[async_trait::async_trait]
impl Clock for TestClock {
    fn now(&self) -> Time {
        let offset = *self.0.borrow();
        let stopped = offset.stopped_at.map(|(now, _)| now);
        stopped.unwrap_or_else(|| SystemClock.now()) + offset.ahead
    }

    fn uptime(&self) -> Duration {
        let offset = *self.0.borrow();
        let stopped = offset.stopped_at.map(|(_, uptime)| uptime);
        stopped.unwrap_or_else(|| SystemClock.uptime()) + offset.ahead
    }

    async fn sleep(&self, time: Duration) {
        let (end, mut offset) = (self.uptime() + time, self.0.subscribe());
        loop {
            let left = end.saturating_sub(self.uptime());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                changed = offset.changed() => changed.unwrap(),
                () = SystemClock.sleep(left) => {}
            }
        }
    }
}
