//! One receiver of messages, ready to send to.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use super::settings::{EntrySettings, Payload, address, header};
use super::sign::{Key, key};
use crate::people::directory::Directory;
use crate::people::may::may_decide;
use crate::people::{Caller, May};
use crate::store::{RequestRow, Want};
use crate::task::user::UserIds;

/// One receiver of messages.
pub(crate) struct Entry {
    pub(super) name: String,
    pub(super) url: Url,
    /// The keys that sign a message, the newest first.
    pub(super) keys: Vec<Key>,
    pub(super) headers: HeaderMap,
    pub(super) payload: Payload,
    pub(super) summaries: bool,
    /// The events that it gets messages of, before `groups` and `users` are looked at.
    pub(super) want: Want,
    groups: Vec<String>,
    users: Vec<String>,
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
        let webhook = settings.webhook.as_ref()?;
        let headers: Result<Vec<(HeaderName, HeaderValue)>, _> = webhook
            .headers
            .iter()
            .map(|(name, value)| header(name, value))
            .collect();
        let keys: Result<Vec<Key>, _> = webhook.secrets.iter().map(key).collect();
        Some(Self {
            name: settings.name.clone(),
            url: address(webhook.url.reveal())?,
            keys: keys.ok()?,
            headers: headers.ok()?.into_iter().collect(),
            payload: webhook.payload,
            summaries: webhook.summaries,
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
