//! Sends mails to people through the mail server: digests, which list questions, and test mails
//! (`ping`).

mod compose;
mod idle_connections;
mod line_stream;
mod smtp;
mod texts;

use lettre::message::Mailbox;
use lettre::{Address, Message};

use self::compose::MailHead;
use self::smtp::SmtpServer;
pub(super) use self::smtp::{ATTEMPT_TIMEOUT, BUSY};
use super::attempt_result::AttemptResult;
use super::digest::Digest;
use super::settings::MailServer;
use crate::people::language::Language;
use crate::people::person::Person;
use crate::world::Clock;

pub(super) struct Mailer {
    server: SmtpServer,
    from: Mailbox,
    /// The domain of the sender's address, which is a part of each mail's id.
    domain: String,
}

impl Mailer {
    /// Returns the mailer of these settings; `None` if the settings have mistakes.
    pub(super) fn from_settings(settings: &MailServer) -> Option<Self> {
        let from = settings.sender()?;
        let domain = from.email.domain().to_owned();
        Some(Self {
            server: SmtpServer::from_settings(settings, &domain)?,
            from,
            domain,
        })
    }

    /// Sends a digest to a person. `id` is the mail's id, which a retry with the same deliveries
    /// must repeat.
    pub(super) async fn send(
        &self,
        clock: &dyn Clock,
        person: &Person,
        id: &str,
        digest: &Digest,
    ) -> AttemptResult {
        let head = address(person).map(|to| self.head(clock, to, person.language, id));
        let mail = head.and_then(|head| compose::mail(&head, digest));
        self.send_message(clock, mail).await
    }

    /// Closes the connections to the mail server that no mail has used for some seconds.
    pub(super) async fn close_idle(&self, clock: &dyn Clock) {
        self.server.close_idle(clock).await;
    }

    /// Closes the connections to the mail server that no mail uses now.
    pub(super) async fn close_all(&self, clock: &dyn Clock) {
        self.server.close_all(clock).await;
    }

    /// Sends a test mail to each of these people, or to the sender's own address if `people` is
    /// empty. Stops at the first failure. Leaves no connection to the mail server open.
    pub(super) async fn ping(
        &self,
        clock: &dyn Clock,
        people: &[&Person],
        id: &str,
    ) -> AttemptResult {
        let result = self.send_pings(clock, people, id).await;
        self.close_all(clock).await;
        result
    }

    async fn send_pings(&self, clock: &dyn Clock, people: &[&Person], id: &str) -> AttemptResult {
        if people.is_empty() {
            let to = Mailbox::new(None, self.from.email.clone());
            let mail = compose::ping(self.head(clock, to, Language::default(), id));
            return self.send_message(clock, mail).await;
        }
        for (number, person) in people.iter().enumerate() {
            let Some(to) = address(person) else { continue };
            let id = format!("{id}_{number}");
            let mail = compose::ping(self.head(clock, to, person.language, &id));
            let result = self.send_message(clock, mail).await;
            if !result.is_success() {
                return result;
            }
        }
        AttemptResult::success()
    }

    fn head<'h>(
        &'h self,
        clock: &dyn Clock,
        to: Mailbox,
        language: Language,
        id: &'h str,
    ) -> MailHead<'h> {
        MailHead {
            from: &self.from,
            to,
            language,
            id,
            domain: &self.domain,
            now: clock.now(),
        }
    }

    async fn send_message(&self, clock: &dyn Clock, mail: Option<Message>) -> AttemptResult {
        let Some(mail) = mail else {
            return AttemptResult {
                is_permanent_failure: true,
                ..AttemptResult::without_status("the mail could not be built")
            };
        };
        let text = mail.formatted();
        self.server.send(clock, mail.envelope(), &text).await
    }
}

fn address(person: &Person) -> Option<Mailbox> {
    let email: Address = person.email.as_ref()?.parse().ok()?;
    Some(Mailbox::new(None, email))
}
