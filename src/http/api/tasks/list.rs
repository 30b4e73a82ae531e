//! `GET /v1/tasks`: the caller's root tasks (for an admin, the root tasks of the whole tenant), or
//! the tasks of a tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::Uri;

use crate::http::Http;
use crate::http::access;
use crate::http::api::listing::Listing;
use crate::http::server::caller::{CurrentCaller, must_read};
use crate::http::server::operation::Op;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::query::{Query, cursor_of};
use crate::http::wire::list::TaskList;
use crate::http::wire::params::{PageQuery, TaskQuery};
use crate::http::wire::task::AgentTask;
use crate::people::Caller;
use crate::people::authorization::sees_whole_tenant;
use crate::store::{Page, ReadError, RequestRow, TaskFilter};
use crate::task::change::TaskRow;
use crate::task::id::TaskId;
use crate::task::status::TaskStatus;
use crate::task::user::UserId;

pub(crate) const OP: Op = Op::api("list_tasks", &[Code::NotFound, Code::Invalid]);

/// The maximum number of reads for one page, where the page leaves out calls at gates. A read may
/// find calls at gates that are no longer configured. The page is then read again, without the
/// agent versions of these calls. After the last read, [`page_of_tasks`] removes such calls from
/// the page, which may then be shorter than its limit.
const MAX_READS: u32 = 8;

/// List tasks
///
/// Returns the caller's root tasks, newest first; with `root_task_id`, the tasks of that tree. An
/// admin gets the tasks of the whole tenant. Without `root_task_id`, the task of a call at a gate
/// is listed only if `agent` names the gate.
#[utoipa::path(
    get, path = "/v1/tasks", operation_id = "list_tasks", tag = "tasks", params(TaskQuery, PageQuery),
    responses((status = 200, body = TaskList, description = "A page of tasks"))
)]
pub(crate) async fn list_tasks(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    uri: Uri,
) -> Result<Response, Problem> {
    let mut query = Query::from_uri(&uri);
    let roots = query.task_ids("root_task_id");
    if roots.is_empty() {
        must_read(&caller)?;
    }
    for root in &roots {
        access::readable_task(&http, &caller, *root).await?;
    }
    let ids = caller.user_id.ids();
    let users = query.texts("user_id").into_iter();
    let users = users.map(|user| ids.id(user)).collect();
    let filter = TaskFilter {
        tenant: caller.tenant.clone(),
        statuses: query.words("status", &TaskStatus::ALL, TaskStatus::as_str),
        agents: query.texts("agent"),
        without_agents: Vec::new(),
        without_versions: Vec::new(),
        sessions: query.texts("session_id"),
        before: query.cursor().map(TaskId),
        limit: query.limit(),
        users: owner_filter(&caller, users, roots.is_empty())?,
        roots,
    };
    query.finish()?;
    let page = page_of_tasks(&http, filter).await?;
    response_with(&http, &caller, page).await
}

/// Returns the response with the tasks of `page`, each with its open requests.
async fn response_with(
    http: &Http,
    caller: &Caller,
    page: Page<TaskRow>,
) -> Result<Response, Problem> {
    let mut pending = open_requests(http, caller, &page).await?;
    let (mut listing, mut last) = (Listing::new("tasks"), None);
    let mut next = page.next(|row| row.task_id.0);
    for row in page {
        let id = row.task_id;
        let open = pending.remove(&id).unwrap_or_default();
        let task = listed_task(http, caller, &row, &open).await?;
        if !listing.push(&task)? {
            next = last;
            break;
        }
        last = Some(id.0);
    }
    Ok(listing.close(&[("next_cursor", next.map(cursor_of).into())]))
}

/// Reads a page of tasks. If `filter` names neither a tree nor an agent, leaves out the tasks of
/// calls at gates, even at gates that the configuration no longer has.
///
/// # Errors
/// `unavailable` or `internal` when the tasks cannot be read.
pub(crate) async fn page_of_tasks(
    http: &Http,
    mut filter: TaskFilter,
) -> Result<Page<TaskRow>, Problem> {
    if !filter.roots.is_empty() || !filter.agents.is_empty() {
        return Ok(http.store.tasks(&filter).await?);
    }
    let engine = &http.engine;
    let gates = engine.agents().gates();
    filter.without_agents = gates.map(|(gate, _)| gate.name.clone()).collect();
    filter.without_versions = engine.gates().known_versions();
    let mut reads = 1;
    loop {
        let page = http.store.tasks(&filter).await?;
        let found = engine.gates().versions_among(&page).await?;
        if found.is_empty() || reads == MAX_READS {
            let is_listed = |row: &TaskRow| !found.contains(&row.agent_version);
            return Ok(page.retain(|row| row.task_id.0, is_listed));
        }
        filter.without_versions.extend(found);
        reads += 1;
    }
}

/// Returns the list's entry for the task of `row`. `open` has the task's requests as
/// [`open_requests`] has read them; it is empty for the task of a sub-agent. If `row` counts
/// another number of requests, the function reads the requests again. If this read meets a stored
/// value that cannot be decoded, the entry shows `row` and `open`.
async fn listed_task(
    http: &Http,
    caller: &Caller,
    row: &TaskRow,
    open: &[RequestRow],
) -> Result<AgentTask, Problem> {
    if access::has_all_requests(row, open) {
        return Ok(AgentTask::from_row(row, open, caller, &http.settings));
    }
    match access::read_with_requests(http, caller, row.clone()).await {
        Err(ReadError::Corrupt(_)) => Ok(AgentTask::from_row(row, open, caller, &http.settings)),
        read => read?.ok_or_else(Problem::not_found),
    }
}

/// Returns the owners whose tasks are listed; an empty list stands for every owner. `users` are the
/// owners that the query names. A caller who is not an admin may name only themselves. In a list of
/// root tasks (`roots_only`), such a caller gets only their own tasks.
fn owner_filter(
    caller: &Caller,
    users: Vec<UserId>,
    roots_only: bool,
) -> Result<Vec<UserId>, Problem> {
    if sees_whole_tenant(caller) {
        return Ok(users);
    }
    if users.iter().any(|user| *user != caller.user_id) {
        return Err(Problem::forbidden(
            "Only an admin may list other users' tasks.",
        ));
    }
    Ok(if roots_only {
        vec![caller.user_id.clone()]
    } else {
        users
    })
}

/// Reads the open requests of the root tasks among `rows`, in one query. Leaves out requests that
/// cannot be decoded.
async fn open_requests(
    http: &Http,
    caller: &Caller,
    rows: &[TaskRow],
) -> Result<BTreeMap<TaskId, Vec<RequestRow>>, Problem> {
    let waiting_roots = rows
        .iter()
        .filter(|row| row.open_requests > 0 && row.task_id == row.root_task_id);
    let waiting_roots: Vec<TaskId> = waiting_roots.map(|row| row.task_id).collect();
    let mut pending: BTreeMap<TaskId, Vec<RequestRow>> = BTreeMap::new();
    if !waiting_roots.is_empty() {
        let open = http.store.pending_of(&caller.tenant, &waiting_roots);
        for request in open.await? {
            pending
                .entry(request.root_task_id)
                .or_default()
                .push(request);
        }
    }
    Ok(pending)
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::http::openapi::sample;
    use crate::http::tests::stored_task::{approve, store_in, store_paused_task};

    #[tokio::test]
    async fn task_decided_between_the_two_reads_of_a_list_is_listed_as_it_is_after_the_decision() {
        let folder = tempfile::tempdir().unwrap();
        let store = store_in(&folder).await;
        let http = Http {
            store: store.clone(),
            ..crate::http::tests::http(false, &[])
        };
        let (waiting, open) = store_paused_task(&store).await;
        let (decided, asked) = store_paused_task(&store).await;
        let filter = TaskFilter {
            tenant: "acme".to_owned(),
            limit: 50,
            ..TaskFilter::default()
        };
        let page = store.tasks(&filter).await.unwrap();
        let mut statuses = page.iter().map(|row| row.status);
        assert!(statuses.all(|status| status == TaskStatus::Paused));
        approve(&store, decided, &asked).await;
        let response = response_with(&http, &sample::caller(), page).await;
        let body = response.unwrap().into_body();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        let list: Value = serde_json::from_slice(&bytes).unwrap();
        let tasks = list["tasks"].as_array().unwrap().iter();
        let shown = tasks.map(|task| {
            let request = &task["pending"][0]["request_id"];
            json!([task["task_id"], task["status"], request])
        });
        let expected = [
            json!([decided.to_string(), "Running", null]),
            json!([waiting.to_string(), "Paused", open.request_id.to_string()]),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        store.close().await;
    }
}
