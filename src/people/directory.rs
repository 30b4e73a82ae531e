//! The accounts: key → user, tenant, groups. Keys are kept as SHA-256 (they are long and random, so a fast hash does) and
//! looked for in constant time.
//! What must stay true: neither a key nor its hash is ever shown.

use std::collections::BTreeSet;
use std::fmt;

use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

use super::May;
use super::session::Token;
use crate::task::user::{UserId, UserIds, UserKey};
use crate::task::verdict::Approvers;

/// One key and whose it is.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    /// Whose it is.
    pub user: String,
    /// The user's tenant.
    pub tenant: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// Whether it may speak for people.
    pub act_as: bool,
    /// Whether it is an admin's.
    pub admin: bool,
    /// What it may be used for.
    pub may: May,
    /// SHA-256 of the key.
    pub key_sha256: [u8; 32],
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({} of {})", self.user, self.tenant)
    }
}

/// All accounts.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    /// Each with its user's key.
    accounts: Vec<(UserKey, Account)>,
    /// Users that the file names elsewhere, whatever their tenant.
    named: Vec<(UserKey, String)>,
    ids: UserIds,
}

impl Directory {
    /// One of these accounts.
    #[must_use]
    pub fn new(accounts: Vec<Account>) -> Self {
        Self::default().with(accounts)
    }

    /// The same, comparing users' ids so.
    #[must_use]
    pub fn comparing(self, ids: UserIds) -> Self {
        let named = self.named.into_iter().map(|(_, user)| user).collect();
        let accounts = self.accounts.into_iter().map(|(_, account)| account).collect();
        Self { ids, ..Self::default() }.with(accounts).naming(named)
    }

    fn with(self, accounts: Vec<Account>) -> Self {
        let accounts = accounts.into_iter().map(|account| (self.ids.key(&account.user), account)).collect();
        Self { accounts, ..self }
    }

    /// The same, with users whom the file names elsewhere.
    #[must_use]
    pub fn naming(self, named: Vec<String>) -> Self {
        let named = named.into_iter().map(|user| (self.ids.key(&user), user)).collect();
        Self { named, ..self }
    }

    /// How ids are compared.
    #[must_use]
    pub fn ids(&self) -> UserIds {
        self.ids
    }

    /// Somebody's id in the spelling of the file, else in the one that came.
    #[must_use]
    pub fn user(&self, tenant: &str, came: &str) -> UserId {
        let key = self.ids.key(came);
        let own = self.accounts.iter().filter(|(_, account)| account.tenant == tenant);
        let own = own.map(|(key, account)| (key, &account.user));
        let known = own.chain(self.named.iter().map(|(key, user)| (key, user))).find(|(known, _)| **known == key);
        self.ids.id(known.map_or(came, |(_, user)| user.as_str()))
    }

    /// Whose key this is. Looks at every account, however soon one fits.
    #[must_use]
    pub fn by_key(&self, key: &str) -> Option<&Account> {
        let presented = hash(key);
        let mut found = None;
        for (_, account) in &self.accounts {
            let same: Choice = account.key_sha256.ct_eq(&presented);
            if bool::from(same) {
                found = Some(account);
            }
        }
        found
    }

    /// The account whose key began the session with this token and binding. Looks at every account, however soon one fits.
    #[must_use]
    pub fn by_binding(&self, token: &Token, binding: &str) -> Option<&Account> {
        let mut found = None;
        for (_, account) in &self.accounts {
            let same: Choice = token.binding(&account.key_sha256).as_bytes().ct_eq(binding.as_bytes());
            if bool::from(same) {
                found = Some(account);
            }
        }
        found
    }

    /// The accounts of a tenant that may decide.
    fn deciders<'d, 't>(&'d self, tenant: &'t str) -> impl Iterator<Item = &'d (UserKey, Account)> + use<'d, 't> {
        self.accounts.iter().filter(move |(_, account)| account.tenant == tenant && account.may.decide)
    }

    /// The groups today of a user who may decide; `None` when no such key is his any more.
    #[must_use]
    pub fn groups(&self, tenant: &str, user: &str) -> Option<&[String]> {
        let wanted = self.ids.key(user);
        self.deciders(tenant).find(|(key, _)| *key == wanted).map(|(_, account)| account.groups.as_slice())
    }

    /// Whether a key of that user may speak for people who decide today: the one that vouched for somebody.
    #[must_use]
    pub fn vouches(&self, tenant: &str, user: &str) -> bool {
        let wanted = self.ids.key(user);
        self.deciders(tenant).any(|(key, account)| account.act_as && *key == wanted)
    }

    /// How many different people of a tenant could approve under these approvers, `except` not counted. Where a key
    /// speaks for people, whoever is named counts, and a group has no end. Without an `owner` he is one more where he
    /// counts at all.
    #[must_use]
    pub fn could_approve(
        &self,
        tenant: &str,
        approvers: &Approvers,
        owner: Option<&str>,
        except: Option<&str>,
    ) -> usize {
        let anybody = self.deciders(tenant).any(|(_, account)| account.act_as);
        if anybody && !approvers.groups.is_empty() {
            return usize::MAX;
        }
        let member = |account: &Account| account.groups.iter().any(|group| approvers.groups.contains(group));
        let key = |user: &str| self.ids.key(user);
        let known = |wanted: &UserKey| anybody || self.deciders(tenant).any(|(key, _)| key == wanted);
        let members = self.deciders(tenant).filter(|(_, account)| member(account));
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

/// SHA-256 of a key.
#[must_use]
pub fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Whether a text is a user's id: 1 to 128 characters, all of them visible, no blanks.
#[must_use]
pub fn is_user(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= 128 && text.chars().all(visible)
}

/// Whether a character is seen: no blank, no control, no invisible mark that could make two names look the same.
fn visible(c: char) -> bool {
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
            may: May::ALL,
            key_sha256: hash(key),
        }
    }

    #[test]
    fn a_key_finds_its_account_and_no_other_does() {
        let directory = Directory::new(vec![account("alice", "alice-key"), account("web", "web-key")]);
        assert_eq!(directory.by_key("alice-key").unwrap().user, "alice");
        assert_eq!(directory.by_key("web-key").unwrap().user, "web");
        for wrong in ["", "alice-ke", "alice-key ", "Alice-key", "web-key\0"] {
            assert_eq!(directory.by_key(wrong), None, "{wrong:?}");
        }
        assert_eq!(directory.groups("acme", "alice"), Some(&["alices".to_owned()][..]));
        assert_eq!(directory.groups("other", "alice"), None);
        assert!(directory.vouches("acme", "web") && !directory.vouches("acme", "alice"));
        assert!(!format!("{directory:?}").contains("key"));
    }

    #[test]
    fn a_session_finds_the_account_of_its_key_and_of_no_other() {
        let directory = Directory::new(vec![account("alice", "alice-key"), account("web", "web-key")]);
        let token = Token::of([5; 32]);
        assert_eq!(directory.by_binding(&token, &token.binding(&hash("web-key"))).unwrap().user, "web");
        for wrong in ["", &token.binding(&hash("old-key")), &Token::of([6; 32]).binding(&hash("web-key"))] {
            assert_eq!(directory.by_binding(&token, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn user_is_shown_as_the_file_spells_it() {
        let directory = Directory::new(vec![account("Alice", "alice-key"), account("web", "web-key")])
            .naming(vec!["BOB".to_owned(), "ALICE".to_owned()]);
        for (came, shown) in [("alice", "Alice"), ("ALICE", "Alice"), ("bob", "BOB"), ("Zoe", "Zoe")] {
            assert_eq!(directory.user("acme", came).as_str(), shown);
        }
        assert_eq!(directory.user("other", "alice").as_str(), "ALICE", "another tenant's account is somebody else");
        assert_eq!(directory.comparing(UserIds::Exact).user("acme", "alice").as_str(), "alice");
    }

    #[test]
    fn spellings_of_one_person_count_once_among_those_who_could_approve() {
        let directory =
            Directory::new(vec![account("alice", "alice-key"), account("Bob", "bob-key"), account("bob", "other-key")]);
        let of = |users: &[&str], groups: &[&str]| Approvers {
            owner: false,
            users: users.iter().map(ToString::to_string).collect(),
            groups: groups.iter().map(ToString::to_string).collect(),
            required: 2,
        };
        let could = |approvers: &Approvers, owner, except| directory.could_approve("acme", approvers, owner, except);
        assert_eq!(could(&of(&["bob", "BOB"], &["bobs", "Bobs"]), None, None), 1);
        assert_eq!(could(&of(&["ALICE", "bob"], &[]), None, None), 2);
        assert_eq!(could(&of(&["alice", "bob"], &[]), Some("Alice"), None), 1, "the owner is none of them");
        assert_eq!(could(&of(&["alice", "bob"], &[]), None, Some("BOB")), 1);
        assert_eq!(directory.groups("acme", "ALICE"), Some(&["alices".to_owned()][..]));
    }

    #[test]
    fn a_user_is_visible_and_short() {
        for user in ["alice", "alice@acme.com", "José", "李雷", "a"] {
            assert!(is_user(user), "{user}");
        }
        for user in ["", "a b", "a\tb", "a\u{200b}b", "a\u{202e}b", "a\u{0}", &"x".repeat(129)] {
            assert!(!is_user(user), "{user:?}");
        }
    }
}
