//! Keeps connections to the mail server open between mails that follow each other, so that not
//! every mail begins with TLS and a sign-in. Invariant: a connection is kept only after the server
//! has accepted a mail on it, so the connection is signed in, and no answer is outstanding.

use std::time::Duration;

use lettre::transport::smtp::client::AsyncSmtpConnection;

use crate::world::Locked;

/// The time for which a connection is kept without a mail. Mail servers usually wait longer before
/// they close such a connection.
const MAX_IDLE_TIME: Duration = Duration::from_secs(5);

/// The connections that no mail uses now, the most recently used last.
#[derive(Default)]
pub(super) struct IdleConnections(Locked<Vec<IdleConnection>>);

struct IdleConnection {
    connection: AsyncSmtpConnection,
    /// The end of the last mail, by `Clock::uptime`.
    since: Duration,
}

impl IdleConnection {
    fn is_expired(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= MAX_IDLE_TIME
    }
}

impl IdleConnections {
    /// Keeps a connection on which a mail was accepted. `now` is the uptime. The slots for attempts
    /// bound the number of connections.
    pub(super) fn keep(&self, connection: AsyncSmtpConnection, now: Duration) {
        self.0.lock().push(IdleConnection {
            connection,
            since: now,
        });
    }

    /// Takes the most recently used connection, unless it is idle for too long at the uptime `now`.
    /// The server may have closed the connection.
    pub(super) fn take(&self, now: Duration) -> Option<AsyncSmtpConnection> {
        let idle = self.0.lock().pop_if(|idle| !idle.is_expired(now));
        idle.map(|idle| idle.connection)
    }

    /// Takes the connections that are idle for too long at the uptime `now`.
    pub(super) fn take_expired(&self, now: Duration) -> Vec<AsyncSmtpConnection> {
        let mut all = self.0.lock();
        let expired = all.extract_if(.., |idle| idle.is_expired(now));
        expired.map(|idle| idle.connection).collect()
    }

    pub(super) fn take_all(&self) -> Vec<AsyncSmtpConnection> {
        let all = std::mem::take(&mut *self.0.lock());
        all.into_iter().map(|idle| idle.connection).collect()
    }
}
