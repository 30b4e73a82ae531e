//! Limits the memory that large bodies use at one time, in this process and for each caller. If a
//! request announces a large body (`Content-Length`), memory is reserved before the body is read.
//! Without this header, memory is reserved once the part that was read is large. The memory stays
//! reserved until the operation releases the body. Invariant: an HTTP request that holds a
//! reservation never waits for more memory, so two HTTP requests cannot deadlock.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::server::caller::{PersonKey, person_key};
use crate::people::Caller;
use crate::world::Locked;

const MAX_TOTAL_BYTES: usize = 256 * 1024 * 1024;
/// The maximum size of one caller's large bodies together, in bytes. The limit keeps a caller with
/// many or slow bodies from blocking other callers.
const MAX_BYTES_PER_PERSON: usize = MAX_TOTAL_BYTES / 4;

/// The memory for large bodies: a total for all bodies, and a smaller share for each caller.
#[derive(Clone, Debug)]
pub(crate) struct BodyBudget {
    total: Arc<Semaphore>,
    bytes_per_person: usize,
    /// `None` stands for all requests without a caller, such as sign-ins.
    shares: Arc<Locked<HashMap<Option<PersonKey>, Weak<Semaphore>>>>,
}

/// The bytes that are reserved for one body. Dropping this value frees the bytes.
#[derive(Debug)]
pub(crate) struct BodyReservation {
    own: OwnedSemaphorePermit,
    total: OwnedSemaphorePermit,
}

impl Default for BodyBudget {
    fn default() -> Self {
        Self::new(MAX_TOTAL_BYTES, MAX_BYTES_PER_PERSON)
    }
}

impl BodyBudget {
    #[must_use]
    pub(crate) fn new(total: usize, bytes_per_person: usize) -> Self {
        Self {
            total: Arc::new(Semaphore::new(total)),
            bytes_per_person: bytes_per_person.min(total),
            shares: Arc::default(),
        }
    }

    /// Waits until `bytes` bytes are free for a body of `caller`, and reserves these bytes. The
    /// bodies of one caller get memory in the order in which they ask for it. A body larger than
    /// the caller's share reserves the whole share. Returns `None` only if a semaphore of the
    /// budget is closed, which never happens in this service.
    pub(crate) async fn reserve(
        &self,
        caller: Option<&Caller>,
        bytes: usize,
    ) -> Option<BodyReservation> {
        let bytes = u32::try_from(bytes.min(self.bytes_per_person)).unwrap_or(u32::MAX);
        let own = self.share_of(caller).acquire_many_owned(bytes).await.ok()?;
        let total = Arc::clone(&self.total)
            .acquire_many_owned(bytes)
            .await
            .ok()?;
        Some(BodyReservation { own, total })
    }

    fn share_of(&self, caller: Option<&Caller>) -> Arc<Semaphore> {
        let person = caller.map(person_key);
        let mut shares = self.shares.lock();
        if let Some(share) = shares.get(&person).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(self.bytes_per_person));
        shares.insert(person, Arc::downgrade(&share));
        share
    }
}

impl BodyReservation {
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        for permit in [&mut self.own, &mut self.total] {
            drop(permit.split(permit.num_permits().saturating_sub(bytes)));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::http::openapi::sample;

    fn now(budget: &BodyBudget, caller: &Caller, bytes: usize) -> Option<BodyReservation> {
        budget.reserve(Some(caller), bytes).now_or_never().flatten()
    }

    #[test]
    fn bytes_of_one_caller_and_of_all_are_bounded_and_come_back() {
        let (budget, alice, bob) = (
            BodyBudget::new(100, 60),
            sample::caller(),
            sample::approver(),
        );
        let other_spelling = Caller {
            user_id: "ALICE".into(),
            ..alice.clone()
        };
        let mut first = now(&budget, &alice, 60).unwrap();
        assert!(now(&budget, &alice, 1).is_none() && now(&budget, &other_spelling, 1).is_none());
        let second = now(&budget, &bob, 40).unwrap();
        assert!(now(&budget, &bob, 1).is_none(), "100 in all");
        first.shrink_to(10);
        assert!(now(&budget, &alice, 51).is_none() && now(&budget, &bob, 21).is_none());
        let third = now(&budget, &alice, 50).unwrap();
        drop((first, second, third));
        assert!(
            now(&budget, &alice, 1_000_000).is_some(),
            "a body larger than the share takes the share"
        );
        assert_eq!(budget.total.available_permits(), 100);
        drop(now(&budget, &bob, 1));
        assert_eq!(
            budget.shares.lock().len(),
            1,
            "callers without a body are forgotten"
        );
    }

    #[test]
    fn reservation_that_waits_and_is_given_up_holds_nothing() {
        let (budget, alice, bob) = (
            BodyBudget::new(100, 60),
            sample::caller(),
            sample::approver(),
        );
        let _first = now(&budget, &alice, 50).unwrap();
        for _ in 0..3 {
            assert!(
                now(&budget, &bob, 60).is_none(),
                "it waits for all, with its own share in hand, and is dropped"
            );
        }
        assert!(now(&budget, &bob, 50).is_some());
    }
}
