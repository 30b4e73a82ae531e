//! The parts that all event streams share: the client, the text that is not sent yet, and the
//! stream's deadlines. A stream reads its source only when the HTTP server asks for the next part
//! of the body, so a stream with a slow client buffers at most the text of one read.
//!
//! A stream ends when its source has no more events, when its lifetime is over, on shutdown, when
//! the caller may no longer read, and when stored data cannot be read. A task's stream also ends
//! when the database has become another server, which may lack events. While the database does not
//! answer, a stream stays open and repeats what has failed.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures_util::stream::unfold;
use http::HeaderMap;
use serde::Serialize;

use super::sse::SseBuffer;
use super::stream_limiter::StreamPermit;
use crate::http::Http;
use crate::http::server::guard::authenticate;
use crate::http::server::problem::{Code, Problem};
use crate::people::Caller;
use crate::store::ReadError;

/// The delay after which a client connects again, in milliseconds. Each stream announces the delay
/// to the client at its start.
pub(super) const RETRY_MS: u32 = 1000;
/// After this time without a write, a stream sends a comment, so that no proxy closes the
/// connection as idle.
const MAX_SILENCE: Duration = Duration::from_secs(15);
/// The interval between two checks whether the caller may still read.
pub(crate) const ACCESS_CHECK_INTERVAL: Duration = Duration::from_mins(1);
/// The delay before the repetition of a read or a check that failed because the database did not
/// answer.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Watcher {
    pub caller: Caller,
    /// The headers of the caller's HTTP request. The credentials in these headers are checked again
    /// while the stream is open.
    pub headers: HeaderMap,
    /// Whether the stream is the response to a POST. If so, a caller who may cancel the task may
    /// read the stream, even without the right to read the task.
    pub is_post_response: bool,
}

impl Watcher {
    /// Authenticates the caller again, by the keys and sessions that are valid now. Returns `None`
    /// if the credentials no longer identify the person who opened the stream.
    ///
    /// # Errors
    /// `unauthorized`, `forbidden`, or the problem of a failed database access.
    pub(super) async fn current_caller(&self, http: &Http) -> Result<Option<Caller>, Problem> {
        let before = &self.caller;
        let now = authenticate(http, &self.headers).await?;
        let same = |now: &Caller| (&now.tenant, &now.user_id) == (&before.tenant, &before.user_id);
        Ok(now.filter(same))
    }
}

/// The state of an open stream, except the source of its events.
pub(super) struct OpenStream {
    pub http: Arc<Http>,
    pub watcher: Watcher,
    pub text: SseBuffer,
    pub ended: bool,
    /// `opened_at`, `checked_at` and `last_write` are times by `Clock::uptime`.
    opened_at: Duration,
    checked_at: Duration,
    last_write: Duration,
    _permit: StreamPermit,
}

impl OpenStream {
    pub(super) fn new(http: &Arc<Http>, watcher: Watcher, permit: StreamPermit) -> Self {
        let now = http.clock.uptime();
        let mut text = SseBuffer::default();
        text.retry(RETRY_MS);
        Self {
            http: Arc::clone(http),
            watcher,
            text,
            ended: false,
            opened_at: now,
            checked_at: now,
            last_write: now,
            _permit: permit,
        }
    }

    /// Writes an event that has no number.
    ///
    /// # Errors
    /// Fails with `Corrupt` if the data cannot be serialized. Then no part of the event is written.
    pub(super) fn write(&mut self, name: &str, data: &impl Serialize) -> Result<(), ReadError> {
        self.text.event(None, name, data)
    }

    /// Waits for `news`. Returns `None` on shutdown, and when the stream's next deadline passes.
    /// The deadlines are the end of the stream's lifetime, the next check of the caller, and the
    /// end of [`MAX_SILENCE`]. Writes a comment when [`MAX_SILENCE`] has passed without a write.
    pub(super) async fn wait<T>(&mut self, news: impl Future<Output = T>) -> Option<T> {
        let check_at = self.checked_at + ACCESS_CHECK_INTERVAL;
        self.wait_until(check_at, news).await
    }

    /// Waits for [`RETRY_DELAY`] after a failure. Ends early on shutdown, at the end of the
    /// stream's lifetime, and at the end of [`MAX_SILENCE`]. A due check of the caller does not end
    /// the wait, because this check may be the step that failed.
    async fn pause(&mut self) {
        let retry_at = self.http.clock.uptime() + RETRY_DELAY;
        self.wait_until(retry_at, pending::<()>()).await;
    }

    async fn wait_until<T>(&mut self, at: Duration, news: impl Future<Output = T>) -> Option<T> {
        let now = self.http.clock.uptime();
        let next = (self.last_write + MAX_SILENCE).min(at).min(self.ends_at());
        tokio::select! {
            biased;
            () = self.http.shutdown.cancelled() => return None,
            news = news => return Some(news),
            () = self.http.clock.sleep(next.saturating_sub(now)) => {}
        }
        if self.http.clock.uptime() >= self.last_write + MAX_SILENCE {
            self.text.comment();
        }
        None
    }

    fn ends_at(&self) -> Duration {
        self.opened_at + self.http.settings.stream_life
    }

    fn is_over(&self) -> bool {
        let is_old = self.http.clock.uptime() >= self.ends_at();
        self.ended || is_old || self.http.shutdown.is_cancelled()
    }
}

/// The source of a stream's events. Each kind of stream implements this trait.
pub(super) trait EventSource: Send + Sized + 'static {
    fn stream(&mut self) -> &mut OpenStream;

    /// Writes further events, or waits until there may be further events. Is called again after
    /// [`ReadError::Unavailable`], and then goes on after the last event that it has written.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or an event cannot be decoded.
    fn advance(&mut self) -> impl Future<Output = Result<(), ReadError>> + Send;

    /// Returns whether the caller may still read, by the keys and sessions that are valid now.
    ///
    /// # Errors
    /// Fails with the problem that prevented the check.
    fn may_read(&mut self) -> impl Future<Output = Result<bool, Problem>> + Send;

    fn body(self) -> Body {
        Body::from_stream(unfold(self, async |mut source| {
            let text = next(&mut source).await?;
            Some((Ok::<_, std::convert::Infallible>(text), source))
        }))
    }
}

/// Waits for the next text to send; `None` at the end of the stream.
async fn next(source: &mut impl EventSource) -> Option<String> {
    loop {
        let stream = source.stream();
        if !stream.text.is_empty() {
            stream.last_write = stream.http.clock.uptime();
            return Some(stream.text.take());
        }
        if stream.is_over() {
            return None;
        }
        match check_and_advance(source).await {
            Ok(()) => {}
            Err(ReadError::Unavailable) => {
                let stream = source.stream();
                if stream.text.is_empty() && !stream.ended {
                    stream.pause().await;
                }
            }
            // The error may quote stored text, which must not be logged.
            Err(ReadError::Corrupt(_)) => {
                tracing::error!("an event stream was ended: stored data cannot be read");
                source.stream().ended = true;
            }
        }
    }
}

/// Calls [`EventSource::advance`]. If a check of the caller is due, makes the check first, and ends
/// the stream if the caller may no longer read. If the client has taken so long for the last text
/// that a comment is due, writes the comment and does not call `advance`: the deadline of
/// [`OpenStream::wait`] has passed already, so a read would be given up at once.
///
/// # Errors
/// Fails with the error of `advance`. Also fails with `Unavailable` if the database does not answer
/// the check. In this case, `advance` is not called, and the check stays due.
async fn check_and_advance(source: &mut impl EventSource) -> Result<(), ReadError> {
    let now = source.stream().http.clock.uptime();
    if now >= source.stream().checked_at + ACCESS_CHECK_INTERVAL {
        match source.may_read().await {
            Ok(true) => source.stream().checked_at = now,
            Err(problem) if problem.code == Code::Unavailable => {
                return Err(ReadError::Unavailable);
            }
            Ok(false) | Err(_) => {
                source.stream().ended = true;
                return Ok(());
            }
        }
    }
    let stream = source.stream();
    if now >= stream.last_write + MAX_SILENCE {
        stream.text.comment();
        return Ok(());
    }
    source.advance().await
}
