//! A child process that speaks the protocol: one line is one message. Invariant: a request gets its
//! answer, or learns that the child has ended.

use std::collections::BTreeMap;
use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{self, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::reader::{LONGEST, REPLIES};
use super::wire::{Answer, Message, is_list_change, raw_result, reply};
use crate::secret::Redactor;
use crate::tool::guard::{GREETING, Line, Order, written};
use crate::tool::shell::{Guard, end_orphans};

/// How long a child is kept without a request.
const IDLE: Duration = Duration::from_mins(10);
/// How often a child is looked at for being idle.
const LOOK: Duration = Duration::from_secs(30);
/// How long a guard may take to report its child.
const STARTING: Duration = Duration::from_secs(10);
/// How long a child may take to end: its guard ends it after five seconds.
const ENDING: Duration = Duration::from_secs(8);
/// How long a child may take to read the reply to a request of its own.
const REPLYING: Duration = Duration::from_secs(10);
/// How much of standard error is logged in a second, in bytes.
const LOGGED: usize = 4 * 1024;

const NO_GUARD: &str = "its guard could not be started";

/// A running child.
#[derive(Debug)]
pub(super) struct Child {
    input: tokio::sync::Mutex<Option<ChildStdin>>,
    shared: Arc<Shared>,
}

/// The requests that wait for their answers, by their ids.
type Waiting = BTreeMap<String, oneshot::Sender<(Answer, Option<String>)>>;

/// The parts that the reader of the child's output uses, too.
#[derive(Debug)]
struct Shared {
    /// The requests that wait, by their ids, each of which is used once.
    waiting: Mutex<Waiting>,
    used: Mutex<Instant>,
    /// Canceled once nothing more comes from the child.
    ended: CancellationToken,
    /// Canceled once nothing more is written to the child.
    closing: CancellationToken,
    /// Canceled once the guard has ended.
    gone: CancellationToken,
    changes: watch::Sender<u64>,
    /// Replies to the child's requests.
    replies: mpsc::Sender<String>,
}

/// A request that waits for its answer. It is forgotten when dropped.
pub(super) struct Pending {
    id: String,
    answer: oneshot::Receiver<(Answer, Option<String>)>,
    /// The text of the result, to the byte, once the answer came.
    pub(super) raw: Option<String>,
    shared: Arc<Shared>,
}

impl Child {
    /// Starts a child under a guard. The text of a failure holds no value of the environment.
    pub(super) async fn start(
        guard: &Guard,
        name: &str,
        order: &Order,
        changes: watch::Sender<u64>,
        log: Option<Arc<Redactor>>,
    ) -> Result<Arc<Self>, String> {
        let stderr = if log.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        };
        let mut process = guard.spawn(stderr).map_err(|_| NO_GUARD)?;
        let (Some(mut input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(NO_GUARD.to_owned());
        };
        let mut output = BufReader::new(output);
        let begun = tokio::time::timeout(STARTING, async {
            input.write_all(&written(order)?).await?;
            input.flush().await?;
            report(&mut output).await
        });
        let leader = match begun.await {
            Ok(Ok(Line::Started(leader))) => leader,
            Ok(Ok(Line::NotStarted(why))) => return Err(why),
            Ok(Ok(Line::Over { .. }) | Err(_)) | Err(_) => {
                return Err(NO_GUARD.to_owned());
            }
        };
        if let (Some(log), Some(stderr)) = (log, process.stderr.take()) {
            follow(log_lines(name.to_owned(), stderr, log));
        }
        let (replies, replying) = mpsc::channel(REPLIES);
        let shared = Arc::new(Shared {
            waiting: Mutex::default(),
            used: Mutex::new(Instant::now()),
            ended: CancellationToken::new(),
            closing: CancellationToken::new(),
            gone: CancellationToken::new(),
            changes,
            replies,
        });
        let child = Arc::new(Self {
            input: tokio::sync::Mutex::new(Some(input)),
            shared: Arc::clone(&shared),
        });
        follow(Arc::clone(&child).attend(replying));
        follow(read_all(output, (process, leader), shared));
        Ok(child)
    }

    /// Whether the child has ended, as far as is known, or is about to.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.ended.is_cancelled() || self.shared.closing.is_cancelled()
    }

    /// Registers the request with this id, before it is written.
    pub(super) fn expect(&self, id: &str) -> Pending {
        let (sender, answer) = oneshot::channel();
        self.shared.lock().insert(id.to_owned(), sender);
        Pending {
            id: id.to_owned(),
            answer,
            raw: None,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Writes one message, at the latest until `until`. If only a part of it could be written, or
    /// the future is dropped meanwhile, the child's input is closed: nothing may follow half a line.
    ///
    /// # Errors
    /// `false` if nothing was written because `may` returned false, the child had ended, or other
    /// messages took all the time; `true` if the message may have been written.
    pub(super) async fn write(
        &self,
        message: &str,
        until: Instant,
        may: impl FnOnce() -> bool,
    ) -> Result<(), bool> {
        let Ok(mut input) = timeout_at(until, self.input.lock()).await else {
            return Err(false);
        };
        self.shared.touch();
        if self.has_ended() || input.is_none() || !may() {
            return Err(false);
        }
        let Some(mut pipe) = input.take() else {
            return Err(false);
        };
        let closing = &self.shared.closing;
        let unfinished = closing.clone().drop_guard();
        let line = one_line(message);
        let wrote = async {
            pipe.write_all(line.as_bytes()).await?;
            pipe.flush().await
        };
        let wrote: Option<io::Result<()>> = tokio::select! {
            wrote = timeout_at(until, wrote) => wrote.ok(),
            () = closing.cancelled() => None,
        };
        if !matches!(wrote, Some(Ok(()))) {
            return Err(true);
        }
        unfinished.disarm();
        *input = Some(pipe);
        Ok(())
    }

    /// Closes the child's input, and waits until it has ended.
    pub(super) async fn end(&self) {
        self.dismiss().await;
        let _ = tokio::time::timeout(ENDING, self.shared.gone.cancelled()).await;
    }

    /// Ends the child when the returned guard is dropped and not disarmed.
    pub(super) fn closing_on_drop(&self) -> DropGuard {
        self.shared.closing.clone().drop_guard()
    }

    /// Closes the child's input: its guard ends it.
    pub(super) async fn dismiss(&self) {
        self.shared.closing.cancel();
        self.input.lock().await.take();
    }

    /// Replies to the child's requests, and ends the child when it is idle.
    async fn attend(self: Arc<Self>, mut replying: mpsc::Receiver<String>) {
        loop {
            let next = tokio::select! {
                () = self.shared.ended.cancelled() => return self.dismiss().await,
                () = self.shared.closing.cancelled() => return self.dismiss().await,
                next = tokio::time::timeout(LOOK, replying.recv()) => next,
            };
            if let Ok(Some(message)) = next {
                let _ = self
                    .write(&message, Instant::now() + REPLYING, || true)
                    .await;
            } else if self.shared.is_idle() {
                self.dismiss().await;
            }
        }
    }
}

impl Pending {
    /// The answer; `None` if the child ended without it.
    pub(super) async fn answer(&mut self) -> Option<Answer> {
        let (answer, raw) = tokio::select! {
            biased;
            answer = &mut self.answer => answer.ok(),
            () = self.shared.ended.cancelled() => self.answer.try_recv().ok(),
        }?;
        self.raw = raw;
        Some(answer)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.lock().remove(&self.id);
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn is_idle(&self) -> bool {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        self.lock().is_empty() && used.elapsed() >= IDLE
    }

    fn take(&self, line: &[u8]) {
        match Message::read(line) {
            Some(Message::Answer(Value::String(id), answer)) => {
                self.touch();
                // A late answer finds no request and is dropped.
                let waiting = self.lock().remove(&id);
                if let Some(waiting) = waiting {
                    let _ = waiting.send((answer, raw_result(line)));
                }
            }
            Some(Message::Request(id, method)) => {
                // A child with that many unanswered requests gets no reply to more.
                let _ = self.replies.try_send(reply(&id, &method));
            }
            Some(Message::Notification(method)) if is_list_change(&method) => {
                self.changes.send_modify(|count| *count += 1);
            }
            Some(Message::Answer(..) | Message::Notification(_)) | None => {}
        }
    }
}

/// The message as one line. A line break between the tokens of approved arguments becomes a space;
/// inside a JSON text it cannot stand. A message of several lines would be several messages.
fn one_line(message: &str) -> String {
    message.replace(['\n', '\r'], " ") + "\n"
}

#[expect(
    clippy::disallowed_methods,
    reason = "the work ends with the child, which ends with the service"
)]
fn follow(work: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(work);
}

/// Reads the guard's report about the child.
async fn report(output: &mut BufReader<ChildStdout>) -> io::Result<Line> {
    let mut line = Vec::new();
    while line != GREETING.as_bytes() {
        if !read_line(output, &mut line, LONGEST).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    read_line(output, &mut line, LONGEST).await?;
    Ok(serde_json::from_slice(&line)?)
}

/// Reads messages until the child's output ends, or until a line is too long: then the child is
/// killed.
async fn read_all(
    mut output: BufReader<ChildStdout>,
    (mut process, leader): (process::Child, i32),
    shared: Arc<Shared>,
) {
    let mut line = Vec::new();
    while let Ok(true) = read_line(&mut output, &mut line, LONGEST).await {
        shared.take(&line);
    }
    shared.ended.cancel();
    // The next child may have other tools.
    shared.changes.send_modify(|count| *count += 1);
    drop(output);
    // A guard that ended by itself has ended its group.
    if !process.wait().await.is_ok_and(|status| status.success()) {
        end_orphans(leader);
    }
    shared.gone.cancel();
}

/// Reads one line without its end. Returns false at the end of the input.
///
/// # Errors
/// Also if the line is longer than `most` bytes.
async fn read_line(
    input: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
    most: usize,
) -> io::Result<bool> {
    line.clear();
    loop {
        let available = input.fill_buf().await?;
        if available.is_empty() {
            return Ok(false);
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(available.len());
        line.extend_from_slice(available.get(..taken).unwrap_or_default());
        input.consume(end.map_or(taken, |end| end + 1));
        if line.len() > most {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if end.is_some() {
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            return Ok(true);
        }
    }
}

/// Logs what a child writes to standard error, up to a number of bytes in each second.
async fn log_lines(server: String, stderr: ChildStderr, redactor: Arc<Redactor>) {
    let (mut input, mut line) = (BufReader::new(stderr), Vec::new());
    let (mut second, mut logged) = (Instant::now(), 0);
    while let Ok(true) = read_line(&mut input, &mut line, LONGEST).await {
        if second.elapsed() >= Duration::from_secs(1) {
            (second, logged) = (Instant::now(), 0);
        }
        let shown = line.get(..line.len().min(LOGGED)).unwrap_or_default();
        logged += shown.len();
        if logged <= LOGGED {
            let text = redactor
                .clean_beginning(&String::from_utf8_lossy(shown))
                .into_owned();
            tracing::debug!(server, text, "an MCP server wrote to standard error");
        }
    }
}
