//! Waits until a task no longer runs. If this process commits the end or the pause of the task, the
//! wait ends at once. The wait finds commits of other replicas by polling. A wait that outlasts the
//! first poll interval also subscribes to the notifications of other replicas. A shutdown ends the
//! wait early.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::time::{Instant, timeout};

use crate::http::Http;
use crate::http::access;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::task::{AgentTask, WireTaskStatus};
use crate::people::Caller;
use crate::store::{News, StoppedTask};
use crate::task::change::TaskRow;
use crate::task::id::TaskId;
use crate::task::status::TaskStatus;

const FIRST_POLL: Duration = Duration::from_millis(250);
const SLOWEST_POLL: Duration = Duration::from_secs(1);

/// Returns the task as the caller sees it, as soon as the task is not Running, `max_wait` has
/// passed, or the service shuts down. The function reads the task's open requests after the task's
/// row. If these reads show that the task runs again, the wait continues.
///
/// # Errors
/// `not_found` if the task is gone; `unavailable` or `internal` if the task cannot be read.
pub(crate) async fn task_when_stopped(
    http: &Http,
    caller: &Caller,
    root: TaskId,
    task: TaskId,
    max_wait: Duration,
    mut news: Option<Receiver<News>>,
) -> Result<AgentTask, Problem> {
    let end = Instant::now() + max_wait;
    loop {
        let remaining = end.saturating_duration_since(Instant::now());
        let row = match when_stopped(http, root, task, remaining, news.take()).await? {
            WaitOutcome::Committed(stopped) => {
                #[cfg(failpoints)]
                http.store.compare(&stopped).await;
                let (row, requests) = (&stopped.row, &stopped.requests);
                return Ok(AgentTask::from_row(row, requests, caller, &http.settings));
            }
            WaitOutcome::Read(row) => *row,
        };
        let is_running = row.status == TaskStatus::Running;
        let task_now = access::task_with_requests(http, caller, row).await?;
        if is_running || task_now.status != WireTaskStatus::Running {
            return Ok(task_now);
        }
    }
}

enum WaitOutcome {
    /// The state of the task after the commit by which this process ended or paused the task.
    Committed(Arc<StoppedTask>),
    /// The task's row, read at the end of the wait.
    Read(Box<TaskRow>),
}

/// Returns the state of `task` (in the tree of `root`) as soon as the task is not Running,
/// `max_wait` has passed, or the service shuts down. If the wait follows a POST of the caller,
/// `news` is a subscription to the tree that began before the commit of that POST. Otherwise `news`
/// is `None`.
///
/// # Errors
/// `not_found` if the task is gone; `unavailable` or `internal` if the task cannot be read.
async fn when_stopped(
    http: &Http,
    root: TaskId,
    task: TaskId,
    max_wait: Duration,
    news: Option<Receiver<News>>,
) -> Result<WaitOutcome, Problem> {
    if max_wait.is_zero() {
        return row(http, task).await;
    }
    let follows_commit = news.is_some();
    // Subscribes before the first read, so that no commit after the read is missed.
    let mut news = news.unwrap_or_else(|| http.store.watch(root));
    // A new subscription begins with an old state, and another replica may have changed the task
    // since. A wait that follows no POST therefore ignores the `stopped` task of the old state.
    let outdated = (!follows_commit).then(|| news.borrow().commits);
    let end = Instant::now() + max_wait;
    let mut poll = FIRST_POLL;
    let mut first = true;
    let mut listener = None; // for commits of other replicas, after the first poll
    loop {
        let seen = news.borrow_and_update().clone();
        let is_current = outdated.is_none_or(|commits| seen.commits > commits);
        let is_awaited = |stopped: &Arc<StoppedTask>| is_current && stopped.row.task_id == task;
        if let Some(stopped) = seen.stopped.filter(is_awaited) {
            drop(news);
            http.store.forget(root);
            return Ok(WaitOutcome::Committed(stopped));
        }
        let known_to_run = first && task == root && seen.running == Some(true);
        first = false;
        let remaining = end.saturating_duration_since(Instant::now());
        let is_end = remaining.is_zero() || http.shutdown.is_cancelled();
        if !known_to_run || is_end {
            match row(http, task).await {
                Ok(WaitOutcome::Read(row)) if row.status == TaskStatus::Running && !is_end => {}
                // After a committed POST, the wait outlasts a short outage of the database.
                Err(problem) if follows_commit && !is_end && problem.code == Code::Unavailable => {}
                read => return read,
            }
        }
        let notified = async {
            // A commit after which the root still runs does not wake a wait for the root.
            let ended = |news: &News| {
                news.commits > seen.commits && (news.running != Some(true) || task != root)
            };
            let is_closed = news.wait_for(ended).await.is_err();
            if is_closed {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            notified = timeout(poll.min(remaining), notified) => if notified.is_err() {
                listener.get_or_insert_with(|| http.store.listen(root));
            },
            () = http.shutdown.cancelled() => return row(http, task).await,
        }
        poll = (poll * 2).min(SLOWEST_POLL);
    }
}

async fn row(http: &Http, task: TaskId) -> Result<WaitOutcome, Problem> {
    let row = http.store.task(task).await?;
    row.map(|row| WaitOutcome::Read(Box::new(row)))
        .ok_or_else(Problem::not_found)
}
