//! The settings of messages. Checks them as far as this is possible without other sections of the
//! configuration.

mod chat;
mod mail;
mod webhook;

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

pub(super) use self::chat::bearer;
pub use self::chat::{Slack, Teams};
pub use self::mail::{Mail, MailServer, NamedRecipients, Recipients};
pub(super) use self::mail::{MailServerAddress, Security};
pub(super) use self::webhook::parse_header;
pub use self::webhook::{Payload, Webhook};
use crate::people::link::LinkSettings;
use crate::task::event_name::{NOTIFIABLE_EVENTS, REQUEST_CHANGES, REQUEST_CREATED};
use crate::task::units::{duration_text, optional_duration};
use crate::world::Mistakes;

/// The keys of an entry that set its channel. An entry must have exactly one of them.
pub const CHANNELS: [&str; 4] = ["webhook", "mail", "slack", "teams"];

const DEFAULT_EVENTS: [&str; 8] = [
    "task.paused",
    "task.completed",
    "task.failed",
    "task.canceled",
    "request.created",
    "request.decided",
    "request.expired",
    "request.withdrawn",
];
/// The prefix of the events about requests. An entry with `groups` or `users` gets no other events.
const REQUEST_EVENT_PREFIX: &str = "request.";
/// The default of `gather` for mail.
const DEFAULT_MAIL_INTERVAL: Duration = Duration::from_mins(5);
/// The default of `gather` for a room (a channel or chat of Slack or Teams).
const DEFAULT_ROOM_INTERVAL: Duration = Duration::from_mins(1);
const MAX_GATHER: Duration = Duration::from_hours(24);

/// The messages about tasks and requests, and their receivers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Notify")]
pub struct Settings {
    /// The sealed links in messages to people. Default: messages have the URL of the request's
    /// page, which asks people to sign in.
    pub links: Option<LinkSettings>,
    /// The mail server. Required if an entry sends mail.
    pub mail: Option<MailServer>,
    /// The receivers of messages.
    pub to: Vec<EntrySettings>,
}

/// A receiver of messages, with the events that the messages are about. Exactly one of `webhook`,
/// `mail`, `slack` and `teams` must be set.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "NotifyEntry", extend("required" = ["name"]))]
pub struct EntrySettings {
    /// The name of the entry, for lists of deliveries and metrics. A name has 1 to 64 characters of
    /// `A-Z a-z 0-9 _ -`.
    pub name: String,
    /// The webhook that gets the messages. An entry must have exactly one of `webhook`, `mail`,
    /// `slack` and `teams`.
    #[schemars(with = "Webhook")]
    pub webhook: Option<Webhook>,
    /// The people who get a mail about each question that they may decide.
    #[schemars(with = "Mail")]
    pub mail: Option<Mail>,
    /// The channel of Slack that gets a message about each question.
    #[schemars(with = "Slack")]
    pub slack: Option<Slack>,
    /// The channel or chat of Teams that gets a message about each question.
    #[schemars(with = "Teams")]
    pub teams: Option<Teams>,
    /// The names of tenants. The entry gets messages about the tasks of these tenants. Default: the
    /// tenant of all keys. Required if there are several tenants.
    pub tenants: Vec<String>,
    /// The names of agents. The entry gets messages about root tasks of these agents, and about the
    /// sub-agents' tasks below them. Default: every agent.
    pub agents: Vec<String>,
    /// The events that a webhook gets. Only for webhooks: mails and messages to a room are about
    /// questions that wait.
    pub events: Vec<String>,
    /// The time at which the entry sends a reminder of a question that is still open. With `when`,
    /// the entry sends nothing else.
    pub when: Option<When>,
    /// The minimum time between two messages to one person or room. The first question is sent at
    /// once; questions that follow within this time are sent as one message. `0s` sends a message
    /// for each question. Default: `5m` for mail, `1m` for a room; with `before_expiry`, at most
    /// half of its time. Not for a webhook.
    #[serde(with = "optional_duration")]
    #[schemars(with = "Option<duration_text::Text>")]
    pub gather: Option<Duration>,
    /// The names of groups. If set, the entry gets no events of tasks, and it gets only messages
    /// about requests whose approvers include one of these groups by name.
    pub groups: Vec<String>,
    /// The ids of users. If set, the entry gets no events of tasks, and it gets only messages about
    /// requests that one of these users may decide. The right to decide may also come from a group
    /// of the user.
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
            events: DEFAULT_EVENTS.map(str::to_owned).to_vec(),
            when: None,
            gather: None,
            groups: Vec::new(),
            users: Vec::new(),
        }
    }
}

/// The time at which a reminder of an open question is sent. Exactly one of the keys must be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct When {
    /// The time from the reminder to the deadline of the question. A question without a deadline
    /// gets no reminder.
    #[serde(with = "optional_duration")]
    #[schemars(with = "Option<duration_text::Text>")]
    pub before_expiry: Option<Duration>,
    /// The time from the question to the reminder.
    #[serde(with = "optional_duration")]
    #[schemars(with = "Option<duration_text::Text>")]
    pub after: Option<Duration>,
}

impl When {
    /// Returns the time from a question to its reminder; `None` if no reminder is sent.
    /// `time_to_deadline` is the time from the question to its deadline; `None` without a deadline.
    #[must_use]
    pub fn reminder_delay(self, time_to_deadline: Option<Duration>) -> Option<Duration> {
        match (self.before_expiry, self.after) {
            (Some(before), _) => Some(time_to_deadline?.saturating_sub(before)),
            (None, after) => after.filter(|after| {
                time_to_deadline.is_none_or(|time_to_deadline| *after < time_to_deadline)
            }),
        }
    }
}

impl EntrySettings {
    /// Returns the minimum time between two messages to one person or room: `gather` or its
    /// default. With `before_expiry`, the default is at most half of that time. A reminder that
    /// waits for an earlier message is then still sent before the deadline of its question.
    pub(crate) fn gather_interval(&self) -> Duration {
        let usual = if self.mail.is_some() {
            DEFAULT_MAIL_INTERVAL
        } else if self.webhook.is_some() {
            Duration::ZERO
        } else {
            DEFAULT_ROOM_INTERVAL
        };
        let before_expiry = self.when.and_then(|when| when.before_expiry);
        let usual = before_expiry.map_or(usual, |before| usual.min(before / 2));
        self.gather.unwrap_or(usual)
    }

    /// Whether the entry gets only events of requests, because it names groups or users.
    pub(super) fn gets_only_requests(&self) -> bool {
        !self.groups.is_empty() || !self.users.is_empty()
    }

    /// Returns whether the entry sends messages about new questions, or reminders of questions. The
    /// event `REQUEST_CREATED` is the source of both kinds of message.
    #[must_use]
    pub fn sends_new_questions(&self) -> bool {
        self.wanted_events().contains(REQUEST_CREATED)
    }

    /// Returns the events about which the entry's messages are made.
    pub(super) fn wanted_events(&self) -> BTreeSet<&'static str> {
        if self.slack.as_ref().is_some_and(Slack::is_bot) {
            return REQUEST_CHANGES
                .into_iter()
                .chain([REQUEST_CREATED])
                .collect();
        }
        if self.when.is_some() || self.webhook.is_none() {
            return BTreeSet::from([REQUEST_CREATED]);
        }
        let named = |event: &&str| self.events.iter().any(|name| name == event);
        let fits =
            |event: &&str| !self.gets_only_requests() || event.starts_with(REQUEST_EVENT_PREFIX);
        NOTIFIABLE_EVENTS
            .into_iter()
            .filter(named)
            .filter(fits)
            .collect()
    }
}

impl Settings {
    /// Reports the mistakes that can be found without other sections of the configuration.
    pub fn check(&self, mistakes: &mut Mistakes) {
        if let Some(server) = &self.mail {
            server.check(mistakes);
        }
        for (index, entry) in self.to.iter().enumerate() {
            let at = index.to_string();
            let place = ["notify", "to", &at];
            let within = |key: &'static str| [&place[..], &[key]].concat();
            let mut earlier = self.to.iter().take(index);
            if !entry.name.is_empty() && earlier.any(|other| other.name == entry.name) {
                let detail = format!("`{}` is the name of an entry above, too", entry.name);
                mistakes.add(&within("name"), detail);
            }
            if entry.mail.is_some() && entry.webhook.is_none() && self.mail.is_none() {
                let detail = "`notify.mail` is missing: it names the mail server";
                mistakes.add(&within("mail"), detail);
            }
            check_events(entry, &place, mistakes);
            check_times(entry, &place, mistakes);
            if let Some(webhook) = &entry.webhook {
                webhook.check(&within("webhook"), mistakes);
            }
            if let Some(slack) = &entry.slack {
                slack.check(&within("slack"), mistakes);
            }
            if let Some(teams) = &entry.teams {
                teams.check(&within("teams"), mistakes);
            }
        }
    }
}

fn check_events(entry: &EntrySettings, place: &[&str], mistakes: &mut Mistakes) {
    let place = [place, &["events"]].concat();
    if entry.events.is_empty() {
        mistakes.add(&place, "`events` is empty: leave it out for the usual ones");
    }
    let usual = entry.events == DEFAULT_EVENTS;
    if !usual && entry.when.is_some() {
        let detail =
            "an entry with `when` sends its reminders and nothing else: leave `events` out";
        return mistakes.add(&place, detail);
    }
    if !usual && entry.webhook.is_none() {
        let detail = if entry.mail.is_some() {
            "a mail is about a question that waits: leave `events` out"
        } else {
            "a message to a room is about questions that wait: leave `events` out"
        };
        return mistakes.add(&place, detail);
    }
    for (index, event) in entry.events.iter().enumerate() {
        let index = index.to_string();
        let place = [&place[..], &[&index]].concat();
        if !NOTIFIABLE_EVENTS.contains(&event.as_str()) {
            let known = NOTIFIABLE_EVENTS
                .map(|event| format!("`{event}`"))
                .join(", ");
            mistakes.add(
                &place,
                format!("unknown event `{event}`; known are {known}"),
            );
        } else if entry.gets_only_requests() && !usual && !event.starts_with(REQUEST_EVENT_PREFIX) {
            let detail = format!(
                "`{event}` is not an event of a request: an entry with `groups` or `users` gets only those"
            );
            mistakes.add(&place, detail);
        }
    }
}

fn check_times(entry: &EntrySettings, place: &[&str], mistakes: &mut Mistakes) {
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
    } else if entry.gather > Some(MAX_GATHER) {
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
            [day, hour].map(|time_to_deadline| after.reminder_delay(Some(time_to_deadline))),
            [Some(hour), None]
        );
        assert_eq!(after.reminder_delay(None), Some(hour));
        let before = When {
            before_expiry: Some(hour),
            ..When::default()
        };
        assert_eq!(before.reminder_delay(Some(day)), Some(rest));
        assert_eq!(
            before.reminder_delay(Some(hour / 2)),
            Some(Duration::ZERO),
            "at once"
        );
        assert_eq!(before.reminder_delay(None), None, "it has no deadline");
    }
}
