//! The round-robin order in which the entries share the slots that the process has for attempts. A
//! pass over all entries begins after the last entry for which an attempt was started.

use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug, Default)]
pub(super) struct EntryRotation {
    /// The index of the entry with which the next pass begins.
    next: AtomicUsize,
}

impl EntryRotation {
    /// Returns the indexes of `count` entries in the order of the next pass.
    pub(super) fn order(&self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let first = self.next.load(Ordering::Relaxed);
        (first..first + count).map(move |at| at % count)
    }

    /// Records that an attempt was started for the entry with this index.
    pub(super) fn served(&self, index: usize) {
        self.next.store(index + 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_pass_begins_after_the_entry_that_was_served_last() {
        let rotation = EntryRotation::default();
        let order = || rotation.order(4).collect::<Vec<_>>();
        assert_eq!(order(), [0, 1, 2, 3]);
        rotation.served(0);
        rotation.served(1);
        assert_eq!(order(), [2, 3, 0, 1]);
        assert_eq!(order(), [2, 3, 0, 1], "nothing was served");
        rotation.served(3);
        assert_eq!(order(), [0, 1, 2, 3]);
        assert_eq!(rotation.order(0).count(), 0);
    }
}
