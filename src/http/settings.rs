//! The settings that the HTTP operations read, composed from several sections of the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::people::authorization::Roster;
use crate::people::link::Links;
use crate::secret::seal::Sealer;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The public base URL of the service, from which all links are built, without a slash at its
    /// end.
    pub public_url: String,
    /// The URL of the operator's own page for a request, with the placeholder `{request_id}`.
    /// `None`: links lead to the page of this service.
    pub request_url: Option<String>,
    /// The origins, besides that of `public_url`, whose pages may use the API.
    pub cors_origins: Vec<String>,
    /// The time that a POST waits for its result if the client sends no preference (`Prefer: wait`,
    /// RFC 7240).
    pub wait: Duration,
    pub max_streams: u32,
    pub max_streams_per_caller: u32,
    /// The maximum number of HTTP requests that wait at gates at the same time in this process.
    pub max_waiting: u32,
    /// The time after which the service ends an event stream. The client then reconnects.
    pub stream_life: Duration,
    pub without_accounts: bool,
    pub has_metrics_listener: bool,
    /// The names of the entries of `notify.to`, each with its tenants.
    pub receivers: BTreeMap<String, Vec<String>>,
    /// The users in the configuration. `server/guard.rs` looks up the person of a sealed link among
    /// them. An edit that needs the approval of other people is permitted only if enough of these
    /// users may approve it.
    pub roster: Roster,
    /// Makes the keyed hashes of POST bodies. The service stores these hashes to recognize a
    /// repeated POST. From a hash without a key, a reader of the database could find a credential
    /// of the body by guessing. `None`: the hashes have no key, and no request asks for a
    /// credential.
    pub sealer: Option<Sealer>,
    /// Seals and opens the links in messages to people; `None` if messages contain no links.
    pub links: Option<Links>,
}
