//! The tool calls that this process has in flight. Invariant: a call is sent only by the driver
//! whose commit started the call, within [`SEND_WINDOW`] from the beginning of that commit, and
//! never after a cancel. A tool first connects, then asks for the permit to send, and then sends
//! the first byte.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::task::id::CallId;
use crate::world::Locked;

/// The maximum time from the beginning of the commit that starts a call until the permit to send
/// the call. A replica that cancels a task cannot know whether another replica is about to send a
/// started call. The canceling replica therefore answers the cancel only after this time and
/// [`TIME_TO_WIRE`].
pub(crate) const SEND_WINDOW: Duration = Duration::from_secs(2);
/// The assumed maximum time from the permit to send a call until the first byte of the call is on
/// the wire.
pub(crate) const TIME_TO_WIRE: Duration = Duration::from_millis(100);

/// The attempts that this process has registered, each under its own number. While two drivers try
/// to start the same call, two attempts at it are registered. Only one of the drivers can commit
/// the start.
#[derive(Debug, Default)]
pub(crate) struct InFlightCalls {
    entries: Locked<BTreeMap<u64, RegisteredAttempt>>,
    registered: AtomicU64,
    /// The tools that missed the send window in an earlier call (see [`InFlightCalls::mark_late`]).
    late_tools: Locked<BTreeSet<String>>,
}

#[derive(Clone, Debug)]
struct RegisteredAttempt {
    call: CallId,
    /// The uptime at which the permit was given; `None` until then.
    sent: Option<Duration>,
    /// Whether a cancel forbids sending the call.
    canceled: bool,
    ended: CancellationToken,
}

/// A guard that keeps an attempt registered. Dropping the guard ends the registration.
#[derive(Debug)]
pub(crate) struct InFlightCall {
    pub call: CallId,
    registration: Registration,
}

impl InFlightCalls {
    /// Registers a call whose start is about to be committed.
    pub(crate) fn register(self: &Arc<Self>, call: CallId) -> InFlightCall {
        let number = self.registered.fetch_add(1, Ordering::Relaxed);
        let entry = RegisteredAttempt {
            call,
            sent: None,
            canceled: false,
            ended: CancellationToken::new(),
        };
        self.entries.lock().insert(number, entry);
        InFlightCall {
            call,
            registration: Registration {
                number,
                in_flight_calls: Arc::clone(self),
            },
        }
    }

    /// Records that this tool connected too slowly: the start of a call was committed in time, but
    /// the tool was not ready to send the call within [`SEND_WINDOW`]. From now on, a driver first
    /// waits until the tool has connected, and then commits the start of the call.
    pub(crate) fn mark_late(&self, tool: &str) {
        self.late_tools.lock().insert(tool.to_owned());
    }

    pub(crate) fn is_late(&self, tool: &str) -> bool {
        self.late_tools.lock().contains(tool)
    }

    /// Returns the calls in flight. A call with two registered attempts is returned twice.
    pub(crate) fn calls(&self) -> Vec<CallId> {
        self.entries
            .lock()
            .values()
            .map(|entry| entry.call)
            .collect()
    }

    /// Forbids sending a call from now on. Returns the attempts that were already sent: for each,
    /// the uptime at which the attempt was sent, and a token that is canceled when the attempt
    /// ends.
    pub(crate) fn cancel(&self, call: CallId) -> Vec<(Duration, CancellationToken)> {
        let mut entries = self.entries.lock();
        let of_call = entries.values_mut().filter(|entry| entry.call == call);
        let sent = of_call.filter_map(|entry| {
            entry.canceled = true;
            entry.sent.map(|since| (since, entry.ended.clone()))
        });
        sent.collect()
    }
}

/// A handle to a registered attempt, by which `send_permit` marks the attempt as sent.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    number: u64,
    in_flight_calls: Arc<InFlightCalls>,
}

impl InFlightCall {
    pub(crate) fn registration(&self) -> Registration {
        self.registration.clone()
    }

    /// Whether a cancel forbids sending the attempt.
    pub(crate) fn is_canceled(&self) -> bool {
        let entries = self.registration.in_flight_calls.entries.lock();
        let entry = entries.get(&self.registration.number);
        entry.is_some_and(|entry| entry.canceled)
    }
}

impl Registration {
    /// Marks the attempt as sent. Returns `false` if a cancel forbids sending the attempt, or if
    /// the attempt is no longer registered.
    pub(crate) fn mark_sent(&self, uptime: Duration) -> bool {
        let mut entries = self.in_flight_calls.entries.lock();
        let Some(entry) = entries
            .get_mut(&self.number)
            .filter(|entry| !entry.canceled)
        else {
            return false;
        };
        entry.sent = Some(uptime);
        true
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        let Registration {
            number,
            in_flight_calls,
        } = &self.registration;
        if let Some(entry) = in_flight_calls.entries.lock().remove(number) {
            entry.ended.cancel();
        }
    }
}
