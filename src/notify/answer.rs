//! The result of one attempt, for every channel.

use std::time::Duration;

use super::exchange::Answered;
use super::schedule;
use crate::net::asked_for;
use crate::store::{Attempt, Next};
use crate::task::time::Time;

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The status of an HTTP answer; `None` where there was none.
    pub(super) status: Option<u16>,
    /// Why the attempt failed, in fixed words; empty for a success.
    pub(super) problem: &'static str,
    /// Whether the receiver would refuse every further attempt at this message.
    pub(super) unwanted: bool,
    /// The wait before the next attempt, if the receiver asks for one.
    pub(super) asked: Option<Duration>,
    /// The receiver's id of the message, by which the message can be changed later.
    pub(super) reference: Option<String>,
}

impl Answer {
    /// The message was taken.
    pub(super) fn taken() -> Self {
        Self::none("")
    }

    /// An attempt without an HTTP status: a failure for this reason, or a success if it is empty.
    pub(super) fn none(problem: &'static str) -> Self {
        Self {
            status: None,
            problem,
            unwanted: false,
            asked: None,
            reference: None,
        }
    }

    /// The result of an HTTP answer, by its status alone. No status ends the attempts: a receiver
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

    /// The attempt that ended with this answer.
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
