//! The sender of messages: how messages show requests and events, and the command `notify`.

use std::sync::Arc;

use anyhow::Context as _;

use crate::config::Config;
use crate::http;
use crate::http::events::message_data;
use crate::net::Net;
use crate::notify::{self, Pong, Rendering, Sender};
use crate::store::Store;
use crate::world::{Clock, Ids, RandomIds, SystemClock};

/// The sender of this configuration's messages.
///
/// # Errors
/// When TLS cannot be set up at all.
pub(super) fn sender(
    config: &Config,
    store: &Store,
    settings: &http::Settings,
    clock: &Arc<dyn Clock>,
    ids: &Arc<dyn Ids>,
) -> anyhow::Result<Arc<Sender>> {
    let parts = notify::Parts {
        store: store.clone(),
        net: Net::new()?,
        accounts: config.directory(),
        rendering: rendering(store, settings),
    };
    Ok(Sender::new(
        &config.notify,
        parts,
        Arc::clone(clock),
        Arc::clone(ids),
    ))
}

fn rendering(store: &Store, settings: &http::Settings) -> Rendering {
    let shared = Arc::new((store.clone(), settings.clone().trimmed()));
    let (of_brief, of_data) = (Arc::clone(&shared), shared);
    Rendering {
        brief: Arc::new(move |request, event, summaries| {
            let shared = Arc::clone(&of_brief);
            Box::pin(async move {
                let (store, settings) = &*shared;
                message_data::brief(store, settings, request, &event, summaries).await
            })
        }),
        data: Arc::new(move |root, event| {
            let shared = Arc::clone(&of_data);
            Box::pin(async move {
                let (store, settings) = &*shared;
                message_data::data(store, settings, root, &event).await
            })
        }),
    }
}

/// Sends a ping to the entry of this name. Returns what came back; `None` if there is no such entry.
///
/// # Errors
/// The reason why nothing could be sent.
pub async fn ping(config: &Config, name: &str) -> anyhow::Result<Option<Pong>> {
    let Some(entry) = config.notify.to.iter().find(|entry| entry.name == name) else {
        return Ok(None);
    };
    let pong = notify::ping(entry, &SystemClock, &RandomIds).await?;
    Ok(Some(pong.context("the entry cannot be used")?))
}
