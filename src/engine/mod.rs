//! The engine drives tasks. A command (`commands/`) appends facts to a task's journal; the loop in
//! `driver/` carries out the task's next steps. After a crash at any point, the next driver asks
//! `next_step` again and continues the task.

mod commands;
mod driver;
pub mod gate;
mod recovery;
mod runtime;
mod session;
mod test_support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use self::commands::MAX_TRIES;
pub use self::commands::{
    Accepted, CallReply, CommitPosition, ConflictCode, DecidableRequest, DecisionBody,
    DecisionInput, Decisions, Detail, DetailCode, FieldError, Grants, IdempotencyKey, LoggedCause,
    MessageInput, Refusal, TaskInput,
};
use self::gate::OpenCallLocks;
use self::runtime::awaited_calls::AwaitedCalls;
use self::runtime::in_flight_calls::InFlightCalls;
use self::runtime::in_flight_model_calls::InFlightModelCalls;
use self::runtime::keyed_tools::KeyedTools;
use self::runtime::leases::Leases;
use self::runtime::lone_drive::LoneDrives;
pub use self::runtime::worker::Worker;
use self::session::Stop;
use crate::agent::{Agent, Agents};
use crate::model::ModelClient;
use crate::people::authorization::Roster;
use crate::policy::Policy;
use crate::secret::seal::Sealer;
use crate::store::Store;
use crate::tool::catalog::Catalog;
use crate::world::{Clock, Ids, Locked};

/// The maximum time for releasing leases at shutdown. A lease that is not released in this time
/// ends at its stored end time.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause between two tries of a database operation.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Limits of the engine in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The maximum number of tasks that run at once in this process; further tasks wait in the
    /// database.
    pub max_running: usize,
    /// The duration of a lease. The worker renews its leases whenever a third of this time has
    /// passed.
    pub lease: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_running: 64,
            lease: Duration::from_secs(30),
        }
    }
}

/// The dependencies from which [`Engine::new`] builds an engine.
#[derive(Clone)]
pub struct EngineParts {
    pub store: Store,
    /// The agents and gates of the current configuration.
    pub agents: Arc<Agents>,
    pub policy: Arc<Policy>,
    /// Tools, and the credentials that agents may ask for.
    pub catalog: Arc<Catalog>,
    /// The clients of the models, by the name of the model in the configuration.
    pub models: BTreeMap<String, Arc<dyn ModelClient>>,
    /// The current accounts. The engine checks approvals against these accounts again before a call
    /// starts.
    pub roster: Roster,
    /// Seals credentials; `None` without sealing keys.
    pub sealer: Option<Sealer>,
    /// Wall time, uptime and sleeps of this machine.
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    pub settings: Settings,
}

/// The engine of a process. Its commands, workers and drivers share the store with the engines of
/// other processes.
pub struct Engine {
    store: Store,
    agents: Arc<Agents>,
    /// A cache of agents in versions that the configuration no longer has, by version. It has at
    /// most `MAX_CACHED` entries.
    cached_agents: Locked<BTreeMap<String, Arc<Agent>>>,
    /// Maps the digest of a definition to `true` if the definition is a gate's, and to `false` if
    /// it is an agent's. A cache for definitions that the configuration no longer has, with at most
    /// `MAX_CACHED` entries.
    gate_versions: Locked<BTreeMap<String, bool>>,
    policy: Arc<Policy>,
    catalog: Arc<Catalog>,
    models: BTreeMap<String, Arc<dyn ModelClient>>,
    roster: Roster,
    sealer: Option<Sealer>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    settings: Settings,
    /// The id of this process in leases, random at each start.
    replica: String,
    /// The `max_running` slots of this process. A driver needs a slot to call a model or a tool.
    slots: Arc<Semaphore>,
    leases: Arc<Leases>,
    in_flight_calls: Arc<InFlightCalls>,
    in_flight_model_calls: Arc<InFlightModelCalls>,
    awaited_calls: AwaitedCalls,
    open_call_locks: OpenCallLocks,
    keyed_tools: KeyedTools,
    drivers: TaskTracker,
    /// Whether a queued task may be waiting in the database for a slot of this process.
    backlog: AtomicBool,
    /// The number of overdue requests that the next call of `expire_overdue` skips, because this
    /// process could not close them.
    skipped_overdue: AtomicUsize,
    /// Wakes the worker: a slot may be free, or a task may wait to be claimed.
    wake_worker: Arc<Notify>,
    /// The state of lone drives. In a lone drive, a task takes all slots and is driven alone.
    lone_drives: Arc<LoneDrives>,
    /// Canceled when the service begins to shut down. After the cancellation, drivers begin no
    /// further call of a model or a tool.
    stop: CancellationToken,
    /// Canceled during shutdown, once no driver is left or the grace period is over.
    shutdown_over: CancellationToken,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({})", self.replica)
    }
}

impl Engine {
    /// Returns an engine without drivers. The engine accepts commands at once, and claims tasks
    /// while [`Worker::run`] runs.
    #[must_use]
    pub fn new(parts: EngineParts) -> Arc<Self> {
        let replica = parts.ids.fresh().to_string();
        let wake_worker = Arc::new(Notify::new());
        Arc::new(Self {
            store: parts.store,
            agents: parts.agents,
            cached_agents: Locked::default(),
            gate_versions: Locked::default(),
            policy: parts.policy,
            catalog: parts.catalog,
            models: parts.models,
            roster: parts.roster,
            sealer: parts.sealer,
            clock: parts.clock,
            ids: parts.ids,
            slots: Arc::new(Semaphore::new(parts.settings.max_running)),
            settings: parts.settings,
            replica,
            leases: Arc::default(),
            in_flight_calls: Arc::default(),
            in_flight_model_calls: Arc::default(),
            awaited_calls: AwaitedCalls::default(),
            open_call_locks: OpenCallLocks::default(),
            keyed_tools: KeyedTools::default(),
            drivers: TaskTracker::new(),
            backlog: AtomicBool::new(false),
            skipped_overdue: AtomicUsize::new(0),
            lone_drives: Arc::new(LoneDrives::new(Arc::clone(&wake_worker))),
            wake_worker,
            stop: CancellationToken::new(),
            shutdown_over: CancellationToken::new(),
        })
    }

    #[must_use]
    pub fn agents(&self) -> &Agents {
        &self.agents
    }

    /// Waits a fixed time before the next retry of a database operation.
    ///
    /// # Errors
    /// `Lost` once the service has gone down.
    async fn back_off(&self) -> Result<(), Stop> {
        if self.shutdown_over.is_cancelled() {
            return Err(Stop::Lost);
        }
        self.clock.sleep(RETRY_PAUSE).await;
        Ok(())
    }

    /// Shuts the engine down: drivers begin no further call of a model or a tool, and get `time` to
    /// end their calls in flight. The engine queues tasks that can continue, so that other replicas
    /// claim these tasks. If a call that must not be repeated is still running after `time`, the
    /// next replica finds the call's start in the journal. It waits until the call's timeout has
    /// passed, and then asks a person about the outcome.
    pub async fn shut_down(&self, time: Duration) {
        self.stop.cancel();
        self.drivers.close();
        tokio::select! {
            () = self.drivers.wait() => {}
            () = self.clock.sleep(time) => tracing::warn!("calls were still running at the shutdown deadline"),
        }
        self.shutdown_over.cancel();
        let held: Vec<_> = self
            .leases
            .all()
            .into_iter()
            .map(|(task, _)| task)
            .collect();
        if held.is_empty() {
            return;
        }
        tokio::select! {
            released = self.store.release(&self.replica, &held) => {
                let released = released.map_or(0, |tasks| tasks.len());
                tracing::warn!(held = held.len(), released, "leases were released while calls were still running");
            }
            () = self.clock.sleep(RELEASE_TIMEOUT) => {}
        }
    }
}
