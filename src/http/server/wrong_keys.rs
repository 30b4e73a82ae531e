//! Limits the wrong keys of each source address. The first ten wrong keys in a minute get 401, and
//! the log gets a line for each, with the address but without the key. Further wrong keys get 429,
//! and the log gets a line only for the first of them. A request with a correct key, with a
//! session, or without a key does not count. Invariant: the table's size and the rate of log lines
//! stay bounded, however many addresses send wrong keys.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::extract::ConnectInfo;
use http::Extensions;

use super::problem::{Code, Problem};
use crate::engine::DetailCode;
use crate::world::Locked;

/// The maximum number of wrong keys of a source that get 401 (`unauthorized`) in a minute. Further
/// wrong keys get 429 (`too_many`).
const MAX_WRONG_KEYS: usize = 10;
const MINUTE: Duration = Duration::from_mins(1);
/// The maximum number of sources that are counted separately. All further sources share one
/// counter.
const MAX_SOURCES: usize = 10_000;
/// The minimum time between two sweeps, which remove old sources from a full table.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of log lines per minute.
const MAX_LOG_LINES: u32 = 100;

/// The source of requests: an IPv4 address, or an IPv6 network of /64, because one client usually
/// has a whole /64. All requests without a known peer address share one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientNetwork(Option<IpAddr>);

impl ClientNetwork {
    #[must_use]
    pub(crate) fn from_extensions(extensions: &Extensions) -> Self {
        Self(
            extensions
                .get::<ConnectInfo<SocketAddr>>()
                .map(|ConnectInfo(address)| match address.ip().to_canonical() {
                    IpAddr::V6(address) => {
                        let network = u128::from(address) & !u128::from(u64::MAX);
                        IpAddr::V6(Ipv6Addr::from(network))
                    }
                    address @ IpAddr::V4(_) => address,
                }),
        )
    }
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(IpAddr::V6(network)) => write!(f, "{network}/64"),
            Some(address) => write!(f, "{address}"),
            None => f.write_str("unknown"),
        }
    }
}

/// The wrong keys of the last minute.
#[derive(Debug, Default)]
pub(crate) struct WrongKeys(Locked<KeyTable>);

#[derive(Debug, Default)]
struct KeyTable {
    sources: HashMap<ClientNetwork, RecentKeys>,
    /// The wrong keys of all sources for which `sources` has no room.
    others: RecentKeys,
    swept: Duration,
    log: Log,
}

#[derive(Debug, Default)]
struct RecentKeys {
    /// The times of the last wrong keys, oldest first; at most [`MAX_WRONG_KEYS`].
    at: VecDeque<Duration>,
    /// Whether the last wrong key was over the limit. If so, further wrong keys over the limit are
    /// not logged.
    is_refused: bool,
}

impl RecentKeys {
    fn drop_old(&mut self, now: Duration) {
        while self
            .at
            .front()
            .is_some_and(|at| now.saturating_sub(*at) >= MINUTE)
        {
            self.at.pop_front();
        }
    }

    /// Counts a wrong key. If the key is over the limit, returns the time after which another wrong
    /// key would be within the limit; else returns `None`.
    fn count(&mut self, now: Duration) -> Option<Duration> {
        self.drop_old(now);
        let over_limit = self.at.len() >= MAX_WRONG_KEYS;
        if over_limit {
            self.at.pop_front();
        }
        self.at.push_back(now);
        let oldest = self.at.front().copied().unwrap_or(now);
        over_limit.then(|| MINUTE.saturating_sub(now.saturating_sub(oldest)))
    }
}

#[derive(Debug, Default)]
struct Log {
    since: Duration,
    lines: u32,
    suppressed: u64,
}

impl Log {
    fn write(&mut self, source: ClientNetwork, over_limit: bool, now: Duration) {
        if now.saturating_sub(self.since) >= MINUTE {
            if self.suppressed > 0 {
                tracing::warn!(
                    count = self.suppressed,
                    "more wrong keys were used than are logged"
                );
            }
            *self = Self {
                since: now,
                ..Self::default()
            };
        }
        if self.lines >= MAX_LOG_LINES {
            self.suppressed += 1;
            return;
        }
        self.lines += 1;
        if over_limit {
            tracing::warn!(%source, "too many wrong keys from this address: further ones get 429");
        } else {
            tracing::warn!(%source, "a wrong key");
        }
    }
}

impl WrongKeys {
    /// Counts a wrong key from `source`. `now` is the machine's uptime (`Clock::uptime`).
    ///
    /// # Errors
    /// Fails with `too_many` if the counter for `source` reached its limit within the last minute.
    pub(crate) fn count(&self, source: ClientNetwork, now: Duration) -> Result<(), Problem> {
        let mut table = self.0.lock();
        let KeyTable {
            sources,
            others,
            swept,
            log,
        } = &mut *table;
        if sources.len() >= MAX_SOURCES && now.saturating_sub(*swept) >= SWEEP_INTERVAL {
            *swept = now;
            sources.retain(|_, recent| {
                recent.drop_old(now);
                !recent.at.is_empty()
            });
        }
        let has_slot = sources.len() < MAX_SOURCES || sources.contains_key(&source);
        let recent = if has_slot {
            sources.entry(source).or_default()
        } else {
            others
        };
        let wait = recent.count(now);
        let repeated = recent.is_refused && wait.is_some();
        recent.is_refused = wait.is_some();
        if !repeated {
            log.write(source, wait.is_some(), now);
        }
        let Some(wait) = wait else { return Ok(()) };
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let problem = Problem::new(Code::TooMany, DetailCode::TooManyWrongKeys);
        Err(problem.retry_after(seconds.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use http::header::{HeaderValue, RETRY_AFTER};

    use super::*;

    fn source(text: &str) -> ClientNetwork {
        let mut extensions = Extensions::new();
        extensions.insert(ConnectInfo(SocketAddr::new(text.parse().unwrap(), 1)));
        ClientNetwork::from_extensions(&extensions)
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(1000 + seconds)
    }

    #[test]
    fn eleventh_wrong_key_of_a_minute_is_too_many() {
        let (keys, one, other) = (
            WrongKeys::default(),
            source("192.0.2.1"),
            source("192.0.2.2"),
        );
        for second in 0..10 {
            assert!(keys.count(one, at(second)).is_ok());
        }
        let refused = keys.count(one, at(30)).unwrap_err();
        assert_eq!((refused.code, refused.headers.len()), (Code::TooMany, 1));
        assert_eq!(
            refused.headers[0],
            (RETRY_AFTER, HeaderValue::from(31)),
            "until the second one is a minute old"
        );
        assert!(
            keys.count(other, at(30)).is_ok(),
            "another address is not slowed"
        );
        assert!(keys.count(one, at(60)).is_err() && keys.count(one, at(130)).is_ok());
    }

    #[test]
    fn source_is_an_ipv4_address_or_an_ipv6_network() {
        assert_eq!(source("2001:db8:1:2::1"), source("2001:db8:1:2:ffff::"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        let shown = [
            source("2001:db8:1:2::1"),
            source("192.0.2.1"),
            ClientNetwork::from_extensions(&Extensions::new()),
        ]
        .map(|it| it.to_string());
        assert_eq!(shown, ["2001:db8:1:2::/64", "192.0.2.1", "unknown"]);
    }

    #[test]
    fn full_table_counts_further_sources_together() {
        let keys = WrongKeys::default();
        let number = |number: u32| source(&std::net::Ipv4Addr::from(number).to_string());
        for source in 0..12_000 {
            let _ = keys.count(number(source), at(0));
        }
        assert_eq!(keys.0.lock().sources.len(), MAX_SOURCES);
        assert!(
            keys.count(number(12_001), at(1)).is_err(),
            "a source without room shares a counter"
        );
        assert!(
            keys.count(number(1), at(1)).is_ok(),
            "the second wrong key of a counted source"
        );
        assert!(
            keys.count(number(12_001), at(61)).is_ok(),
            "a minute later there is room"
        );
        assert!(keys.0.lock().sources.len() < 3);
    }

    #[test]
    fn refused_source_is_logged_once_until_its_keys_are_answered_again() {
        let (keys, one) = (WrongKeys::default(), source("192.0.2.1"));
        let lines = || keys.0.lock().log.lines;
        for second in 0..10 {
            assert!(keys.count(one, at(second)).is_ok());
        }
        for second in 10..40 {
            assert!(keys.count(one, at(second)).is_err());
        }
        assert_eq!(
            lines(),
            11,
            "ten wrong keys, and that further ones are refused"
        );
        // After more than a minute, the source is below its limit, and the log counts lines from 0.
        assert!(keys.count(one, at(110)).is_ok());
        assert_eq!(lines(), 1);
    }

    #[test]
    fn many_wrong_keys_log_a_bounded_number_of_lines() {
        let lines = || {
            let mut log = Log::default();
            (0..1000).for_each(|number| {
                log.write(
                    source(&std::net::Ipv4Addr::from(number).to_string()),
                    false,
                    at(1),
                );
            });
            (log.lines, log.suppressed)
        };
        assert_eq!(lines(), (MAX_LOG_LINES, 900));
    }
}
