//! The specification of a tool: all data about the tool that are the same for every call.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::time::Duration;

use super::verdict::Verdict;
use super::words::word_enum;

word_enum! {
    /// The effect of repeating a call.
    // Of two effects, the greater is the stricter.
    #[derive(
        Clone,
        Copy,
        Debug,
        Default,
        PartialEq,
        Eq,
        PartialOrd,
        Ord,
        Serialize,
        Deserialize,
        schemars::JsonSchema,
    )]
    #[serde(rename_all = "snake_case")]
    pub enum Effect {
        /// Changes nothing.
        ReadOnly = "read_only",
        /// Safe to repeat with the same idempotency key.
        Idempotent = "idempotent",
        /// Must not happen twice.
        #[default]
        Once = "once",
    }
}

impl Effect {
    /// Whether a call whose outcome is unknown may be sent again with the same idempotency key.
    #[must_use]
    pub fn is_repeatable(self) -> bool {
        !matches!(self, Self::Once)
    }
}

/// How a call of the tool is performed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// An HTTP request performs the call.
    #[default]
    Http,
    /// A command on this host performs the call.
    Shell,
    /// A server of the Model Context Protocol performs the call.
    Mcp,
    /// The API's client performs the call and posts the result.
    External,
    /// A sub-agent performs the call.
    Agent,
    /// A person answers the call. The tools of this kind are the `request_…` tools.
    Human,
}

/// The properties in which the kinds of tool differ.
#[derive(Clone, Copy, Debug)]
pub struct ToolKindProperties {
    /// Verdict on a call that no rule matches.
    pub without_rule: Verdict,
    /// Whether the API's client performs the calls. At a gate, this client is the asker.
    pub runs_at_client: bool,
    /// Whether each call is performed by a sub-agent, in a task of the sub-agent.
    pub starts_sub_agent: bool,
    /// Whether a call is itself a question to a person. If true, no `allow` rule applies to the
    /// call. Any other rule applies only if it has the exact name of the tool: a glob does not
    /// match. A person's rejection of an equal call does not deny the call.
    pub asks_person: bool,
    /// The receiver of a credential that tools of this kind use, as shown to the person who enters
    /// the credential. `None` if the receiver is the tool's [`ToolSpec::target`].
    pub receiver: Option<&'static str>,
}

impl ToolKind {
    /// Returns the properties in which this kind differs from the others.
    #[must_use]
    pub const fn properties(self) -> ToolKindProperties {
        match self {
            Self::Http | Self::Mcp => ToolKindProperties {
                without_rule: Verdict::Hold,
                runs_at_client: false,
                starts_sub_agent: false,
                asks_person: false,
                receiver: None,
            },
            Self::Shell => ToolKindProperties {
                receiver: Some("a command on this host"),
                ..Self::Http.properties()
            },
            Self::External => ToolKindProperties {
                without_rule: Verdict::Allow,
                runs_at_client: true,
                receiver: Some("no receiver"),
                ..Self::Http.properties()
            },
            Self::Agent => ToolKindProperties {
                without_rule: Verdict::Allow,
                starts_sub_agent: true,
                receiver: Some("no receiver"),
                ..Self::Http.properties()
            },
            Self::Human => ToolKindProperties {
                without_rule: Verdict::Human,
                asks_person: true,
                receiver: Some("no receiver"),
                ..Self::Http.properties()
            },
        }
    }
}

impl ToolKindProperties {
    /// Whether another task or the API's client performs the calls. If true, a call does not wait
    /// for the earlier calls of its turn.
    #[must_use]
    pub const fn is_performed_elsewhere(self) -> bool {
        self.runs_at_client || self.starts_sub_agent
    }
}

/// A tool as a model, a rule and an approver see it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// Name by which the model calls the tool.
    pub name: String,
    /// Description for the model.
    pub description: String,
    /// JSON Schema (2020-12) of the tool's arguments; always an object schema.
    pub parameters: Value,
    /// Effect of repeating a call.
    pub effect: Effect,
    /// How the tool's calls are performed.
    pub kind: ToolKind,
    /// Target of the tool's calls, for example `shell /srv/ops` or `POST http://payments.internal`.
    /// The digest of a call covers the target.
    pub target: String,
    /// Template of the line that an approver reads, for example
    /// `Refund {amount} for order {order}`. `None` if the approver reads the tool's name instead.
    pub summary: Option<String>,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// `sha256:…` over the tool's definition. The definition consists of the kind, the target, the
    /// parameters, the effect, the headers and the env. In the parameters, headers and env, each
    /// `${…}` is unexpanded. For an HTTP tool, the target is the method and the whole URL. The
    /// definition of `request_credentials` includes the services, and the definition of an MCP tool
    /// includes the server's settings. The description, the summary and the timeout are left out.
    pub definition: String,
    /// The names of the credentials to which the tool's headers, `url` and `env` refer. The names
    /// are sorted and without duplicates.
    pub needs: Vec<String>,
}

/// Maximum number of characters of one argument in a summary.
const MAX_ARGUMENT_CHARS: usize = 80;

/// One part of the template in [`ToolSpec::summary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryPart<'t> {
    /// Literal text.
    Text(&'t str),
    /// Name of the argument to insert.
    Argument(&'t str),
}

/// Returns the parts of a summary's template, in order. A `{` without a closing `}` is text.
pub fn summary_parts(template: &str) -> impl Iterator<Item = SummaryPart<'_>> {
    let mut rest = template;
    std::iter::from_fn(move || {
        let (part, tail) = match rest
            .strip_prefix('{')
            .and_then(|after| after.split_once('}'))
        {
            Some((name, tail)) => (SummaryPart::Argument(name), tail),
            None if rest.is_empty() => return None,
            None => {
                let end = rest
                    .char_indices()
                    .skip(1)
                    .find(|(_, c)| *c == '{')
                    .map_or(rest.len(), |(at, _)| at);
                let (text, tail) = rest.split_at(end);
                (SummaryPart::Text(text), tail)
            }
        };
        rest = tail;
        Some(part)
    })
}

impl ToolSpec {
    /// Returns the summary for an approver: the template with the arguments filled in as text. An
    /// argument of more than 80 characters is cut and ends with an ellipsis. A tool without a
    /// template has its name as the summary.
    #[must_use]
    pub fn summarize(&self, arguments_text: &str) -> String {
        let Some(template) = &self.summary else {
            return self.name.clone();
        };
        let arguments: BTreeMap<String, &RawValue> =
            serde_json::from_str(arguments_text).unwrap_or_default();
        let mut line = String::new();
        for part in summary_parts(template) {
            match part {
                SummaryPart::Text(text) => line.push_str(text),
                SummaryPart::Argument(name) => {
                    if let Some(argument) = arguments.get(name) {
                        push_truncated(&mut line, &argument_text(argument));
                    }
                }
            }
        }
        line
    }
}

/// Returns an argument as text: a string without quotation marks, a number as it was written, any
/// other value as JSON.
fn argument_text(argument: &RawValue) -> String {
    match serde_json::from_str(argument.get()) {
        Ok(Value::String(text)) => text,
        // A number is copied as it was written: a `Value` would lose the last digit of `20.10`.
        Ok(Value::Number(_)) | Err(_) => argument.get().to_owned(),
        Ok(value) => value.to_string(),
    }
}

fn push_truncated(line: &mut String, text: &str) {
    let end = text
        .char_indices()
        .nth(MAX_ARGUMENT_CHARS)
        .map_or(text.len(), |(end, _)| end);
    let (shown, cut) = text.split_at(end);
    line.push_str(shown);
    if !cut.is_empty() {
        line.push('…');
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn summary(template: &str, arguments_text: &str) -> String {
        let spec = ToolSpec {
            name: "refund".to_owned(),
            description: String::new(),
            parameters: Value::Null,
            effect: Effect::Once,
            kind: ToolKind::Http,
            target: String::new(),
            summary: Some(template.to_owned()),
            timeout: Duration::ZERO,
            definition: String::new(),
            needs: Vec::new(),
        };
        spec.summarize(arguments_text)
    }

    #[test]
    fn template_is_filled_in_with_arguments_as_text() {
        let arguments = r#"{"order": 17, "amount": 1.50, "why": "a {order} b", "list": [ "x" ]}"#;
        for (template, expected) in [
            (
                "Refund {amount} for order {order}",
                "Refund 1.50 for order 17",
            ),
            ("{order}{order}", "1717"),
            ("{why}: {list}", "a {order} b: [\"x\"]"),
            ("{gone}|{", "|{"),
            ("a { b {order", "a { b {order"),
            ("é{order}é", "é17é"),
            ("", ""),
        ] {
            assert_eq!(summary(template, arguments), expected, "{template}");
        }
        assert_eq!(summary("{order}|", "no JSON"), "|");
    }

    #[test]
    fn cut_argument_ends_in_an_ellipsis_and_a_whole_argument_does_not() {
        let of =
            |count: usize| summary("<{text}>", &json!({"text": "é".repeat(count)}).to_string());
        assert_eq!(of(80), format!("<{}>", "é".repeat(80)));
        assert_eq!(of(81), format!("<{}…>", "é".repeat(80)));
        let list = json!({"list": vec!["abcdef"; 20]}).to_string();
        let list = summary("{list}", &list);
        assert!(list.ends_with('…') && list.chars().count() == 81, "{list}");
    }
}
