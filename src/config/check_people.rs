//! Finds mistakes in the accounts, and rules that need more approvers than any tenant has.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use super::Config;
use super::tree::Node;
use crate::people::directory::is_user;
use crate::people::settings::{ApiKey, parse_hex};
use crate::policy::Decide;
use crate::task::user::UserKey;
use crate::world::Mistakes;

/// Checks the accounts and the approvers of every rule.
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
        let Some(node) = root.at(&place).filter(|node| !node.broken) else {
            continue;
        };
        person(key, &place, mistakes);
        let hash = secret(key, node, &place, mistakes);
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
    rules(config, &auth.api_keys, root, mistakes);
}

fn person(key: &ApiKey, place: &[&str], mistakes: &mut Mistakes) {
    let words = [("user", &key.user), ("tenant", &key.tenant)];
    for (what, text) in words {
        if !(is_user(text) || (what == "user" && text.is_empty())) {
            mistakes.add(
                &[place, &[what]].concat(),
                format!("a {what} is 1 to 128 visible characters without blanks"),
            );
        }
    }
    for (index, group) in key.groups.iter().enumerate() {
        let sound =
            !group.contains(',') && group.trim() == group && is_user(&group.replace(' ', "_"));
        if !sound {
            let detail = "a group is 1 to 128 visible characters without commas";
            mistakes.add(&[place, &["groups", &index.to_string()]].concat(), detail);
        }
    }
}

/// Checks an API key. Returns the key's hash if the key is valid.
fn secret(key: &ApiKey, node: &Node, place: &[&str], mistakes: &mut Mistakes) -> Option<[u8; 32]> {
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
                return Some(Sha256::digest(text.as_bytes()).into());
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
            let broken = ["key", "key_sha256"]
                .iter()
                .any(|key| node.get(key).is_some_and(|node| node.broken));
            if !broken {
                mistakes.add(place, "`key` or `key_sha256` is missing");
            }
            None
        }
    }
}

/// Checks that, for every rule with `hold`, some tenant has as many approvers as the rule requires.
fn rules(config: &Config, keys: &[ApiKey], root: &Node, mistakes: &mut Mistakes) {
    let broken = root
        .at(&["auth", "api_keys"])
        .is_some_and(|list| list.broken || list.elements().iter().any(|key| key.broken));
    if broken || keys.is_empty() {
        return;
    }
    let Some(directory) = config.directory() else {
        return;
    };
    let tenants: BTreeSet<&str> = keys.iter().map(|key| key.tenant.as_str()).collect();
    for (index, rule) in config.policy.iter().enumerate() {
        let at = index.to_string();
        let sound = root.at(&["policy", &at]).is_some_and(|node| {
            !node.broken
                && node
                    .get("approvers")
                    .is_none_or(|approvers| !has_broken(approvers))
        });
        if rule.decide != Decide::Hold || !sound {
            continue;
        }
        let approvers = rule.approvers.approvers();
        let could = |tenant: &&str| directory.could_approve(tenant, &approvers, None, None);
        let most = tenants.iter().map(could).max().unwrap_or(0);
        if most < approvers.required as usize {
            let detail = format!(
                "no tenant can satisfy this rule: it needs {} different people, and {most} could answer",
                rule.approvers.required
            );
            mistakes.add(&["policy", &at, "approvers"], detail);
        }
    }
}

fn has_broken(node: &Node) -> bool {
    node.broken
        || node.elements().iter().any(has_broken)
        || node.entries().iter().any(|entry| has_broken(&entry.node))
}
