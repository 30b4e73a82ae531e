//! The typed settings of the rules. The doc comments are the descriptions in the file's JSON
//! Schema.

use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

use super::units::duration_text;
use crate::task::decision::{Action, Then};
use crate::task::verdict::{Approvers, OnExpiry};

/// A rule. The first one that matches decides; what no rule matches is held.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["name", "tools", "decide"]))]
pub struct RuleSettings {
    /// Its name.
    pub name: String,
    /// Which tools: names and globs.
    pub tools: Vec<String>,
    /// A CEL expression over `args`, `tool`, `agent`, `user`, `task` and `session`, 1 KiB at most;
    /// without it: always.
    pub when: Option<String>,
    /// What it says.
    pub decide: Decide,
    /// Why, for the model and the approver.
    pub reason: Option<String>,
    /// Instead of "Human intervention required."
    pub message: Option<String>,
    /// Who may decide; default: the task's owner.
    pub approvers: ApproversSettings,
    /// How long the request stays open, or `never`.
    pub expires_in: ExpiresIn,
    /// What happens at the deadline.
    pub on_expiry: OnExpiry,
    /// What a rejection of every call does.
    pub on_reject: Then,
    /// Which answers an approval allows; default: all.
    #[schemars(schema_with = "allow_schema")]
    pub allow: Vec<Action>,
}

fn allow_schema(_: &mut SchemaGenerator) -> Schema {
    let words = ["approve", "reject", "edit", "respond"];
    json_schema!({"type": "array", "items": {"enum": words}, "minItems": 1, "default": words})
}

impl Default for RuleSettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            tools: Vec::new(),
            when: None,
            decide: Decide::Hold,
            reason: None,
            message: None,
            approvers: ApproversSettings::default(),
            expires_in: ExpiresIn::default(),
            on_expiry: OnExpiry::Continue,
            on_reject: Then::Cancel,
            allow: vec![
                Action::Approve,
                Action::Reject,
                Action::Edit,
                Action::Respond,
            ],
        }
    }
}

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decide {
    /// The call runs.
    Allow,
    /// A human is asked.
    Hold,
    /// The call is refused.
    Deny,
}

/// Who may decide a request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApproversSettings {
    /// Whether the task's owner may; default: only where neither users nor groups are named.
    pub owner: Option<bool>,
    /// Users.
    pub users: Vec<String>,
    /// Groups.
    pub groups: Vec<String>,
    /// How many different people have to approve.
    pub required: u32,
}

impl Default for ApproversSettings {
    fn default() -> Self {
        Self {
            owner: None,
            users: Vec::new(),
            groups: Vec::new(),
            required: 1,
        }
    }
}

impl ApproversSettings {
    /// Whether the task's owner may decide.
    #[must_use]
    pub fn owner(&self) -> bool {
        self.owner
            .unwrap_or(self.users.is_empty() && self.groups.is_empty())
    }

    /// The approvers as a request shows them.
    #[must_use]
    pub fn approvers(&self) -> Approvers {
        Approvers {
            owner: self.owner(),
            users: self.users.clone(),
            groups: self.groups.clone(),
            required: self.required,
        }
    }
}

/// A duration, or `never` (`None`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiresIn(pub Option<Duration>);

impl Default for ExpiresIn {
    fn default() -> Self {
        Self(Some(Duration::from_hours(24)))
    }
}

impl<'de> Deserialize<'de> for ExpiresIn {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Both;
        impl Visitor<'_> for Both {
            type Value = ExpiresIn;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as `30s`, `24h` or `7d`, or `never`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ExpiresIn, E> {
                if text == "never" {
                    return Ok(ExpiresIn(None));
                }
                let duration = super::units::duration(text);
                duration
                    .map(|it| ExpiresIn(Some(it)))
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Other("text"), &self))
            }
        }
        from.deserialize_any(Both)
    }
}

impl serde::Serialize for ExpiresIn {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(duration) => duration_text::serialize(&duration, to),
            None => to.serialize_str("never"),
        }
    }
}

impl JsonSchema for ExpiresIn {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ExpiresIn".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d)|never)$"})
    }
}
