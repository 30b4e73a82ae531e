//! Defines [`Stop`], the reason why a driver stops early.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Another commit changed the task first, or a restore of the database made the task's history
    /// uncertain. The session now has the new journal, and the driver asks `next_step` again.
    Reloaded,
    /// This driver cannot continue the task, and ends. Examples: another driver has the task; the
    /// command that opened the session was refused; the database refused a change; the task cannot
    /// be read; the shutdown's grace period is over.
    Lost,
}
