//! Checks the entries of `notify.to`. Each entry must have exactly one channel, and may name only
//! tenants, agents, groups and users that other sections have. Also fills in the tenants of the
//! entries that name none.

use std::collections::BTreeSet;

use super::Config;
use super::check_parts::{check_name, check_single_key};
use super::check_people::are_accounts_unreadable;
use super::check_rules::matching_tools;
use super::tree::Node;
use crate::agent::gate::OtherTools;
use crate::notify::settings::{CHANNELS, EntrySettings};
use crate::policy::Rule;
use crate::world::Mistakes;

/// The only tenant in a service without accounts.
const ONLY_TENANT: &str = "default";

type IsKnown<'f> = &'f dyn Fn(&str) -> bool;

/// The names that entries of `notify.to` may use. `agents` includes the gates.
struct KnownNames<'c> {
    /// The known tenants. `None` if the accounts could not be read.
    tenants: Option<BTreeSet<&'c str>>,
    agents: BTreeSet<&'c str>,
    /// The known groups. `groups` and `users` are `None` if the accounts could not be read. They
    /// are also `None` if a key has `act_as`, because such a key may name groups and users that the
    /// file does not have.
    groups: Option<BTreeSet<&'c str>>,
    users: Option<BTreeSet<String>>,
}

/// Returns the tenants that keys have; in a service without accounts, the only tenant.
pub(super) fn tenants(config: &Config) -> BTreeSet<&str> {
    let Some(auth) = &config.auth else {
        return BTreeSet::from([ONLY_TENANT]);
    };
    let keys = auth.api_keys.iter();
    keys.map(|key| key.tenant.as_str()).collect()
}

/// Gives each entry without `tenants` the tenants of all keys. Otherwise the entry would also get
/// messages about tasks of former tenants: tenants that no key has any more.
pub(super) fn complete_tenants(config: &mut Config) {
    let all: Vec<String> = tenants(config).into_iter().map(str::to_owned).collect();
    let entries = config.notify.to.iter_mut();
    for entry in entries.filter(|entry| entry.tenants.is_empty()) {
        entry.tenants.clone_from(&all);
    }
}

/// Whether one of these agents or gates, or an agent below one of them, may propose a call of a
/// tool that the rule matches. Always true if `agents` is empty, because an entry without `agents`
/// gets messages about every agent.
pub(super) fn may_propose_calls_of(config: &Config, agents: &[String], rule: &Rule) -> bool {
    let proposes = |agent: &String| {
        let below = config.agents_below(agent).into_iter();
        let below: Vec<_> = below.filter_map(|name| config.agents.get(name)).collect();
        let subs = below.iter().flat_map(|agent| &agent.sub_agents);
        let mut callable = config.tools_below(agent);
        callable.extend(subs.map(|sub| sub.agent.as_str()));
        let is_offered = |pattern: &String| {
            let found = matching_tools(pattern, callable.iter().copied());
            let mut human = below.iter().flat_map(|agent| &agent.human);
            found.is_some_and(|found| !found.is_empty()) || human.any(|kind| kind.tool() == pattern)
        };
        let gate = config.gates.get(agent);
        gate.is_some_and(|gate| gate.other_tools == OtherTools::Judge)
            || rule.tools.iter().any(is_offered)
    };
    agents.is_empty() || agents.iter().any(proposes)
}

pub(crate) fn all(config: &Config, root: &Node, mistakes: &mut Mistakes) {
    let known = KnownNames::from_config(config, root);
    let are_there_several = known.tenants.as_ref().is_some_and(|all| all.len() > 1);
    for (index, entry) in config.notify.to.iter().enumerate() {
        let at = index.to_string();
        let place = ["notify", "to", &at];
        let Some(node) = root.at(&place).filter(|node| !node.broken) else {
            continue;
        };
        if !entry.name.is_empty() {
            let place = [&place[..], &["name"]].concat();
            check_name(&place, "an entry", &entry.name, mistakes);
        }
        let purpose = "how the messages are sent";
        check_single_key(&place, node, &CHANNELS, purpose, mistakes);
        let broken = |key: &str| node.get(key).is_some_and(|node| node.broken);
        if entry.tenants.is_empty() && are_there_several && !broken("tenants") {
            let detail = "`tenants` is missing: there are several, and each message goes to the tenants that are named";
            mistakes.add(&place, detail);
        }
        known.check(config, entry, &place, mistakes);
    }
}

impl<'c> KnownNames<'c> {
    fn from_config(config: &'c Config, root: &Node) -> Self {
        let keys = config.auth.as_ref().map(|auth| &auth.api_keys);
        let is_readable = !are_accounts_unreadable(root);
        let allows_any_user =
            !is_readable || keys.is_some_and(|keys| keys.iter().any(|key| key.act_as));
        let keys = || keys.into_iter().flatten();
        let people = config.auth.iter().flat_map(|auth| &auth.people);
        let names = keys().map(|key| (&key.user, &key.groups));
        let names = names.chain(people.map(|person| (&person.user, &person.groups)));
        let groups = names.clone();
        let groups = groups.flat_map(|(_, groups)| groups.iter().map(String::as_str));
        let agents = config.agents.keys().chain(config.gates.keys());
        let ids = config.auth.as_ref().map(|auth| auth.user_ids);
        let ids = ids.unwrap_or_default();
        let users = names.map(|(user, _)| ids.key(user).as_str().to_owned());
        Self {
            tenants: is_readable.then(|| tenants(config)),
            agents: agents.map(String::as_str).collect(),
            groups: (!allows_any_user).then(|| groups.collect()),
            users: (!allows_any_user).then(|| users.collect()),
        }
    }

    fn check(
        &self,
        config: &Config,
        entry: &EntrySettings,
        place: &[&str],
        mistakes: &mut Mistakes,
    ) {
        let ids = config.auth.as_ref().map(|auth| auth.user_ids);
        let ids = ids.unwrap_or_default();
        let tenant = |name: &str| self.tenants.as_ref().is_none_or(|all| all.contains(name));
        let agent = |name: &str| self.agents.contains(name);
        let group = |name: &str| self.groups.as_ref().is_none_or(|all| all.contains(name));
        let user = |name: &str| {
            let all = self.users.as_ref();
            all.is_none_or(|all| all.contains(ids.key(name).as_str()))
        };
        let mut list = |key, what: &str, names: &[String], is_known: IsKnown<'_>| {
            for (index, name) in names.iter().enumerate() {
                if !is_known(name) {
                    let index = index.to_string();
                    let place = [place, &[key, &index]].concat();
                    mistakes.add(&place, format!("{what} `{name}`"));
                }
            }
        };
        let tenants = "no account has the tenant";
        list("tenants", tenants, &entry.tenants, &tenant);
        list("agents", "unknown agent", &entry.agents, &agent);
        let groups = "no account is in the group";
        list("groups", groups, &entry.groups, &group);
        list("users", "no account has the user", &entry.users, &user);
    }
}
