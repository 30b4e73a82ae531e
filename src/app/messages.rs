//! Builds the sender of messages, with the functions that render requests and events. Also sends
//! the pings of the command `notify`.

use std::sync::Arc;

use anyhow::Context as _;

use crate::config::Config;
use crate::http;
use crate::http::events::message_data;
use crate::http::wire::request::url as request_url;
use crate::net::Net;
use crate::notify::{self, PingResult, Rendering, Sender};
use crate::store::Store;
use crate::world::{Clock, Ids, RandomIds, SystemClock};

/// Builds the [`Sender`] that the settings in `notify` describe.
///
/// # Errors
/// Fails if TLS cannot be set up.
pub(super) fn sender(
    config: &Config,
    store: &Store,
    settings: &http::Settings,
    clock: &Arc<dyn Clock>,
    ids: &Arc<dyn Ids>,
) -> anyhow::Result<Arc<Sender>> {
    let dependencies = notify::Dependencies {
        store: store.clone(),
        net: Net::new()?,
        accounts: config.directory(),
        links: config.links(&settings.public_url),
        rendering: rendering(store, settings.clone()),
    };
    Ok(Sender::new(
        &config.notify,
        dependencies,
        Arc::clone(clock),
        Arc::clone(ids),
    ))
}

fn rendering(store: &Store, settings: http::Settings) -> Rendering {
    let shared = Arc::new((store.clone(), settings));
    let (of_brief, of_data) = (Arc::clone(&shared), Arc::clone(&shared));
    Rendering {
        brief: Arc::new(move |request, event, summaries| {
            let shared = Arc::clone(&of_brief);
            Box::pin(async move {
                let (store, settings) = &*shared;
                message_data::brief(store, settings, request, event.as_ref(), summaries).await
            })
        }),
        data: Arc::new(move |root, event, reminder| {
            let shared = Arc::clone(&of_data);
            Box::pin(async move {
                let (store, settings) = &*shared;
                message_data::data(store, settings, root, &event, reminder).await
            })
        }),
        inbox: format!("{}/inbox", shared.1.public_url),
        url: Arc::new(move |request| request_url(request, &shared.1)),
    }
}

/// Sends a ping to the entry `name` of `notify.to`, and returns the result. Returns `None` if there
/// is no such entry.
///
/// # Errors
/// Fails if TLS cannot be set up, or if the settings of the entry have mistakes. A ping that could
/// not be sent is not an error: `problem` in its result has the reason.
pub async fn ping(config: &Config, name: &str) -> anyhow::Result<Option<PingResult>> {
    let Some(entry) = config.notify.to.iter().find(|entry| entry.name == name) else {
        return Ok(None);
    };
    let people = config.directory();
    let pong = notify::ping(
        entry,
        config.notify.mail.as_ref(),
        people.as_ref(),
        &SystemClock,
        &RandomIds,
    );
    Ok(Some(pong.await?.context("the entry cannot be used")?))
}
