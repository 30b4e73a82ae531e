//! Finds mistakes in the gates: in their names, tools and times, and in the keys of their callers.

use std::collections::BTreeSet;

use http::HeaderName;

use super::Config;
use super::check_parts::{check_name, is_glob};
use super::check_people::{approvers_of, are_approvers_unreadable, has_broken};
use super::check_rules::matches_tool;
use super::tree::Node;
use crate::agent::OpenTo;
use crate::agent::gate::{ExtAuthz, Gate, OtherTools, Report};
use crate::people::directory::Directory;
use crate::people::settings::ApiKey;
use crate::policy::{Decide, Rule};
use crate::task::decision::Action;
use crate::task::request::RequestKind;
use crate::task::tool_spec::Effect;
use crate::task::user::UserIds;
use crate::task::verdict::Approvers;
use crate::tool::credential::REFERENCE_START;
use crate::world::Mistakes;

pub(crate) fn all(config: &Config, root: &Node, mistakes: &mut Mistakes) {
    for (gate_name, gate) in &config.gates {
        let place = ["gates", gate_name];
        check_name(&place, "a gate", gate_name, mistakes);
        check_name_is_free(config, gate_name, mistakes);
        if root.at(&place).is_none_or(|node| node.broken) {
            continue;
        }
        for (key, expected) in gate.out_of_bounds() {
            mistakes.add(
                &[&place[..], &[key]].concat(),
                format!("expected {expected}"),
            );
        }
        check_tools(config, gate_name, gate, root, mistakes);
        check_keys(config, gate_name, gate, root, mistakes);
        if let Some(ext_authz) = &gate.ext_authz {
            check_ext_authz(config, gate_name, (gate, ext_authz), root, mistakes);
        }
    }
}

fn check_name_is_free(config: &Config, gate: &str, mistakes: &mut Mistakes) {
    let noun = if config.agents.contains_key(gate) {
        "an agent"
    } else if config.tools.contains_key(gate) {
        "a tool"
    } else if RequestKind::from_tool(gate).is_some() {
        "a tool that asks a person"
    } else {
        return;
    };
    let detail = format!("`{gate}` is {noun}, too: gates, agents and tools share one name space");
    mistakes.add(&["gates", gate], detail);
}

/// Checks that each listed tool exists and is listed once. A gate may list neither an agent nor a
/// tool that asks a person.
fn check_tools(
    config: &Config,
    gate_name: &str,
    gate: &Gate,
    root: &Node,
    mistakes: &mut Mistakes,
) {
    let mut seen = BTreeSet::new();
    for (index, tool) in gate.tools.iter().enumerate() {
        let index = index.to_string();
        let place = ["gates", gate_name, "tools", &index];
        let detail = if RequestKind::from_tool(tool).is_some() {
            format!("`{tool}` asks a person: a gate offers no such tool")
        } else if config.agents.contains_key(tool) {
            format!("`{tool}` is an agent: a gate offers no agents")
        } else if !config.tools.contains_key(tool) && !is_glob(tool) {
            format!("no tool is called `{tool}`")
        } else if !seen.insert(tool) {
            format!("`{tool}` is listed twice")
        } else {
            continue;
        };
        mistakes.add(&place, detail);
    }
    let listed = root.at(&["gates", gate_name, "tools"]);
    let is_unreadable = listed.is_some_and(|node| node.broken);
    if gate.tools.is_empty() && gate.other_tools == OtherTools::Deny && !is_unreadable {
        let detail = "no call fits this gate: `tools` is empty, and `other_tools` is `deny`";
        mistakes.warn(&["gates", gate_name], detail);
    }
}

/// Warns in three cases:
/// - No caller can use the gate.
/// - A rule can never get enough approvers for a call at the gate.
/// - Only the owner of a call may answer some question, and this owner has no way to answer.
fn check_keys(config: &Config, gate_name: &str, gate: &Gate, root: &Node, mistakes: &mut Mistakes) {
    let place = ["gates", gate_name];
    let open_to = [&place[..], &["open_to"]].concat();
    if root.at(&open_to).is_some_and(has_broken) {
        return;
    }
    if gate.open_to == Some(OpenTo::default()) {
        let detail = format!("no caller may use the gate `{gate_name}`");
        mistakes.warn(&open_to, detail);
        return;
    }
    let Some(auth) = config.auth.as_ref().filter(|_| keys_are_read(root)) else {
        return;
    };
    let to = gate.open_to.as_ref();
    let keys = auth.api_keys.iter();
    let keys: Vec<&ApiKey> = keys
        .filter(|key| may_ask(key) && is_admitted(to, key, auth.user_ids))
        .collect();
    if keys.is_empty() {
        let detail = "nobody can use it: the gate takes a key that may `gate` and may not `decide`, for a user to whom the gate is open";
        mistakes.warn(&place, detail);
    }
    // A key with `act_as` may speak for users whom the file does not name. The approvers of these
    // users' calls are unknown, so the checks below run only if no key has `act_as`.
    else if keys.iter().all(|key| !key.act_as)
        && !are_approvers_unreadable(root)
        && let Some(directory) = config.directory()
    {
        check_approvers(config, &directory, (gate_name, gate), &keys, mistakes);
        check_owners(config, &directory, (gate_name, gate), &keys, mistakes);
    }
}

/// Warns about each rule that can never get enough approvers for a call at the gate. The number of
/// possible approvers depends on which of the `keys` proposes the call: the key's user owns the
/// call, and some rules do not let the owner approve.
fn check_approvers(
    config: &Config,
    directory: &Directory,
    (gate_name, gate): (&str, &Gate),
    keys: &[&ApiKey],
    mistakes: &mut Mistakes,
) {
    for (index, rule) in config.policy.iter().enumerate() {
        if rule.decide != Decide::Hold || !applies_to(rule, gate) {
            continue;
        }
        let approvers = approvers_of(rule, RequestKind::Approval);
        let approver_count = |key: &&ApiKey| {
            directory.possible_approver_count(&key.tenant, &approvers, Some(&key.user), None)
        };
        let max_approvers = keys.iter().map(approver_count).max().unwrap_or(0);
        if max_approvers < approvers.required as usize {
            let detail = format!(
                "no people can satisfy this rule for a call at the gate `{gate_name}`: it needs {}, and {max_approvers} could answer",
                approvers.required
            );
            let place = ["policy", &index.to_string(), "approvers"];
            mistakes.warn(&place, detail);
        }
    }
}

/// Warns about questions that only the owner of a call may answer, if the user of one of the `keys`
/// has no way to answer. Two kinds of calls can have such questions: calls that no rule matches,
/// and calls of `once` tools that a rule allows.
fn check_owners(
    config: &Config,
    directory: &Directory,
    (gate_name, gate): (&str, &Gate),
    keys: &[&ApiKey],
    mistakes: &mut Mistakes,
) {
    let owner_alone = Approvers::default();
    let may_answer = |key: &&ApiKey| {
        directory.possible_approver_count(&key.tenant, &owner_alone, Some(&key.user), None) > 0
    };
    if keys.iter().all(may_answer) {
        return;
    }
    let place = ["gates", gate_name];
    let judges_others = gate.other_tools == OtherTools::Judge;
    let unconditional = || config.policy.iter().filter(|rule| rule.when.is_none());
    let is_matched = |tool: &String| unconditional().any(|rule| names(rule, tool));
    let are_others_matched = unconditional().any(|rule| rule.tools.iter().any(|all| all == "*"));
    if !gate.tools.iter().all(is_matched) || (judges_others && !are_others_matched) {
        let detail = "a call that no rule matches may wait for an owner who has no key that may `decide`: hold such calls with a last rule for other approvers";
        mistakes.warn(&place, detail);
    }
    let is_once = |tool: &String| {
        let settings = config.tools.get(tool);
        settings.is_some_and(|settings| settings.effect == Effect::Once)
    };
    let allows_once = |rule: &Rule| {
        let mut once = gate.tools.iter().filter(|tool| is_once(tool));
        applies_to_others(rule, gate) || once.any(|tool| names(rule, tool))
    };
    let mut allowing = config
        .policy
        .iter()
        .filter(|rule| rule.decide == Decide::Allow);
    if allowing.any(allows_once) {
        let detail = "a question about a call that a rule allows, such as a repetition or an unknown outcome, may wait for an owner who has no key that may `decide`: give that user one";
        mistakes.warn(&place, detail);
    }
}

fn keys_are_read(root: &Node) -> bool {
    let keys = root.at(&["auth", "api_keys"]);
    !root.is_broken_on_path(&["auth", "api_keys"])
        && keys.is_none_or(|keys| keys.elements().iter().all(|key| !key.broken))
}

fn may_ask(key: &ApiKey) -> bool {
    let may = key.permissions();
    may.gate && !may.decide
}

/// Whether the gate is open to the key's user, or to a user for whom the key may speak.
fn is_admitted(open_to: Option<&OpenTo>, key: &ApiKey, ids: UserIds) -> bool {
    let Some(open_to) = open_to else { return true };
    let names_people = !open_to.users.is_empty() || !open_to.groups.is_empty();
    (key.act_as && names_people) || open_to.admits(&key.tenant, &ids.id(&key.user), &key.groups)
}

/// Checks the names of the headers. If `user_header` is set, requires a key with `act_as`, because
/// only such a key may speak for the users in this header. If there is such a key, warns that the
/// gateway must overwrite or strip the header, because a client could forge it. Also warns about
/// settings that Envoy cannot honor: required reports, and rules that allow `edit`.
fn check_ext_authz(
    config: &Config,
    gate_name: &str,
    (gate, ext_authz): (&Gate, &ExtAuthz),
    root: &Node,
    mistakes: &mut Mistakes,
) {
    let place = ["gates", gate_name, "ext_authz"];
    check_header_names(&place, ext_authz, mistakes);
    if ext_authz.user_header.is_some() && keys_are_read(root) {
        let place = [&place[..], &["user_header"]].concat();
        let mut keys = config.auth.iter().flat_map(|auth| &auth.api_keys);
        if keys.any(|key| key.act_as && may_ask(key)) {
            let detail = "the gateway must overwrite this header in each request, or strip it: a value that a client has set would be believed";
            mistakes.warn(&place, detail);
        } else {
            let detail = "only a key with `act_as` speaks for the user of this header: no such key may `gate` and may not `decide`";
            mistakes.add(&place, detail);
        }
    }
    if gate.report == Report::Required {
        let detail = "Envoy reports no outcome, so each call of a `once` tool that it lets through becomes a question: say `report: optional`";
        mistakes.warn(&place, detail);
        return;
    }
    for (index, rule) in config.policy.iter().enumerate() {
        let allows_edit = rule.decide == Decide::Hold && rule.allow.contains(&Action::Edit);
        if allows_edit && applies_to(rule, gate) {
            let place = ["policy", &index.to_string(), "allow"];
            let detail =
                format!("`edit` is left out at the gate `{gate_name}`: Envoy cannot change a call");
            mistakes.warn(&place, detail);
        }
    }
}

/// Checks that each name can be the name of an HTTP header, and that the groups are not in the same
/// header as the user.
fn check_header_names(place: &[&str], ext_authz: &ExtAuthz, mistakes: &mut Mistakes) {
    let (user, groups) = (&ext_authz.user_header, &ext_authz.groups_header);
    let named = [
        ("user_header", user),
        ("groups_header", groups),
        ("session_header", &ext_authz.session_header),
    ];
    for (key, name) in named {
        if name
            .as_ref()
            .is_some_and(|name| HeaderName::from_bytes(name.as_bytes()).is_err())
        {
            mistakes.add(&[place, &[key]].concat(), "expected the name of a header");
        }
    }
    if let (Some(user), Some(groups)) = (user, groups)
        && user.eq_ignore_ascii_case(groups)
    {
        let detail = "this is the `user_header`, too: the groups need a header of their own";
        mistakes.add(&[place, &["groups_header"]].concat(), detail);
    }
}

/// Whether the rule's `tools` match at least one tool whose calls may be proposed at the gate.
fn applies_to(rule: &Rule, gate: &Gate) -> bool {
    applies_to_others(rule, gate) || gate.tools.iter().any(|tool| names(rule, tool))
}

/// Whether the gate judges calls of tools that it does not list, and the rule has a glob, which may
/// match such a tool. An exact name in a `hold` or `deny` rule may also match such a tool. Exact
/// names are ignored here, because with them each rule that names a tool outside the gate's list
/// would seem to apply to the gate.
fn applies_to_others(rule: &Rule, gate: &Gate) -> bool {
    gate.other_tools == OtherTools::Judge && rule.tools.iter().any(|pattern| is_glob(pattern))
}

/// Whether the rule's `tools` match this tool.
fn names(rule: &Rule, tool: &str) -> bool {
    let mut patterns = rule.tools.iter();
    patterns.any(|pattern| matches_tool(pattern, tool))
}

/// Warns about each tool at a gate that takes a credential: a person must enter the credential anew
/// for every call of the tool.
pub(crate) fn credentials(config: &Config, mistakes: &mut Mistakes) {
    for (gate_name, gate) in &config.gates {
        for (index, tool) in gate.tools.iter().enumerate() {
            let Some(settings) = config.tools.get(tool) else {
                continue;
            };
            if config
                .credential_texts(settings)
                .iter()
                .any(|text| text.contains(REFERENCE_START))
            {
                let detail = format!(
                    "`{tool}` takes a credential: a person is asked for it anew with each call, because a gate keeps none"
                );
                let index = index.to_string();
                mistakes.warn(&["gates", gate_name, "tools", &index], detail);
            }
        }
    }
}
