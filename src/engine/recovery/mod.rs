//! Tasks whose stored state is not as it should be: damaged requests and journals, and agents that the configuration has
//! changed since.

pub(crate) mod agent_version;
pub(crate) mod damaged_task;
pub(crate) mod integrity;
