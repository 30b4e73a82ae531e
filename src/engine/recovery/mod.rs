//! Damaged requests and journals, and agents whose definition the configuration has changed since.

pub(crate) mod agent_version;
pub(crate) mod damaged_task;
pub(crate) mod integrity;
