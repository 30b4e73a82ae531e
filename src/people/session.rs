//! The token of a browser session. The browser holds the token. The store holds two hashes:
//! `H(token)`, which finds the session, and the binding `H(token, H(key))`, where `key` is the key
//! that opened the session. Invariant: the stored hashes reveal no token and no key, and a binding
//! matches a single key.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

/// The duration of a session from sign-in.
pub(crate) const SESSION_DURATION: Duration = Duration::from_hours(12);

/// The secret that authenticates a browser after sign-in: 32 random bytes. `Debug` hides it.
pub struct Token([u8; 32]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Makes a token of these bytes, which must be random.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// Returns the text form of the token, for the browser alone.
    #[must_use]
    pub fn text(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Returns the hash of the token. The store finds the session by this hash.
    #[must_use]
    pub fn digest(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(self.0))
    }

    /// Returns the hash that binds the session to a key. The hash reveals nothing about the key,
    /// even together with the token's hash, because the binding also covers the 32 random bytes of
    /// the token.
    #[must_use]
    pub fn binding(&self, key_sha256: &[u8; 32]) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(
            Sha256::new()
                .chain_update(self.0)
                .chain_update(key_sha256)
                .finalize(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_has_43_characters_and_one_spelling() {
        let text = Token::from_bytes([7; 32]).text();
        assert_eq!(text.len(), 43);
        assert_eq!(Token::read(&text).unwrap().text(), text);
        let mut longer = text.clone();
        longer.push('A');
        // The last character has four bits of the token and two unused bits. `twin` differs from
        // `text` only in an unused bit, so a lenient decoder would read the same token.
        let twin = format!("{}d", &text[..42]);
        for wrong in [
            "",
            "abc",
            &text[..42],
            &longer,
            &format!("{text}="),
            &format!(" {text}"),
            &twin,
        ] {
            assert!(Token::read(wrong).is_none(), "{wrong}");
        }
        assert_eq!(format!("{:?}", Token::from_bytes([7; 32])), "Token");
    }

    #[test]
    fn digest_and_binding_depend_on_token_and_key() {
        let (one, two) = (Token::from_bytes([1; 32]), Token::from_bytes([2; 32]));
        assert_eq!(one.digest(), Token::from_bytes([1; 32]).digest());
        assert_ne!(one.digest(), two.digest());
        assert_eq!(
            one.binding(&[3; 32]),
            Token::from_bytes([1; 32]).binding(&[3; 32])
        );
        assert_ne!(one.binding(&[3; 32]), one.binding(&[4; 32]));
        assert_ne!(one.binding(&[3; 32]), two.binding(&[3; 32]));
        assert_ne!(one.binding(&[3; 32]), one.digest());
        assert_ne!(one.digest(), one.text());
    }
}
