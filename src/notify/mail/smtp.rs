//! One session with the mail server: connects, begins TLS, signs in, and sends one mail. Invariant:
//! without TLS, a server that is not on loopback gets only EHLO and STARTTLS. A failure is reported
//! in fixed words, never in those of the server.

use std::io;
use std::time::Duration;

use lettre::address::Envelope;
use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{AsyncSmtpConnection, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use tokio::net::TcpStream;

use super::by_line::ByLine;
use crate::net::{io_kind, unreached};
use crate::notify::answer::Answer;
use crate::notify::settings::{MailServer, Relay, Security};
use crate::world::Clock;

/// The maximum duration of an attempt. lettre's own timeout covers only connecting (lettre#1027),
/// so this one covers connecting and sending.
pub(in crate::notify) const WITHIN: Duration = Duration::from_secs(20);
/// The maximum time to wait for the answer to QUIT after the server has accepted the mail.
const FAREWELL: Duration = Duration::from_secs(1);

const NO_TLS: &str = "no secure connection could be made (TLS)";
const NOT_OFFERED: &str = "the mail server does not offer STARTTLS, so nothing was sent";
const IN_TIME: &str = "the mail server did not answer in time";
const BUSY: &str = "the mail server asks to try again later (4xx)";
const REFUSED: &str = "the mail server refuses the mail (5xx)";
const NO_SESSION: &str = "the mail server refuses the session (5xx)";
const NO_SIGN_IN: &str = "the mail server refuses the user or password (5xx)";
const CUT_OFF: &str = "the connection to the mail server was lost";

/// Reply codes about the session and not the mail (RFC 4954, section 6).
const OF_THE_SESSION: [&str; 4] = ["530", "534", "535", "538"];

/// The mail server with everything that a session needs.
pub(super) struct Server {
    relay: Relay,
    /// The parameters of TLS; `None` if TLS is not needed or cannot be set up.
    tls: Option<TlsParameters>,
    credentials: Option<Credentials>,
    /// The name that the service gives itself in EHLO.
    hello: ClientId,
}

impl Server {
    /// Returns the server of these settings; `None` if they have mistakes. `own` is the domain of
    /// the sender.
    pub(super) fn of(settings: &MailServer, own: &str) -> Option<Self> {
        let relay = Relay::of(&settings.url)?;
        let tls = match relay.security {
            Security::Loopback => None,
            Security::Tls | Security::StartTls => TlsParameters::new(relay.host.clone()).ok(),
        };
        let credentials = settings.user.clone().zip(settings.password.as_ref());
        Some(Self {
            relay,
            tls,
            credentials: credentials
                .map(|(user, password)| Credentials::new(user, password.reveal().clone())),
            hello: ClientId::Domain(own.to_owned()),
        })
    }

    /// Opens a session and sends one mail in it.
    pub(super) async fn send(&self, clock: &dyn Clock, envelope: &Envelope, mail: &[u8]) -> Answer {
        let conversation = async {
            let mut connection = self.open().await.map_err(Answer::none)?;
            match connection.send(envelope, mail).await {
                Ok(_) => Ok(connection),
                Err(error) => Err(refusal(&error)),
            }
        };
        tokio::select! {
            said = conversation => match said {
                Ok(connection) => {
                    farewell(clock, connection).await;
                    Answer::taken()
                }
                Err(answer) => answer,
            },
            () = clock.sleep(WITHIN) => Answer::none(IN_TIME),
        }
    }

    /// Opens a session that is ready for a mail.
    async fn open(&self) -> Result<AsyncSmtpConnection, &'static str> {
        let (host, port) = (self.relay.host.as_str(), self.relay.port);
        let mut connection = match (self.relay.security, &self.tls) {
            (Security::Tls, Some(tls)) => {
                let (hello, tls) = (&self.hello, Some(tls.clone()));
                AsyncSmtpConnection::connect_tokio1((host, port), Some(WITHIN), hello, tls, None)
                    .await
                    .map_err(|error| unopened(&error))?
            }
            (Security::StartTls, Some(tls)) => {
                let mut connection = self.plain(host, port).await?;
                if !connection.can_starttls() {
                    return Err(NOT_OFFERED);
                }
                let secured = connection.starttls(tls.clone(), &self.hello).await;
                secured.map_err(|error| unopened(&error))?;
                connection
            }
            (Security::Loopback, _) => self.plain(host, port).await?,
            (Security::Tls | Security::StartTls, None) => return Err(NO_TLS),
        };
        if let Some(credentials) = &self.credentials {
            let mechanisms = [Mechanism::Plain, Mechanism::Login];
            let signed_in = connection.auth(&mechanisms, credentials).await;
            signed_in.map_err(|error| {
                if error.is_permanent() {
                    NO_SIGN_IN
                } else {
                    unopened(&error)
                }
            })?;
        }
        Ok(connection)
    }

    async fn plain(&self, host: &str, port: u16) -> Result<AsyncSmtpConnection, &'static str> {
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream.map_err(|error| unreached(Some(error.kind())))?;
        AsyncSmtpConnection::connect_with_transport(Box::new(ByLine::new(stream)), &self.hello)
            .await
            .map_err(|error| unopened(&error))
    }
}

/// Sends QUIT after the mail was accepted. The mail counts as sent whatever the server answers.
async fn farewell(clock: &dyn Clock, mut connection: AsyncSmtpConnection) {
    tokio::select! {
        _ = connection.quit() => {}
        () = clock.sleep(FAREWELL) => {}
    }
}

/// Returns the reason why no session could be opened. The delivery is tried again, because the
/// failure is not about the mail itself.
fn unopened(error: &Error) -> &'static str {
    if error.is_tls() {
        NO_TLS
    } else if error.is_transient() {
        BUSY
    } else if error.is_permanent() {
        NO_SESSION
    } else {
        match io_kind(error) {
            Some(io::ErrorKind::InvalidData) => NO_TLS,
            Some(kind @ io::ErrorKind::ConnectionRefused) => unreached(Some(kind)),
            _ => CUT_OFF,
        }
    }
}

/// Returns the result of an attempt whose mail the server did not accept.
fn refusal(error: &Error) -> Answer {
    if error.is_permanent() {
        let code = error.status().map(|code| code.to_string());
        if code.is_some_and(|code| OF_THE_SESSION.contains(&code.as_str())) {
            return Answer::none(NO_SIGN_IN);
        }
        return Answer {
            unwanted: true,
            ..Answer::none(REFUSED)
        };
    }
    Answer::none(if error.is_transient() { BUSY } else { CUT_OFF })
}
