//! Problem documents (RFC 9457), the bodies of error responses. The function that fails gives
//! the error code, a text for people, and the members of that code. The middleware in `edge/`
//! adds the other members, because it knows the request's id and the types that the client accepts.

use axum::response::{IntoResponse, Response};
use http::header::{HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{StatusCode, Uri};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::engine::{Detail, DetailCode, FieldError, LoggedCause};
use crate::store::ReadError;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $word:literal, $status:literal, $title:literal;)*) => {
        /// The kind of error. Each code has a page under `/problems/{code}`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        #[schema(as = ProblemCode)]
        pub(crate) enum Code { $($(#[$doc])* $name),* }

        impl Code {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name),*];

            #[must_use]
            pub(crate) fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word),* }
            }

            #[must_use]
            pub(crate) fn status(self) -> StatusCode {
                let number: u16 = match self { $(Self::$name => $status),* };
                StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }

            #[must_use]
            pub(crate) fn title(self) -> &'static str {
                match self { $(Self::$name => $title),* }
            }

            /// Returns the text of the code's page, in Markdown.
            #[must_use]
            pub(crate) fn page_text(self) -> &'static str {
                match self { $(Self::$name => include_str!(concat!("../../../docs/problems/", $word, ".md"))),* }
            }
        }
    };
}

codes! {
    /// The body is not JSON, or repeats a member.
    BadJson = "bad_json", 400, "The body is not JSON";
    /// A header or an event number cannot be read, or a form repeats a field.
    BadRequest = "bad_request", 400, "The request cannot be read";
    /// The request has no key, or an unknown key.
    Unauthorized = "unauthorized", 401, "A key is needed";
    /// The caller may not do this, or the service refuses the request's host or origin.
    Forbidden = "forbidden", 403, "Not allowed";
    /// The resource does not exist, or belongs to another tenant.
    NotFound = "not_found", 404, "Not found";
    MethodNotAllowed = "method_not_allowed", 405, "This path has no such method";
    TooLarge = "too_large", 413, "The body is too large";
    UnsupportedMediaType = "unsupported_media_type", 415, "The body has an unsupported type";
    /// The request can be parsed, but it is not valid; `errors` lists every place.
    Invalid = "invalid", 422, "The request is not valid";
    IdempotencyKeyReused = "idempotency_key_reused", 422, "An earlier request had this idempotency key and a different body";
    /// The digest in the body is not the digest of the request.
    DigestMismatch = "digest_mismatch", 412, "The digest does not match";
    RequestExpired = "request_expired", 410, "The request has expired";
    /// The link of a message no longer works.
    LinkExpired = "link_expired", 410, "The link has expired";
    /// The request was withdrawn, for example because the user sent another message.
    RequestWithdrawn = "request_withdrawn", 409, "The request was withdrawn";
    /// An earlier answer decided the call or the request.
    AlreadyDecided = "already_decided", 409, "Already decided";
    /// The task is running, and accepts no message now.
    TaskRunning = "task_running", 409, "The task is running";
    /// The task waits for a human, and accepts no message now.
    TaskPaused = "task_paused", 409, "The task waits for a human";
    /// The task is Completed or Failed, and cannot be canceled.
    TaskFinal = "task_final", 409, "The task has ended";
    /// The task has not failed, and only a Failed task can be retried.
    TaskNotFailed = "task_not_failed", 409, "The task has not failed";
    /// The task belongs to a sub-agent. Such a task takes no messages and cannot be retried.
    NotARootTask = "not_a_root_task", 409, "The task is a sub-agent's";
    CallInHand = "call_in_hand", 409, "Another runner has the permit";
    /// The gate call is settled: it takes no report, or has another outcome.
    CallSettled = "call_settled", 409, "The call is settled";
    /// The task is a call at a gate. Such a task takes no messages and cannot be retried.
    NotAConversation = "not_a_conversation", 409, "The task is not a conversation";
    /// The caller, the caller's address or the service has reached a limit of concurrency or rate.
    TooMany = "too_many", 429, "Too many requests";
    /// The database does not answer, or the service is shutting down.
    Unavailable = "unavailable", 503, "Not available right now";
    /// The service has failed; the fault is not in the request.
    Internal = "internal", 500, "An internal error";
    /// In `error` of a task: the model gave no usable answer.
    ModelFailed = "model_failed", 500, "The model gave no usable answer";
    /// In `error` of a task: a limit was reached.
    LimitReached = "limit_reached", 500, "A limit was reached";
    Integrity = "integrity", 500, "The stored data is inconsistent";
    /// In `error` of a task: the configuration lacks something that the task needs.
    Configuration = "configuration", 500, "The configuration lacks something that the task needs";
    /// In `error` of a task: the task was taken over repeatedly without progress.
    NoProgress = "no_progress", 500, "The task makes no progress";
}

impl FromStr for Code {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        let mut codes = Self::ALL.iter().copied();
        codes.find(|code| code.as_str() == word).ok_or(())
    }
}

/// An error response. `edge/` renders it as a problem document or a page.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub code: Code,
    /// A text for people. If the request has a mistake, the text gives the place of the mistake and
    /// the expected value, but never the value that was sent.
    pub detail: Detail,
    /// The mistakes in the request if `code` is `Invalid`; empty for any other code.
    pub errors: Vec<FieldError>,
    /// The members of the problem document that are specific to `code`, as JSON text, so that
    /// numbers keep every digit.
    pub members: BTreeMap<String, Box<RawValue>>,
    /// The headers of a response with this problem, such as `Retry-After`.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    /// Creates a problem, with the headers that its code requires.
    #[must_use]
    pub(crate) fn new(code: Code, detail: impl Into<Detail>) -> Self {
        let headers = if code == Code::Unauthorized {
            vec![(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))]
        } else if code == Code::Unavailable || code == Code::TooMany {
            vec![(RETRY_AFTER, HeaderValue::from_static("1"))]
        } else {
            Vec::new()
        };
        Self {
            code,
            detail: detail.into(),
            errors: Vec::new(),
            members: BTreeMap::new(),
            headers,
        }
    }

    /// Sets the time after which the client may try again.
    #[must_use]
    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.headers = vec![(RETRY_AFTER, HeaderValue::from(seconds))];
        self
    }

    /// Adds a member to the problem document. A value that cannot be serialized becomes null.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl Serialize) -> Self {
        let text = to_raw_value(&value).unwrap_or_else(|_| RawValue::NULL.to_owned());
        self.members.insert(name.to_owned(), text);
        self
    }

    /// Returns the value of a member that was added with [`Problem::with`]. Long numbers in the
    /// value are rounded.
    #[must_use]
    pub(crate) fn member(&self, name: &str) -> Option<Value> {
        serde_json::from_str(self.members.get(name)?.get()).ok()
    }

    #[must_use]
    pub(crate) fn not_found() -> Self {
        Self::new(Code::NotFound, "There is nothing at this address.")
    }

    #[must_use]
    pub(crate) fn forbidden(detail: impl Into<Detail>) -> Self {
        Self::new(Code::Forbidden, detail)
    }

    #[must_use]
    pub(crate) fn bad_request(detail: impl Into<Detail>) -> Self {
        Self::new(Code::BadRequest, detail)
    }

    /// Logs the cause of an internal error, and returns the problem.
    #[must_use]
    pub(crate) fn internal(cause: impl Display) -> Self {
        LoggedCause::log(cause).into()
    }

    #[must_use]
    pub(crate) fn unavailable() -> Self {
        Self::new(Code::Unavailable, DetailCode::Unavailable)
    }

    #[must_use]
    pub(crate) fn invalid(errors: &[FieldError]) -> Self {
        Self {
            errors: errors.to_vec(),
            ..Self::new(Code::Invalid, describe(errors))
        }
    }

    /// Returns the problem `invalid` with one mistake, at the JSON pointer `pointer`.
    #[must_use]
    pub(crate) fn invalid_at(pointer: &str, detail: impl Into<Detail>) -> Self {
        Self::invalid(&[FieldError {
            pointer: pointer.to_owned(),
            detail: detail.into(),
        }])
    }

    /// Returns the problem for an error response that comes from a library, such as a 404 or 405
    /// from the router.
    #[must_use]
    pub(crate) fn from_status(status: StatusCode) -> Self {
        match status.as_u16() {
            404 => Self::not_found(),
            405 => Self::new(
                Code::MethodNotAllowed,
                "The Allow header lists the methods of this path.",
            ),
            413 => Self::new(
                Code::TooLarge,
                "The body is larger than this operation allows.",
            ),
            415 => Self::new(
                Code::UnsupportedMediaType,
                "This operation does not accept a body of this type.",
            ),
            400..=499 => Self::bad_request("The request cannot be read."),
            503 => Self::unavailable(),
            _ => Self::internal("a response has no problem"),
        }
    }

    /// Returns the members of the whole problem document; `instance` is the id of the HTTP request.
    #[must_use]
    pub(crate) fn document(
        &self,
        public_url: &str,
        instance: Uuid,
    ) -> BTreeMap<String, Box<RawValue>> {
        let document = self
            .clone()
            .with("type", type_url(public_url, self.code.as_str()))
            .with("title", self.code.title())
            .with("status", self.code.status().as_u16())
            .with("detail", self.detail.to_string())
            .with("instance", instance.to_string())
            .with("code", self.code);
        if self.code != Code::Invalid {
            return document.members;
        }
        let errors = self.errors.iter();
        let errors = errors.map(|error| {
            let detail = error.detail.to_string();
            json!({"pointer": error.pointer, "detail": detail})
        });
        document.with("errors", errors.collect::<Value>()).members
    }
}

/// Returns a sentence with the first mistake and the number of further mistakes.
fn describe(errors: &[FieldError]) -> String {
    let Some((first, more)) = errors.split_first() else {
        return "The request is not valid.".to_owned();
    };
    let expected = first.detail.to_string();
    let expected = expected.trim_end_matches('.');
    let place = if first.pointer.is_empty() {
        String::new()
    } else {
        format!(" at `{}`", first.pointer)
    };
    let rest = if more.is_empty() {
        String::new()
    } else {
        format!(" (and {} more in `errors`)", more.len())
    };
    format!("The request is not valid{place}: {expected}{rest}.")
}

/// Returns the address of the page that describes the error code `code`.
#[must_use]
pub(crate) fn type_url(public_url: &str, code: &str) -> String {
    format!("{public_url}/problems/{code}")
}

/// Returns the path of `public_url`, without a slash at the end. Links in pages begin with this
/// path and name no host, so a browser opens them at the host of the page.
#[must_use]
pub(crate) fn path_prefix(public_url: &str) -> String {
    public_url
        .parse::<Uri>()
        .map(|uri| uri.path().trim_end_matches('/').to_owned())
        .unwrap_or_default()
}

impl From<LoggedCause> for Problem {
    fn from(_: LoggedCause) -> Self {
        Self::new(Code::Internal, DetailCode::Internal)
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unavailable => Self::unavailable(),
            ReadError::Corrupt(_) => Self::internal(error),
        }
    }
}

/// Marks an error response whose body is already a page or a JSON-RPC error, so `edge/` keeps the
/// body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RenderedError;

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.code.status().into_response();
        response.headers_mut().extend(self.headers.iter().cloned());
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_serializes_as_its_word() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), json!(code.as_str()));
        }
        assert_eq!(Code::ALL.len(), 31);
    }

    #[test]
    fn problem_document_has_every_member() {
        let id = Uuid::nil();
        let document = Problem::invalid_at("/a", "a string").document("http://x", id);
        assert_eq!(
            json!(document),
            json!({
                "type": "http://x/problems/invalid", "title": "The request is not valid", "status": 422,
                "detail": "The request is not valid at `/a`: a string.", "instance": id.to_string(), "code": "invalid",
                "errors": [{ "pointer": "/a", "detail": "a string" }]
            })
        );
    }

    #[test]
    fn numbers_in_a_problem_document_keep_every_digit() {
        let result: Box<RawValue> = to_raw_value(&123_456_789_012_345_678_901_u128).unwrap();
        let problem = Problem::new(Code::AlreadyDecided, "x").with("decision", &result);
        let document = problem.document("http://x", Uuid::nil());
        let text = serde_json::to_string(&document).unwrap();
        assert!(
            text.contains(r#""decision":123456789012345678901,"#),
            "{text}"
        );
    }

    #[test]
    fn detail_of_an_invalid_request_names_its_first_error_in_words() {
        let error = |pointer: &str, detail: &str| FieldError {
            pointer: pointer.into(),
            detail: detail.into(),
        };
        let said = |errors: &[FieldError]| Problem::invalid(errors).detail.to_string();
        assert_eq!(
            said(&[error("", "`action` or `decisions`")]),
            "The request is not valid: `action` or `decisions`."
        );
        assert_eq!(
            said(&[
                error("/input", "a string"),
                error("/x", "no such member"),
                error("/y", "no such member")
            ]),
            "The request is not valid at `/input`: a string (and 2 more in `errors`)."
        );
    }

    #[test]
    fn missing_key_is_answered_with_www_authenticate() {
        let response = Problem::new(Code::Unauthorized, "x").into_response();
        assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer");
    }

    #[test]
    fn prefix_is_the_path_of_the_public_url() {
        assert_eq!(path_prefix("https://a.example/holdpoint"), "/holdpoint");
        assert_eq!(path_prefix("http://127.0.0.1:8080"), "");
    }
}
