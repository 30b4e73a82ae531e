//! Tracks the health of a receiver: whether the receiver accepts messages, as far as this process
//! knows. The first success after failures makes all waiting messages of the receiver due.
//!
//! There is an exception: a message that was refused while the receiver accepted other messages
//! keeps its own schedule. Otherwise each success of another message would use up one attempt at
//! the refused message.

use std::collections::BTreeSet;

use uuid::Uuid;

/// The successes and failures of one receiver, as far as this process knows.
#[derive(Debug)]
pub(super) struct Health {
    /// Whether an attempt has failed since the last success.
    failing: bool,
    /// The messages that the receiver refused although it accepted other messages.
    refused: BTreeSet<Uuid>,
}

impl Default for Health {
    /// Returns the health of a receiver at the start of the process. The receiver counts as
    /// failing, because attempts of an earlier process may have failed.
    fn default() -> Self {
        Self {
            failing: true,
            refused: BTreeSet::new(),
        }
    }
}

impl Health {
    /// Records that an attempt at these messages failed. The `bool` of each message says whether an
    /// earlier attempt at the message also failed.
    pub(super) fn failed(&mut self, messages: impl IntoIterator<Item = (Uuid, bool)>) {
        if !self.failing {
            let again = messages.into_iter().filter(|(_, again)| *again);
            self.refused.extend(again.map(|(message, _)| message));
        }
        self.failing = true;
    }

    /// Records that the receiver accepted these messages. Returns `None` if no attempt has failed
    /// since the last success. Otherwise returns the refused messages, which keep their own
    /// schedule; the caller must then make all other waiting messages due.
    pub(super) fn succeeded(
        &mut self,
        messages: impl IntoIterator<Item = Uuid>,
    ) -> Option<Vec<Uuid>> {
        self.ended(messages);
        std::mem::replace(&mut self.failing, false).then(|| self.refused.iter().copied().collect())
    }

    /// Records that no further attempt at these messages is made.
    pub(super) fn ended(&mut self, messages: impl IntoIterator<Item = Uuid>) {
        for message in messages {
            self.refused.remove(&message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Uuid = Uuid::from_u128(1);
    const TWO: Uuid = Uuid::from_u128(2);

    #[test]
    fn first_success_after_failures_pulls_everything_and_the_next_one_nothing() {
        let mut health = Health::default();
        assert_eq!(health.succeeded([ONE]), Some(Vec::new()), "after a start");
        assert_eq!(health.succeeded([TWO]), None);
        health.failed([(ONE, false)]);
        health.failed([(TWO, false)]);
        health.failed([(ONE, true)]);
        assert_eq!(health.succeeded([TWO]), Some(Vec::new()));
        assert_eq!(health.succeeded([TWO]), None);
    }

    #[test]
    fn message_that_is_refused_while_others_are_taken_is_pulled_once() {
        let mut health = Health::default();
        health.succeeded([TWO]);
        health.failed([(ONE, false)]);
        assert_eq!(health.succeeded([TWO]), Some(Vec::new()));
        health.failed([(ONE, true)]);
        assert_eq!(health.succeeded([TWO]), Some(vec![ONE]));
        health.ended([ONE]);
        health.failed([(TWO, false)]);
        assert_eq!(health.succeeded([TWO]), Some(Vec::new()));
    }
}
