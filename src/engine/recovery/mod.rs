//! Recovery: damaged requests and journals, and agents in versions that the configuration no longer
//! has.

pub(crate) mod agent_version;
pub(crate) mod damaged_task;
pub(crate) mod integrity;
