//! The TLS settings of all outbound HTTP.

use std::sync::{Arc, LazyLock};

use hyper_rustls::ConfigBuilderExt as _;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, RootCertStore};

use super::NetError;

/// The settings of this process; `None` if TLS cannot be set up. All clients share them, because
/// reading the machine's certificates takes tens of milliseconds.
static TLS: LazyLock<Option<Tls>> = LazyLock::new(Tls::of_this_machine);

pub(super) struct Tls {
    /// The client configuration, without ALPN protocols. Each kind of client adds the protocols
    /// that it speaks.
    pub(super) config: ClientConfig,
    /// Whether the machine has trusted certificates. Without them, no server is trusted.
    pub(super) has_roots: bool,
}

impl Tls {
    /// Returns the settings of this process.
    ///
    /// # Errors
    /// Fails if TLS cannot be set up.
    pub(super) fn shared() -> Result<&'static Self, NetError> {
        TLS.as_ref().ok_or(NetError)
    }

    fn of_this_machine() -> Option<Self> {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .ok()?;
        let verified = builder.clone().try_with_platform_verifier().ok();
        let has_roots = verified.is_some();
        let builder =
            verified.unwrap_or_else(|| builder.with_root_certificates(RootCertStore::empty()));
        Some(Self {
            config: builder.with_no_client_auth(),
            has_roots,
        })
    }
}
