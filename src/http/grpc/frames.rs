//! The gRPC framing of unary calls. A request has one message; a response has one message and
//! trailers.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::{BufMut as _, BytesMut};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue};

use crate::engine::gate::ResultDelivery;
use crate::http::server::delivered_body::with_trailers;
use crate::http::server::headers::insert_header;
use crate::http::server::problem::Problem;

/// The maximum size of a message in bytes: a body of 1 MiB, and 64 KiB for headers and metadata.
pub(super) const MAX_MESSAGE_BYTES: usize = 1024 * 1024 + 64 * 1024;
/// The maximum size in bytes of a message that reports a result: a result of 4 MiB, for example
/// with an image, and 64 KiB for metadata.
pub(super) const MAX_REPORT_BYTES: usize = 4 * 1024 * 1024 + 64 * 1024;
/// The size of the prefix of a message, in bytes: a byte for the compression flag, and four bytes
/// for the length of the message.
pub(super) const PREFIX_BYTES: usize = 5;

const GRPC_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS_HEADER: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE_HEADER: HeaderName = HeaderName::from_static("grpc-message");

/// The gRPC status codes with which the service refuses a call. On any of these codes, a gateway
/// that fails closed denies the request that it asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrpcCode {
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// The refusal of a gRPC call: a status code, and a sentence for the operator of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrpcStatus(pub GrpcCode, pub String);

impl GrpcStatus {
    pub(super) fn new(code: GrpcCode, message: impl Into<String>) -> Self {
        Self(code, message.into())
    }

    pub(super) fn denied(message: impl Into<String>) -> Self {
        Self::new(GrpcCode::PermissionDenied, message)
    }

    pub(super) fn malformed() -> Self {
        Self::new(GrpcCode::Internal, "The message is malformed.")
    }
}

impl From<Problem> for GrpcStatus {
    fn from(problem: Problem) -> Self {
        let code = match problem.code.status().as_u16() {
            413 | 429 => GrpcCode::ResourceExhausted,
            401 => GrpcCode::Unauthenticated,
            403 => GrpcCode::PermissionDenied,
            408 | 503 => GrpcCode::Unavailable,
            _ => GrpcCode::Internal,
        };
        Self(code, problem.detail.to_string())
    }
}

/// A response message. If the message contains the result of a call, `delivery` is `Some`. After
/// the connection has taken the message, `delivery` records that the client has received the
/// result.
pub(super) struct GrpcAnswer {
    pub message: Vec<u8>,
    pub delivery: Option<ResultDelivery>,
}

impl From<Vec<u8>> for GrpcAnswer {
    fn from(message: Vec<u8>) -> Self {
        Self {
            message,
            delivery: None,
        }
    }
}

/// Returns the timeout that the client gives in `grpc-timeout`; `None` without the header.
///
/// # Errors
/// `Internal` for a malformed `grpc-timeout`.
pub(super) fn call_timeout(headers: &HeaderMap) -> Result<Option<Duration>, GrpcStatus> {
    let Some(value) = headers.get("grpc-timeout") else {
        return Ok(None);
    };
    let malformed = || GrpcStatus::new(GrpcCode::Internal, "The grpc-timeout is malformed.");
    let text = value.to_str().map_err(|_| malformed())?;
    let (digits, unit) = text
        .split_at_checked(text.len().saturating_sub(1))
        .ok_or_else(malformed)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(malformed());
    }
    let number: u64 = digits.parse().map_err(|_| malformed())?;
    Ok(Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return Err(malformed()),
    }))
}

/// Checks that the client does not compress messages.
///
/// # Errors
/// `Unimplemented` for an encoding other than `identity`.
pub(super) fn check_encoding(headers: &HeaderMap) -> Result<(), GrpcStatus> {
    let mut encodings = headers.get_all("grpc-encoding").iter();
    if encodings.all(|encoding| encoding == "identity") {
        Ok(())
    } else {
        Err(compression_refused())
    }
}

fn compression_refused() -> GrpcStatus {
    GrpcStatus::new(GrpcCode::Unimplemented, "Messages may not be compressed.")
}

/// Returns the size of the whole body in bytes, computed from the length in the prefix of its
/// message; `None` if `body` does not yet have the whole prefix.
pub(super) fn size_by_prefix(body: &[u8]) -> Option<usize> {
    let ([_, length @ ..], _) = body.split_first_chunk::<PREFIX_BYTES>()?;
    (u32::from_be_bytes(*length) as usize).checked_add(PREFIX_BYTES)
}

/// Returns the single message of a body.
///
/// # Errors
/// `ResourceExhausted` if the prefix announces more than `max_bytes` bytes; `Unimplemented` if the
/// message is compressed; `Internal` if the body is not exactly one message.
pub(super) fn single_message(body: &[u8], max_bytes: usize) -> Result<&[u8], GrpcStatus> {
    let malformed = || GrpcStatus::new(GrpcCode::Internal, "The body must be exactly one message.");
    let (prefix, message) = body
        .split_first_chunk::<PREFIX_BYTES>()
        .ok_or_else(malformed)?;
    let [compressed, length @ ..] = *prefix;
    let length = u32::from_be_bytes(length) as usize;
    match compressed {
        0 if length > max_bytes => Err(too_large(max_bytes)),
        0 if length == message.len() => Ok(message),
        1 => Err(compression_refused()),
        _ => Err(malformed()),
    }
}

fn too_large(max_bytes: usize) -> GrpcStatus {
    let detail = format!("A message has at most {max_bytes} bytes.");
    GrpcStatus::new(GrpcCode::ResourceExhausted, detail)
}

/// Builds the response to a gRPC call. A refusal is sent in the headers, without a body.
pub(super) fn respond(answer: Result<GrpcAnswer, GrpcStatus>) -> Response {
    let mut headers = HeaderMap::new();
    let body = match answer {
        Ok(GrpcAnswer { message, delivery }) => {
            let mut data = BytesMut::with_capacity(PREFIX_BYTES + message.len());
            data.put_u8(0);
            data.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
            data.extend_from_slice(&message);
            let mut trailers = HeaderMap::new();
            trailers.insert(STATUS_HEADER, HeaderValue::from_static("0"));
            with_trailers(data.freeze(), Some(trailers), delivery)
        }
        Err(GrpcStatus(code, message)) => {
            headers.insert(STATUS_HEADER, HeaderValue::from(code as u16));
            let message =
                percent_encoding::utf8_percent_encode(&message, ENCODED_CHARACTERS).to_string();
            insert_header(&mut headers, MESSAGE_HEADER, &message);
            Body::empty()
        }
    };
    let mut response = Response::new(body);
    headers.insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    *response.headers_mut() = headers;
    response
}

const ENCODED_CHARACTERS: &percent_encoding::AsciiSet = &percent_encoding::CONTROLS.add(b'%');

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::extract::Request;
    use futures_util::{StreamExt as _, poll, stream};
    use tokio::time::Instant;

    use super::*;
    use crate::http::Http;
    use crate::http::api::gate::GateSurface;
    use crate::http::grpc::{Gateway, REPORT_OP, read_message};
    use crate::http::openapi::sample;
    use crate::http::server::body::BodyParser;
    use crate::http::server::body::budget::BodyBudget;

    fn gateway(http: Http, timeout: Option<Duration>) -> Gateway {
        Gateway {
            http: Arc::new(http),
            key: HeaderMap::new(),
            key_caller: sample::caller(),
            gates: Vec::new(),
            surface: GateSurface::ExtMcp,
            started: Instant::now(),
            timeout,
        }
    }

    fn code(body: &[u8]) -> Option<GrpcCode> {
        let message = single_message(body, MAX_MESSAGE_BYTES);
        message.err().map(|status| status.0)
    }

    #[test]
    fn body_must_be_exactly_one_plain_message() {
        let body = [0, 0, 0, 0, 2, b'h', b'i'];
        assert_eq!(single_message(&body, 2), Ok(&b"hi"[..]));
        assert_eq!(single_message(&[0, 0, 0, 0, 0], 0), Ok(&b""[..]));
        assert_eq!(size_by_prefix(&body), Some(7));
        assert_eq!(size_by_prefix(&body[..4]), None);
        let internal = Some(GrpcCode::Internal);
        assert_eq!(code(&[]), internal, "no message");
        assert_eq!(code(&[0, 0, 0]), internal, "cut prefix");
        assert_eq!(code(&[0, 0, 0, 0, 2, b'h']), internal, "cut message");
        assert_eq!(
            code(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            internal,
            "two messages"
        );
        assert_eq!(code(&[2, 0, 0, 0, 0]), internal, "unknown flag");
        assert_eq!(code(&[1, 0, 0, 0, 0]), Some(GrpcCode::Unimplemented));
        let exhausted = Some(GrpcCode::ResourceExhausted);
        assert_eq!(code(&[0, 0xff, 0xff, 0xff, 0xff]), exhausted);
    }

    #[tokio::test]
    async fn large_message_waits_for_the_memory_that_its_prefix_announces() {
        let http = Http {
            body_parser: BodyParser::new(BodyBudget::new(200_000, 200_000)),
            ..crate::http::tests::http(false, &[])
        };
        let gateway = gateway(http, None);
        let read = async |body: Body| {
            let (mut parts, body) = Request::new(body).into_parts();
            parts.extensions.insert(&REPORT_OP);
            read_message(&gateway, &parts, body, MAX_REPORT_BYTES).await
        };
        let sent = |bytes: usize| {
            let mut sent = vec![0; bytes];
            sent[1..PREFIX_BYTES].copy_from_slice(&80_000_u32.to_be_bytes());
            sent
        };
        let whole = 80_000 + PREFIX_BYTES;
        let beginning = stream::iter([Ok::<_, std::io::Error>(sent(70_000))]);
        let stalled = beginning.chain(stream::pending());
        let mut first = Box::pin(read(Body::from_stream(stalled)));
        assert!(poll!(first.as_mut()).is_pending());
        let second = read(Body::from(sent(whole))).await;
        assert_eq!(second.map(|message| message.len()), Ok(80_000));
        let longer = read(Body::from(sent(whole + 1))).await;
        let code = longer.map_err(|GrpcStatus(code, _)| code);
        assert_eq!(code, Err(GrpcCode::Internal), "no single message");
    }

    #[tokio::test]
    async fn answer_is_due_before_the_deadline_and_without_a_deadline_after_8_seconds() {
        for (timeout, due_ms) in [(None, 8_000), (Some(600_000), 599_500), (Some(499), 0)] {
            let timeout = timeout.map(Duration::from_millis);
            let gateway = gateway(crate::http::tests::http(false, &[]), timeout);
            let due = gateway.answer_by() - gateway.started;
            assert_eq!(due.as_millis(), due_ms, "{timeout:?}");
        }
    }

    #[test]
    fn timeout_is_read_in_every_unit() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_static(text));
            call_timeout(&headers)
        };
        assert_eq!(call_timeout(&HeaderMap::new()), Ok(None));
        assert_eq!(of("2H"), Ok(Some(Duration::from_hours(2))));
        assert_eq!(of("99999999m"), Ok(Some(Duration::from_millis(99_999_999))));
        assert_eq!(of("7n"), Ok(Some(Duration::from_nanos(7))));
        for wrong in ["", "S", "1", "-1S", "1s", "123456789m", "1.5S"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
