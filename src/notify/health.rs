//! Tracks whether a receiver accepts messages, as far as this process knows. The first success
//! after a failure makes all waiting messages of the receiver due.
//!
//! Exception: a message that was refused while other messages were accepted keeps its own schedule.
//! Otherwise, each success of another message would start an attempt at the refused message, until
//! the attempts at the refused message are used up.

use std::collections::BTreeSet;

use uuid::Uuid;

#[derive(Debug)]
pub(super) struct Health {
    /// Whether an attempt has failed since the last success.
    failing: bool,
    /// The messages that the receiver refused while it accepted others.
    refused: BTreeSet<Uuid>,
}

impl Default for Health {
    /// A receiver counts as failing when the process starts, because attempts of an earlier process
    /// may have failed.
    fn default() -> Self {
        Self {
            failing: true,
            refused: BTreeSet::new(),
        }
    }
}

impl Health {
    /// Records a failed attempt at these messages. The `bool` of a message says whether an earlier
    /// attempt at it had already failed. If so, and if the receiver was not failing, the message
    /// counts as refused.
    pub(super) fn failed(&mut self, messages: impl IntoIterator<Item = (Uuid, bool)>) {
        if !self.failing {
            let again = messages.into_iter().filter(|(_, again)| *again);
            self.refused.extend(again.map(|(message, _)| message));
        }
        self.failing = true;
    }

    /// Records that the receiver accepted these messages. The first success after a failure returns
    /// the refused messages, and the caller must make all other waiting messages due. Any other
    /// success returns `None`.
    pub(super) fn succeeded(
        &mut self,
        messages: impl IntoIterator<Item = Uuid>,
    ) -> Option<Vec<Uuid>> {
        self.ended(messages);
        std::mem::replace(&mut self.failing, false).then(|| self.refused.iter().copied().collect())
    }

    /// Records that these messages are not tried again.
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
