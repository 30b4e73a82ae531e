//! Finds entries of `notify.to` whose people may decide no question, reminder times at which no
//! question is open, and rules whose questions reach no person.

use std::time::Duration;

use super::Config;
use super::tree::Node;
use crate::notify::recipients::names;
use crate::notify::settings::{EntrySettings, Mail, Named, Recipients};
use crate::people::directory::Directory;
use crate::people::may::may_decide;
use crate::people::person::Person;
use crate::policy::{Decide, Expiry, Rule};
use crate::task::verdict::{Approvers, Terms};
use crate::world::Mistakes;

/// The id of an owner that no person has, so that no person has the rights of an owner.
const NOBODY: &str = "";

/// The terms of a rule's questions. If `rule` is `None`, the terms of the questions about calls
/// that no rule matches.
struct Asked<'c> {
    rule: Option<&'c Rule>,
    approvers: Approvers,
    expires_in: Option<Duration>,
}

/// Checks the people of every entry that sends mail, and the times of every entry. Warns about
/// rules whose questions reach no person.
pub(crate) fn all(config: &Config, root: &Node, mistakes: &mut Mistakes) {
    let sound = |path: &[&str]| root.at(path).is_none_or(|node| !node.broken);
    if !sound(&["auth"]) || !sound(&["policy"]) {
        return;
    }
    let Some(directory) = config.directory() else {
        return;
    };
    let asked = asked(config);
    for (index, entry) in config.notify.to.iter().enumerate() {
        let at = index.to_string();
        let place = ["notify", "to", &at];
        if !sound(&place) {
            continue;
        }
        times(entry, &asked, &place, mistakes);
        let ever = asked.iter().any(|asked| tells(entry, asked));
        if let Some(mail) = entry.mail.as_ref().filter(|_| ever) {
            recipients(entry, mail, &asked, &directory, (&place, mistakes));
        }
    }
    if config.notify.to.iter().any(|entry| entry.mail.is_some()) {
        for (index, rule) in config.policy.iter().enumerate() {
            let own = asked.iter().find(|asked| asked.rule == Some(rule));
            if own.is_some_and(|asked| reached(config, asked, &directory).is_empty()) {
                let place = ["policy", &index.to_string(), "approvers"];
                mistakes.warn(&place, "no message tells anybody of this rule's questions");
            }
        }
    }
}

/// Returns one line for each rule that holds calls: the recipients of the rule's questions, each
/// with the entry that sends to them. Empty if there are no entries.
pub(crate) fn lines(config: &Config) -> Vec<String> {
    let Some(directory) = config.directory().filter(|_| !config.notify.to.is_empty()) else {
        return Vec::new();
    };
    let asked = asked(config);
    let rules = asked.iter().filter_map(|asked| Some((asked.rule?, asked)));
    let lines = rules.map(|(rule, asked)| {
        let reached = reached(config, asked, &directory);
        let who = if reached.is_empty() {
            "nobody".to_owned()
        } else {
            reached.join(", ")
        };
        format!("A question of the rule `{}` reaches {who}.", rule.name)
    });
    lines.collect()
}

fn asked(config: &Config) -> Vec<Asked<'_>> {
    let rules = config
        .policy
        .iter()
        .filter(|rule| rule.decide == Decide::Hold);
    let mut all: Vec<Asked<'_>> = rules
        .map(|rule| Asked {
            rule: Some(rule),
            approvers: rule.approvers.approvers(),
            expires_in: match rule.expires_in {
                Expiry::Never => None,
                Expiry::After(time) => Some(time),
            },
        })
        .collect();
    let usual = Terms::default();
    all.push(Asked {
        rule: None,
        approvers: usual.approvers,
        expires_in: usual.expires_in,
    });
    all
}

/// Whether an entry sends its message while a question with the terms `asked` is still open.
fn tells(entry: &EntrySettings, asked: &Asked<'_>) -> bool {
    let when = entry.when;
    when.is_none_or(|when| when.wait(asked.expires_in).is_some())
}

/// Whether an entry sends messages about questions with the terms `asked`, as far as the file
/// tells.
fn picks(entry: &EntrySettings, asked: &Asked<'_>, directory: &Directory) -> bool {
    let approvers = &asked.approvers;
    let user = |user: &String| {
        let ids = directory.ids();
        approvers.owner || approvers.users.iter().any(|name| ids.same(name, user)) || {
            let people = directory.people();
            let mut own = people.filter(|person| ids.same(&person.user, user));
            own.any(|person| may(person, approvers, directory))
        }
    };
    let by_approvers = (entry.groups.is_empty() && entry.users.is_empty())
        || entry
            .groups
            .iter()
            .any(|group| approvers.groups.contains(group))
        || entry.users.iter().any(user);
    by_approvers && tells(entry, asked)
}

/// Whether a person may decide questions with these `approvers`, as the owner or as another person.
fn may(person: &Person, approvers: &Approvers, directory: &Directory) -> bool {
    let caller = directory.who_is(person);
    let as_owner = approvers.owner && caller.may.decide;
    as_owner || may_decide(&caller, &person.tenant, NOBODY, approvers)
}

/// Returns the people who get mails of an entry about questions with the terms `asked`.
fn people<'d>(
    entry: &EntrySettings,
    mail: &Mail,
    asked: &Asked<'_>,
    directory: &'d Directory,
) -> Vec<&'d Person> {
    let tenant =
        |person: &&Person| entry.tenants.is_empty() || entry.tenants.contains(&person.tenant);
    directory
        .people()
        .filter(tenant)
        .filter(|person| person.email.is_some() && names(&mail.to, person, directory))
        .filter(|person| may(person, &asked.approvers, directory))
        .filter(|_| picks(entry, asked, directory))
        .collect()
}

fn reached(config: &Config, asked: &Asked<'_>, directory: &Directory) -> Vec<String> {
    let mut all = Vec::new();
    for entry in &config.notify.to {
        if let Some(mail) = &entry.mail {
            let people = people(entry, mail, asked, directory).into_iter();
            all.extend(people.map(|person| format!("{} ({})", person.user, entry.name)));
        } else if entry.tells_of_questions() && picks(entry, asked, directory) {
            all.push(entry.name.clone());
        }
    }
    all
}

fn recipients(
    entry: &EntrySettings,
    mail: &Mail,
    all: &[Asked<'_>],
    directory: &Directory,
    (place, mistakes): (&[&str], &mut Mistakes),
) {
    let place = [place, &["mail", "to"]].concat();
    let reaches = |to: &Recipients, asked: &Asked<'_>| {
        let only = Mail {
            to: to.clone(),
            summaries: false,
        };
        !people(entry, &only, asked, directory).is_empty()
    };
    let Recipients::Named(named) = &mail.to else {
        if !all.iter().any(|asked| reaches(&mail.to, asked)) {
            mistakes.warn(
                &place,
                "no approver of a question that this entry tells of has a mail address in `auth.people`",
            );
        }
        return;
    };
    if named.groups.is_empty() && named.users.is_empty() {
        return mistakes.add(&place, "`groups` or `users` is missing");
    }
    let groups = named.groups.iter().map(|group| Named {
        groups: vec![group.clone()],
        users: Vec::new(),
    });
    let users = named.users.iter().map(|user| Named {
        groups: Vec::new(),
        users: vec![user.clone()],
    });
    let groups = groups
        .enumerate()
        .map(|(index, one)| ("groups", index, one));
    let users = users.enumerate().map(|(index, one)| ("users", index, one));
    let picked: Vec<&Asked<'_>> = all
        .iter()
        .filter(|asked| asked.rule.is_some() && picks(entry, asked, directory))
        .collect();
    for (key, index, one) in groups.chain(users) {
        let to = Recipients::Named(one);
        let index = index.to_string();
        let place = [&place[..], &[key, &index]].concat();
        if !all.iter().any(|asked| reaches(&to, asked)) {
            let detail = "nobody here has a mail address and may decide a question of this entry: a message tells of a \
                          question, it never widens who may decide it";
            mistakes.add(&place, detail);
        } else if picked.iter().any(|asked| !reaches(&to, asked)) {
            let detail =
                "nobody here may decide the questions of some rules, and is not told of those";
            mistakes.warn(&place, detail);
        }
    }
}

fn times(entry: &EntrySettings, all: &[Asked<'_>], place: &[&str], mistakes: &mut Mistakes) {
    let Some(when) = entry.when else { return };
    let longest = all.iter().filter_map(|asked| asked.expires_in).max();
    let endless = all.iter().any(|asked| asked.expires_in.is_none());
    let longest = longest.unwrap_or_default();
    let detail = "no question stays open for so long";
    if when.before_expiry.is_some_and(|before| before >= longest) {
        let place = [place, &["when", "before_expiry"]].concat();
        mistakes.add(&place, detail);
    }
    if !endless && when.after.is_some_and(|after| after >= longest) {
        let place = [place, &["when", "after"]].concat();
        mistakes.add(&place, detail);
    }
}
