//! The settings of a rule, and the checks that need only the rule itself.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::remember::RuleRemember;
use crate::task::decision::{Action, Consequence};
use crate::task::units::{TextVisitor, duration_text, read_duration};
use crate::task::verdict::{Approvers, OnExpiry, Terms};
use crate::world::Mistakes;

/// A rule of the policy. The first rule that matches a call decides it. If no rule matches, a call
/// of a sub-agent or of an external tool is allowed, a call that asks a person opens a request, and
/// any other call is held; at a gate every call is held.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["name", "tools", "decide"]))]
pub struct Rule {
    /// The name of the rule, 1 to 128 visible characters. It must be unique.
    pub name: String,
    /// The tools to which the rule applies: names, and globs such as `files_*` or `*`.
    pub tools: Vec<String>,
    /// The condition: a CEL expression over `args`, `tool`, `agent`, `user`, `task` and `session`,
    /// 1 KiB at most. Without it the rule matches every call of its tools.
    #[schemars(with = "String")]
    pub when: Option<String>,
    /// The verdict on calls that the rule matches: `allow` runs them, `hold` asks people, `deny`
    /// refuses them.
    pub decide: Decide,
    /// The reason for the verdict, shown to the model and to the approvers.
    pub reason: Option<String>,
    /// The message to people at the top of a request. Default: "Human intervention required."
    pub message: Option<String>,
    /// The people who may decide the requests about calls that the rule holds.
    pub approvers: RuleApprovers,
    /// The time for which the request stays open: a duration such as `30s`, `24h` or `7d`, or
    /// `never`.
    pub expires_in: Expiry,
    /// The effect on calls that are undecided at the deadline.
    pub on_expiry: OnExpiry,
    /// The effect on the task when people reject every call of a request, unless the decision names
    /// another effect.
    pub on_reject: Consequence,
    /// The answers that people may give to a request for approval.
    #[serde(deserialize_with = "approval_answers")]
    #[schemars(schema_with = "allow_schema")]
    pub allow: Vec<Action>,
    /// The standing decision that an approver may give with an approval. Default: none.
    pub remember: Option<RuleRemember>,
}

/// An answer that people may give to a request for approval.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ApprovalAnswer {
    Approve,
    Reject,
    Edit,
    Respond,
}

/// Reads a list of answers. If an answer is unknown, the error lists the four answers to a request
/// for approval, and not every [`Action`].
fn approval_answers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Action>, D::Error> {
    let action = |answer: ApprovalAnswer| match answer {
        ApprovalAnswer::Approve => Action::Approve,
        ApprovalAnswer::Reject => Action::Reject,
        ApprovalAnswer::Edit => Action::Edit,
        ApprovalAnswer::Respond => Action::Respond,
    };
    let answers = Vec::<ApprovalAnswer>::deserialize(from)?;
    Ok(answers.into_iter().map(action).collect())
}

fn allow_schema(_: &mut SchemaGenerator) -> Schema {
    let words = ["approve", "reject", "edit", "respond"];
    json_schema!({"type": "array", "items": {"enum": words}, "minItems": 1, "default": words})
}

impl Default for Rule {
    fn default() -> Self {
        let terms = Terms::default();
        Self {
            name: String::new(),
            tools: Vec::new(),
            when: None,
            decide: Decide::Hold,
            reason: None,
            message: None,
            approvers: RuleApprovers::default(),
            expires_in: terms.expires_in.map_or(Expiry::Never, Expiry::After),
            on_expiry: terms.on_expiry,
            on_reject: terms.on_reject,
            allow: terms.allow,
            remember: None,
        }
    }
}

/// The verdict of a rule on the calls that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decide {
    /// The call runs without a request.
    Allow,
    /// The call waits for a person's decision.
    Hold,
    /// The call is refused.
    Deny,
}

/// The people who may decide a request, and how many of them are needed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Approvers")]
pub struct RuleApprovers {
    /// Whether the task's owner may decide. Default: `true` if `users` and `groups` are both empty,
    /// otherwise `false`.
    #[schemars(with = "bool")]
    pub owner: Option<bool>,
    /// The ids of users who may decide.
    pub users: Vec<String>,
    /// The names of groups whose members may decide.
    pub groups: Vec<String>,
    /// The number of different people who have to approve.
    #[schemars(range(min = 1))]
    pub required: u32,
    /// Whether people may answer by the link in a message, provided that links may decide at all.
    /// Default: `true` if `required` is 1, otherwise `false`.
    pub links: Option<bool>,
}

impl Default for RuleApprovers {
    fn default() -> Self {
        Self {
            owner: None,
            users: Vec::new(),
            groups: Vec::new(),
            required: 1,
            links: None,
        }
    }
}

impl RuleApprovers {
    /// Returns the approvers in the form that requests store.
    #[must_use]
    pub fn approvers(&self) -> Approvers {
        let owner_decides = self.users.is_empty() && self.groups.is_empty();
        Approvers {
            owner: self.owner.unwrap_or(owner_decides),
            users: self.users.clone(),
            groups: self.groups.clone(),
            required: self.required,
            // If the rule sets `links` to the default value, the terms say `None`, as if the rule
            // did not set `links`. A rule that sets the default and a rule that sets nothing thus
            // have equal terms, and their calls can share a request.
            links: self.links.filter(|links| *links != (self.required <= 1)),
        }
    }
}

/// The time that a request stays open: a duration (`30s`, `24h`, `7d`), or `never` for a request
/// without a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    Never,
    /// The request expires this long after it was opened.
    After(Duration),
}

impl<'de> Deserialize<'de> for Expiry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(TextVisitor {
            expecting: "a duration such as `30s`, `24h` or `7d`, or `never`",
            parse: |text| match text {
                "never" => Ok(Self::Never),
                _ => read_duration(text).map(Self::After),
            },
        })
    }
}

impl Serialize for Expiry {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Never => to.serialize_str("never"),
            Self::After(time) => duration_text::serialize(time, to),
        }
    }
}

impl JsonSchema for Expiry {
    fn schema_name() -> Cow<'static, str> {
        "Expiry".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d)|never)$"})
    }
}

impl Rule {
    /// Returns the terms of the requests about calls that the rule holds.
    #[must_use]
    pub fn terms(&self) -> Terms {
        let mut allow = self.allow.clone();
        allow.sort_unstable();
        allow.dedup();
        Terms {
            approvers: self.approvers.approvers(),
            expires_in: match self.expires_in {
                Expiry::Never => None,
                Expiry::After(time) => Some(time),
            },
            on_expiry: self.on_expiry,
            on_reject: self.on_reject,
            allow,
            message: self.message.clone(),
        }
    }

    /// Reports the mistakes that can be found in the rule alone. `place` is the path of the rule in
    /// the file.
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
                "no person could decide: neither the owner nor a user nor a group",
            );
        }
        if self.expires_in == Expiry::After(Duration::ZERO) {
            mistakes.add(&at("expires_in"), "a deadline is longer than 0, or `never`");
        }
        if self.allow.is_empty() {
            mistakes.add(&at("allow"), "no answer would be possible");
        }
        self.check_remember(place, mistakes);
        for action in &self.allow {
            match action {
                Action::Approve | Action::Reject | Action::Edit | Action::Respond => {}
                Action::Retry | Action::Mixed => {
                    mistakes.add(
                        &at("allow"),
                        format!("`{}` is not an answer to an approval", action.as_str()),
                    );
                }
            }
        }
    }
}
