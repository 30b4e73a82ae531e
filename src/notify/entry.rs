//! An entry: one receiver of the configuration, ready to send to.

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

/// The maximum time for recording an attempt.
const TO_RECORD: Duration = Duration::from_secs(5);

/// A message that an entry sends about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// The type of the message: the name of an event, or of a reminder.
    pub(super) kind: &'static str,
    /// The time from which the message may be sent; `None`: at once.
    pub(super) due_at: Option<Time>,
}

impl Told {
    /// Returns a message of this type that is due at once.
    pub(super) fn at_once(kind: &'static str) -> Self {
        Self { kind, due_at: None }
    }
}

/// An entry of `notify.to`.
pub(crate) struct Entry {
    pub(super) name: String,
    pub(super) channel: Channel,
    /// The time at which the entry sends reminders of open questions; `None` if it sends each
    /// question when it is asked.
    pub(super) when: Option<When>,
    /// The minimum time between two messages to one person or room.
    pub(super) gather: Duration,
    /// The events about which the entry gets messages, before `groups` and `users` filter the
    /// events.
    pub(super) want: Want,
    groups: Vec<String>,
    users: Vec<String>,
}

/// The channel by which an entry's messages are sent.
pub(super) enum Channel {
    /// Each event is sent as a signed POST.
    Webhook(Hook),
    /// Questions are mailed to people; each person gets their own mail.
    Mail(Mail),
    /// Questions are sent to a channel of Slack.
    Slack(Slack),
    /// Questions are sent to a channel or chat of Teams.
    Teams(Teams),
}

/// A webhook, ready to post to.
pub(super) struct Hook {
    pub(super) url: Url,
    /// The keys that sign a message, the newest first.
    pub(super) keys: Vec<Key>,
    pub(super) headers: HeaderMap,
    pub(super) payload: Payload,
    pub(super) summaries: bool,
}

impl Channel {
    /// Returns the channel of these settings; `None` if they have mistakes.
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

    /// Returns the channel that the store has in the entry's deliveries.
    pub(super) fn of_delivery(&self) -> DeliveryChannel {
        match self {
            Self::Webhook(_) => DeliveryChannel::Webhook,
            Self::Mail(_) => DeliveryChannel::Mail,
            Self::Slack(_) => DeliveryChannel::Slack,
            Self::Teams(_) => DeliveryChannel::Teams,
        }
    }

    /// Returns the lease of a claimed delivery: long enough for one attempt and its recording.
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

    /// Whether messages show the tools' summaries of the calls.
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
    /// Returns the entry of these settings; `None` if they have mistakes.
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

    /// Returns the message of this entry about a new request. `None` if the message would be a
    /// reminder, and the request has no deadline to count back from, or its deadline comes before
    /// the reminder.
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

    /// Whether the entry sends a message about every wanted event, without looking at the event's
    /// request.
    pub(super) fn tells_of_events(&self) -> bool {
        let events = matches!(self.channel, Channel::Webhook(_));
        events && self.when.is_none() && !self.picks_requests()
    }

    /// Whether this entry gets only requests that its groups or users may decide.
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

/// Returns a user as a caller, with the groups of their key.
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
