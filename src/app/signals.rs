//! The signals that end the service.

use std::future::pending;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, SIGINT and SIGHUP, caught from the moment at which this value is made.
#[derive(Debug)]
pub(super) struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
    /// SIGHUP, which a terminal sends when it is closed. `None` if the parent process has made this
    /// process ignore SIGHUP, as `nohup` does.
    hangup: Option<Signal>,
    /// Whether [`Self::end`] has returned because of SIGHUP.
    hung_up: bool,
}

impl EndSignals {
    /// Begins to catch the signals.
    ///
    /// # Errors
    /// Fails if the system refuses the signals.
    pub(super) fn catch() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hangup = (!ignores_hangup(&status)).then(|| signal(SignalKind::hangup()));
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: hangup.transpose()?,
            hung_up: false,
        })
    }

    /// Waits until a signal asks the service to end.
    pub(super) async fn end(&mut self) {
        let Self {
            terminate,
            interrupt,
            hangup,
            hung_up,
        } = self;
        let hangup = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => pending().await,
            }
        };
        *hung_up = tokio::select! {
            _ = terminate.recv() => false,
            _ = interrupt.recv() => false,
            _ = hangup => true,
        };
    }

    /// Waits during a shutdown for the signal that ends the service at once. If SIGTERM or SIGINT
    /// began the shutdown, this signal is the next SIGTERM or SIGINT. If SIGHUP began the shutdown,
    /// this signal is the second SIGTERM or SIGINT after the SIGHUP: the service manager may send
    /// the first SIGTERM because the terminal is closed. A repeated SIGHUP never ends the service
    /// at once: when a terminal is closed, both the kernel and the shell may send a SIGHUP.
    pub(super) async fn end_at_once(&mut self) {
        let needed = if self.hung_up { 2 } else { 1 };
        for _ in 0..needed {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
        }
    }
}

/// Whether a process ignores SIGHUP. `status` is the text of `/proc/<pid>/status`. In its
/// line `SigIgn`, the bits of the ignored signals are set. The lowest bit stands for SIGHUP.
fn ignores_hangup(status: &str) -> bool {
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hangup_is_ignored_where_the_lowest_bit_of_its_mask_says_so() {
        for (mask, ignored) in [
            ("0000000000001001", true),
            ("0000000000000001", true),
            ("0000000000001000", false),
            ("0000000000000000", false),
            ("fffffffffffffffe", false),
            ("", false),
        ] {
            let status = format!(
                "Name:\tholdpoint\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\nSigCgt:\t1\n"
            );
            assert_eq!(ignores_hangup(&status), ignored, "{mask}");
        }
        assert!(!ignores_hangup(""));
    }
}
