//! Waits for a task to stop running. A commit of this process wakes the wait at once. Polling finds
//! commits of other replicas; after the first poll, their announcements wake the wait, too. A
//! shutdown ends the wait early.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::time::{Instant, timeout};

use super::access;
use crate::http::Http;
use crate::http::server::problem::Problem;
use crate::http::wire::task::{AgentTask, WireTaskStatus};
use crate::people::Caller;
use crate::store::{News, Stopped};
use crate::task::change::TaskRow;
use crate::task::id::TaskId;
use crate::task::status::TaskStatus;

const FIRST_POLL: Duration = Duration::from_millis(250);
const SLOWEST_POLL: Duration = Duration::from_secs(1);

/// Returns the task as the caller sees it, once it is not Running, when `time` is over, or when the
/// service shuts down. If the task runs again before its open requests are read, the wait goes on.
///
/// # Errors
/// `not_found` if the task is gone; the database's error if it does not answer.
pub(crate) async fn task_when_stopped(
    http: &Http,
    caller: &Caller,
    root: TaskId,
    task: TaskId,
    time: Duration,
    mut news: Option<Receiver<News>>,
) -> Result<AgentTask, Problem> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let row = match when_stopped(http, root, task, left, news.take()).await? {
            Found::Committed(stopped) => {
                #[cfg(any(debug_assertions, feature = "failpoints"))]
                http.store.compare(&stopped).await;
                let (row, requests) = (&stopped.row, &stopped.requests);
                return Ok(AgentTask::of(row, requests, caller, &http.settings));
            }
            Found::Read(row) => *row,
        };
        let runs = row.status == TaskStatus::Running;
        let shown = access::task_with_requests(http, caller, row).await?;
        if runs || shown.status != WireTaskStatus::Running {
            return Ok(shown);
        }
    }
}

/// The state of a task at the end of a wait.
enum Found {
    /// A commit of this process stopped the task.
    Committed(Arc<Stopped>),
    /// The task's row, read at the end of the wait.
    Read(Box<TaskRow>),
}

/// Returns the state of `task` (in the tree of `root`) once it is not Running, when `time` is over,
/// or when the service shuts down. `news` is a subscription from before the commit that started the
/// task, if the caller has one.
///
/// # Errors
/// `not_found` if the task is gone; the database's error if it does not answer.
async fn when_stopped(
    http: &Http,
    root: TaskId,
    task: TaskId,
    time: Duration,
    news: Option<Receiver<News>>,
) -> Result<Found, Problem> {
    if time.is_zero() {
        return row(http, task).await;
    }
    // A subscription that began before the caller's own commit reports that commit or a later one.
    // Any other subscription may begin with an old commit, although another replica has committed
    // since; so the row is read first.
    let mut is_current = news.is_some();
    // Subscribes before the first read, so that no commit in between is missed.
    let mut news = news.unwrap_or_else(|| http.store.watch(root));
    let end = Instant::now() + time;
    let mut poll = FIRST_POLL;
    let mut first = true;
    // Set after the first poll: a longer wait also listens for commits of other replicas.
    let mut listener = None;
    loop {
        let seen = news.borrow_and_update().clone();
        let stopped = seen.stopped.filter(|stopped| stopped.row.task_id == task);
        if let Some(stopped) = stopped.filter(|_| is_current) {
            drop(news);
            http.store.forget(root);
            return Ok(Found::Committed(stopped));
        }
        is_current = true;
        let known_to_run = first && task == root && seen.running == Some(true);
        first = false;
        let left = end.saturating_duration_since(Instant::now());
        if !known_to_run || left.is_zero() || http.shutdown.is_cancelled() {
            let row = row(http, task).await?;
            let runs = matches!(&row, Found::Read(row) if row.status == TaskStatus::Running);
            if !runs || left.is_zero() || http.shutdown.is_cancelled() {
                return Ok(row);
            }
        }
        let told = async {
            // A commit that leaves the root running does not wake waiters on the root.
            let ended = |news: &News| {
                news.commits > seen.commits && (news.running != Some(true) || task != root)
            };
            let gone = news.wait_for(ended).await.is_err();
            if gone {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            told = timeout(poll.min(left), told) => if told.is_err() {
                listener.get_or_insert_with(|| http.store.listen(root));
            },
            () = http.shutdown.cancelled() => return row(http, task).await,
        }
        poll = (poll * 2).min(SLOWEST_POLL);
    }
}

async fn row(http: &Http, task: TaskId) -> Result<Found, Problem> {
    let row = http.store.task(task).await?;
    row.map(|row| Found::Read(Box::new(row)))
        .ok_or_else(Problem::not_found)
}
