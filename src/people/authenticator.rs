//! Authenticates an HTTP request by its headers: by key, or as `local` in a service without
//! accounts. A browser session counts as the key that opened it. Invariant: `Holdpoint-User` and
//! `Holdpoint-Groups` take effect only with a key that may speak for other people. With any other
//! key or a session they are refused, never ignored. Unknown `Holdpoint-…` headers are refused,
//! too.

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::directory::{Account, Directory, is_user};
use super::session::Token;
use super::{Caller, May};
use crate::task::decision::Door;
use crate::task::user::{UserId, UserIds, is_normal};

/// Identifies the caller of an HTTP request.
pub trait Authenticator: Send + Sync {
    /// Returns the caller that these headers identify.
    ///
    /// # Errors
    /// Any [`AuthError`].
    fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, AuthError>;

    /// Returns the value that binds a session to the key that opens it; `None` when the key is
    /// unknown. A service without accounts has no keys and no sessions.
    fn bind(&self, _token: &Token, _key: &str) -> Option<String> {
        None
    }

    /// Returns the caller of a session: the user of the account whose key yields the session's
    /// binding.
    ///
    /// # Errors
    /// `Missing` when no configured key yields the binding any more; `Forbidden` on any
    /// `Holdpoint-…` header.
    fn by_session(
        &self,
        _headers: &HeaderMap,
        _token: &Token,
        _binding: &str,
    ) -> Result<Caller, AuthError> {
        Err(AuthError::Missing)
    }
}

/// The reason why a request is not admitted, with the problem code of each variant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The request has no key, or no configured key fits its session: `unauthorized`.
    #[error("a key is needed: `Authorization: Bearer <key>`")]
    Missing,
    /// The key is unknown or malformed: `unauthorized`.
    #[error("the key is not known")]
    Wrong,
    /// The key or session may not speak for other people: `forbidden`.
    #[error("{0}")]
    Forbidden(String),
    /// A `Holdpoint-…` header is unknown or not valid: `bad_request`.
    #[error("{0}")]
    BadHeader(String),
}

/// The header in which a key with `act_as` names the user for whom it speaks.
const USER: &str = "holdpoint-user";
/// The header with the groups of the user in `USER`, separated by commas.
const GROUPS: &str = "holdpoint-groups";
/// The `Holdpoint-…` headers that a request may have.
const HEADERS: [&str; 4] = [USER, GROUPS, "holdpoint-runner", "holdpoint-session"];

/// The authenticator of a service with accounts: reads `Authorization: Bearer <key>`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    directory: Directory,
}

impl Keys {
    #[must_use]
    pub(crate) fn new(directory: Directory) -> Self {
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
            return Ok(self.own(account, Door::Key));
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
        Ok(Caller {
            via: Some(account.user.clone()),
            ..caller(account, user, groups, Door::Key)
        })
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
        Ok(self.own(account, Door::Session))
    }
}

impl Keys {
    /// Returns the key's own user as the caller. `door` tells whether the request came with the key
    /// or with a session of the key.
    fn own(&self, account: &Account, door: Door) -> Caller {
        let user = self.directory.user(&account.tenant, &account.user);
        caller(account, user, account.groups.clone(), door)
    }
}

/// Refuses unknown `Holdpoint-…` headers. Such a header may be misspelt, so it is not safe to
/// ignore it.
///
/// # Errors
/// `BadHeader` on a `Holdpoint-…` header that is not in `HEADERS`.
pub(crate) fn only_ours(headers: &HeaderMap) -> Result<(), AuthError> {
    let unknown = |name: &str| name.starts_with("holdpoint-") && !HEADERS.contains(&name);
    if headers.keys().any(|name| unknown(name.as_str())) {
        return Err(bad(
            "A request may have no `Holdpoint-…` headers but `-User`, `-Groups`, `-Runner` and `-Session`.",
        ));
    }
    Ok(())
}

/// Refuses `Holdpoint-…` headers on a session. A session speaks for one person only, even if its
/// key has `act_as`: any web page could make the browser send such a header.
///
/// # Errors
/// `Forbidden` on any `Holdpoint-…` header.
pub(crate) fn speaks_for_nobody(headers: &HeaderMap) -> Result<(), AuthError> {
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

fn caller(account: &Account, user_id: UserId, groups: Vec<String>, door: Door) -> Caller {
    Caller {
        user_id,
        tenant: account.tenant.clone(),
        groups,
        via: None,
        door: Some(door),
        admin: account.admin,
        may: account.may,
        unaccounted: false,
    }
}

/// Returns the key of the only `Authorization: Bearer <key>` header.
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

/// Returns the value of a header that may appear only once. Beside the value that a proxy sets, a
/// second value could come from the client.
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

/// The authenticator of a service without accounts: every caller is `local`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Open;

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
            door: None,
            admin: false,
            may: May::ALL,
            unaccounted: true,
        })
    }
}

#[cfg(test)]
mod tests;
