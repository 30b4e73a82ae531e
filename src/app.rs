//! The composition root: the only file that names concrete implementations.

use crate::config::Config;
use crate::telemetry;
pub use crate::telemetry::LogFormat;
use crate::world::Mistakes;

/// How to serve, beside the configuration.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// How log lines look.
    pub log_format: LogFormat,
    /// `--restored`: the database is a restored backup.
    pub restored: bool,
    /// `--unsafe`: a database that may lose commits is a warning instead of a refusal.
    pub permit_unsafe: bool,
}

/// What the rooms find wrong with their parts of the configuration.
pub fn check(_config: &Config, _mistakes: &mut Mistakes) {}

/// Serves until it is told to stop.
///
/// # Errors
/// What kept it from serving.
pub async fn serve(config: Config, options: ServeOptions) -> anyhow::Result<()> {
    let _metrics = telemetry::init(options.log_format, config.log.as_deref())?;
    anyhow::bail!("not built yet")
}

/// Applies the migrations.
///
/// # Errors
/// What kept it from applying them.
pub async fn migrate(_config: &Config) -> anyhow::Result<()> {
    anyhow::bail!("not built yet")
}

/// Guards one shell command: reads what to run from standard input. The exit code.
#[must_use]
pub fn guard() -> u8 {
    1
}

/// The description of the API, as JSON text.
#[must_use]
pub fn openapi() -> String {
    "{}\n".to_owned()
}
