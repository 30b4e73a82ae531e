//! The only source of the time, of fresh ids and of random bytes for all other modules. Tests
//! replace the clock and the ids by their own [`Clock`] and [`Ids`]. Also has [`Mistakes`], the
//! list of problems that the checks of a configuration find, `Locked`, a mutex, and [`Backlog`],
//! a count of what waits.

#[cfg(test)]
pub(crate) mod captured;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::task::time::Time;

/// This machine's clock. Stored deadlines and the stored times at which leases end follow the
/// database's clock instead. On SQLite, the two clocks are the same.
#[async_trait]
pub trait Clock: Send + Sync {
    /// Returns the wall-clock time.
    fn now(&self) -> Time;

    /// Returns the time since the machine booted, including suspended time. Changes of the wall
    /// clock do not change the uptime. Therefore use the uptime to measure intervals, such as the
    /// remaining time of this process's lease.
    fn uptime(&self) -> Duration;

    async fn sleep(&self, time: Duration);
}

pub trait Ids: Send + Sync {
    /// Returns a new, unique UUIDv7.
    fn fresh(&self) -> Uuid;
}

#[derive(Debug, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the entry point for time"
    )]
    fn now(&self) -> Time {
        Time(jiff::Timestamp::now().as_microsecond())
    }

    fn uptime(&self) -> Duration {
        let at = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(
            u64::try_from(at.tv_sec).unwrap_or(0),
            u32::try_from(at.tv_nsec).unwrap_or(0),
        )
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the entry point for time"
    )]
    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// If a timer fires more than this duration after its deadline, the process counts as suspended at
/// the deadline.
const MAX_LATENESS: Duration = Duration::from_secs(1);
/// The time for which work may go on after a timer that fired more than [`MAX_LATENESS`] late: long
/// enough to read input that has already arrived.
const GRACE: Duration = Duration::from_secs(1);

/// Awaits `work` until `deadline`. Returns `None` if the work is not complete by then.
///
/// After a suspension of the process, the timer may fire before Tokio has seen the input that
/// arrived meanwhile. If the timer fires more than [`MAX_LATENESS`] late, the work may therefore go
/// on for [`GRACE`].
pub(crate) async fn complete_by<T>(deadline: Instant, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    if let Ok(output) = timeout_at(deadline, work.as_mut()).await {
        return Some(output);
    }
    let end = grace_end(deadline, Instant::now())?;
    timeout_at(end, work).await.ok()
}

/// Like [`complete_by`], with the deadline `within` from now.
pub(crate) async fn complete_within<T>(
    within: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    match Instant::now().checked_add(within) {
        Some(deadline) => complete_by(deadline, work).await,
        None => Some(work.await),
    }
}

/// Returns the end of the grace after a timer; `None` if the timer fired on time.
fn grace_end(deadline: Instant, fired_at: Instant) -> Option<Instant> {
    let lateness = fired_at.saturating_duration_since(deadline);
    (lateness > MAX_LATENESS).then(|| fired_at + GRACE)
}

/// Creates `UUIDv7`s from the machine's clock and random bytes. Within a process, each id is
/// greater than the previous id.
#[derive(Debug, Default)]
pub struct RandomIds;

impl Ids for RandomIds {
    #[expect(clippy::disallowed_methods, reason = "this is the entry point for ids")]
    fn fresh(&self) -> Uuid {
        Uuid::now_v7()
    }
}

/// The error if the system provides no random bytes. The caller must fail instead of continuing
/// without them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes")]
pub struct NoRandomness;

/// Returns unpredictable bytes from the operating system, fit for secrets.
///
/// # Errors
/// Fails with [`NoRandomness`] if the system provides no random bytes. The function never falls
/// back to weaker bytes.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the entry point for randomness"
)]
pub fn random_bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// A value behind a mutex that ignores poisoning. The lock must not be held across an await.
#[derive(Debug, Default)]
pub(crate) struct Locked<T>(Mutex<T>);

impl<T> Locked<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The open requests of one kind, or the unsent deliveries to one entry of `notify.to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// The kind of the requests, or the name of the entry to which the deliveries go.
    pub name: String,
    /// The number of open requests of the kind, or of unsent deliveries to the entry.
    pub waiting: i64,
    /// The age of the oldest open request of the kind, or of the oldest unsent delivery to the
    /// entry.
    pub oldest: Duration,
}

impl Backlog {
    /// Returns `backlogs`, and in addition an empty backlog for each of `names` that has no
    /// backlog.
    #[must_use]
    pub fn with_all<'n>(
        mut backlogs: Vec<Self>,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Vec<Self> {
        for name in names {
            if !backlogs.iter().any(|backlog| backlog.name == name) {
                backlogs.push(Self {
                    name: name.to_owned(),
                    waiting: 0,
                    oldest: Duration::ZERO,
                });
            }
        }
        backlogs
    }
}

/// All problems of a configuration, reported together.
#[derive(Debug, Default)]
pub struct Mistakes {
    /// Errors, in the order found.
    pub found: Vec<Mistake>,
    /// Settings that are allowed but probably not intended.
    pub warnings: Vec<Mistake>,
}

/// One problem of a configuration. Its texts contain no values of keys, headers or variables,
/// because such values may be secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The path of keys and indexes in the file, e.g. `["agents", "billing", "model"]` or
    /// `["policy", "3", "when"]`.
    pub place: Vec<String>,
    /// A description of the problem, for the operator.
    pub detail: String,
}

impl Mistakes {
    /// Adds an error. An error keeps the service from starting.
    pub fn add(&mut self, place: &[&str], detail: impl Into<String>) {
        self.found.push(Mistake {
            place: place.iter().map(ToString::to_string).collect(),
            detail: detail.into(),
        });
    }

    /// Adds a warning. A warning does not keep the service from starting.
    pub fn warn(&mut self, place: &[&str], detail: impl Into<String>) {
        self.warnings.push(Mistake {
            place: place.iter().map(ToString::to_string).collect(),
            detail: detail.into(),
        });
    }

    /// Whether there are no errors; warnings do not count.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
}

/// Returns the first key of the map that sorts before `key` and differs from `key` only in the case
/// of ASCII letters. Returns `None` if there is no such key. Where case does not matter, both keys
/// are the same name.
#[must_use]
pub(crate) fn earlier_key_in_other_case<'m, V>(
    map: &'m BTreeMap<String, V>,
    key: &str,
) -> Option<&'m str> {
    let mut earlier = map.keys().map(String::as_str).take_while(|own| *own < key);
    earlier.find(|own| own.eq_ignore_ascii_case(key))
}

/// Returns `usual` in a normal run of the tests, and `long` in a run of `scripts/chaos counts`.
#[cfg(test)]
pub(crate) fn repetitions(usual: usize, long: usize) -> usize {
    let is_long_run = std::env::var_os("HOLDPOINT_TEST_LONG").is_some();
    if is_long_run { long } else { usual }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_has_a_grace_only_if_it_fires_more_than_a_second_late() {
        let deadline = Instant::now();
        for on_time in [0, 1, 1_000] {
            let fired_at = deadline + Duration::from_millis(on_time);
            assert_eq!(grace_end(deadline, fired_at), None, "{on_time} ms");
        }
        let fired_at = deadline + Duration::from_millis(1_001);
        let end = fired_at + Duration::from_secs(1);
        assert_eq!(grace_end(deadline, fired_at), Some(end));
    }

    /// The work blocks its thread until the deadline has passed by more than [`MAX_LATENESS`].
    /// Tokio fires the timer when the work then yields for the first time.
    #[tokio::test]
    async fn work_that_reads_its_input_after_a_suspension_is_complete_in_time() {
        let reads = async {
            std::thread::sleep(Duration::from_millis(1_200));
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        };
        assert_eq!(complete_by(Instant::now(), reads).await, Some(()));
    }

    #[tokio::test]
    async fn work_that_is_silent_after_a_suspension_ends_with_its_grace() {
        let silent = async {
            std::thread::sleep(Duration::from_millis(1_200));
            std::future::pending::<()>().await;
        };
        assert_eq!(complete_by(Instant::now(), silent).await, None);
    }

    #[test]
    fn random_bytes_are_never_the_same_twice() {
        let (one, two) = (random_bytes::<32>().unwrap(), random_bytes::<32>().unwrap());
        assert_ne!(one, two);
        assert!(one != [0; 32] && two != [0; 32]);
    }
}
