//! Sealing. A credential that a person entered is stored only as ciphertext that is bound to its
//! row. An HTTP body that may hold a credential is stored only as a keyed hash. Invariant: a nonce
//! is random and used once; each bound part is preceded by its length, so that no two rows bind the
//! same bytes; an error reveals nothing of the sealed value.

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use chacha20poly1305::aead::{Aead as _, Generate as _, Payload};
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::Secret;

/// Labels to derive a separate key for each use.
const FOR_SEALING: &[u8] = b"holdpoint 1 sealing";
const FOR_FINGERPRINTS: &[u8] = b"holdpoint 1 fingerprints";
/// The version of the sealed format; it is part of the associated data.
const VERSION: &[u8] = b"holdpoint sealed 1";
/// The length of a nonce in bytes.
const NONCE: usize = 24;

/// Why a value could not be sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The system has no randomness, or the value is too long.
    #[error("it could not be sealed")]
    Unsealed,
    /// The configuration no longer has a key with this id.
    #[error("the key that sealed it is not in the configuration")]
    UnknownKey,
    /// The text is not what was sealed for this row: it was changed, cut, moved from another row,
    /// or sealed with another key.
    #[error("it is not what was sealed here")]
    Broken,
}

/// A sealed value as it is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The id of the sealing key.
    pub key_id: String,
    /// Base64 of the nonce and the ciphertext.
    pub text: String,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({})", self.key_id)
    }
}

/// Seals and opens with the configured keys. Cheap to clone.
#[derive(Clone)]
pub struct Sealer {
    /// The key that seals.
    first: Arc<Key>,
    /// The keys that open.
    all: Arc<[Arc<Key>]>,
}

struct Key {
    id: String,
    cipher: XChaCha20Poly1305,
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
        let (mut sealing, mut fingerprints) = (Zeroizing::new([0; 32]), Zeroizing::new([0; 32]));
        derive.expand(FOR_SEALING, sealing.as_mut()).ok()?;
        derive
            .expand(FOR_FINGERPRINTS, fingerprints.as_mut())
            .ok()?;
        let cipher = XChaCha20Poly1305::new_from_slice(sealing.as_ref()).ok()?;
        let mac = Hmac::new_from_slice(fingerprints.as_ref()).ok()?;
        Some(Self { id, cipher, mac })
    }

    /// The associated data of the encryption: format version, key id and the `bound` parts, each
    /// preceded by its length.
    fn bind(&self, bound: &[&[u8]]) -> Vec<u8> {
        let mut all = Vec::new();
        for part in [VERSION, self.id.as_bytes()].iter().chain(bound) {
            all.extend_from_slice(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            all.extend_from_slice(part);
        }
        all
    }

    fn mac(&self, bytes: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(bytes);
        mac
    }
}

impl Sealer {
    /// A sealer with keys in the configuration's order: the first one seals, all of them open.
    /// `None` without keys.
    #[must_use]
    pub fn new(keys: Vec<(String, Secret<[u8; 32]>)>) -> Option<Self> {
        let keys = keys
            .into_iter()
            .map(|(id, secret)| Key::new(id, secret.reveal()).map(Arc::new));
        let all: Arc<[Arc<Key>]> = keys.collect::<Option<_>>()?;
        Some(Self {
            first: Arc::clone(all.first()?),
            all,
        })
    }

    /// Seals a value for the row that the parts of `bound` identify.
    ///
    /// # Errors
    /// [`SealError::Unsealed`].
    pub fn seal(&self, bound: &[&[u8]], plain: &[u8]) -> Result<Sealed, SealError> {
        let key = &self.first;
        let nonce = XNonce::try_generate().map_err(|_| SealError::Unsealed)?;
        let payload = Payload {
            msg: plain,
            aad: &key.bind(bound),
        };
        let ciphertext = key
            .cipher
            .encrypt(&nonce, payload)
            .map_err(|_| SealError::Unsealed)?;
        let text = BASE64_STANDARD.encode([nonce.as_slice(), &ciphertext].concat());
        Ok(Sealed {
            key_id: key.id.clone(),
            text,
        })
    }

    /// Opens a value that was sealed for the row that the parts of `bound` identify.
    ///
    /// # Errors
    /// [`SealError::UnknownKey`] or [`SealError::Broken`].
    pub fn open(&self, bound: &[&[u8]], sealed: &Sealed) -> Result<Secret<Vec<u8>>, SealError> {
        let key = self.key(&sealed.key_id).ok_or(SealError::UnknownKey)?;
        let bytes = BASE64_STANDARD
            .decode(&sealed.text)
            .map_err(|_| SealError::Broken)?;
        let (nonce, ciphertext) = bytes.split_at_checked(NONCE).ok_or(SealError::Broken)?;
        let nonce = XNonce::try_from(nonce).map_err(|_| SealError::Broken)?;
        let payload = Payload {
            msg: ciphertext,
            aad: &key.bind(bound),
        };
        key.cipher
            .decrypt(&nonce, payload)
            .map(Secret::new)
            .map_err(|_| SealError::Broken)
    }

    /// A keyed hash by the first key, as `<key id>:<hex>`.
    #[must_use]
    pub fn fingerprint(&self, bytes: &[u8]) -> String {
        let mut text = format!("{}:", self.first.id);
        hex(&self.first.mac(bytes).finalize().into_bytes(), &mut text);
        text
    }

    /// Whether `stored` is a fingerprint of these bytes, by the key whose id it names. False if
    /// that key is no longer configured.
    #[must_use]
    pub fn is_fingerprint(&self, stored: &str, bytes: &[u8]) -> bool {
        let Some((id, stored)) = stored.rsplit_once(':') else {
            return false;
        };
        let Some(key) = self.key(id) else {
            return false;
        };
        let mut found = String::new();
        hex(&key.mac(bytes).finalize().into_bytes(), &mut found);
        found.as_bytes().ct_eq(stored.as_bytes()).into()
    }

    fn key(&self, id: &str) -> Option<&Key> {
        self.all.iter().find(|key| key.id == id).map(AsRef::as_ref)
    }
}

fn hex(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
}

/// The body of a POST, and its digest, by which the idempotency key's row recognizes a repeated
/// POST. With sealing keys the digest is a fingerprint, because the body may hold a credential.
/// Without keys it is the SHA-256, because then no request can ask for a credential.
#[derive(Clone)]
pub struct Body {
    bytes: Bytes,
    sealer: Option<Sealer>,
    kept: String,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes)", self.bytes.len())
    }
}

impl Body {
    /// A body as received.
    #[must_use]
    pub fn new(bytes: Bytes, sealer: Option<&Sealer>) -> Self {
        let kept = sealer.map_or_else(|| sha256(&bytes), |sealer| sealer.fingerprint(&bytes));
        Self {
            bytes,
            sealer: sealer.cloned(),
            kept,
        }
    }

    /// The digest to store in the idempotency key's row.
    #[must_use]
    pub fn kept(&self) -> &str {
        &self.kept
    }

    /// Whether a stored digest is of this body. The digest may have been stored without sealing
    /// keys, or under any key that is still configured.
    #[must_use]
    pub fn is_kept_as(&self, kept: &str) -> bool {
        if kept.contains(':') {
            return self
                .sealer
                .as_ref()
                .is_some_and(|sealer| sealer.is_fingerprint(kept, &self.bytes));
        }
        sha256(&self.bytes).as_bytes().ct_eq(kept.as_bytes()).into()
    }
}

fn sha256(bytes: &[u8]) -> String {
    let mut text = String::new();
    hex(&Sha256::digest(bytes), &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: [&[u8]; 3] = [b"acme", b"task", b"jira"];
    const PLAIN: &[u8] = b"{\"token\":\"hunter2-hunter2\"}";

    fn sealer(keys: &[(&str, u8)]) -> Sealer {
        Sealer::new(
            keys.iter()
                .map(|(id, byte)| ((*id).to_owned(), Secret::new([*byte; 32])))
                .collect(),
        )
        .unwrap()
    }

    #[test]
    fn sealed_value_opens_only_in_the_place_it_was_sealed_for() {
        let with_key = sealer(&[("k1", 1)]);
        let sealed = with_key.seal(&BOUND, PLAIN).unwrap();
        assert_eq!(with_key.open(&BOUND, &sealed).unwrap().reveal(), PLAIN);
        let elsewhere: [&[&[u8]]; 7] = [
            &[b"acme", b"task", b"mail"],
            &[b"globex", b"task", b"jira"],
            &[b"acme", b"other", b"jira"],
            &[b"acm", b"etask", b"jira"],
            &[b"acme", b"task", b"jira", b""],
            &[b"acme", b"taskjira"],
            &[],
        ];
        for bound in elsewhere {
            assert_eq!(
                with_key.open(bound, &sealed).unwrap_err(),
                SealError::Broken,
                "{bound:?}"
            );
        }
        assert!(!format!("{with_key:?} {sealed:?}").contains(&sealed.text));
    }

    #[test]
    fn same_value_is_never_sealed_alike() {
        let with_key = sealer(&[("k1", 1)]);
        assert_ne!(with_key.seal(&BOUND, PLAIN), with_key.seal(&BOUND, PLAIN));
    }

    #[test]
    fn sealed_text_with_any_bit_changed_or_missing_does_not_open() {
        let with_key = sealer(&[("k1", 1)]);
        let sealed = with_key.seal(&BOUND, PLAIN).unwrap();
        let broken = |text: String| {
            let sealed = Sealed {
                text,
                ..sealed.clone()
            };
            assert_eq!(
                with_key.open(&BOUND, &sealed).unwrap_err(),
                SealError::Broken,
                "{}",
                sealed.text
            );
        };
        let bytes = BASE64_STANDARD.decode(&sealed.text).unwrap();
        assert_eq!(bytes.len(), NONCE + PLAIN.len() + 16);
        for place in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[place / 8] ^= 1 << (place % 8);
            broken(BASE64_STANDARD.encode(changed));
        }
        for place in 0..sealed.text.len() * 8 {
            let mut changed = sealed.text.clone().into_bytes();
            changed[place / 8] ^= 1 << (place % 8);
            if let Ok(changed) = String::from_utf8(changed) {
                broken(changed);
            }
        }
        for length in 0..sealed.text.len() {
            broken(sealed.text[..length].to_owned());
        }
        for length in 0..bytes.len() {
            broken(BASE64_STANDARD.encode(&bytes[..length]));
        }
        broken(format!("{}AAAA", sealed.text));
    }

    #[test]
    fn other_key_opens_nothing_even_under_the_same_id() {
        let sealed = sealer(&[("k1", 1)]).seal(&BOUND, PLAIN).unwrap();
        assert_eq!(
            sealer(&[("k1", 2)]).open(&BOUND, &sealed).unwrap_err(),
            SealError::Broken
        );
        let both = sealer(&[("k1", 1), ("k2", 1)]);
        let renamed = Sealed {
            key_id: "k2".to_owned(),
            ..sealed.clone()
        };
        assert_eq!(
            both.open(&BOUND, &renamed).unwrap_err(),
            SealError::Broken,
            "the id is bound, too"
        );
        assert!(both.open(&BOUND, &sealed).is_ok());
    }

    #[test]
    fn first_key_seals_all_keys_open_and_a_removed_key_opens_nothing() {
        let old = sealer(&[("k1", 1)]);
        let sealed = old.seal(&BOUND, PLAIN).unwrap();
        let rotated = sealer(&[("k2", 2), ("k1", 1)]);
        assert_eq!(rotated.open(&BOUND, &sealed).unwrap().reveal(), PLAIN);
        let anew = rotated.seal(&BOUND, PLAIN).unwrap();
        assert_eq!(anew.key_id, "k2");
        assert_eq!(old.open(&BOUND, &anew).unwrap_err(), SealError::UnknownKey);
        assert_eq!(
            sealer(&[("k2", 2)]).open(&BOUND, &sealed).unwrap_err(),
            SealError::UnknownKey
        );
        assert!(Sealer::new(Vec::new()).is_none());
    }

    #[test]
    fn body_is_recognized_by_the_form_it_was_kept_in() {
        let body = |sealer: Option<&Sealer>, bytes: &'static [u8]| {
            Body::new(Bytes::from_static(bytes), sealer)
        };
        let (old, rotated) = (sealer(&[("k1", 1)]), sealer(&[("k2", 2), ("k1", 1)]));
        let (bare, by_old, by_new) = (
            body(None, PLAIN).kept,
            body(Some(&old), PLAIN).kept,
            body(Some(&rotated), PLAIN).kept,
        );
        assert_eq!(bare.len(), 64);
        assert!(
            by_old.starts_with("k1:") && by_old.len() == 67 && by_new.starts_with("k2:"),
            "{by_old} {by_new}"
        );
        assert_ne!(by_old[3..], by_new[3..]);
        assert_ne!(by_old[3..], bare);
        let now = body(Some(&rotated), PLAIN);
        for kept in [&bare, &by_old, &by_new] {
            assert!(now.is_kept_as(kept), "{kept}");
            assert!(!body(Some(&rotated), b"{}").is_kept_as(kept), "{kept}");
        }
        assert!(
            !body(Some(&old), PLAIN).is_kept_as(&by_new),
            "its key is gone"
        );
        assert!(!body(None, PLAIN).is_kept_as(&by_old));
        for kept in ["", ":", "k1:", &by_old[..66], &by_old[3..]] {
            assert!(!now.is_kept_as(kept), "{kept}");
        }
        assert!(!format!("{now:?}").contains("hunter2"));
    }
}
