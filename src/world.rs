//! The sources of surprise, each through one door: the clock and fresh ids as traits, random bytes, and the list of
//! mistakes that every room's settings add to.

#[cfg(test)]
pub mod captured;

use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use crate::task::time::Time;

/// What time it is here. Time that decides anything is the database's, not this one (on SQLite they are the same).
#[async_trait]
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Time;

    /// Time since the machine booted, suspended time included: what a lease is judged by right before a call is sent.
    fn uptime(&self) -> Duration;

    /// Returns after `time`.
    async fn sleep(&self, time: Duration);
}

/// Fresh ids.
pub trait Ids: Send + Sync {
    /// A UUIDv7 that nobody has.
    fn fresh(&self) -> Uuid;
}

/// The machine's clock.
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
        Duration::new(u64::try_from(at.tv_sec).unwrap_or(0), u32::try_from(at.tv_nsec).unwrap_or(0))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the door for time")]
    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// UUIDv7 from the machine's clock and randomness, monotone within the process.
#[derive(Debug, Default)]
pub struct RandomIds;

impl Ids for RandomIds {
    #[expect(clippy::disallowed_methods, reason = "this is the door for ids")]
    fn fresh(&self) -> Uuid {
        Uuid::now_v7()
    }
}

/// The system has no randomness to give: whatever needs some does not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes")]
pub struct NoRandomness;

/// Bytes that nobody can guess, from the operating system: what secrets are made of.
///
/// # Errors
/// [`NoRandomness`]; never weaker bytes instead.
#[expect(clippy::disallowed_methods, reason = "this is the door for randomness")]
pub fn random_bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// Everything that is wrong with a configuration, all of it reported at once.
#[derive(Debug, Default)]
pub struct Mistakes {
    /// What was found, in the order it was found.
    pub found: Vec<Mistake>,
    /// What is allowed but probably not meant.
    pub warnings: Vec<Mistake>,
}

/// One mistake. Never holds the value of a key, header or variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where: the path of keys and indexes in the file, e.g. `["agents", "billing", "model"]` or `["policy", "3", "when"]`.
    pub place: Vec<String>,
    /// What is wrong, with the name in question.
    pub detail: String,
}

impl Mistakes {
    /// Adds one.
    pub fn add(&mut self, place: &[&str], detail: impl Into<String>) {
        self.found.push(Mistake { place: place.iter().map(ToString::to_string).collect(), detail: detail.into() });
    }

    /// Adds a warning, which does not keep the service from starting.
    pub fn warn(&mut self, place: &[&str], detail: impl Into<String>) {
        self.warnings.push(Mistake { place: place.iter().map(ToString::to_string).collect(), detail: detail.into() });
    }

    /// Whether nothing is wrong.
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
