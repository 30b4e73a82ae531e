//! The part of the directory that is about people: their mail addresses, and the rights that a link
//! gives them. Invariant: if a person has keys and none of them may decide, the person cannot
//! decide by a link, either.

use super::{Account, Directory};
use crate::people::link::LinkRight;
use crate::people::person::Person;
use crate::people::{Caller, Permissions};
use crate::task::decision::Door;
use crate::task::user::UserKey;
use crate::task::verdict::Approvers;

impl Directory {
    /// Replaces the people who get messages. A person who has a key gets the groups of the key.
    #[must_use]
    pub fn with_people(self, people: Vec<Person>) -> Self {
        let people = people.into_iter().map(|person| {
            let key = self.ids.key(&person.user);
            let account = self.accounts_of(&person.tenant, &key).next();
            let groups = account.map(|account| account.groups.clone());
            let person = Person {
                groups: groups.unwrap_or(person.groups),
                ..person
            };
            (key, person)
        });
        let people = people.collect();
        Self { people, ..self }
    }

    #[must_use]
    pub fn with_links(self, links: Option<LinkRight>) -> Self {
        Self { links, ..self }
    }

    pub fn people(&self) -> impl Iterator<Item = &Person> {
        self.people.iter().map(|(_, person)| person)
    }

    #[must_use]
    pub fn person(&self, tenant: &str, user: &str) -> Option<&Person> {
        let wanted = self.ids.key(user);
        self.people
            .iter()
            .find(|(key, person)| *key == wanted && person.tenant == tenant)
            .map(|(_, person)| person)
    }

    /// Returns the person as the caller with the most rights to decide. If a key of the person may
    /// decide, the caller may decide, and its door is `Door::Key`. Otherwise the result is that of
    /// [`Self::link_caller`].
    #[must_use]
    pub fn most_entitled_caller(&self, person: &Person) -> Caller {
        let by_link = self.link_caller(person);
        let user = by_link.user_id.key();
        if !self
            .accounts_of(&person.tenant, user)
            .any(|account| account.permissions.decide)
        {
            return by_link;
        }
        Caller {
            door: Some(Door::Key),
            permissions: Permissions {
                decide: true,
                ..by_link.permissions
            },
            ..by_link
        }
    }

    /// Returns the caller for a link that was made for this person, with the person's current
    /// groups. If the person has keys, the caller may decide only if one of the keys may decide.
    #[must_use]
    pub fn link_caller(&self, person: &Person) -> Caller {
        let user_id = self.user(&person.tenant, &person.user);
        let own: Vec<&Account> = self.accounts_of(&person.tenant, user_id.key()).collect();
        let may_decide = own.is_empty() || own.iter().any(|account| account.permissions.decide);
        Caller {
            user_id,
            tenant: person.tenant.clone(),
            groups: person.groups.clone(),
            via: None,
            door: Some(Door::Link),
            admin: false,
            permissions: Permissions {
                create: false,
                read: true,
                decide: may_decide && self.links == Some(LinkRight::Decide),
                gate: false,
            },
            without_accounts: false,
        }
    }

    /// Returns the people of a tenant who may decide by a key. If `approvers` accepts links, also
    /// returns the people who may decide by a link and have a mail address, to which the link is
    /// sent. Each person comes with the person's groups. The result may contain a person twice.
    pub(super) fn candidates<'d>(
        &'d self,
        tenant: &'d str,
        approvers: &Approvers,
    ) -> impl Iterator<Item = (&'d UserKey, &'d [String])> {
        let by_key = self.deciders(tenant);
        let by_key = by_key.map(|(key, account)| (key, account.groups.as_slice()));
        let links = approvers.accepts_links();
        let people = self.people.iter().filter(move |(_, person)| {
            links
                && person.tenant == tenant
                && person.email.is_some()
                && self.link_caller(person).permissions.decide
        });
        by_key.chain(people.map(|(key, person)| (key, person.groups.as_slice())))
    }

    /// Returns the current groups of a user who may decide by a link. `None` if the user gets no
    /// messages, or the user's links may not decide.
    #[must_use]
    pub fn groups_of_link_decider(&self, tenant: &str, user: &str) -> Option<&[String]> {
        let person = self.person(tenant, user)?;
        let may_decide = self.link_caller(person).permissions.decide;
        may_decide.then_some(person.groups.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::people::directory::hash_key;
    use crate::people::language::Language;
    use crate::task::user::UserIds;

    fn account(user: &str, groups: &[&str], permissions: Permissions) -> Account {
        Account {
            user: user.to_owned(),
            tenant: "acme".to_owned(),
            groups: groups.iter().map(ToString::to_string).collect(),
            act_as: false,
            admin: true,
            permissions,
            key_sha256: hash_key(user),
        }
    }

    fn person(user: &str, groups: &[&str]) -> Person {
        Person {
            user: user.to_owned(),
            tenant: "acme".to_owned(),
            groups: groups.iter().map(ToString::to_string).collect(),
            email: Some(format!("{user}@acme.com")),
            language: Language::English,
        }
    }

    const READ: Permissions = Permissions {
        create: true,
        read: true,
        decide: false,
        gate: true,
    };

    /// Returns a directory of four people: alice and reader have a key, bob and silent have no key,
    /// and reader's key may not decide.
    fn directory(links: Option<LinkRight>) -> Directory {
        let silent = Person {
            email: None,
            ..person("silent", &["finance"])
        };
        Directory::new(vec![
            account("Alice", &["support"], Permissions::ALL),
            account("reader", &["finance"], READ),
        ])
        .with_links(links)
        .with_people(vec![
            person("alice", &[]),
            person("bob", &["finance"]),
            person("reader", &[]),
            silent,
        ])
    }

    fn approvers(users: &[&str], groups: &[&str], links: Option<bool>) -> Approvers {
        Approvers {
            owner: false,
            users: users.iter().map(ToString::to_string).collect(),
            groups: groups.iter().map(ToString::to_string).collect(),
            required: 1,
            links,
        }
    }

    #[test]
    fn person_is_found_by_any_spelling_of_their_tenant_alone() {
        let directory = directory(None);
        assert_eq!(directory.people().count(), 4);
        for spelling in ["bob", "BOB"] {
            assert_eq!(directory.person("acme", spelling).unwrap().user, "bob");
            assert_eq!(directory.person("other", spelling), None);
        }
        assert_eq!(directory.user("acme", "BOB").as_str(), "bob");
        let exact = directory.with_user_ids(UserIds::Exact);
        assert_eq!(exact.people().count(), 4);
        assert_eq!(exact.person("acme", "BOB"), None);
        assert!(exact.person("acme", "bob").is_some());
    }

    #[test]
    fn person_with_a_key_has_the_groups_of_the_key() {
        let directory = directory(None);
        let groups = |user| &directory.person("acme", user).unwrap().groups;
        assert_eq!(groups("alice"), &["support"]);
        assert_eq!(groups("bob"), &["finance"]);
    }

    #[test]
    fn link_decides_only_where_links_decide_and_no_key_denies_it() {
        let cases = [
            // Columns: the right that links give; whether alice, bob and reader may decide by a
            // link; whether they may decide by a link or a key.
            (None, [false; 3], [true, false, false]),
            (Some(LinkRight::Open), [false; 3], [true, false, false]),
            (
                Some(LinkRight::Decide),
                [true, true, false],
                [true, true, false],
            ),
        ];
        for (links, by_link, at_all) in cases {
            let directory = directory(links);
            let each = |caller: &dyn Fn(&Person) -> Caller| {
                ["alice", "bob", "reader"].map(|user| {
                    caller(directory.person("acme", user).unwrap())
                        .permissions
                        .decide
                })
            };
            assert_eq!(each(&|person| directory.link_caller(person)), by_link);
            assert_eq!(
                each(&|person| directory.most_entitled_caller(person)),
                at_all
            );
        }
    }

    #[test]
    fn caller_of_a_link_is_its_person_and_no_admin() {
        let directory = directory(Some(LinkRight::Decide));
        let caller = directory.link_caller(directory.person("acme", "ALICE").unwrap());
        assert_eq!(caller.user_id.as_str(), "Alice", "as the key spells it");
        assert_eq!((caller.tenant.as_str(), caller.via), ("acme", None));
        assert_eq!(caller.groups, ["support"]);
        assert_eq!(caller.door, Some(Door::Link));
        assert!(!caller.admin && !caller.permissions.create && caller.permissions.read);
        let door = |user| {
            directory
                .most_entitled_caller(directory.person("acme", user).unwrap())
                .door
        };
        assert_eq!(door("alice"), Some(Door::Key));
        assert_eq!(door("bob"), Some(Door::Link));
    }

    #[test]
    fn person_without_a_key_could_approve_only_where_links_decide() {
        let could = |links, approvers: &Approvers| {
            directory(links).possible_approver_count("acme", approvers, None, None)
        };
        let decide = Some(LinkRight::Decide);
        for (links, approvers, expected) in [
            (decide, approvers(&[], &["finance"], None), 1),
            (decide, approvers(&["bob", "BOB", "alice"], &[], None), 2),
            (decide, approvers(&["silent", "reader"], &[], None), 0),
            (decide, approvers(&[], &["finance"], Some(false)), 0),
            (decide, approvers(&["alice"], &["finance"], Some(false)), 1),
            (Some(LinkRight::Open), approvers(&[], &["finance"], None), 0),
            (None, approvers(&[], &["finance"], None), 0),
        ] {
            assert_eq!(
                could(links, &approvers),
                expected,
                "{links:?} {approvers:?}"
            );
        }
        let two = Approvers {
            required: 2,
            ..approvers(&["bob"], &[], None)
        };
        assert_eq!(
            could(decide, &two),
            0,
            "links do not count unless the rule says so"
        );
        let two = Approvers {
            links: Some(true),
            ..two
        };
        assert_eq!(could(decide, &two), 1);
    }
}
