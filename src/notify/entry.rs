//! One receiver of messages, ready to send to.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use super::settings::{EntrySettings, Mail, Payload, Webhook, When, address, header};
use super::sign::{Key, key};
use crate::people::directory::Directory;
use crate::people::may::may_decide;
use crate::people::{Caller, May};
use crate::store::{RequestRow, Want};
use crate::task::user::UserIds;

/// One receiver of messages.
pub(crate) struct Entry {
    pub(super) name: String,
    pub(super) channel: Channel,
    /// When a question that still waits is told of; `None` where its beginning is.
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
        settings.mail.clone().map(Self::Mail)
    }

    /// The channel's name, as in the configuration.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Webhook(_) => "webhook",
            Self::Mail(_) => "mail",
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
