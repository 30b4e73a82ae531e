//! Tracks whether a receiver accepts messages, as far as this process knows. The first success
//! after a failure makes the receiver's waiting messages due, because the receiver probably accepts
//! messages again. A message is waiting if two or more attempts at it have failed. A process does
//! not see the failed attempts of other processes. Therefore a success also makes the waiting
//! messages due if this process had no success in the [`ASK_INTERVAL`] before.
//!
//! Exception: a refused message keeps its own schedule. Otherwise, each success of another message
//! would start an attempt at the refused message. A message counts as refused if the message
//! itself, and not the receiver, is probably the cause of its failures. There are three such cases:
//! - The message fails again while the receiver accepts other messages, and the failure does not
//!   look like an outage.
//! - The failure looks like an outage, but the receiver accepted messages before, and no other
//!   message fails in this way.
//! - The failure looks like an outage, and the message fails in this way again and again while the
//!   receiver accepts other messages (see [`MAX_SUSPICIONS`]).

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

/// If this time has passed since the last success, the next success makes the waiting messages due,
/// because another process may have seen failures in this time.
const ASK_INTERVAL: Duration = Duration::from_secs(30);

/// A message counts as refused if it has this many suspicions. A suspect (see `suspected`) gets a
/// suspicion when the receiver accepts another message.
const MAX_SUSPICIONS: u32 = 3;

#[derive(Debug)]
pub(super) struct Health {
    /// Whether the receiver counts as failing: from the start of the process, from a failed first
    /// attempt at a message, or from an outage, until the next success.
    failing: bool,
    /// The uptime at the last success; `None` if there was none.
    succeeded_at: Option<Duration>,
    /// The suspects. A message becomes a suspect if its second or a later attempt fails in a way
    /// that looks like an outage. The value is true if the receiver did not count as failing before
    /// this attempt. The next success removes all suspects.
    suspected: BTreeMap<Uuid, bool>,
    /// The number of suspicions of each message. From [`MAX_SUSPICIONS`] on, the message counts as
    /// refused.
    suspicions: BTreeMap<Uuid, u32>,
}

impl Default for Health {
    /// A receiver counts as failing when the process starts, because attempts of an earlier process
    /// may have failed.
    fn default() -> Self {
        Self {
            failing: true,
            succeeded_at: None,
            suspected: BTreeMap::new(),
            suspicions: BTreeMap::new(),
        }
    }
}

impl Health {
    /// Records a failed attempt at these messages. The `bool` of a message says whether an earlier
    /// attempt at the message had failed. `is_outage` says whether the failure looks like an
    /// outage.
    /// - After a failed first attempt at a message, or if `is_outage` is true, the receiver counts
    ///   as failing.
    /// - If an earlier attempt had failed and `is_outage` is true, the message becomes a suspect.
    ///   Either the receiver is down, or it answers only a few messages with 503, for ever. At the
    ///   next success, [`Self::judge_suspected`] decides whether the suspect counts as refused.
    /// - If an earlier attempt had failed and `is_outage` is false, the message counts as refused,
    ///   unless the receiver already counted as failing. This failure does not make the receiver
    ///   count as failing. Otherwise, of several messages that the receiver refuses, only the first
    ///   would count as refused.
    pub(super) fn failed(
        &mut self,
        messages: impl IntoIterator<Item = (Uuid, bool)>,
        is_outage: bool,
    ) {
        let was_failing = self.failing;
        for (message, again) in messages {
            if again && is_outage {
                self.suspected.entry(message).or_insert(!was_failing);
            } else if again && !was_failing {
                self.suspicions.insert(message, MAX_SUSPICIONS);
            }
            self.failing |= !again || is_outage;
        }
    }

    /// Records that the receiver accepted these messages at the uptime `now`.
    /// - If the receiver was failing, or if there was no success in the [`ASK_INTERVAL`] before
    ///   `now`, returns the messages that count as refused. In this case, the caller must make the
    ///   other waiting messages due.
    /// - Otherwise returns `None`. The receiver was accepting messages, so the only waiting
    ///   messages are refused messages, which keep their schedule.
    pub(super) fn succeeded(
        &mut self,
        messages: impl IntoIterator<Item = Uuid>,
        now: Duration,
    ) -> Option<Vec<Uuid>> {
        self.ended(messages);
        self.judge_suspected();
        let was_failing = std::mem::replace(&mut self.failing, false);
        let previous = self.succeeded_at.replace(now);
        let is_long_ago = |at| now.saturating_sub(at) >= ASK_INTERVAL;
        let pulls = was_failing || previous.is_none_or(is_long_ago);
        pulls.then(|| self.refused().collect())
    }

    fn refused(&self) -> impl Iterator<Item = Uuid> {
        let suspicions = self.suspicions.iter();
        suspicions
            .filter(|(_, count)| **count >= MAX_SUSPICIONS)
            .map(|(message, _)| *message)
    }

    /// Called when the receiver has accepted another message. Adds one suspicion to each suspect. A
    /// single suspect reaches [`MAX_SUSPICIONS`] at once, unless the receiver was failing when the
    /// suspect was added.
    fn judge_suspected(&mut self) {
        let suspected = std::mem::take(&mut self.suspected);
        let is_only_one = suspected.len() == 1;
        for (message, was_accepting) in suspected {
            let is_cause = is_only_one && was_accepting;
            let suspicions = self.suspicions.entry(message).or_default();
            *suspicions += if is_cause { MAX_SUSPICIONS } else { 1 };
        }
    }

    /// Records that these messages are not tried again.
    pub(super) fn ended(&mut self, messages: impl IntoIterator<Item = Uuid>) {
        for message in messages {
            self.suspected.remove(&message);
            self.suspicions.remove(&message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Uuid = Uuid::from_u128(1);
    const TWO: Uuid = Uuid::from_u128(2);
    const THREE: Uuid = Uuid::from_u128(3);
    const NOW: Duration = Duration::from_hours(1);

    #[test]
    fn first_success_after_failures_pulls_everything_and_the_next_one_nothing() {
        let mut health = Health::default();
        assert_eq!(
            health.succeeded([ONE], NOW),
            Some(Vec::new()),
            "after a start"
        );
        assert_eq!(health.succeeded([TWO], NOW), None);
        health.failed([(ONE, false)], false);
        health.failed([(TWO, false)], false);
        health.failed([(ONE, true)], false);
        assert_eq!(health.succeeded([TWO], NOW), Some(Vec::new()));
        assert_eq!(health.succeeded([TWO], NOW), None);
    }

    #[test]
    fn message_that_is_refused_while_others_are_taken_is_pulled_once() {
        let mut health = Health::default();
        health.succeeded([TWO], NOW);
        health.failed([(ONE, false)], false);
        assert_eq!(health.succeeded([TWO], NOW), Some(Vec::new()));
        health.failed([(ONE, true)], false);
        assert_eq!(health.succeeded([TWO], NOW), None, "no other message waits");
        health.failed([(TWO, false)], false);
        assert_eq!(health.succeeded([TWO], NOW), Some(vec![ONE]));
        health.ended([ONE]);
        health.failed([(TWO, false)], false);
        assert_eq!(health.succeeded([TWO], NOW), Some(Vec::new()));
    }

    #[test]
    fn each_message_that_fails_again_after_its_pull_is_pulled_no_more() {
        let mut health = Health::default();
        health.succeeded([THREE], NOW);
        health.failed([(ONE, false)], false);
        health.failed([(TWO, false)], false);
        assert_eq!(health.succeeded([THREE], NOW), Some(Vec::new()));
        health.failed([(ONE, true)], false);
        health.failed([(TWO, true)], false);
        health.failed([(THREE, false)], false);
        assert_eq!(health.succeeded([THREE], NOW), Some(vec![ONE, TWO]));
    }

    #[test]
    fn message_that_alone_gets_the_answer_of_an_outage_is_pulled_once() {
        let mut health = Health::default();
        health.succeeded([TWO], NOW);
        health.failed([(ONE, false)], true);
        assert_eq!(health.succeeded([TWO], NOW), Some(Vec::new()));
        for _ in 0..2 {
            health.failed([(ONE, true)], true);
            assert_eq!(health.succeeded([TWO], NOW), Some(vec![ONE]));
        }
    }

    #[test]
    fn messages_that_fail_in_an_outage_are_all_pulled_again() {
        let mut health = Health::default();
        health.succeeded([THREE], NOW);
        health.failed([(ONE, false)], false);
        assert_eq!(health.succeeded([THREE], NOW), Some(Vec::new()));
        health.failed([(ONE, true)], true);
        health.failed([(TWO, true)], true);
        assert_eq!(health.succeeded([THREE], NOW), Some(Vec::new()));
    }

    #[test]
    fn messages_that_fail_together_before_three_successes_are_pulled_no_more() {
        let mut health = Health::default();
        health.succeeded([THREE], NOW);
        let pulled = [vec![], vec![], vec![ONE, TWO]];
        for refused in pulled {
            health.failed([(ONE, true)], true);
            health.failed([(TWO, true)], true);
            assert_eq!(health.succeeded([THREE], NOW), Some(refused));
        }
    }

    #[test]
    fn success_pulls_again_after_half_a_minute_without_a_success() {
        let mut health = Health::default();
        let second = Duration::from_secs(1);
        assert_eq!(health.succeeded([ONE], NOW), Some(Vec::new()));
        assert_eq!(health.succeeded([ONE], NOW + second), None);
        assert_eq!(health.succeeded([ONE], NOW + ASK_INTERVAL), None);
        let quiet = NOW + ASK_INTERVAL * 2;
        assert_eq!(health.succeeded([ONE], quiet), Some(Vec::new()));
        assert_eq!(health.succeeded([ONE], quiet + second), None);
    }
}
