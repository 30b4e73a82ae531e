//! Waiting for a task to stop running. A commit of this process wakes at once, polling finds what other replicas
//! committed, and a service that goes down answers with what is.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::Http;
use super::problem::Problem;
use crate::task::id::TaskId;
use crate::task::status::TaskStatus;

const FIRST_POLL: Duration = Duration::from_millis(250);
const SLOWEST_POLL: Duration = Duration::from_secs(1);

/// Returns when `task` (of the tree of `root`) is not Running, when `time` is over, or when the service goes down.
///
/// # Errors
/// The database's.
pub async fn until_still(http: &Http, root: TaskId, task: TaskId, time: Duration) -> Result<(), Problem> {
    if time.is_zero() {
        return Ok(());
    }
    // Watched before it is read: what is committed in between is not missed.
    let mut news = http.store.watch(root);
    let end = Instant::now() + time;
    let mut poll = FIRST_POLL;
    loop {
        let running = http.store.task(task).await?.is_some_and(|row| row.status == TaskStatus::Running);
        let left = end.saturating_duration_since(Instant::now());
        if !running || left.is_zero() || http.shutdown.is_cancelled() {
            return Ok(());
        }
        let told = async {
            if news.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            _ = timeout(poll.min(left), told) => {}
            () = http.shutdown.cancelled() => return Ok(()),
        }
        poll = (poll * 2).min(SLOWEST_POLL);
    }
}
