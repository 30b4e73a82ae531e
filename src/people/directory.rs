//! The accounts (key, user, tenant, groups), and the people who get messages. The directory keeps
//! keys as SHA-256 hashes and compares them in constant time; a fast hash is enough because keys
//! are long and random. Invariant: a key and its hash are never shown.

use std::collections::BTreeSet;
use std::fmt;

use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

use super::Permissions;
use super::link::LinkRight;
use super::person::Person;
use super::session::Token;
use crate::task::user::{UserId, UserIds, UserKey};
use crate::task::verdict::Approvers;

mod people;

/// A key, its user and its permissions.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    /// The id of the key's user, spelled as in the configuration file.
    pub user: String,
    pub tenant: String,
    /// The groups of the user. All keys of a user have the same groups.
    pub groups: Vec<String>,
    /// Whether the key may speak for other people, by `Holdpoint-User`.
    pub act_as: bool,
    /// Whether the key sees all tasks of its tenant, and may cancel and retry them.
    pub admin: bool,
    pub permissions: Permissions,
    pub key_sha256: [u8; 32],
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({} of {})", self.user, self.tenant)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Directory {
    /// The accounts, each with the `UserKey` by which its user's id is compared.
    accounts: Vec<(UserKey, Account)>,
    people: Vec<(UserKey, Person)>,
    /// The permission that a link gives; `None` if messages have no links.
    links: Option<LinkRight>,
    /// The user ids that the configuration names outside `auth`, such as the approvers in rules. If
    /// neither an account nor a person of a tenant has such an id, [`Directory::user`] returns the
    /// spelling in this list for every spelling that a client sends.
    named_users: Vec<(UserKey, String)>,
    ids: UserIds,
}

impl Directory {
    /// Returns a directory of these accounts, without people, and with the default comparison of
    /// user ids.
    #[must_use]
    pub fn new(accounts: Vec<Account>) -> Self {
        let ids = UserIds::default();
        let accounts = accounts.into_iter();
        let accounts = accounts.map(|account| (ids.key(&account.user), account));
        Self {
            accounts: accounts.collect(),
            ids,
            ..Self::default()
        }
    }

    #[must_use]
    pub fn with_user_ids(mut self, ids: UserIds) -> Self {
        self.ids = ids;
        for (key, account) in &mut self.accounts {
            *key = ids.key(&account.user);
        }
        for (key, person) in &mut self.people {
            *key = ids.key(&person.user);
        }
        for (key, user) in &mut self.named_users {
            *key = ids.key(user);
        }
        self
    }

    #[must_use]
    pub fn with_named_users(self, named_users: Vec<String>) -> Self {
        let named_users = named_users
            .into_iter()
            .map(|user| (self.ids.key(&user), user))
            .collect();
        Self {
            named_users,
            ..self
        }
    }

    #[must_use]
    pub fn ids(&self) -> UserIds {
        self.ids
    }

    /// Returns the id of a user. If the configuration file names the user, the id has the file's
    /// spelling, otherwise the spelling of `user_id`.
    #[must_use]
    pub fn user(&self, tenant: &str, user_id: &str) -> UserId {
        let key = self.ids.key(user_id);
        let own = self
            .accounts
            .iter()
            .filter(|(_, account)| account.tenant == tenant);
        let own = own.map(|(key, account)| (key, &account.user));
        let people = self
            .people
            .iter()
            .filter(|(_, person)| person.tenant == tenant);
        let known = own
            .chain(people.map(|(key, person)| (key, &person.user)))
            .chain(self.named_users.iter().map(|(key, user)| (key, user)))
            .find(|(known, _)| **known == key);
        self.ids
            .id(known.map_or(user_id, |(_, user)| user.as_str()))
    }

    /// `key` is the key as the client has sent it. Its hash is compared in constant time.
    #[must_use]
    pub fn account_by_key(&self, key: &str) -> Option<&Account> {
        let presented = hash_key(key);
        self.find_account(|account| account.key_sha256.ct_eq(&presented))
    }

    /// Returns the account whose key opened the session with this token and binding, if any.
    #[must_use]
    pub fn account_by_binding(&self, token: &Token, binding: &str) -> Option<&Account> {
        self.find_account(|account| {
            let bound = token.binding(&account.key_sha256);
            bound.as_bytes().ct_eq(binding.as_bytes())
        })
    }

    /// Returns the last account for which `is_same` holds. The search compares every account, even
    /// after a match, to take constant time.
    fn find_account(&self, is_same: impl Fn(&Account) -> Choice) -> Option<&Account> {
        let mut found = None;
        for (_, account) in &self.accounts {
            if bool::from(is_same(account)) {
                found = Some(account);
            }
        }
        found
    }

    fn accounts_of<'d>(
        &'d self,
        tenant: &'d str,
        wanted: &'d UserKey,
    ) -> impl Iterator<Item = &'d Account> {
        self.accounts
            .iter()
            .filter(move |(key, account)| key == wanted && account.tenant == tenant)
            .map(|(_, account)| account)
    }

    fn deciders<'d, 't>(
        &'d self,
        tenant: &'t str,
    ) -> impl Iterator<Item = &'d (UserKey, Account)> + use<'d, 't> {
        self.accounts
            .iter()
            .filter(move |(_, account)| account.tenant == tenant && account.permissions.decide)
    }

    /// Returns the current groups of a user; `None` if the user has no key that may decide.
    #[must_use]
    pub fn groups_of_decider(&self, tenant: &str, user: &str) -> Option<&[String]> {
        let wanted = self.ids.key(user);
        self.deciders(tenant)
            .find(|(key, _)| *key == wanted)
            .map(|(_, account)| account.groups.as_slice())
    }

    /// Whether the user has a key that may both decide and speak for other people. Other people may
    /// have approved through such a key. If `user` no longer has the key, the approvals of these
    /// people no longer count.
    #[must_use]
    pub fn has_deciding_service_key(&self, tenant: &str, user: &str) -> bool {
        let wanted = self.ids.key(user);
        self.deciders(tenant)
            .any(|(key, account)| account.act_as && *key == wanted)
    }

    /// Whether the tenant has a key that may both decide and speak for other people. Any user may
    /// decide through such a key.
    #[must_use]
    pub fn has_service_decider(&self, tenant: &str) -> bool {
        self.deciders(tenant).any(|(_, account)| account.act_as)
    }

    /// Returns how many different people of a tenant could approve a request with these approvers.
    /// The user `except` does not count. `owner` is `None` if the owner is not known yet. An
    /// unknown owner counts as one more person if `approvers.owner` is true.
    ///
    /// If [`Directory::has_service_decider`] is true, a client can name any user with any groups.
    /// The result is then `usize::MAX` if `approvers.groups` is not empty. Otherwise every user in
    /// `approvers.users` counts, even a user without a key.
    #[must_use]
    pub fn possible_approver_count(
        &self,
        tenant: &str,
        approvers: &Approvers,
        owner: Option<&str>,
        except: Option<&str>,
    ) -> usize {
        let has_service_key = self.has_service_decider(tenant);
        if has_service_key && !approvers.groups.is_empty() {
            return usize::MAX;
        }
        let member =
            |groups: &[String]| groups.iter().any(|group| approvers.groups.contains(group));
        let key = |user: &str| self.ids.key(user);
        let candidates = || self.candidates(tenant, approvers);
        let known =
            |wanted: &UserKey| has_service_key || candidates().any(|(key, _)| key == wanted);
        let members = candidates().filter(|(_, groups)| member(groups));
        let mut people: BTreeSet<UserKey> = members.map(|(key, _)| key.clone()).collect();
        people.extend(approvers.users.iter().map(|user| key(user)).filter(known));
        if let Some(owner) = owner.map(key) {
            people.remove(&owner);
            people.extend(Some(owner).filter(|owner| approvers.owner && known(owner)));
        }
        if let Some(except) = except {
            people.remove(&key(except));
        }
        people.len() + usize::from(owner.is_none() && approvers.owner)
    }
}

/// Returns the SHA-256 of a key.
#[must_use]
pub fn hash_key(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Whether a text is a valid user id: 1 to 128 visible characters, no whitespace.
#[must_use]
pub fn is_valid_user_id(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= 128 && text.chars().all(is_visible)
}

/// Whether a character is visible. Whitespace, control characters and invisible marks are not: two
/// different names that differ only in such marks would look alike.
fn is_visible(c: char) -> bool {
    let invisible = matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{ffff}' | '\u{e0000}'..='\u{e0fff}' | '\u{e000}'..='\u{f8ff}');
    !(c.is_whitespace() || c.is_control() || invisible)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(user: &str, key: &str) -> Account {
        Account {
            user: user.to_owned(),
            tenant: "acme".to_owned(),
            groups: vec![format!("{user}s")],
            act_as: user == "web",
            admin: false,
            permissions: Permissions::ALL,
            key_sha256: hash_key(key),
        }
    }

    #[test]
    fn key_finds_only_its_account() {
        let directory = Directory::new(vec![
            account("alice", "alice-key"),
            account("web", "web-key"),
        ]);
        assert_eq!(directory.account_by_key("alice-key").unwrap().user, "alice");
        assert_eq!(directory.account_by_key("web-key").unwrap().user, "web");
        for wrong in ["", "alice-ke", "alice-key ", "Alice-key", "web-key\0"] {
            assert_eq!(directory.account_by_key(wrong), None, "{wrong:?}");
        }
        assert_eq!(
            directory.groups_of_decider("acme", "alice"),
            Some(&["alices".to_owned()][..])
        );
        assert_eq!(directory.groups_of_decider("other", "alice"), None);
        assert!(
            directory.has_deciding_service_key("acme", "web")
                && !directory.has_deciding_service_key("acme", "alice")
        );
        assert!(!format!("{directory:?}").contains("key"));
    }

    #[test]
    fn session_finds_only_the_account_of_its_key() {
        let directory = Directory::new(vec![
            account("alice", "alice-key"),
            account("web", "web-key"),
        ]);
        let token = Token::from_bytes([5; 32]);
        assert_eq!(
            directory
                .account_by_binding(&token, &token.binding(&hash_key("web-key")))
                .unwrap()
                .user,
            "web"
        );
        for wrong in [
            "",
            &token.binding(&hash_key("old-key")),
            &Token::from_bytes([6; 32]).binding(&hash_key("web-key")),
        ] {
            assert_eq!(directory.account_by_binding(&token, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn user_is_shown_as_the_file_spells_it() {
        let directory = Directory::new(vec![
            account("Alice", "alice-key"),
            account("web", "web-key"),
        ])
        .with_named_users(vec!["BOB".to_owned(), "ALICE".to_owned()]);
        for (user_id, shown) in [
            ("alice", "Alice"),
            ("ALICE", "Alice"),
            ("bob", "BOB"),
            ("Zoe", "Zoe"),
        ] {
            assert_eq!(directory.user("acme", user_id).as_str(), shown);
        }
        assert_eq!(
            directory.user("other", "alice").as_str(),
            "ALICE",
            "another tenant's account is somebody else"
        );
        assert_eq!(
            directory
                .with_user_ids(UserIds::Exact)
                .user("acme", "alice")
                .as_str(),
            "alice"
        );
    }

    #[test]
    fn spellings_of_one_person_count_once_among_those_who_could_approve() {
        let directory = Directory::new(vec![
            account("alice", "alice-key"),
            account("Bob", "bob-key"),
            account("bob", "other-key"),
        ]);
        let of = |users: &[&str], groups: &[&str]| Approvers {
            owner: false,
            users: users.iter().map(ToString::to_string).collect(),
            groups: groups.iter().map(ToString::to_string).collect(),
            required: 2,
            links: None,
        };
        let could = |approvers: &Approvers, owner, except| {
            directory.possible_approver_count("acme", approvers, owner, except)
        };
        assert_eq!(
            could(&of(&["bob", "BOB"], &["bobs", "Bobs"]), None, None),
            1
        );
        assert_eq!(could(&of(&["ALICE", "bob"], &[]), None, None), 2);
        assert_eq!(
            could(&of(&["alice", "bob"], &[]), Some("Alice"), None),
            1,
            "the owner is none of them"
        );
        assert_eq!(could(&of(&["alice", "bob"], &[]), None, Some("BOB")), 1);
        assert_eq!(
            directory.groups_of_decider("acme", "ALICE"),
            Some(&["alices".to_owned()][..])
        );
    }

    #[test]
    fn user_id_is_visible_and_short() {
        for user in ["alice", "alice@acme.com", "José", "李雷", "a"] {
            assert!(is_valid_user_id(user), "{user}");
        }
        for user in [
            "",
            "a b",
            "a\tb",
            "a\u{200b}b",
            "a\u{202e}b",
            "a\u{0}",
            &"x".repeat(129),
        ] {
            assert!(!is_valid_user_id(user), "{user:?}");
        }
    }
}
