//! A response body that reports when its bytes have passed to the connection, which sends them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Frame, SizeHint};

use crate::engine::gate::ResultDelivery;

/// A body of one chunk, and of trailers if it has any. The body calls `delivered` when the
/// connection takes the last of these. The connection asks for the trailers only after it has taken
/// the chunk.
struct DeliveredBody<D> {
    bytes: Option<Bytes>,
    trailers: Option<HeaderMap>,
    delivered: Option<D>,
}

/// Returns a body with the content `bytes`. When the connection takes the bytes, the body calls
/// [`ResultDelivery::delivered`]. If the body is dropped first, the result goes to the next client
/// that proposes the call.
pub(crate) fn delivered_body(bytes: Bytes, delivery: Option<ResultDelivery>) -> Body {
    with_trailers(bytes, None, delivery)
}

/// Like [`delivered_body`], for a body with trailers.
pub(crate) fn with_trailers(
    bytes: Bytes,
    trailers: Option<HeaderMap>,
    delivery: Option<ResultDelivery>,
) -> Body {
    let delivered = delivery.map(|delivery| || delivery.delivered());
    body(bytes, trailers, delivered)
}

fn body(
    bytes: Bytes,
    trailers: Option<HeaderMap>,
    delivered: Option<impl FnOnce() + Send + Unpin + 'static>,
) -> Body {
    Body::new(DeliveredBody {
        bytes: Some(bytes),
        trailers,
        delivered,
    })
}

impl<D: FnOnce() + Unpin> hyper::body::Body for DeliveredBody<D> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = match self.bytes.take() {
            Some(bytes) => Some(Frame::data(bytes)),
            None => self.trailers.take().map(Frame::trailers),
        };
        if self.trailers.is_none()
            && let Some(delivered) = self.delivered.take()
        {
            delivered();
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        // The headers of a response with trailers have no `Content-Length`.
        if self.trailers.is_some() {
            return SizeHint::default();
        }
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test]
    async fn body_is_delivered_once_its_bytes_are_taken_and_not_when_it_is_dropped() {
        for taken in [false, true] {
            let noted = Arc::new(AtomicBool::new(false));
            let note = Arc::clone(&noted);
            let body = body(
                Bytes::from_static(b"{}"),
                None,
                Some(move || note.store(true, Ordering::Relaxed)),
            );
            assert!(!noted.load(Ordering::Relaxed));
            if taken {
                assert_eq!(axum::body::to_bytes(body, 10).await.unwrap(), "{}");
            } else {
                drop(body);
            }
            assert_eq!(noted.load(Ordering::Relaxed), taken);
        }
    }
}
