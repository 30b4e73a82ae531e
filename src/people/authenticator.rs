//! Authenticates HTTP requests by their headers. In a service with accounts, a key or a browser
//! session authenticates a request. A request with a session comes from the user of the key that
//! opened the session. In a service without accounts, every caller is the user `local`.
//!
//! Invariant: `Holdpoint-User` and `Holdpoint-Groups` need a key that may speak for other people. A
//! request that has these headers with any other key, or with a session, is refused. A request with
//! an unknown `Holdpoint-…` header is refused, too.

use std::collections::HashSet;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::directory::{Account, Directory, is_valid_user_id};
use super::session::Token;
use super::{Caller, Permissions};
use crate::task::decision::Door;
use crate::task::user::{UserId, UserIds, is_normalized};

/// Identifies the caller of an HTTP request.
pub trait Authenticator: Send + Sync {
    /// Returns the caller that these headers identify.
    ///
    /// # Errors
    /// Fails if the headers do not identify a caller (see [`AuthError`]).
    fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, AuthError>;

    /// Returns the binding of a session to the key that opens the session (see [`Token::binding`]);
    /// `None` if the key is unknown. The default implementation returns `None`, because a service
    /// without accounts has no keys and opens no sessions.
    fn session_binding(&self, _token: &Token, _key: &str) -> Option<String> {
        None
    }

    /// Returns the user of the key that opened a session, as the caller. To find this key, computes
    /// [`Token::binding`] for each configured key and compares it with the session's binding.
    ///
    /// # Errors
    /// Fails with `Missing` if no configured key yields the binding any more. Fails with
    /// `Forbidden` if the request has a `Holdpoint-…` header.
    fn authenticate_session(
        &self,
        _headers: &HeaderMap,
        _token: &Token,
        _binding: &str,
    ) -> Result<Caller, AuthError> {
        Err(AuthError::Missing)
    }
}

/// The reason why a request could not be authenticated. The comment on each variant ends with the
/// code of the problem that the client gets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The request has no key, or it has a session whose key is no longer configured:
    /// `unauthorized`.
    #[error("a key is needed: `Authorization: Bearer <key>`")]
    Missing,
    /// The key is unknown or malformed: `unauthorized`.
    #[error("the key is not known")]
    UnknownKey,
    /// The key or session may not speak for other people: `forbidden`.
    #[error("{0}")]
    Forbidden(String),
    /// A `Holdpoint-…` header is unknown or not valid: `bad_request`.
    #[error("{0}")]
    BadHeader(String),
}

/// The header that names the user for whom a key with `act_as` speaks.
const USER_HEADER: &str = "holdpoint-user";
/// The header with the groups of the user in `USER_HEADER`, separated by commas.
const GROUPS_HEADER: &str = "holdpoint-groups";
const KNOWN_HEADERS: [&str; 4] = [
    USER_HEADER,
    GROUPS_HEADER,
    "holdpoint-runner",
    "holdpoint-session",
];

/// The authenticator of a service with accounts, which reads `Authorization: Bearer <key>`.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyAuthenticator {
    directory: Directory,
}

impl KeyAuthenticator {
    #[must_use]
    pub(crate) fn new(directory: Directory) -> Self {
        Self { directory }
    }
}

impl Authenticator for KeyAuthenticator {
    fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, AuthError> {
        let account = self
            .directory
            .account_by_key(bearer_key(headers)?)
            .ok_or(AuthError::UnknownKey)?;
        if !names_user(headers) {
            refuse_unknown_headers(headers)?;
            return Ok(self.account_caller(account, Door::Key));
        }
        if !account.act_as {
            let detail = "This key may not act for other users: `Holdpoint-User` and `Holdpoint-Groups` need a key with `act_as`.";
            return Err(AuthError::Forbidden(detail.to_owned()));
        }
        refuse_unknown_headers(headers)?;
        let user = single_header(headers, USER_HEADER)?.ok_or_else(|| {
            bad_header("`Holdpoint-Groups` needs `Holdpoint-User`, the user who has these groups.")
        })?;
        if !is_valid_user_id(user) || user.contains(',') || !is_normalized(user) {
            return Err(bad_header(
                "`Holdpoint-User` must be 1 to 128 visible characters in NFC, without blanks and commas.",
            ));
        }
        let groups = parse_groups(single_header(headers, GROUPS_HEADER)?.unwrap_or(""))?;
        let user = self.directory.user(&account.tenant, user);
        Ok(Caller {
            via: Some(account.user.clone()),
            ..caller(account, user, groups, Door::Key)
        })
    }

    fn session_binding(&self, token: &Token, key: &str) -> Option<String> {
        Some(token.binding(&self.directory.account_by_key(key)?.key_sha256))
    }

    fn authenticate_session(
        &self,
        headers: &HeaderMap,
        token: &Token,
        binding: &str,
    ) -> Result<Caller, AuthError> {
        let account = self
            .directory
            .account_by_binding(token, binding)
            .ok_or(AuthError::Missing)?;
        refuse_holdpoint_headers(headers)?;
        Ok(self.account_caller(account, Door::Session))
    }
}

impl KeyAuthenticator {
    /// Returns the key's own user as the caller. `door` tells whether the request came with the key
    /// itself or with a session that the key opened.
    fn account_caller(&self, account: &Account, door: Door) -> Caller {
        let user = self.directory.user(&account.tenant, &account.user);
        caller(account, user, account.groups.clone(), door)
    }
}

fn names_user(headers: &HeaderMap) -> bool {
    headers.contains_key(USER_HEADER) || headers.contains_key(GROUPS_HEADER)
}

/// Refuses a request by a sealed link if the request has `Holdpoint-User`, `Holdpoint-Groups` or an
/// unknown `Holdpoint-…` header.
///
/// # Errors
/// Fails with `Forbidden` for `Holdpoint-User` and `Holdpoint-Groups`, and with `BadHeader` for an
/// unknown header.
pub(crate) fn refuse_headers_beside_link(headers: &HeaderMap) -> Result<(), AuthError> {
    if names_user(headers) {
        let detail = "A link may not act for other users: `Holdpoint-User` and `Holdpoint-Groups` need a key with `act_as`.";
        return Err(AuthError::Forbidden(detail.to_owned()));
    }
    refuse_unknown_headers(headers)
}

/// Refuses unknown `Holdpoint-…` headers, because ignoring a misspelt header would not be safe.
///
/// # Errors
/// Fails with `BadHeader` if a `Holdpoint-…` header is not in `KNOWN_HEADERS`.
pub(crate) fn refuse_unknown_headers(headers: &HeaderMap) -> Result<(), AuthError> {
    let unknown = |name: &str| name.starts_with("holdpoint-") && !KNOWN_HEADERS.contains(&name);
    if headers.keys().any(|name| unknown(name.as_str())) {
        return Err(bad_header(
            "The only `Holdpoint-…` headers that a request may have are `-User`, `-Groups`, `-Runner` and `-Session`.",
        ));
    }
    Ok(())
}

/// Refuses a session's request if the request has a `Holdpoint-…` header. A session speaks for one
/// person, even if the key that opened the session has `act_as`. The reason: the browser adds the
/// session's cookie to the requests of any script, and a script must not act for other users.
///
/// # Errors
/// Fails with `Forbidden` if the request has a `Holdpoint-…` header.
pub(crate) fn refuse_holdpoint_headers(headers: &HeaderMap) -> Result<(), AuthError> {
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
        permissions: account.permissions,
        without_accounts: false,
    }
}

/// Returns the key of the `Authorization: Bearer <key>` header. Returns `Missing` if there is no
/// such header, and `UnknownKey` if the header is repeated or malformed.
fn bearer_key(headers: &HeaderMap) -> Result<&str, AuthError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(AuthError::Missing)?;
    if values.next().is_some() {
        return Err(AuthError::UnknownKey);
    }
    let (scheme, key) = value
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .ok_or(AuthError::UnknownKey)?;
    if scheme.eq_ignore_ascii_case("bearer") {
        Ok(key.trim())
    } else {
        Err(AuthError::UnknownKey)
    }
}

/// Returns the value of a header, if any. A repeated header is refused, because the client may have
/// sent a value in addition to the value that a proxy sets.
fn single_header<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, AuthError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(bad_header(
            "`Holdpoint-User` and `Holdpoint-Groups` may be sent only once each.",
        ));
    }
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| bad_header("A `Holdpoint-…` header must be UTF-8."))?;
    Ok(Some(text.trim_matches([' ', '\t'])))
}

fn bad_header(detail: &str) -> AuthError {
    AuthError::BadHeader(detail.to_owned())
}

fn parse_groups(text: &str) -> Result<Vec<String>, AuthError> {
    let (mut groups, mut known) = (Vec::new(), HashSet::new());
    for group in text
        .split(',')
        .map(|group| group.trim_matches([' ', '\t']))
        .filter(|group| !group.is_empty())
    {
        if !is_valid_user_id(&group.replace(' ', "_")) {
            return Err(bad_header(
                "`Holdpoint-Groups` must be names of 1 to 128 visible characters, separated by commas.",
            ));
        }
        if known.insert(group) {
            groups.push(group.to_owned());
        }
    }
    Ok(groups)
}

/// The authenticator of a service without accounts: every caller is `local`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenAuthenticator;

impl Authenticator for OpenAuthenticator {
    fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, AuthError> {
        if names_user(headers) {
            let detail = "Without accounts no caller may act for another user: `Holdpoint-User` and `Holdpoint-Groups` need a \
                          key with `act_as`.";
            return Err(AuthError::Forbidden(detail.to_owned()));
        }
        refuse_unknown_headers(headers)?;
        Ok(Caller {
            user_id: UserIds::default().id(super::LOCAL_USER),
            tenant: "default".to_owned(),
            groups: Vec::new(),
            via: None,
            door: None,
            admin: false,
            permissions: Permissions::ALL,
            without_accounts: true,
        })
    }
}

#[cfg(test)]
mod tests;
