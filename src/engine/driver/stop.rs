//! The early end of a driver.

/// Why a driver stops before the task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Another commit came first, and the session now continues from the new journal: ask
    /// `next_step` again.
    Again,
    /// Another driver has the task, the command that opened the session was refused, the task
    /// cannot be read, or the service has gone down.
    Lost,
}
