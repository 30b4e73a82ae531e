//! The operator's settings for the HTTP server.

use std::time::Duration;

use crate::people::authorization::Roster;
use crate::people::link::Links;
use crate::secret::seal::Sealer;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The public base URL of the service, from which all links are built.
    pub public_url: String,
    /// The URL of the operator's own page for a request, with `{request_id}` in it. `None`: links
    /// lead to the page of this service.
    pub request_url: Option<String>,
    /// Other origins whose pages may use the API.
    pub cors_origins: Vec<String>,
    /// The time that a POST waits if the client sends no preference.
    pub wait: Duration,
    /// The maximum number of event streams of this process.
    pub max_streams: u32,
    /// The maximum number of event streams of one caller.
    pub max_streams_per_caller: u32,
    /// The maximum number of proposals at gates that wait at the same time in this process.
    pub max_waiting: u32,
    /// The time after which the service ends an event stream, so that the client reconnects.
    pub stream_life: Duration,
    pub without_accounts: bool,
    pub has_metrics_listener: bool,
    /// The known users. Some actions are offered to a caller only if enough other known users may
    /// approve.
    pub roster: Roster,
    /// Hashes request bodies with a secret key, because a body may contain credentials.
    pub sealer: Option<Sealer>,
    /// Seals and opens the links in messages to people; `None` if messages contain no links.
    pub links: Option<Links>,
}

impl Settings {
    /// Removes the slashes at the end of `public_url`, so that a path can follow.
    #[must_use]
    pub(crate) fn without_trailing_slash(mut self) -> Self {
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
        let settings = Settings {
            public_url: "https://hold.example/base/".into(),
            ..sample::settings()
        };
        assert_eq!(
            settings.without_trailing_slash().public_url,
            "https://hold.example/base"
        );
    }
}
