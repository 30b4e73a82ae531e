//! Signs messages by Standard Webhooks 1.0: HMAC-SHA-256 over the id, the time and the body. Each
//! secret of the receiver makes one signature.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::secret::Secret;

const PREFIX: &str = "whsec_";
const MIN_SECRET_BYTES: usize = 24;

/// A secret that is ready to sign messages.
#[derive(Clone)]
pub(super) struct SigningKey(Hmac<Sha256>);

/// Parses a secret.
///
/// # Errors
/// Fails if the secret does not have the expected form. The error describes the expected form and
/// does not contain the secret.
pub(super) fn parse_key(secret: &Secret<String>) -> Result<SigningKey, &'static str> {
    const EXPECTED: &str = "expected `whsec_` and the base64 of 24 bytes or more: \
         `echo \"whsec_$(openssl rand -base64 32)\"` makes a secret";
    let text = secret.reveal().strip_prefix(PREFIX).ok_or(EXPECTED)?;
    let bytes = BASE64_STANDARD.decode(text).map_err(|_| EXPECTED)?;
    if bytes.len() < MIN_SECRET_BYTES {
        return Err(EXPECTED);
    }
    Hmac::new_from_slice(&bytes)
        .map(SigningKey)
        .map_err(|_| EXPECTED)
}

/// Returns the value of the header `webhook-signature`: a signature for each key, in the order of
/// `keys`.
pub(super) fn signatures(keys: &[SigningKey], id: &str, seconds: i64, body: &[u8]) -> String {
    let signature = |key: &SigningKey| {
        let mut mac = key.0.clone();
        mac.update(format!("{id}.{seconds}.").as_bytes());
        mac.update(body);
        format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
    };
    keys.iter().map(signature).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<SigningKey, &'static str> {
        parse_key(&Secret::new(text.to_owned()))
    }

    #[test]
    fn signature_is_that_of_the_standards_example() {
        // The libraries of Standard Webhooks test their signatures with these values.
        let key = of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = signatures(
            std::slice::from_ref(&key),
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let other = of("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").unwrap();
        let both = signatures(
            &[other, key],
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert!(both.ends_with(&format!(" {signed}")) && both.matches("v1,").count() == 2);
    }

    #[test]
    fn secret_is_whsec_and_the_base64_of_24_bytes_or_more() {
        let bytes = |count: usize| BASE64_STANDARD.encode(vec![7; count]);
        assert!(of(&format!("whsec_{}", bytes(24))).is_ok());
        assert!(of(&format!("whsec_{}", bytes(64))).is_ok());
        for wrong in [
            format!("whsec_{}", bytes(23)),
            bytes(32),
            format!("whsec_{}!", bytes(24)),
            "whsec_".to_owned(),
            String::new(),
        ] {
            assert!(of(&wrong).is_err());
        }
    }
}
