//! A clock in which the sleeps that a test chooses never end.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::task::time::Time;
use holdpoint::world::{Clock, SystemClock};

/// The duration of the worker's sleep between two rounds. If this sleep never ends, the worker
/// looks for overdue requests only at its start.
pub const BETWEEN_ROUNDS: Duration = Duration::from_millis(500);

/// A clock in which a sleep never ends if `is_endless` returns true for its duration.
pub struct EndlessSleep {
    clock: Arc<dyn Clock>,
    is_endless: fn(Duration) -> bool,
}

impl EndlessSleep {
    /// Builds a clock that otherwise behaves like the machine's clock.
    pub fn new(is_endless: fn(Duration) -> bool) -> Arc<Self> {
        Self::of(Arc::new(SystemClock), is_endless)
    }

    /// Builds a clock that otherwise behaves like `clock`.
    pub fn of(clock: Arc<dyn Clock>, is_endless: fn(Duration) -> bool) -> Arc<Self> {
        Arc::new(Self { clock, is_endless })
    }
}

#[async_trait::async_trait]
impl Clock for EndlessSleep {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn uptime(&self) -> Duration {
        self.clock.uptime()
    }

    async fn sleep(&self, time: Duration) {
        if (self.is_endless)(time) {
            std::future::pending::<()>().await;
        }
        self.clock.sleep(time).await;
    }
}
