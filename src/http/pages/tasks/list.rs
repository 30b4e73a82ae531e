//! `GET /tasks`: the tasks of `GET /v1/tasks` as a table.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Uri};
use maud::{Markup, html};
use url::form_urlencoded::Serializer;
use uuid::Uuid;

use crate::http::Http;
use crate::http::api::tasks::list::page_of_tasks;
use crate::http::pages::follow;
use crate::http::pages::layout::{HtmlPage, time_tag, visible};
use crate::http::pages::site::{NavPage, Site};
use crate::http::pages::site_texts::SiteTexts;
use crate::http::server::caller::{CurrentCaller, must_read};
use crate::http::server::operation::Op;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::query::{Query, cursor_of};
use crate::http::wire::params::{CursorQuery, TasksPageQuery};
use crate::people::Caller;
use crate::people::authorization::sees_whole_tenant;
use crate::store::TaskFilter;
use crate::task::change::TaskRow;
use crate::task::id::TaskId;
use crate::task::status::TaskStatus;

pub(crate) const OP: Op = Op::page("get_tasks_page", &[Code::Invalid]);

/// The page of the tasks
///
/// Shows the caller's root tasks, newest first; an admin sees the tasks of the whole tenant. Calls
/// at a gate are shown only if `agent` is the gate's name.
///
/// A parameter without a value counts as left out.
#[utoipa::path(
    get,
    path = "/tasks",
    operation_id = "get_tasks_page",
    tag = "pages",
    params(TasksPageQuery, CursorQuery),
    responses(HtmlPage)
)]
pub(crate) async fn get_tasks_page(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    must_read(&caller)?;
    let mut query = Query::from_uri(&uri);
    query.drop_empty();
    let own = (!sees_whole_tenant(&caller)).then(|| caller.user_id.clone());
    let agents = query.texts("agent");
    let filter = TaskFilter {
        tenant: caller.tenant.clone(),
        users: own.into_iter().collect(),
        agents,
        statuses: query.words("status", &TaskStatus::ALL, TaskStatus::as_str),
        before: query.cursor().map(TaskId),
        limit: 50,
        ..TaskFilter::default()
    };
    query.finish()?;
    let page = page_of_tasks(&http, filter.clone()).await?;
    let site = Site::new(&http, &caller, &headers);
    let next = page.next(|row| row.task_id.0);
    let gates = gates_to_choose(&http, &caller);
    let shown = tasks_page(&site, &page, &filter, &gates, next);
    Ok(follow::page_with_script(shown))
}

#[must_use]
pub(super) fn status_word(status: TaskStatus, texts: &SiteTexts) -> &'static str {
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
    filter: &TaskFilter,
    gates: &[String],
    next: Option<Uuid>,
) -> Markup {
    let texts = site.texts();
    let address = format!("{}/tasks", site.prefix);
    site.page(
        NavPage::Tasks,
        texts.tasks,
        &html! {
            h1 { (texts.tasks) }
            (filter_form(site, &address, filter, gates))
            @if rows.is_empty() { p { (if next.is_some() { texts.none_so_far } else { texts.no_tasks }) } } @else { (table(site, rows)) }
            @if let Some(next) = next {
                p { a href=(format!("{address}?{}", query(filter, next))) { (texts.older) } }
            }
            (follow::script_tags(&site.prefix, &["times.js"]))
        },
    )
}

/// Returns the names of the gates that the page offers as filters. These are the gates that are
/// open to the caller, or all gates for an admin.
fn gates_to_choose(http: &Http, caller: &Caller) -> Vec<String> {
    let gates = http.engine.agents().gates();
    let open = gates.filter(|(gate, _)| {
        sees_whole_tenant(caller)
            || gate.is_open_to(&caller.tenant, &caller.user_id, &caller.groups)
    });
    open.map(|(gate, _)| gate.name.clone()).collect()
}

fn query(filter: &TaskFilter, next: Uuid) -> String {
    let mut query = Serializer::new(String::new());
    for status in &filter.statuses {
        query.append_pair("status", status.as_str());
    }
    for agent in &filter.agents {
        query.append_pair("agent", agent);
    }
    query.append_pair("cursor", &cursor_of(next)).finish()
}

fn filter_form(site: &Site<'_>, address: &str, filter: &TaskFilter, gates: &[String]) -> Markup {
    let texts = site.texts();
    let (statuses, agents) = (&filter.statuses, &filter.agents);
    let other = agents.iter().filter(|agent| !gates.contains(agent));
    html! {
        details.filter open[!(statuses.is_empty() && agents.is_empty())] {
            summary { (texts.filter) }
            form method="get" action=(address) {
                div.field {
                    label for="status" { (texts.status) }
                    select #status name="status" {
                        option value="" { (texts.all) }
                        @for status in TaskStatus::ALL {
                            option value=(status.as_str()) selected[statuses.contains(&status)] { (status_word(status, texts)) }
                        }
                    }
                }
                @if !gates.is_empty() {
                    div.field {
                        label for="agent" { (texts.calls_at_gate) }
                        select #agent name="agent" {
                            option value="" { "–" }
                            @for gate in gates {
                                option value=(gate) selected[agents.contains(gate)] { (gate) }
                            }
                        }
                    }
                }
                @for agent in other { input type="hidden" name="agent" value=(agent); }
                button type="submit" .second { (texts.show) }
            }
        }
    }
}

fn table(site: &Site<'_>, rows: &[TaskRow]) -> Markup {
    let texts = site.texts();
    let all = sees_whole_tenant(site.caller);
    html! {
        table.tasks {
            thead {
                tr {
                    th scope="col" { (site.words().task) }
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
                                bdi { (visible(&row.agent)) } " · " (time_tag(&row.created_at))
                            }
                            " " bdi.soft { (visible(&row.session_id)) }
                        }
                        td data-label=(texts.status) { (status_word(row.status, texts)) }
                        @if all { td data-label=(texts.owner) { bdi { (visible(&row.user_id)) } } }
                        td data-label=(texts.open) { (row.open_requests) }
                        td data-label=(texts.updated) { (time_tag(&row.updated_at)) }
                    }
                }
            }
        }
    }
}
