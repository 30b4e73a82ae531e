//! Reads rows of `agent_task`, and decodes the JSON texts of items and of lists of names.

use uuid::Uuid;

use super::db::{Sql, Value, sql};
use super::record::record;
use super::{ReadError, Store};
use crate::task::change::{ClientColumns, TaskRow};
use crate::task::id::{CallId, TaskId};
use crate::task::item::{Fact, Usage};
use crate::task::status::TaskStatus;
use crate::task::time::Time;

const TASK: Sql = sql!(
    "select " (task) "
       from agent_task t left join agent_task_item s on s.task_id = t.task_id and s.seq = t.status_seq
      where t.task_id = $1"
)
.by_key();

pub(super) const STATEMENTS: &[Sql] = &[TASK];

record! {
    /// A row of `agent_task` with the item that set its current status.
    pub(super) struct TaskRecord {
        task_id: Uuid,
        root_task_id: Uuid,
        parent_task_id: Option<Uuid>,
        parent_call_id: Option<Uuid>,
        tenant: String,
        user_id: String,
        session_id: String,
        agent: String,
        agent_version: String,
        agent_path: String,
        metadata: String,
        status: String,
        version: i64,
        last_seq: i64,
        busy: i64,
        open_requests: i64,
        prompt_tokens: i64,
        completion_tokens: i64,
        total_tokens: i64,
        model_calls: i64,
        lease_owner: Option<String>,
        lease_until: Option<i64>,
        parked: bool,
        asker_until: Option<i64>,
        takeovers: i64,
        fruitless: i64,
        next_event: i64,
        created_at: i64,
        updated_at: i64,
        status_body: Option<String>,
    }
}

impl TaskRecord {
    /// Returns the task's id, which can be read even if the rest of the row cannot be decoded.
    pub(super) fn id(&self) -> TaskId {
        TaskId(self.task_id)
    }

    /// Returns the row, and whether all of it could be decoded. If the task's last `task_status`
    /// item cannot be decoded, the row has no output and no error. If the agent path cannot be
    /// decoded, it consists of the agent's own name.
    pub(super) fn readable_row(mut self) -> Result<(TaskRow, bool), ReadError> {
        let status_readable = self
            .status_body
            .as_deref()
            .is_none_or(|body| fact(body).is_ok());
        if !status_readable {
            self.status_body = None;
        }
        let path_readable = names(&self.agent_path).is_ok();
        if !path_readable {
            self.agent_path = serde_json::json!([self.agent]).to_string();
        }
        Ok((self.row()?, status_readable && path_readable))
    }

    pub(super) fn row(self) -> Result<TaskRow, ReadError> {
        let (output, error) = match self.status_body.as_deref().map(fact).transpose()? {
            Some(Fact::TaskStatus { output, error, .. }) => (output, error),
            Some(_) | None => (None, None),
        };
        Ok(TaskRow {
            task_id: TaskId(self.task_id),
            root_task_id: TaskId(self.root_task_id),
            parent: self
                .parent_task_id
                .zip(self.parent_call_id)
                .map(|(task, call)| (TaskId(task), CallId(call))),
            tenant: self.tenant,
            user_id: self.user_id,
            session_id: self.session_id,
            agent: self.agent,
            agent_version: self.agent_version,
            agent_path: names(&self.agent_path)?,
            status: TaskStatus::parse(&self.status).ok_or_else(|| corrupt("a task's status"))?,
            version: self.version,
            last_seq: self.last_seq,
            client: ClientColumns {
                metadata: self.metadata,
            },
            busy: i32::try_from(self.busy).map_err(|_| corrupt("busy"))?,
            open_requests: i32::try_from(self.open_requests)
                .map_err(|_| corrupt("open_requests"))?,
            usage: Usage {
                prompt_tokens: self.prompt_tokens,
                completion_tokens: self.completion_tokens,
                total_tokens: self.total_tokens,
            },
            model_calls: self.model_calls,
            output,
            error,
            lease_owner: self.lease_owner,
            lease_until: self.lease_until.map(Time),
            parked: self.parked,
            asker_until: self.asker_until.map(Time),
            takeovers: i32::try_from(self.takeovers).map_err(|_| corrupt("takeovers"))?,
            fruitless: i32::try_from(self.fruitless).map_err(|_| corrupt("fruitless"))?,
            next_event: self.next_event,
            created_at: Time(self.created_at),
            updated_at: Time(self.updated_at),
        })
    }
}

pub(super) fn fact(body: &str) -> Result<Fact, ReadError> {
    // The parser's error quotes the stored text, which must not reach a log.
    serde_json::from_str(body).map_err(|_| corrupt("an item"))
}

pub(super) fn names(text: &str) -> Result<Vec<String>, ReadError> {
    serde_json::from_str(text).map_err(|_| corrupt("a list of names"))
}

pub(super) fn corrupt(what: &str) -> ReadError {
    ReadError::Corrupt(what.to_owned())
}

impl Store {
    /// Reads a task's row; `None` if there is no such task. If the row cannot be decoded, also
    /// calls [`Store::report_unreadable`].
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn task(&self, id: TaskId) -> Result<Option<TaskRow>, ReadError> {
        let record: Option<TaskRecord> = self.db().one(TASK, vec![Value::Id(id.0)]).await?;
        let row = record.map(TaskRecord::row).transpose();
        if row.is_err() {
            self.report_unreadable(id);
        }
        row
    }
}
