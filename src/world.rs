//! The only source of the time, of fresh ids and of random bytes for all other modules. Tests
//! replace the clock and the ids by their own [`Clock`] and [`Ids`]. Also has [`Mistakes`], the
//! list of problems that the checks of a configuration find.

#[cfg(test)]
pub(crate) mod captured;

use std::time::Duration;

use async_trait::async_trait;
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
    #[expect(clippy::disallowed_methods, reason = "this is the door for time")]
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

    #[expect(clippy::disallowed_methods, reason = "this is the door for time")]
    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// Creates `UUIDv7`s from the machine's clock and random bytes. Within a process, each id is
/// greater than the previous id.
#[derive(Debug, Default)]
pub struct RandomIds;

impl Ids for RandomIds {
    #[expect(clippy::disallowed_methods, reason = "this is the door for ids")]
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
#[expect(clippy::disallowed_methods, reason = "this is the door for randomness")]
pub fn random_bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_are_never_the_same_twice() {
        let (one, two) = (random_bytes::<32>().unwrap(), random_bytes::<32>().unwrap());
        assert_ne!(one, two);
        assert!(one != [0; 32] && two != [0; 32]);
    }
}
