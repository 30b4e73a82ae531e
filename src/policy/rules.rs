//! A rule as an operator writes it, and the checks that need only the rule itself.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::task::decision::{Action, Then};
use crate::task::verdict::{Approvers, OnExpiry, Terms};
use crate::world::Mistakes;

/// One rule. The first that matches a call decides; what none matches is held.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What a judgement calls it.
    pub name: String,
    /// The tools it is about: names, and globs such as `files_*` or `*`.
    pub tools: Vec<String>,
    /// A CEL expression over `args`, `tool`, `agent`, `user`, `task` and `session`; without one it
    /// matches always.
    #[serde(default)]
    pub when: Option<String>,
    /// What it says of a call that it matches.
    pub decide: Decide,
    /// Why, for the one who decides and for the model.
    #[serde(default)]
    pub reason: Option<String>,
    /// The words of its requests, instead of "Human intervention required."
    #[serde(default)]
    pub message: Option<String>,
    /// Who decides what it holds; the task's owner unless said.
    #[serde(default)]
    pub approvers: RuleApprovers,
    /// How long its requests stay open.
    #[serde(default)]
    pub expires_in: Option<Expiry>,
    /// What happens to undecided calls then.
    #[serde(default)]
    pub on_expiry: OnExpiry,
    /// What a rejection of every call does unless the decision says `then`.
    #[serde(default)]
    pub on_reject: Then,
    /// The answers it allows of an approval; all unless said.
    #[serde(default)]
    pub allow: Option<Vec<Action>>,
}

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decide {
    /// The call runs unasked.
    Allow,
    /// A human is asked first.
    Hold,
    /// The call is refused.
    Deny,
}

/// Who decides what a rule holds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleApprovers {
    /// Whether the task's owner may: unless said, only where neither users nor groups are named.
    #[serde(default)]
    pub owner: Option<bool>,
    /// Users by id.
    #[serde(default)]
    pub users: Vec<String>,
    /// Groups by name.
    #[serde(default)]
    pub groups: Vec<String>,
    /// How many different people have to approve.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub required: u32,
}

fn one() -> u32 {
    1
}

impl Default for RuleApprovers {
    fn default() -> Self {
        Self {
            owner: None,
            users: Vec::new(),
            groups: Vec::new(),
            required: 1,
        }
    }
}

/// How long a request stays open: a duration (`30s`, `24h`, `7d`), or `never` for one that does not
/// expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The request does not expire.
    Never,
    /// The request expires after this time.
    After(Duration),
}

impl Expiry {
    /// Parses `never`, or a positive whole number with `ms`, `s`, `m`, `h` or `d`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == "never" {
            return Some(Self::Never);
        }
        let unit = text.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = text.split_at(unit);
        let millis: u64 = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        let millis = number.parse::<u64>().ok()?.checked_mul(millis)?;
        (millis > 0).then(|| Self::After(Duration::from_millis(millis)))
    }
}

impl<'de> Deserialize<'de> for Expiry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            serde::de::Error::custom("expected a duration such as `30s` or `24h`, or `never`")
        })
    }
}

impl Serialize for Expiry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Never => serializer.serialize_str("never"),
            Self::After(time) => serializer.collect_str(&format_args!("{}ms", time.as_millis())),
        }
    }
}

impl JsonSchema for Expiry {
    fn schema_name() -> Cow<'static, str> {
        "Expiry".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "How long a request stays open: a duration (`30s`, `24h`, `7d`), or `never`.",
            "type": "string",
            "pattern": "^(never|[0-9]+(ms|s|m|h|d))$",
            "default": "24h"
        })
    }
}

impl Rule {
    /// The terms of the requests for calls that the rule holds.
    #[must_use]
    pub fn terms(&self) -> Terms {
        let RuleApprovers {
            owner,
            users,
            groups,
            required,
        } = &self.approvers;
        let standard = Terms::default();
        Terms {
            approvers: Approvers {
                owner: owner.unwrap_or(users.is_empty() && groups.is_empty()),
                users: users.clone(),
                groups: groups.clone(),
                required: *required,
            },
            expires_in: match self.expires_in {
                None => standard.expires_in,
                Some(Expiry::Never) => None,
                Some(Expiry::After(time)) => Some(time),
            },
            on_expiry: self.on_expiry,
            on_reject: self.on_reject,
            allow: self.allow.as_ref().map_or(standard.allow, |said| {
                let mut allow = said.clone();
                allow.sort_unstable();
                allow.dedup();
                allow
            }),
            message: self.message.clone(),
        }
    }

    /// Reports mistakes in the rule itself; `place` is its place in the file.
    pub(super) fn check(&self, place: &[&str], mistakes: &mut Mistakes) {
        let at = |key: &'static str| [place, &[key]].concat();
        if self.name.trim().is_empty() {
            mistakes.add(&at("name"), "a rule needs a name");
        }
        if self.tools.is_empty() {
            mistakes.add(&at("tools"), format!("rule `{}` names no tool", self.name));
        }
        let approvers = &self.approvers;
        if approvers.required == 0 {
            mistakes.add(&at("approvers"), "`required` is at least 1");
        }
        if approvers.owner == Some(false)
            && approvers.users.is_empty()
            && approvers.groups.is_empty()
        {
            mistakes.add(
                &at("approvers"),
                "nobody could decide: neither the owner nor a user nor a group",
            );
        }
        let Some(allow) = &self.allow else { return };
        if allow.is_empty() {
            mistakes.add(&at("allow"), "no answer would be possible");
        }
        for action in allow {
            match action {
                Action::Approve | Action::Reject | Action::Edit | Action::Respond => {}
                Action::Retry | Action::Mixed => {
                    mistakes.add(
                        &at("allow"),
                        format!("`{}` is no answer to an approval", action.as_str()),
                    );
                }
            }
        }
    }
}
