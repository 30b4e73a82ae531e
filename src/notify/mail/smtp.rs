//! Sends mails in sessions with the mail server: connects, begins TLS, signs in, and sends a mail.
//! The next mail may use the same connection (`idle_connections.rs`). Invariants: without TLS, EHLO
//! and STARTTLS are the only commands to a server outside loopback. An attempt begins its mail on
//! one connection only: if this connection is lost, the attempt has failed, because the server may
//! have accepted the mail. A failure is reported in fixed words, never in the server's words.

use std::io;
use std::time::Duration;

use futures_util::future::join_all;
use lettre::address::Envelope;
use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{AsyncSmtpConnection, TlsParameters};
use lettre::transport::smtp::commands::{Data, Mail, Rcpt, Rset};
use lettre::transport::smtp::extension::ClientId;
use tokio::net::TcpStream;

use super::idle_connections::IdleConnections;
use super::line_stream::LineStream;
use crate::net::{connect_failure, io_kind};
use crate::notify::attempt_result::AttemptResult;
use crate::notify::settings::{MailServer, MailServerAddress, Security};
use crate::world::Clock;

/// The maximum duration of an attempt, from connecting to sending. The timeout of the crate
/// `lettre` limits only the connecting (lettre#1027).
pub(in crate::notify) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum wait for the answer to QUIT, or to RSET on a kept connection.
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);

const NO_TLS: &str = "no secure connection could be made (TLS)";
const NO_STARTTLS: &str = "the mail server does not offer STARTTLS, so nothing was sent";
const NO_ANSWER: &str = "the mail server did not answer in time";
pub(in super::super) const BUSY: &str = "the mail server asks to try again later (4xx)";
const REFUSED: &str = "the mail server refuses the mail (5xx)";
const NO_SESSION: &str = "the mail server refuses the session (5xx)";
const NO_SIGN_IN: &str = "the mail server refuses the user or password (5xx)";
const NO_USABLE_SIGN_IN: &str =
    "the mail server offers no sign-in that the service can use (PLAIN, LOGIN)";
const CONNECTION_LOST: &str = "the connection to the mail server was lost";

/// The reply codes with which a server rejects the session, not the mail (RFC 4954, section 6).
const SESSION_REPLY_CODES: [&str; 4] = ["530", "534", "535", "538"];

pub(super) struct SmtpServer {
    address: MailServerAddress,
    /// The parameters of TLS. `None` if the server is on loopback, or if TLS cannot be set up on
    /// this machine. In the second case, each attempt fails.
    tls: Option<TlsParameters>,
    credentials: Option<Credentials>,
    ehlo_name: ClientId,
    idle: IdleConnections,
}

impl SmtpServer {
    /// Returns the server of these settings; `None` if the settings have mistakes. The service
    /// names itself `sender_domain` in EHLO.
    pub(super) fn from_settings(settings: &MailServer, sender_domain: &str) -> Option<Self> {
        let address = MailServerAddress::parse(&settings.url)?;
        let tls = match address.security {
            Security::Loopback => None,
            Security::Tls | Security::StartTls => TlsParameters::new(address.host.clone()).ok(),
        };
        let credentials = settings.user.clone().zip(settings.password.as_ref());
        Some(Self {
            address,
            tls,
            credentials: credentials
                .map(|(user, password)| Credentials::new(user, password.reveal().clone())),
            ehlo_name: ClientId::Domain(sender_domain.to_owned()),
            idle: IdleConnections::default(),
        })
    }

    pub(super) async fn send(
        &self,
        clock: &dyn Clock,
        envelope: &Envelope,
        mail: &[u8],
    ) -> AttemptResult {
        let session = async {
            let mut connection = self.ready_connection(clock).await?;
            let sent = transmit(&mut connection, envelope, mail).await;
            Ok::<_, &str>((connection, sent))
        };
        let ended = tokio::select! {
            ended = session => ended,
            () = clock.sleep(ATTEMPT_TIMEOUT) => Err(NO_ANSWER),
        };
        match ended {
            Ok((connection, Ok(()))) => {
                self.idle.keep(connection, clock.uptime());
                AttemptResult::success()
            }
            Ok((connection, Err(error))) => {
                quit(clock, connection).await;
                failure_result(&error)
            }
            Err(problem) => AttemptResult::without_status(problem),
        }
    }

    /// Closes the kept connections that no mail has used for some seconds.
    pub(super) async fn close_idle(&self, clock: &dyn Clock) {
        quit_all(clock, self.idle.take_expired(clock.uptime())).await;
    }

    /// Closes all kept connections.
    pub(super) async fn close_all(&self, clock: &dyn Clock) {
        quit_all(clock, self.idle.take_all()).await;
    }

    /// Returns a kept connection that still works, or a new connection.
    async fn ready_connection(
        &self,
        clock: &dyn Clock,
    ) -> Result<AsyncSmtpConnection, &'static str> {
        if let Some(mut kept) = self.idle.take(clock.uptime())
            && still_works(clock, &mut kept).await
        {
            return Ok(kept);
        }
        self.open().await
    }

    async fn open(&self) -> Result<AsyncSmtpConnection, &'static str> {
        let (host, port) = (self.address.host.as_str(), self.address.port);
        let mut connection = match (self.address.security, &self.tls) {
            (Security::Tls, Some(tls)) => {
                let (ehlo_name, tls) = (&self.ehlo_name, Some(tls.clone()));
                AsyncSmtpConnection::connect_tokio1(
                    (host, port),
                    Some(ATTEMPT_TIMEOUT),
                    ehlo_name,
                    tls,
                    None,
                )
                .await
                .map_err(|error| open_problem(&error))?
            }
            (Security::StartTls, Some(tls)) => {
                let mut connection = self.connect_plain(host, port).await?;
                if !connection.can_starttls() {
                    return Err(NO_STARTTLS);
                }
                let secured = connection.starttls(tls.clone(), &self.ehlo_name).await;
                secured.map_err(|error| open_problem(&error))?;
                connection
            }
            (Security::Loopback, _) => self.connect_plain(host, port).await?,
            (Security::Tls | Security::StartTls, None) => return Err(NO_TLS),
        };
        if let Some(credentials) = &self.credentials {
            let mechanisms = [Mechanism::Plain, Mechanism::Login];
            let signed_in = connection.auth(&mechanisms, credentials).await;
            signed_in.map_err(|error| {
                if error.is_permanent() {
                    NO_SIGN_IN
                } else if error.is_client() {
                    NO_USABLE_SIGN_IN
                } else {
                    open_problem(&error)
                }
            })?;
        }
        Ok(connection)
    }

    async fn connect_plain(
        &self,
        host: &str,
        port: u16,
    ) -> Result<AsyncSmtpConnection, &'static str> {
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream.map_err(|error| connect_failure(Some(error.kind())))?;
        AsyncSmtpConnection::connect_with_transport(
            Box::new(LineStream::new(stream)),
            &self.ehlo_name,
        )
        .await
        .map_err(|error| open_problem(&error))
    }
}

/// Sends a mail whose addresses and text are ASCII. `AsyncSmtpConnection::send` would send QUIT
/// after a refusal and wait for the answer without a limit, so a refusal by a server that then
/// stays silent would be lost.
async fn transmit(
    connection: &mut AsyncSmtpConnection,
    envelope: &Envelope,
    mail: &[u8],
) -> Result<(), Error> {
    let sender = Mail::new(envelope.from().cloned(), Vec::new());
    connection.command(sender).await?;
    for recipient in envelope.to() {
        let recipient = Rcpt::new(recipient.clone(), Vec::new());
        connection.command(recipient).await?;
    }
    connection.command(Data).await?;
    connection.message(mail).await?;
    Ok(())
}

/// Whether the server still answers on a kept connection, which the server may have closed. Sends
/// RSET and not NOOP, because some servers limit the NOOPs of a session but permit a RSET before
/// each mail. No mail has begun, so RSET discards nothing.
async fn still_works(clock: &dyn Clock, connection: &mut AsyncSmtpConnection) -> bool {
    tokio::select! {
        answer = connection.command(Rset) => answer.is_ok(),
        () = clock.sleep(SHORT_TIMEOUT) => false,
    }
}

async fn quit_all(clock: &dyn Clock, connections: Vec<AsyncSmtpConnection>) {
    let quits = connections
        .into_iter()
        .map(|connection| quit(clock, connection));
    join_all(quits).await;
}

/// Sends QUIT. The server's earlier answers to mails count, whatever the server answers to QUIT.
async fn quit(clock: &dyn Clock, mut connection: AsyncSmtpConnection) {
    tokio::select! {
        _ = connection.quit() => {}
        () = clock.sleep(SHORT_TIMEOUT) => {}
    }
}

/// Returns the reason why no session could be opened. The mail itself was not refused, so the
/// delivery is tried again.
fn open_problem(error: &Error) -> &'static str {
    if error.is_tls() {
        NO_TLS
    } else if error.is_transient() {
        BUSY
    } else if error.is_permanent() {
        NO_SESSION
    } else {
        match io_kind(error) {
            Some(io::ErrorKind::InvalidData) => NO_TLS,
            Some(kind @ io::ErrorKind::ConnectionRefused) => connect_failure(Some(kind)),
            _ => CONNECTION_LOST,
        }
    }
}

/// Returns the result of an attempt whose mail the server did not accept.
fn failure_result(error: &Error) -> AttemptResult {
    if error.is_permanent() {
        let code = error.status().map(|code| code.to_string());
        if code.is_some_and(|code| SESSION_REPLY_CODES.contains(&code.as_str())) {
            return AttemptResult::without_status(NO_SIGN_IN);
        }
        return AttemptResult {
            is_permanent_failure: true,
            ..AttemptResult::without_status(REFUSED)
        };
    }
    AttemptResult::without_status(if error.is_transient() {
        BUSY
    } else {
        CONNECTION_LOST
    })
}
