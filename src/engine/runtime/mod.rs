//! The state of the engine in this process: the worker, leases, slots, and the tool and model calls
//! in flight. This state is not stored, because the database has everything that is needed after a
//! crash.

pub(in crate::engine) mod awaited_calls;
mod claimed_driver;
pub(crate) mod in_flight_calls;
pub(crate) mod in_flight_model_calls;
pub(crate) mod leases;
pub(crate) mod lone_drive;
pub(crate) mod metrics;
mod unsendable;
pub(in crate::engine) mod worker;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value behind a mutex that ignores poisoning. The lock must not be held across an await.
#[derive(Debug, Default)]
pub(crate) struct Locked<T>(Mutex<T>);

impl<T> Locked<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
