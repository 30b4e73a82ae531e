//! Waits until stopped calls can no longer be sent, by this process or by another replica.

use std::time::Duration;

use super::in_flight_calls::{SEND_WINDOW, TIME_TO_WIRE};
use crate::engine::Engine;
use crate::task::call_state::CallState;
use crate::task::progress::Progress;
use crate::task::time::Time;

impl Engine {
    /// Waits until no replica can still send a started call of `tasks`. The caller has already
    /// committed the change that prevents further starts. `now` is the database's time after that
    /// commit.
    pub(in crate::engine) async fn wait_until_unsendable(&self, tasks: &[Progress], now: Time) {
        let mut remote_wait = Duration::ZERO;
        let mut sent_here = Vec::new();
        for (call, start) in tasks
            .iter()
            .flat_map(|progress| &progress.calls)
            .filter_map(CallState::unanswered_attempt)
        {
            // From now on, no driver of this process can send an attempt at the call. This also
            // stops a driver that is still committing the start of an attempt.
            sent_here.extend(self.in_flight_calls.cancel(call));
            if !self.store.is_sole() && start.replica != self.replica {
                remote_wait = remote_wait.max(remaining_send_time(start.at, now));
            }
        }
        if !remote_wait.is_zero() {
            self.clock.sleep(remote_wait).await;
        }
        for (since, ended) in sent_here {
            let remaining = TIME_TO_WIRE.saturating_sub(self.clock.uptime().saturating_sub(since));
            tokio::select! {
                () = ended.cancelled() => {}
                () = self.clock.sleep(remaining) => {}
            }
        }
    }
}

/// Returns how long another replica may still send a call that it started at `start`. `now` is
/// after the commit of the start, so at most the whole send window is left. Without this bound on
/// the result, a database clock that was set back meanwhile would make the wait longer.
fn remaining_send_time(start: Time, now: Time) -> Duration {
    let whole = SEND_WINDOW + TIME_TO_WIRE;
    (start + whole).since(now).min(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_a_start_is_at_most_the_send_window_when_the_clock_was_set_back() {
        let hour = Duration::from_hours(1);
        let (start, earlier) = (Time::default() + hour, Time::default());
        assert_eq!(
            remaining_send_time(start, earlier),
            SEND_WINDOW + TIME_TO_WIRE
        );
        assert_eq!(
            remaining_send_time(start, start + TIME_TO_WIRE),
            SEND_WINDOW
        );
        assert_eq!(remaining_send_time(start, start + hour), Duration::ZERO);
    }
}
