//! Finds out which versions of definitions belong to gates, so that a gate call is recognized even
//! if its gate was removed from the configuration.

use std::collections::BTreeSet;

use super::Gates;
use crate::agent::version::is_gate;
use crate::engine::recovery::agent_version::{insert_bounded, stored_definition};
use crate::store::ReadError;
use crate::task::change::TaskRow;

impl Gates<'_> {
    /// Returns the versions of gates that the process has found in earlier calls of
    /// [`Gates::versions_among`].
    #[must_use]
    pub fn known_versions(self) -> Vec<String> {
        let known = self.engine.gate_versions.lock();
        let gates = known.iter().filter(|(_, is_gate)| **is_gate);
        gates.map(|(version, _)| version.clone()).collect()
    }

    /// Returns the agent versions of `rows` that belong to gates. Reads the stored definition of a
    /// version that the configuration does not have, so that a gate call is recognized even if its
    /// gate was removed from the configuration. A version whose stored definition is missing or
    /// unreadable counts as an agent's.
    ///
    /// # Errors
    /// Fails with `Unavailable` if a stored definition must be read and the database does not
    /// answer.
    pub async fn versions_among(self, rows: &[TaskRow]) -> Result<BTreeSet<String>, ReadError> {
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

    async fn is_gate_version(self, agent: &str, version: &str) -> Result<bool, ReadError> {
        let current = self.engine.agents.get(agent);
        if let Some(current) = current.filter(|current| current.version == version) {
            return Ok(current.gate.is_some());
        }
        if let Some(is_gate) = self.engine.gate_versions.lock().get(version) {
            return Ok(*is_gate);
        }
        let stored = stored_definition(&self.engine.store, version).await?;
        let is_gate = stored.is_some_and(|definition| is_gate(&definition));
        insert_bounded(&self.engine.gate_versions, version, is_gate);
        Ok(is_gate)
    }
}
