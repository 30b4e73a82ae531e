//! `GET /tasks/{task_id}`: shows a task, its open questions, and its newest events. The query
//! parameter `before` restricts the events to numbers below its value, and `after` to numbers above
//! its value. The script `pages/follow.js` uses `after` to load only the entries of new events.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Uri};
use maud::{Markup, html};
use serde_json::Value;

use super::cancel;
use super::list::status_word;
use super::timeline::TaskTimeline;
use crate::http::Http;
use crate::http::access;
use crate::http::pages::follow;
use crate::http::pages::inbox::rows::summary;
use crate::http::pages::layout::{HtmlPage, force_left_to_right, time_tag, visible};
use crate::http::pages::request::kind::kind_word;
use crate::http::pages::request::live::script_texts;
use crate::http::pages::site::{NavPage, Site};
use crate::http::pages::translations::fill;
use crate::http::pages::unless_corrupt;
use crate::http::server::caller::CurrentCaller;
use crate::http::server::operation::Op;
use crate::http::server::path_id::PathId;
use crate::http::server::problem::{Code, Problem};
use crate::http::server::query::Query;
use crate::http::wire::params::TimelineQuery;
use crate::store::{RequestRow, Subtree};
use crate::task::change::TaskRow;
use crate::task::id::TaskId;

pub(crate) const OP: Op = Op::page("get_task_page", &[Code::NotFound, Code::Invalid]);

/// The page of a task
///
/// Shows a task, its open questions and the newest of its events; with `before`, the events before
/// that number, and with `after`, no event up to that number.
#[utoipa::path(
    get, path = "/tasks/{task_id}", operation_id = "get_task_page", tag = "pages",
    params(("task_id" = String, Path, format = Uuid, description = "The task"), TimelineQuery),
    responses(HtmlPage)
)]
pub(crate) async fn get_task_page(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    PathId(id): PathId<TaskId>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let row = access::readable_task(&http, &caller, id).await?;
    let mut query = Query::from_uri(&uri);
    let (after, before) = (query.number("after"), query.number("before"));
    query.finish()?;
    let root = row.root_task_id;
    let last_event = if root == id {
        row.next_event
    } else {
        access::task(&http, &caller, root).await?.next_event
    };
    let part = Subtree { root, task: id };
    let end = before.map_or(last_event, |before| (before - 1).min(last_event));
    let site = Site::new(&http, &caller, &headers);
    let numbers = (after.unwrap_or(0), end);
    let timeline = TaskTimeline::read(&site, &http, part, numbers).await?;
    let pending = match row.open_requests {
        0 => Vec::new(),
        // If a question cannot be read, the page leaves out all questions. The timeline names the
        // unreadable entry.
        _ => unless_corrupt(http.store.pending(root, id).await)?.unwrap_or_default(),
    };
    let tree_size = http.store.tree_size(root).await?;
    let header = about(&site, &row, tree_size);
    Ok(task_page(
        &site, &http, &row, &header, &pending, &timeline, before,
    ))
}

fn task_page(
    site: &Site<'_>,
    http: &Http,
    row: &TaskRow,
    header: &Markup,
    pending: &[RequestRow],
    timeline: &TaskTimeline,
    before: Option<i64>,
) -> Response {
    let texts = site.texts();
    let (agent, status) = (visible(&row.agent), status_word(row.status, texts));
    let title = fill(texts.task_title, &[("agent", &agent), ("status", &status)]);
    let address = format!("{}/tasks/{}", site.prefix, row.task_id);
    let is_followed = before.is_none() && !row.status.is_terminal();
    let log = follow::event_log(&timeline.entries, timeline.end);
    let page = site.page(
        NavPage::Tasks,
        &force_left_to_right(title.clone()),
        &html! {
            h1 #headline { (title) }
            (header)
            @if let Some(form) = cancel::form(site, http, row) { (form) }
            div #task-questions { @if !pending.is_empty() { (questions(site, pending)) } }
            h2 { (texts.timeline) }
            p {
                @if let Some(first) = timeline.earlier_page {
                    a #earlier href=(format!("{address}?before={first}")) { (fill(texts.earlier, &[("number", &first)])) }
                    " · "
                }
                a href=(address) { (if before.is_some() { texts.newest } else { texts.look_again }) }
            }
            @if is_followed {
                (live_section(site, row, &log, &address))
            } @else {
                (log)
                (follow::script_tags(&site.prefix, &["times.js"]))
            }
        },
    );
    follow::page_with_script(page)
}

/// Renders the agent, the owner, the session, the time of creation, and the usage of the task's
/// subtree. If the whole tree has several tasks, also renders the number of tasks in the tree.
fn about(site: &Site<'_>, row: &TaskRow, tree_size: i64) -> Markup {
    let texts = site.texts();
    let (calls, tokens) = (row.model_calls, row.usage.total_tokens);
    html! {
        p.soft {
            bdi { (visible(&row.agent_path.join(" › "))) }
            " · " bdi { (fill(texts.for_user, &[("user", &visible(&row.user_id))])) }
            " · " bdi { (visible(&row.session_id)) }
            " · " (texts.asked) " " (time_tag(&row.created_at))
            " · " (fill(texts.usage, &[("calls", &calls), ("tokens", &tokens)]))
            @if tree_size > 1 { " · " (fill(texts.tree, &[("count", &tree_size)])) }
        }
        @if row.task_id != row.root_task_id {
            p { a href=(format!("{}/tasks/{}", site.prefix, row.root_task_id)) { (texts.part_of) } }
        }
    }
}

/// Renders the open questions, each with the agent that asks. Most questions are approvals, so the
/// kind is named only for the other questions.
fn questions(site: &Site<'_>, pending: &[RequestRow]) -> Markup {
    let (texts, words) = (site.texts(), site.words());
    html! {
        h2 { (texts.open_questions) }
        ul {
            @for row in pending {
                li {
                    span.exact { (summary(row, texts)) }
                    " ("
                    bdi { (visible(row.agent_path.last().map_or("", String::as_str))) }
                    @if !row.spec.kind.properties().decides_calls {
                        (words.between) (kind_word(row.spec.kind, words))
                    }
                    ") "
                    a href=(format!("{}/resume/{}", site.prefix, row.spec.request_id)) { (texts.review) }
                }
            }
        }
    }
}

/// Renders the section in which the script `pages/follow.js` adds the entries of later events to
/// the log.
fn live_section(site: &Site<'_>, row: &TaskRow, log: &Markup, address: &str) -> Markup {
    let words = site.words();
    html! {
        div #live
            data-events=(format!("{}/v1/tasks/{}/events", site.prefix, row.task_id))
            data-timeline=(address)
            data-words=(Value::Object(script_texts(words)))
        {
            (follow::live_elements(words, log))
        }
        (follow::script_tags(&site.prefix, &["times.js", "follow.js"]))
    }
}
