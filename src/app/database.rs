//! Opens the database at the start of the service. Retries while the database cannot be reached.

use std::sync::Arc;
use std::time::Duration;

use crate::agent::Agents;
use crate::config::Config;
use crate::failpoint;
use crate::store::{self, CommitError, OpenError, Outage, Store};
use crate::telemetry;
use crate::world::Clock;

/// The operator's options about the database.
#[derive(Clone, Copy, Debug, Default)]
pub struct DatabaseOptions {
    /// `--restored`: the database is a restored backup or a promoted standby.
    pub restored: bool,
    /// `--unsafe`: the service starts even if the database may lose commits, and logs a warning.
    pub permit_unsafe: bool,
}

/// The maximum time for which the start waits for a database that does not answer.
const OPEN_TIMEOUT: Duration = Duration::from_mins(1);
/// The pause between two attempts to open the database.
const OPEN_PAUSE: Duration = Duration::from_secs(1);

/// Opens the database, and stores the definitions of the agents in it. Reports the number of
/// changes in each commit batch as a metric. Applies the failpoints' settings of the clock and of the
/// statement that writes commits, if any.
pub(super) async fn open_with_definitions(
    config: &Config,
    clock: &Arc<dyn Clock>,
    options: DatabaseOptions,
    agents: &Agents,
) -> anyhow::Result<Store> {
    let store = open(config, clock, options).await?;
    store.set_clock_forward(failpoint::clock_offset().unwrap_or_default());
    if failpoint::general_statement() {
        store.use_general_statement();
    }
    store.observe_batches(
        |size| tracing::info!(target: telemetry::METRIC_TARGET, metric = "commit_batch", size),
    );
    store_definitions(&store, agents, clock).await?;
    Ok(store)
}

/// Opens the database. Retries for at most [`OPEN_TIMEOUT`] in two cases: the database is
/// unavailable, or another transaction has locked a table that a migration changes.
pub(super) async fn open(
    config: &Config,
    clock: &Arc<dyn Clock>,
    options: DatabaseOptions,
) -> anyhow::Result<Store> {
    let since = clock.uptime();
    let mut settings = store::Settings {
        restored: options.restored,
        ..config.store(options.permit_unsafe)
    };
    let outage = Outage::new(&settings, Arc::clone(clock));
    loop {
        let left = OPEN_TIMEOUT.saturating_sub(clock.uptime().saturating_sub(since));
        settings.open_timeout = left;
        let error = match Store::open(&settings, Arc::clone(clock)).await {
            Ok(store) => {
                outage.answered();
                return Ok(store);
            }
            Err(error) => error,
        };
        if let OpenError::Unavailable { reason, .. } = &error {
            outage.failed(reason);
        } else if matches!(error, OpenError::TableInUse) {
            tracing::warn!("{error}");
        } else {
            return Err(error.into());
        }
        let left = OPEN_TIMEOUT.saturating_sub(clock.uptime().saturating_sub(since));
        clock.sleep(OPEN_PAUSE.min(left)).await;
        if left <= OPEN_PAUSE {
            return Err(error.into());
        }
    }
}

/// Stores the definitions of agents and gates. While the database is unavailable, retries for at
/// most [`OPEN_TIMEOUT`].
pub(super) async fn store_definitions(
    store: &Store,
    agents: &Agents,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<()> {
    let since = clock.uptime();
    for agent in agents.definitions() {
        while let Err(error) = store
            .store_agent_version(&agent.version, &agent.definition)
            .await
        {
            if error != CommitError::Unavailable
                || clock.uptime().saturating_sub(since) >= OPEN_TIMEOUT
            {
                return Err(error.into());
            }
            clock.sleep(Duration::from_millis(500)).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use async_trait::async_trait;

    use super::*;
    use crate::app::check;
    use crate::config::environment::Environment;
    use crate::config::layers::Flags;
    use crate::config::{self, Source};
    use crate::task::time::Time;
    use crate::world::SystemClock;

    /// A clock whose uptime advances only by sleeps.
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

    /// The part of [`OPEN_TIMEOUT`] that remains after the jump of [`LateClock`].
    const LEFT: Duration = Duration::from_millis(50);

    /// A clock that jumps after its first reading, so that only [`LEFT`] remains of
    /// [`OPEN_TIMEOUT`]. Afterwards, its uptime advances only by sleeps.
    #[derive(Default)]
    struct LateClock {
        was_read: AtomicBool,
        slept: Sleeper,
    }

    #[async_trait]
    impl Clock for LateClock {
        fn now(&self) -> Time {
            SystemClock.now()
        }

        fn uptime(&self) -> Duration {
            if self.was_read.swap(true, Ordering::Relaxed) {
                OPEN_TIMEOUT.saturating_sub(LEFT) + self.slept.uptime()
            } else {
                Duration::ZERO
            }
        }

        async fn sleep(&self, time: Duration) {
            self.slept.sleep(time).await;
        }
    }

    /// Returns the demonstration's configuration with the database at `database_url`.
    fn config_of(database_url: String) -> Config {
        let flags = Flags {
            listen: None,
            database_url: Some(database_url),
        };
        let loaded = config::load(Source::Demo, &Environment::default(), &flags, check);
        loaded.unwrap().0
    }

    #[tokio::test]
    async fn definition_of_every_agent_and_gate_is_stored() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("h.db");
        let config = config_of(format!("sqlite://{}", file.display()));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let store = open(&config, &clock, DatabaseOptions::default())
            .await
            .unwrap();
        let agents = config.agents();
        store_definitions(&store, &agents, &clock).await.unwrap();
        for name in ["demo", "refunds"] {
            let agent = agents.get(name).unwrap();
            let stored = store.agent_definition(&agent.version).await.unwrap();
            assert_eq!(stored.as_ref(), Some(&agent.definition), "{name}");
        }
        store.close().await;
    }

    #[tokio::test]
    async fn database_that_does_not_answer_is_waited_for_one_minute() {
        let refusing = crate::net::tests::refusing_socket();
        let gone = refusing.local_addr().unwrap();
        let config = config_of(format!("postgres://user:a-password@{gone}/db"));
        let slept = Arc::new(Sleeper::default());
        let clock: Arc<dyn Clock> = Arc::<Sleeper>::clone(&slept);
        let error = open(&config, &clock, DatabaseOptions::default())
            .await
            .unwrap_err();
        assert_eq!(slept.uptime(), OPEN_TIMEOUT);
        let said = format!("{error:#} {error:?}");
        assert!(
            !said.contains("a-password") && said.contains(&gone.to_string()),
            "{said}"
        );
    }

    #[tokio::test]
    async fn last_attempt_at_a_silent_database_takes_no_longer_than_the_time_that_is_left() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        let mut config = config_of(format!("postgres://user@{address}/db?sslmode=disable"));
        config.database.acquire_timeout = Duration::from_secs(30);
        let clock: Arc<dyn Clock> = Arc::new(LateClock::default());
        let began = Instant::now();
        let opened = open(&config, &clock, DatabaseOptions::default()).await;
        let error = opened.unwrap_err().to_string();
        assert!(error.contains("no answer in time"), "{error}");
        let taken = began.elapsed();
        assert!(taken < config.database.acquire_timeout, "{taken:?}");
    }
}
