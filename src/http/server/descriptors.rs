//! Divides the file descriptors of this process between client connections and a reserve for the
//! database, tools and models. Without the reserve, clients could take every descriptor, and the
//! service could not run approved calls.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The number of descriptors reserved for the standard streams, the listeners, the async runtime,
/// connections to the metrics listener, and idle connections that are kept open: at most 32 to
/// tools (`net/kept_connections.rs`), and at most 4 to the mail server
/// (`notify/mail/idle_connections.rs`).
const RESERVED_FOR_PROCESS: u64 = 64;
/// The number of descriptors of one database connection. An SQLite connection opens the database
/// file, the write-ahead log, and the index of this log.
const PER_DATABASE_CONNECTION: u64 = 3;
/// The number of descriptors reserved for one running task: one for each of the task's 8 concurrent
/// calls, and one for the connection to a model.
const PER_RUNNING_TASK: u64 = 9;
/// Like `PER_RUNNING_TASK`, if there are shell tools. A call of a shell tool needs three
/// descriptors: two pipes to its guard process, and a handle (pidfd) of that process.
const PER_RUNNING_TASK_WITH_SHELL: u64 = 25;
/// The minimum number of client connections that a service needs.
const MIN_CONNECTIONS: u64 = 16;
/// The number of client connections that take precedence over the larger reserve of shell tools.
/// With the default settings, this reserve alone exceeds the usual limit of 1,024 descriptors.
const CONNECTIONS_BEFORE_SHELL: u64 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorBudget {
    pub limit: u64,
    /// The number of descriptors reserved for the process itself, the database and running tasks.
    pub reserve: u64,
    pub connections: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process may have {limit} descriptors, and needs {needed}: raise the limit (`ulimit -n`, `LimitNOFILE=`), or \
     lower `database.max_connections` or `server.max_running`"
)]
pub(crate) struct TooFewDescriptors {
    limit: u64,
    needed: u64,
}

impl DescriptorBudget {
    /// Reserves descriptors for this process, for `database` database connections and for `running`
    /// running tasks. `has_shell` says whether there are shell tools. Client connections get the
    /// rest of `limit`, at most `wanted` descriptors. Up to `CONNECTIONS_BEFORE_SHELL` connections
    /// take precedence over the larger reserve of shell tools.
    ///
    /// # Errors
    /// Fails with [`TooFewDescriptors`] if the reserve without shell tools leaves fewer than
    /// `MIN_CONNECTIONS` connections, and also fewer than `wanted`.
    pub(crate) fn new(
        limit: u64,
        wanted: u32,
        database: u32,
        running: u32,
        has_shell: bool,
    ) -> Result<Self, TooFewDescriptors> {
        let reserve = |per_task: u64| {
            RESERVED_FOR_PROCESS
                + PER_DATABASE_CONNECTION * u64::from(database)
                + per_task * u64::from(running)
        };
        let least = MIN_CONNECTIONS.min(u64::from(wanted));
        let usual = reserve(PER_RUNNING_TASK);
        let needed = usual + least;
        if limit < needed {
            return Err(TooFewDescriptors { limit, needed });
        }
        let before_shell = (limit - usual).min(CONNECTIONS_BEFORE_SHELL);
        let reserve = if has_shell {
            reserve(PER_RUNNING_TASK_WITH_SHELL)
        } else {
            usual
        };
        // The larger reserve of shell tools neither prevents the start nor leaves too few
        // connections: few tasks run 8 shell calls at the same time.
        let available = limit.saturating_sub(reserve).max(before_shell);
        Ok(Self {
            limit,
            reserve,
            connections: u32::try_from(available).unwrap_or(u32::MAX).min(wanted),
        })
    }

    /// Returns the maximum number of event streams: `wanted`, but at most the number of connections
    /// that other requests do not need. Other requests need a quarter of all connections, at most
    /// 24.
    #[must_use]
    pub(crate) fn streams(&self, wanted: u32) -> u32 {
        wanted.min(self.connections - self.connections.min(96) / 4)
    }
}

/// Returns the soft descriptor limit of this process; `u64::MAX` if there is no limit.
#[must_use]
pub(crate) fn soft_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the soft descriptor limit to the hard limit. If the system refuses, the soft limit stays.
pub(crate) fn raise_soft_limit() {
    let limits = getrlimit(Resource::Nofile);
    if limits.current != limits.maximum {
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limits.maximum,
                maximum: limits.maximum,
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_and_tools_keep_their_descriptors() {
        let share = |limit, wanted| DescriptorBudget::new(limit, wanted, 32, 64, false);
        let usual = share(524_288, 1024).unwrap();
        assert_eq!((usual.connections, usual.reserve), (1024, 736));
        assert_eq!(usual.streams(1000), 1000);
        let few = share(1024, 1024).unwrap();
        assert_eq!((few.connections, few.streams(1000)), (288, 264));
        assert_eq!(share(752, 1024).unwrap().connections, 16);
        assert_eq!(
            share(751, 1024),
            Err(TooFewDescriptors {
                limit: 751,
                needed: 752
            })
        );
        assert_eq!(share(740, 4).unwrap().connections, 4);
        assert_eq!(
            share(0, 1024),
            Err(TooFewDescriptors {
                limit: 0,
                needed: 752
            })
        );
        assert_eq!(share(u64::MAX, u32::MAX).unwrap().connections, u32::MAX);
        assert_eq!(
            DescriptorBudget::new(1024, 1, 1, 1, false)
                .unwrap()
                .streams(1000),
            1
        );
        let with_shell = DescriptorBudget::new(2048, 1024, 32, 64, true).unwrap();
        assert_eq!((with_shell.connections, with_shell.reserve), (288, 1760));
        for (limit, connections) in [(752, 16), (800, 64), (1024, 128), (1889, 129)] {
            let few = DescriptorBudget::new(limit, 1024, 32, 64, true).unwrap();
            assert_eq!(few.connections, connections, "the service starts: {limit}");
        }
    }
}
