//! One receiver of messages, ready to send to.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use super::settings::{EntrySettings, Mail, Payload, Webhook, When, address, header};
use super::sign::{Key, key};
use super::slack::Slack;
use super::teams::Teams;
use super::{exchange, mail};
use crate::people::directory::Directory;
use crate::people::may::may_decide;
use crate::people::{Caller, May};
use crate::store::{DeliveryChannel, RequestRow, Want};
use crate::task::event_name::{EXPIRING, WAITING};
use crate::task::time::Time;
use crate::task::user::UserIds;

/// How long the recording of an attempt may take.
const TO_RECORD: Duration = Duration::from_secs(5);

/// A message of an entry about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// The type of the message.
    pub(super) kind: &'static str,
    /// The time from which it is sent; `None` for at once.
    pub(super) due_at: Option<Time>,
}

impl Told {
    /// A message of this type that waits for nothing.
    pub(super) fn at_once(kind: &'static str) -> Self {
        Self { kind, due_at: None }
    }
}

/// One receiver of messages.
pub(crate) struct Entry {
    pub(super) name: String,
    pub(super) channel: Channel,
    /// The time at which the entry tells of a question that still waits; `None` if it tells of
    /// questions when they are asked.
    pub(super) when: Option<When>,
    /// The shortest time between two messages to one person.
    pub(super) gather: Duration,
    /// The events that it gets messages of, before `groups` and `users` are looked at.
    pub(super) want: Want,
    groups: Vec<String>,
    users: Vec<String>,
}

/// How the messages of an entry are sent.
pub(super) enum Channel {
    /// Each event is a signed POST.
    Webhook(Hook),
    /// Questions go to people, each a mail of their own.
    Mail(Mail),
    /// Questions go to a channel of Slack.
    Slack(Slack),
    /// Questions go to a channel or chat of Teams.
    Teams(Teams),
}

/// A receiver of webhooks.
pub(super) struct Hook {
    pub(super) url: Url,
    /// The keys that sign a message, the newest first.
    pub(super) keys: Vec<Key>,
    pub(super) headers: HeaderMap,
    pub(super) payload: Payload,
    pub(super) summaries: bool,
}

impl Channel {
    /// The channel of these settings; `None` if they have mistakes.
    fn of(settings: &EntrySettings) -> Option<Self> {
        if let Some(webhook) = &settings.webhook {
            return Hook::of(webhook).map(Self::Webhook);
        }
        if let Some(slack) = &settings.slack {
            return Slack::of(slack).map(Self::Slack);
        }
        if let Some(teams) = &settings.teams {
            return Teams::of(teams).map(Self::Teams);
        }
        settings.mail.clone().map(Self::Mail)
    }

    /// The channel under which the store keeps the entry's deliveries.
    pub(super) fn of_delivery(&self) -> DeliveryChannel {
        match self {
            Self::Webhook(_) => DeliveryChannel::Webhook,
            Self::Mail(_) => DeliveryChannel::Mail,
            Self::Slack(_) => DeliveryChannel::Slack,
            Self::Teams(_) => DeliveryChannel::Teams,
        }
    }

    /// How long a claim lasts: one attempt, and five seconds to record it.
    pub(super) fn lease(&self) -> Duration {
        let attempt = match self {
            Self::Webhook(_) | Self::Slack(_) | Self::Teams(_) => exchange::WITHIN,
            Self::Mail(_) => mail::WITHIN,
        };
        attempt + TO_RECORD
    }

    /// Whether posted messages are updated with the outcomes of their questions.
    pub(super) fn changes(&self) -> bool {
        matches!(self, Self::Slack(slack) if slack.changes())
    }

    /// Whether the entry's messages show the summaries of the calls.
    pub(super) fn summaries(&self) -> bool {
        match self {
            Self::Webhook(hook) => hook.summaries,
            Self::Mail(mail) => mail.summaries,
            Self::Slack(slack) => slack.summaries,
            Self::Teams(teams) => teams.summaries,
        }
    }
}

impl Hook {
    fn of(webhook: &Webhook) -> Option<Self> {
        let headers: Result<Vec<(HeaderName, HeaderValue)>, _> = webhook
            .headers
            .iter()
            .map(|(name, value)| header(name, value))
            .collect();
        let keys: Result<Vec<Key>, _> = webhook.secrets.iter().map(key).collect();
        Some(Self {
            url: address(webhook.url.reveal())?,
            keys: keys.ok()?,
            headers: headers.ok()?.into_iter().collect(),
            payload: webhook.payload,
            summaries: webhook.summaries,
        })
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({})", self.name)
    }
}

impl Entry {
    /// The entry of these settings; `None` if they have mistakes.
    #[must_use]
    pub(crate) fn of(settings: &EntrySettings) -> Option<Self> {
        Some(Self {
            name: settings.name.clone(),
            channel: Channel::of(settings)?,
            when: settings.when,
            gather: settings.gathers(),
            want: Want {
                tenants: settings.tenants.clone(),
                agents: settings.agents.clone(),
                events: settings.wanted(),
            },
            groups: settings.groups.clone(),
            users: settings.users.clone(),
        })
    }

    /// The message of this entry about a new request. `None` if the message depends on a deadline
    /// that the request does not have, or if the deadline would come first.
    pub(super) fn told(&self, request: &RequestRow) -> Option<Told> {
        let Some(when) = self.when else {
            return Some(Told::at_once("request.created"));
        };
        let asked = request.created_at;
        let lasts = request.expires_at.map(|deadline| deadline.since(asked));
        let kind = if when.before_expiry.is_some() {
            EXPIRING
        } else {
            WAITING
        };
        Some(Told {
            kind,
            due_at: Some(asked + when.wait(lasts)?),
        })
    }

    /// Whether every wanted event becomes a message, whatever request it is about.
    pub(super) fn tells_of_events(&self) -> bool {
        let events = matches!(self.channel, Channel::Webhook(_));
        events && self.when.is_none() && !self.picks_requests()
    }

    /// Whether this entry gets only requests that certain people may decide.
    pub(super) fn picks_requests(&self) -> bool {
        !self.groups.is_empty() || !self.users.is_empty()
    }

    /// Whether one of the entry's groups or users may decide this request.
    pub(super) fn picks(&self, request: &RequestRow, accounts: Option<&Directory>) -> bool {
        let approvers = &request.asked.terms.approvers;
        let (tenant, owner) = (request.tenant.as_str(), request.owner.as_str());
        self.groups
            .iter()
            .any(|group| approvers.groups.contains(group))
            || self
                .users
                .iter()
                .map(|user| person(user, tenant, accounts))
                .any(|person| may_decide(&person, tenant, owner, approvers))
    }
}

/// A user with the groups of their key.
fn person(user: &str, tenant: &str, accounts: Option<&Directory>) -> Caller {
    let groups = accounts.and_then(|accounts| accounts.groups(tenant, user));
    Caller {
        user_id: accounts.map_or_else(
            || UserIds::default().id(user),
            |accounts| accounts.ids().id(user),
        ),
        tenant: tenant.to_owned(),
        groups: groups.unwrap_or_default().to_vec(),
        via: None,
        door: None,
        admin: false,
        may: May::ALL,
        unaccounted: accounts.is_none(),
    }
}
