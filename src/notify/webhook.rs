//! Makes one attempt to send a message to a webhook, as a signed POST.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderValue};

use super::attempt_result::AttemptResult;
use super::entry::WebhookChannel;
use super::exchange::exchange;
use super::sign::signatures;
use crate::net::Net;
use crate::world::Clock;

/// The maximum wait for each part of an answer's body. The body is read so that the connection can
/// be reused.
const BODY_TIMEOUT: Duration = Duration::from_millis(250);

/// Signs a message and posts it to a webhook.
pub(super) async fn post(
    net: &Net,
    clock: &dyn Clock,
    hook: &WebhookChannel,
    id: &str,
    body: Vec<u8>,
) -> AttemptResult {
    let seconds = clock.now().0.div_euclid(1_000_000);
    let mut headers = hook.headers.clone();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let signature_headers = [
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", seconds.to_string()),
        (
            "webhook-signature",
            signatures(&hook.keys, id, seconds, &body),
        ),
    ];
    for (name, value) in signature_headers {
        let Ok(value) = HeaderValue::from_str(&value) else {
            return AttemptResult::without_status("the message could not be signed");
        };
        headers.insert(name, value);
    }
    let request = net
        .repeatable()
        .post(hook.url.clone())
        .headers(headers)
        .body(body);
    exchange(clock, request, BODY_TIMEOUT).await.0
}
