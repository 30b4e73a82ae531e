//! What the operator decides about the HTTP side.

use std::time::Duration;

use super::origin::Origins;
use crate::people::may::Roster;
use crate::secret::seal::Sealer;
use crate::world::Mistakes;

/// The longest a POST waits.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// What the operator decides about the HTTP side.
#[derive(Clone, Debug)]
pub struct Settings {
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
    /// Adds everything that is wrong.
    pub fn check(&self, mistakes: &mut Mistakes) {
        let is_address = |text: &str| {
            url::Url::parse(text).is_ok_and(|url| {
                matches!(url.scheme(), "http" | "https")
                    && url.has_host()
                    && url.username().is_empty()
                    && url.password().is_none()
                    && url.fragment().is_none()
            })
        };
        if !is_address(&self.public_url) || self.public_url.contains('?') {
            mistakes.add(&["server", "public_url"], "an http or https address, without user, query or fragment");
        }
        if let Some(url) = &self.request_url
            && !(url.contains("{request_id}") && is_address(&url.replace("{request_id}", "id")))
        {
            mistakes.add(&["server", "request_url"], "an http or https address with {request_id} in it");
        }
        for (index, origin) in self.cors_origins.iter().enumerate() {
            if !Origins::is_origin(origin) {
                let index = index.to_string();
                mistakes.add(
                    &["server", "cors_origins", &index],
                    "an origin: http or https, a host, maybe a port, nothing after it; `*` is none",
                );
            }
        }
        if self.wait > LONGEST_WAIT {
            mistakes.add(&["server", "wait"], "300s at most");
        }
    }

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
    use crate::http::sample;

    fn places(settings: &Settings) -> Vec<String> {
        let mut mistakes = Mistakes::default();
        settings.check(&mut mistakes);
        mistakes.found.into_iter().map(|mistake| mistake.place.join("/")).collect()
    }

    #[test]
    fn what_is_usual_is_right() {
        let settings = Settings {
            public_url: "https://hold.example/base/".into(),
            request_url: Some("https://app.example/r/{request_id}?tab=1".into()),
            cors_origins: vec!["https://app.example".into(), "http://localhost:3000".into()],
            ..sample::settings()
        };
        assert!(places(&settings).is_empty());
        assert!(places(&sample::settings()).is_empty());
        assert_eq!(settings.trimmed().public_url, "https://hold.example/base");
    }

    #[test]
    fn every_mistake_is_told() {
        let settings = Settings {
            public_url: "hold.example".into(),
            request_url: Some("https://app.example/r".into()),
            cors_origins: vec!["*".into(), "https://app.example".into(), "https://app.example/x".into(), "null".into()],
            wait: Duration::from_secs(301),
            ..sample::settings()
        };
        let expected = [
            "server/public_url",
            "server/request_url",
            "server/cors_origins/0",
            "server/cors_origins/2",
            "server/cors_origins/3",
            "server/wait",
        ];
        assert_eq!(places(&settings), expected);
    }
}
