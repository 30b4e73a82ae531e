//! The context of a step, with the functions that several steps use. The loop in `mod.rs` calls the
//! other files of the driver; none of these files calls the loop.

use super::finish::finish;
use crate::agent::Agent;
use crate::engine::Engine;
use crate::engine::session::{Stop, TaskSession};
use crate::task::call_state::CallState;
use crate::task::change::LeaseChange;
use crate::task::id::CallId;
use crate::task::step::Ending;

/// The context of one step: the engine, the task with its pending facts, and the version of the
/// agent to which the task is pinned.
pub(crate) struct Driver<'e> {
    pub(super) engine: &'e Engine,
    pub(super) session: &'e mut TaskSession,
    pub(super) agent: &'e Agent,
}

impl<'e> Driver<'e> {
    pub(in crate::engine) fn new(
        engine: &'e Engine,
        session: &'e mut TaskSession,
        agent: &'e Agent,
    ) -> Self {
        Self {
            engine,
            session,
            agent,
        }
    }
}

impl Driver<'_> {
    /// Returns the present states of these calls. Leaves out a call that the task does not have.
    pub(super) fn states_of(&self, calls: &[CallId]) -> Vec<CallState> {
        let progress = &self.session.own.progress;
        let known = calls.iter().filter_map(|id| progress.call(*id));
        known.cloned().collect()
    }

    pub(super) async fn save(&mut self, lease: LeaseChange) -> Result<(), Stop> {
        self.engine.save(self.session, lease).await
    }

    pub(super) async fn finish(&mut self, ending: Ending) -> Result<(), Stop> {
        finish(self.engine, self.session, ending).await
    }
}
