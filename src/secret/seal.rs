//! Encrypts and hashes values that must not be stored in plain form. A credential that a person
//! entered is stored only as ciphertext that is bound to its row. An HTTP body that may hold a
//! credential is stored only as a keyed hash. The contents of a link in a message are ciphertext.
//! Credentials, hashes and links use three different keys, derived from a configured key.
//!
//! Invariant: a nonce is random and used once. The parts that identify a row are associated data of
//! the ciphertext. Each part is preceded by its length, so that no two rows have the same
//! associated data. An error reveals nothing of the sealed value.

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use chacha20poly1305::aead::{Aead as _, Generate as _, Payload};
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::Secret;

/// The HKDF labels that derive a separate key for each use from a configured key.
const FOR_SEALING: &[u8] = b"holdpoint 1 sealing";
const FOR_FINGERPRINTS: &[u8] = b"holdpoint 1 fingerprints";
const FOR_LINKS: &[u8] = b"holdpoint 1 links";
/// The associated data of every link. All links have the same associated data, because a link has
/// no row in the database. Any other sealed value is bound to its row.
const LINK: &[&[u8]] = &[b"link"];
/// The version of the sealed format; it is part of the associated data.
const VERSION: &[u8] = b"holdpoint sealed 1";
const NONCE_BYTES: usize = 24;

/// The reason why a value could not be sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The system has no randomness, or the value is too long.
    #[error("it could not be sealed")]
    SealingFailed,
    /// No configured key has the id that the sealed value names.
    #[error("the key that sealed it is not in the configuration")]
    UnknownKey,
    /// The text cannot be opened for this row: the text was changed, cut off, moved from another
    /// row, or sealed with another key.
    #[error("it is not what was sealed here")]
    OpeningFailed,
}

/// A sealed value as it is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The id of the configured key that sealed the value.
    pub key_id: String,
    /// Base64 of the nonce and the ciphertext.
    pub text: String,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({})", self.key_id)
    }
}

/// Seals and opens values with the configured keys. Clones share the keys.
#[derive(Clone)]
pub struct Sealer {
    /// The first configured key, which seals all new values.
    sealing_key: Arc<Key>,
    /// All configured keys. Each key opens the values that it has sealed.
    keys: Arc<[Arc<Key>]>,
}

struct Key {
    id: String,
    cipher: XChaCha20Poly1305,
    links: XChaCha20Poly1305,
    mac: Hmac<Sha256>,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer")
    }
}

impl Key {
    fn new(id: String, secret: &[u8; 32]) -> Option<Self> {
        let derive = Hkdf::<Sha256>::new(None, secret);
        let derived = |label| {
            let mut key = Zeroizing::new([0; 32]);
            derive.expand(label, key.as_mut()).ok()?;
            Some(key)
        };
        let cipher = |label| XChaCha20Poly1305::new_from_slice(derived(label)?.as_ref()).ok();
        Some(Self {
            id,
            cipher: cipher(FOR_SEALING)?,
            links: cipher(FOR_LINKS)?,
            mac: Hmac::new_from_slice(derived(FOR_FINGERPRINTS)?.as_ref()).ok()?,
        })
    }

    /// Encrypts `plain` with one of this key's ciphers, with `bound` as associated data. Returns
    /// the nonce followed by the ciphertext.
    fn encrypt(
        &self,
        cipher: &XChaCha20Poly1305,
        bound: &[&[u8]],
        plain: &[u8],
    ) -> Result<Vec<u8>, SealError> {
        let nonce = XNonce::try_generate().map_err(|_| SealError::SealingFailed)?;
        let payload = Payload {
            msg: plain,
            aad: &self.bind(bound),
        };
        let ciphertext = cipher
            .encrypt(&nonce, payload)
            .map_err(|_| SealError::SealingFailed)?;
        Ok([nonce.as_slice(), &ciphertext].concat())
    }

    /// Decrypts `sealed`, a nonce followed by a ciphertext, with one of this key's ciphers. Fails
    /// if `bound` is not the associated data of the encryption.
    fn decrypt(
        &self,
        cipher: &XChaCha20Poly1305,
        bound: &[&[u8]],
        sealed: &[u8],
    ) -> Result<Secret<Vec<u8>>, SealError> {
        let (nonce, ciphertext) = sealed
            .split_at_checked(NONCE_BYTES)
            .ok_or(SealError::OpeningFailed)?;
        let nonce = XNonce::try_from(nonce).map_err(|_| SealError::OpeningFailed)?;
        let payload = Payload {
            msg: ciphertext,
            aad: &self.bind(bound),
        };
        cipher
            .decrypt(&nonce, payload)
            .map(Secret::new)
            .map_err(|_| SealError::OpeningFailed)
    }

    /// Builds the associated data of the encryption: format version, key id and the `bound` parts,
    /// each preceded by its length.
    fn bind(&self, bound: &[&[u8]]) -> Vec<u8> {
        let mut all = Vec::new();
        for part in [VERSION, self.id.as_bytes()].iter().chain(bound) {
            all.extend_from_slice(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            all.extend_from_slice(part);
        }
        all
    }

    fn mac(&self, bytes: &[u8]) -> String {
        let mut mac = self.mac.clone();
        mac.update(bytes);
        hex(&mac.finalize().into_bytes())
    }
}

impl Sealer {
    /// Creates a sealer from the keys in the configuration's order. The first key seals new values;
    /// every key opens the values that it has sealed. Returns `None` if there are no keys.
    #[must_use]
    pub fn new(keys: Vec<(String, Secret<[u8; 32]>)>) -> Option<Self> {
        let keys = keys
            .into_iter()
            .map(|(id, secret)| Key::new(id, secret.reveal()).map(Arc::new));
        let keys: Arc<[Arc<Key>]> = keys.collect::<Option<_>>()?;
        Some(Self {
            sealing_key: Arc::clone(keys.first()?),
            keys,
        })
    }

    /// Seals a value for the row that the parts of `bound` identify.
    ///
    /// # Errors
    /// Fails with [`SealError::SealingFailed`] if the system has no randomness, or if the value is
    /// too long.
    pub fn seal(&self, bound: &[&[u8]], plain: &[u8]) -> Result<Sealed, SealError> {
        let key = &self.sealing_key;
        let bytes = key.encrypt(&key.cipher, bound, plain)?;
        Ok(Sealed {
            key_id: key.id.clone(),
            text: BASE64_STANDARD.encode(bytes),
        })
    }

    /// Opens a value that was sealed for the row that the parts of `bound` identify.
    ///
    /// # Errors
    /// Fails with [`SealError::UnknownKey`] if the key that sealed the value is not configured.
    /// Fails with [`SealError::OpeningFailed`] if the value was changed or cut off, or was sealed
    /// for another row.
    pub fn open(&self, bound: &[&[u8]], sealed: &Sealed) -> Result<Secret<Vec<u8>>, SealError> {
        let key = self.key(&sealed.key_id).ok_or(SealError::UnknownKey)?;
        let bytes = BASE64_STANDARD
            .decode(&sealed.text)
            .map_err(|_| SealError::OpeningFailed)?;
        key.decrypt(&key.cipher, bound, &bytes)
    }

    /// Seals the contents of a link. Returns the key's id, a dot, and the base64url of the nonce
    /// and the ciphertext.
    ///
    /// # Errors
    /// Fails with [`SealError::SealingFailed`] if the system has no randomness, or if the value is
    /// too long.
    pub fn seal_link(&self, plain: &[u8]) -> Result<String, SealError> {
        let key = &self.sealing_key;
        let bytes = key.encrypt(&key.links, LINK, plain)?;
        let text = BASE64_URL_SAFE_NO_PAD.encode(bytes);
        Ok(format!("{}.{text}", key.id))
    }

    /// Opens a token of [`Sealer::seal_link`] and returns the contents of the link.
    ///
    /// # Errors
    /// Fails with [`SealError::UnknownKey`] if the key that sealed the token is not configured.
    /// Fails with [`SealError::OpeningFailed`] if the token was changed or cut off, or was not made
    /// by [`Sealer::seal_link`].
    pub fn open_link(&self, token: &str) -> Result<Secret<Vec<u8>>, SealError> {
        let (key_id, text) = token.split_once('.').ok_or(SealError::OpeningFailed)?;
        let key = self.key(key_id).ok_or(SealError::UnknownKey)?;
        let bytes = BASE64_URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|_| SealError::OpeningFailed)?;
        key.decrypt(&key.links, LINK, &bytes)
    }

    /// Returns the keyed hash of `bytes` (HMAC-SHA256) under the first key, as `<key id>:<hex>`.
    #[must_use]
    pub fn fingerprint(&self, bytes: &[u8]) -> String {
        let key = &self.sealing_key;
        format!("{}:{}", key.id, key.mac(bytes))
    }

    /// Whether `stored` is a fingerprint of `bytes` under the key that `stored` names. `false` if
    /// that key is no longer configured.
    #[must_use]
    pub fn is_fingerprint(&self, stored: &str, bytes: &[u8]) -> bool {
        let Some((id, stored)) = stored.rsplit_once(':') else {
            return false;
        };
        let Some(key) = self.key(id) else {
            return false;
        };
        key.mac(bytes).as_bytes().ct_eq(stored.as_bytes()).into()
    }

    fn key(&self, id: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.id == id).map(AsRef::as_ref)
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The body of a POST and its digest. The row of the idempotency key stores the digest, so that a
/// repeated POST is recognized. With sealing keys the digest is a keyed hash
/// ([`Sealer::fingerprint`]), because the body may hold a credential. Without sealing keys no
/// request can ask for a credential, so the digest is a SHA-256 hash without a key.
#[derive(Clone)]
pub struct DigestedBody {
    bytes: Bytes,
    sealer: Option<Sealer>,
    digest: String,
}

impl fmt::Debug for DigestedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DigestedBody({} bytes)", self.bytes.len())
    }
}

impl DigestedBody {
    #[must_use]
    pub fn new(bytes: Bytes, sealer: Option<&Sealer>) -> Self {
        let digest = sealer.map_or_else(|| sha256(&bytes), |sealer| sealer.fingerprint(&bytes));
        Self {
            bytes,
            sealer: sealer.cloned(),
            digest,
        }
    }

    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Whether `digest` is a stored digest of this body. The digest may have been stored without
    /// sealing keys, or under any key that is still configured.
    #[must_use]
    pub fn matches_digest(&self, digest: &str) -> bool {
        if digest.contains(':') {
            return self
                .sealer
                .as_ref()
                .is_some_and(|sealer| sealer.is_fingerprint(digest, &self.bytes));
        }
        sha256(&self.bytes)
            .as_bytes()
            .ct_eq(digest.as_bytes())
            .into()
    }
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests;
