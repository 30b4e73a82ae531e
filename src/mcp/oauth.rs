//! Fetches access tokens for MCP servers with OAuth 2.0 client credentials (RFC 6749, section 4.4).
//! Tokens are kept in memory and never stored.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::HeaderValue;
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::client::MAX_CALLS;
use super::settings::OAuth;
use crate::net::{NO_ANSWER_IN_TIME, Net, NetFailure, next_bytes, send_request};
use crate::secret::{Redactor, Secret};
use crate::world::Locked;

/// A cached token is no longer used if it expires within this time. A new token is then fetched.
const RENEWAL_MARGIN: Duration = Duration::from_mins(1);
/// The lifetime of a token if the endpoint's answer has no `expires_in`.
const DEFAULT_LIFETIME: Duration = Duration::from_mins(5);
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// The maximum number of tokens that are kept for the redaction after they were issued. The calls
/// in flight may all have tokens of their own, and so may the listings beside them.
const MAX_ISSUED: usize = 2 * MAX_CALLS;
/// The characters that are escaped in a form (WHATWG URL, "application/x-www-form-urlencoded").
const FORM_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'*');

/// The source of a server's tokens. `cached` is locked while a token is fetched, so that concurrent
/// calls share one fetch.
#[derive(Debug)]
pub(super) struct Tokens {
    settings: OAuth,
    cached: Mutex<Option<AccessToken>>,
    issued: Locked<IssuedTokens>,
}

/// The tokens that had not expired when the newest token was issued; the newest is last. A server
/// may quote a token after a newer token has replaced it.
#[derive(Debug, Default)]
struct IssuedTokens(VecDeque<IssuedToken>);

#[derive(Debug)]
struct IssuedToken {
    text: Secret<String>,
    expires_at: Instant,
    /// Finds this token alone. One redactor for all tokens would be built anew for each new token.
    redactor: Redactor,
}

#[derive(Debug)]
struct AccessToken {
    text: Secret<String>,
    until: Instant,
}

#[derive(Deserialize)]
struct TokenResponse {
    access_token: String,
    /// RFC 6749 requires this member, but some endpoints leave it out. A token without a type
    /// counts as a bearer token: only the server for which the operator configured it gets the
    /// token.
    token_type: Option<String>,
    expires_in: Option<u64>,
}

impl Tokens {
    pub(super) fn new(settings: OAuth) -> Self {
        Self {
            settings,
            cached: Mutex::default(),
            issued: Locked::default(),
        }
    }

    /// Returns the cached token. Fetches a new token if no token is cached, or if the cached token
    /// expires within [`RENEWAL_MARGIN`].
    ///
    /// # Errors
    /// Fails if no token can be fetched. The error is the reason, and does not quote the endpoint's
    /// answer.
    pub(super) async fn token(&self, net: &Net) -> Result<Secret<String>, String> {
        let mut cached = self.cached.lock().await;
        if let Some(token) = cached.as_ref().filter(|token| Instant::now() < token.until) {
            return Ok(token.text.clone());
        }
        let fetched = tokio::time::timeout(FETCH_TIMEOUT, self.fetch(net)).await;
        let late = |_| Err(format!("the token endpoint: {NO_ANSWER_IN_TIME}"));
        let token = fetched.unwrap_or_else(late)?;
        let text = token.text.clone();
        self.issued.lock().add(&token, Instant::now());
        *cached = Some(token);
        Ok(text)
    }

    /// Returns a redactor for the tokens in `issued` (at most [`MAX_ISSUED`]), and for the token
    /// `used` of a request, which may be older.
    pub(super) fn redactor(&self, used: Option<&Secret<String>>) -> Redactor {
        let issued = self.issued.lock();
        let older = used.filter(|used| issued.0.iter().all(|issued| issued.text != **used));
        let redactors = issued.0.iter().map(|issued| &issued.redactor);
        redactors.fold(token_redactor(older), |all, one| all.merged_with(one))
    }

    /// Removes the token `refused` from the cache. If the cache holds a newer token, keeps the
    /// newer token.
    pub(super) async fn forget(&self, refused: &Secret<String>) {
        let mut cached = self.cached.lock().await;
        if cached.as_ref().is_some_and(|token| token.text == *refused) {
            *cached = None;
        }
    }

    async fn fetch(&self, net: &Net) -> Result<AccessToken, String> {
        let OAuth {
            token_url,
            client_id,
            client_secret,
            scopes,
            resource,
        } = &self.settings;
        let encoded = |text: &str| utf8_percent_encode(text, FORM_ESCAPES).to_string();
        let mut form = "grant_type=client_credentials".to_owned();
        if !scopes.is_empty() {
            let _ = write!(form, "&scope={}", encoded(&scopes.join(" ")));
        }
        if let Some(resource) = resource {
            let _ = write!(form, "&resource={}", encoded(resource));
        }
        let request = net
            .repeatable()
            .post(token_url)
            .basic_auth(encoded(client_id), Some(encoded(client_secret.reveal())))
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .body(form);
        let failed = |failure: NetFailure| format!("the token endpoint: {failure}");
        let mut response = send_request(request, FETCH_TIMEOUT).await.map_err(failed)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(bytes) = next_bytes(&mut response, FETCH_TIMEOUT)
            .await
            .map_err(failed)?
        {
            body.extend_from_slice(&bytes);
            if body.len() > MAX_ANSWER_BYTES {
                return Err("the token endpoint: its answer is too long".to_owned());
            }
        }
        if !status.is_success() {
            return Err(format!("the token endpoint answered {}", status.as_u16()));
        }
        let granted: TokenResponse = serde_json::from_slice(&body)
            .map_err(|_| "the token endpoint: its answer is not a token".to_owned())?;
        let kind = granted.token_type.as_deref().unwrap_or("bearer");
        if !kind.eq_ignore_ascii_case("bearer") {
            return Err("the token endpoint: its token is not a bearer token".to_owned());
        }
        let lifetime = granted
            .expires_in
            .map_or(DEFAULT_LIFETIME, Duration::from_secs);
        Ok(AccessToken {
            text: Secret::new(granted.access_token),
            until: Instant::now()
                + lifetime
                    .saturating_sub(RENEWAL_MARGIN)
                    .min(Duration::from_hours(24)),
        })
    }
}

impl IssuedTokens {
    fn add(&mut self, token: &AccessToken, now: Instant) {
        self.0
            .retain(|issued| issued.text != token.text && now < issued.expires_at);
        self.0.push_back(IssuedToken {
            text: token.text.clone(),
            expires_at: token.until + RENEWAL_MARGIN,
            redactor: token_redactor([&token.text]),
        });
        if self.0.len() > MAX_ISSUED {
            self.0.pop_front();
        }
    }
}

/// Returns the value of the header `Authorization` for a token; `None` if a header cannot hold the
/// token.
pub(super) fn bearer(token: &Secret<String>) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.reveal())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Returns a redactor for these tokens.
fn token_redactor<'t>(tokens: impl IntoIterator<Item = &'t Secret<String>>) -> Redactor {
    let tokens = tokens.into_iter();
    Redactor::new(tokens.map(|token| ("the server's token", token)))
}

#[cfg(test)]
mod tests;
