//! A gate: the place where agents that run elsewhere propose calls. It has tools, callers and times,
//! and neither a model nor instructions.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::OpenTo;
use crate::task::units::duration_text;

/// The longest of `use_within`, `run_within` and `no_lasts`.
const LONGEST: Duration = Duration::from_hours(24);
/// The longest `hold`: the longest wait that a client may ask for.
const LONGEST_HOLD: Duration = Duration::from_mins(5);
/// The most calls of a user that may be pending.
const MOST_OPEN: u32 = 1000;

/// A gate. Agents that run elsewhere propose calls at it, as callers of the API.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Gate {
    /// The purpose of the gate, shown to callers.
    pub description: String,
    /// The names of the tools that callers may propose calls of. Globs name tools of MCP servers.
    pub tools: Vec<String>,
    /// The callers who may use the gate. Default: every caller.
    pub open_to: Option<OpenTo>,
    /// The judgement of a call whose tool the gate does not list: `deny` makes it invalid, `judge`
    /// puts it to the rules whose globs match its name.
    pub other_tools: OtherTools,
    /// How long an MCP client or a gateway waits for a decision before it is told to ask again. 5
    /// minutes at most.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub hold: Duration,
    /// How long an approved call waits for its asker. 24 hours at most.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub use_within: Duration,
    /// How long a permit lasts. 24 hours at most.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub run_within: Duration,
    /// How long a person's rejection answers the same call. `0s` is never, 24 hours at most.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub no_lasts: Duration,
    /// Whether the caller must report the outcome of a call that it ran.
    pub report: Report,
    /// The calls that the journal keeps.
    pub record: Record,
    /// The number of pending calls of one user, 1000 at most.
    pub max_open: u32,
    /// The gRPC operations for gateways. Without it they are closed for this gate.
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
            record: Record::default(),
            max_open: 20,
            ext_authz: None,
        }
    }
}

impl Gate {
    /// Each setting that is out of its bounds: its key, and the values that are allowed.
    #[must_use]
    pub fn out_of_bounds(&self) -> Vec<(&'static str, &'static str)> {
        let within = |time: Duration| !time.is_zero() && time <= LONGEST;
        let checks = [
            ("hold", self.hold <= LONGEST_HOLD, "5m at most"),
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
            ("no_lasts", self.no_lasts <= LONGEST, "24h at most"),
            (
                "max_open",
                (1..=MOST_OPEN).contains(&self.max_open),
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
    /// The rules whose globs match the name decide; without one the call is held.
    Judge,
}

/// Whether a caller must report the outcome of a call that it ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// A call whose outcome is not reported in time has an unknown outcome.
    #[default]
    Required,
    /// A call is settled as `released` when it is let through.
    Optional,
}

/// The calls that the journal keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// Every call.
    #[default]
    All,
    /// Every call but those of `read_only` tools that a rule allows and that the caller runs: these
    /// are only counted.
    Held,
}

/// The gRPC operations of a gate, for Envoy and agentgateway.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExtAuthz {
    /// The header of the checked request with the user id. The gateway must set it. Default: the
    /// key's own user.
    pub user_header: Option<String>,
    /// The header of the checked request with the user's groups, separated by commas.
    pub groups_header: Option<String>,
    /// The header of the checked request with the session id.
    pub session_header: Option<String>,
    /// Whether JSON-RPC methods other than `tools/call` pass.
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

/// The part of a gate that counts as of the stored definition: a call keeps the terms that it was
/// made under until it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Pinned {
    #[serde(with = "duration_text")]
    use_within: Duration,
    #[serde(with = "duration_text")]
    run_within: Duration,
    report: Report,
}

impl Default for Pinned {
    fn default() -> Self {
        Self::from(&Gate::default())
    }
}

impl From<&Gate> for Pinned {
    fn from(gate: &Gate) -> Self {
        Self {
            use_within: gate.use_within,
            run_within: gate.run_within,
            report: gate.report,
        }
    }
}

impl Pinned {
    /// The current gate with these terms.
    pub(crate) fn of(self, current: &Gate) -> Gate {
        let Self {
            use_within,
            run_within,
            report,
        } = self;
        Gate {
            use_within,
            run_within,
            report,
            ..current.clone()
        }
    }
}
