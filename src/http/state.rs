//! The state that all operations share.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Settings;
use super::api::gate::waiting::WaitingAsks;
use super::api::health;
use super::api::mcp::tools::GateTools;
use super::edge::Edge;
use super::events::inbox::tail::InboxTails;
use super::events::stream_limiter::StreamLimiter;
use super::events::tail::Tails;
use super::server::body::BodyParser;
use super::server::wrong_keys::WrongKeys;
use super::wire::list::WireAgent;
use crate::engine::Engine;
use crate::people::authenticator::Authenticator;
use crate::store::Store;
use crate::world::Clock;

pub(crate) struct Http {
    pub engine: Arc<Engine>,
    pub store: Store,
    /// The agents of the configuration, as `GET /v1/agents` shows them.
    pub agents: Vec<WireAgent>,
    /// For each gate, the tools that the gate's MCP clients see.
    pub gate_tools: BTreeMap<String, GateTools>,
    pub waiting_asks: WaitingAsks,
    pub authenticator: Arc<dyn Authenticator>,
    /// Measures timeouts, gives the HTML pages the current time, and decides whether a sealed link
    /// has expired. The database's clock decides whether the deadline of a request has passed.
    pub clock: Arc<dyn Clock>,
    pub settings: Settings,
    /// The state of the outermost middleware. `server/guard.rs` also uses this state, to check the
    /// host and the web origin of a request.
    pub edge: Arc<Edge>,
    pub shutdown: CancellationToken,
    /// Runs work that must not stop when the client disconnects.
    pub tracker: TaskTracker,
    pub stream_limiter: StreamLimiter,
    /// For each task tree that an event stream of this process follows, the newest events of the
    /// tree.
    pub tails: Tails,
    /// For each tenant with an open inbox stream in this process, the newest changes of the
    /// tenant's requests.
    pub inbox_tails: InboxTails,
    pub body_parser: BodyParser,
    pub wrong_keys: WrongKeys,
    pub metrics: health::RenderMetrics,
}
