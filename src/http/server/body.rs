//! The body of a POST: read once and completely, within its operation's limit, then checked for its
//! type and parsed as JSON. A replayed key is answered before parsing, so reading and parsing are
//! two steps. A large body is read when there is memory for it, and parsed off the runtime's
//! threads.

pub mod budget;

use axum::body::{Body, BodyDataStream};
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

use self::budget::{BodyBudget, Reserved};
use super::caller::CurrentCaller;
use super::fields::{Errors, refuse_nul};
use super::json;
use super::operation::Op;
use super::problem::{Code, Problem};
use crate::engine::Key;
use crate::http::Http;
use crate::people::Caller;
use crate::secret::seal::Body as Kept;
use crate::world::Clock;

/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long a large body may wait for memory: clients give up a connection that accepts nothing for
/// 30 seconds.
const ROOM: Duration = Duration::from_secs(20);
/// The content type of a page's form.
const FORM: &str = "application/x-www-form-urlencoded";
/// The largest body, in bytes, that is parsed on the runtime's threads.
const SHORT: usize = 64 * 1024;
/// The most large bodies parsed at once: each may take as much memory as 100,000 values do.
const AT_ONCE: usize = 2;

/// Parses large bodies without blocking the runtime.
#[derive(Clone, Debug)]
pub(crate) struct Parsing {
    turns: Arc<Semaphore>,
    /// The memory for large bodies that are being read or wait for their turn.
    budget: BodyBudget,
}

impl Default for Parsing {
    fn default() -> Self {
        Self::new(BodyBudget::default())
    }
}

impl Parsing {
    #[must_use]
    pub fn new(budget: BodyBudget) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            budget,
        }
    }

    /// Does `work` for a body of `bytes` bytes.
    async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        if bytes <= SHORT {
            return work();
        }
        let turn = Arc::clone(&self.turns)
            .acquire_owned()
            .await
            .map_err(|_| Problem::internal())?;
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        done.await.map_err(|_| Problem::internal())?
    }
}

/// A POST whose body has arrived.
#[derive(Debug)]
pub(crate) struct Posted {
    /// The authenticated caller.
    pub caller: Caller,
    pub headers: HeaderMap,
    pub bytes: Bytes,
    /// The `Idempotency-Key`, or why the header is malformed.
    key: Result<Option<Key>, String>,
}

impl FromRequest<Arc<Http>> for Posted {
    type Rejection = Problem;

    async fn from_request(request: Request, http: &Arc<Http>) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let Some(CurrentCaller(caller)) = parts.extensions.get::<CurrentCaller>().cloned() else {
            return Err(Problem::internal());
        };
        let bytes = arrived(http, &parts, body, Some(&caller)).await?;
        let key = idempotency_key(&parts.headers).map(|key| {
            key.map(|key| Key {
                path: format!("{} {}", parts.method, parts.uri.path()),
                key,
                body: Kept::new(bytes.clone(), http.settings.sealer.as_ref()),
            })
        });
        Ok(Self {
            caller,
            headers: parts.headers,
            bytes,
            key,
        })
    }
}

/// A body while it arrives.
struct Arriving<'h> {
    stream: BodyDataStream,
    /// The bytes received so far.
    whole: BytesMut,
    /// The most bytes that it may have.
    limit: usize,
    clock: &'h dyn Clock,
}

/// A large body, with its reservation of memory.
struct Large {
    bytes: BytesMut,
    _reserved: Reserved,
}

impl AsRef<[u8]> for Large {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the body of a request of `caller`. A short body is read at once; a large body first waits
/// for memory, and its time to arrive begins only then.
async fn arrived(
    http: &Http,
    parts: &Parts,
    body: Body,
    caller: Option<&Caller>,
) -> Result<Bytes, Problem> {
    let limit = parts
        .extensions
        .get::<&'static Op>()
        .map_or(0, |op| op.body);
    let mut body = Arriving {
        stream: body.into_data_stream(),
        whole: BytesMut::new(),
        limit,
        clock: http.clock.as_ref(),
    };
    let announced = announced(&parts.headers).filter(|length| *length > SHORT);
    if announced.is_none() && body.read(SHORT).await? {
        return Ok(body.whole.freeze());
    }
    let most = announced.unwrap_or(limit).min(limit);
    let mut reserved = tokio::select! {
        biased;
        reserved = http.parsing.budget.reserve(caller, most) => reserved.ok_or_else(Problem::internal)?,
        () = http.clock.sleep(ROOM) => return Err(full()),
        () = http.shutdown.cancelled() => return Err(Problem::unavailable()),
    };
    body.whole.reserve(most.saturating_sub(body.whole.len()));
    body.read(limit).await?;
    reserved.shrink_to(body.whole.len());
    Ok(Bytes::from_owner(Large {
        bytes: body.whole,
        _reserved: reserved,
    }))
}

impl Arriving<'_> {
    /// Reads until more than `enough` bytes have arrived. Returns whether the body ended before.
    async fn read(&mut self, enough: usize) -> Result<bool, Problem> {
        let late = self.clock.sleep(PATIENCE);
        tokio::pin!(late);
        while self.whole.len() <= enough {
            let piece = tokio::select! {
                biased;
                piece = self.stream.next() => piece,
                () = &mut late => return Err(Problem::bad_request("The body took too long to arrive.")),
            };
            let Some(piece) = piece else { return Ok(true) };
            let piece = piece
                .map_err(|_| Problem::bad_request("The body could not be read to its end."))?;
            if self.whole.len() + piece.len() > self.limit {
                return Err(too_large(self.limit));
            }
            self.whole.extend_from_slice(&piece);
        }
        Ok(false)
    }
}

/// The `Content-Length` of a request, in bytes.
pub fn announced(headers: &HeaderMap) -> Option<usize> {
    headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse().ok())
}

fn full() -> Problem {
    let detail = "The service holds as many large bodies as it keeps at once. Try again shortly.";
    Problem::new(Code::Unavailable, detail)
}

/// The problem of a body larger than `limit` bytes.
#[must_use]
pub(crate) fn too_large(limit: usize) -> Problem {
    Problem::new(Code::TooLarge, format!("The body may have {limit} bytes."))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, String> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else {
        return Ok(None);
    };
    let fits = keys.next().is_none()
        && (1..=255).contains(&key.len())
        && key.as_bytes().iter().all(u8::is_ascii_graphic);
    match key.to_str() {
        Ok(key) if fits => Ok(Some(key.to_owned())),
        Ok(_) | Err(_) => {
            Err("Idempotency-Key is one header of 1 to 255 visible ASCII characters.".to_owned())
        }
    }
}

impl Posted {
    /// Drops the body once its effect is stored: the response may wait for minutes.
    pub(crate) fn release(&mut self) {
        self.bytes = Bytes::new();
        self.key = Ok(None);
    }

    /// The idempotency key.
    ///
    /// # Errors
    /// `bad_request` when the header is malformed.
    pub fn key(&self) -> Result<Option<Key>, Problem> {
        self.key.clone().map_err(Problem::bad_request)
    }

    /// Parses the JSON and passes it to `read`, with the text it was parsed from. An empty body is
    /// an empty object.
    ///
    /// # Errors
    /// Another content type, no JSON, too many values, a U+0000 somewhere, or the errors of `read`.
    pub async fn json<T: Send + 'static>(
        &self,
        parsing: &Parsing,
        read: impl FnOnce(Value, &[u8]) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        if self.bytes.is_empty() {
            return read(Value::Object(Map::new()), b"{}");
        }
        if !self.is_type("application/json") {
            return Err(Problem::new(
                Code::UnsupportedMediaType,
                "A body needs Content-Type: application/json.",
            ));
        }
        self.understand(parsing, move |bytes| {
            read(clean(json::parse(bytes)?)?, bytes)
        })
        .await
    }

    /// Passes the bytes to `read`; for a large body, off the runtime's threads.
    ///
    /// # Errors
    /// The errors of `read`.
    pub async fn understand<T: Send + 'static>(
        &self,
        parsing: &Parsing,
        read: impl FnOnce(&[u8]) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let bytes = self.bytes.clone();
        parsing.run(bytes.len(), move || read(&bytes)).await
    }

    /// The fields of a page's form, with LF as line ends.
    ///
    /// # Errors
    /// A field sent twice, or a U+0000 somewhere.
    pub fn fields(&self) -> Result<BTreeMap<String, String>, Problem> {
        form_fields(&self.bytes)
    }

    /// Whether the body is a page's form.
    #[must_use]
    pub fn is_form(&self) -> bool {
        self.is_type(FORM)
    }

    fn is_type(&self, wanted: &str) -> bool {
        is_type(&self.headers, wanted)
    }
}

/// Reads the headers and the form of a request that needs no key.
///
/// # Errors
/// Another type, a body that is too large or slow, a field sent twice, or a U+0000 somewhere.
pub(crate) async fn form(
    http: &Http,
    request: Request,
) -> Result<(HeaderMap, BTreeMap<String, String>), Problem> {
    let (parts, body) = request.into_parts();
    let bytes = arrived(http, &parts, body, None).await?;
    if !is_type(&parts.headers, FORM) {
        return Err(Problem::new(
            Code::UnsupportedMediaType,
            "The body is a form: application/x-www-form-urlencoded.",
        ));
    }
    Ok((parts.headers, form_fields(&bytes)?))
}

/// A form's fields, with LF as line ends.
///
/// # Errors
/// A field sent twice, or a U+0000 somewhere.
pub(crate) fn form_fields(bytes: &[u8]) -> Result<BTreeMap<String, String>, Problem> {
    let mut fields = BTreeMap::new();
    for (name, value) in url::form_urlencoded::parse(bytes) {
        if name.contains('\0') || value.contains('\0') {
            return Err(Problem::invalid_at("", "text without U+0000"));
        }
        if fields
            .insert(name.into_owned(), value.replace("\r\n", "\n"))
            .is_some()
        {
            return Err(Problem::new(Code::BadJson, "A field is repeated."));
        }
    }
    Ok(fields)
}

fn is_type(headers: &HeaderMap, wanted: &str) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (Some(found), None) = (types.next(), types.next()) else {
        return false;
    };
    let essence = found
        .to_str()
        .unwrap_or("")
        .split(';')
        .next()
        .unwrap_or("")
        .trim();
    essence.eq_ignore_ascii_case(wanted)
}

fn clean(value: Value) -> Result<Value, Problem> {
    let mut errors = Errors::default();
    refuse_nul(&value, "", &mut errors);
    if errors.0.is_empty() {
        Ok(value)
    } else {
        Err(Problem::invalid(&errors.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn posted(content_type: &str, body: &str) -> Posted {
        let mut headers = HeaderMap::new();
        if !content_type.is_empty() {
            headers.insert(CONTENT_TYPE, content_type.parse().unwrap());
        }
        let caller = crate::http::openapi::sample::caller();
        Posted {
            caller,
            headers,
            bytes: Bytes::copy_from_slice(body.as_bytes()),
            key: Ok(None),
        }
    }

    async fn read(posted: &Posted) -> Result<Value, Problem> {
        posted.json(&Parsing::default(), |value, _| Ok(value)).await
    }

    #[tokio::test]
    async fn body_needs_its_content_type_unless_it_is_empty() {
        assert_eq!(read(&posted("", "")).await.unwrap(), json!({}));
        assert_eq!(read(&posted("text/plain", "")).await.unwrap(), json!({}));
        assert!(
            read(&posted("application/json; charset=utf-8", "{}"))
                .await
                .is_ok()
        );
        for content_type in [
            "",
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/jsonp",
            "multipart/form-data",
        ] {
            let refused = read(&posted(content_type, "{}")).await.unwrap_err();
            assert_eq!(refused.code, Code::UnsupportedMediaType, "{content_type}");
        }
        for (body, code) in [
            ("{", Code::BadJson),
            (" ", Code::BadJson),
            (r#"{"a":"\u0000"}"#, Code::Invalid),
        ] {
            assert_eq!(
                read(&posted("application/json", body))
                    .await
                    .unwrap_err()
                    .code,
                code,
                "{body}"
            );
        }
        let many = format!("[{}0]", "0,".repeat(json::VALUES - 1));
        let refused = read(&posted("application/json", &many)).await.unwrap_err();
        let errors = json!([{"pointer": "", "detail": "at most 100000 JSON values"}]);
        assert_eq!(
            (refused.code, &refused.members["errors"]),
            (Code::Invalid, &errors)
        );
    }

    /// The runtime of a test has one thread: only work on another thread does not block it.
    #[tokio::test]
    async fn large_bodies_are_parsed_off_the_runtime_two_at_once() {
        let parsing = Parsing::default();
        let thread = || Ok::<_, Problem>(std::thread::current().id());
        let here = std::thread::current().id();
        assert_eq!(parsing.run(SHORT, thread).await.unwrap(), here);
        assert_ne!(parsing.run(SHORT + 1, thread).await.unwrap(), here);

        let (leave, wait) = std::sync::mpsc::channel::<()>();
        let wait = Arc::new(std::sync::Mutex::new(wait));
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let mut running = tokio::task::JoinSet::new();
        for number in 0..5 {
            let (parsing, begun, wait) = (parsing.clone(), begun.clone(), Arc::clone(&wait));
            running.spawn(async move {
                let work = move || {
                    begun.send(number).unwrap();
                    wait.lock().unwrap().recv().unwrap();
                    Ok(())
                };
                parsing.run(SHORT + 1, work).await.unwrap();
            });
        }
        begins.recv().await.unwrap();
        begins.recv().await.unwrap();
        // Gives all other work time to begin.
        for _ in 0..100 {
            tokio::task::yield_now().await;
            tokio::task::spawn_blocking(|| ()).await.unwrap();
        }
        // The runtime goes on, and short bodies wait for no permit.
        assert_eq!(parsing.run(SHORT, thread).await.unwrap(), here);
        assert!(
            begins.is_empty() && parsing.turns.available_permits() == 0,
            "only two of five have begun"
        );
        for _ in 0..5 {
            leave.send(()).unwrap();
        }
        while running.join_next().await.is_some() {}
        assert_eq!(begins.len(), 3);
    }

    #[test]
    fn form_fields_may_appear_only_once() {
        let form = |body| posted("application/x-www-form-urlencoded", body).fields();
        let expected = [
            ("action", "reject"),
            ("reason", "a\nb \u{202e}"),
            ("then", ""),
        ];
        assert_eq!(
            form("action=reject&reason=a%0D%0Ab+%E2%80%AE&then=").unwrap(),
            expected
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into()
        );
        assert_eq!(form("a=1&a=2").unwrap_err().code, Code::BadJson);
        assert_eq!(form("a=%00").unwrap_err().code, Code::Invalid);
        assert_eq!(form("a%00=1").unwrap_err().code, Code::Invalid);
    }

    #[test]
    fn idempotency_key_is_one_visible_header() {
        let read = |keys: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for key in keys {
                headers.append(
                    "idempotency-key",
                    http::HeaderValue::from_bytes(key).unwrap(),
                );
            }
            idempotency_key(&headers)
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[b"\"a\""]), Ok(Some("\"a\"".to_owned())));
        assert!(read(&[&[b'x'; 255]]).is_ok());
        for keys in [
            &[b"".as_slice()][..],
            &[b"a b"],
            &[&[b'x'; 256]],
            &["é".as_bytes()],
            &[b"a", b"b"],
        ] {
            assert!(read(keys).is_err(), "{keys:?}");
        }
    }
}
