//! The result of an attempt, the same for every channel.

use std::time::Duration;

use super::exchange::Answered;
use super::schedule;
use crate::net::asked_for;
use crate::store::{Attempt, Next};
use crate::task::time::Time;

/// The result of one attempt to send a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The HTTP status; `None` if there was no HTTP answer.
    pub(super) status: Option<u16>,
    /// The reason of a failure, in fixed words; empty for a success.
    pub(super) problem: &'static str,
    /// Whether the receiver would refuse every further attempt at this message, so that none is
    /// made.
    pub(super) unwanted: bool,
    /// The wait before the next attempt, if the receiver asks for one.
    pub(super) asked: Option<Duration>,
    /// The id that the receiver gave the message, with which the message can be updated later.
    pub(super) reference: Option<String>,
}

impl Answer {
    /// Returns the result of a successful attempt without an HTTP status.
    pub(super) fn taken() -> Self {
        Self::none("")
    }

    /// Returns the result of an attempt without an HTTP status. An empty `problem` is a success.
    pub(super) fn none(problem: &'static str) -> Self {
        Self {
            status: None,
            problem,
            unwanted: false,
            asked: None,
            reference: None,
        }
    }

    /// Returns the result of an HTTP answer by its status. No status ends the attempts: a receiver
    /// that is gone may come back.
    pub(super) fn of(answered: &Answered, now: Time) -> Self {
        let problem = match answered.status {
            status if status.is_success() => "",
            status if status.is_redirection() => "a redirect is not followed",
            _ => "no 2xx",
        };
        Self {
            status: Some(answered.status.as_u16()),
            asked: asked_for(&answered.headers, now, schedule::LONGEST_ASKED),
            ..Self::none(problem)
        }
    }

    pub(super) fn is_success(&self) -> bool {
        self.problem.is_empty()
    }

    /// Returns the record of an attempt with this result. `next` is the delivery's next state.
    pub(super) fn attempt(&self, next: Next, took: Duration) -> Attempt {
        Attempt {
            next,
            http_status: self.status,
            problem: self.problem,
            took,
            reference: self.reference.clone(),
        }
    }
}
