//! The settings of a gate, where agents that run elsewhere propose calls. A gate has tools, callers
//! and times, but no model and no instructions.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::OpenTo;
use crate::task::units::duration_text;

/// The upper bound of `use_within`, `run_within` and `no_lasts`.
const MAX_TIME: Duration = Duration::from_hours(24);
/// The upper bound of `hold`. `server.wait` has the same upper bound.
const MAX_HOLD: Duration = Duration::from_mins(5);
const MAX_OPEN_CALLS: u32 = 1000;

/// A gate, at which agents that run elsewhere propose calls as callers of the API.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Gate {
    /// The purpose of the gate, shown to callers.
    pub description: String,
    /// The names of the tools that callers may propose to call. A glob names tools of MCP servers.
    pub tools: Vec<String>,
    /// The callers who may use the gate. Default: every caller.
    #[schemars(with = "OpenTo")]
    pub open_to: Option<OpenTo>,
    /// The treatment of a call whose tool the gate does not list. `deny`: the call is invalid.
    /// `judge`: the rules decide. A rule with `decide: allow` matches such a tool only by a glob,
    /// never by the exact name.
    pub other_tools: OtherTools,
    /// The maximum time that an MCP client or a gateway waits for a decision; an MCP client may set
    /// another with the header `Prefer: wait=N`. After that time, the client or gateway must ask
    /// again. 5 minutes at most.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub hold: Duration,
    /// The time within which an approved call must start. The time counts from the approval. If a
    /// person later answers another question about the call, the time counts from that answer. An
    /// approval alone starts nothing: the caller must still be waiting, or must propose the call
    /// again within this time. 24 hours at most.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub use_within: Duration,
    /// The time within which the caller must run a call, counted from the permit. 24 hours at most.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub run_within: Duration,
    /// The time for which a person's rejection of a call counts. If a caller proposes the same call
    /// again within this time, the call is denied without a new request. `0s`: never. 24 hours at
    /// most.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub no_lasts: Duration,
    /// Whether the caller must report the outcome of a call that it ran.
    pub report: Report,
    /// The calls that are stored. `all`: every call. `held`: every call, except a call of a
    /// `read_only` tool if a rule allows the call and the caller runs it. The gate only counts an
    /// excepted call in its metrics, and the caller does not report the outcome of that call,
    /// whatever `report` says.
    pub record: RecordedCalls,
    /// The maximum number of pending calls of one user. 1000 at most. If several replicas store
    /// calls at the same moment, the number of pending calls may exceed the maximum.
    pub max_open: u32,
    /// The gRPC operations by which gateways ask this gate. Default: the gate has none.
    pub ext_authz: Option<ExtAuthz>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            description: String::new(),
            tools: Vec::new(),
            open_to: None,
            other_tools: OtherTools::default(),
            hold: Duration::from_secs(45),
            use_within: Duration::from_hours(1),
            run_within: Duration::from_mins(10),
            no_lasts: Duration::from_mins(10),
            report: Report::default(),
            record: RecordedCalls::default(),
            max_open: 20,
            ext_authz: None,
        }
    }
}

impl Gate {
    /// Returns the key of each setting that is out of bounds, with the allowed values.
    #[must_use]
    pub fn out_of_bounds(&self) -> Vec<(&'static str, &'static str)> {
        let within = |time: Duration| !time.is_zero() && time <= MAX_TIME;
        let checks = [
            ("hold", self.hold <= MAX_HOLD, "5m at most"),
            (
                "use_within",
                within(self.use_within),
                "more than 0, 24h at most",
            ),
            (
                "run_within",
                within(self.run_within),
                "more than 0, 24h at most",
            ),
            ("no_lasts", self.no_lasts <= MAX_TIME, "24h at most"),
            (
                "max_open",
                (1..=MAX_OPEN_CALLS).contains(&self.max_open),
                "1 to 1000",
            ),
        ];
        let wrong = checks.into_iter().filter(|(_, fits, _)| !fits);
        wrong.map(|(key, _, allowed)| (key, allowed)).collect()
    }
}

/// The judgement of a call whose tool the gate does not list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OtherTools {
    /// The call is invalid.
    #[default]
    Deny,
    /// The rules decide. A rule with `decide: allow` counts only if it matches the tool's name by a
    /// glob. If no rule matches, the call is held.
    Judge,
}

/// Whether a caller must report the outcome of a call that it ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// A call whose outcome is not reported in time has an unknown outcome.
    #[default]
    Required,
    /// No report is needed: as soon as a call gets its permit, the call is settled with the outcome
    /// `released`.
    Optional,
}

/// The calls that are stored in the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Record")]
pub enum RecordedCalls {
    /// Every call.
    #[default]
    All,
    /// Every call except calls of `read_only` tools that a rule allows and that the caller runs.
    /// The gate counts such a call in its metrics instead.
    Held,
}

/// The gRPC operations of a gate, for Envoy and agentgateway.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExtAuthz {
    /// The name of the header in which the gateway puts the user id on the checked request. If this
    /// setting or the header is missing, the caller is the user of the gateway's key.
    pub user_header: Option<String>,
    /// The name of the header of the checked request in which the gateway puts the user's groups,
    /// separated by commas. Used only with `user_header`. Default: the user has no groups.
    pub groups_header: Option<String>,
    /// The name of the header of the checked request that has the session id. A call whose header
    /// is not a session id (1 to 128 of `A-Z a-z 0-9 . _ : -`) is denied. Default: no session id is
    /// read.
    pub session_header: Option<String>,
    /// Whether requests with JSON-RPC methods other than `tools/call` pass without a check.
    pub pass_others: bool,
}

impl Default for ExtAuthz {
    fn default() -> Self {
        Self {
            user_header: None,
            groups_header: None,
            session_header: None,
            pass_others: true,
        }
    }
}

impl ExtAuthz {
    /// Returns whether a setting names this header of the checked request.
    #[must_use]
    pub fn reads_header(&self, name: &str) -> bool {
        let read = [&self.user_header, &self.groups_header, &self.session_header];
        let mut read = read.into_iter().flatten();
        read.any(|header| header.eq_ignore_ascii_case(name))
    }
}

/// The settings of a gate that are part of its stored definition. A call keeps the values under
/// which it was proposed, even if the configuration changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PinnedGateSettings {
    #[serde(with = "duration_text")]
    use_within: Duration,
    #[serde(with = "duration_text")]
    run_within: Duration,
    report: Report,
}

impl Default for PinnedGateSettings {
    fn default() -> Self {
        Self::from(&Gate::default())
    }
}

impl From<&Gate> for PinnedGateSettings {
    fn from(gate: &Gate) -> Self {
        Self {
            use_within: gate.use_within,
            run_within: gate.run_within,
            report: gate.report,
        }
    }
}

impl PinnedGateSettings {
    pub(crate) fn apply_to(self, current: &Gate) -> Gate {
        Gate {
            use_within: self.use_within,
            run_within: self.run_within,
            report: self.report,
            ..current.clone()
        }
    }
}
