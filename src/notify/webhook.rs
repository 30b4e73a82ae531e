//! Makes one attempt at a webhook message: a signed POST.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, HeaderValue};

use super::answer::Answer;
use super::entry::Hook;
use super::exchange::exchange;
use super::sign::signatures;
use crate::net::Net;
use crate::world::Clock;

/// The maximum wait for each part of an answer's body. The body is read only so that the connection
/// can be used again.
const READING: Duration = Duration::from_millis(250);

/// Signs a message and posts it to a webhook. Status 410 ends the attempts at the message.
pub(super) async fn post(
    net: &Net,
    clock: &dyn Clock,
    hook: &Hook,
    id: &str,
    body: Vec<u8>,
) -> Answer {
    let seconds = clock.now().0.div_euclid(1_000_000);
    let mut headers = hook.headers.clone();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let signed = [
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", seconds.to_string()),
        (
            "webhook-signature",
            signatures(&hook.keys, id, seconds, &body),
        ),
    ];
    for (name, value) in signed {
        let Ok(value) = HeaderValue::from_str(&value) else {
            return Answer::none("the message could not be signed");
        };
        headers.insert(name, value);
    }
    let request = net
        .repeatable()
        .post(hook.url.clone())
        .headers(headers)
        .body(body);
    let answered = match exchange(clock, request, READING).await {
        Ok(answered) => answered,
        Err(problem) => return Answer::none(problem),
    };
    let answer = Answer::of(&answered, clock.now());
    if answered.status == StatusCode::GONE {
        return Answer {
            problem: "the receiver wants this message no more",
            unwanted: true,
            ..answer
        };
    }
    answer
}
