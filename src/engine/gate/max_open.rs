//! Keeps `max_open` under concurrent proposals. There is a lock for each user at each gate. A
//! proposal holds the lock while it counts the user's pending calls and stores a new pending call,
//! so that no other proposal counts meanwhile. Each process has its own locks, so several replicas
//! that store calls at the same moment may together exceed the limit.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

use super::GateRefusal;
use super::propose::GateProposal;
use crate::task::call_state::{CallState, Phase};
use crate::task::user::UserKey;
use crate::world::Locked;

/// The place of a lock: the tenant, the gate and the user. Pending calls of a place count together.
type Place = (String, String, UserKey);

/// The locks of the users who are about to store a pending call. Each proposal that takes a lock
/// also drops all locks that no proposal holds or waits for.
#[derive(Debug, Default)]
pub(in crate::engine) struct OpenCallLocks(Locked<HashMap<Place, Arc<Mutex<()>>>>);

/// The guard of a user's lock at a gate, held from the count of the user's pending calls until the
/// proposed call is stored.
pub(super) type OpenCallGuard = OwnedMutexGuard<()>;

impl OpenCallLocks {
    async fn lock(&self, place: Place) -> OpenCallGuard {
        let lock = {
            let mut locks = self.0.lock();
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(place).or_default())
        };
        lock.lock_owned().await
    }
}

impl GateProposal<'_> {
    /// If the proposed call will be pending, counts the caller's pending calls at the gate.
    /// The caller of this function must hold the returned guard until the proposed call is stored.
    /// Until then, other proposals of the same user at this gate wait in this process before they
    /// count the pending calls. If the proposed call will not be pending, returns `None` at once.
    ///
    /// # Errors
    /// `TooManyOpen` if `max_open` calls are pending; `Unavailable` when the database does not
    /// answer.
    pub(super) async fn check_open(
        self,
        call: &CallState,
    ) -> Result<Option<OpenCallGuard>, GateRefusal> {
        if !call.is_held() && !self.asks_for_credential(call) {
            return Ok(None);
        }
        let (engine, gate, max_open) = (self.engine, &self.agent.name, self.gate.max_open);
        let (tenant, user) = (&self.caller.tenant, &self.caller.user_id);
        let place = (tenant.clone(), gate.clone(), user.key().clone());
        let guard = engine.open_call_locks.lock(place).await;
        let calls = engine.store.open_calls(tenant, gate, user, max_open);
        if calls.await? < max_open {
            Ok(Some(guard))
        } else {
            Err(GateRefusal::TooManyOpen)
        }
    }

    /// Whether a person must enter a credential before this allowed call starts. Credentials are
    /// stored for a task, and each call at a gate is a new task. So no credential is stored yet for
    /// a proposed call.
    pub(super) fn asks_for_credential(self, call: &CallState) -> bool {
        let takes_credential = || {
            let entry = self.engine.offered(self.agent, &call.call.name);
            entry.is_some_and(|entry| !entry.spec.needs.is_empty())
        };
        call.phase == Phase::Allowed && takes_credential()
    }
}
