//! The gauges of `/metrics` whose values are counted in the database. A count reads the whole task
//! table, and anyone may read `/metrics`, because it needs no API key. To limit the load, all
//! scrapes within [`MIN_COUNT_INTERVAL`] share one count, only one count runs at a time, and the
//! counts take at most a twentieth of the time ([`INTERVAL_PER_DURATION`]).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use super::DatabaseCounts;
use crate::world::Locked;

/// The least time from the start of a count to the start of the next count.
pub(crate) const MIN_COUNT_INTERVAL: Duration = Duration::from_secs(15);

/// The least time between the starts of two successive counts, as a multiple of the duration of the
/// earlier count. A count of ten million tasks takes seconds.
const INTERVAL_PER_DURATION: u32 = 20;

pub(crate) type CountFn =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = DatabaseCounts> + Send>> + Send + Sync>;

pub(crate) type UptimeFn = Arc<dyn Fn() -> Duration + Send + Sync>;

pub(crate) struct Gauges {
    count: CountFn,
    uptime: UptimeFn,
    tracker: TaskTracker,
    last: Locked<LastCount>,
}

#[derive(Default)]
struct LastCount {
    /// The uptime at which the counts become stale. The next scrape after it starts a count.
    stale_at: Duration,
    is_counting: bool,
    counts: DatabaseCounts,
}

impl Gauges {
    #[must_use]
    pub(crate) fn new(count: CountFn, uptime: UptimeFn, tracker: TaskTracker) -> Arc<Self> {
        Arc::new(Self {
            count,
            uptime,
            tracker,
            last: Locked::default(),
        })
    }

    /// Returns the latest counts. If the counts are stale and no count is running, first starts a
    /// count and waits for its end. While a count runs, other callers get the previous counts at
    /// once, so that a slow count delays only one scrape of `/metrics`.
    pub(crate) async fn counts(self: &Arc<Self>) -> DatabaseCounts {
        if self.start_if_due() {
            let this = Arc::clone(self);
            // The count is a spawned task. It goes on if the scrape that started it is cancelled,
            // so that the next scrape finds the finished count.
            let counted = self.tracker.spawn(async move {
                let _guard = CountGuard {
                    gauges: &this,
                    started_at: (this.uptime)(),
                };
                let counts = (this.count)().await;
                this.last.lock().counts = counts;
            });
            let _ = counted.await;
        }
        self.last.lock().counts.clone()
    }

    /// Returns whether the caller has to count. If so, marks a count as running.
    fn start_if_due(&self) -> bool {
        let now = (self.uptime)();
        let mut last = self.last.lock();
        if last.is_counting || now < last.stale_at {
            return false;
        }
        last.is_counting = true;
        true
    }
}

/// Marks the running count as ended when dropped, even if the count panics.
struct CountGuard<'a> {
    gauges: &'a Gauges,
    /// The uptime at the start of the count.
    started_at: Duration,
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        let duration = (self.gauges.uptime)().saturating_sub(self.started_at);
        let interval = MIN_COUNT_INTERVAL.max(duration * INTERVAL_PER_DURATION);
        let mut last = self.gauges.last.lock();
        last.stale_at = self.started_at + interval;
        last.is_counting = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicI64, Ordering};

    use tokio::sync::Semaphore;
    use tokio::task::JoinHandle;

    use super::*;

    struct Fixture {
        clock: Arc<Mutex<Duration>>,
        counts: Arc<AtomicI64>,
        leave: Arc<Semaphore>,
        gauges: Arc<Gauges>,
    }

    fn fixture() -> Fixture {
        let (counts, leave) = (Arc::new(AtomicI64::new(0)), Arc::new(Semaphore::new(0)));
        let clock = Arc::new(Mutex::default());
        let (counting, waiting) = (Arc::clone(&counts), Arc::clone(&leave));
        let count: CountFn = Arc::new(move || {
            let (counting, waiting) = (Arc::clone(&counting), Arc::clone(&waiting));
            Box::pin(async move {
                let number = counting.fetch_add(1, Ordering::SeqCst) + 1;
                waiting.acquire().await.unwrap().forget();
                DatabaseCounts {
                    tasks: vec![("Paused".into(), number)],
                    ..DatabaseCounts::default()
                }
            })
        });
        let told = Arc::<Mutex<Duration>>::clone(&clock);
        let gauges = Gauges::new(
            count,
            Arc::new(move || *told.lock().unwrap()),
            TaskTracker::new(),
        );
        Fixture {
            clock,
            counts,
            leave,
            gauges,
        }
    }

    /// Spawns a reader of the gauges, waits until its count has begun, and returns its handle.
    async fn start_count(gauges: &Arc<Gauges>, counts: &AtomicI64) -> JoinHandle<DatabaseCounts> {
        let gauges = Arc::clone(gauges);
        let reader = TaskTracker::new().spawn(async move { gauges.counts().await });
        while counts.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        reader
    }

    fn counted(number: i64) -> DatabaseCounts {
        DatabaseCounts {
            tasks: vec![("Paused".into(), number)],
            ..DatabaseCounts::default()
        }
    }

    #[tokio::test]
    async fn gauges_are_counted_once_in_15_seconds_for_all_readers() {
        let Fixture {
            clock,
            counts,
            leave,
            gauges,
        } = fixture();
        leave.add_permits(100);
        for _ in 0..50 {
            assert_eq!(gauges.counts().await, counted(1));
        }
        *clock.lock().unwrap() = Duration::from_millis(14_999);
        assert_eq!(gauges.counts().await, counted(1));
        *clock.lock().unwrap() = Duration::from_secs(15);
        assert_eq!(gauges.counts().await, counted(2));
        assert_eq!(gauges.counts().await, counted(2));
        assert_eq!(counts.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn count_that_panics_is_followed_by_the_next_one_15_seconds_later() {
        let (counts, clock) = (
            Arc::new(AtomicI64::new(0)),
            Arc::new(Mutex::new(Duration::ZERO)),
        );
        let count: CountFn = Arc::new(move || {
            let number = counts.fetch_add(1, Ordering::SeqCst) + 1;
            Box::pin(async move {
                assert!(number > 1, "the first one fails");
                counted(number)
            })
        });
        let told = Arc::<Mutex<Duration>>::clone(&clock);
        let gauges = Gauges::new(
            count,
            Arc::new(move || *told.lock().unwrap()),
            TaskTracker::new(),
        );
        assert_eq!(gauges.counts().await, DatabaseCounts::default());
        *clock.lock().unwrap() = MIN_COUNT_INTERVAL;
        assert_eq!(gauges.counts().await, counted(2));
    }

    #[tokio::test]
    async fn count_of_a_minute_is_followed_by_the_next_one_20_minutes_after_its_start() {
        let Fixture {
            clock,
            counts,
            leave,
            gauges,
        } = fixture();
        let first = start_count(&gauges, &counts).await;
        *clock.lock().unwrap() = Duration::from_mins(1);
        leave.add_permits(100);
        assert_eq!(first.await.unwrap(), counted(1));
        *clock.lock().unwrap() = Duration::from_mins(20) - Duration::from_millis(1);
        assert_eq!(gauges.counts().await, counted(1));
        *clock.lock().unwrap() = Duration::from_mins(20);
        assert_eq!(gauges.counts().await, counted(2));
    }

    #[tokio::test]
    async fn slow_count_runs_once_and_only_its_first_reader_waits() {
        let Fixture {
            clock,
            counts,
            leave,
            gauges,
        } = fixture();
        let first = start_count(&gauges, &counts).await;
        // While a count runs, other callers get the old counts at once, even if these are stale.
        *clock.lock().unwrap() = Duration::from_mins(10);
        for _ in 0..50 {
            assert_eq!(gauges.counts().await, DatabaseCounts::default());
        }
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert_eq!(
            gauges.counts().await,
            DatabaseCounts::default(),
            "the count goes on without its asker"
        );
        leave.add_permits(100);
        while Arc::strong_count(&gauges) > 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(gauges.counts().await, counted(1));
    }
}
