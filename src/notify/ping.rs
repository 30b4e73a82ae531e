//! Sends a test message for the command `notify`. The test message contains nothing about tasks or
//! requests.

use std::time::Duration;

use serde_json::value::to_raw_value;

use super::entry::{Channel, Entry};
use super::mail::Mailer;
use super::message::envelope;
use super::recipients::recipients_include;
use super::settings::{EntrySettings, MailServer, Recipients};
use super::webhook::post;
use super::{slack, teams};
use crate::net::{Net, NetError};
use crate::people::directory::Directory;
use crate::people::person::Person;
use crate::world::{Clock, Ids};

/// The result of a ping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PingResult {
    /// The HTTP status; `None` if there was no HTTP answer.
    pub status: Option<u16>,
    /// The reason of a failure, in fixed words; empty for a success.
    pub problem: &'static str,
    /// The duration of the attempt; `None` if there was no attempt, because no person whom the
    /// entry names has an address.
    pub took: Option<Duration>,
}

/// Sends a message of type `ping` to an entry of `notify.to`. A webhook or a room gets one message.
/// If the entry mails to `approvers`, the sender's own address gets a mail. If the entry names
/// people, each of them who has an address and is of one of the entry's tenants gets a mail; the
/// ping fails if there is no such person. Returns `None` if the settings of the entry or of the
/// mail server have mistakes.
///
/// # Errors
/// Fails if TLS cannot be set up at all.
pub async fn ping(
    settings: &EntrySettings,
    mail_server: Option<&MailServer>,
    people: Option<&Directory>,
    clock: &dyn Clock,
    ids: &dyn Ids,
) -> Result<Option<PingResult>, NetError> {
    let Some(entry) = Entry::from_settings(settings) else {
        return Ok(None);
    };
    let name = entry.name.as_str();
    let id = format!("ping_{}", ids.fresh().simple());
    let began = clock.uptime();
    let result = match &entry.channel {
        Channel::Webhook(hook) => {
            let net = Net::new()?;
            let data = to_raw_value(&serde_json::json!({ "target": name }));
            let body = data.and_then(|data| envelope("ping", clock.now(), &data));
            let Ok(body) = body else { return Ok(None) };
            post(&net, clock, hook, &id, body).await
        }
        Channel::Mail(mail) => {
            let Some(mailer) = mail_server.and_then(Mailer::from_settings) else {
                return Ok(None);
            };
            let names_people = mail.to != Recipients::Approvers;
            let is_named = |person: &&Person| {
                let all = people.is_some_and(|all| recipients_include(&mail.to, person, all));
                all && names_people
                    && person.email.is_some()
                    && entry.event_filter.matches_tenant(&person.tenant)
            };
            let people = people.into_iter().flat_map(Directory::people);
            let people: Vec<_> = people.filter(is_named).collect();
            if names_people && people.is_empty() {
                return Ok(Some(PingResult {
                    status: None,
                    problem: "none of the entry's people has an address",
                    took: None,
                }));
            }
            mailer.ping(clock, &people, &id).await
        }
        Channel::Slack(room) => {
            let content = slack::plain_content(&text(name));
            room.post(&Net::new()?, clock, content).await
        }
        Channel::Teams(room) => {
            let body = teams::plain_body(&text(name));
            room.post(&Net::new()?, clock, &body).await
        }
    };
    Ok(Some(PingResult {
        status: result.status,
        problem: result.problem,
        took: Some(clock.uptime().saturating_sub(began)),
    }))
}

fn text(name: &str) -> String {
    format!("Holdpoint reaches this channel: messages of `{name}` arrive here.")
}
