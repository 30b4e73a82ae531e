//! Sets up logs and metrics for the whole process. The other modules do not use the metrics
//! library: they emit `tracing` events. An event with the target [`METRIC_TARGET`] is an
//! observation: it is recorded in metrics and not printed. Every other event is a log line. The
//! observations:
//!
//! | `metric` | fields | Prometheus metric, without its prefix `holdpoint_` |
//! |---|---|---|
//! | `http_request` | `operation`, `status`, `seconds` | `http_request_duration_seconds` |
//! | `model_call` | `model`, `outcome`, `seconds` | `model_call_duration_seconds` |
//! | `tool_call` | `tool`, `outcome`, `seconds` | `tool_call_duration_seconds` |
//! | `unknown_outcome` | `tool` | `unknown_outcomes_total` |
//! | `request_decided` | `kind`, `outcome` (the action), `door` | `requests_decided_total` |
//! | `grant_used` | `rule` | `grants_used_total` |
//! | `request_closed` | `kind`, `outcome` | `requests_closed_total` |
//! | `request_closed` | `kind`, `seconds` (since the request was opened) | `request_wait_seconds` |
//! | `event_stream` | `change` (1 or -1) | `event_streams` |
//! | `commit_batch` | `size` | `commit_batch_size` |
//! | `delivery` | `entry`, `outcome` | `deliveries_total` |
//! | `unreachable` | `entry` | `requests_unreachable_total` |
//! | `mcp_server_up` | `server`, `change` (1 or 0) | `mcp_server_up` |
//! | `mcp_catalogue_changed` | `server`, `change` (the number of tools) | `mcp_catalogue_changed` |
//! | `mcp_dropped` | `server`, `kind`, `change` (messages or lines) | `mcp_dropped_total` |
//! | `gate_call` | `gate`, `decision` | `gate_calls_total` |
//! | `gate_ask` | `gate`, `door`, `seconds` | `gate_ask_seconds` |
//! | `gate_waiting` | `change` (1 or -1) | `gate_waiting` |
//! | `delivery_lag` | `entry`, `seconds` (since the commit or due time) | `delivery_lag_seconds` |
//!
//! ```
//! tracing::info!(
//!     target: "holdpoint::metric",
//!     metric = "tool_call", tool = "refund", outcome = "succeeded", seconds = 0.2
//! );
//! ```
//!
//! Invariant: labels are names from the configuration and fixed words (statuses, kinds, outcomes,
//! operations). No label is a tenant, a user, an id or a text of a caller.

mod backlog;
pub(crate) mod gauges;
mod labelled;
mod observation;

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{EnvFilter, FilterExt as _, LevelFilter, filter_fn};
use tracing_subscriber::fmt::{self as lines, MakeWriter};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use backlog::BacklogGauges;
use labelled::LabelledMetrics;
use observation::Observation;

use crate::world::{Backlog, Locked};

/// The `tracing` target of observations.
pub const METRIC_TARGET: &str = "holdpoint::metric";
/// The filter of log lines if `RUST_LOG` is unset or invalid. Every filter leaves out the events of
/// `sqlx`, and the events of other libraries below the level of a warning. These events may contain
/// URLs, headers and statements.
pub const DEFAULT_FILTER: &str = "info";

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    #[default]
    Json,
    /// Plain text, for people.
    Text,
}

/// Sends log lines to standard error and observations to the metrics. `filter` is the value of
/// `RUST_LOG`; an invalid filter causes a warning and counts as unset. Only the first call in a
/// process takes effect. Later calls return metrics that record nothing.
///
/// # Errors
/// Fails if a metric cannot be built (see [`Metrics::new`]).
pub fn init(format: LogFormat, filter: Option<&str>) -> prometheus::Result<Metrics> {
    let metrics = Metrics::new()?;
    let parsed = filter.map(EnvFilter::try_new);
    let is_invalid = matches!(parsed, Some(Err(_)));
    let filter = parsed
        .and_then(Result::ok)
        .unwrap_or_else(|| EnvFilter::new(DEFAULT_FILTER));
    let done = tracing::subscriber::set_global_default(layers(
        metrics.clone(),
        format,
        filter,
        std::io::stderr,
    ));
    if done.is_ok() && is_invalid {
        tracing::warn!("RUST_LOG cannot be read as a filter; the default is used");
    }
    Ok(metrics)
}

fn layers<W>(
    metrics: Metrics,
    format: LogFormat,
    filter: EnvFilter,
    writer: W,
) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let printed = filter_fn(|metadata: &Metadata<'_>| {
        let ours = metadata.target() == "holdpoint" || metadata.target().starts_with("holdpoint::");
        // Events of `sqlx` are not printed, because they may contain parts of the database's URL.
        // No failure is missed, because the store gets an error from `sqlx` for each failure.
        let is_loud = *metadata.level() <= Level::WARN && !metadata.target().starts_with("sqlx");
        metadata.target() != METRIC_TARGET && (ours || is_loud)
    });
    let observed = filter_fn(|metadata: &Metadata<'_>| metadata.target() == METRIC_TARGET)
        .with_max_level_hint(LevelFilter::INFO);
    let printing = match format {
        LogFormat::Json => lines::layer()
            .json()
            .flatten_event(true)
            .with_writer(writer)
            .boxed(),
        LogFormat::Text => lines::layer().with_ansi(false).with_writer(writer).boxed(),
    };
    tracing_subscriber::registry()
        .with(metrics.with_filter(observed))
        .with(printing.with_filter(printed.and(filter)))
}

/// A layer of `tracing` that records observations, the events with the target [`METRIC_TARGET`].
/// Clones share the metrics.
#[derive(Clone)]
pub struct Metrics(Arc<Instruments>);

/// The counts that `telemetry::gauges` reads from the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseCounts {
    /// Pairs of a task status and the number of tasks with this status.
    pub tasks: Vec<(String, i64)>,
    /// The open requests of each kind.
    pub requests: Vec<Backlog>,
    /// The waiting deliveries to each receiver, by the `name` of its entry in `notify.to`.
    pub deliveries: Vec<Backlog>,
}

struct Instruments {
    registry: Registry,
    rendering: Locked<()>,
    tasks: IntGaugeVec,
    requests: BacklogGauges,
    deliveries: BacklogGauges,
    streams: IntGauge,
    gate_waiting: IntGauge,
    batch: Histogram,
    labelled: LabelledMetrics,
}

const BATCH_SIZE_BUCKETS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

impl Metrics {
    /// Builds all metrics.
    ///
    /// # Errors
    /// Fails if a name or a label of a metric is invalid. Names and labels are constants, and a
    /// test builds all metrics, so a failure is a bug.
    pub fn new() -> prometheus::Result<Self> {
        Ok(Self(Arc::new(Instruments::new()?)))
    }

    /// Returns all metrics in Prometheus' text format. The gauges of tasks, requests and deliveries
    /// show `counts`. A metric that observations change has its `HELP` and `TYPE` lines even if it
    /// has no series yet.
    #[must_use]
    pub fn render(&self, counts: &DatabaseCounts) -> String {
        let all = &self.0;
        // Without the lock, a concurrent scrape between `reset` and `set` would miss gauges.
        let _alone = all.rendering.lock();
        all.tasks.reset();
        for (status, count) in &counts.tasks {
            all.tasks.with_label_values(&[status]).set(*count);
        }
        all.requests.set(&counts.requests);
        all.deliveries.set(&counts.deliveries);
        let text = TextEncoder::new().encode_to_string(&all.registry.gather());
        let mut text = text.unwrap_or_default();
        labelled::name_missing(&mut text);
        text
    }

    fn observe(&self, observation: &Observation) {
        let change = observation.change.unwrap_or_default();
        match observation.text("metric") {
            "event_stream" => self.0.streams.add(change),
            "gate_waiting" => self.0.gate_waiting.add(change),
            "commit_batch" => self.0.batch.observe(observation.size),
            _ => self.0.labelled.observe(observation),
        }
    }
}

struct Builder(Registry);

impl Builder {
    fn register<C: Collector + Clone + 'static>(&self, metric: C) -> prometheus::Result<C> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn gauge(&self, name: &str, help: &str, label: &str) -> prometheus::Result<IntGaugeVec> {
        self.register(IntGaugeVec::new(Opts::new(name, help), &[label])?)
    }
}

impl Instruments {
    fn new() -> prometheus::Result<Self> {
        let build = Builder(Registry::new());
        let version = build.gauge("holdpoint_build_info", "Which version this is.", "version")?;
        version
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        let streams = IntGauge::new("holdpoint_event_streams", "Event streams that are open.")?;
        let waiting = IntGauge::new("holdpoint_gate_waiting", "HTTP requests waiting at gates.")?;
        let batch = HistogramOpts::new(
            "holdpoint_commit_batch_size",
            "Changes that were committed together.",
        );
        let batch = batch.buckets(BATCH_SIZE_BUCKETS.to_vec());
        Ok(Self {
            rendering: Locked::default(),
            tasks: build.gauge("holdpoint_tasks", "Tasks, by status.", "status")?,
            requests: BacklogGauges::new(
                &build,
                ("holdpoint_requests_open", "Requests that wait for a human."),
                (
                    "holdpoint_request_oldest_seconds",
                    "The age of the oldest request that waits.",
                ),
                "kind",
            )?,
            deliveries: BacklogGauges::new(
                &build,
                (
                    "holdpoint_deliveries_waiting",
                    "Messages that are to be sent, now or after a failure.",
                ),
                (
                    "holdpoint_delivery_oldest_seconds",
                    "The age of the oldest message that is to be sent.",
                ),
                "target",
            )?,
            streams: build.register(streams)?,
            gate_waiting: build.register(waiting)?,
            batch: build.register(Histogram::with_opts(batch)?)?,
            labelled: LabelledMetrics::new(&build)?,
            registry: build.0,
        })
    }
}

impl<S: Subscriber> Layer<S> for Metrics {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if metadata.target() != METRIC_TARGET || *metadata.level() > Level::INFO {
            return;
        }
        let mut observation = Observation::default();
        event.record(&mut observation);
        self.observe(&observation);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::world::captured::Captured;

    fn events() {
        tracing::info!(target: "holdpoint::metric", metric = "http_request", operation = "create_task", status = 201_u16, seconds = 0.2);
        tracing::info!(target: "holdpoint::metric", metric = "model_call", model = %"main", outcome = "answered", seconds = 1.5);
        tracing::info!(target: "holdpoint::metric", metric = "tool_call", tool = "refund", outcome = "succeeded", seconds = 0.3);
        tracing::info!(target: "holdpoint::metric", metric = "unknown_outcome", tool = "refund");
        tracing::info!(target: "holdpoint::metric", metric = "request_decided", kind = "approval", outcome = "approve", door = "session");
        tracing::info!(target: "holdpoint::metric", metric = "grant_used", rule = "large");
        tracing::info!(target: "holdpoint::metric", metric = "request_closed", kind = "approval", outcome = "approve", seconds = 70.0);
        tracing::info!(target: "holdpoint::metric", metric = "event_stream", change = 1);
        tracing::info!(target: "holdpoint::metric", metric = "event_stream", change = 1_i64);
        tracing::info!(target: "holdpoint::metric", metric = "event_stream", change = -1);
        tracing::info!(target: "holdpoint::metric", metric = "commit_batch", size = 3_usize);
        tracing::info!(target: "holdpoint::metric", metric = "delivery", entry = "backend", outcome = "sent");
        tracing::info!(target: "holdpoint::metric", metric = "delivery_lag", entry = "backend", seconds = 0.5);
        tracing::info!(target: "holdpoint::metric", metric = "unreachable", entry = "by-mail");
        tracing::info!(target: "holdpoint::metric", metric = "mcp_dropped", server = "files", kind = "stderr", change = 2_i64);
        tracing::info!(target: "holdpoint::metric", metric = "mcp_dropped", server = "files", kind = "stderr", change = 1_i64);
        tracing::info!(target: "holdpoint::metric", metric = "no_such", size = 3_usize);
        tracing::info!(task_id = "t", "an ordinary line");
        tracing::info!(target: "hyper::proto", "a library's line, with a header in it");
        tracing::warn!(target: "sqlx_postgres::options::parse", value = "hunter2", "an unknown parameter");
    }

    fn waiting(name: &str, waiting: i64, seconds: u64) -> Backlog {
        Backlog {
            name: name.to_owned(),
            waiting,
            oldest: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn observations_become_metrics_and_are_not_printed() {
        let metrics = Metrics::new().unwrap();
        let captured = Captured::default();
        let subscriber = layers(
            metrics.clone(),
            LogFormat::Json,
            EnvFilter::new(DEFAULT_FILTER),
            captured.writer(),
        );
        tracing::subscriber::with_default(subscriber, events);
        let lines = captured.text();
        assert_eq!(lines.lines().count(), 1, "{lines}");
        let line: serde_json::Value = serde_json::from_str(lines.trim()).unwrap();
        assert_eq!(
            (&line["message"], &line["task_id"], &line["level"]),
            (&"an ordinary line".into(), &"t".into(), &"INFO".into())
        );
        let counts = DatabaseCounts {
            tasks: vec![("Paused".into(), 4)],
            requests: vec![waiting("approval", 3, 100)],
            deliveries: vec![waiting("backend", 7, 90)],
        };
        let text = metrics.render(&counts);
        for line in [
            "holdpoint_http_request_duration_seconds_count{operation=\"create_task\",status=\"201\"} 1",
            "holdpoint_tasks{status=\"Paused\"} 4",
            "holdpoint_requests_open{kind=\"approval\"} 3",
            "holdpoint_request_oldest_seconds{kind=\"approval\"} 100",
            "holdpoint_requests_decided_total{action=\"approve\",door=\"session\",kind=\"approval\"} 1",
            "holdpoint_requests_closed_total{kind=\"approval\",outcome=\"approve\"} 1",
            "holdpoint_request_wait_seconds_sum{kind=\"approval\"} 70",
            "holdpoint_model_call_duration_seconds_sum{model=\"main\",outcome=\"answered\"} 1.5",
            "holdpoint_tool_call_duration_seconds_count{outcome=\"succeeded\",tool=\"refund\"} 1",
            "holdpoint_unknown_outcomes_total{tool=\"refund\"} 1",
            "holdpoint_grants_used_total{rule=\"large\"} 1",
            "holdpoint_event_streams 1",
            "holdpoint_commit_batch_size_sum 3",
            "holdpoint_deliveries_total{outcome=\"sent\",target=\"backend\"} 1",
            "holdpoint_requests_unreachable_total{target=\"by-mail\"} 1",
            "holdpoint_mcp_dropped_total{kind=\"stderr\",server=\"files\"} 3",
            "holdpoint_deliveries_waiting{target=\"backend\"} 7",
            "holdpoint_delivery_oldest_seconds{target=\"backend\"} 90",
            "holdpoint_delivery_lag_seconds_sum{target=\"backend\"} 0.5",
            concat!(
                "holdpoint_build_info{version=\"",
                env!("CARGO_PKG_VERSION"),
                "\"} 1"
            ),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(
            !metrics
                .render(&DatabaseCounts::default())
                .contains("holdpoint_tasks{"),
            "what is gone is not shown"
        );
    }

    #[test]
    fn metrics_are_named_once_before_and_after_their_first_series() {
        let metrics = Metrics::new().unwrap();
        let counts = DatabaseCounts {
            tasks: vec![("Paused".into(), 0)],
            requests: vec![waiting("approval", 0, 0)],
            deliveries: Vec::new(),
        };
        let check = || {
            let text = metrics.render(&counts);
            for named in [
                "http_request_duration_seconds histogram",
                "tasks gauge",
                "requests_open gauge",
                "requests_closed_total counter",
                "request_wait_seconds histogram",
                "model_call_duration_seconds histogram",
                "tool_call_duration_seconds histogram",
                "unknown_outcomes_total counter",
                "event_streams gauge",
                "commit_batch_size histogram",
                "build_info gauge",
                "mcp_server_up gauge",
            ] {
                let named = format!("# TYPE holdpoint_{named}");
                let found = text.lines().filter(|line| *line == named);
                assert_eq!(found.count(), 1, "{named}\n{text}");
            }
        };
        check();
        let subscriber = tracing_subscriber::registry().with(metrics.clone());
        tracing::subscriber::with_default(subscriber, events);
        check();
    }

    #[test]
    fn text_log_lines_are_plain_text() {
        let captured = Captured::default();
        let subscriber = layers(
            Metrics::new().unwrap(),
            LogFormat::Text,
            EnvFilter::new("warn"),
            captured.writer(),
        );
        tracing::subscriber::with_default(subscriber, || {
            events();
            tracing::warn!("look here");
        });
        let lines = captured.text();
        assert!(
            lines.contains("look here") && !lines.contains("ordinary"),
            "{lines}"
        );
    }
}
