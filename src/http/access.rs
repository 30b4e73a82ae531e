//! Loads tasks and requests for a caller. For a task or request of another tenant, the caller gets
//! the problem 404. For a task or request of their own tenant that they may not read, the caller
//! gets 403. All operations that show a task or a request load it through this module, so they
//! refuse the same callers.

use crate::engine::DetailCode;
use crate::http::Http;
use crate::http::server::problem::Problem;
use crate::http::wire::task::AgentTask;
use crate::people::Caller;
use crate::people::authorization::{inbox_person, may_decide, may_read};
use crate::store::{ReadError, RequestRow};
use crate::task::change::{Journal, TaskRow};
use crate::task::id::{RequestId, TaskId};

/// Loads a task of the caller's tenant, without a check of the caller's rights.
///
/// # Errors
/// `not_found` if the tenant has no such task; `unavailable` or `internal` if the read fails.
pub(crate) async fn task(http: &Http, caller: &Caller, id: TaskId) -> Result<TaskRow, Problem> {
    let row = http.store.task(id).await?;
    row.filter(|row| row.tenant == caller.tenant)
        .ok_or_else(Problem::not_found)
}

/// Loads a task that the caller may read.
///
/// # Errors
/// `not_found` if the tenant has no such task; `forbidden` if the caller may not read it;
/// `unavailable` or `internal` if a read fails.
pub(crate) async fn readable_task(
    http: &Http,
    caller: &Caller,
    id: TaskId,
) -> Result<TaskRow, Problem> {
    let row = task(http, caller, id).await?;
    must_read_tree(http, caller, &row.tenant, &row.user_id, row.root_task_id).await?;
    Ok(row)
}

async fn must_read_tree(
    http: &Http,
    caller: &Caller,
    tenant: &str,
    owner: &str,
    root: TaskId,
) -> Result<(), Problem> {
    if may_read(caller, tenant, owner, false) {
        return Ok(());
    }
    let (may_read, person) = (may_read(caller, tenant, owner, true), inbox_person(caller));
    if may_read && http.store.is_involved(tenant, root, &person).await? {
        return Ok(());
    }
    Err(Problem::forbidden(DetailCode::MayNotRead))
}

/// Loads a request of the caller's tenant, without a check of the caller's rights.
///
/// # Errors
/// `not_found` if the tenant has no such request; `unavailable` or `internal` if the read fails.
pub(crate) async fn request(
    http: &Http,
    caller: &Caller,
    id: RequestId,
) -> Result<RequestRow, Problem> {
    let row = http.store.request(id).await?;
    row.filter(|row| row.tenant == caller.tenant)
        .ok_or_else(Problem::not_found)
}

/// Like [`request`], but also returns the journal of the request's task. The journal is `None` if
/// it cannot be decoded.
///
/// # Errors
/// `not_found` if the tenant has no such request; `unavailable` or `internal` if the read fails.
pub(crate) async fn request_with_journal(
    http: &Http,
    caller: &Caller,
    id: RequestId,
) -> Result<(RequestRow, Option<Journal>), Problem> {
    let read = http.store.request_with_journal(id).await?;
    read.filter(|(row, _)| row.tenant == caller.tenant)
        .ok_or_else(Problem::not_found)
}

/// Loads a request that the caller may read.
///
/// # Errors
/// `not_found` if the tenant has no such request; `forbidden` if the caller may not read it;
/// `unavailable` or `internal` if a read fails.
pub(crate) async fn readable_request(
    http: &Http,
    caller: &Caller,
    id: RequestId,
) -> Result<RequestRow, Problem> {
    let row = request(http, caller, id).await?;
    if may_decide(caller, &row.tenant, &row.owner, &row.spec.terms.approvers).is_none() {
        must_read_tree(http, caller, &row.tenant, &row.owner, row.root_task_id).await?;
    }
    Ok(row)
}

/// Returns the result of [`read_with_requests`]. A missing task or a failed read becomes a problem.
///
/// # Errors
/// `not_found` when the task is gone; `unavailable` or `internal` when it cannot be read.
pub(crate) async fn task_with_requests(
    http: &Http,
    caller: &Caller,
    row: TaskRow,
) -> Result<AgentTask, Problem> {
    let task = read_with_requests(http, caller, row).await?;
    task.ok_or_else(Problem::not_found)
}

/// Whether `open` has as many requests as `row` counts. If not, a commit may have come between the
/// read of the row and the read of the requests.
#[must_use]
pub(crate) fn has_all_requests(row: &TaskRow, open: &[RequestRow]) -> bool {
    i64::try_from(open.len()).is_ok_and(|count| count == i64::from(row.open_requests))
}

/// Returns the task of `row` together with its open requests; `None` when the task is gone. If
/// [`has_all_requests`] is false for them, the function reads the row again. If the row has
/// changed, it also reads the requests again. It reads the requests at most three times.
///
/// # Errors
/// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
pub(crate) async fn read_with_requests(
    http: &Http,
    caller: &Caller,
    mut row: TaskRow,
) -> Result<Option<AgentTask>, ReadError> {
    let mut pending = Vec::new();
    for _ in 0..3 {
        if row.open_requests == 0 {
            pending = Vec::new();
            break;
        }
        pending = http.store.pending(row.root_task_id, row.task_id).await?;
        if has_all_requests(&row, &pending) {
            break;
        }
        let Some(reread) = http.store.task(row.task_id).await? else {
            return Ok(None);
        };
        let changed = (reread.version, reread.open_requests, reread.status)
            != (row.version, row.open_requests, row.status);
        row = reread;
        if !changed {
            break;
        }
    }
    let task = AgentTask::from_row(&row, &pending, caller, &http.settings);
    Ok(Some(task))
}
