//! A message that only says that messages arrive, for the command `notify`.

use std::time::Duration;

use serde_json::value::to_raw_value;

use super::entry::{Channel, Entry};
use super::message::envelope;
use super::settings::EntrySettings;
use super::webhook::post;
use crate::net::{Net, NetError};
use crate::world::{Clock, Ids};

/// What came back of a ping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pong {
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
    /// Why it is no success; empty for a success.
    pub problem: &'static str,
    /// How long it took.
    pub took: Duration,
}

/// Posts a message of type `ping` to an entry.
///
/// # Errors
/// [`NetError`] when TLS cannot be set up at all.
pub async fn ping(
    settings: &EntrySettings,
    clock: &dyn Clock,
    ids: &dyn Ids,
) -> Result<Option<Pong>, NetError> {
    let net = Net::new()?;
    let data = to_raw_value(&serde_json::json!({ "target": settings.name }));
    let body = data.and_then(|data| envelope("ping", clock.now(), &data));
    let (Some(entry), Ok(body)) = (Entry::of(settings), body) else {
        return Ok(None);
    };
    let Channel::Webhook(hook) = &entry.channel else {
        return Ok(None);
    };
    let id = format!("ping_{}", ids.fresh().simple());
    let began = clock.uptime();
    let answer = post(&net, clock, hook, &id, body).await;
    Ok(Some(Pong {
        status: answer.status,
        problem: answer.problem,
        took: clock.uptime().saturating_sub(began),
    }))
}
