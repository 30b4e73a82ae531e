//! Loads the agent of a task in the version that the task is pinned to, even if the current
//! configuration has another version. Invariants: the agent's limits and access always come from
//! the current configuration. No task is driven with an agent definition whose digest differs from
//! the pinned version.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agent::Agent;
use crate::agent::version::DefinitionError;
use crate::engine::Engine;
use crate::engine::session::{Stop, TaskSession};
use crate::store::{ReadError, Store};
use crate::task::change::TaskRow;
use crate::task::failure::{Failure, FailureCode};
use crate::world::Locked;

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
            let detail = format!("The configuration has no agent or gate {}.", row.agent);
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
        let stored = stored_definition(&self.store, version).await?;
        let read = stored
            .ok_or(DefinitionError::Damaged)
            .and_then(|text| self.agents.pinned(current, version, &text));
        let agent = match read {
            Ok(agent) => Arc::new(agent),
            Err(why) => return Ok(Err(unusable(row, &why))),
        };
        insert_bounded(&self.cached_agents, version, Arc::clone(&agent));
        Ok(Ok(agent))
    }

    /// Like [`Engine::agent_of`], but retries while the database does not answer.
    ///
    /// # Errors
    /// As from `Engine::back_off_after_read`.
    pub(in crate::engine) async fn load_agent(
        &self,
        session: &TaskSession,
    ) -> Result<Result<Arc<Agent>, Failure>, Stop> {
        loop {
            if let Ok(found) = self.agent_of(&session.own.row).await {
                return Ok(found);
            }
            self.back_off_after_read(session).await?;
        }
    }
}

/// Returns the stored definition of an agent's version. `None` if there is none, or if it is
/// unreadable.
pub(in crate::engine) async fn stored_definition(
    store: &Store,
    version: &str,
) -> Result<Option<String>, ReadError> {
    match store.agent_definition(version).await {
        Err(ReadError::Corrupt(_)) => Ok(None),
        read => read,
    }
}

/// Adds an entry to a cache. If the cache is full, first removes another entry.
pub(in crate::engine) fn insert_bounded<T>(
    cache: &Locked<BTreeMap<String, T>>,
    version: &str,
    value: T,
) {
    let mut cached = cache.lock();
    if cached.len() >= MAX_CACHED {
        cached.pop_first();
    }
    cached.insert(version.to_owned(), value);
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
