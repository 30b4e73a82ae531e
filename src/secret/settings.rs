//! The settings of sealing.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;

use super::Secret;
use super::seal::Sealer;

/// The sealing of credentials that the database keeps.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Secrets")]
pub struct Settings {
    /// The keys. The first key seals new values, and every key opens the values that it has sealed.
    pub keys: Vec<SealingKey>,
}

/// A key that seals credentials and opens them again.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["id", "key"]))]
pub struct SealingKey {
    /// The name of the key, stored beside each credential that it sealed.
    pub id: String,
    /// The key: 32 bytes in base64, as `openssl rand -base64 32` writes them.
    pub key: Secret<String>,
}

impl SealingKey {
    /// Decodes the key; `None` if it is not the base64 of 32 bytes.
    #[must_use]
    pub fn bytes(&self) -> Option<Secret<[u8; 32]>> {
        let bytes = BASE64_STANDARD.decode(self.key.reveal().trim()).ok()?;
        bytes.try_into().ok().map(Secret::new)
    }
}

impl Settings {
    /// Creates the sealer with all keys that decode to 32 bytes; `None` if there is no such key.
    #[must_use]
    pub fn sealer(&self) -> Option<Sealer> {
        let keys = self.keys.iter();
        Sealer::new(
            keys.filter_map(|key| Some((key.id.clone(), key.bytes()?)))
                .collect(),
        )
    }
}
