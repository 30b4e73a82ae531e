//! A TLS endpoint on loopback that forwards all bytes to a plain endpoint. `tls/` holds the
//! endpoint's certificate for `localhost`, the authority that signed it, and another authority. All
//! certificates are valid until 2126.

use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The certificate of the authority that signed the endpoint's certificate, as PEM.
pub const AUTHORITY: &str = include_str!("tls/authority.pem");
/// The certificate of an authority that signed nothing, as PEM.
pub const OTHER_AUTHORITY: &str = include_str!("tls/other_authority.pem");

/// Serves TLS in front of the plain endpoint at this `http://` address. Returns the `https://`
/// address.
#[expect(clippy::disallowed_methods, reason = "the fake endpoint of a test")]
pub async fn serve(plain: &str) -> String {
    let chain = CertificateDer::from_pem_slice(include_bytes!("tls/localhost.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("tls/localhost.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "https://localhost:{}",
        listener.local_addr().unwrap().port()
    );
    let plain = plain.strip_prefix("http://").unwrap().to_owned();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (acceptor, plain) = (acceptor.clone(), plain.clone());
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(client).await else {
                    return;
                };
                let mut server = TcpStream::connect(plain).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    url
}
