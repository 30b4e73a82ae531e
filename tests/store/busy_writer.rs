//! Keeps the writer of a store busy, so that changes wait for it and share its next batch.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use holdpoint::store::{CommitError, Store};
use holdpoint::task::change::{Change, Committed};
use holdpoint::task::id::TaskId;

use super::store_fixture::{change, fresh, new_task};

/// The time within which a writer takes a batch, even on a busy machine.
const BATCH_LIMIT: Duration = Duration::from_mins(1);

/// Commits `changes` in their order, while the only writer of the store is busy with the creation
/// of another task. Returns the size of the writer's next batch, and the results of the changes. A
/// second call for the same store fails, because a store has one observer of its batches.
pub async fn commit_while_busy(
    store: &Store,
    changes: Vec<Change>,
) -> (usize, Vec<Result<Committed, CommitError>>) {
    let (begins, sizes) = mpsc::channel();
    let busy = Arc::new(Mutex::new(()));
    let writer = Arc::clone(&busy);
    store.observe_batches(move |size| {
        let _ = begins.send(size);
        drop(writer.lock().unwrap());
    });
    let task = TaskId(fresh());
    let first = change(task, vec![new_task(task, "acme", "alice")]);
    let mut first = Box::pin(store.commit(first));
    let commits = changes
        .into_iter()
        .map(|change| Box::pin(store.commit(change)));
    let mut commits: Vec<_> = commits.collect();
    {
        // While the test holds the lock, the writer does not write the batch that it has taken, so
        // the other changes wait for the same later batch.
        let _guard = busy.lock().unwrap();
        assert!(first.as_mut().now_or_never().is_none());
        assert_eq!(sizes.recv_timeout(BATCH_LIMIT), Ok(1));
        for commit in &mut commits {
            assert!(commit.as_mut().now_or_never().is_none());
        }
    }
    let written = join_all(commits).await;
    let size = sizes.recv_timeout(BATCH_LIMIT).unwrap();
    first.await.unwrap();
    (size, written)
}
