//! Finds mistakes in the API keys of accounts and in the people who get messages. Also finds rules
//! that require more approvers than a tenant has.

use std::collections::{BTreeMap, BTreeSet};

use super::Config;
use super::tree::{MapEntry, Node};
use crate::mcp::lock::LockedServer;
use crate::people::directory::{Directory, hash_key, is_valid_user_id};
use crate::people::person::is_email;
use crate::people::settings::{ApiKey, PersonSettings, Settings, parse_hex};
use crate::policy::{Decide, Rule};
use crate::secret::Secret;
use crate::task::request::RequestKind;
use crate::task::user::UserKey;
use crate::task::verdict::Approvers;
use crate::world::Mistakes;

pub(crate) fn all(config: &Config, root: &Node, mistakes: &mut Mistakes) {
    let Some(auth) = &config.auth else { return };
    let written = root.get("auth").filter(|node| !node.broken);
    let keys = written.and_then(|node| node.get("api_keys"));
    if written.is_some() && keys.is_none_or(|keys| keys.elements().is_empty() && !keys.broken) {
        mistakes.add(
            &["auth"],
            "`api_keys` is empty, so every request would be refused: name a key, or leave `auth` out",
        );
    }
    let mut seen: BTreeSet<[u8; 32]> = BTreeSet::new();
    let mut groups: BTreeMap<(&str, UserKey), BTreeSet<&str>> = BTreeMap::new();
    for (index, key) in auth.api_keys.iter().enumerate() {
        let at = index.to_string();
        let place = ["auth", "api_keys", &at];
        if root.at(&place).is_none_or(|node| node.broken) {
            continue;
        }
        check_names(&key.user, Some(&key.tenant), &key.groups, &place, mistakes);
        let hash = check_key(key, &place, mistakes);
        if hash.is_some_and(|hash| !seen.insert(hash)) {
            mistakes.add(
                &place,
                "this key is used twice: each user has a key of their own",
            );
        }
        if key.user.is_empty() {
            continue;
        }
        let own: BTreeSet<&str> = key.groups.iter().map(String::as_str).collect();
        let first = groups
            .entry((&key.tenant, auth.user_ids.key(&key.user)))
            .or_insert_with(|| own.clone());
        if *first != own {
            let detail = format!(
                "the user `{}` has other groups in another key: all keys of a user name the same groups",
                key.user
            );
            mistakes.add(&[&place[..], &["groups"]].concat(), detail);
        }
        if key.may.is_empty() {
            mistakes.warn(
                &[&place[..], &["may"]].concat(),
                format!("this key of `{}` may do nothing", key.user),
            );
        }
    }
    check_people(auth, root, mistakes);
    check_rules(config, auth, root, mistakes);
}

fn check_people(auth: &Settings, root: &Node, mistakes: &mut Mistakes) {
    let tenants: BTreeSet<&str> = auth
        .api_keys
        .iter()
        .map(|key| key.tenant.as_str())
        .collect();
    let resolved = auth.people();
    let (mut users, mut addresses) = (BTreeSet::new(), BTreeSet::new());
    for (index, (person, resolved)) in auth.people.iter().zip(&resolved).enumerate() {
        let at = index.to_string();
        let place = ["auth", "people", &at];
        let Some(node) = root.at(&place).filter(|node| !node.broken) else {
            continue;
        };
        let below = |key| [&place[..], &[key]].concat();
        let tenant = person.tenant.as_deref();
        check_names(&person.user, tenant, &person.groups, &place, mistakes);
        match tenant {
            None if tenants.len() > 1 && node.get("tenant").is_none() => {
                let detail = "`tenant` is missing: there are several, and a person is of one";
                mistakes.add(&place, detail);
            }
            Some(tenant) if is_valid_user_id(tenant) && !tenants.contains(tenant) => {
                let detail = format!("no key has the tenant `{tenant}`");
                mistakes.add(&below("tenant"), detail);
            }
            Some(_) | None => {}
        }
        let id = (&resolved.tenant, auth.user_ids.key(&person.user));
        if !person.user.is_empty() && !users.insert(id) {
            let detail = format!(
                "`{}` is a person above, too: each person stands here once",
                person.user
            );
            mistakes.add(&below("user"), detail);
        }
        check_groups_of_key(auth, person, &resolved.tenant, &place, mistakes);
        let Some(email) = &person.email else { continue };
        if !is_email(email) {
            mistakes.add(
                &below("email"),
                "expected an address such as `bob@acme.com`",
            );
        } else if !addresses.insert((&resolved.tenant, email.to_ascii_lowercase())) {
            let detail = "another person of the tenant has this address, too: each person has a mailbox of their own";
            mistakes.add(&below("email"), detail);
        }
    }
}

/// Reports the `groups` of a person who has a key, if they differ from the groups of the key. If
/// the person's entry leaves `groups` out, the person has the groups of the key.
fn check_groups_of_key(
    auth: &Settings,
    person: &PersonSettings,
    tenant: &str,
    place: &[&str],
    mistakes: &mut Mistakes,
) {
    let own = |key: &&ApiKey| {
        key.tenant == tenant && auth.user_ids.is_same_person(&key.user, &person.user)
    };
    let Some(key) = auth.api_keys.iter().find(own) else {
        return;
    };
    let set = |groups: &[String]| groups.iter().cloned().collect::<BTreeSet<_>>();
    if !person.groups.is_empty() && set(&person.groups) != set(&key.groups) {
        let detail = format!(
            "the key of `{}` has other groups: leave `groups` out, a person who has a key has the groups of the key",
            person.user
        );
        mistakes.add(&[place, &["groups"]].concat(), detail);
    }
}

fn check_names(
    user: &str,
    tenant: Option<&str>,
    groups: &[String],
    place: &[&str],
    mistakes: &mut Mistakes,
) {
    let words = [("user", Some(user)), ("tenant", tenant)];
    let words = words
        .into_iter()
        .filter_map(|(what, text)| Some((what, text?)));
    for (what, text) in words {
        if !(is_valid_user_id(text) || (what == "user" && text.is_empty())) {
            mistakes.add(
                &[place, &[what]].concat(),
                format!("a {what} is 1 to 128 visible characters without blanks"),
            );
        }
    }
    for (index, group) in groups.iter().enumerate() {
        let is_valid = !group.contains(',')
            && group.trim() == group
            && is_valid_user_id(&group.replace(' ', "_"));
        if !is_valid {
            let detail = "a group is 1 to 128 visible characters without commas";
            mistakes.add(&[place, &["groups", &index.to_string()]].concat(), detail);
        }
    }
}

/// Checks `key` and `key_sha256` of an API key. Returns the hash of the key; `None` if the key is
/// not valid.
fn check_key(key: &ApiKey, place: &[&str], mistakes: &mut Mistakes) -> Option<[u8; 32]> {
    match (&key.key, &key.key_sha256) {
        (Some(_), Some(_)) => {
            mistakes.add(place, "only one of `key` and `key_sha256` may be set");
            None
        }
        (Some(text), None) => {
            let text = text.reveal();
            let place = [place, &["key"]].concat();
            if text.chars().count() < 16 {
                mistakes.add(&place, "a key has at least 16 characters");
            } else if text.chars().collect::<BTreeSet<_>>().len() < 8 {
                mistakes.add(&place, "a key has at least 8 different characters");
            } else if !text.chars().all(|c| c.is_ascii_graphic()) {
                mistakes.add(
                    &place,
                    "a key has visible ASCII characters only: it is sent in a header",
                );
            } else {
                return Some(hash_key(text));
            }
            None
        }
        (None, Some(hex)) => {
            let hash = parse_hex(hex.reveal());
            if hash.is_none() {
                mistakes.add(
                    &[place, &["key_sha256"]].concat(),
                    "expected a SHA-256: 64 hex digits",
                );
            }
            hash
        }
        (None, None) => {
            mistakes.add(place, "`key` or `key_sha256` is missing");
            None
        }
    }
}

/// Gives a placeholder key to each account whose key could not be read, so that the checks count
/// the account. The placeholder is never used: the key that cannot be read is a mistake, and with a
/// mistake the service does not start.
pub(super) fn replace_unreadable_keys(config: &mut Config, root: &Node) {
    let auth = config.auth.iter_mut();
    let keys = auth.flat_map(|auth| auth.api_keys.iter_mut());
    for (index, key) in keys.enumerate() {
        let node = root.at(&["auth", "api_keys", &index.to_string()]);
        let is_broken = |name: &str| {
            let value = node.and_then(|node| node.get(name));
            value.is_some_and(|value| value.broken)
        };
        let has_none = key.key.is_none() && key.key_sha256.is_none();
        if has_none && (is_broken("key") || is_broken("key_sha256")) {
            key.key_sha256 = Some(Secret::new(format!("{index:064x}")));
        }
    }
}

/// Whether a value of an account or a person, such as a name, a right or an address, could not be
/// read. An unreadable API key does not count, because [`replace_unreadable_keys`] replaces it.
pub(super) fn are_accounts_unreadable(root: &Node) -> bool {
    let is_part_broken = |entry: &MapEntry| {
        !matches!(entry.key.as_str(), "key" | "key_sha256") && has_broken(&entry.node)
    };
    let is_unreadable =
        |account: &Node| account.broken || account.entries().iter().any(is_part_broken);
    ["api_keys", "people"].iter().any(|list| {
        let list = root.at(&["auth", *list]);
        list.is_some_and(|list| list.broken || list.elements().iter().any(is_unreadable))
    })
}

/// Whether an account, a person or the settings of links could not be read. If so, the possible
/// approvers are not known.
pub(super) fn are_approvers_unreadable(root: &Node) -> bool {
    are_accounts_unreadable(root) || root.at(&["notify", "links"]).is_some_and(has_broken)
}

/// Checks each rule whose approvers get questions. Reports the rule if no tenant has enough
/// approvers for it. If only some tenants have enough, and [`is_for_all_tenants`] holds for the
/// rule, warns about each other tenant that has a key which may create tasks.
fn check_rules(config: &Config, auth: &Settings, root: &Node, mistakes: &mut Mistakes) {
    let keys = &auth.api_keys;
    if are_approvers_unreadable(root) || keys.is_empty() {
        return;
    }
    let Some(directory) = config.directory() else {
        return;
    };
    let tenants: BTreeSet<&str> = keys.iter().map(|key| key.tenant.as_str()).collect();
    for (index, rule) in config.policy.iter().enumerate() {
        let at = index.to_string();
        let is_valid = root.at(&["policy", &at]).is_some_and(|node| {
            let mut keys = ["approvers", "allow"].iter();
            !node.broken && !keys.any(|key| node.get(key).is_some_and(has_broken))
        });
        let kinds = question_kinds(config, rule);
        if kinds.is_empty() || !is_valid {
            continue;
        }
        let required = required_people(rule);
        let counts = tenants
            .iter()
            .map(|tenant| (*tenant, max_approvers(&directory, tenant, rule, &kinds)));
        let (short, enough): (Vec<_>, Vec<_>) =
            counts.partition(|(_, count)| *count < required as usize);
        let place = ["policy", &at, "approvers"];
        if enough.is_empty() {
            let most = short.iter().map(|(_, count)| *count).max().unwrap_or(0);
            let detail = format!(
                "no tenant can satisfy this rule: it needs {required} different people, and {most} could answer"
            );
            mistakes.add(&place, detail);
        } else if is_for_all_tenants(config, index) {
            for (tenant, count) in short {
                let mut own = keys.iter().filter(|key| key.tenant == tenant);
                if own.any(|key| key.permissions().create) {
                    let detail = format!(
                        "the tenant `{tenant}` cannot satisfy this rule: it needs {required} different people, and {count} could answer"
                    );
                    mistakes.warn(&place, detail);
                }
            }
        }
    }
}

/// For each of `kinds`, counts the people of the tenant who could answer the rule's questions of
/// this kind. Returns the smallest count.
fn max_approvers(
    directory: &Directory,
    tenant: &str,
    rule: &Rule,
    kinds: &BTreeSet<RequestKind>,
) -> usize {
    let counts = kinds.iter().map(|kind| {
        let approvers = approvers_of(rule, *kind);
        directory.possible_approver_count(tenant, &approvers, None, None)
    });
    counts.min().unwrap_or(usize::MAX)
}

/// Whether the rule with this index certainly makes no difference between tenants. Returns `false`
/// if there are gates, if an agent is not open to all callers, or if this rule or an earlier rule
/// may have a condition on the caller.
fn is_for_all_tenants(config: &Config, index: usize) -> bool {
    // A condition that reads the caller contains `user`, `agent`, `task` or `session`. If a
    // condition has such a word for another reason, for example in a string, the rule merely gets
    // no warning.
    let may_read_caller = |when: &String| {
        let variables = ["user", "agent", "task", "session"];
        variables.iter().any(|variable| when.contains(variable))
    };
    let rules = config.policy.iter().take(index + 1);
    config.gates.is_empty()
        && config.agents.values().all(|agent| agent.open_to.is_none())
        && !rules
            .filter_map(|rule| rule.when.as_ref())
            .any(may_read_caller)
}

/// Returns the kinds of the questions that a rule's approvers get. A rule that holds calls opens a
/// question of the kind of each `request_…` tool that it lists, and an approval for every other
/// tool. A rule that allows calls opens no question itself. But an MCP server may ask a question in
/// the middle of an allowed call. The users and groups that the rule names answer this question if
/// the rule lists a tool of such a server by its exact name.
pub(super) fn question_kinds(config: &Config, rule: &Rule) -> BTreeSet<RequestKind> {
    let of_tool = |tool: &String| RequestKind::from_tool(tool).unwrap_or(RequestKind::Approval);
    let may_ask = |tool: &String| {
        let mcp = config.tools.get(tool).and_then(|tool| tool.mcp.as_ref());
        let server = mcp.and_then(|mcp| config.lock.servers.get(&mcp.server));
        server.is_some_and(LockedServer::may_ask)
    };
    let names_people = !rule.approvers.users.is_empty() || !rule.approvers.groups.is_empty();
    match rule.decide {
        Decide::Hold => rule.tools.iter().map(of_tool).collect(),
        Decide::Allow if names_people && rule.tools.iter().any(may_ask) => {
            BTreeSet::from([RequestKind::Elicitation])
        }
        Decide::Allow | Decide::Deny => BTreeSet::new(),
    }
}

/// Returns the number of people who have to agree on a rule's questions. A server's question in the
/// middle of an allowed call needs one person.
fn required_people(rule: &Rule) -> u32 {
    match rule.decide {
        Decide::Allow => 1,
        Decide::Hold | Decide::Deny => rule.approvers.required,
    }
}

/// Returns the approvers of a rule's questions of this kind. They may answer by link only if the
/// rule accepts links, and such a question accepts some action by link.
pub(super) fn approvers_of(rule: &Rule, kind: RequestKind) -> Approvers {
    let approvers = rule.approvers.approvers();
    let properties = kind.properties();
    let is_offered = |action| !properties.decides_calls || rule.allow.contains(action);
    let takes_links = properties.link_actions.iter().any(is_offered);
    Approvers {
        links: Some(takes_links && approvers.accepts_links()),
        required: required_people(rule),
        ..approvers
    }
}

/// Whether a mistake was reported for a node or for a node below it.
pub(super) fn has_broken(node: &Node) -> bool {
    node.broken
        || node.elements().iter().any(has_broken)
        || node.entries().iter().any(|entry| has_broken(&entry.node))
}
