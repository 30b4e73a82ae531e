//! Calls that are out, as the rest of the process sees them. What must stay true: a call is sent only by whoever the
//! start was committed for, within [`WINDOW`] of that commit, and never after somebody has called it off.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Engine, Held};
use crate::task::id::CallId;
use crate::task::time::Time;
use crate::task::turn::{Progress, Standing};

/// How long after the commit of its start a call may be sent. A replica that cancels a task whose call another replica
/// has started waits so long, at most, before it says that none starts any more: there is no other way to know.
pub(super) const WINDOW: Duration = Duration::from_secs(2);
/// How long a request may take from us to the wire.
const TO_THE_WIRE: Duration = Duration::from_millis(100);

/// By call, where it is.
#[derive(Debug, Default)]
pub(super) struct Flights(Held<BTreeMap<CallId, Place>>);

#[derive(Clone, Debug)]
struct Place {
    /// Since when it is sent, by the machine's uptime; `None` before.
    sent: Option<Duration>,
    /// It must not be sent any more.
    called_off: bool,
    landed: CancellationToken,
}

/// One call that is out, until it is dropped.
#[derive(Debug)]
pub(super) struct Flight {
    pub call: CallId,
    flights: Arc<Flights>,
}

impl Flights {
    /// A call whose start is about to be committed.
    pub(super) fn boards(self: &Arc<Self>, call: CallId) -> Flight {
        let place = Place { sent: None, called_off: false, landed: CancellationToken::new() };
        self.0.lock().insert(call, place);
        Flight { call, flights: Arc::clone(self) }
    }

    /// All that are out.
    pub(super) fn calls(&self) -> Vec<CallId> {
        self.0.lock().keys().copied().collect()
    }

    /// Sees to it that a call is not sent from now on. The place of one that was sent already, or is not known here.
    fn call_off(&self, call: CallId) -> CalledOff {
        match self.0.lock().get_mut(&call) {
            None => CalledOff::NotHere,
            Some(Place { sent: Some(since), landed, .. }) => CalledOff::Sent(*since, landed.clone()),
            Some(place) => {
                place.called_off = true;
                CalledOff::Kept
            }
        }
    }
}

/// What calling off came to.
enum CalledOff {
    /// It will not be sent.
    Kept,
    /// It is on its way, since then.
    Sent(Duration, CancellationToken),
    /// This process does not have it.
    NotHere,
}

impl Flight {
    /// It is sent now. `false` when it was called off: then it must not be.
    pub(super) fn departs(&self, uptime: Duration) -> bool {
        let mut flights = self.flights.0.lock();
        let Some(place) = flights.get_mut(&self.call).filter(|place| !place.called_off) else { return false };
        place.sent = Some(uptime);
        true
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(place) = self.flights.0.lock().remove(&self.call) {
            place.landed.cancel();
        }
    }
}

impl Engine {
    /// Returns when none of this task's started calls can be sent any more, from whichever replica; `now` is a moment,
    /// in database time, from which on no further start can be committed.
    pub(super) async fn called_off(&self, progress: &Progress, now: Time) {
        for (call, start) in progress.calls.iter().filter_map(Standing::unanswered) {
            match self.flights.call_off(call) {
                CalledOff::Kept => {}
                CalledOff::Sent(since, landed) => {
                    let left = TO_THE_WIRE.saturating_sub(self.clock.uptime().saturating_sub(since));
                    tokio::select! {
                        () = landed.cancelled() => {}
                        () = self.clock.sleep(left) => {}
                    }
                }
                CalledOff::NotHere if self.store.is_sole() || start.replica == self.replica => {}
                CalledOff::NotHere => {
                    let left = (start.at + WINDOW + TO_THE_WIRE).since(now);
                    if !left.is_zero() {
                        self.clock.sleep(left).await;
                    }
                }
            }
        }
    }
}
