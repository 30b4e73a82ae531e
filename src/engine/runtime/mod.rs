//! The state of the engine in this process: the worker, leases, slots, the tool and model calls in
//! flight, and what the process remembers of calls at gates. This state is not stored, because the
//! database has everything that is needed after a crash.

pub(in crate::engine) mod awaited_calls;
mod claimed_driver;
pub(crate) mod in_flight_calls;
pub(crate) mod in_flight_model_calls;
pub(in crate::engine) mod keyed_tools;
pub(crate) mod leases;
pub(crate) mod lone_drive;
pub(crate) mod metrics;
mod unsendable;
pub(in crate::engine) mod worker;
