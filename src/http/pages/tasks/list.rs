//! `GET /tasks`: the tasks of `GET /v1/tasks` as a table.

use std::sync::Arc;

use axum::extract::State;
use http::{HeaderMap, Uri};
use maud::{Markup, html};
use url::form_urlencoded::Serializer;
use uuid::Uuid;

use crate::http::Http;
use crate::http::pages::inbox::words::Texts;
use crate::http::pages::layout::{moment, visible};
use crate::http::pages::site::{Place, Site};
use crate::http::server::caller::{CurrentCaller, must_read};
use crate::http::server::operation::{AuthClass, Op, SMALL};
use crate::http::server::params::{CursorQuery, TasksPageQuery};
use crate::http::server::problem::{Code, Problem};
use crate::http::server::query::{Query, cursor_of};
use crate::store::TaskFilter;
use crate::task::change::TaskRow;
use crate::task::id::TaskId;
use crate::task::status::TaskStatus;

pub(crate) const OP: Op = Op {
    id: "get_tasks_page",
    auth: AuthClass::Key,
    body: SMALL,
    problems: &[Code::Invalid],
};

/// The statuses of the filter.
const STATUSES: [TaskStatus; 5] = [
    TaskStatus::Running,
    TaskStatus::Paused,
    TaskStatus::Completed,
    TaskStatus::Failed,
    TaskStatus::Canceled,
];

/// The page of the tasks
///
/// Shows the caller's root tasks, newest first; an admin sees the tasks of the whole tenant.
#[utoipa::path(
    get, path = "/tasks", operation_id = "get_tasks_page", tag = "pages", params(TasksPageQuery, CursorQuery),
    responses((status = 200, body = String, content_type = "text/html", description = "The page"))
)]
pub(crate) async fn get_tasks_page(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Markup, Problem> {
    must_read(&caller)?;
    let mut query = Query::of(&uri);
    query.drop_empty();
    let own = (!caller.admin).then(|| caller.user_id.clone());
    let filter = TaskFilter {
        tenant: caller.tenant.clone(),
        users: own.into_iter().collect(),
        statuses: query.many("status", "a task status", TaskStatus::parse),
        before: query.cursor().map(TaskId),
        limit: 50,
        ..TaskFilter::default()
    };
    query.finish()?;
    let page = http.store.tasks(&filter).await?;
    let site = Site::of(&http, &caller, &headers);
    let next = page.next(|row| row.task_id.0);
    Ok(tasks_page(&site, &page, &filter.statuses, next))
}

/// The word for a task's status.
#[must_use]
pub(super) fn status_word(status: TaskStatus, texts: &Texts) -> &'static str {
    match status {
        TaskStatus::Running => texts.running,
        TaskStatus::Paused => texts.paused,
        TaskStatus::Completed => texts.completed,
        TaskStatus::Failed => texts.failed,
        TaskStatus::Canceled => texts.canceled,
    }
}

fn tasks_page(
    site: &Site<'_>,
    rows: &[TaskRow],
    statuses: &[TaskStatus],
    next: Option<Uuid>,
) -> Markup {
    let texts = site.texts();
    let address = format!("{}/tasks", site.prefix);
    site.page(
        Some(Place::Tasks),
        texts.tasks,
        &html! {
            h1 { (texts.tasks) }
            (filter_form(site, &address, statuses))
            @if rows.is_empty() { p { (if next.is_some() { texts.none_so_far } else { texts.no_tasks }) } } @else { (table(site, rows)) }
            @if let Some(next) = next {
                p { a href=(format!("{address}?{}", query(statuses, next))) { (texts.older) } }
            }
        },
    )
}

fn query(statuses: &[TaskStatus], next: Uuid) -> String {
    let mut query = Serializer::new(String::new());
    for status in statuses {
        query.append_pair("status", status.as_str());
    }
    query.append_pair("cursor", &cursor_of(next)).finish()
}

fn filter_form(site: &Site<'_>, address: &str, statuses: &[TaskStatus]) -> Markup {
    let texts = site.texts();
    html! {
        details.filter open[!statuses.is_empty()] {
            summary { (texts.filter) }
            form method="get" action=(address) {
                div.field {
                    label for="status" { (texts.status) }
                    select #status name="status" {
                        option value="" { (texts.all) }
                        @for status in STATUSES {
                            option value=(status.as_str()) selected[statuses.contains(&status)] { (status_word(status, texts)) }
                        }
                    }
                }
                button type="submit" .second { (texts.show) }
            }
        }
    }
}

fn table(site: &Site<'_>, rows: &[TaskRow]) -> Markup {
    let texts = site.texts();
    let all = site.caller.admin;
    html! {
        table.tasks {
            thead {
                tr {
                    th scope="col" { (texts.task) }
                    th scope="col" { (texts.status) }
                    @if all { th scope="col" { (texts.owner) } }
                    th scope="col" { (texts.open) }
                    th scope="col" { (texts.updated) }
                }
            }
            tbody {
                @for row in rows {
                    tr {
                        td {
                            a href=(format!("{}/tasks/{}", site.prefix, row.task_id)) {
                                bdi { (visible(&row.agent)) } " · " bdi { (visible(&row.session_id)) }
                            }
                        }
                        td { (status_word(row.status, texts)) }
                        @if all { td { bdi { (visible(&row.user_id)) } } }
                        td { (row.open_requests) }
                        td { (moment(&row.updated_at.to_string())) }
                    }
                }
            }
        }
    }
}
