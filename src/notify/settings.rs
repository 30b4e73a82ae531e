//! The operator's settings of messages, and the mistakes in them that no other room has to know of.

mod chat;
mod mail;
mod webhook;

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

pub(super) use self::chat::bearer;
pub use self::chat::{Slack, Teams};
pub use self::mail::{Mail, MailServer, Named, Recipients};
pub(super) use self::mail::{Relay, Security};
pub use self::webhook::{Payload, Webhook};
pub(super) use self::webhook::{address, header};
use crate::people::link::LinkSettings;
use crate::task::event_name::{CHANGES, TOLD};
use crate::task::units::{duration_text, optional_duration};
use crate::world::Mistakes;

/// The keys of an entry that say how its messages are sent. An entry has exactly one of them.
pub const CHANNELS: [&str; 4] = ["webhook", "mail", "slack", "teams"];

/// The events of an entry that names none.
const USUAL: [&str; 8] = [
    "task.paused",
    "task.completed",
    "task.failed",
    "task.canceled",
    "request.created",
    "request.decided",
    "request.expired",
    "request.withdrawn",
];
/// The prefix of the events that an entry with `groups` or `users` may name.
const OF_REQUESTS: &str = "request.";
/// The event that begins the wait for a person.
const CREATED: &str = "request.created";
/// The time between two mails to a person.
const BETWEEN_MAILS: Duration = Duration::from_mins(5);
/// The time between two messages to a room.
const IN_A_ROOM: Duration = Duration::from_mins(1);
const LONGEST_GATHERED: Duration = Duration::from_hours(24);

/// The messages that are sent about tasks and requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Notify")]
pub struct Settings {
    /// The links in messages to people. Default: messages have the URL of the page, which asks
    /// people to sign in.
    pub links: Option<LinkSettings>,
    /// The mail server. Required where an entry sends mail.
    pub mail: Option<MailServer>,
    /// The receivers.
    pub to: Vec<EntrySettings>,
}

/// One receiver, and the events of which it gets a message.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "NotifyEntry", extend("required" = ["name"]))]
pub struct EntrySettings {
    /// The name of the entry, in lists of deliveries and in metrics: 1 to 64 of `A-Z a-z 0-9 _ -`.
    pub name: String,
    /// The webhook that gets the messages. An entry has exactly one of `webhook`, `mail`, `slack` and
    /// `teams`.
    pub webhook: Option<Webhook>,
    /// The people who get a mail of each question that they may decide.
    pub mail: Option<Mail>,
    /// The channel of Slack that gets a message of each question.
    pub slack: Option<Slack>,
    /// The channel or chat of Teams that gets a message of each question.
    pub teams: Option<Teams>,
    /// The tenants whose events are sent. Required if there are several tenants.
    pub tenants: Vec<String>,
    /// The agents of root tasks whose events are sent, with those of their sub-agents. Default: every
    /// agent.
    pub agents: Vec<String>,
    /// The events that are sent by a webhook. A mail, and a message to a room, is about a question that
    /// waits.
    pub events: Vec<String>,
    /// When a question that still waits is told of. The entry then sends nothing else.
    pub when: Option<When>,
    /// The shortest time between two messages to one person or room: the first question is sent at
    /// once, and those that follow are gathered. `0s` sends a message for each question. Default: `5m`
    /// for mail, `1m` for a room; a webhook gathers nothing.
    #[serde(with = "optional_duration")]
    #[schemars(with = "Option<duration_text::Text>")]
    pub gather: Option<Duration>,
    /// Only events of requests that a member of one of these groups may decide; no events of tasks.
    pub groups: Vec<String>,
    /// Only events of requests that one of these users may decide, also as a member of a group; no
    /// events of tasks.
    pub users: Vec<String>,
}

impl Default for EntrySettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            webhook: None,
            mail: None,
            slack: None,
            teams: None,
            tenants: Vec::new(),
            agents: Vec::new(),
            events: USUAL.map(str::to_owned).to_vec(),
            when: None,
            gather: None,
            groups: Vec::new(),
            users: Vec::new(),
        }
    }
}

/// When a question that still waits is told of. Exactly one key is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct When {
    /// This time before the deadline of the question. A question without a deadline is not told of.
    #[serde(with = "optional_duration")]
    #[schemars(with = "Option<duration_text::Text>")]
    pub before_expiry: Option<Duration>,
    /// This time after the question was asked.
    #[serde(with = "optional_duration")]
    #[schemars(with = "Option<duration_text::Text>")]
    pub after: Option<Duration>,
}

impl When {
    /// The time from a question that stays open for `lasts` (`None`: without an end) to its message;
    /// `None` if there is no message.
    #[must_use]
    pub fn wait(self, lasts: Option<Duration>) -> Option<Duration> {
        match (self.before_expiry, self.after) {
            (Some(before), _) => Some(lasts?.saturating_sub(before)),
            (None, after) => after.filter(|after| lasts.is_none_or(|lasts| *after < lasts)),
        }
    }
}

impl EntrySettings {
    /// The shortest time between two messages to one person or room.
    pub(super) fn gathers(&self) -> Duration {
        let usual = if self.mail.is_some() {
            BETWEEN_MAILS
        } else if self.webhook.is_some() {
            Duration::ZERO
        } else {
            IN_A_ROOM
        };
        self.gather.unwrap_or(usual)
    }

    /// Whether the entry gets only events of requests, which is so when it names groups or users.
    pub(super) fn only_requests(&self) -> bool {
        !self.groups.is_empty() || !self.users.is_empty()
    }

    /// Whether a message tells of each new question.
    #[must_use]
    pub fn tells_of_questions(&self) -> bool {
        self.wanted().contains(CREATED)
    }

    /// The events of which messages are made.
    pub(super) fn wanted(&self) -> BTreeSet<&'static str> {
        if self.slack.as_ref().is_some_and(Slack::is_bot) {
            return CHANGES.into_iter().chain([CREATED]).collect();
        }
        if self.when.is_some() || self.webhook.is_none() {
            return BTreeSet::from([CREATED]);
        }
        let named = |event: &&str| self.events.iter().any(|name| name == event);
        let fits = |event: &&str| !self.only_requests() || event.starts_with(OF_REQUESTS);
        TOLD.into_iter().filter(named).filter(fits).collect()
    }
}

impl Settings {
    /// Finds mistakes that concern this room alone.
    pub fn check(&self, mistakes: &mut Mistakes) {
        if let Some(server) = &self.mail {
            server.check(mistakes);
        }
        for (index, entry) in self.to.iter().enumerate() {
            let at = index.to_string();
            let place = ["notify", "to", &at];
            if self
                .to
                .iter()
                .take(index)
                .any(|other| other.name == entry.name)
                && !entry.name.is_empty()
            {
                let detail = format!("`{}` is the name of an entry above, too", entry.name);
                mistakes.add(&[&place[..], &["name"]].concat(), detail);
            }
            if entry.mail.is_some() && entry.webhook.is_none() && self.mail.is_none() {
                let detail = "`notify.mail` is missing: it names the mail server";
                mistakes.add(&[&place[..], &["mail"]].concat(), detail);
            }
            events(entry, &place, mistakes);
            times(entry, &place, mistakes);
            if let Some(webhook) = &entry.webhook {
                let place = [&place[..], &["webhook"]].concat();
                webhook.check(&place, mistakes);
            }
            if let Some(slack) = &entry.slack {
                slack.check(&[&place[..], &["slack"]].concat(), mistakes);
            }
            if let Some(teams) = &entry.teams {
                teams.check(&[&place[..], &["teams"]].concat(), mistakes);
            }
        }
    }
}

fn events(entry: &EntrySettings, place: &[&str], mistakes: &mut Mistakes) {
    let place = [place, &["events"]].concat();
    if entry.events.is_empty() {
        mistakes.add(&place, "`events` is empty: leave it out for the usual ones");
    }
    let usual = entry.events == USUAL;
    if !usual && entry.when.is_some() {
        let detail =
            "an entry with `when` sends its reminders and nothing else: leave `events` out";
        return mistakes.add(&place, detail);
    }
    if !usual && entry.webhook.is_none() {
        let detail = if entry.mail.is_some() {
            "a mail is about a question that waits: leave `events` out"
        } else {
            "a room is told of questions that wait: leave `events` out"
        };
        return mistakes.add(&place, detail);
    }
    for (index, event) in entry.events.iter().enumerate() {
        let index = index.to_string();
        let place = [&place[..], &[&index]].concat();
        if !TOLD.contains(&event.as_str()) {
            let known = TOLD.map(|event| format!("`{event}`")).join(", ");
            mistakes.add(
                &place,
                format!("unknown event `{event}`; known are {known}"),
            );
        } else if entry.only_requests() && !usual && !event.starts_with(OF_REQUESTS) {
            let detail = format!(
                "`{event}` is no event of a request: an entry with `groups` or `users` gets those only"
            );
            mistakes.add(&place, detail);
        }
    }
}

fn times(entry: &EntrySettings, place: &[&str], mistakes: &mut Mistakes) {
    if let Some(when) = entry.when {
        let place = [place, &["when"]].concat();
        match (when.before_expiry, when.after) {
            (None, None) => mistakes.add(&place, "`before_expiry` or `after` is missing"),
            (Some(_), Some(_)) => {
                mistakes.add(&place, "only one of `before_expiry` and `after` may be set");
            }
            (Some(Duration::ZERO), None) | (None, Some(Duration::ZERO)) => {
                mistakes.add(&place, "expected more than 0");
            }
            (Some(_), None) | (None, Some(_)) => {}
        }
    }
    let place = [place, &["gather"]].concat();
    if entry.webhook.is_some() && entry.gather.is_some() {
        mistakes.add(&place, "a webhook gathers nothing: each event is a message");
    } else if entry.gather > Some(LONGEST_GATHERED) {
        mistakes.add(&place, "questions are gathered for `1d` at most");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reminder_waits_for_its_time_and_never_comes_where_the_question_is_over_before() {
        let [hour, day, rest] = [1, 24, 23].map(Duration::from_hours);
        let after = When {
            after: Some(hour),
            ..When::default()
        };
        assert_eq!(
            [day, hour].map(|lasts| after.wait(Some(lasts))),
            [Some(hour), None]
        );
        assert_eq!(after.wait(None), Some(hour));
        let before = When {
            before_expiry: Some(hour),
            ..When::default()
        };
        assert_eq!(before.wait(Some(day)), Some(rest));
        assert_eq!(before.wait(Some(hour / 2)), Some(Duration::ZERO), "at once");
        assert_eq!(before.wait(None), None, "it has no deadline");
    }
}
