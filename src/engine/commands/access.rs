//! Checks whether a caller may give a command to a task, and loads the task for the command.

use super::{ConflictCode, Refusal};
use crate::engine::Engine;
use crate::engine::session::TaskSession;
use crate::people::Caller;
use crate::people::authorization::{Command, may_command};
use crate::task::change::TaskRow;
use crate::task::id::TaskId;

impl Engine {
    /// Checks that `caller` may give this command to the task. Applies the rules of [`may_command`]
    /// to the root's agent as configured now. An agent that was removed from the configuration is
    /// open to no caller.
    ///
    /// # Errors
    /// The reason why the caller may not give the command, in words for the caller.
    pub fn may_command(
        &self,
        caller: &Caller,
        command: Command,
        task: &TaskRow,
    ) -> Result<(), &'static str> {
        let root = task
            .agent_path
            .first()
            .and_then(|agent| self.agents.get(agent));
        let open = root
            .is_some_and(|agent| agent.is_open_to(&caller.tenant, &caller.user_id, &caller.groups));
        may_command(caller, command, &task.tenant, &task.user_id, open)
    }

    /// Loads a task for a command, if the caller may give this command to the task.
    pub(super) async fn load_for(
        &self,
        caller: &Caller,
        task: TaskId,
        command: Command,
    ) -> Result<TaskSession, Refusal> {
        let session = self.load(task).await?.ok_or(Refusal::NotFound)?;
        let row = &session.own.row;
        if row.tenant != caller.tenant {
            return Err(Refusal::NotFound);
        }
        self.may_command(caller, command, row)
            .map_err(|why| Refusal::Forbidden(why.into()))?;
        if row.parent.is_some() && command != Command::Cancel {
            return Err(Refusal::NotARoot {
                root: row.root_task_id,
                status: row.status,
            });
        }
        if session.own.is_gate_call() && command != Command::Cancel {
            return Err(Refusal::conflict(row, ConflictCode::NotAConversation));
        }
        Ok(session)
    }
}
