//! Calls that are out, as the rest of the process sees them. What must stay true: a call is sent only by whoever the
//! start was committed for, within [`WINDOW`] of that commit, and never after somebody has called it off: asked when its
//! connection is there, right before anything is written to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Engine, Locked};
use crate::task::id::CallId;
use crate::task::call_state::CallState;
use crate::task::time::Time;
use crate::task::turn::Progress;

/// How long after the commit of its start a call may be sent. A replica that cancels a task whose call another replica
/// has started waits so long, at most, before it says that none starts any more: there is no other way to know.
pub(super) const WINDOW: Duration = Duration::from_secs(2);
/// How long a request may take from us to the wire.
const TO_THE_WIRE: Duration = Duration::from_millis(100);

/// Each by a number of its own: two drivers may both be about to start a call, until the commit decides.
#[derive(Debug, Default)]
pub(super) struct InFlightCalls {
    places: Locked<BTreeMap<u64, Place>>,
    registered: AtomicU64,
}

#[derive(Clone, Debug)]
struct Place {
    call: CallId,
    /// Since when it is sent, by the machine's uptime; `None` before.
    sent: Option<Duration>,
    /// It must not be sent any more.
    settle_cancellation: bool,
    ended: CancellationToken,
}

/// One call that is out, until it is dropped.
#[derive(Debug)]
pub(super) struct InFlightCall {
    pub call: CallId,
    registration: Registration,
}

impl InFlightCalls {
    /// A call whose start is about to be committed.
    pub(super) fn register(self: &Arc<Self>, call: CallId) -> InFlightCall {
        let number = self.registered.fetch_add(1, Ordering::Relaxed);
        let place = Place { call, sent: None, settle_cancellation: false, ended: CancellationToken::new() };
        self.places.lock().insert(number, place);
        InFlightCall { call, registration: Registration { number, in_flight_calls: Arc::clone(self) } }
    }

    /// All that are out.
    pub(super) fn calls(&self) -> Vec<CallId> {
        self.places.lock().values().map(|place| place.call).collect()
    }

    /// Sees to it that a call is not sent from now on. What came of that, for each place where it is.
    fn call_off(&self, call: CallId) -> Vec<CalledOff> {
        let mut places = self.places.lock();
        let of_call = places.values_mut().filter(|place| place.call == call);
        let off = of_call.map(|place| {
            place.settle_cancellation = true;
            place.sent.map_or(CalledOff::Kept, |since| CalledOff::Sent(since, place.ended.clone()))
        });
        off.collect()
    }
}

/// What calling off came to.
enum CalledOff {
    /// It will not be sent.
    Kept,
    /// It is on its way, since then.
    Sent(Duration, CancellationToken),
}

/// What it takes to send a call.
#[derive(Clone, Debug)]
pub(super) struct Registration {
    number: u64,
    in_flight_calls: Arc<InFlightCalls>,
}

impl InFlightCall {
    pub(super) fn registration(&self) -> Registration {
        self.registration.clone()
    }
}

impl Registration {
    /// It is sent now. `false` when it was called off, or nobody waits for it any more: then it must not be.
    pub(super) fn at(&self, uptime: Duration) -> bool {
        let mut places = self.in_flight_calls.places.lock();
        let Some(place) = places.get_mut(&self.number).filter(|place| !place.settle_cancellation) else { return false };
        place.sent = Some(uptime);
        true
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        let Registration { number, in_flight_calls } = &self.registration;
        if let Some(place) = in_flight_calls.places.lock().remove(number) {
            place.ended.cancel();
        }
    }
}

impl Engine {
    /// Returns when none of the started calls of these tasks can be sent any more, from whichever replica; `now` is a
    /// moment, in database time, from which on no further start can be committed.
    pub(super) async fn settle_cancellation(&self, tasks: &[Progress], now: Time) {
        let mut elsewhere = Duration::ZERO;
        let mut here = Vec::new();
        for (call, start) in tasks.iter().flat_map(|progress| &progress.calls).filter_map(CallState::unanswered) {
            // Also when a driver of this process, which will be refused, is about to begin the same call.
            here.extend(self.in_flight_calls.call_off(call));
            if !self.store.is_sole() && start.replica != self.replica {
                elsewhere = elsewhere.max((start.at + WINDOW + TO_THE_WIRE).since(now));
            }
        }
        if !elsewhere.is_zero() {
            self.clock.sleep(elsewhere).await;
        }
        for place in here {
            let CalledOff::Sent(since, ended) = place else { continue };
            let left = TO_THE_WIRE.saturating_sub(self.clock.uptime().saturating_sub(since));
            tokio::select! {
                () = ended.cancelled() => {}
                () = self.clock.sleep(left) => {}
            }
        }
    }
}
