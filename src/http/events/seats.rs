//! Counts the open streams, in this process and of each caller. A stream keeps its seat until it is
//! dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::http::Settings;
use crate::http::server::problem::{Code, Problem};
use crate::people::Caller;
use crate::task::user::UserKey;

/// A tenant and a user of it.
type Person = (String, UserKey);

/// The seats of one process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seats(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    all: u32,
    each: HashMap<Person, u32>,
}

/// One taken seat; dropping it frees the seat.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Seats,
    person: Person,
}

impl Seats {
    /// Takes a seat for one more stream of `caller`.
    ///
    /// # Errors
    /// `too_many` when the caller, or all callers together, have no seat left.
    pub fn take(&self, caller: &Caller, settings: &Settings) -> Result<Seat, Problem> {
        let person = (caller.tenant.clone(), caller.user_id.key().clone());
        let mut taken = self.lock();
        if taken
            .each
            .get(&person)
            .is_some_and(|streams| *streams >= settings.max_streams_per_caller)
        {
            return Err(Problem::new(
                Code::TooMany,
                "You have as many event streams open as one caller may.",
            ));
        }
        if taken.all >= settings.max_streams {
            return Err(Problem::new(
                Code::TooMany,
                "As many event streams are open as this service keeps at once.",
            ));
        }
        taken.all += 1;
        *taken.each.entry(person.clone()).or_default() += 1;
        drop(taken);
        tracing::info!(target: "holdpoint::metric", metric = "event_stream", change = 1_i64);
        Ok(Seat {
            seats: self.clone(),
            person,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.lock();
        taken.all = taken.all.saturating_sub(1);
        if let Some(streams) = taken.each.get_mut(&self.person) {
            *streams -= 1;
            if *streams == 0 {
                taken.each.remove(&self.person);
            }
        }
        drop(taken);
        tracing::info!(target: "holdpoint::metric", metric = "event_stream", change = -1_i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;

    #[test]
    fn seat_is_free_again_once_its_stream_is_dropped() {
        let settings = Settings {
            max_streams: 3,
            max_streams_per_caller: 2,
            ..sample::settings()
        };
        let (seats, alice, bob) = (Seats::default(), sample::caller(), sample::approver());
        let take = |who: &Caller| seats.take(who, &settings);
        let other_spelling = Caller {
            user_id: "ALICE".into(),
            ..alice.clone()
        };
        let (first, _second) = (take(&alice).unwrap(), take(&other_spelling).unwrap());
        let refused = take(&alice).unwrap_err();
        assert_eq!(refused.code, Code::TooMany);
        assert!(
            refused
                .headers
                .iter()
                .any(|(name, _)| *name == http::header::RETRY_AFTER)
        );
        let third = take(&bob).unwrap();
        assert!(take(&bob).is_err(), "three in all");
        drop(first);
        let _again = take(&alice).unwrap();
        drop(third);
        assert!(take(&alice).is_err());
        assert!(
            take(&Caller {
                tenant: "other".into(),
                ..alice
            })
            .is_ok(),
            "a user of the same name in another tenant"
        );
        assert!(
            !seats
                .lock()
                .each
                .contains_key(&("acme".to_owned(), bob.user_id.key().clone()))
        );
    }
}
