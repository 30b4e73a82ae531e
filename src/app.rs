//! The composition root: the only file that names concrete implementations.

mod serving;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agent::{Agents, Offer};
use crate::config::Config;
use crate::config::report::Line;
use crate::engine::{self, Engine, Parts};
use crate::failpoint;
use crate::http::api::agents::{AgentCard, ToolCard};
use crate::http::events::stream_limiter::StreamLimiter;
use crate::http::server::body::BodyParser;
use crate::http::server::connections::Connections;
use crate::http::server::descriptors;
use crate::http::server::origin::Origins;
use crate::http::server::serve::Server;
use crate::http::server::wrong_keys::WrongKeys;
use crate::http::{self, Http};
use crate::model::ModelClient;
use crate::model::anthropic::Anthropic;
use crate::model::openai::OpenAi;
use crate::model::scripted::Scripted;
use crate::net::Net;
use crate::people::may::Roster;
use crate::policy::Policy;
use crate::store::{self, CommitError, OpenError, Outage, Store};
pub use crate::telemetry::LogFormat;
use crate::telemetry::gauges::Gauges;
use crate::telemetry::{self, Census, Metrics};
use crate::tool::catalog::Catalog;
use crate::world::{Clock, Ids, Mistakes, RandomIds, SystemClock};

/// Options of `serve` that are not part of the configuration.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    pub log_format: LogFormat,
    /// Names the source of the configuration when no flag or variable does.
    pub note: Option<&'static str>,
    /// The warnings about the configuration.
    pub warnings: Vec<Line>,
    pub database: DatabaseOptions,
}

/// An operator's statements about the database at start.
#[derive(Clone, Copy, Debug, Default)]
pub struct DatabaseOptions {
    /// `--restored`: the database is a restored backup or a promoted standby.
    pub restored: bool,
    /// `--unsafe`: a database that may lose commits is only warned about, not refused.
    pub permit_unsafe: bool,
}

/// How long the start waits for a database that does not answer.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long running calls may take to end on SIGTERM.
const DRAIN: Duration = Duration::from_secs(25);
/// How long the rest may take after that: answers in flight, commits, connections.
const REST: Duration = Duration::from_secs(2);
/// The most connections to the metrics' separate listener.
const SCRAPERS: usize = 16;

/// Adds the mistakes that the rooms find in their parts of the configuration.
pub fn check(config: &Config, mistakes: &mut Mistakes) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    for (name, settings) in config.openai_models() {
        OpenAi::check(&settings, mistakes, &["models", &name]);
    }
    for (name, settings) in config.anthropic_models() {
        Anthropic::check(&settings, mistakes, &["models", &name]);
    }
    for (name, script) in config.scripts() {
        let _ = Scripted::load(name, script, Path::new(""), Arc::clone(&clock), mistakes);
    }
    if let Ok(net) = Net::new() {
        let catalog = Catalog::build(config.tools(), &net, &Arc::default(), mistakes);
        let _ = policy(config, &catalog, mistakes);
    }
    config.store(true).check(mistakes);
}

fn policy(config: &Config, catalog: &Catalog, mistakes: &mut Mistakes) -> Policy {
    let mut specs: Vec<_> = catalog.specs().cloned().collect();
    specs.extend(config.unusable_tools(|name| catalog.get(name).is_some()));
    specs.extend(config.other_tools());
    Policy::new(&config.rules(), &specs, mistakes)
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// The reason why the service could not start.
pub async fn serve(config: Config, options: ServeOptions) -> anyhow::Result<()> {
    let metrics = telemetry::init(options.log_format, config.log.as_deref())?;
    if let Some(note) = options.note {
        tracing::info!("{note}");
    }
    for Line {
        position,
        path,
        detail,
    } in &options.warnings
    {
        tracing::warn!(position, path, detail, "a warning about the configuration");
    }
    crate::tool::shell::make_undumpable().context("this process could not be made undumpable")?;
    descriptors::raise();
    let (demo, open) = (config.demo, config.auth.is_none());
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let world: (Arc<dyn Clock>, Arc<dyn Ids>) = (Arc::new(SystemClock), Arc::new(RandomIds));
    let replica = tokio::select! {
        replica = Replica::start(config, world.0, world.1, Some(metrics), options.database) => replica?,
        _ = terminate.recv() => return Ok(()),
        _ = tokio::signal::ctrl_c() => return Ok(()),
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
    if demo {
        demonstrate(replica.address);
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    tracing::info!("shutting down");
    tokio::select! {
        () = replica.stop() => {}
        _ = terminate.recv() => tracing::warn!("second signal: exiting at once"),
        _ = tokio::signal::ctrl_c() => tracing::warn!("second signal: exiting at once"),
    }
    Ok(())
}

/// A running replica of the service.
pub struct Replica {
    /// The address it listens on.
    pub address: SocketAddr,
    /// The address of its metrics, if separate.
    pub metrics_address: Option<SocketAddr>,
    pub engine: Arc<Engine>,
    pub store: Store,
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
    /// Opens the database, then listens and starts the worker.
    ///
    /// # Errors
    /// The reason why it could not start.
    pub async fn start(
        config: Config,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn Ids>,
        metrics: Option<Metrics>,
        database: DatabaseOptions,
    ) -> anyhow::Result<Self> {
        let store = open(&config, &clock, database).await?;
        store.set_clock_forward(failpoint::clock().unwrap_or_default());
        store.observe_batches(
            |size| tracing::info!(target: telemetry::TARGET, metric = "commit_batch", size),
        );
        let share = serving::share(&config)?;
        let (listener, address) = serving::bind(&config.server.listen).await?;
        let apart = match &config.server.metrics_listen {
            Some(address) => Some(serving::bind(address).await?),
            None => None,
        };
        let metrics_address = apart.as_ref().map(|(_, address)| *address);
        let rooms = Rooms::furnish(&config, &clock)?;
        keep(&store, &rooms.agents, &clock).await?;
        let roster = Roster::new(config.directory());
        let engine = Engine::new(Parts {
            store: store.clone(),
            agents: Arc::clone(&rooms.agents),
            policy: rooms.policy,
            catalog: Arc::clone(&rooms.catalog),
            models: rooms.models,
            roster: roster.clone(),
            sealer: config.sealer(),
            clock: Arc::clone(&clock),
            ids: Arc::clone(&ids),
            settings: engine_settings(&config),
        });
        let (stop, handlers) = (CancellationToken::new(), TaskTracker::new());
        let metrics = match metrics {
            Some(metrics) => metrics,
            None => Metrics::new()?,
        };
        let measured = store.clone();
        let count = Arc::new(
            move || -> std::pin::Pin<Box<dyn Future<Output = Census> + Send>> {
                let store = measured.clone();
                Box::pin(async move { census(&store).await })
            },
        );
        let timed = Arc::clone(&clock);
        let gauges = Gauges::new(count, Arc::new(move || timed.uptime()), handlers.clone());
        let public_url = config
            .server
            .public_url
            .clone()
            .unwrap_or_else(|| format!("http://{address}"));
        let (service, scraped) = http::routers(Http {
            engine: Arc::clone(&engine),
            store: store.clone(),
            agents: cards(&rooms.agents, &rooms.catalog),
            authenticator: Arc::from(config.authenticator()),
            ids,
            clock: Arc::clone(&clock),
            origins: Origins::default(),
            settings: http::Settings {
                public_url,
                request_url: config.server.request_url.clone(),
                cors_origins: config.server.cors_origins.clone(),
                wait: config.server.wait,
                max_streams: share.streams(config.server.max_streams),
                max_streams_per_caller: config.server.max_streams_per_caller,
                stream_life: config.server.stream_life,
                open: config.auth.is_none(),
                metrics_apart: apart.is_some(),
                roster,
                sealer: config.sealer(),
            },
            shutdown: stop.clone(),
            tracker: handlers.clone(),
            stream_limiter: StreamLimiter::default(),
            body_parser: BodyParser::default(),
            wrong_keys: WrongKeys::default(),
            metrics: Arc::new(move || {
                let (metrics, gauges) = (metrics.clone(), Arc::clone(&gauges));
                Box::pin(async move { metrics.render(&gauges.census().await) })
            }),
        });
        let closed = CancellationToken::new();
        let server = |router, most| Server {
            router,
            connections: Connections::new(most),
            clock: Arc::clone(&clock),
        };
        let mut servers = vec![(listener, server(service, share.connections as usize))];
        servers.extend(apart.map(|(listener, _)| (listener, server(scraped, SCRAPERS))));
        let (server, worker) = (
            serving::serving(servers, closed.clone()),
            working(Arc::clone(&engine)),
        );
        Ok(Self {
            address,
            metrics_address,
            engine,
            store,
            stop,
            closed,
            handlers,
            server,
            worker,
        })
    }

    /// Shuts down as on SIGTERM: not ready, no new work, waiting callers get an answer, running
    /// calls may end. It listens until they have ended, so that `/readyz` reports it as not ready.
    pub async fn stop(self) {
        self.stop.cancel();
        self.handlers.close();
        self.engine.shut_down(DRAIN).await;
        self.closed.cancel();
        let rest = async {
            let _ = self.worker.await;
            self.handlers.wait().await;
            let _ = self.server.await;
            self.store.close().await;
        };
        if tokio::time::timeout(REST, rest).await.is_err() {
            tracing::warn!("the shutdown deadline passed before all work had ended");
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the root of the process's own tasks; `Replica::stop` waits for it"
)]
fn working(engine: Arc<Engine>) -> JoinHandle<()> {
    tokio::spawn(engine.work())
}

fn engine_settings(config: &Config) -> engine::Settings {
    let usual = engine::Settings::default();
    engine::Settings {
        max_running: config.server.max_running as usize,
        lease: failpoint::lease().unwrap_or(usual.lease),
        ..usual
    }
}

/// Opens the database, waiting for one that does not answer. Nothing listens meanwhile.
async fn open(
    config: &Config,
    clock: &Arc<dyn Clock>,
    options: DatabaseOptions,
) -> anyhow::Result<Store> {
    let since = clock.uptime();
    let settings = store::Settings {
        restored: options.restored,
        ..config.store(options.permit_unsafe)
    };
    let outage = Outage::new(&settings, Arc::clone(clock));
    loop {
        match Store::open(&settings, Arc::clone(clock)).await {
            Ok(store) => {
                outage.answered();
                return Ok(store);
            }
            Err(OpenError::Unavailable { reason, .. })
                if clock.uptime().saturating_sub(since) < PATIENCE =>
            {
                outage.failed(&reason);
                clock.sleep(Duration::from_secs(1)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Stores the agents' definitions, waiting if the database has become unavailable since it was
/// opened.
async fn keep(store: &Store, agents: &Agents, clock: &Arc<dyn Clock>) -> anyhow::Result<()> {
    let since = clock.uptime();
    for agent in agents.all() {
        while let Err(error) = store.agent_version(&agent.version, &agent.definition).await {
            if error != CommitError::Unavailable || clock.uptime().saturating_sub(since) >= PATIENCE
            {
                return Err(error.into());
            }
            clock.sleep(Duration::from_millis(500)).await;
        }
    }
    Ok(())
}

/// The parts of an engine, built from the configuration.
struct Rooms {
    models: BTreeMap<String, Arc<dyn ModelClient>>,
    catalog: Arc<Catalog>,
    policy: Arc<Policy>,
    agents: Arc<Agents>,
}

impl Rooms {
    fn furnish(config: &Config, clock: &Arc<dyn Clock>) -> anyhow::Result<Self> {
        let net = Net::new()?;
        let redactor = Arc::new(config.redactor());
        let mut mistakes = Mistakes::default();
        let mut models: BTreeMap<String, Arc<dyn ModelClient>> = BTreeMap::new();
        for (name, settings) in config.openai_models() {
            let client = OpenAi::new(
                settings,
                net.clone(),
                Arc::clone(clock),
                Arc::clone(&redactor),
            )?;
            models.insert(name, Arc::new(client));
        }
        for (name, settings) in config.anthropic_models() {
            let client = Anthropic::new(
                settings,
                net.clone(),
                Arc::clone(clock),
                Arc::clone(&redactor),
            )?;
            models.insert(name, Arc::new(client));
        }
        for (name, script) in config.scripts() {
            if let Some(script) = Scripted::load(
                name,
                script,
                Path::new(""),
                Arc::clone(clock),
                &mut mistakes,
            ) {
                models.insert(name.to_owned(), Arc::new(script));
            }
        }
        let catalog = config.with_humans(Catalog::build(
            config.tools(),
            &net,
            &redactor,
            &mut mistakes,
        ));
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
        })
    }
}

/// The agents as `GET /v1/agents` shows them.
fn cards(agents: &Agents, catalog: &Catalog) -> Vec<AgentCard> {
    let tool = |offer: &Offer| {
        let spec = &catalog.get(&offer.name)?.spec;
        Some(ToolCard {
            name: spec.name.clone(),
            description: spec.description.clone(),
            effect: spec.effect,
        })
    };
    let cards = agents.all().map(|agent| AgentCard {
        name: agent.name.clone(),
        description: agent.description.clone(),
        version: agent.version.clone(),
        default: agent.name == agents.default_name(),
        tools: agent.tools.iter().filter_map(tool).collect(),
        sub_agents: agent
            .sub_agents
            .iter()
            .map(|sub| sub.agent.clone())
            .collect(),
        human: agent
            .human
            .iter()
            .map(|kind| kind.as_str().to_owned())
            .collect(),
        open_to: agent.open_to.clone(),
    });
    cards.collect()
}

async fn census(store: &Store) -> Census {
    match store.census().await {
        Ok((tasks, requests)) => Census {
            tasks: tasks
                .into_iter()
                .map(|(status, count)| (status.as_str().to_owned(), count))
                .collect(),
            requests,
        },
        Err(error) => {
            tracing::debug!(%error, "tasks could not be counted");
            Census::default()
        }
    }
}

/// Applies the migrations.
///
/// # Errors
/// The reason why they could not be applied.
pub async fn migrate(config: &Config) -> anyhow::Result<()> {
    Store::migrate(&config.store(true), Arc::new(SystemClock)).await?;
    Ok(())
}

/// Guards one shell command, read from standard input. Returns the exit code.
#[must_use]
pub fn guard() -> u8 {
    u8::try_from(crate::tool::guard::guard_main(&[])).unwrap_or(1)
}

/// The OpenAPI document as JSON.
#[must_use]
pub fn openapi() -> String {
    http::openapi::openapi_json()
}

/// Prints commands to try, and that the model is scripted.
fn demonstrate(address: SocketAddr) {
    let text = format!(
        "\
Holdpoint runs its built-in demonstration at http://{address} (no accounts, SQLite in ./holdpoint.db).
Everybody on this machine is `local` and may approve; behind a reverse proxy everybody would be, so it answers through none.
Its model is scripted: it plays a small refund conversation from a file, it is no language model.

1. Post a task. The refund is over 20, so it is held; the answer shows `pending`.

   curl -s http://{address}/v1/tasks -H 'Content-Type: application/json' -d '{{\"input\": \"Please refund 120 for order 17\"}}'

2. Approve it: POST to the `approval_url` of that answer, or open its `url` in a browser.

   curl -s -X POST http://{address}/resume/REQUEST_ID/approve

3. Look around: http://{address}/docs. A configuration of your own: `holdpoint init`, then
   `holdpoint serve --config holdpoint.yaml`.
"
    );
    let _ = std::io::Write::write_all(&mut std::io::stdout().lock(), text.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;

    use super::*;
    use crate::config::environment::Environment;
    use crate::config::layers::Flags;
    use crate::config::{self, Source};
    use crate::task::time::Time;

    /// A clock whose time passes only in sleeps.
    #[derive(Default)]
    struct Sleeper(Mutex<Duration>);

    #[async_trait]
    impl Clock for Sleeper {
        fn now(&self) -> Time {
            SystemClock.now()
        }

        fn uptime(&self) -> Duration {
            *self.0.lock().unwrap()
        }

        async fn sleep(&self, time: Duration) {
            *self.0.lock().unwrap() += time;
        }
    }

    #[tokio::test]
    async fn database_that_does_not_answer_is_waited_for_one_minute() {
        let gone = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let flags = Flags {
            listen: None,
            database_url: Some(format!("postgres://user:a-password@{gone}/db")),
        };
        let (config, _) =
            config::load(Source::Demo, &Environment::default(), &flags, check).unwrap();
        let slept = Arc::new(Sleeper::default());
        let clock: Arc<dyn Clock> = Arc::<Sleeper>::clone(&slept);
        let error = open(&config, &clock, DatabaseOptions::default())
            .await
            .unwrap_err();
        assert_eq!(slept.uptime(), PATIENCE);
        let said = format!("{error:#} {error:?}");
        assert!(
            !said.contains("a-password") && said.contains(&gone.to_string()),
            "{said}"
        );
    }
}
