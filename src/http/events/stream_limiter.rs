//! Limits the number of open streams, for this process and for each caller. A stream keeps its
//! permit until the stream is dropped.

use std::collections::HashMap;
use std::sync::Arc;

use crate::http::Settings;
use crate::http::server::caller::{PersonKey, person_key};
use crate::http::server::problem::{Code, Problem};
use crate::people::Caller;
use crate::world::Locked;

/// Counts the open streams of one process. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamLimiter(Arc<Locked<StreamCounts>>);

#[derive(Debug, Default)]
struct StreamCounts {
    total: u32,
    per_person: HashMap<PersonKey, u32>,
}

/// The right to one open stream, until the permit is dropped.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    limiter: StreamLimiter,
    person: PersonKey,
}

impl StreamLimiter {
    /// Takes a permit for a stream of `caller`.
    ///
    /// # Errors
    /// `too_many` when the caller, or all callers together, have as many streams as allowed.
    pub(crate) fn take(
        &self,
        caller: &Caller,
        settings: &Settings,
    ) -> Result<StreamPermit, Problem> {
        let person = person_key(caller);
        let too_many = |detail: &str| Err(Problem::new(Code::TooMany, detail));
        let mut open = self.0.lock();
        if open
            .per_person
            .get(&person)
            .is_some_and(|streams| *streams >= settings.max_streams_per_caller)
        {
            return too_many("You have the maximum number of event streams open.");
        }
        if open.total >= settings.max_streams {
            return too_many("The service has its maximum number of event streams open.");
        }
        open.total += 1;
        *open.per_person.entry(person.clone()).or_default() += 1;
        drop(open);
        tracing::info!(target: "holdpoint::metric", metric = "event_stream", change = 1_i64);
        Ok(StreamPermit {
            limiter: self.clone(),
            person,
        })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = self.limiter.0.lock();
        open.total = open.total.saturating_sub(1);
        if let Some(streams) = open.per_person.get_mut(&self.person) {
            *streams -= 1;
            if *streams == 0 {
                open.per_person.remove(&self.person);
            }
        }
        drop(open);
        tracing::info!(target: "holdpoint::metric", metric = "event_stream", change = -1_i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;

    #[test]
    fn permit_is_free_again_once_its_stream_is_dropped() {
        let settings = Settings {
            max_streams: 3,
            max_streams_per_caller: 2,
            ..sample::settings()
        };
        let (limiter, alice, bob) = (
            StreamLimiter::default(),
            sample::caller(),
            sample::approver(),
        );
        let take = |who: &Caller| limiter.take(who, &settings);
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
            !limiter
                .0
                .lock()
                .per_person
                .contains_key(&("acme".to_owned(), bob.user_id.key().clone()))
        );
    }
}
