//! The composition root: builds the parts of the service from the configuration, and connects them.

mod cards;
mod database;
mod demo_guide;
mod mcp_lock;
mod messages;
mod serving;
mod signals;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::database::DatabaseOptions;
use self::demo_guide::DemoGuide;
pub use self::mcp_lock::{ReviewResult, review as review_mcp_tools};
pub use self::messages::ping;
use self::serving::{Listeners, Serving};
use self::signals::EndSignals;
use crate::agent::Agents;
use crate::config::Config;
use crate::config::report::ReportLine;
use crate::engine::{self, Engine, EngineParts};
use crate::failpoint;
use crate::http::api::gate::waiting::WaitingAsks;
use crate::http::edge::Edge;
use crate::http::events::inbox::tail::InboxTails;
use crate::http::events::stream_limiter::StreamLimiter;
use crate::http::events::tail::Tails;
use crate::http::server::body::BodyParser;
use crate::http::server::descriptors::{self, DescriptorBudget};
use crate::http::server::wrong_keys::WrongKeys;
use crate::http::{self, Http};
use crate::mcp::Servers;
use crate::model::{self, ModelClient};
use crate::net::Net;
use crate::notify::Sender;
use crate::people::authorization::Roster;
use crate::policy::Policy;
use crate::store::{ReadError, Store};
use crate::telemetry::gauges::Gauges;
use crate::telemetry::{DatabaseCounts, Metrics};
pub use crate::telemetry::{LogFormat, init as start_log};
use crate::tool::catalog::Catalog;
use crate::world::{Clock, Ids, Mistakes, RandomIds, SystemClock};

/// Options of `serve` that are not part of the configuration.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// A line for the log that says which configuration is in use. `None` if a flag or an
    /// environment variable names the configuration.
    pub note: Option<&'static str>,
    /// The warnings about the configuration, logged at start.
    pub warnings: Vec<ReportLine>,
    pub database: DatabaseOptions,
}

/// The time for which a start waits for the database before it answers connections. Most databases
/// open within this time, so clients rarely get a "not ready" answer.
const START_GRACE: Duration = Duration::from_secs(2);
/// The maximum time for which a shutdown waits for calls in flight and for attempts to send
/// messages.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);
/// The time after the start of a shutdown until which the shutdown waits for MCP servers to exit.
/// An MCP server that is a child process has a guard process, which ends the server even if this
/// process exits first.
const MCP_DEADLINE: Duration = Duration::from_secs(27);
/// The maximum duration of the last part of a shutdown, in which the last HTTP answers and commits
/// complete, and the connections end.
const SHUTDOWN_REMAINDER: Duration = Duration::from_secs(2);

/// Adds to `mistakes` the problems that each module finds in its part of the configuration.
pub fn check(config: &Config, mistakes: &mut Mistakes) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    for settings in config.models.values() {
        model::check(settings, &clock, mistakes);
    }
    if let Ok(net) = Net::new() {
        let catalog = Catalog::build(config.tools.clone(), &net, &Arc::default(), mistakes);
        let _ = policy(config, &catalog, mistakes);
    }
    config.store(true).check(mistakes);
    config.notify.check(mistakes);
}

fn policy(config: &Config, catalog: &Catalog, mistakes: &mut Mistakes) -> Policy {
    let mut specs: Vec<_> = catalog.specs().cloned().collect();
    specs.extend(config.unusable_tools(|name| catalog.get(name).is_some()));
    specs.extend(config.other_tools());
    Policy::new(&config.rules(), &specs, mistakes)
}

/// Serves until SIGTERM, SIGINT or SIGHUP. `metrics` is the value that [`start_log`] returned.
///
/// # Errors
/// Fails if the service cannot start. The error has the reason.
pub async fn serve(config: Config, options: ServeOptions, metrics: Metrics) -> anyhow::Result<()> {
    if let Some(note) = options.note {
        tracing::info!("{note}");
    }
    for ReportLine {
        position,
        path,
        entry,
        detail,
    } in &options.warnings
    {
        let entry = entry.as_deref();
        tracing::warn!(
            position,
            path,
            entry,
            detail,
            "a warning about the configuration"
        );
    }
    crate::tool::shell::make_undumpable().context("this process could not be made undumpable")?;
    descriptors::raise_soft_limit();
    let open = config.auth.is_none();
    let guide = DemoGuide::of(&config);
    let mut signals = EndSignals::catch()?;
    let world: (Arc<dyn Clock>, Arc<dyn Ids>) = (Arc::new(SystemClock), Arc::new(RandomIds));
    let replica = tokio::select! {
        replica = Replica::start(config, world.0, world.1, Some(metrics), options.database) => replica?,
        () = signals.end() => return Ok(()),
    };
    tracing::info!(address = %replica.address, "listening");
    if let Some(address) = replica.metrics_address {
        tracing::info!(%address, "metrics are served at an address of their own");
    }
    if open {
        tracing::warn!(
            "there are no accounts: everybody on this machine is `local` and may approve; a reverse proxy would make \
             everybody who reaches it `local`, so requests that came through one are refused"
        );
    }
    if let Some(guide) = guide {
        guide.print(replica.address);
    }
    signals.end().await;
    tracing::info!("shutting down");
    tokio::select! {
        () = replica.stop() => {}
        () = signals.end_at_once() => tracing::warn!("second signal: exiting at once"),
    }
    Ok(())
}

/// A running replica of the service.
pub struct Replica {
    /// The address on which the replica listens.
    pub address: SocketAddr,
    /// The separate address of the metrics; `None` if the metrics have no separate address.
    pub metrics_address: Option<SocketAddr>,
    pub engine: Arc<Engine>,
    pub store: Store,
    sender: Arc<Sender>,
    mcp_servers: Servers,
    stop: CancellationToken,
    closed: CancellationToken,
    handlers: TaskTracker,
    server: JoinHandle<()>,
    worker: JoinHandle<()>,
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Replica({})", self.address)
    }
}

impl Replica {
    /// Binds the listeners, opens the database and starts the workers. If the database is not open
    /// after `START_GRACE`, the listeners answer "not ready" until the database is open.
    ///
    /// # Errors
    /// Fails if the replica cannot start. The error has the reason.
    pub async fn start(
        config: Config,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn Ids>,
        metrics: Option<Metrics>,
        database: DatabaseOptions,
    ) -> anyhow::Result<Self> {
        let share = serving::share(&config)?;
        let listeners = Listeners::bind(&config).await?;
        let (address, metrics_address) = (listeners.address, listeners.metrics_address);
        let components = Components::build(&config, &clock)?;
        let roster = Roster::new(config.directory());
        let settings = http_settings(&config, address, &share, roster.clone());
        let (stop, handlers) = (CancellationToken::new(), TaskTracker::new());
        let edge = Arc::new(Edge::new(&settings, &ids, &handlers));
        let agents = &components.agents;
        let opening = database::open_with_definitions(&config, &clock, database, agents);
        let mut serving = Serving::new(listeners, share.connections, agents, &edge, &clock);
        let store = serve_while(opening, &mut serving, address).await?;
        let engine = components.engine(&config, &store, &roster, &clock, &ids);
        let metrics = with_zeros(metrics.map_or_else(Metrics::new, Ok)?, &config);
        let sender = messages::sender(&config, &store, &settings, &clock, &ids)?;
        let gauges = gauges(&store, &sender, &clock, &handlers);
        let (server, closed) = serving.open(http::routers(Http {
            engine: Arc::clone(&engine),
            store: store.clone(),
            agents: cards::cards(agents, &components.catalog),
            gate_tools: cards::gate_tools(&config, agents, &components.catalog),
            waiting_asks: WaitingAsks::default(),
            authenticator: Arc::from(config.authenticator()),
            clock: Arc::clone(&clock),
            edge,
            settings,
            shutdown: stop.clone(),
            tracker: handlers.clone(),
            stream_limiter: StreamLimiter::default(),
            tails: Tails::default(),
            inbox_tails: InboxTails::default(),
            body_parser: BodyParser::default(),
            wrong_keys: WrongKeys::default(),
            metrics: metrics_renderer(metrics, gauges),
        }));
        Ok(Self {
            address,
            metrics_address,
            server,
            worker: spawn_workers(Arc::clone(&engine), Arc::clone(&sender)),
            engine,
            store,
            sender,
            mcp_servers: components.mcp_servers,
            stop,
            closed,
            handlers,
        })
    }

    /// Shuts down as on SIGTERM. Begins no new work, makes `/readyz` report "not ready", and
    /// answers all long polls at once. Then waits up to `DRAIN_TIMEOUT` for calls in flight and for
    /// attempts to send messages. During this wait, the replica still answers `/readyz`.
    pub async fn stop(self) {
        let mcp_deadline = tokio::time::Instant::now() + MCP_DEADLINE;
        // `biased` polls in the order below. After the first poll of both `shut_down` futures, the
        // engine begins no call, and the sender begins no message. Only then does `self.stop` make
        // `/readyz` report the shutdown.
        tokio::join!(
            biased;
            self.engine.shut_down(DRAIN_TIMEOUT),
            self.sender.shut_down(DRAIN_TIMEOUT),
            async {
                self.stop.cancel();
                self.handlers.close();
            }
        );
        let _ = tokio::time::timeout_at(mcp_deadline, self.mcp_servers.shut_down()).await;
        self.closed.cancel();
        let rest = async {
            let _ = self.worker.await;
            self.handlers.wait().await;
            let _ = self.server.await;
            self.store.close().await;
        };
        if tokio::time::timeout(SHUTDOWN_REMAINDER, rest)
            .await
            .is_err()
        {
            tracing::warn!("the shutdown deadline passed before all work had ended");
        }
    }
}

/// Opens the database. If the database is not open after [`START_GRACE`], `serving` answers "not
/// ready" until the database is open.
async fn serve_while(
    opening: impl Future<Output = anyhow::Result<Store>>,
    serving: &mut Serving,
    address: SocketAddr,
) -> anyhow::Result<Store> {
    let mut opening = pin!(opening);
    if let Ok(opened) = tokio::time::timeout(START_GRACE, &mut opening).await {
        return opened;
    }
    serving.begin();
    tracing::info!(%address, "the service listens, and is not ready until its database is open");
    opening.await
}

#[expect(
    clippy::disallowed_methods,
    reason = "the root of the process's own tasks; `Replica::stop` waits for it"
)]
fn spawn_workers(engine: Arc<Engine>, sender: Arc<Sender>) -> JoinHandle<()> {
    tokio::spawn(async move {
        tokio::join!(engine.worker().run(), sender.work());
    })
}

fn http_settings(
    config: &Config,
    address: SocketAddr,
    share: &DescriptorBudget,
    roster: Roster,
) -> http::Settings {
    let server = &config.server;
    let public_url = server.public_url.clone();
    let public_url = public_url.unwrap_or_else(|| format!("http://{address}"));
    let entries = config.notify.to.iter();
    http::Settings {
        links: config.links(&public_url),
        public_url,
        request_url: server.request_url.clone(),
        cors_origins: server.cors_origins.clone(),
        wait: server.wait,
        max_streams: share.streams(server.max_streams),
        max_streams_per_caller: server.max_streams_per_caller,
        max_waiting: server.max_waiting,
        stream_life: server.stream_life,
        without_accounts: config.auth.is_none(),
        has_metrics_listener: server.metrics_listen.is_some(),
        receivers: entries
            .map(|entry| (entry.name.clone(), entry.tenants.clone()))
            .collect(),
        roster,
        sealer: config.sealer(),
    }
}

/// The parts of an engine that depend on the configuration alone.
struct Components {
    models: BTreeMap<String, Arc<dyn ModelClient>>,
    catalog: Arc<Catalog>,
    policy: Arc<Policy>,
    agents: Arc<Agents>,
    mcp_servers: Servers,
}

impl Components {
    fn build(config: &Config, clock: &Arc<dyn Clock>) -> anyhow::Result<Self> {
        let net = Net::new()?;
        let redactor = Arc::new(config.redactor());
        let mut mistakes = Mistakes::default();
        let mut models: BTreeMap<String, Arc<dyn ModelClient>> = BTreeMap::new();
        for (name, settings) in &config.models {
            let client = model::client(settings, &net, clock, &redactor, &mut mistakes)?;
            models.extend(client.map(|client| (name.clone(), client)));
        }
        let catalog = config.with_human_tools(Catalog::build(
            config.tools.clone(),
            &net,
            &redactor,
            &mut mistakes,
        ));
        let mcp_servers = Servers::new(
            &config.mcp,
            &config.lock,
            &net,
            &redactor,
            clock,
            config.log_mcp_stderr,
        );
        let catalog = config.with_mcp_tools(catalog, &mcp_servers, &redactor);
        let policy = policy(config, &catalog, &mut mistakes);
        anyhow::ensure!(
            mistakes.is_empty(),
            "the configuration has mistakes: run `holdpoint check`"
        );
        let agents = Arc::new(config.agents());
        Ok(Self {
            models,
            catalog: Arc::new(catalog),
            policy: Arc::new(policy),
            agents,
            mcp_servers,
        })
    }

    fn engine(
        &self,
        config: &Config,
        store: &Store,
        roster: &Roster,
        clock: &Arc<dyn Clock>,
        ids: &Arc<dyn Ids>,
    ) -> Arc<Engine> {
        let lease = failpoint::lease_duration();
        Engine::new(EngineParts {
            store: store.clone(),
            agents: Arc::clone(&self.agents),
            policy: Arc::clone(&self.policy),
            catalog: Arc::clone(&self.catalog),
            models: self.models.clone(),
            roster: roster.clone(),
            sealer: config.sealer(),
            clock: Arc::clone(clock),
            ids: Arc::clone(ids),
            settings: engine::Settings {
                max_running: config.server.max_running as usize,
                lease: lease.unwrap_or(engine::Settings::default().lease),
            },
        })
    }
}

fn gauges(
    store: &Store,
    sender: &Arc<Sender>,
    clock: &Arc<dyn Clock>,
    handlers: &TaskTracker,
) -> Arc<Gauges> {
    let (store, sender, clock) = (store.clone(), Arc::clone(sender), Arc::clone(clock));
    let count = Arc::new(
        move || -> std::pin::Pin<Box<dyn Future<Output = DatabaseCounts> + Send>> {
            let (store, sender) = (store.clone(), Arc::clone(&sender));
            Box::pin(async move { read_database_counts(&store, &sender).await })
        },
    );
    Gauges::new(count, Arc::new(move || clock.uptime()), handlers.clone())
}

/// Adds the counters of each entry of `notify.to` and of each tool's unknown outcomes to `metrics`,
/// so that the counters have the value 0 before their first event. Returns `metrics`.
fn with_zeros(metrics: Metrics, config: &Config) -> Metrics {
    for entry in &config.notify.to {
        metrics.expect_receiver(&entry.name);
    }
    for tool in config.tools.keys() {
        metrics.expect_tool(tool);
    }
    metrics
}

fn metrics_renderer(metrics: Metrics, gauges: Arc<Gauges>) -> http::RenderMetrics {
    Arc::new(move || {
        let (metrics, gauges) = (metrics.clone(), Arc::clone(&gauges));
        Box::pin(async move { metrics.render(&gauges.counts().await) })
    })
}

async fn read_database_counts(store: &Store, sender: &Sender) -> DatabaseCounts {
    let read = async {
        let tasks = store.task_counts().await?.into_iter();
        Ok::<_, ReadError>(DatabaseCounts {
            tasks: tasks
                .map(|(status, count)| (status.as_str().to_owned(), count))
                .collect(),
            requests: store.request_backlogs().await?,
            deliveries: sender.backlogs().await?,
        })
    };
    read.await.unwrap_or_else(|error| {
        tracing::debug!(%error, "tasks could not be counted");
        DatabaseCounts::default()
    })
}

/// Applies the migrations of the database.
///
/// # Errors
/// Fails if a migration cannot be applied.
pub async fn migrate(config: &Config) -> anyhow::Result<()> {
    Store::migrate(&config.store(true), Arc::new(SystemClock)).await?;
    Ok(())
}

/// Runs this process as the guard of one child process: a shell command or an MCP server. The guard
/// ends the child process even if the service is killed. Reads the command from standard input.
/// Returns the exit code.
#[must_use]
pub fn guard() -> u8 {
    u8::try_from(crate::tool::guard::guard_main()).unwrap_or(1)
}

/// Returns the OpenAPI document as JSON.
#[must_use]
pub fn openapi() -> String {
    http::openapi::openapi_json()
}
