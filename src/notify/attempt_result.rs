//! The result of an attempt to send a message, as one type for all channels.

use std::time::Duration;

use reqwest::{Response, StatusCode};

use super::schedule;
use crate::net::retry_after;
use crate::store::{Attempt, NextState};
use crate::task::time::Time;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AttemptResult {
    /// The HTTP status; `None` if there was no HTTP answer.
    pub(super) status: Option<u16>,
    /// The reason of a failure, in fixed words; empty for a success.
    pub(super) problem: &'static str,
    /// Whether the receiver would refuse every further attempt. If so, the delivery ends.
    pub(super) is_permanent_failure: bool,
    /// The wait before the next attempt, if the receiver asks for one.
    pub(super) retry_after: Option<Duration>,
    /// The receiver's id of the message, with which the message can be updated later; `None` if the
    /// receiver gives no id.
    pub(super) reference: Option<String>,
}

impl AttemptResult {
    pub(super) fn success() -> Self {
        Self::without_status("")
    }

    /// Returns the result of an attempt without an HTTP status. An empty `problem` means success.
    pub(super) fn without_status(problem: &'static str) -> Self {
        Self {
            status: None,
            problem,
            is_permanent_failure: false,
            retry_after: None,
            reference: None,
        }
    }

    /// Returns the result of an attempt that got an HTTP answer. A status 410 (Gone) is a permanent
    /// failure. Any other failure is not permanent, because the receiver may recover later.
    pub(super) fn from_response(response: &Response, now: Time) -> Self {
        let code = response.status();
        let problem = match code {
            status if status.is_success() => "",
            status if status.is_redirection() => "a redirect is not followed",
            StatusCode::GONE => "the receiver no longer wants this message",
            _ => "no 2xx",
        };
        Self {
            status: Some(code.as_u16()),
            is_permanent_failure: code == StatusCode::GONE,
            retry_after: retry_after(response.headers(), now, schedule::MAX_RETRY_AFTER),
            ..Self::without_status(problem)
        }
    }

    pub(super) fn is_success(&self) -> bool {
        self.problem.is_empty()
    }

    /// Returns the record of an attempt with this result. `next` is the delivery's next state.
    pub(super) fn to_attempt(&self, next: NextState, took: Duration) -> Attempt {
        Attempt {
            next,
            http_status: self.status,
            problem: self.problem,
            retry_after: self.retry_after,
            took,
            reference: self.reference.clone(),
        }
    }
}
