//! Failpoints: named points in the code at which a test kills or freezes the real process, such as
//! the points right before and right after each commit. A freeze stops the process with `SIGSTOP`.
//! In a release build without the feature `failpoints`, the functions do nothing.
//!
//! [`arm`] takes a text of settings, such as `tool_started.committed=abort@2;lease=3s;clock=120s`:
//! - `tool_started.committed=abort@2`: the process dies, as by `kill -9`, when it reaches the point
//!   `tool_started.committed` for the second time.
//! - `lease=3s`: leases last 3 s.
//! - `clock=120s`: the process adds 120 s to each time that it reads from Postgres' clock. A test
//!   starts a process with this setting after a kill, so that the new process sees the leases of
//!   the killed process as expired.
//! - `statement=general`: on Postgres, the statement of `commit_postgres.rs` writes every change.
//!   Otherwise, the shorter statement of `commit_single.rs` writes most changes.

/// Whether this build has failpoints.
pub const COMPILED: bool = cfg!(failpoints);

#[cfg(failpoints)]
mod armed {
    use std::collections::BTreeMap;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    /// If a sleep of 1 ms takes at least this duration, the process was frozen during the sleep and
    /// has been continued.
    const STOP_DETECTION_GAP: Duration = Duration::from_secs(1);
    /// The delay before a freeze. During the delay, other Tokio tasks write the calls that already
    /// have a permit. Without the delay, the freeze could fall between a call's permit and its
    /// write, and the process would send the call after the freeze (see docs/guarantees.md).
    const FREEZE_DELAY: Duration = Duration::from_millis(100);

    static ARMED: OnceLock<Armed> = OnceLock::new();

    struct Armed {
        points: BTreeMap<String, Point>,
        lease: Option<Duration>,
        clock: Option<Duration>,
        general_statement: bool,
    }

    struct Point {
        freezes: bool,
        /// The number of hits until the point fires. With 1, the next hit fires the point.
        remaining_hits: AtomicU64,
    }

    /// Arms the points in `text`, once per process.
    ///
    /// # Errors
    /// Fails if a part of `text` cannot be parsed (the message names the part), or if points are
    /// armed already.
    pub fn arm(text: &str) -> Result<(), String> {
        let mut armed = Armed {
            points: BTreeMap::new(),
            lease: None,
            clock: None,
            general_statement: false,
        };
        for part in text
            .split(';')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| format!("{part}: name=value is expected"))?;
            match name {
                "lease" => armed.lease = Some(seconds(value)?),
                "clock" => armed.clock = Some(seconds(value)?),
                "statement" if value == "general" => armed.general_statement = true,
                point => {
                    let (action, times) = value.split_once('@').unwrap_or((value, "1"));
                    let freezes = match action {
                        "abort" => false,
                        "freeze" => true,
                        other => return Err(format!("{other}: abort or freeze is expected")),
                    };
                    let times = times
                        .parse()
                        .map_err(|_| format!("{times}: a number is expected"))?;
                    armed.points.insert(
                        point.to_owned(),
                        Point {
                            freezes,
                            remaining_hits: AtomicU64::new(times),
                        },
                    );
                }
            }
        }
        ARMED.set(armed).map_err(|_| "armed already".to_owned())
    }

    fn seconds(text: &str) -> Result<Duration, String> {
        let number = text
            .strip_suffix('s')
            .and_then(|number| number.parse().ok());
        number
            .map(Duration::from_secs)
            .ok_or_else(|| format!("{text}: seconds are expected, as in 3s"))
    }

    /// Counts a hit of `point`. If `point` fires at this hit, kills or freezes the process. After a
    /// freeze, returns once the process is continued.
    pub fn reach(point: &str) {
        let Some(point) = ARMED.get().and_then(|armed| armed.points.get(point)) else {
            return;
        };
        if point.remaining_hits.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        let signal = if point.freezes {
            std::thread::sleep(FREEZE_DELAY);
            rustix::process::Signal::STOP
        } else {
            rustix::process::Signal::KILL
        };
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        // If the kernel delivers the signal to another thread, this thread runs on until the kill
        // or the freeze takes effect. In this time, it must not go on with the code after the
        // failpoint. So it aborts, or sleeps until it detects that the freeze is over.
        if !point.freezes {
            std::process::abort();
        }
        let mut last = Instant::now();
        while last.elapsed() < STOP_DETECTION_GAP {
            last = Instant::now();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the duration of leases that the armed text sets; `None` if it sets none.
    pub fn lease_duration() -> Option<Duration> {
        ARMED.get().and_then(|armed| armed.lease)
    }

    /// Returns the offset to add to Postgres' clock; `None` if the armed text has no such offset.
    pub fn clock_offset() -> Option<Duration> {
        ARMED.get().and_then(|armed| armed.clock)
    }

    /// Whether the armed text makes the general statement write every change.
    pub fn general_statement() -> bool {
        ARMED.get().is_some_and(|armed| armed.general_statement)
    }
}

#[cfg(failpoints)]
pub use self::armed::{arm, clock_offset, general_statement, lease_duration, reach};

#[cfg(not(failpoints))]
mod absent {
    use std::time::Duration;

    /// Ignores the text, because this build has no failpoints.
    ///
    /// # Errors
    /// Never fails.
    #[inline]
    pub fn arm(_text: &str) -> Result<(), String> {
        Ok(())
    }

    /// Does nothing, because this build has no failpoints.
    #[inline]
    pub fn reach(_point: &str) {}

    /// Returns `None`, because this build has no failpoints.
    #[inline]
    pub fn lease_duration() -> Option<Duration> {
        None
    }

    /// Returns `None`, because this build has no failpoints.
    #[inline]
    pub fn clock_offset() -> Option<Duration> {
        None
    }

    /// Returns `false`, because this build has no failpoints.
    #[inline]
    pub fn general_statement() -> bool {
        false
    }
}

#[cfg(not(failpoints))]
pub use self::absent::{arm, clock_offset, general_statement, lease_duration, reach};
