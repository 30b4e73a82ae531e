//! Reads and parses the body of a POST in two steps. [`read_body`] reads all bytes, up to the
//! operation's limit. [`PostRequest::json`] checks the content type and parses the bytes. If a POST
//! repeats an earlier POST with the same `Idempotency-Key`, the repetition is answered between the
//! two steps, and its body is not parsed. For a body over `MAX_INLINE_SIZE`, [`read_body`] waits
//! until memory is free, and the body is parsed on a blocking thread.

pub(crate) mod budget;

use axum::body::{Body, BodyDataStream};
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::budget::{BodyBudget, BodyReservation};
use super::caller::CurrentCaller;
use super::fields::{Errors, NOT_UTF8, is_encoded_utf8, refuse_nul};
use super::headers::visible_header;
use super::json;
use super::link::CurrentLink;
use super::operation::Op;
use super::problem::{Code, Problem};
use crate::engine::IdempotencyKey;
use crate::http::Http;
use crate::people::Caller;
use crate::secret::seal::DigestedBody;
use crate::task::id::TaskId;
use crate::world::Clock;

const BODY_TIMEOUT: Duration = Duration::from_mins(1);
/// The maximum time for which [`read_body`] waits until memory for a large body is free. The
/// service reads nothing during this wait. The wait is shorter than 30 seconds, because some
/// clients give up after 30 seconds without progress.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(20);
const FORM_TYPE: &str = "application/x-www-form-urlencoded";
/// The maximum size in bytes of a body that is parsed on the threads of the async runtime. For a
/// larger body, memory is reserved (`budget.rs`), and the body is parsed on a blocking thread.
const MAX_INLINE_SIZE: usize = 64 * 1024;
/// The maximum number of large bodies that are parsed at the same time. The limit bounds memory,
/// because parsing one body may build 100,000 JSON values (`json::MAX_VALUES`).
const MAX_PARSED_AT_ONCE: usize = 2;

/// Parses large bodies without blocking the runtime.
#[derive(Clone, Debug)]
pub(crate) struct BodyParser {
    permits: Arc<Semaphore>,
    budget: BodyBudget,
}

impl Default for BodyParser {
    fn default() -> Self {
        Self::new(BodyBudget::default())
    }
}

impl BodyParser {
    #[must_use]
    pub(crate) fn new(budget: BodyBudget) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(MAX_PARSED_AT_ONCE)),
            budget,
        }
    }

    /// Runs `work` for a body of `bytes` bytes, and returns the result. For a large body, `work`
    /// runs on a blocking thread.
    async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        if bytes <= MAX_INLINE_SIZE {
            return work();
        }
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(|_| Problem::internal("the body parser is closed"))?;
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        done.await
            .map_err(|_| Problem::internal("reading a body panicked"))?
    }
}

/// A POST whose body has arrived.
#[derive(Debug)]
pub(crate) struct PostRequest {
    pub caller: Caller,
    pub headers: HeaderMap,
    pub bytes: Bytes,
    /// The time at which the body had arrived.
    arrived: Instant,
    /// The `Idempotency-Key`; `None` without the header. The error says why the header is
    /// malformed.
    key: Result<Option<IdempotencyKey>, String>,
}

impl FromRequest<Arc<Http>> for PostRequest {
    type Rejection = Problem;

    async fn from_request(request: Request, http: &Arc<Http>) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let Some(CurrentCaller(caller)) = parts.extensions.get::<CurrentCaller>().cloned() else {
            return Err(Problem::internal("an operation has no caller"));
        };
        let bytes = read_body(http, &parts, body, Some(&caller), |_| None).await?;
        let arrived = Instant::now();
        let key = idempotency_key(&parts.headers).map(|key| {
            key.map(|key| IdempotencyKey {
                path: format!("{} {}", parts.method, stored_path(&parts)),
                key,
                body: DigestedBody::new(bytes.clone(), http.settings.sealer.as_ref()),
            })
        });
        Ok(Self {
            caller,
            headers: parts.headers,
            bytes,
            arrived,
            key,
        })
    }
}

struct IncomingBody<'h> {
    stream: BodyDataStream,
    received: BytesMut,
    limit: usize,
    clock: &'h dyn Clock,
}

/// The bytes of a large body. Dropping this value frees the memory that was reserved for the body.
struct LargeBody {
    bytes: BytesMut,
    _reservation: BodyReservation,
}

impl AsRef<[u8]> for LargeBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the body of a request within `BODY_TIMEOUT`. For a body of more than `MAX_INLINE_SIZE`
/// bytes, the function waits until memory is free for `caller`, and the timeout begins anew after
/// this wait. With a `Content-Length`, the wait comes before the first byte is read. Without this
/// header, the wait comes once more than `MAX_INLINE_SIZE` bytes have arrived. `size_in` then reads
/// the size of the whole body from these bytes, and a body beyond this size is too large. If
/// `size_in` returns `None`, memory is reserved for the largest body of the operation.
///
/// # Errors
/// `bad_request` if the body is too slow or incomplete; `too_large` if the body exceeds the limit;
/// `unavailable` if no memory becomes free in time or the service shuts down.
pub(crate) async fn read_body(
    http: &Http,
    parts: &Parts,
    body: Body,
    caller: Option<&Caller>,
    size_in: impl Fn(&[u8]) -> Option<usize>,
) -> Result<Bytes, Problem> {
    let limit = parts
        .extensions
        .get::<&'static Op>()
        .map_or(0, |op| op.max_body_bytes);
    let mut body = IncomingBody {
        stream: body.into_data_stream(),
        received: BytesMut::new(),
        limit,
        clock: http.clock.as_ref(),
    };
    let announced = content_length(&parts.headers).filter(|length| *length > MAX_INLINE_SIZE);
    if announced.is_none() {
        if body.read(MAX_INLINE_SIZE).await? {
            return Ok(body.received.freeze());
        }
        body.limit = size_in(&body.received).unwrap_or(limit).min(limit);
    }
    let max_bytes = announced.unwrap_or(body.limit).min(limit);
    let mut reservation = tokio::select! {
        biased;
        reservation = http.body_parser.budget.reserve(caller, max_bytes) => reservation
            .ok_or_else(|| Problem::internal("the memory for bodies is closed"))?,
        () = http.clock.sleep(MEMORY_TIMEOUT) => return Err(out_of_memory()),
        () = http.shutdown.cancelled() => return Err(Problem::unavailable()),
    };
    body.received
        .reserve(max_bytes.saturating_sub(body.received.len()));
    body.read(body.limit).await?;
    reservation.shrink_to(body.received.len());
    Ok(Bytes::from_owner(LargeBody {
        bytes: body.received,
        _reservation: reservation,
    }))
}

impl IncomingBody<'_> {
    /// Reads until more than `threshold` bytes have arrived or the body ends. Returns whether the
    /// body has ended.
    async fn read(&mut self, threshold: usize) -> Result<bool, Problem> {
        let timeout = self.clock.sleep(BODY_TIMEOUT);
        tokio::pin!(timeout);
        while self.received.len() <= threshold {
            let chunk = tokio::select! {
                biased;
                chunk = self.stream.next() => chunk,
                () = &mut timeout => return Err(Problem::bad_request("The body took too long to arrive.")),
            };
            let Some(chunk) = chunk else { return Ok(true) };
            let chunk = chunk
                .map_err(|_| Problem::bad_request("The body could not be read to its end."))?;
            if self.received.len() + chunk.len() > self.limit {
                return Err(too_large(self.limit));
            }
            self.received.extend_from_slice(&chunk);
        }
        Ok(false)
    }
}

/// Returns the `Content-Length` of a request, in bytes; `None` if the header is absent or not a
/// number.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse().ok())
}

fn out_of_memory() -> Problem {
    let detail = "The service has no memory left for another large body. Try again shortly.";
    Problem::new(Code::Unavailable, detail)
}

#[must_use]
pub(crate) fn too_large(limit: usize) -> Problem {
    Problem::new(
        Code::TooLarge,
        format!("The body may have at most {limit} bytes."),
    )
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, String> {
    visible_header(headers, "Idempotency-Key", 255)
}

/// Checks the form of the header `Idempotency-Key`, for an operation that does not use the key.
/// Every POST checks the caller's right first, then the form of this header, and then the body.
///
/// # Errors
/// `bad_request` if the header is malformed.
pub(crate) fn check_key(headers: &HeaderMap) -> Result<(), Problem> {
    let key = idempotency_key(headers);
    key.map(|_| ()).map_err(Problem::bad_request)
}

/// Returns the path that is stored with an idempotency key.
fn stored_path(parts: &Parts) -> String {
    match parts.extensions.get::<CurrentLink>() {
        Some(link) => link.stored_path.clone(),
        None => with_usual_ids(parts.uri.path()),
    }
}

/// Returns the path with each id in its usual form. An id in capitals or with percent-encoded
/// characters names the same resource, so a POST to this other spelling of the path must count as
/// a repetition of the POST to the usual path.
fn with_usual_ids(path: &str) -> String {
    let segments = path.split('/').map(|segment| {
        let decoded = percent_decode_str(segment).decode_utf8();
        let id = decoded.ok().and_then(|text| text.parse::<TaskId>().ok());
        id.map_or_else(|| segment.to_owned(), |id| id.to_string())
    });
    segments.collect::<Vec<_>>().join("/")
}

impl PostRequest {
    /// Frees the memory of the body. Drops the idempotency key, too, because the key holds the
    /// body's bytes. An operation calls this as soon as it no longer needs the body and the key,
    /// because the response may take minutes.
    pub(crate) fn release_body(&mut self) {
        self.bytes = Bytes::new();
        self.key = Ok(None);
    }

    /// Returns the caller, and frees everything else. [`PostRequest::release_body`] keeps the
    /// headers, and with them the whole buffer into which they were read. This function frees both.
    pub(crate) fn into_caller(self) -> Caller {
        self.caller
    }

    /// Returns the time that is left of `wait`, counted from the arrival of the body.
    #[must_use]
    pub(crate) fn rest_of(&self, wait: Duration) -> Duration {
        wait.saturating_sub(self.arrived.elapsed())
    }

    /// Returns the idempotency key; `None` without the header.
    ///
    /// # Errors
    /// `bad_request` when the header is malformed.
    pub(crate) fn key(&self) -> Result<Option<IdempotencyKey>, Problem> {
        self.key.clone().map_err(Problem::bad_request)
    }

    /// Parses the body as JSON, and calls `read` with the value and the body's bytes. An empty body
    /// counts as an empty object.
    ///
    /// # Errors
    /// `unsupported_media_type` if the body is not `application/json`; `bad_json` if the body is
    /// not strict JSON; `invalid` if the body has too many values or a U+0000; the errors of
    /// `read`.
    pub(crate) async fn json<T: Send + 'static>(
        &self,
        parser: &BodyParser,
        read: impl FnOnce(Value, &[u8]) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        if self.bytes.is_empty() {
            return read(Value::Object(Map::new()), b"{}");
        }
        self.read_json(parser, move |bytes| {
            read(without_nul(json::parse(bytes)?)?, bytes)
        })
        .await
    }

    /// Like [`PostRequest::json`], but leaves the member `arguments` unparsed. `read` gets the
    /// other members, the unchanged JSON text of `arguments`, and the body's bytes.
    ///
    /// # Errors
    /// As [`PostRequest::json`].
    pub(crate) async fn json_with_raw_arguments<T: Send + 'static>(
        &self,
        parser: &BodyParser,
        read: impl FnOnce(Value, Option<String>, &[u8]) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        if self.bytes.is_empty() {
            return read(Value::Object(Map::new()), None, b"{}");
        }
        self.read_json(parser, move |bytes| {
            let (rest, raw) = json::parse_except(bytes, "arguments")?;
            json::check_count(bytes)?;
            read(without_nul(rest)?, raw, bytes)
        })
        .await
    }

    /// Refuses a body that is not `application/json`. Also refuses a body with a content encoding,
    /// because a proxy that inspects bodies could decode the body differently. An empty body has no
    /// type, so it passes.
    fn check_json(&self) -> Result<(), Problem> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let unsupported = |detail| Err(Problem::new(Code::UnsupportedMediaType, detail));
        if !is_type(&self.headers, "application/json") {
            return unsupported("A body needs Content-Type: application/json.");
        }
        let mut encodings = self.headers.get_all(CONTENT_ENCODING).iter();
        if encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return unsupported("A body may not be compressed: it needs no Content-Encoding.");
        }
        Ok(())
    }

    /// Checks the content type, and calls `read` with the unparsed bytes of the body. `read` must
    /// refuse bytes that are not valid JSON.
    pub(crate) async fn read_json<T: Send + 'static>(
        &self,
        parser: &BodyParser,
        read: impl FnOnce(&[u8]) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        self.check_json()?;
        self.parse_bytes(parser, read).await
    }

    /// Calls `read` with the bytes of the body. For a large body, `read` runs on a blocking thread.
    pub(crate) async fn parse_bytes<T: Send + 'static>(
        &self,
        parser: &BodyParser,
        read: impl FnOnce(&[u8]) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let bytes = self.bytes.clone();
        parser.run(bytes.len(), move || read(&bytes)).await
    }

    /// Returns the texts of a submitted form's fields, by the fields' names (see [`form_fields`]).
    pub(crate) fn fields(&self) -> Result<BTreeMap<String, String>, Problem> {
        form_fields(&self.bytes)
    }

    #[must_use]
    pub(crate) fn is_form(&self) -> bool {
        is_type(&self.headers, FORM_TYPE)
    }
}

/// Reads a form from a client without a key. Returns the headers and the form's fields by name.
///
/// # Errors
/// `unsupported_media_type` if the body is not a form; the errors of [`read_body`], [`check_key`]
/// and [`form_fields`].
pub(crate) async fn form(
    http: &Http,
    request: Request,
) -> Result<(HeaderMap, BTreeMap<String, String>), Problem> {
    let (parts, body) = request.into_parts();
    let bytes = read_body(http, &parts, body, None, |_| None).await?;
    check_key(&parts.headers)?;
    must_be_form(&parts.headers)?;
    Ok((parts.headers, form_fields(&bytes)?))
}

pub(crate) fn must_be_form(headers: &HeaderMap) -> Result<(), Problem> {
    if is_type(headers, FORM_TYPE) {
        return Ok(());
    }
    let detail = "The body must be a form: application/x-www-form-urlencoded.";
    Err(Problem::new(Code::UnsupportedMediaType, detail))
}

/// Returns the texts of a form's fields, by the fields' names. Each CRLF becomes LF.
///
/// # Errors
/// `bad_request` if a field is repeated; `invalid` for a U+0000 or bytes that are not UTF-8.
pub(crate) fn form_fields(bytes: &[u8]) -> Result<BTreeMap<String, String>, Problem> {
    if !is_encoded_utf8(bytes) {
        return Err(Problem::invalid_at("", NOT_UTF8));
    }
    let mut fields = BTreeMap::new();
    for (name, value) in url::form_urlencoded::parse(bytes) {
        if name.contains('\0') || value.contains('\0') {
            return Err(Problem::invalid_at("", "text without U+0000"));
        }
        if fields
            .insert(name.into_owned(), value.replace("\r\n", "\n"))
            .is_some()
        {
            return Err(Problem::bad_request("The form has a field twice."));
        }
    }
    Ok(fields)
}

/// Returns whether a request has at least one `Content-Type`, and all of them are `wanted`. A
/// gateway that forwards the request may repeat the header. Different types would make the body
/// ambiguous.
fn is_type(headers: &HeaderMap, wanted: &str) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter().peekable();
    types.peek().is_some()
        && types.all(|found| {
            let essence = found.to_str().unwrap_or("").split(';').next();
            essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case(wanted))
        })
}

fn without_nul(value: Value) -> Result<Value, Problem> {
    let mut errors = Errors::default();
    refuse_nul(&value, "", &mut errors);
    if errors.0.is_empty() {
        Ok(value)
    } else {
        Err(Problem::invalid(&errors.0))
    }
}

#[cfg(test)]
mod tests;
