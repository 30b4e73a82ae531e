//! The rules of a script. Reading a script reports the first mistake of each rule. The first rule
//! that matches the conversation gives the answer.

use std::collections::BTreeSet;
use std::time::Duration;

use regex::Regex;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::ordered_value::OrderedValue;
use super::template::{Arguments, Captures, ScriptTemplate};
use crate::task::units::parse_duration;

#[derive(Debug)]
pub(super) struct Script {
    rules: Vec<ScriptRule>,
}

#[derive(Debug)]
pub(super) struct ScriptRule {
    when: Condition,
    pub(super) say: Option<ScriptTemplate>,
    pub(super) calls: Vec<ScriptedCall>,
    pub(super) delay: Option<Duration>,
    pub(super) fail: Option<u16>,
}

#[derive(Debug)]
pub(super) struct ScriptedCall {
    pub(super) name: ScriptTemplate,
    pub(super) arguments: Arguments,
}

#[derive(Debug, Default)]
struct Condition {
    last: Option<AuthorKind>,
    matches: Option<Regex>,
    tool: Option<String>,
    turn: Option<u32>,
}

/// The part of the conversation that rules match on.
#[derive(Debug)]
pub(super) struct MatchInput<'a> {
    /// The author of the last message; `None` if the author is the model, or if there is no
    /// message.
    pub(super) last: Option<LastAuthor<'a>>,
    /// The text of the last message; empty if `last` is `None`.
    pub(super) text: String,
    /// The number of the answer within the task: 1, 2, 3 …
    pub(super) turn: u32,
    pub(super) user_text: String,
    /// The number, counted like `turn`, of the first answer after the user's last message.
    pub(super) user_turn: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastAuthor<'a> {
    User,
    /// The last message is a result of the tool with this name.
    Tool(&'a str),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    #[serde(default)]
    when: RawCondition,
    say: Option<String>,
    #[serde(default)]
    calls: Vec<RawCall>,
    delay: Option<String>,
    fail: Option<u16>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCondition {
    last: Option<AuthorKind>,
    matches: Option<String>,
    tool: Option<String>,
    turn: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AuthorKind {
    User,
    Tool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCall {
    name: String,
    /// `parse_rule` takes the arguments from the rule's [`OrderedValue`], in which members keep the
    /// order of the file.
    arguments: Option<OrderedValue>,
}

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// Fails if there are mistakes. The error has the first mistake of each wrong rule as a text
    /// for people, with the line of the rule, in the order of the lines. If the text is no YAML
    /// list, the error has one text.
    pub(super) fn read(text: &str) -> Result<Self, Vec<String>> {
        let raw_rules: Vec<Spanned<OrderedValue>> =
            serde_saphyr::from_str(text).map_err(|error| {
                let error = error.to_string();
                let line = error.lines().next().unwrap_or_default();
                vec![format!("a script is a YAML list of rules: {line}")]
            })?;
        let mut found = Vec::new();
        let mut parsed_rules = Vec::new();
        for rule in raw_rules {
            let line = rule.referenced.line();
            match parse_rule(&rule.value) {
                Ok((rule, when)) => parsed_rules.push((line, rule, when)),
                Err(detail) => found.push((line, detail)),
            }
        }
        let named_captures: BTreeSet<String> = parsed_rules
            .iter()
            .flat_map(|(_, _, when)| when.names())
            .collect();
        let mut rules = Vec::new();
        for (line, rule, when) in parsed_rules {
            let known = named_captures
                .iter()
                .cloned()
                .chain(when.numbers())
                .collect();
            match rule.into_rule(when, &known) {
                Ok(rule) => rules.push(rule),
                Err(detail) => found.push((line, detail)),
            }
        }
        if found.is_empty() {
            return Ok(Self { rules });
        }
        found.sort();
        let found = found.into_iter();
        Err(found
            .map(|(line, detail)| format!("line {line}: {detail}"))
            .collect())
    }

    pub(super) fn rule(&self, match_input: &MatchInput<'_>) -> Option<&ScriptRule> {
        self.rules.iter().find(|rule| {
            rule.when
                .is_met(match_input.last, &match_input.text, match_input.turn)
        })
    }

    /// Returns the captures that a rule's texts may use: all captures of the rule itself, and the
    /// named captures of the rule that matched the user's last message. So a rule that matches a
    /// later message can still use a value from the user's message.
    pub(super) fn captures(&self, rule: &ScriptRule, match_input: &MatchInput<'_>) -> Captures {
        let user_captures = self
            .rules
            .iter()
            .find(|rule| {
                rule.when.is_met(
                    Some(LastAuthor::User),
                    &match_input.user_text,
                    match_input.user_turn,
                )
            })
            .map(|rule| rule.when.captures(&match_input.user_text))
            .unwrap_or_default();
        let mut captures: Captures = user_captures
            .into_iter()
            .filter(|(name, _)| !name.starts_with(|first: char| first.is_ascii_digit()))
            .collect();
        captures.extend(rule.when.captures(&match_input.text));
        captures
    }
}

fn parse_rule(ordered: &OrderedValue) -> Result<(RawRule, Condition), String> {
    let rule = serde_json::from_value(ordered.into());
    let mut rule: RawRule = rule.map_err(|error| error.to_string())?;
    let calls = ordered
        .member("calls")
        .map_or(&[][..], OrderedValue::elements);
    for (call, ordered) in rule.calls.iter_mut().zip(calls) {
        call.arguments = ordered.member("arguments").cloned();
    }
    let RawCondition {
        last,
        matches,
        tool,
        turn,
    } = std::mem::take(&mut rule.when);
    // The `regex` engine runs in linear time, and its default size limit bounds the memory.
    let matches = matches
        .map(|matches| {
            Regex::new(&matches).map_err(|error| {
                // Only the last line of the error is the reason. The lines before it show the
                // expression, with a mark below the wrong part.
                let error = error.to_string();
                let reason = error.lines().last().unwrap_or_default();
                let reason = reason.trim_start_matches("error: ");
                format!("`matches` is not a regular expression: {reason}")
            })
        })
        .transpose()?;
    Ok((
        rule,
        Condition {
            last,
            matches,
            tool,
            turn,
        },
    ))
}

impl RawRule {
    fn into_rule(self, when: Condition, known: &BTreeSet<String>) -> Result<ScriptRule, String> {
        let say = self
            .say
            .map(|say| ScriptTemplate::read(&say, known))
            .transpose()?;
        let calls = self.calls.iter().map(|call| {
            Ok(ScriptedCall {
                name: ScriptTemplate::read(&call.name, known)?,
                arguments: Arguments::read(call.arguments.as_ref(), known)?,
            })
        });
        let calls = calls.collect::<Result<_, String>>()?;
        let delay = self.delay.map(|delay| {
            parse_duration(&delay).ok_or_else(|| {
                format!("`{delay}` is not a duration: write 500ms, 30s, 10m, 24h or 7d")
            })
        });
        let delay = delay.transpose()?;
        if let Some(status) = self.fail.filter(|status| !(400..600).contains(status)) {
            return Err(format!("`fail` is a status from 400 to 599, not {status}"));
        }
        Ok(ScriptRule {
            when,
            say,
            calls,
            delay,
            fail: self.fail,
        })
    }
}

impl Condition {
    fn is_met(&self, last: Option<LastAuthor<'_>>, text: &str, turn: u32) -> bool {
        let author = match last {
            Some(LastAuthor::User) => Some(AuthorKind::User),
            Some(LastAuthor::Tool(_)) => Some(AuthorKind::Tool),
            None => None,
        };
        self.last.is_none_or(|wanted| author == Some(wanted))
            && self
                .tool
                .as_ref()
                .is_none_or(|wanted| last == Some(LastAuthor::Tool(wanted)))
            && self.turn.is_none_or(|wanted| wanted == turn)
            && self
                .matches
                .as_ref()
                .is_none_or(|matches| matches.is_match(text))
    }

    fn names(&self) -> Vec<String> {
        let names = self
            .matches
            .iter()
            .flat_map(|matches| matches.capture_names().flatten());
        names.map(str::to_owned).collect()
    }

    /// Returns the numbers of the captures of `matches`; 0 is the whole match.
    fn numbers(&self) -> Vec<String> {
        self.matches
            .iter()
            .flat_map(|matches| 0..matches.captures_len())
            .map(|number| number.to_string())
            .collect()
    }

    fn captures(&self, text: &str) -> Captures {
        let mut found = Captures::new();
        let Some(matches) = &self.matches else {
            return found;
        };
        let Some(captures) = matches.captures(text) else {
            return found;
        };
        for (number, name) in matches.capture_names().enumerate() {
            if let Some(text) = captures.get(number) {
                found.insert(number.to_string(), text.as_str().to_owned());
                found.extend(name.map(|name| (name.to_owned(), text.as_str().to_owned())));
            }
        }
        found
    }
}
