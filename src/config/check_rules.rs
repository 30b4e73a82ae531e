//! Finds mistakes in the rules. The module `policy` checks the expressions, and `check_people.rs`
//! checks the number of approvers.

use std::collections::BTreeSet;
use std::time::Duration;

use globset::Glob;

use super::Config;
use super::check_parts::is_glob;
use super::interpolate::InsertedValue;
use super::tree::{Node, Origin};
use crate::policy::{Decide, Expiry, Rule};
use crate::task::decision::Action;
use crate::task::request::RequestKind;
use crate::world::Mistakes;

/// A rule, and its index in `policy` as a number (`index`) and as text (`at`).
struct RulePlace<'r> {
    rule: &'r Rule,
    index: usize,
    at: String,
}

impl RulePlace<'_> {
    fn add(&self, rest: &[&str], detail: impl Into<String>, mistakes: &mut Mistakes) {
        let place = [&["policy", self.at.as_str()][..], rest].concat();
        mistakes.add(&place, detail);
    }
}

pub(crate) fn rules(config: &Config, root: &Node, mistakes: &mut Mistakes) {
    let subs = config
        .agents
        .values()
        .flat_map(|agent| agent.sub_agents.iter().map(|sub| sub.agent.as_str()));
    let callable: BTreeSet<&str> = config
        .tools
        .keys()
        .map(String::as_str)
        .chain(subs)
        .collect();
    for (index, rule) in config.policy.iter().enumerate() {
        let at = index.to_string();
        if root.at(&["policy", &at]).is_none_or(|node| node.broken) {
            continue;
        }
        let place = RulePlace { rule, index, at };
        check_name(&place, config, mistakes);
        check_tools(&place, config, &callable, mistakes);
        check_terms(&place, config, root, mistakes);
        check_remember(&place, root, mistakes);
    }
}

fn check_name(place: &RulePlace<'_>, config: &Config, mistakes: &mut Mistakes) {
    let name = &place.rule.name;
    if name.is_empty() {
        return;
    }
    if name.chars().any(char::is_control) || name.chars().count() > 128 {
        let detail = "a rule's name has 128 visible characters at most";
        place.add(&["name"], detail, mistakes);
    }
    let mut earlier = config.policy.iter().take(place.index);
    if earlier.any(|other| other.name == *name) {
        let detail = format!("an earlier rule is also called `{name}`");
        place.add(&["name"], detail, mistakes);
    }
}

/// Checks the entries of `tools`. An entry that matches no tool is a mistake: its name may be
/// misspelt, and then a `deny` denies no call. If a gate has `other_tools: judge`, the entry may
/// match a tool that the file does not name, so the entry gets a warning at most. A rule that
/// allows a tool of this host is a mistake if the file has no `auth`.
fn check_tools(
    place: &RulePlace<'_>,
    config: &Config,
    callable: &BTreeSet<&str>,
    mistakes: &mut Mistakes,
) {
    let rule = place.rule;
    let offered = config.agents.values().flat_map(|agent| &agent.human);
    let mut matched: BTreeSet<&str> = BTreeSet::new();
    for (entry, pattern) in rule.tools.iter().enumerate() {
        let entry = entry.to_string();
        match matching_tools(pattern, callable.iter().copied()) {
            None => {
                let detail = format!("`{pattern}` is neither a name nor a glob");
                place.add(&["tools", &entry], detail, mistakes);
            }
            Some(found) if found.is_empty() && RequestKind::from_tool(pattern).is_some() => {
                let is_offered = offered.clone().any(|kind| kind.tool() == pattern);
                if !is_offered && !config.judges_other_tools() {
                    let detail = format!("no agent offers `{pattern}`");
                    place.add(&["tools", &entry], detail, mistakes);
                }
            }
            Some(found) if found.is_empty() => {
                let at = ["policy", place.at.as_str(), "tools", &entry];
                if !config.judges_other_tools() {
                    mistakes.add(&at, format!("`{pattern}` names no tool"));
                } else if is_glob(pattern) || rule.decide != Decide::Allow {
                    let detail = format!(
                        "`{pattern}` names no tool of this file, only others that are proposed at gates"
                    );
                    mistakes.warn(&at, detail);
                } else {
                    let detail = format!(
                        "`{pattern}` names no tool, and allows no call: an `allow` matches the other tools that are proposed at gates only by a glob"
                    );
                    mistakes.warn(&at, detail);
                }
            }
            Some(found) => matched.extend(found),
        }
    }
    let local = matched
        .iter()
        .find_map(|tool| Some((config.tools.get(*tool)?.local_kind()?, *tool)));
    if let (Decide::Allow, None, Some((noun, name))) = (rule.decide, &config.auth, local) {
        let detail =
            format!("without `auth` no rule may allow {noun}, and this one allows `{name}`");
        place.add(&["decide"], detail, mistakes);
    }
}

fn check_terms(place: &RulePlace<'_>, config: &Config, root: &Node, mistakes: &mut Mistakes) {
    let rule = place.rule;
    if rule.approvers.required == 0 {
        place.add(&["approvers", "required"], "expected 1 or more", mistakes);
    }
    if rule.expires_in == Expiry::After(Duration::ZERO) {
        let detail = "expected more than 0, or `never` for no deadline";
        place.add(&["expires_in"], detail, mistakes);
    }
    // `rule.allow` is also empty if no element of `allow` could be read. Such elements have
    // mistakes of their own, so this check reports only a list that is empty in the file.
    let allow = root.at(&["policy", &place.at, "allow"]);
    if rule.allow.is_empty() && allow.is_none_or(|allow| allow.elements().is_empty()) {
        let detail = "an approval allows at least one answer";
        place.add(&["allow"], detail, mistakes);
    }
    // The `respond` of a single person would become the result of the call. Therefore a question
    // that requires several approvals offers no `respond`. Without accounts, each rule requires one
    // approval.
    let only = |known: &[Action]| rule.allow.iter().all(|action| known.contains(action));
    let is_readable = allow.is_none_or(|allow| allow.elements().len() == rule.allow.len());
    if config.auth.is_none() || rule.approvers.required < 2 || rule.allow.is_empty() || !is_readable
    {
        return;
    }
    if only(&[Action::Respond]) {
        let detail = "with `required` over 1, `respond` is not offered: add another answer";
        place.add(&["allow"], detail, mistakes);
    } else if only(&[Action::Respond, Action::Edit]) {
        let at = ["policy", place.at.as_str(), "allow"];
        let detail = "with `required` over 1, no answer ends a request of this rule: add `approve` or `reject`";
        mistakes.warn(&at, detail);
    }
}

/// Checks whether the members of `remember` fit each other and the rule. The module `policy` finds
/// the same mistakes, but `report::merge` drops them if a member of `remember` has a mistake
/// itself.
fn check_remember(place: &RulePlace<'_>, root: &Node, mistakes: &mut Mistakes) {
    let at = ["policy", place.at.as_str()];
    let node = root.at(&[&at[..], &["remember"]].concat());
    let is_readable = |key: &str| {
        let value = node.and_then(|node| node.get(key));
        value.is_none_or(|value| !value.broken)
    };
    let is_selection_known = is_readable("same") && is_readable("when");
    place
        .rule
        .check_whole_remember(&at, is_selection_known, mistakes);
}

/// Checks the two conditions of each rule with `remember`: its `when` and `remember.when`. Reports
/// a condition that contains a `${…}`, and a condition that an environment variable sets. The
/// inserted value may be a secret, but approvers read the condition, and the service stores its
/// digest.
pub(super) fn check_remembered_conditions(
    root: &Node,
    inserted: &[InsertedValue],
    mistakes: &mut Mistakes,
) {
    let rules = root
        .at(&["policy"])
        .map_or(0, |rules| rules.elements().len());
    for rule in (0..rules).map(|rule| rule.to_string()) {
        if root.at(&["policy", &rule, "remember"]).is_none() {
            continue;
        }
        for rest in [&["when"][..], &["remember", "when"]] {
            let place = [&["policy", rule.as_str()], rest].concat();
            let is_set = root
                .at(&place)
                .is_some_and(|node| matches!(node.origin, Origin::Variable(_)));
            if is_set || inserted.iter().any(|one| one.place == place) {
                let detail = "a rule that offers to remember has no `${…}` in its conditions: approvers read them";
                mistakes.add(&place, detail);
            }
        }
    }
}

/// Returns the names in `callable` that match a pattern; `None` if the pattern is not valid. A
/// rule's glob never matches a `request_…` tool, so `callable` must contain no such tool.
pub(super) fn matching_tools<'t>(
    pattern: &str,
    callable: impl IntoIterator<Item = &'t str>,
) -> Option<Vec<&'t str>> {
    let callable = callable.into_iter();
    if !pattern.contains(['*', '?', '[', '{', '\\', '!']) {
        return Some(callable.filter(|tool| *tool == pattern).collect());
    }
    let glob = Glob::new(pattern).ok()?.compile_matcher();
    Some(callable.filter(|tool| glob.is_match(tool)).collect())
}

/// Whether a valid pattern matches this name.
pub(super) fn matches_tool(pattern: &str, name: &str) -> bool {
    matching_tools(pattern, [name]).is_some_and(|found| !found.is_empty())
}
