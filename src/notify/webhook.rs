//! One attempt at one message: a signed POST, and what its answer means.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode};

use super::answer::Answer;
use super::entry::Hook;
use super::schedule;
use super::sign::signatures;
use crate::net::{Failure, NO_ANSWER_IN_TIME, Net, begun, next_bytes};
use crate::task::time::Time;
use crate::world::Clock;

/// How long one attempt may take.
pub(super) const WITHIN: Duration = Duration::from_secs(15);
/// How much of an answer is read, so that its connection can be used again. None of it is kept.
const READ: usize = 16 * 1024;
/// How long the reading may take.
const READING: Duration = Duration::from_millis(250);

impl Answer {
    fn of(status: StatusCode, headers: &HeaderMap, now: Time) -> Self {
        let problem = match status {
            _ if status.is_success() => "",
            StatusCode::GONE => "the receiver wants this message no more",
            _ if status.is_redirection() => "a redirect is not followed",
            _ => "no 2xx",
        };
        Self {
            status: Some(status.as_u16()),
            unwanted: status == StatusCode::GONE,
            asked: schedule::asked_for(headers, now),
            ..Self::none(problem)
        }
    }
}

/// Posts a message to a receiver.
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
    tokio::select! {
        answer = begun(request, WITHIN) => match answer {
            Ok(response) => {
                let answer = Answer::of(response.status(), response.headers(), clock.now());
                read(response).await;
                answer
            }
            Err(Failure::NotSent(problem) | Failure::Lost(problem)) => Answer::none(problem),
        },
        () = clock.sleep(WITHIN) => Answer::none(NO_ANSWER_IN_TIME),
    }
}

/// Reads the beginning of an answer, and forgets it.
async fn read(mut response: Response) {
    let mut read = 0;
    while read < READ {
        match next_bytes(&mut response, READING).await {
            Ok(Some(bytes)) => read += bytes.len(),
            Ok(None) | Err(_) => return,
        }
    }
}
