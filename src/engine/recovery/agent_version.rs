//! Loads the agent of a task in the version that the task is pinned to, even if the current
//! configuration has another version. Invariants: the agent's limits and access always come from
//! the current configuration. No task is driven with an agent definition whose digest differs from
//! the pinned version.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::agent::Agent;
use crate::agent::version::{DefinitionError, is_gate};
use crate::engine::Engine;
use crate::engine::driver::Stop;
use crate::engine::session::TaskSession;
use crate::store::{CommitError, ReadError};
use crate::task::change::TaskRow;
use crate::task::failure::{Failure, FailureCode};

/// The maximum number of entries in each of a process's caches of earlier agent versions.
const MAX_CACHED: usize = 256;

impl Engine {
    /// Returns the agent of a task in the version that the task is pinned to. The inner `Err` is
    /// the failure with which the task ends if its agent cannot be loaded.
    ///
    /// # Errors
    /// Fails with `Unavailable` if a stored definition must be read and the database does not
    /// answer.
    pub(in crate::engine) async fn agent_of(
        &self,
        row: &TaskRow,
    ) -> Result<Result<Arc<Agent>, Failure>, ReadError> {
        let Some(current) = self.agents.get(&row.agent) else {
            let detail = format!("The configuration has no agent {}.", row.agent);
            return Ok(Err(Failure::new(FailureCode::Configuration, detail)));
        };
        let version = &row.agent_version;
        if current.version == *version {
            return Ok(Ok(Arc::clone(current)));
        }
        let known = self.cached_agents.lock().get(version).cloned();
        if let Some(agent) = known.filter(|agent| agent.name == row.agent) {
            return Ok(Ok(agent));
        }
        let kept = match self.store.agent_definition(version).await {
            Ok(kept) => kept,
            Err(ReadError::Corrupt(_)) => None,
            Err(error @ ReadError::Unavailable) => return Err(error),
        };
        let read = kept
            .ok_or(DefinitionError::Damaged)
            .and_then(|text| self.agents.pinned(current, version, &text));
        Ok(read
            .map(|agent| self.cache_agent(agent))
            .map_err(|why| unusable(row, &why)))
    }

    /// Returns the versions of gates that the process has found in earlier calls of
    /// [`Engine::gate_versions_among`].
    #[must_use]
    pub fn known_gate_versions(&self) -> Vec<String> {
        let known = self.gate_versions.lock();
        let gates = known.iter().filter(|(_, is_gate)| **is_gate);
        gates.map(|(version, _)| version.clone()).collect()
    }

    /// Returns those agent versions of `rows` that are versions of gates. Reads the stored
    /// definition of a version that the configuration does not have, so that a gate call is
    /// recognized even if its gate was removed from the configuration. A version whose stored
    /// definition is missing or unreadable counts as an agent's.
    ///
    /// # Errors
    /// Fails with `Unavailable` if a stored definition must be read and the database does not
    /// answer.
    pub async fn gate_versions_among(
        &self,
        rows: &[TaskRow],
    ) -> Result<BTreeSet<String>, ReadError> {
        let mut gates = BTreeSet::new();
        let mut seen = BTreeSet::new();
        for row in rows {
            let version = &row.agent_version;
            if seen.insert(version) && self.is_gate_version(&row.agent, version).await? {
                gates.insert(version.clone());
            }
        }
        Ok(gates)
    }

    async fn is_gate_version(&self, agent: &str, version: &str) -> Result<bool, ReadError> {
        let current = self.agents.get(agent);
        if let Some(current) = current.filter(|current| current.version == version) {
            return Ok(current.gate.is_some());
        }
        if let Some(is_gate) = self.gate_versions.lock().get(version) {
            return Ok(*is_gate);
        }
        let stored = match self.store.agent_definition(version).await {
            Ok(stored) => stored,
            Err(ReadError::Corrupt(_)) => None,
            Err(error @ ReadError::Unavailable) => return Err(error),
        };
        let is_gate = stored.is_some_and(|definition| is_gate(&definition));
        let mut known = self.gate_versions.lock();
        if known.len() >= MAX_CACHED {
            known.pop_first();
        }
        known.insert(version.to_owned(), is_gate);
        Ok(is_gate)
    }

    fn cache_agent(&self, agent: Agent) -> Arc<Agent> {
        let agent = Arc::new(agent);
        let mut earlier = self.cached_agents.lock();
        if earlier.len() >= MAX_CACHED {
            earlier.pop_first();
        }
        earlier.insert(agent.version.clone(), Arc::clone(&agent));
        agent
    }

    /// Like [`Engine::agent_of`], but retries while the database does not answer. If a command
    /// waits for this driver's first commit, does not retry: refuses the command, and returns
    /// `Lost`.
    pub(in crate::engine) async fn load_agent(
        &self,
        session: &mut TaskSession,
    ) -> Result<Result<Arc<Agent>, Failure>, Stop> {
        loop {
            if let Ok(found) = self.agent_of(&session.own.row).await {
                return Ok(found);
            }
            if let Some(reply) = session.reply.take() {
                let _ = reply.send(Err(CommitError::Unavailable));
                return Err(Stop::Lost);
            }
            self.back_off().await?;
        }
    }
}

fn unusable(row: &TaskRow, why: &DefinitionError) -> Failure {
    tracing::error!(task = %row.task_id, version = %row.agent_version, %why, "an agent's version cannot be used");
    let agent = &row.agent;
    match why {
        DefinitionError::Damaged => {
            let detail = format!(
                "The stored version of the agent {agent} differs from the one that this task began with."
            );
            Failure::new(FailureCode::Integrity, detail)
        }
        DefinitionError::Missing(what) => {
            let detail =
                format!("This task has an earlier version of the agent {agent}, and {what}.");
            Failure::new(FailureCode::Configuration, detail)
        }
    }
}
