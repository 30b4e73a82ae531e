//! What every operation works with, and what it is served with.

use std::fmt;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Settings;
use super::api::agents::AgentCard;
use super::api::health;
use super::events::seats::Seats;
use super::server::body::Parsing;
use super::server::origin::Origins;
use super::server::wrong_keys::WrongKeys;
use crate::engine::Engine;
use crate::people::authenticator::Authenticator;
use crate::store::Store;
use crate::world::{Clock, Ids};

/// What the operations share.
pub(crate) struct Http {
    /// Makes tasks move.
    pub engine: Arc<Engine>,
    /// What is kept.
    pub store: Store,
    /// The agents, as they are shown.
    pub agents: Vec<AgentCard>,
    /// Knows who is calling.
    pub authenticator: Arc<dyn Authenticator>,
    /// Fresh ids.
    pub ids: Arc<dyn Ids>,
    /// What time it is, for a page that says how much is left. It decides nothing.
    pub clock: Arc<dyn Clock>,
    /// The operator's.
    pub settings: Settings,
    /// Who may change something from a browser; [`routers`] makes it from the settings.
    pub origins: Origins,
    /// Cancelled when the service goes down.
    pub shutdown: CancellationToken,
    /// Work that a client who goes away does not stop.
    pub tracker: TaskTracker,
    /// Who watches.
    pub seats: Seats,
    /// Where large bodies are read.
    pub parsing: Parsing,
    /// The wrong keys of late.
    pub wrong_keys: WrongKeys,
    /// The metrics.
    pub metrics: health::Metrics,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("settings", &self.settings).finish_non_exhaustive()
    }
}
