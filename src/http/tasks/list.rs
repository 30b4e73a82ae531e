//! `GET /v1/tasks`: the caller's root tasks, or the tasks of a tree; an admin's whole tenant.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::Uri;

use crate::http::caller::{Who, must_read};
use crate::http::operation::{Door, Op, SMALL};
use crate::http::params::TaskQuery;
use crate::http::problem::{Code, Problem};
use crate::http::query::{Query, cursor_of, cut};
use crate::http::wire::{list::TaskList, task::AgentTask};
use crate::http::{Http, read};
use crate::people::Caller;
use crate::store::{RequestFilter, RequestRow, TaskFilter};
use crate::task::change::TaskRow;
use crate::task::id::TaskId;
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::user::UserId;

/// The operation.
pub const OP: Op = Op { id: "list_tasks", door: Door::Key, body: SMALL, problems: &[Code::NotFound, Code::Invalid] };

/// List tasks
///
/// The caller's root tasks, newest first; with `root_task_id` the tasks of that tree. An admin sees the tenant's.
#[utoipa::path(
    get, path = "/v1/tasks", operation_id = "list_tasks", tag = "tasks", params(TaskQuery),
    responses((status = 200, body = TaskList, description = "Some tasks"))
)]
pub(crate) async fn list_tasks(
    State(http): State<Arc<Http>>,
    Who(caller): Who,
    uri: Uri,
) -> Result<Json<TaskList>, Problem> {
    let mut query = Query::of(&uri);
    let roots = query.many("root_task_id", "a task id", |text| text.parse::<TaskId>().ok());
    let ids = caller.user_id.ids();
    let users = query.texts("user_id").into_iter().map(|user| ids.id(user)).collect();
    let mut filter = TaskFilter {
        tenant: caller.tenant.clone(),
        statuses: query.many("status", "a task status", TaskStatus::parse),
        agents: query.texts("agent"),
        sessions: query.texts("session_id"),
        before: query.cursor().map(TaskId),
        limit: query.limit(),
        users: Vec::new(),
        roots,
    };
    if filter.roots.is_empty() {
        must_read(&caller)?;
    }
    filter.users = whose(&caller, users, filter.roots.is_empty())?;
    for root in &filter.roots {
        read::readable(&http, &caller, *root).await?;
    }
    query.finish()?;
    let limit = filter.limit;
    filter.limit += 1;
    let mut rows = http.store.tasks(&filter).await?;
    let more = cut(&mut rows, limit);
    let next_cursor = rows.last().filter(|_| more).map(|row| cursor_of(row.task_id.0));
    Ok(Json(TaskList { tasks: shown(&http, &caller, rows).await?, next_cursor }))
}

/// Whose tasks: one's own, unless one is an admin or looks at a tree one may read.
fn whose(caller: &Caller, users: Vec<UserId>, roots_only: bool) -> Result<Vec<UserId>, Problem> {
    if caller.admin {
        return Ok(users);
    }
    if users.iter().any(|user| *user != caller.user_id) {
        return Err(Problem::forbidden("Only an admin asks for other users' tasks."));
    }
    Ok(if roots_only { vec![caller.user_id.clone()] } else { users })
}

/// The tasks with their open requests: those of roots are read together.
async fn shown(http: &Http, caller: &Caller, rows: Vec<TaskRow>) -> Result<Vec<AgentTask>, Problem> {
    let waiting: Vec<&TaskRow> =
        rows.iter().filter(|row| row.open_requests > 0 && row.task_id == row.root_task_id).collect();
    let mut pending: BTreeMap<TaskId, Vec<RequestRow>> = BTreeMap::new();
    if !waiting.is_empty() {
        let filter = RequestFilter {
            tenant: caller.tenant.clone(),
            statuses: vec![RequestStatus::Pending],
            roots: waiting.iter().map(|row| row.task_id).collect(),
            limit: waiting.iter().map(|row| i64::from(row.open_requests)).sum::<i64>() + 100,
            ..RequestFilter::default()
        };
        for request in http.store.requests(&filter).await? {
            pending.entry(request.root_task_id).or_default().push(request);
        }
    }
    let mut tasks = Vec::new();
    for row in rows {
        if row.task_id == row.root_task_id {
            let open = pending.remove(&row.task_id).unwrap_or_default();
            tasks.push(AgentTask::of(&row, &open, caller, &http.settings));
        } else {
            tasks.push(read::with_pending(http, caller, row).await?);
        }
    }
    Ok(tasks)
}
