//! Recovery fails tasks with damaged requests or journals, and loads agents in versions that the
//! configuration no longer has.

pub(crate) mod agent_version;
pub(crate) mod damaged_task;
pub(crate) mod integrity;
