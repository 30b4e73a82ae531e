//! A message that only says that messages arrive, for the command `notify`.

use std::time::Duration;

use serde_json::value::to_raw_value;

use super::entry::Entry;
use super::message::envelope;
use super::settings::EntrySettings;
use super::webhook::post;
use crate::net::{Net, NetError};
use crate::world::{Clock, Ids};

/// The result of a ping.
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
    let id = format!("ping_{}", ids.fresh().simple());
    let began = clock.uptime();
    let answer = post(&net, clock, &entry, &id, body).await;
    Ok(Some(Pong {
        status: answer.status.map(|status| status.as_u16()),
        problem: answer.problem,
        took: clock.uptime().saturating_sub(began),
    }))
}
