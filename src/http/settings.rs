//! What the operator decides about the HTTP side.

use std::time::Duration;

use crate::people::may::Roster;
use crate::secret::seal::Sealer;

/// What the operator decides about the HTTP side.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// What links begin with.
    pub public_url: String,
    /// The operator's own page for a request, with `{request_id}` in it.
    pub request_url: Option<String>,
    /// Frontends on other origins.
    pub cors_origins: Vec<String>,
    /// How long a POST waits unless it says so.
    pub wait: Duration,
    /// Event streams at once in this process.
    pub max_streams: u32,
    /// Event streams of one caller.
    pub max_streams_per_caller: u32,
    /// How long an event stream lives before it is ended and asked for again.
    pub stream_life: Duration,
    /// Whether there are no accounts.
    pub open: bool,
    /// Whether `/metrics` has a listener of its own.
    pub metrics_apart: bool,
    /// Who is known: what of a request somebody is offered depends on it.
    pub roster: Roster,
    /// What hashes bodies, which may hold credentials.
    pub sealer: Option<Sealer>,
}

impl Settings {
    /// The same with a `public_url` that paths can follow.
    #[must_use]
    pub fn trimmed(mut self) -> Self {
        self.public_url = self.public_url.trim_end_matches('/').to_owned();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;

    #[test]
    fn public_url_loses_its_trailing_slash() {
        let settings = Settings { public_url: "https://hold.example/base/".into(), ..sample::settings() };
        assert_eq!(settings.trimmed().public_url, "https://hold.example/base");
    }
}
