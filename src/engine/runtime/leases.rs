//! The leases of this process. A lease ends with its driver, even if the driver panics or is
//! dropped, so that no lease without a driver is renewed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::task::id::TaskId;
use crate::world::Locked;

/// The leases that drivers of this process hold. Each lease ends when the machine reaches a certain
/// uptime. The uptime also counts the time in which the machine is suspended.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    entries: Locked<BTreeMap<TaskId, LeaseEnd>>,
    holders: AtomicU64,
}

/// The end of a task's lease, and the number of the lease's holder. The holder is a driver, or the
/// claim that starts the driver. Later holders have greater numbers. Because of the number, a
/// driver that ends does not drop the lease of the task's next driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LeaseEnd {
    holder: u64,
    until: Duration,
}

/// A guard by which a driver holds its task. Dropping the guard ends the lease in this process.
#[derive(Debug)]
pub(crate) struct Lease(LeaseView);

impl Leases {
    /// Registers a lease until the uptime `until`. The new lease replaces an earlier lease of the
    /// same task.
    pub(crate) fn hold(self: &Arc<Self>, task: TaskId, until: Duration) -> Lease {
        let holder = self.next_holder();
        self.entries.lock().insert(task, LeaseEnd { holder, until });
        self.lease(task, holder)
    }

    /// Returns the number of a claim, for [`Leases::hold_claimed`]. A claim takes its number before
    /// it takes tasks in the database. Claims and leases are numbered in one sequence.
    pub(crate) fn next_holder(&self) -> u64 {
        self.holders.fetch_add(1, Ordering::Relaxed)
    }

    /// Registers a lease until the uptime `until`, for a task that the claim with the number
    /// `claim` has taken. Returns `None` if the task already has a lease with a greater number.
    /// This is the lease of a command that took the task after the claim, and now drives the task.
    pub(crate) fn hold_claimed(
        self: &Arc<Self>,
        task: TaskId,
        claim: u64,
        until: Duration,
    ) -> Option<Lease> {
        let mut entries = self.entries.lock();
        let is_taken = entries.get(&task).is_some_and(|entry| entry.holder > claim);
        if is_taken {
            return None;
        }
        let holder = claim;
        entries.insert(task, LeaseEnd { holder, until });
        Some(self.lease(task, holder))
    }

    fn lease(self: &Arc<Self>, task: TaskId, holder: u64) -> Lease {
        Lease(LeaseView {
            task,
            holder,
            leases: Arc::clone(self),
        })
    }

    /// Whether a driver of this process has the task's lease at `uptime`.
    pub(crate) fn holds(&self, task: TaskId, uptime: Duration) -> bool {
        self.entries
            .lock()
            .get(&task)
            .is_some_and(|entry| uptime < entry.until)
    }

    pub(crate) fn all(&self) -> Vec<(TaskId, u64)> {
        self.entries
            .lock()
            .iter()
            .map(|(task, entry)| (*task, entry.holder))
            .collect()
    }

    /// Applies the result of a renewal of the leases `held`: extends the leases of the tasks in
    /// `kept` to the uptime `until`, and drops the other leases in `held`. Does not change a lease
    /// that was taken after `held` was read.
    pub(crate) fn apply_renewal(&self, held: &[(TaskId, u64)], kept: &[TaskId], until: Duration) {
        let mut entries = self.entries.lock();
        for (task, holder) in held {
            let Some(entry) = entries
                .get_mut(task)
                .filter(|entry| entry.holder == *holder)
            else {
                continue;
            };
            if kept.contains(task) {
                entry.until = until.max(entry.until);
            } else {
                entries.remove(task);
            }
        }
    }
}

/// A handle by which a permit to send a call checks the task's lease. The permit outlives the
/// borrow of the session, so the permit holds this handle instead of the lease itself.
#[derive(Clone, Debug)]
pub(crate) struct LeaseView {
    task: TaskId,
    holder: u64,
    leases: Arc<Leases>,
}

impl LeaseView {
    /// Whether this holder still has the lease, and the lease has not ended at `uptime`.
    pub(crate) fn lasts(&self, uptime: Duration) -> bool {
        let entries = self.leases.entries.lock();
        entries
            .get(&self.task)
            .is_some_and(|entry| entry.holder == self.holder && uptime < entry.until)
    }
}

impl Lease {
    pub(crate) fn view(&self) -> LeaseView {
        self.0.clone()
    }

    pub(crate) fn lasts(&self, uptime: Duration) -> bool {
        self.0.lasts(uptime)
    }

    /// Whether a newer lease of another driver in this process has replaced this lease.
    pub(crate) fn is_passed_on(&self) -> bool {
        let Self(view) = self;
        let entries = view.leases.entries.lock();
        let entry = entries.get(&view.task);
        entry.is_some_and(|entry| entry.holder != view.holder)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Self(view) = self;
        let mut entries = view.leases.entries.lock();
        let entry = entries.get(&view.task);
        if entry.is_some_and(|entry| entry.holder == view.holder) {
            entries.remove(&view.task);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const SOON: Duration = Duration::from_secs(1);

    #[test]
    fn ended_driver_leaves_the_lease_of_its_successor() {
        let (leases, task) = (Arc::new(Leases::default()), TaskId(Uuid::from_u128(1)));
        let first = leases.hold(task, SOON);
        let second = leases.hold(task, SOON);
        assert!(!first.lasts(Duration::ZERO) && second.lasts(Duration::ZERO));
        assert!(first.is_passed_on() && !second.is_passed_on());
        drop(first);
        assert!(second.lasts(Duration::ZERO));
        drop(second);
        assert!(leases.all().is_empty());
    }

    #[test]
    fn claim_replaces_earlier_leases_and_leaves_those_that_commands_took_meanwhile() {
        let (leases, task) = (Arc::new(Leases::default()), TaskId(Uuid::from_u128(1)));
        let earlier = leases.hold(task, SOON);
        let claim = leases.next_holder();
        let claimed = leases.hold_claimed(task, claim, SOON).unwrap();
        assert!(earlier.is_passed_on() && claimed.lasts(Duration::ZERO));
        drop((earlier, claimed));
        let claim = leases.next_holder();
        let command = leases.hold(task, SOON);
        assert!(leases.hold_claimed(task, claim, SOON).is_none());
        assert!(command.lasts(Duration::ZERO) && !command.is_passed_on());
        drop(command);
        assert!(leases.all().is_empty());
    }

    #[test]
    fn renewal_forgets_only_the_leases_it_asked_for() {
        let (leases, task) = (Arc::new(Leases::default()), TaskId(Uuid::from_u128(1)));
        let first = leases.hold(task, SOON);
        let asked = leases.all();
        let second = leases.hold(task, SOON);
        leases.apply_renewal(&asked, &[], SOON);
        assert!(
            second.lasts(Duration::ZERO),
            "it was taken after the renewal was sent"
        );
        leases.apply_renewal(&leases.all(), &[task], 2 * SOON);
        assert!(second.lasts(SOON));
        leases.apply_renewal(&leases.all(), &[], 2 * SOON);
        assert!(!second.lasts(Duration::ZERO));
        drop(first);
    }
}
