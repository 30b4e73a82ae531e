//! Exchanges MCP messages with a child process over its standard input and output, one message per
//! line. Invariant: a pending request ends when its answer arrives, or when the child ends. An
//! answer that cannot be read also ends the request, if the request's id can be read.

use std::collections::BTreeMap;
use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::process::{self, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::client::spawn_background;
use super::reader::{MAX_MESSAGE_BYTES, MAX_QUEUED_REQUESTS};
use super::wire::{
    RpcAnswer, ServerMessage, is_list_change, raw_result, readable, reply, unreadable_answer_id,
};
use crate::secret::{Redactor, StreamRedactor};
use crate::task::text::cut;
use crate::tool::guard::{GREETING, GuardLine, Order, encode_order};
use crate::tool::shell::{GuardCommand, kill_orphans};
use crate::world::Locked;

/// The time after which an idle child is ended.
const IDLE_TIMEOUT: Duration = Duration::from_mins(10);
/// The interval between two checks whether the child is idle.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// How long the guard process may take to report that it has started the child.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long [`Child::end`] waits for a child to end. The guard kills the child five seconds after
/// the input is closed, so this time must be longer.
const END_TIMEOUT: Duration = Duration::from_secs(8);
/// How long a child may take to read this service's reply to a request of the child.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_LOGGED_BYTES_PER_SECOND: usize = 4 * 1024;
/// The maximum length of a line of standard error that is read as one. A longer line is read in
/// parts.
const MAX_STDERR_LINE_BYTES: u64 = 16 * 1024;
/// The maximum number of bytes of standard error that are held back because a secret may have
/// begun in them.
const MAX_HELD_STDERR_BYTES: usize = 256 * 1024;

const NO_GUARD: &str = "its guard could not be started";

/// A child process that runs under a guard. The guard is a second process, which ends the child
/// once the child's input is closed.
#[derive(Debug)]
pub(super) struct Child {
    input: tokio::sync::Mutex<Option<ChildStdin>>,
    /// Each call whose permit is decided holds a clone, until its answer or its timeout.
    pub(super) calls: Arc<()>,
    /// Whether a check has found that the child does not answer.
    pub(super) was_silent: AtomicBool,
    shared: Arc<Shared>,
}

/// Maps the id of each pending request to a channel for the answer. If the answer is a result, the
/// channel also carries the text of the result exactly as the server wrote it.
type PendingAnswers = BTreeMap<String, oneshot::Sender<(RpcAnswer, Option<String>)>>;

/// The state shared by a [`Child`], its pending requests and the reader of its output.
#[derive(Debug)]
struct Shared {
    /// The server's name in the configuration.
    server: String,
    pending_answers: Locked<PendingAnswers>,
    last_used: Locked<Instant>,
    /// Canceled once the child's output has ended.
    ended: CancellationToken,
    /// Canceled to close the child's input. Afterwards, nothing is written to the child.
    closing: CancellationToken,
    /// Canceled once the guard process, which runs the child, has ended.
    guard_ended: CancellationToken,
    changes: watch::Sender<u64>,
    /// The queue of replies to the child's own requests.
    replies: mpsc::Sender<String>,
}

/// A request that waits for its answer. Dropping a `Pending` removes the request from
/// `pending_answers`, so that a late answer is ignored.
pub(super) struct Pending {
    id: String,
    answer: oneshot::Receiver<(RpcAnswer, Option<String>)>,
    /// The result exactly as the server wrote it. `None` before the answer, or if the answer is an
    /// error.
    pub(super) raw: Option<String>,
    shared: Arc<Shared>,
}

/// Says how much of a message may have been sent, if [`Child::write`] did not complete the message.
#[derive(Debug)]
pub(super) enum WriteFailure {
    /// Nothing was written, because `may_send` returned false, the child had ended, or the writes
    /// of other messages did not end in time.
    NotSent,
    /// The child may have received a part of the message, or the whole message.
    MaybeSent,
}

impl Child {
    /// Starts a child under a guard. `changes` counts the times when the child's tools may have
    /// changed. `log` redacts the lines of the child's standard error before they are logged.
    /// Without `log`, the lines are dropped, and the metric `mcp_dropped` counts them.
    ///
    /// # Errors
    /// Fails if the child does not start. The error is the reason, and contains no value of an
    /// environment variable. The error may name the program, so the caller redacts it.
    pub(super) async fn start(
        guard: &GuardCommand,
        name: &str,
        order: &Order,
        changes: watch::Sender<u64>,
        log: Option<Arc<Redactor>>,
    ) -> Result<Arc<Self>, String> {
        let mut process = guard.spawn(Stdio::piped()).map_err(|_| NO_GUARD)?;
        let (Some(mut input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(NO_GUARD.to_owned());
        };
        let mut output = BufReader::new(output);
        let begun = tokio::time::timeout(START_TIMEOUT, async {
            input.write_all(&encode_order(order)?).await?;
            input.flush().await?;
            read_report(&mut output).await
        });
        let leader = match begun.await {
            Ok(Ok(GuardLine::Started(leader))) => leader,
            Ok(Ok(GuardLine::NotStarted(why))) => {
                let program = order.program.first().map_or("", String::as_str);
                return Err(format!("`{program}`: {why}"));
            }
            Ok(Ok(GuardLine::Over { .. }) | Err(_)) | Err(_) => {
                return Err(NO_GUARD.to_owned());
            }
        };
        if let Some(stderr) = process.stderr.take() {
            spawn_background(read_stderr(name.to_owned(), stderr, log));
        }
        let (replies, replying) = mpsc::channel(MAX_QUEUED_REQUESTS);
        let shared = Arc::new(Shared {
            server: name.to_owned(),
            pending_answers: Locked::default(),
            last_used: Locked::new(Instant::now()),
            ended: CancellationToken::new(),
            closing: CancellationToken::new(),
            guard_ended: CancellationToken::new(),
            changes,
            replies,
        });
        let child = Arc::new(Self {
            input: tokio::sync::Mutex::new(Some(input)),
            calls: Arc::default(),
            was_silent: AtomicBool::default(),
            shared: Arc::clone(&shared),
        });
        spawn_background(Arc::clone(&child).reply_until_idle(replying));
        spawn_background(read_messages(output, (process, leader), shared));
        Ok(child)
    }

    /// Whether the child's output has ended or the child's input is closed. For a moment after a
    /// crash of the child, the result may still be false.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.ended.is_cancelled() || self.shared.closing.is_cancelled()
    }

    /// Whether a call is in flight.
    pub(super) fn has_calls(&self) -> bool {
        Arc::strong_count(&self.calls) > 1
    }

    /// Registers the request `id` as pending. Call this before the request is written, so that a
    /// fast answer is not missed.
    pub(super) fn expect(&self, id: &str) -> Pending {
        let (sender, answer) = oneshot::channel();
        self.shared.touch();
        self.shared
            .pending_answers
            .lock()
            .insert(id.to_owned(), sender);
        Pending {
            id: id.to_owned(),
            answer,
            raw: None,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Writes one message. Gives up at the time `until`. Calls `may_send` right before the first
    /// byte. A write that is not completed closes the child's input, because no message may follow
    /// an incomplete line. A write whose future is dropped does the same.
    ///
    /// # Errors
    /// Fails if the message was not written completely.
    pub(super) async fn write(
        &self,
        message: &str,
        until: Instant,
        may_send: impl FnOnce() -> bool,
    ) -> Result<(), WriteFailure> {
        let Ok(mut input) = timeout_at(until, self.input.lock()).await else {
            return Err(WriteFailure::NotSent);
        };
        if self.has_ended() || input.is_none() || !may_send() {
            return Err(WriteFailure::NotSent);
        }
        let Some(mut pipe) = input.take() else {
            return Err(WriteFailure::NotSent);
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
            return Err(WriteFailure::MaybeSent);
        }
        unfinished.disarm();
        *input = Some(pipe);
        Ok(())
    }

    /// Closes the child's input. Waits at most [`END_TIMEOUT`] for the child to end.
    pub(super) async fn end(&self) {
        self.close_input().await;
        let _ = tokio::time::timeout(END_TIMEOUT, self.shared.guard_ended.cancelled()).await;
    }

    /// Returns a [`DropGuard`], whose drop closes the child's input. `disarm` prevents this.
    pub(super) fn closing_on_drop(&self) -> DropGuard {
        self.shared.closing.clone().drop_guard()
    }

    /// Closes the child's input. The guard process reacts by ending the child.
    pub(super) async fn close_input(&self) {
        self.shared.closing.cancel();
        self.input.lock().await.take();
    }

    /// Replies to the child's requests. Closes the child's input once the child is idle.
    async fn reply_until_idle(self: Arc<Self>, mut replying: mpsc::Receiver<String>) {
        let mut idle_checks = tokio::time::interval(IDLE_CHECK_INTERVAL);
        loop {
            tokio::select! {
                () = self.shared.ended.cancelled() => return self.close_input().await,
                () = self.shared.closing.cancelled() => return self.close_input().await,
                _ = idle_checks.tick() => {
                    if self.shared.is_idle() {
                        self.close_input().await;
                    }
                }
                Some(message) = replying.recv() => {
                    let end = Instant::now() + REPLY_TIMEOUT;
                    let _ = self.write(&message, end, || true).await;
                }
            }
        }
    }
}

impl Pending {
    /// Waits for the answer. Returns `None` if the child ended without an answer.
    pub(super) async fn answer(&mut self) -> Option<RpcAnswer> {
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
        self.shared.pending_answers.lock().remove(&self.id);
    }
}

impl Shared {
    fn touch(&self) {
        *self.last_used.lock() = Instant::now();
    }

    fn is_idle(&self) -> bool {
        let last_used = *self.last_used.lock();
        self.pending_answers.lock().is_empty() && last_used.elapsed() >= IDLE_TIMEOUT
    }

    fn receive(&self, line: &[u8]) {
        let line = &readable(line);
        match ServerMessage::read(line) {
            Some(ServerMessage::Answer(Value::String(id), answer)) => {
                self.settle(&id, answer, line);
            }
            Some(ServerMessage::Request(id, method)) => {
                // If the queue is full, the child's request gets no reply.
                if self.replies.try_send(reply(&id, &method)).is_err() {
                    count_dropped(&self.server, "request", 1);
                }
            }
            Some(ServerMessage::Notification(method)) if is_list_change(&method) => {
                self.changes.send_modify(|count| *count += 1);
            }
            Some(ServerMessage::Answer(..)) => count_dropped(&self.server, "answer", 1),
            Some(ServerMessage::Notification(_)) => {}
            None => match unreadable_answer_id(line) {
                // The answer cannot be read, so the request ends at once with the result `null`. No
                // method has this result, so the caller treats the answer like any other invalid
                // result.
                Some(id) => self.settle(&id, RpcAnswer::Result(Value::Null), line),
                None => count_dropped(&self.server, "unreadable", 1),
            },
        }
    }

    /// Ends the pending request `id` with its answer, which is in `line`. If the request is unknown
    /// or no longer pending, the answer is dropped.
    fn settle(&self, id: &str, answer: RpcAnswer, line: &str) {
        self.touch();
        let answer_sender = self.pending_answers.lock().remove(id);
        match answer_sender {
            Some(answer_sender) => {
                let _ = answer_sender.send((answer, raw_result(line)));
            }
            None => count_dropped(&self.server, "answer", 1),
        }
    }
}

/// Returns the message as one line that ends with a line break. Line breaks in JSON text are white
/// space, so spaces may replace them.
fn one_line(message: &str) -> String {
    message.replace(['\n', '\r'], " ") + "\n"
}

/// Skips all lines up to [`GREETING`], and reads the next line: the guard's report on the child.
async fn read_report(output: &mut BufReader<ChildStdout>) -> io::Result<GuardLine> {
    let mut line = Vec::new();
    while line != GREETING.as_bytes() {
        if !read_line(output, &mut line).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    read_line(output, &mut line).await?;
    Ok(serde_json::from_slice(&line)?)
}

/// Reads messages until the child's output ends or a line is too long. Then ends the child.
async fn read_messages(
    mut output: BufReader<ChildStdout>,
    (mut process, leader): (process::Child, i32),
    shared: Arc<Shared>,
) {
    let mut line = Vec::new();
    while let Ok(true) = read_line(&mut output, &mut line).await {
        shared.receive(&line);
    }
    shared.ended.cancel();
    // The next child may have other tools, so the end of a child counts as a change of the tools.
    shared.changes.send_modify(|count| *count += 1);
    drop(output);
    // If the guard process exits with success, it has already ended the child's process group.
    // Otherwise, processes of this group may still run, so they are killed here.
    if !process.wait().await.is_ok_and(|status| status.success()) {
        kill_orphans(leader);
    }
    shared.guard_ended.cancel();
}

/// Reads one line into `line`, without its line feed. Returns false at the end of the input.
///
/// # Errors
/// Fails if the input cannot be read, or if the line is longer than [`MAX_MESSAGE_BYTES`].
async fn read_line(
    input: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
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
        if line.len() > MAX_MESSAGE_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if end.is_some() {
            return Ok(true);
        }
    }
}

/// Counts messages or lines of a server that are dropped. `kind` is a label of the metric, so it is
/// one of a few fixed words (see docs/operations.md).
fn count_dropped(server: &str, kind: &'static str, count: usize) {
    let change = i64::try_from(count).unwrap_or(i64::MAX);
    tracing::info!(target: "holdpoint::metric", metric = "mcp_dropped", server, kind, change);
}

/// Reads a child's standard error up to its end. Otherwise the pipe would fill up, and the child
/// would block at its next write. With `log`, logs the lines; counts the lines that are not logged.
async fn read_stderr(server: String, stderr: impl AsyncRead + Unpin, log: Option<Arc<Redactor>>) {
    match log {
        Some(redactor) => log_lines(server, stderr, redactor).await,
        None => count_lines(&server, stderr).await,
    }
}

/// Counts the lines of a child's standard error. Keeps no line in memory, so that a line may have
/// any length.
async fn count_lines(server: &str, stderr: impl AsyncRead + Unpin) {
    let mut input = BufReader::new(stderr);
    loop {
        let (bytes, lines) = match input.fill_buf().await {
            Ok([]) | Err(_) => return,
            Ok(read) => {
                let pieces = read.split(|byte| *byte == b'\n').count();
                (read.len(), pieces - 1)
            }
        };
        input.consume(bytes);
        if lines > 0 {
            count_dropped(server, "stderr", lines);
        }
    }
}

/// Logs the lines of a child's standard error, up to [`MAX_LOGGED_BYTES_PER_SECOND`] bytes in a
/// second. Drops and counts the lines beyond this limit. A line longer than
/// [`MAX_STDERR_LINE_BYTES`] is read in parts, and each part counts as a line. Redacts all lines as
/// one text, because a secret may extend over several lines or parts. If the output ends in the
/// middle of a secret, does not log the beginning of this secret. If more than
/// [`MAX_HELD_STDERR_BYTES`] may be the beginning of a secret, only counts these lines and all
/// later lines, because the rest of the secret may follow.
async fn log_lines(server: String, stderr: impl AsyncRead + Unpin, redactor: Arc<Redactor>) {
    let (mut input, mut line) = (BufReader::new(stderr), Vec::new());
    let mut redacting = StreamRedactor::new(redactor);
    let (mut second_began, mut logged) = (Instant::now(), 0);
    while redacting.held().len() <= MAX_HELD_STDERR_BYTES
        && let Ok(1..) = (&mut input)
            .take(MAX_STDERR_LINE_BYTES)
            .read_until(b'\n', &mut line)
            .await
    {
        if second_began.elapsed() >= Duration::from_secs(1) {
            (second_began, logged) = (Instant::now(), 0);
        }
        // A character that ends in the next part is left for that part, so that the redactor finds
        // a secret with this character.
        let last = line.utf8_chunks().last();
        let cut_off = last.map_or(0, |last| last.invalid().len());
        let rest = line.split_off(line.len() - cut_off);
        for text in redacting.push(&String::from_utf8_lossy(&line)).lines() {
            let text = cut(text, MAX_LOGGED_BYTES_PER_SECOND);
            logged += text.len();
            if logged <= MAX_LOGGED_BYTES_PER_SECOND {
                tracing::debug!(server, text, "an MCP server wrote to standard error");
            } else {
                count_dropped(&server, "stderr", 1);
            }
        }
        line = rest;
    }
    count_lines(&server, redacting.held().as_bytes().chain(input)).await;
}

#[cfg(test)]
mod tests;
