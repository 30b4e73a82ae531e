//! A body that tells when the connection has taken all of it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use crate::engine::gate::Delivery;

/// One piece of bytes, and the delivery to note once the connection has taken it.
struct DeliveredBody {
    bytes: Option<Bytes>,
    delivery: Option<Delivery>,
}

/// A body of these bytes. Dropped before the connection takes them, it delivers nothing.
pub(crate) fn delivered_body(bytes: Bytes, delivery: Option<Delivery>) -> Body {
    Body::new(DeliveredBody {
        bytes: Some(bytes),
        delivery,
    })
}

impl hyper::body::Body for DeliveredBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(bytes) = self.bytes.take() else {
            return Poll::Ready(None);
        };
        if let Some(delivery) = self.delivery.take() {
            delivery.delivered();
        }
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
