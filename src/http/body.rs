//! The body of a POST: read once, whole, within its operation's limit; its type; its JSON. A replayed key comes before
//! all that, so reading and understanding are two steps.

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

use super::caller::Who;
use super::fields::{Errors, refuse_nul};
use super::operation::Op;
use super::problem::{Code, Problem};
use super::refusal::refused;
use super::{Http, json};
use crate::engine::{Accepted, Key};
use crate::people::Caller;
use crate::secret::seal::Body as Kept;

/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_mins(1);
/// What a page's form is sent as.
const FORM: &str = "application/x-www-form-urlencoded";

/// A POST whose body has arrived.
#[derive(Debug)]
pub struct Posted {
    /// Who sent it.
    pub caller: Caller,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub bytes: Bytes,
    /// Its `Idempotency-Key`, or why it cannot be one.
    key: Result<Option<Key>, String>,
}

impl FromRequest<Arc<Http>> for Posted {
    type Rejection = Problem;

    async fn from_request(request: Request, http: &Arc<Http>) -> Result<Self, Problem> {
        let limit = request.extensions().get::<&'static Op>().map_or(0, |op| op.body);
        let (parts, body) = request.into_parts();
        let Some(Who(caller)) = parts.extensions.get::<Who>().cloned() else { return Err(Problem::internal()) };
        let bytes = arrived(body, limit).await?;
        let key = idempotency_key(&parts.headers).map(|key| {
            key.map(|key| Key {
                path: format!("{} {}", parts.method, parts.uri.path()),
                key,
                body: Kept::new(bytes.clone(), http.settings.sealer.as_ref()),
            })
        });
        Ok(Self { caller, headers: parts.headers, bytes, key })
    }
}

async fn arrived(body: Body, limit: usize) -> Result<Bytes, Problem> {
    let slow = |_| Problem::bad_request("The body took too long to arrive.");
    timeout(PATIENCE, read(body, limit)).await.map_err(slow)?
}

async fn read(body: Body, limit: usize) -> Result<Bytes, Problem> {
    let mut stream = body.into_data_stream();
    let mut whole = BytesMut::new();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|_| Problem::bad_request("The body could not be read to its end."))?;
        if whole.len() + piece.len() > limit {
            return Err(too_large(limit));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

/// The body is larger than `limit` bytes.
#[must_use]
pub fn too_large(limit: usize) -> Problem {
    Problem::new(Code::TooLarge, format!("The body may have {limit} bytes."))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, String> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let fits =
        keys.next().is_none() && (1..=255).contains(&key.len()) && key.as_bytes().iter().all(u8::is_ascii_graphic);
    match key.to_str() {
        Ok(key) if fits => Ok(Some(key.to_owned())),
        Ok(_) | Err(_) => Err("Idempotency-Key is one header of 1 to 255 visible ASCII characters.".to_owned()),
    }
}

impl Posted {
    /// What an earlier POST with the same key did.
    ///
    /// # Errors
    /// The key was used with another body, or the caller has lost his right since.
    pub async fn replay(&self, http: &Arc<Http>) -> Result<Option<Accepted>, Problem> {
        let Ok(Some(key)) = &self.key else { return Ok(None) };
        match http.engine.replay(&self.caller, key).await {
            Ok(accepted) => Ok(accepted),
            Err(refusal) => Err(refused(http, &self.caller, refusal).await),
        }
    }

    /// Its key.
    ///
    /// # Errors
    /// `bad_request` when the header cannot be one.
    pub fn key(&self) -> Result<Option<Key>, Problem> {
        self.key.clone().map_err(Problem::bad_request)
    }

    /// Its JSON.
    ///
    /// # Errors
    /// Another type, no JSON, or a U+0000 somewhere.
    pub fn json(&self) -> Result<Value, Problem> {
        if self.bytes.is_empty() {
            return Ok(Value::Object(Map::new()));
        }
        if !self.is_type("application/json") {
            return Err(Problem::new(Code::UnsupportedMediaType, "A body needs Content-Type: application/json."));
        }
        let value = json::parse(&self.bytes).map_err(|detail| Problem::new(Code::BadJson, detail))?;
        clean(value)
    }

    /// The fields of a page's form, line ends as LF.
    ///
    /// # Errors
    /// A field sent twice, or a U+0000 somewhere.
    pub fn fields(&self) -> Result<BTreeMap<String, String>, Problem> {
        form_fields(&self.bytes)
    }

    /// The text of its JSON; an empty body is an empty object.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        if self.bytes.is_empty() { b"{}" } else { &self.bytes }
    }

    /// Whether a page's form sent it.
    #[must_use]
    pub fn is_form(&self) -> bool {
        self.is_type(FORM)
    }

    fn is_type(&self, wanted: &str) -> bool {
        is_type(&self.headers, wanted)
    }
}

/// The headers and the form of somebody who needs no key.
///
/// # Errors
/// Another type, a body that is too large or slow, a field sent twice, or a U+0000 somewhere.
pub async fn form(request: Request) -> Result<(HeaderMap, BTreeMap<String, String>), Problem> {
    let limit = request.extensions().get::<&'static Op>().map_or(0, |op| op.body);
    let (parts, body) = request.into_parts();
    let bytes = arrived(body, limit).await?;
    if !is_type(&parts.headers, FORM) {
        return Err(Problem::new(Code::UnsupportedMediaType, "The body is a form: application/x-www-form-urlencoded."));
    }
    Ok((parts.headers, form_fields(&bytes)?))
}

/// A form's fields, line ends as LF.
fn form_fields(bytes: &[u8]) -> Result<BTreeMap<String, String>, Problem> {
    let mut fields = BTreeMap::new();
    for (name, value) in url::form_urlencoded::parse(bytes) {
        if name.contains('\0') || value.contains('\0') {
            return Err(Problem::invalid_at("", "text without U+0000"));
        }
        if fields.insert(name.into_owned(), value.replace("\r\n", "\n")).is_some() {
            return Err(Problem::new(Code::BadJson, "A field is repeated."));
        }
    }
    Ok(fields)
}

fn is_type(headers: &HeaderMap, wanted: &str) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (Some(found), None) = (types.next(), types.next()) else { return false };
    let essence = found.to_str().unwrap_or("").split(';').next().unwrap_or("").trim();
    essence.eq_ignore_ascii_case(wanted)
}

fn clean(value: Value) -> Result<Value, Problem> {
    let mut errors = Errors::default();
    refuse_nul(&value, "", &mut errors);
    if errors.0.is_empty() { Ok(value) } else { Err(Problem::invalid(&errors.0)) }
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
        let caller = crate::http::sample::caller();
        Posted { caller, headers, bytes: Bytes::copy_from_slice(body.as_bytes()), key: Ok(None) }
    }

    #[test]
    fn a_body_needs_its_type_and_an_empty_one_needs_none() {
        assert_eq!(posted("", "").json().unwrap(), json!({}));
        assert_eq!(posted("text/plain", "").json().unwrap(), json!({}));
        assert!(posted("application/json; charset=utf-8", "{}").json().is_ok());
        for content_type in
            ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "multipart/form-data"]
        {
            assert_eq!(
                posted(content_type, "{}").json().unwrap_err().code,
                Code::UnsupportedMediaType,
                "{content_type}"
            );
        }
        assert_eq!(posted("application/json", "{").json().unwrap_err().code, Code::BadJson);
        assert_eq!(posted("application/json", " ").json().unwrap_err().code, Code::BadJson);
        assert_eq!(posted("application/json", r#"{"a":"\u0000"}"#).json().unwrap_err().code, Code::Invalid);
    }

    #[test]
    fn a_form_is_fields_that_stand_there_once() {
        let form = |body| posted("application/x-www-form-urlencoded", body).fields();
        let expected = [("action", "reject"), ("reason", "a\nb \u{202e}"), ("then", "")];
        assert_eq!(
            form("action=reject&reason=a%0D%0Ab+%E2%80%AE&then=").unwrap(),
            expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
        );
        assert_eq!(form("a=1&a=2").unwrap_err().code, Code::BadJson);
        assert_eq!(form("a=%00").unwrap_err().code, Code::Invalid);
        assert_eq!(form("a%00=1").unwrap_err().code, Code::Invalid);
    }

    #[test]
    fn a_key_is_one_visible_header() {
        let read = |keys: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for key in keys {
                headers.append("idempotency-key", http::HeaderValue::from_bytes(key).unwrap());
            }
            idempotency_key(&headers)
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[b"\"a\""]), Ok(Some("\"a\"".to_owned())));
        assert!(read(&[&[b'x'; 255]]).is_ok());
        for keys in [&[b"".as_slice()][..], &[b"a b"], &[&[b'x'; 256]], &["é".as_bytes()], &[b"a", b"b"]] {
            assert!(read(keys).is_err(), "{keys:?}");
        }
    }
}
