//! A task as the API shows it.

use serde::Serialize;
use utoipa::ToSchema;

use super::raw_json::RawJson;
use super::request::InterventionRequest;
use super::wire_enum;
use crate::http::Settings;
use crate::http::server::problem::{Code, type_url};
use crate::people::Caller;
use crate::store::RequestRow;
use crate::task::change::TaskRow;
use crate::task::failure::{Failure, FailureCode};
use crate::task::status;

wire_enum! {
    /// The status of a task: `Running` (the task or a task below it runs), `Paused` (the task and
    /// the tasks below it are idle, and one of them waits for a person), `Completed` (the model
    /// gave its final answer), `Failed` (the task cannot continue) or `Canceled` (a person, a
    /// deadline or a task above it ended the task).
    WireTaskStatus as TaskStatus from status::TaskStatus, "PascalCase" { Running, Paused, Completed, Failed, Canceled }
}

/// One conversation of one agent for one user. The work of a sub-agent is a task of its own, with
/// a `parent`.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct AgentTask {
    /// The id of the task.
    #[schema(format = Uuid)]
    pub task_id: String,
    /// The caller's name for the conversation. Default: a fresh id, or `gate` for a call at a gate.
    pub session_id: String,
    /// The id of the root task of the tree; for a root task, its own id.
    #[schema(format = Uuid)]
    pub root_task_id: String,
    /// The name of the agent; for a call at a gate, the name of the gate.
    pub agent: String,
    /// The digest of the agent's definition: `sha256:…`.
    pub agent_version: String,
    /// The id of the task's owner, who is the owner of the root task.
    pub user_id: String,
    /// The status of the task, which also depends on the tasks below it.
    pub status: WireTaskStatus,
    /// The final text of a Completed task; null for any other status.
    pub output: Option<String>,
    /// The failure of a Failed task; null for any other status.
    pub error: Option<TaskError>,
    /// Every open request of this task and of its sub-agents, oldest first; long arguments are cut
    /// (`truncated`).
    pub pending: Vec<InterventionRequest>,
    /// The model usage of the task and of all tasks below it, since the task's creation.
    pub usage: TaskUsage,
    /// For a sub-agent's task, the call that started the task; null for a root task.
    pub parent: Option<TaskParent>,
    /// The metadata that the caller sent with the task.
    #[schema(value_type = HashMap<String, Value>)]
    pub metadata: RawJson,
    /// The time at which the task was created.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The time at which the last item of the task was committed.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

/// The model usage of a task and of all tasks below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct TaskUsage {
    /// The tokens of the prompts.
    pub prompt_tokens: i64,
    /// The tokens of the answers.
    pub completion_tokens: i64,
    /// The sum of the answers' totals. The total of an answer is the total that the provider
    /// reported or, without it, the sum of both counts.
    pub total_tokens: i64,
    /// The number of answers that models gave.
    pub model_calls: i64,
}

/// The call that started a sub-agent's task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct TaskParent {
    /// The id of the parent task.
    #[schema(format = Uuid)]
    pub task_id: String,
    /// The id of the parent's call that started the task.
    #[schema(format = Uuid)]
    pub tool_call_id: String,
}

/// The failure of a task: a problem object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct TaskError {
    /// The address of a page that explains the code.
    #[schema(format = "uri")]
    pub r#type: String,
    /// A short title, the same for every failure with this code.
    pub title: String,
    /// Always 500.
    pub status: u16,
    /// The failure in one sentence, for a person.
    pub detail: String,
    /// Always null: the failure has no HTTP request.
    pub instance: Option<String>,
    /// The stable code of the failure, for programs.
    pub code: TaskErrorCode,
    /// For `limit_reached`: the name of the limit, such as `max_model_calls`; else null.
    pub limit: Option<String>,
}

wire_enum! {
    /// The kind of failure: `model_failed` (the model gave no usable answer), `limit_reached` (a
    /// limit of the agent was reached), `integrity` (the stored data contradicts itself),
    /// `configuration` (the configuration no longer has what the task needs) or `no_progress`
    /// (several processes, one after the other, stopped while they worked on the task).
    TaskErrorCode as TaskErrorCode from FailureCode, "snake_case" { ModelFailed, LimitReached, Integrity, Configuration, NoProgress }
}

impl TaskError {
    #[must_use]
    pub(crate) fn from_failure(failure: &Failure, settings: &Settings) -> Self {
        let code = match failure.code {
            FailureCode::ModelFailed => Code::ModelFailed,
            FailureCode::LimitReached => Code::LimitReached,
            FailureCode::Integrity => Code::Integrity,
            FailureCode::Configuration => Code::Configuration,
            FailureCode::NoProgress => Code::NoProgress,
        };
        Self {
            r#type: type_url(&settings.public_url, code.as_str()),
            title: code.title().to_owned(),
            status: code.status().as_u16(),
            detail: failure.detail.clone(),
            instance: None,
            code: failure.code.into(),
            limit: failure.limit.clone(),
        }
    }
}

impl AgentTask {
    /// Returns the task as `caller` sees it. `pending` holds the open requests of the task and of
    /// the tasks below it.
    #[must_use]
    pub(crate) fn from_row(
        row: &TaskRow,
        pending: &[RequestRow],
        caller: &Caller,
        settings: &Settings,
    ) -> Self {
        Self {
            task_id: row.task_id.to_string(),
            session_id: row.session_id.clone(),
            root_task_id: row.root_task_id.to_string(),
            agent: row.agent.clone(),
            agent_version: row.agent_version.clone(),
            user_id: row.user_id.clone(),
            status: row.status.into(),
            output: row.output.clone(),
            error: row
                .error
                .as_ref()
                .map(|failure| TaskError::from_failure(failure, settings)),
            pending: pending
                .iter()
                .map(|request| InterventionRequest::listed(request, caller, settings))
                .collect(),
            usage: TaskUsage {
                prompt_tokens: row.usage.prompt_tokens,
                completion_tokens: row.usage.completion_tokens,
                total_tokens: row.usage.total_tokens,
                model_calls: row.model_calls,
            },
            parent: row.parent.map(|(task, call)| TaskParent {
                task_id: task.to_string(),
                tool_call_id: call.to_string(),
            }),
            metadata: RawJson::object(&row.client.metadata),
            created_at: row.created_at.to_string(),
            updated_at: row.updated_at.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;
    use crate::task::change::ClientColumns;
    use serde_json::{Value, json};

    #[test]
    fn task_shows_every_member() {
        let row = sample::task();
        let shown = serde_json::to_value(AgentTask::from_row(
            &row,
            &[],
            &sample::caller(),
            &sample::settings(),
        ))
        .unwrap();
        assert_eq!(
            shown,
            json!({
                "task_id": row.task_id.to_string(), "session_id": "desk-7", "root_task_id": row.task_id.to_string(),
                "agent": "billing", "agent_version": row.agent_version, "user_id": "alice", "status": "Paused",
                "output": null, "error": null, "pending": [],
                "usage": {"prompt_tokens": 412, "completion_tokens": 38, "total_tokens": 450, "model_calls": 1},
                "parent": null, "metadata": {"ticket": "T-1"},
                "created_at": "2026-11-03T09:30:00.000000Z", "updated_at": "2026-11-03T09:30:00.250000Z"
            })
        );
    }

    #[test]
    fn metadata_keeps_every_digit_of_its_numbers() {
        let metadata = r#"{"z":1.10,"a":[12345678901234567890123,1E2]}"#;
        let row = TaskRow {
            client: ClientColumns::with_metadata(metadata.to_owned()),
            ..sample::task()
        };
        let shown = AgentTask::from_row(&row, &[], &sample::caller(), &sample::settings());
        assert!(
            serde_json::to_string(&shown)
                .unwrap()
                .contains(&format!(r#""metadata":{metadata},"#))
        );
    }

    #[test]
    fn failure_is_a_problem_object() {
        let shown =
            TaskError::from_failure(&Failure::limit("max_model_calls"), &sample::settings());
        let shown = serde_json::to_value(shown).unwrap();
        assert_eq!(
            shown["type"],
            "http://127.0.0.1:8080/problems/limit_reached"
        );
        assert_eq!(
            (&shown["code"], &shown["limit"]),
            (&json!("limit_reached"), &json!("max_model_calls"))
        );
        assert_eq!(
            (&shown["status"], &shown["instance"]),
            (&json!(500), &Value::Null)
        );
    }
}
