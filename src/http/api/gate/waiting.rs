//! Limits the number of HTTP requests that wait at gates in this process: proposals of calls (asks)
//! that wait for a verdict, and reads of calls that wait for a change. Also limits how long such a
//! request waits if a browser session authenticates it. If an MCP client cancels its request, the
//! proposal stops waiting.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio_util::sync::CancellationToken;

use crate::engine::gate::ClaimLimit;
use crate::http::events::stream::ACCESS_CHECK_INTERVAL;
use crate::http::server::caller::{PersonKey, person_key};
use crate::http::server::session::cookie;
use crate::http::{Http, Settings};
use crate::people::Caller;
use crate::task::decision::Door;
use crate::world::Locked;

/// Returns the maximum time that an HTTP request of `caller` waits at a gate. The end of a browser
/// session does not end the wait of its request. So the request waits at most for the interval in
/// which event streams check their callers. A key is removed only by a restart, which ends every
/// wait.
pub(crate) fn longest_wait(caller: &Caller) -> Duration {
    match caller.door {
        Some(Door::Session) => ACCESS_CHECK_INTERVAL,
        Some(Door::Key | Door::Link | Door::Slack) | None => Duration::MAX,
    }
}

/// Returns the limit for an ask of `caller`; `headers` are those of the ask. An ask that a browser
/// session authenticates may start an approved call only while the session lasts. Any other ask has
/// no limit (`None`).
pub(crate) fn session_limit(
    http: &Http,
    caller: &Caller,
    headers: &HeaderMap,
) -> Option<ClaimLimit> {
    if caller.door != Some(Door::Session) {
        return None;
    }
    let token = cookie::token(headers, &http.settings.public_url)?;
    Some(ClaimLimit::Session(token.digest()))
}

#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingAsks(Arc<Locked<Asks>>);

#[derive(Debug, Default)]
struct Asks {
    next: u64,
    /// The waiting HTTP requests, by the number of their [`WaitSlot`]. Each value has the caller.
    /// If the client can cancel the HTTP request, the value also has the name by which
    /// [`WaitingAsks::cancel`] finds the proposal, and the token that ends the wait.
    open: HashMap<u64, (PersonKey, Option<(String, CancellationToken)>)>,
}

/// The slot of one waiting HTTP request. Dropping this value frees the slot for another HTTP
/// request.
#[derive(Debug)]
pub(crate) struct WaitSlot {
    waiting: WaitingAsks,
    number: u64,
}

impl WaitingAsks {
    /// Takes a slot for an HTTP request of `caller`; `None` if too many HTTP requests of this
    /// process or of the caller already wait. `request` has the name by which
    /// [`WaitingAsks::cancel`] finds the proposal, and the token that `cancel` cancels. `request`
    /// is `None` if the client cannot cancel the HTTP request.
    pub(crate) fn take_slot(
        &self,
        caller: &Caller,
        settings: &Settings,
        request: Option<(String, CancellationToken)>,
    ) -> Option<WaitSlot> {
        let person = person_key(caller);
        let mut asks = self.0.lock();
        let own = asks.open.values().filter(|(other, _)| *other == person);
        let full = asks.open.len() >= settings.max_waiting as usize
            || own.count() >= settings.max_streams_per_caller as usize;
        if full {
            return None;
        }
        let number = asks.next;
        asks.next += 1;
        asks.open.insert(number, (person, request));
        drop(asks);
        tracing::info!(target: "holdpoint::metric", metric = "gate_waiting", change = 1_i64);
        Some(WaitSlot {
            waiting: self.clone(),
            number,
        })
    }

    /// Ends the waits of all proposals that `caller` has registered under the name `request`. If
    /// two clients of the caller use this name, the service cannot tell which client has canceled,
    /// so it ends both waits. If it ended neither wait, the canceled proposal could start a call
    /// that its client no longer wants.
    pub(crate) fn cancel(&self, caller: &Caller, request: &str) {
        let person = person_key(caller);
        for (other, named) in self.0.lock().open.values() {
            if let Some((name, token)) = named
                && *other == person
                && name == request
            {
                token.cancel();
            }
        }
    }
}

impl Drop for WaitSlot {
    fn drop(&mut self) {
        self.waiting.0.lock().open.remove(&self.number);
        tracing::info!(target: "holdpoint::metric", metric = "gate_waiting", change = -1_i64);
    }
}
