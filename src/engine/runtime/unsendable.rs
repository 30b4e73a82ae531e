//! Waits until stopped calls can no longer be sent, by this process or by another replica.

use std::time::Duration;

use super::in_flight_calls::{SEND_WINDOW, TIME_TO_WIRE};
use crate::engine::Engine;
use crate::engine::session::TaskSession;
use crate::task::call_state::CallState;
use crate::task::progress::Progress;
use crate::task::time::Time;

impl Engine {
    /// Waits until no replica can still send a started call of `tasks`, which are the session's
    /// task and its descendants. The caller has already committed the change that prevents further
    /// starts. `now` is the database's time after that commit. A descendant that cannot be read may
    /// have started a call with its last item, at `updated_at` of its row.
    pub(in crate::engine) async fn wait_until_unsendable(
        &self,
        session: &TaskSession,
        tasks: &[Progress],
        now: Time,
    ) {
        let tree = &session.tree;
        let descendants = tree.descendants(session.task_id()).into_iter();
        let unread = descendants.filter(|task| !tree.is_readable(*task));
        let mut wait = unread
            .filter_map(|task| tree.row(task))
            .map(|row| remaining_send_time(row.updated_at, now))
            .max()
            .unwrap_or_default();
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
                wait = wait.max(remaining_send_time(start.at, now));
            }
        }
        if !wait.is_zero() {
            self.clock.sleep(wait).await;
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
