//! Group commit: concurrent changes wait in one queue. A writer takes all waiting changes, up to a
//! limit, and commits them as one batch.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};

pub const LARGEST_BATCH: usize = 512;

pub trait Writer: Send + 'static {
    type Change: Send;
    /// The value that [`Writer::write`] returns for a change.
    type Done: Send;

    /// Commits the batch. Returns once all changes are durable, with one value for each change, in
    /// the order of the changes.
    fn write(&mut self, batch: Vec<Self::Change>) -> impl Future<Output = Vec<Self::Done>> + Send;
}

/// A change, and the channel for the writer's result.
type Queued<W> = (<W as Writer>::Change, oneshot::Sender<<W as Writer>::Done>);

/// A queue of changes from which several writers take batches.
pub struct Committer<W: Writer> {
    queue: mpsc::Sender<Queued<W>>,
}

impl<W: Writer> Committer<W> {
    /// Starts the writers. Each batch has at most `limit` changes.
    pub fn start(writers: Vec<W>, limit: usize) -> Self {
        let (queue, waiting) = mpsc::channel(8192);
        let waiting = Arc::new(Mutex::new(waiting));
        for writer in writers {
            tokio::spawn(drain(waiting.clone(), writer, limit));
        }
        Self { queue }
    }

    pub async fn commit(&self, change: W::Change) -> W::Done {
        let (done, answer) = oneshot::channel();
        let queued = self.queue.send((change, done)).await;
        assert!(queued.is_ok(), "the writers never end");
        answer.await.expect("an answer to every change")
    }
}

async fn drain<W: Writer>(
    waiting: Arc<Mutex<mpsc::Receiver<Queued<W>>>>,
    mut writer: W,
    limit: usize,
) {
    let mut batch = Vec::new();
    while waiting.lock().await.recv_many(&mut batch, limit).await > 0 {
        let (changes, waiters): (Vec<_>, Vec<_>) = batch.drain(..).unzip();
        for (done, waiter) in writer.write(changes).await.into_iter().zip(waiters) {
            // `send` fails if the client has disconnected. The change is committed even then.
            let _ = waiter.send(done);
        }
    }
}
