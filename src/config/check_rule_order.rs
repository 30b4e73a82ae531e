//! Finds rules that never decide a call, because earlier rules already decide every call that these
//! rules match. The checks ignore an exception: if an argument is a number too big for CEL, an
//! `allow` rule does not decide the call, and later rules do.

use std::collections::BTreeSet;

use super::Config;
use super::check_parts::is_glob;
use super::check_people::has_broken;
use super::check_rules::matches_tool;
use super::tree::Node;
use crate::agent::gate::OtherTools;
use crate::policy::{Decide, Rule};
use crate::task::request::RequestKind;
use crate::world::Mistakes;

/// Warns about each rule whose tools are all matched by earlier rules without a `when`.
pub(crate) fn all(config: &Config, root: &Node, mistakes: &mut Mistakes) {
    let mut earlier_rules: Vec<&Rule> = Vec::new();
    for (index, rule) in config.policy.iter().enumerate() {
        let at = index.to_string();
        if root.at(&["policy", &at]).is_none_or(has_broken) {
            continue;
        }
        let entries = rule.tools.iter();
        let deciding: Option<BTreeSet<usize>> = entries
            .map(|entry| deciding_rule(config, &earlier_rules, rule, entry))
            .collect();
        let names: Vec<String> = deciding
            .iter()
            .flatten()
            .filter_map(|index| earlier_rules.get(*index))
            .filter(|earlier| !earlier.name.is_empty())
            .map(|earlier| format!("`{}`", earlier.name))
            .collect();
        if !names.is_empty() {
            let names = names.join(", ");
            let detail = format!(
                "this rule never decides a call: all its tools are matched earlier, without a `when`, by {names}"
            );
            mistakes.warn(&["policy", &at, "tools"], detail);
        }
        earlier_rules.push(rule);
    }
}

/// Returns the index in `earlier_rules` of the first rule that decides every call that `entry`
/// matches. `entry` is an element of `rule.tools`. Returns `None` if `rule` may have to decide some
/// of these calls.
fn deciding_rule(
    config: &Config,
    earlier_rules: &[&Rule],
    rule: &Rule,
    entry: &str,
) -> Option<usize> {
    // If the `when` of an `allow` rule cannot be evaluated, no later `allow` applies to the call,
    // and the next `hold` or `deny` rule decides the call.
    let mut allow_may_err = false;
    earlier_rules.iter().position(|earlier| {
        let is_allow = earlier.decide == Decide::Allow;
        if earlier.when.is_some() {
            allow_may_err |= is_allow;
            return false;
        }
        let counts = !is_allow || !allow_may_err || rule.decide == Decide::Allow;
        counts && covers(config, earlier, rule, entry)
    })
}

/// Whether `earlier`, a rule without a `when`, matches every call that `rule` matches by `entry`. A
/// glob is covered only by the same glob or by `*`, not by a list of all present tools, because the
/// glob may be meant for tools that are added later.
fn covers(config: &Config, earlier: &Rule, rule: &Rule, entry: &str) -> bool {
    let is_listed = earlier.tools.iter().any(|other| other == entry);
    if is_glob(entry) {
        return is_listed || earlier.tools.iter().any(|other| other == "*");
    }
    // No glob matches a tool that asks a person, and no `allow` rule applies to such a tool.
    if RequestKind::from_tool(entry).is_some() {
        return is_listed && earlier.decide != Decide::Allow;
    }
    // At a gate that does not list the tool, an `allow` rule matches the tool only by a glob. An
    // earlier `allow` rule with the tool's exact name then leaves the call to `rule`.
    let counts_name = earlier.decide != Decide::Allow
        || rule.decide == Decide::Allow
        || !may_be_unlisted(config, entry);
    let mut globs = earlier.tools.iter().filter(|other| is_glob(other));
    (is_listed && counts_name) || globs.any(|glob| matches_tool(glob, entry))
}

/// Whether a call of this tool may be judged at a gate that does not list the tool.
fn may_be_unlisted(config: &Config, tool: &str) -> bool {
    let mut judging = config
        .gates
        .values()
        .filter(|gate| gate.other_tools == OtherTools::Judge);
    judging.any(|gate| !gate.tools.iter().any(|listed| listed == tool))
}
