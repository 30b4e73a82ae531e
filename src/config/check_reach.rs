//! Checks that the messages of `notify.to` reach people who may decide. Refuses an entry if its
//! people may decide no question, or if its reminder would come after the deadline of every
//! question. Warns of a rule if its questions reach no person, if no approver has a mail address,
//! or if approvers need a link to decide and get none. Warns of a file with rules and no entries.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::time::Duration;

use super::Config;
use super::check_notify::{may_propose_calls_of, tenants};
use super::check_people::{approvers_of, are_approvers_unreadable, has_broken, question_kinds};
use super::tree::Node;
use crate::notify::entry::user_as_caller;
use crate::notify::recipients::recipients_include;
use crate::notify::settings::{EntrySettings, NamedRecipients, Recipients};
use crate::people::Caller;
use crate::people::authorization::may_decide;
use crate::people::directory::Directory;
use crate::people::person::Person;
use crate::policy::{Decide, Rule};
use crate::task::request::RequestKind;
use crate::task::units::format_duration;
use crate::task::verdict::{Approvers, Terms};
use crate::world::Mistakes;

/// An owner id that belongs to no person. A check with this owner grants no person the rights of an
/// owner.
const NO_OWNER: &str = "";

/// The terms of the questions that a rule opens, or of the questions about calls that match no rule
/// (`rule` is `None`).
struct QuestionTerms<'c> {
    rule: Option<&'c Rule>,
    approvers: Approvers,
    expires_in: Option<Duration>,
}

/// The settings that decide whom the messages about questions reach.
struct Reach<'c> {
    config: &'c Config,
    /// `None` in a service without accounts.
    directory: Option<Directory>,
    /// The tenants of the accounts' keys.
    tenants: BTreeSet<&'c str>,
    terms: Vec<QuestionTerms<'c>>,
}

pub(crate) fn all(config: &Config, root: &Node, mistakes: &mut Mistakes) {
    let is_readable = |path: &[&str]| root.at(path).is_none_or(|node| !node.broken);
    if !is_readable(&["auth"]) || !is_readable(&["policy"]) {
        return;
    }
    let reach = Reach::from_config(config);
    let are_approvers_known = !are_approvers_unreadable(root);
    let are_terms_known = are_approvers_known && !are_rules_unreadable(root);
    for (index, entry) in config.notify.to.iter().enumerate() {
        let at = index.to_string();
        let place = ["notify", "to", &at];
        if !is_readable(&place) {
            continue;
        }
        check_times(entry, &reach.terms, &place, mistakes);
        if !reach.terms.iter().any(|terms| is_in_time(entry, terms)) {
            continue;
        }
        if are_terms_known {
            reach.check_selection(entry, &place, mistakes);
            reach.check_gather(entry, &place, mistakes);
        }
        if let Some(mail) = &entry.mail
            && (are_approvers_known || names_nobody(&mail.to))
        {
            reach.check_recipients(entry, &mail.to, &place, mistakes);
        }
    }
    if !are_approvers_known {
        return;
    }
    reach.check_entries_exist(root, mistakes);
    for (index, rule) in config.policy.iter().enumerate() {
        let Some(own) = reach.terms.iter().find(|terms| terms.rule == Some(rule)) else {
            continue;
        };
        let place = ["policy", &index.to_string(), "approvers"];
        if reach.lacks_links(own) {
            let detail = "too few people could answer: approvers without a key decide by the link of a mail, and no \
                          entry of `notify.to` mails it to them";
            mistakes.warn(&place, detail);
        } else if !config.notify.to.is_empty() && reach.recipient_names(own).is_empty() {
            mistakes.warn(&place, "no message is sent about this rule's questions");
        } else if reach.misses_mail(own) {
            let detail = "no approver has a mail address in `auth.people`, so no mail is sent about this rule's questions";
            mistakes.warn(&place, detail);
        }
    }
}

impl<'c> Reach<'c> {
    fn from_config(config: &'c Config) -> Self {
        Self {
            config,
            directory: config.directory(),
            tenants: tenants(config),
            terms: all_question_terms(config),
        }
    }

    /// Checks each name in the entry's own `groups` and `users`. Warns if no rule lets this group
    /// or user decide any question about which the entry sends messages. This is not a mistake,
    /// because a user may decide questions about their own tasks. Skips a name that no account has,
    /// because an earlier check reports it.
    fn check_selection(&self, entry: &EntrySettings, place: &[&str], mistakes: &mut Mistakes) {
        let decisive = self.decisive_terms();
        let named = NamedRecipients {
            groups: entry.groups.clone(),
            users: entry.users.clone(),
        };
        for (key, index, one) in single_names(&named) {
            let index = index.to_string();
            let place = [place, &[key, &index]].concat();
            let name = [&one.groups[..], &one.users[..]].concat().join(", ");
            let single = limited_to(entry, one);
            let is_reported = mistakes.found.iter().any(|known| known.place == place);
            let mut terms = decisive.iter();
            if !is_reported && !terms.any(|terms| self.selects_in_any_tenant(&single, terms)) {
                let detail = format!("no rule lets `{name}` decide a question of this entry");
                mistakes.warn(&place, detail);
            }
        }
    }

    /// Warns of the first rule whose questions may close before their messages are sent. This can
    /// happen if the entry's `gather` is at least as long as the time that is left for an answer.
    fn check_gather(&self, entry: &EntrySettings, place: &[&str], mistakes: &mut Mistakes) {
        let gather = entry.gather_interval();
        let time_left = |expires_in: Duration| {
            let Some(when) = entry.when else {
                return Some(expires_in);
            };
            Some(expires_in.saturating_sub(when.reminder_delay(Some(expires_in))?))
        };
        let may_be_over = |terms: &&QuestionTerms<'_>| {
            let left = terms.expires_in.and_then(time_left);
            left.is_some_and(|left| left <= gather) && self.selects_in_any_tenant(entry, terms)
        };
        let is_asked = |rule: &&Rule| may_propose_calls_of(self.config, &entry.agents, rule);
        let over = self.terms.iter().filter(may_be_over);
        if let Some(rule) = over.filter_map(|terms| terms.rule).find(is_asked) {
            let detail = format!(
                "a question of the rule `{}` may be over before its message is sent, which is up to {} after an earlier \
                 message: shorten `gather`",
                rule.name,
                format_duration(gather)
            );
            mistakes.warn(&[place, &["gather"]].concat(), detail);
        }
    }

    fn check_recipients(
        &self,
        entry: &EntrySettings,
        to: &Recipients,
        place: &[&str],
        mistakes: &mut Mistakes,
    ) {
        let place = [place, &["mail", "to"]].concat();
        let reaches = |to: &Recipients, terms: &QuestionTerms<'_>| {
            !self.mailed_people(entry, to, terms).is_empty()
        };
        let Recipients::Named(named) = to else {
            if !self.terms.iter().any(|terms| reaches(to, terms)) {
                mistakes.warn(
                    &place,
                    "no approver of a question that this entry reports has a mail address in `auth.people`",
                );
            }
            return;
        };
        if names_nobody(to) {
            return mistakes.add(&place, "`groups` or `users` is missing");
        }
        let decisive = self.decisive_terms();
        let of_rules = self.terms.iter().filter(|terms| terms.rule.is_some());
        let picked: Vec<&QuestionTerms<'_>> = of_rules
            .filter(|terms| self.selects_in_any_tenant(entry, terms))
            .collect();
        for (key, index, one) in single_names(named) {
            let to = Recipients::Named(one.clone());
            let index = index.to_string();
            let place = [&place[..], &[key, &index]].concat();
            let is_reached = decisive.iter().any(|terms| reaches(&to, terms));
            let has_decider = || {
                let mut terms = decisive.iter();
                terms.any(|terms| self.has_decider_with_key(entry, &one, terms))
            };
            if !is_reached && has_decider() {
                let detail = "nobody here who may decide a question of this entry has a mail address in `auth.people`";
                mistakes.warn(&place, detail);
            } else if !is_reached {
                let detail = "no person here has a mail address and may decide a question of this entry: a message reports \
                              a question, it never widens who may decide it";
                mistakes.add(&place, detail);
            } else if picked.iter().any(|terms| !reaches(&to, terms)) {
                let detail = "no person here may decide the questions of some rules, and no mail about those is sent here";
                mistakes.warn(&place, detail);
            }
        }
    }

    /// Warns if a rule opens questions and `notify.to` has no entry. Does not warn in a service
    /// without accounts, because its only user is at the same machine.
    fn check_entries_exist(&self, root: &Node, mistakes: &mut Mistakes) {
        let place = ["notify", "to"];
        let is_empty = root.at(&place).is_none_or(|to| to.elements().is_empty());
        let has_questions = self.terms.iter().any(|terms| terms.rule.is_some());
        if is_empty && !root.is_broken_on_path(&place) && has_questions && self.directory.is_some()
        {
            let detail = "no entry: nobody is told of the rules' questions, which wait for those who open the inbox or \
                          ask the API";
            mistakes.warn(&place, detail);
        }
    }

    /// Whether enough people may answer questions with these `terms`, but too few of them have a
    /// key or get a mail. A person without a key can decide only by the link in a mail.
    fn lacks_links(&self, terms: &QuestionTerms<'_>) -> bool {
        let Some(directory) = &self.directory else {
            return false;
        };
        let mails = self.mails();
        let mailed = mails.flat_map(|(entry, to)| self.mailed_people(entry, to, terms));
        let reached = directory.clone().with_people(mailed.cloned().collect());
        let approvers = &terms.approvers;
        let suffices = |directory: &Directory| {
            self.tenants.iter().any(|tenant| {
                let count = directory.possible_approver_count(tenant, approvers, None, None);
                count >= approvers.required as usize
            })
        };
        suffices(directory) && !suffices(&reached)
    }

    /// Whether an entry of `notify.to` mails questions with these `terms` to `approvers`, but no
    /// entry can mail such a question to any person, because no approver has a mail address.
    fn misses_mail(&self, terms: &QuestionTerms<'_>) -> bool {
        let mut mails = self.mails();
        let is_unmailed = mails.all(|(entry, to)| self.mailed_people(entry, to, terms).is_empty());
        is_unmailed
            && self.directory.is_some()
            && self.mails().any(|(entry, to)| {
                matches!(to, Recipients::Approvers) && self.selects_in_any_tenant(entry, terms)
            })
    }

    fn recipient_names(&self, terms: &QuestionTerms<'_>) -> Vec<String> {
        let mut all = Vec::new();
        for entry in &self.config.notify.to {
            let is_asked = |rule| may_propose_calls_of(self.config, &entry.agents, rule);
            if !terms.rule.is_none_or(is_asked) {
                continue;
            }
            let name = match entry.agents.join(" or ") {
                agents if agents.is_empty() => entry.name.clone(),
                agents => format!("{} for calls of {agents}", entry.name),
            };
            if let Some(mail) = &entry.mail {
                let people = self.mailed_people(entry, &mail.to, terms).into_iter();
                all.extend(people.map(|person| format!("{} ({name})", person.user)));
            } else if entry.sends_new_questions() && self.selects_in_any_tenant(entry, terms) {
                all.push(name);
            }
        }
        all
    }

    /// Returns the people among the recipients `to` to whom an entry mails questions with these
    /// `terms`. Returns no people in a service without accounts.
    fn mailed_people(
        &self,
        entry: &EntrySettings,
        to: &Recipients,
        terms: &QuestionTerms<'_>,
    ) -> Vec<&Person> {
        let Some(directory) = &self.directory else {
            return Vec::new();
        };
        directory
            .people()
            .filter(|person| person.email.is_some() && recipients_include(to, person, directory))
            .filter(|person| {
                let caller = directory.most_entitled_caller(person);
                may_decide_as_any(&caller, &terms.approvers)
            })
            .filter(|person| self.selects(entry, terms, &person.tenant))
            .collect()
    }

    /// Returns the entries of `notify.to` that send mails, with the mails' recipients.
    fn mails(&self) -> impl Iterator<Item = (&EntrySettings, &Recipients)> {
        let entries = self.config.notify.to.iter();
        entries.filter_map(|entry| Some((entry, &entry.mail.as_ref()?.to)))
    }

    /// Returns the terms of all rules that open questions, for the check that an entry's people may
    /// decide some question. If no rule holds calls, also returns the terms of the calls that no
    /// rule matches. The owner decides such a call, and any person may be an owner.
    fn decisive_terms(&self) -> Vec<&QuestionTerms<'c>> {
        let mut rules = self.config.policy.iter();
        let holds_calls = rules.any(|rule| rule.decide == Decide::Hold);
        let all = self.terms.iter();
        all.filter(|terms| terms.rule.is_some() || !holds_calls)
            .collect()
    }

    /// Whether the entry sends messages about questions with these `terms`, and a person among
    /// `named` has a key with which they may decide such a question. With the key, this person can
    /// read the question even if no mail reaches them.
    fn has_decider_with_key(
        &self,
        entry: &EntrySettings,
        named: &NamedRecipients,
        terms: &QuestionTerms<'_>,
    ) -> bool {
        let Some(directory) = &self.directory else {
            return false;
        };
        let single = limited_to(entry, named.clone());
        let by_key = Approvers {
            owner: false,
            users: named.users.clone(),
            groups: named.groups.clone(),
            links: Some(false),
            ..terms.approvers.clone()
        };
        self.tenants.iter().any(|tenant| {
            self.selects(entry, terms, tenant)
                && self.selects(&single, terms, tenant)
                && directory.possible_approver_count(tenant, &by_key, None, None) > 0
        })
    }

    /// Whether an entry sends messages about questions with these `terms` in at least one tenant.
    fn selects_in_any_tenant(&self, entry: &EntrySettings, terms: &QuestionTerms<'_>) -> bool {
        let mut tenants = self.tenants.iter();
        tenants.any(|tenant| self.selects(entry, terms, tenant))
    }

    /// Whether an entry sends messages about a tenant's questions with these `terms`. The entry's
    /// filters by agent and event are ignored.
    fn selects(&self, entry: &EntrySettings, terms: &QuestionTerms<'_>, tenant: &str) -> bool {
        let approvers = &terms.approvers;
        let is_of_tenant =
            entry.tenants.is_empty() || entry.tenants.iter().any(|own| own == tenant);
        let group = |group: &String| approvers.groups.contains(group);
        let user = |user: &String| {
            let caller = user_as_caller(user, tenant, self.directory.as_ref());
            may_decide_as_any(&caller, approvers)
        };
        let by_approvers = (entry.groups.is_empty() && entry.users.is_empty())
            || entry.groups.iter().any(group)
            || entry.users.iter().any(user);
        is_of_tenant && by_approvers && is_in_time(entry, terms)
    }
}

impl Config {
    /// Returns one line for each rule that opens questions. The line names each recipient of the
    /// rule's questions, and the entry of `notify.to` that sends to the recipient.
    #[must_use]
    pub fn recipient_lines(&self) -> Vec<String> {
        let reach = Reach::from_config(self);
        let all = reach.terms.iter();
        let rules = all.filter_map(|terms| Some((terms.rule?, terms)));
        let lines = rules.map(|(rule, terms)| {
            let names = reach.recipient_names(terms);
            let who = if names.is_empty() {
                "nobody".to_owned()
            } else {
                names.join(", ")
            };
            format!("A question of the rule `{}` reaches {who}.", rule.name)
        });
        lines.collect()
    }
}

fn all_question_terms(config: &Config) -> Vec<QuestionTerms<'_>> {
    let of_rules = config.policy.iter().filter_map(|rule| {
        let kinds = question_kinds(config, rule);
        let has_questions = rule.decide == Decide::Hold || !kinds.is_empty();
        has_questions.then(|| QuestionTerms {
            rule: Some(rule),
            approvers: question_approvers(rule, &kinds),
            expires_in: rule.terms().expires_in,
        })
    });
    let mut all: Vec<QuestionTerms<'_>> = of_rules.collect();
    let defaults = Terms::default();
    all.push(QuestionTerms {
        rule: None,
        approvers: defaults.approvers,
        expires_in: defaults.expires_in,
    });
    all
}

/// Returns the approvers of a rule's questions. `kinds` are the kinds of these questions. If there
/// is a single kind, the rule and the kind determine whether the approvers may answer by link (see
/// [`approvers_of`]). Otherwise the rule alone determines this.
fn question_approvers(rule: &Rule, kinds: &BTreeSet<RequestKind>) -> Approvers {
    match kinds.first() {
        Some(kind) if kinds.len() == 1 => approvers_of(rule, *kind),
        _ => rule.approvers.approvers(),
    }
}

/// Whether an entry sends its message while a question with these `terms` is still open.
fn is_in_time(entry: &EntrySettings, terms: &QuestionTerms<'_>) -> bool {
    let when = entry.when;
    when.is_none_or(|when| when.reminder_delay(terms.expires_in).is_some())
}

/// Whether a caller may decide questions with these `approvers`, either as an approver or as the
/// owner.
fn may_decide_as_any(caller: &Caller, approvers: &Approvers) -> bool {
    let owners = [caller.user_id.as_str(), NO_OWNER];
    owners
        .iter()
        .any(|owner| may_decide(caller, &caller.tenant, owner, approvers).is_some())
}

/// Whether a mistake in the rules hides which questions a rule opens, or who may decide them.
fn are_rules_unreadable(root: &Node) -> bool {
    let rules = root.get("policy").map_or(&[][..], Node::elements);
    rules.iter().any(|rule| {
        let mut keys = ["decide", "approvers", "allow"].iter();
        rule.broken || keys.any(|key| rule.get(key).is_some_and(has_broken))
    })
}

/// Returns a copy of the entry with the `groups` and `users` of `people`.
fn limited_to(entry: &EntrySettings, people: NamedRecipients) -> EntrySettings {
    EntrySettings {
        groups: people.groups,
        users: people.users,
        ..entry.clone()
    }
}

/// Whether the recipients are a map that names neither groups nor users.
fn names_nobody(to: &Recipients) -> bool {
    matches!(to, Recipients::Named(named) if named.groups.is_empty() && named.users.is_empty())
}

/// Splits the recipients into single names. Each result has the list in which the name stands
/// (`groups` or `users`), the index of the name in it, and `NamedRecipients` with this name alone.
fn single_names(named: &NamedRecipients) -> Vec<(&'static str, usize, NamedRecipients)> {
    let of_group = |(index, group): (usize, &String)| {
        let (groups, users) = (vec![group.clone()], Vec::new());
        ("groups", index, NamedRecipients { groups, users })
    };
    let of_user = |(index, user): (usize, &String)| {
        let (groups, users) = (Vec::new(), vec![user.clone()]);
        ("users", index, NamedRecipients { groups, users })
    };
    let groups = named.groups.iter().enumerate().map(of_group);
    let users = named.users.iter().enumerate().map(of_user);
    groups.chain(users).collect()
}

fn check_times(
    entry: &EntrySettings,
    all: &[QuestionTerms<'_>],
    place: &[&str],
    mistakes: &mut Mistakes,
) {
    let Some(when) = entry.when else { return };
    let longest = all.iter().filter_map(|terms| terms.expires_in).max();
    let has_no_deadline = all.iter().any(|terms| terms.expires_in.is_none());
    let longest = longest.unwrap_or_default();
    let detail = "no question stays open for so long";
    if when.before_expiry.is_some_and(|before| before > longest) {
        let place = [place, &["when", "before_expiry"]].concat();
        mistakes.add(&place, detail);
    }
    if !has_no_deadline && let Some(after) = when.after {
        let place = [place, &["when", "after"]].concat();
        match after.cmp(&longest) {
            Ordering::Less => {}
            Ordering::Equal => {
                let detail = "no message is sent: every question closes at this time at the latest";
                mistakes.warn(&place, detail);
            }
            Ordering::Greater => mistakes.add(&place, detail),
        }
    }
}
