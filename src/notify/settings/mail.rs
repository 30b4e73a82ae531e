//! The settings of mail: the server, and the recipients of an entry.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use lettre::message::Mailbox;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use url::Url;

use crate::people::person::is_email;
use crate::secret::Secret;
use crate::world::Mistakes;

/// The mail server by which the service sends mails.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "MailServer", extend("required" = ["url", "from"]))]
pub struct MailServer {
    /// The URL of the server. With `smtps://host` (port 465) the connection begins with TLS. With
    /// `smtp://host` (port 587) the server must offer STARTTLS, except on loopback, where mails are
    /// sent without TLS.
    pub url: String,
    /// The user name for signing in at the server. Default: no sign-in.
    pub user: Option<String>,
    /// The password of `user`. Required if `user` is set.
    pub password: Option<Secret<String>>,
    /// The sender of the mails, such as `Holdpoint <holdpoint@acme.com>`. Answers and bounces go to
    /// this address.
    pub from: String,
}

/// The address of the mail server, and the encryption of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::notify) struct MailServerAddress {
    pub(in crate::notify) host: String,
    pub(in crate::notify) port: u16,
    pub(in crate::notify) security: Security,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::notify) enum Security {
    /// TLS from the first byte.
    Tls,
    /// TLS after STARTTLS. If the server does not offer STARTTLS, the session ends.
    StartTls,
    /// No encryption: the server is on this machine.
    Loopback,
}

impl MailServerAddress {
    /// Parses the URL of a mail server; `None` if the URL is not valid.
    pub(in crate::notify) fn parse(url: &str) -> Option<Self> {
        let url = Url::parse(url).ok()?;
        let host = url
            .host_str()?
            .trim_start_matches('[')
            .trim_end_matches(']');
        let ip = host.parse::<IpAddr>().ok();
        let is_host_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let is_valid = !host.is_empty()
            && (ip.is_some() || host.chars().all(is_host_char))
            && url.username().is_empty()
            && url.password().is_none()
            && matches!(url.path(), "" | "/")
            && url.query().is_none()
            && url.fragment().is_none();
        let is_local = ip.map_or(host.eq_ignore_ascii_case("localhost"), |ip| {
            ip.is_loopback()
        });
        let (security, port) = match url.scheme() {
            "smtps" => (Security::Tls, 465),
            "smtp" if is_local => (Security::Loopback, 587),
            "smtp" => (Security::StartTls, 587),
            _ => return None,
        };
        is_valid.then(|| Self {
            host: host.to_owned(),
            port: url.port().unwrap_or(port),
            security,
        })
    }
}

impl MailServer {
    /// Returns the sender; `None` if `from` is not a mail address.
    pub(in crate::notify) fn sender(&self) -> Option<Mailbox> {
        if self.from.chars().any(char::is_control) {
            return None;
        }
        let sender: Mailbox = self.from.parse().ok()?;
        is_email(sender.email.as_ref()).then_some(sender)
    }

    pub(super) fn check(&self, mistakes: &mut Mistakes) {
        let place = ["notify", "mail"];
        let at = |key: &'static str| [&place[..], &[key]].concat();
        if !self.url.is_empty() && MailServerAddress::parse(&self.url).is_none() {
            let detail = "expected an address such as `smtp://host:587` or `smtps://host`, without user, path or query";
            mistakes.add(&at("url"), detail);
        }
        if !self.from.is_empty() && self.sender().is_none() {
            let detail = "expected a mail address such as `Holdpoint <holdpoint@acme.com>`";
            mistakes.add(&at("from"), detail);
        }
        match (&self.user, &self.password) {
            (Some(_), None) => mistakes.add(&place, "`user` is set without `password`"),
            (None, Some(_)) => mistakes.add(&place, "`password` is set without `user`"),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }
}

/// Mails about questions. Each person gets their own mail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "MailTo")]
pub struct Mail {
    /// The people who get mails: `approvers` (default), or a map with `groups` and `users`. Of
    /// these people, only those who may decide a question get the mail about it.
    pub to: Recipients,
    /// Whether mails show the tools' summaries of the calls. The summaries contain arguments of the
    /// calls.
    pub summaries: bool,
}

/// The people who get the mails of an entry. Only those who may decide a question get the mail
/// about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Recipients {
    /// All people who may decide the question.
    #[default]
    Approvers,
    /// Only the people whom the entry names.
    Named(NamedRecipients),
}

/// The people whom an entry names: the members of these groups, and these users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "MailRecipients")]
pub struct NamedRecipients {
    /// The names of groups whose members get the mails.
    pub groups: Vec<String>,
    /// The ids of users who get the mails.
    pub users: Vec<String>,
}

const APPROVERS: &str = "approvers";

impl<'de> Deserialize<'de> for Recipients {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordOrMap;
        impl<'de> Visitor<'de> for WordOrMap {
            type Value = Recipients;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`approvers`, or a map with `groups` or `users`")
            }

            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Recipients, E> {
                if word == APPROVERS {
                    return Ok(Recipients::Approvers);
                }
                Err(E::invalid_value(Unexpected::Other("text"), &self))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Recipients, A::Error> {
                NamedRecipients::deserialize(MapAccessDeserializer::new(map)).map(Recipients::Named)
            }
        }
        deserializer.deserialize_any(WordOrMap)
    }
}

impl JsonSchema for Recipients {
    fn schema_name() -> Cow<'static, str> {
        "Recipients".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let map = generator.subschema_for::<NamedRecipients>();
        json_schema!({"anyOf": [{"const": APPROVERS}, map]})
    }
}
