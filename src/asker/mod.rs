//! The client side of a gate, for askers: an asker is an agent, a hook or a script that waits for
//! the verdict on its call. The client proposes a call, waits for its verdict, reports its outcome,
//! and translates between the gate's API and the hooks of coding agents.
//!
//! Invariant: a call runs only if the service's answer is complete and consistent, and allows the
//! call. A missing, incomplete or inconsistent answer is an error, and the hook or command then
//! refuses the call.

pub mod client;
pub mod hook;
pub mod hook_input;
pub mod print;

use std::time::Duration;

use reqwest::header::HeaderValue;

use crate::task::units;

/// The base URL of the service if `HOLDPOINT_URL` is unset or empty.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";
/// The default of `HOLDPOINT_WAIT`. It is below 60 s because older versions of the coding agents
/// kill their hooks after 60 s.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(50);

/// The service, the key and the gate that an asker uses.
#[derive(Clone)]
pub struct AskerSettings {
    /// The base URL, without a slash at its end.
    pub url: String,
    /// The API key; `None` for a service without accounts.
    pub key: Option<String>,
    /// The name of the gate. May be `None` if only one gate is open to the key.
    pub gate: Option<String>,
    /// How long the asker waits for a person to decide a held call.
    pub wait: Duration,
}

impl AskerSettings {
    /// Reads the settings from environment variables. `variable` returns the value of the variable
    /// with the given name. White space at the end of a value does not count, because files and
    /// shells add a line end.
    ///
    /// # Errors
    /// Fails if a value is malformed. The error is one line for a person and does not contain the
    /// value.
    pub fn read<'v>(variable: impl Fn(&str) -> Option<&'v str>) -> Result<Self, String> {
        let set = |name| {
            let value = variable(name).map(str::trim_end);
            value.filter(|value| !value.is_empty())
        };
        let url = set("HOLDPOINT_URL").unwrap_or(DEFAULT_URL);
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err("HOLDPOINT_URL must begin with http:// or https://".to_owned());
        }
        let wait = match set("HOLDPOINT_WAIT") {
            Some(text) => parse_wait(text).map_err(|why| format!("HOLDPOINT_WAIT: {why}"))?,
            None => DEFAULT_WAIT,
        };
        let key = set("HOLDPOINT_KEY");
        if key.is_some_and(|key| HeaderValue::from_bytes(key.as_bytes()).is_err()) {
            return Err("HOLDPOINT_KEY does not fit into an HTTP header".to_owned());
        }
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            key: key.map(str::to_owned),
            gate: set("HOLDPOINT_GATE").map(str::to_owned),
            wait,
        })
    }
}

/// Parses a wait such as `0s`, `50s` or `10m`.
///
/// # Errors
/// Fails if `text` is not a duration.
pub fn parse_wait(text: &str) -> Result<Duration, String> {
    units::parse_duration(text)
        .ok_or_else(|| "expected a duration such as `50s` or `10m`".to_owned())
}

#[cfg(test)]
mod tests;
