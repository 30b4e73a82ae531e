//! Authenticates a request by its headers: by key, or as `local` when there are no accounts. A
//! browser session stands for a key that was presented earlier. Invariant: a `Holdpoint-…` header
//! takes effect only where its key may speak for other people, and is refused everywhere else,
//! never ignored.

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::directory::{Account, Directory, is_user};
use super::session::Token;
use super::{Caller, May};
use crate::task::user::{UserId, UserIds, is_normal};

/// Identifies the caller of a request.
pub trait Authenticator: Send + Sync {
    /// The caller that these headers identify.
    ///
    /// # Errors
    /// Any [`AuthError`].
    fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, AuthError>;

    /// The value that binds a session to the key that opens it; `None` when the key is unknown.
    /// Without accounts there are no keys and no sessions.
    fn bind(&self, _token: &Token, _key: &str) -> Option<String> {
        None
    }

    /// The caller of a session: the account, as configured today, whose key yields the binding.
    ///
    /// # Errors
    /// `Missing` when no configured key fits any more; `Forbidden` when the request tries to speak
    /// for another person.
    fn by_session(
        &self,
        _headers: &HeaderMap,
        _token: &Token,
        _binding: &str,
    ) -> Result<Caller, AuthError> {
        Err(AuthError::Missing)
    }
}

/// Why a request is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The request has no key: `unauthorized`.
    #[error("a key is needed: `Authorization: Bearer <key>`")]
    Missing,
    /// The key is unknown: `unauthorized`.
    #[error("the key is not known")]
    Wrong,
    /// The key lacks the permission: `forbidden`.
    #[error("{0}")]
    Forbidden(String),
    /// A header cannot be parsed: `bad_request`.
    #[error("{0}")]
    BadHeader(String),
}

/// The user that the key speaks for.
const USER: &str = "holdpoint-user";
/// The groups of that user, separated by commas.
const GROUPS: &str = "holdpoint-groups";
/// Every `Holdpoint-…` header that a request may carry.
const HEADERS: [&str; 4] = [USER, GROUPS, "holdpoint-runner", "holdpoint-session"];

/// Authenticates by `Authorization: Bearer <key>`.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    directory: Directory,
}

impl Keys {
    /// An authenticator for these accounts.
    #[must_use]
    pub fn new(directory: Directory) -> Self {
        Self { directory }
    }
}

impl Authenticator for Keys {
    fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, AuthError> {
        let account = self
            .directory
            .by_key(bearer(headers)?)
            .ok_or(AuthError::Wrong)?;
        let speaks = headers.contains_key(USER) || headers.contains_key(GROUPS);
        if !speaks {
            only_ours(headers)?;
            return Ok(self.own(account));
        }
        if !account.act_as {
            let detail = "This key may not act for other users: `Holdpoint-User` and `Holdpoint-Groups` need a key with `act_as`.";
            return Err(AuthError::Forbidden(detail.to_owned()));
        }
        only_ours(headers)?;
        let user = single(headers, USER)?.ok_or_else(|| {
            bad("`Holdpoint-Groups` needs `Holdpoint-User`, the user who has these groups.")
        })?;
        if !is_user(user) || user.contains(',') || !is_normal(user) {
            return Err(bad(
                "`Holdpoint-User` must be 1 to 128 visible characters in NFC, without blanks and commas.",
            ));
        }
        let groups = groups(single(headers, GROUPS)?.unwrap_or(""))?;
        let user = self.directory.user(&account.tenant, user);
        Ok(caller(account, user, groups, Some(account.user.clone())))
    }

    fn bind(&self, token: &Token, key: &str) -> Option<String> {
        Some(token.binding(&self.directory.by_key(key)?.key_sha256))
    }

    fn by_session(
        &self,
        headers: &HeaderMap,
        token: &Token,
        binding: &str,
    ) -> Result<Caller, AuthError> {
        let account = self
            .directory
            .by_binding(token, binding)
            .ok_or(AuthError::Missing)?;
        speaks_for_nobody(headers)?;
        Ok(self.own(account))
    }
}

impl Keys {
    /// The caller when a key speaks for its own user.
    fn own(&self, account: &Account) -> Caller {
        let user = self.directory.user(&account.tenant, &account.user);
        caller(account, user, account.groups.clone(), None)
    }
}

/// Refuses unknown `Holdpoint-…` headers: they may be misspelt, so ignoring them is not safe.
///
/// # Errors
/// `BadHeader` on a `Holdpoint-…` header that no request may carry.
pub fn only_ours(headers: &HeaderMap) -> Result<(), AuthError> {
    let unknown = |name: &str| name.starts_with("holdpoint-") && !HEADERS.contains(&name);
    if headers.keys().any(|name| unknown(name.as_str())) {
        return Err(bad(
            "A request may have no `Holdpoint-…` headers but `-User`, `-Groups`, `-Runner` and `-Session`.",
        ));
    }
    Ok(())
}

/// Refuses `Holdpoint-…` headers on a session: it belongs to one person, whatever its key may do,
/// and any page could send such a header.
///
/// # Errors
/// `Forbidden` on any `Holdpoint-…` header.
pub fn speaks_for_nobody(headers: &HeaderMap) -> Result<(), AuthError> {
    if headers
        .keys()
        .any(|name| name.as_str().starts_with("holdpoint-"))
    {
        let detail =
            "A browser's session may not act for other users: it takes no `Holdpoint-…` header.";
        return Err(AuthError::Forbidden(detail.to_owned()));
    }
    Ok(())
}

fn caller(account: &Account, user_id: UserId, groups: Vec<String>, via: Option<String>) -> Caller {
    Caller {
        user_id,
        tenant: account.tenant.clone(),
        groups,
        via,
        admin: account.admin,
        may: account.may,
        unaccounted: false,
    }
}

/// The key of `Authorization: Bearer <key>`.
fn bearer(headers: &HeaderMap) -> Result<&str, AuthError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(AuthError::Missing)?;
    if values.next().is_some() {
        return Err(AuthError::Wrong);
    }
    let (scheme, key) = value
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .ok_or(AuthError::Wrong)?;
    if scheme.eq_ignore_ascii_case("bearer") {
        Ok(key.trim())
    } else {
        Err(AuthError::Wrong)
    }
}

/// The value of a header that may appear once: a second value could come from a client, beside the
/// proxy's.
fn single<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, AuthError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(bad(
            "`Holdpoint-User` and `Holdpoint-Groups` may be sent only once each.",
        ));
    }
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| bad("A `Holdpoint-…` header must be UTF-8."))?;
    Ok(Some(text.trim_matches([' ', '\t'])))
}

fn bad(detail: &str) -> AuthError {
    AuthError::BadHeader(detail.to_owned())
}

fn groups(text: &str) -> Result<Vec<String>, AuthError> {
    let mut groups: Vec<String> = Vec::new();
    for group in text
        .split(',')
        .map(|group| group.trim_matches([' ', '\t']))
        .filter(|group| !group.is_empty())
    {
        if !is_user(&group.replace(' ', "_")) {
            return Err(bad(
                "`Holdpoint-Groups` must be names of 1 to 128 visible characters, separated by commas.",
            ));
        }
        if !groups.iter().any(|other| other == group) {
            groups.push(group.to_owned());
        }
    }
    Ok(groups)
}

/// Authenticates every request as `local`, for a service without accounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open;

impl Authenticator for Open {
    fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, AuthError> {
        if headers.contains_key(USER) || headers.contains_key(GROUPS) {
            let detail = "Without accounts no caller speaks for another: `Holdpoint-User` and `Holdpoint-Groups` need a \
                          key with `act_as`.";
            return Err(AuthError::Forbidden(detail.to_owned()));
        }
        only_ours(headers)?;
        Ok(Caller {
            user_id: UserIds::default().id(super::LOCAL),
            tenant: "default".to_owned(),
            groups: Vec::new(),
            via: None,
            admin: false,
            may: May::ALL,
            unaccounted: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::people::directory::hash;

    fn keys() -> Keys {
        let account = |user: &str, act_as, admin| Account {
            user: user.to_owned(),
            tenant: "acme".to_owned(),
            groups: vec!["own".to_owned()],
            act_as,
            admin,
            may: if user == "ops" {
                May {
                    create: false,
                    read: true,
                    decide: false,
                }
            } else {
                May::ALL
            },
            key_sha256: hash(&format!("{user}-key")),
        };
        Keys::new(Directory::new(vec![
            account("alice", false, false),
            account("web", true, true),
            account("ops", false, true),
        ]))
    }

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        all.iter()
            .map(|(name, value)| {
                (
                    http::HeaderName::from_static(name),
                    http::HeaderValue::from_bytes(value.as_bytes()).unwrap(),
                )
            })
            .fold(HeaderMap::new(), |mut map, (name, value)| {
                map.append(name, value);
                map
            })
    }

    #[test]
    fn key_authenticates_its_user() {
        for value in ["Bearer alice-key", "bearer alice-key", "BEARER  alice-key "] {
            let caller = keys()
                .authenticate(&headers(&[("authorization", value)]))
                .unwrap();
            assert_eq!(
                (caller.user_id.as_str(), caller.tenant.as_str()),
                ("alice", "acme")
            );
            assert_eq!(
                (caller.groups, caller.via, caller.unaccounted),
                (vec!["own".to_owned()], None, false)
            );
        }
        let ops = keys()
            .authenticate(&headers(&[("authorization", "Bearer ops-key")]))
            .unwrap();
        assert_eq!(
            (ops.admin, ops.may),
            (
                true,
                May {
                    create: false,
                    read: true,
                    decide: false
                }
            )
        );
    }

    #[test]
    fn unknown_or_malformed_key_is_refused() {
        let wrong = [
            "Bearer nobody",
            "Bearer ",
            "Bearer",
            "Basic alice-key",
            "alice-key",
            "Bearer alice-key, Bearer web-key",
            "",
        ];
        for value in wrong {
            let found = keys().authenticate(&headers(&[("authorization", value)]));
            assert_eq!(found, Err(AuthError::Wrong), "{value}");
        }
        assert_eq!(keys().authenticate(&headers(&[])), Err(AuthError::Missing));
        let two = headers(&[
            ("authorization", "Bearer alice-key"),
            ("authorization", "Bearer alice-key"),
        ]);
        assert_eq!(keys().authenticate(&two), Err(AuthError::Wrong));
        let unknown = headers(&[
            ("authorization", "Bearer nobody"),
            ("holdpoint-user", "bob"),
        ]);
        assert_eq!(keys().authenticate(&unknown), Err(AuthError::Wrong));
    }

    #[test]
    fn key_with_act_as_speaks_for_the_named_user() {
        let web = ("authorization", "Bearer web-key");
        let all = headers(&[
            web,
            ("holdpoint-user", "bob"),
            ("holdpoint-groups", "finance, support,,Data Team,finance"),
        ]);
        let caller = keys().authenticate(&all).unwrap();
        assert_eq!(
            (caller.user_id.as_str(), caller.via.as_deref()),
            ("bob", Some("web"))
        );
        assert_eq!(caller.groups, ["finance", "support", "Data Team"]);
        assert!(caller.admin, "admin is the key's");
        let no_groups = keys()
            .authenticate(&headers(&[web, ("holdpoint-user", "bob")]))
            .unwrap();
        assert_eq!(
            no_groups.groups,
            Vec::<String>::new(),
            "without Holdpoint-Groups he has none"
        );
        let own = keys().authenticate(&headers(&[web])).unwrap();
        assert_eq!((own.user_id.as_str(), own.via), ("web", None));
    }

    #[test]
    fn unreadable_header_is_refused() {
        let web = ("authorization", "Bearer web-key");
        let long = "x".repeat(129);
        let bad: &[&[(&'static str, &str)]] = &[
            &[("holdpoint-user", "")],
            &[("holdpoint-user", "a b")],
            &[("holdpoint-user", "a\u{200b}b")],
            &[("holdpoint-user", &long)],
            &[("holdpoint-user", "a"), ("holdpoint-user", "b")],
            &[
                ("holdpoint-user", "a"),
                ("holdpoint-groups", "x"),
                ("holdpoint-groups", "admin"),
            ],
            &[("holdpoint-groups", "finance")],
            &[("holdpoint-user", "a,b")],
            &[("holdpoint-user", "jose\u{301}")],
            &[("holdpoint-user", "\u{212a}elvin")],
            &[("holdpoint-user", "\u{a0}a")],
            &[("holdpoint-user", "a"), ("holdpoint-user", "a")],
            &[
                ("holdpoint-user", "a"),
                ("holdpoint-groups", "\u{3000}finance"),
            ],
            &[("holdpoint-user", "a"), ("holdpoint-tenant", "other")],
            &[("holdpoint-as", "a")],
        ];
        for rest in bad {
            let all: Vec<_> = std::iter::once(web).chain(rest.iter().copied()).collect();
            let found = keys().authenticate(&headers(&all));
            assert!(
                matches!(found, Err(AuthError::BadHeader(_))),
                "{rest:?}: {found:?}"
            );
        }
    }

    #[test]
    fn unknown_holdpoint_header_is_refused_and_gateway_headers_are_not() {
        let alice = ("authorization", "Bearer alice-key");
        for (name, fine) in [
            ("holdpoint-runner", true),
            ("holdpoint-session", true),
            ("holdpoint-usr", false),
        ] {
            let found = keys().authenticate(&headers(&[alice, (name, "x")]));
            assert_eq!(found.is_ok(), fine, "{name}: {found:?}");
            assert!(
                fine || matches!(found, Err(AuthError::BadHeader(_))),
                "{name}: {found:?}"
            );
        }
        let wrong = headers(&[("authorization", "Bearer nobody"), ("holdpoint-usr", "x")]);
        assert_eq!(
            keys().authenticate(&wrong),
            Err(AuthError::Wrong),
            "a key comes first"
        );
    }

    #[test]
    fn named_user_is_shown_as_the_file_spells_it() {
        let named = |user| {
            keys().authenticate(&headers(&[
                ("authorization", "Bearer web-key"),
                ("holdpoint-user", user),
            ]))
        };
        assert_eq!(named("ALICE").unwrap().user_id.as_str(), "alice");
        assert_eq!(
            named("ALICE").unwrap().user_id,
            named("alice").unwrap().user_id
        );
        assert_eq!(named("Zoe").unwrap().user_id.as_str(), "Zoe");
    }

    #[test]
    fn key_without_act_as_that_sends_either_header_is_forbidden() {
        for name in ["holdpoint-user", "holdpoint-groups"] {
            let all = headers(&[("authorization", "Bearer alice-key"), (name, "alice")]);
            assert!(
                matches!(keys().authenticate(&all), Err(AuthError::Forbidden(_))),
                "{name}"
            );
        }
    }

    #[test]
    fn session_is_the_user_of_its_key_and_speaks_for_no_other_user() {
        let token = Token::of([9; 32]);
        let binding = keys().bind(&token, "web-key").unwrap();
        let caller = keys().by_session(&headers(&[]), &token, &binding).unwrap();
        assert_eq!(
            (caller.user_id.as_str(), caller.tenant.as_str(), caller.via),
            ("web", "acme", None)
        );
        let ops = keys().bind(&token, "ops-key").unwrap();
        assert!(
            !keys()
                .by_session(&headers(&[]), &token, &ops)
                .unwrap()
                .may
                .create,
            "what the key may, no more"
        );
        for name in ["holdpoint-user", "holdpoint-groups", "holdpoint-anything"] {
            let found = keys().by_session(&headers(&[(name, "bob")]), &token, &binding);
            assert!(matches!(found, Err(AuthError::Forbidden(_))), "{name}");
        }
        assert_eq!(keys().bind(&token, "nobody"), None);
        let other = Token::of([8; 32]);
        assert_eq!(
            keys().by_session(&headers(&[]), &other, &binding),
            Err(AuthError::Missing)
        );
        let without = Keys::new(Directory::default());
        assert_eq!(
            without.by_session(&headers(&[]), &token, &binding),
            Err(AuthError::Missing),
            "dead with its key"
        );
        assert_eq!(Open.bind(&token, "web-key"), None);
        assert_eq!(
            Open.by_session(&headers(&[]), &token, &binding),
            Err(AuthError::Missing)
        );
    }

    #[test]
    fn every_caller_is_local_without_accounts_and_may_name_no_user() {
        let caller = Open
            .authenticate(&headers(&[("authorization", "Bearer whatever")]))
            .unwrap();
        assert_eq!(
            (caller.user_id.as_str(), caller.tenant.as_str()),
            ("local", "default")
        );
        assert_eq!(
            (caller.unaccounted, caller.admin, caller.may),
            (true, false, May::ALL)
        );
        for name in ["holdpoint-user", "holdpoint-groups"] {
            assert!(
                matches!(
                    Open.authenticate(&headers(&[(name, "x")])),
                    Err(AuthError::Forbidden(_))
                ),
                "{name}"
            );
        }
        for name in ["holdpoint-tenant", "holdpoint-anything"] {
            assert!(
                matches!(
                    Open.authenticate(&headers(&[(name, "x")])),
                    Err(AuthError::BadHeader(_))
                ),
                "{name}"
            );
        }
    }
}
