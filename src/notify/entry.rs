//! An entry of `notify.to`: one receiver of messages, with the parsed settings of its channel.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use super::recipients::recipients_include;
use super::settings::{EntrySettings, Mail, Payload, Webhook, When, parse_header};
use super::sign::{SigningKey, parse_key};
use super::slack::SlackChannel;
use super::teams::TeamsChannel;
use super::{exchange, mail};
use crate::net::plain_http_url;
use crate::people::authorization::{may_decide, may_take_any_action};
use crate::people::directory::Directory;
use crate::people::person::Person;
use crate::people::{Caller, Permissions};
use crate::store::{ClaimedDelivery, DeliveryChannel, EventFilter, RequestRow};
use crate::task::decision::Door;
use crate::task::event_name::{REQUEST_CREATED, REQUEST_EXPIRING, REQUEST_WAITING};
use crate::task::time::Time;

/// The part of a delivery's lease for all but the attempt: for the reads before it, for its
/// recording, and for the QUIT after each mail that the server refuses.
const RECORD_TIMEOUT: Duration = Duration::from_secs(5);

/// A message that an entry will send about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlannedMessage {
    /// The type of the message, which is the name of an event or of a reminder.
    pub(super) kind: &'static str,
    /// The time from which the message may be sent; `None` if the message may be sent at once.
    pub(super) due_at: Option<Time>,
}

impl PlannedMessage {
    pub(super) fn due_now(kind: &'static str) -> Self {
        Self { kind, due_at: None }
    }
}

pub(crate) struct Entry {
    pub(super) name: String,
    pub(super) channel: Channel,
    /// The time of the reminders that the entry sends; `None` if it sends no reminders.
    pub(super) when: Option<When>,
    /// The minimum time between two messages to one person or room; zero if each question is sent
    /// as its own message.
    pub(super) gather: Duration,
    /// The filter for the events about which the entry sends messages. `groups` and `users` limit
    /// the messages further.
    pub(super) event_filter: EventFilter,
    groups: Vec<String>,
    users: Vec<String>,
}

pub(super) enum Channel {
    /// Each event is sent as a signed POST.
    Webhook(WebhookChannel),
    /// Questions are mailed to people; each person gets their own mail.
    Mail(Mail),
    /// Questions are sent to a channel of Slack.
    Slack(SlackChannel),
    /// Questions are sent to a channel or chat of Teams.
    Teams(TeamsChannel),
}

pub(super) struct WebhookChannel {
    pub(super) url: Url,
    /// The keys that sign a message, the newest first.
    pub(super) keys: Vec<SigningKey>,
    pub(super) headers: HeaderMap,
    pub(super) payload: Payload,
    pub(super) shows_summaries: bool,
}

impl Channel {
    fn from_settings(settings: &EntrySettings) -> Option<Self> {
        if let Some(webhook) = &settings.webhook {
            return WebhookChannel::from_settings(webhook).map(Self::Webhook);
        }
        if let Some(slack) = &settings.slack {
            return SlackChannel::from_settings(slack).map(Self::Slack);
        }
        if let Some(teams) = &settings.teams {
            return TeamsChannel::from_settings(teams).map(Self::Teams);
        }
        settings.mail.clone().map(Self::Mail)
    }

    /// Returns the kind of channel that the store keeps with each delivery to this entry.
    pub(super) fn delivery_channel(&self) -> DeliveryChannel {
        match self {
            Self::Webhook(_) => DeliveryChannel::Webhook,
            Self::Mail(_) => DeliveryChannel::Mail,
            Self::Slack(_) => DeliveryChannel::Slack,
            Self::Teams(_) => DeliveryChannel::Teams,
        }
    }

    /// Returns the duration of a delivery's lease: the maximum time for one attempt, and
    /// `RECORD_TIMEOUT`. An attempt at a mail with summaries may send the mail twice (see
    /// `Sender::deliver_digest`).
    pub(super) fn lease(&self) -> Duration {
        let attempt = match self {
            Self::Webhook(_) | Self::Slack(_) | Self::Teams(_) => exchange::ATTEMPT_TIMEOUT,
            Self::Mail(settings) if settings.summaries => 2 * mail::ATTEMPT_TIMEOUT,
            Self::Mail(_) => mail::ATTEMPT_TIMEOUT,
        };
        attempt + RECORD_TIMEOUT
    }

    /// Whether the channel sends messages to this person.
    pub(super) fn includes(&self, person: &Person, directory: &Directory) -> bool {
        matches!(self, Self::Mail(mail) if recipients_include(&mail.to, person, directory))
    }

    pub(super) fn shows_summaries(&self) -> bool {
        match self {
            Self::Webhook(hook) => hook.shows_summaries,
            Self::Mail(mail) => mail.summaries,
            Self::Slack(slack) => slack.shows_summaries,
            Self::Teams(teams) => teams.shows_summaries,
        }
    }
}

impl WebhookChannel {
    fn from_settings(webhook: &Webhook) -> Option<Self> {
        let headers: Result<Vec<(HeaderName, HeaderValue)>, _> = webhook
            .headers
            .iter()
            .map(|(name, value)| parse_header(name, value))
            .collect();
        let keys: Result<Vec<SigningKey>, _> = webhook.secrets.iter().map(parse_key).collect();
        Some(Self {
            url: plain_http_url(webhook.url.reveal())?,
            keys: keys.ok()?,
            headers: headers.ok()?.into_iter().collect(),
            payload: webhook.payload,
            shows_summaries: webhook.summaries,
        })
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({})", self.name)
    }
}

impl Entry {
    /// Returns the entry of these settings; `None` if the settings have mistakes.
    #[must_use]
    pub(crate) fn from_settings(settings: &EntrySettings) -> Option<Self> {
        Some(Self {
            name: settings.name.clone(),
            channel: Channel::from_settings(settings)?,
            when: settings.when,
            gather: settings.gather_interval(),
            event_filter: EventFilter {
                tenants: settings.tenants.clone(),
                agents: settings.agents.clone(),
                events: settings.wanted_events(),
            },
            groups: settings.groups.clone(),
            users: settings.users.clone(),
        })
    }

    /// Returns the message that the entry sends because of a new request. Without `when`, the entry
    /// sends a message about the new request at once. With `when`, the entry sends only a reminder.
    /// Returns `None` if the request gets no reminder:
    /// - With `before_expiry`, the request has no deadline.
    /// - With `after`, the request expires before the reminder would be due.
    pub(super) fn planned_message(&self, request: &RequestRow) -> Option<PlannedMessage> {
        let (Some(when), Some(kind)) = (self.when, self.reminder_kind()) else {
            return Some(PlannedMessage::due_now(REQUEST_CREATED));
        };
        let opened_at = request.created_at;
        let time_to_deadline = request.expires_at.map(|deadline| deadline.since(opened_at));
        Some(PlannedMessage {
            kind,
            due_at: Some(opened_at + when.reminder_delay(time_to_deadline)?),
        })
    }

    /// Whether the entry, as it is configured now, sends messages of the delivery's type for the
    /// delivery's tenant. The delivery may be older than the entry's present settings.
    pub(super) fn sends(&self, claimed: &ClaimedDelivery) -> bool {
        self.sends_kind(&claimed.kind) && self.event_filter.matches_tenant(&claimed.tenant)
    }

    /// Whether the entry sends messages of this type.
    pub(super) fn sends_kind(&self, kind: &str) -> bool {
        let is_wanted = self.event_filter.events.contains(kind);
        match self.reminder_kind() {
            None => is_wanted,
            // The reminder replaces the message about a new request.
            Some(reminder) => kind == reminder || (is_wanted && kind != REQUEST_CREATED),
        }
    }

    /// Returns the type of the reminders that the entry sends; `None` if it sends no reminders.
    pub(super) fn reminder_kind(&self) -> Option<&'static str> {
        let when = self.when?;
        Some(if when.before_expiry.is_some() {
            REQUEST_EXPIRING
        } else {
            REQUEST_WAITING
        })
    }

    /// Whether the entry never updates its sent messages: it gathers messages, and its channel
    /// cannot update them. The store may still have deliveries of updates that an earlier
    /// configuration of the entry wanted. The sender does not claim them, and its cleanup drops
    /// them.
    pub(super) fn leaves_updates_out(&self) -> bool {
        let can_update = matches!(&self.channel, Channel::Slack(slack) if slack.can_update());
        !self.gather.is_zero() && !can_update
    }

    /// Whether the entry's `tenants`, `agents`, `groups` and `users` let messages about this
    /// request through.
    pub(super) fn covers(&self, request: &RequestRow, accounts: Option<&Directory>) -> bool {
        let root_agent = request.agent_path.first().map_or("", String::as_str);
        self.event_filter.matches_tree(&request.tenant, root_agent)
            && (!self.selects_requests() || self.selects(request, accounts))
    }

    /// Whether the entry is a webhook that gets every event that its filter matches: it has no
    /// `when`, and no `groups` or `users` that narrow the filter.
    pub(super) fn sends_every_event(&self) -> bool {
        let events = matches!(self.channel, Channel::Webhook(_));
        events && self.when.is_none() && !self.selects_requests()
    }

    /// Whether the entry's messages are limited to requests that its `groups` or `users` may
    /// decide.
    pub(super) fn selects_requests(&self) -> bool {
        !self.groups.is_empty() || !self.users.is_empty()
    }

    /// Returns whether one of the entry's groups or users may decide this request.
    pub(super) fn selects(&self, request: &RequestRow, accounts: Option<&Directory>) -> bool {
        let approvers = &request.spec.terms.approvers;
        let (tenant, owner) = (request.tenant.as_str(), request.owner.as_str());
        let is_approver = |group: &String| approvers.groups.contains(group);
        let decides = |user: &String| {
            let person = user_as_caller(user, tenant, accounts);
            may_decide(&person, tenant, owner, approvers).is_some()
                && may_take_any_action(&person, &request.spec)
        };
        self.groups.iter().any(is_approver) || self.users.iter().any(decides)
    }
}

/// Returns the caller with the groups and the right with which a user would decide a request now.
/// - Groups: the groups of the user's key, if this key may decide. If only the user's links may
///   decide, the user's own groups. Otherwise none.
/// - Right to decide: granted if a key or a link of the user may decide. Also granted if the tenant
///   has a service key that may decide, because a client with this key can name any user. Always
///   granted in a service without accounts.
pub(crate) fn user_as_caller(user: &str, tenant: &str, accounts: Option<&Directory>) -> Caller {
    let by_key = accounts.and_then(|accounts| accounts.groups_of_decider(tenant, user));
    let by_link = accounts.and_then(|accounts| accounts.groups_of_link_decider(tenant, user));
    let door = by_link.filter(|_| by_key.is_none()).map(|_| Door::Link);
    let has_service_decider = || accounts.is_none_or(|all| all.has_service_decider(tenant));
    let decide = by_key.or(by_link).is_some() || has_service_decider();
    Caller {
        user_id: accounts.map(Directory::ids).unwrap_or_default().id(user),
        tenant: tenant.to_owned(),
        groups: by_key.or(by_link).unwrap_or_default().to_vec(),
        via: None,
        door,
        admin: false,
        permissions: Permissions {
            decide,
            ..Permissions::ALL
        },
        without_accounts: accounts.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::people::directory::{Account, hash_key};
    use crate::people::language::Language;
    use crate::people::link::LinkRight;

    #[test]
    fn person_without_a_key_is_in_their_groups_only_if_links_decide() {
        let dora = Person {
            user: "dora".to_owned(),
            tenant: "acme".to_owned(),
            groups: vec!["finance".to_owned()],
            email: None,
            language: Language::English,
        };
        let directory = Directory::default().with_people(vec![dora]);
        let caller = user_as_caller("dora", "acme", Some(&directory));
        assert_eq!((caller.groups.len(), caller.door), (0, None));
        let deciding = directory.with_links(Some(LinkRight::Decide));
        let caller = user_as_caller("dora", "acme", Some(&deciding));
        assert_eq!((caller.groups.len(), caller.door), (1, Some(Door::Link)));
    }

    #[test]
    fn user_may_decide_only_by_a_key_of_their_own_or_one_that_speaks_for_others() {
        let key = |user: &str, name: &str, decide, act_as| Account {
            user: user.to_owned(),
            tenant: "acme".to_owned(),
            groups: Vec::new(),
            act_as,
            admin: false,
            permissions: Permissions {
                decide,
                ..Permissions::ALL
            },
            key_sha256: hash_key(name),
        };
        let reads = key("dora", "reads", false, false);
        for (further, may_decide) in [
            (key("web", "asks for others", false, true), false),
            (key("bob", "decides", true, false), false),
            (key("dora", "decides", true, false), true),
            (key("web", "decides for others", true, true), true),
        ] {
            let text = format!("{further:?}, decides: {}", further.permissions.decide);
            let directory = Directory::new(vec![reads.clone(), further]);
            let caller = user_as_caller("dora", "acme", Some(&directory));
            assert_eq!(caller.permissions.decide, may_decide, "{text}");
            let elsewhere = user_as_caller("dora", "other", Some(&directory));
            assert!(!elsewhere.permissions.decide, "{text}");
        }
        assert!(user_as_caller("local", "default", None).permissions.decide);
    }
}
