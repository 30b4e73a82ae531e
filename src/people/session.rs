//! The token of a browser session. The browser holds the token. The store has the token's hash, and
//! a binding: one hash over the token and the hash of the key that opened the session. Invariant:
//! no stored value reveals a token, a key or a key's hash, and the binding fits only that key.

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

    /// Parses the text form of a token; `None` if it is not valid.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// Returns the text form of the token, which is sent to the browser only.
    #[must_use]
    pub fn text(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Returns the hash of the token. The store finds the session by this hash.
    #[must_use]
    pub fn digest(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(self.0))
    }

    /// Returns the value that binds the session to a key. The value reveals nothing about the key,
    /// even together with the token's hash, because the token is random and has the same length as
    /// the key's hash.
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
        // The last character encodes only four bits. A text is refused if its last character
        // differs from the correct character only in the two unused bits.
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
