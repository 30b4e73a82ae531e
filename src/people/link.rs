//! The links in messages to people. A link gives one person the right to one request. The link
//! contains the person, the request and the time at which the link ends, and can be read only with
//! the sealing key. No table stores links. Invariant: every text that is not a valid link is
//! refused in the same way, whatever is wrong with the text.

use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use uuid::Uuid;

use super::person::Person;
use crate::secret::seal::Sealer;
use crate::task::id::RequestId;
use crate::task::time::Time;
use crate::task::units::{TextVisitor, duration_text};

/// The links in messages that lead to a request. They are sealed: only the service can make and
/// read them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Links")]
pub struct LinkSettings {
    /// The right that a link gives its person: `open` to read the request, `decide` also to approve
    /// or reject an approval and to answer guidance or a confirmation. The rule must accept answers
    /// by links (`approvers.links`), and a person who has keys needs one that may `decide`. No link
    /// changes a call, or gives a login or a result.
    pub may: LinkRight,
    /// The time for which a link works, whatever becomes of its request. After the deadline of the
    /// request, the link shows that no answer came in time, and accepts none.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub expires_in: Duration,
    /// A link that was made before this time no longer works. A time such as
    /// `2026-11-22T09:00:00Z`. Default: every link works until its end.
    #[serde(deserialize_with = "optional_moment")]
    #[schemars(schema_with = "moment_schema")]
    pub not_before: Option<Time>,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            may: LinkRight::default(),
            expires_in: Duration::from_hours(72),
            not_before: None,
        }
    }
}

/// The right that a link gives its person.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LinkRight {
    /// The person may read the request. To decide the request, the person signs in.
    #[default]
    Open,
    /// The person may decide the request, if its rule accepts answers by links.
    Decide,
}

fn moment_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}

fn optional_moment<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Time>, D::Error> {
    #[derive(Deserialize)]
    struct Wrap(#[serde(deserialize_with = "moment")] Time);
    Ok(Option::<Wrap>::deserialize(from)?.map(|Wrap(time)| time))
}

fn moment<'de, D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
    from.deserialize_str(TextVisitor {
        expecting: "a time such as `2026-11-22T09:00:00Z`",
        parse: |text| Time::parse(text).ok_or(None),
    })
}

/// The contents that are sealed in a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The tenant of the person and of the request.
    pub tenant: String,
    /// The person's id, as it was spelled when the link was made.
    pub user: String,
    pub request_id: RequestId,
    /// The time at which the link was made, by the clock of the machine.
    pub made_at: Time,
    /// The time from which the link no longer works, by the clock of the machine.
    pub expires_at: Time,
    /// The delivery whose message contains the link.
    pub delivery_id: Uuid,
}

/// Makes and reads links. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Links {
    sealer: Sealer,
    /// The beginning of every link: the public URL and the path `/l/`.
    base: String,
    settings: LinkSettings,
}

/// The version of the format of a link's contents. It is the first byte of the contents.
const VERSION: u8 = 1;

impl Links {
    /// Creates a `Links` with these settings. `public_url` is the service's public URL, without a
    /// slash at its end.
    #[must_use]
    pub fn new(settings: LinkSettings, sealer: Sealer, public_url: &str) -> Self {
        Self {
            sealer,
            base: format!("{public_url}/l/"),
            settings,
        }
    }

    /// Returns the URL of a new link for the message of a delivery. The link gives `person` the
    /// right to a request. `deadline` is the request's deadline, if any; `now` is the time by the
    /// clock of the machine. Returns `None` if the deadline has passed, or the link cannot be
    /// sealed. The link outlasts the deadline, so that the person can read what became of the
    /// request. The request itself refuses an answer after its deadline.
    #[must_use]
    pub fn url(
        &self,
        person: &Person,
        request_id: RequestId,
        deadline: Option<Time>,
        now: Time,
        delivery_id: Uuid,
    ) -> Option<String> {
        if deadline.is_some_and(|deadline| deadline <= now) {
            return None;
        }
        let link = Link {
            tenant: person.tenant.clone(),
            user: person.user.clone(),
            request_id,
            made_at: now,
            expires_at: now + self.settings.expires_in,
            delivery_id,
        };
        let token = self.sealer.seal_link(&link.bytes()?).ok()?;
        Some(format!("{}{token}", self.base))
    }

    /// Returns the contents of a link's token. Returns `None` if the token was changed or cut off,
    /// or was sealed with a key that is not configured. Does not check whether the link has ended
    /// (see [`Links::has_ended`]).
    #[must_use]
    pub fn open(&self, token: &str) -> Option<Link> {
        let opened = self.sealer.open_link(token).ok()?;
        Link::read(opened.reveal())
    }

    /// Whether a link has ended at `now`, or was made before the configured `not_before`. `now` is
    /// the time by the clock of the machine, as are the times in the link. This function does not
    /// check the request's deadline, which runs by the clock of the database.
    #[must_use]
    pub fn has_ended(&self, link: &Link, now: Time) -> bool {
        let not_before = self.settings.not_before;
        link.expires_at <= now || not_before.is_some_and(|time| link.made_at < time)
    }
}

impl Link {
    /// Encodes the contents. `None` if the length of the tenant's name does not fit two bytes.
    fn bytes(&self) -> Option<Vec<u8>> {
        let tenant = u16::try_from(self.tenant.len()).ok()?;
        let mut bytes = vec![VERSION];
        bytes.extend(self.made_at.0.to_be_bytes());
        bytes.extend(self.expires_at.0.to_be_bytes());
        bytes.extend(self.request_id.0.as_bytes());
        bytes.extend(self.delivery_id.as_bytes());
        bytes.extend(tenant.to_be_bytes());
        bytes.extend(self.tenant.as_bytes());
        bytes.extend(self.user.as_bytes());
        Some(bytes)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        fn take<'b, const N: usize>(rest: &mut &'b [u8]) -> Option<&'b [u8; N]> {
            let (first, after) = rest.split_first_chunk()?;
            *rest = after;
            Some(first)
        }
        let mut rest = bytes;
        let [VERSION] = take(&mut rest)? else {
            return None;
        };
        let made_at = Time(i64::from_be_bytes(*take(&mut rest)?));
        let expires_at = Time(i64::from_be_bytes(*take(&mut rest)?));
        let request_id = RequestId(Uuid::from_bytes(*take(&mut rest)?));
        let delivery_id = Uuid::from_bytes(*take(&mut rest)?);
        let tenant = usize::from(u16::from_be_bytes(*take(&mut rest)?));
        let (tenant, user) = rest.split_at_checked(tenant)?;
        Some(Self {
            tenant: str::from_utf8(tenant).ok()?.to_owned(),
            user: str::from_utf8(user).ok()?.to_owned(),
            request_id,
            made_at,
            expires_at,
            delivery_id,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::people::language::Language;
    use crate::secret::Secret;

    fn links(settings: LinkSettings) -> Links {
        let keys = vec![("k1".to_owned(), Secret::new([1; 32]))];
        Links::new(settings, Sealer::new(keys).unwrap(), "https://h/agents")
    }

    fn bob() -> Person {
        Person {
            user: "bob".to_owned(),
            tenant: "acme".to_owned(),
            groups: Vec::new(),
            email: None,
            language: Language::English,
        }
    }

    const NOW: Time = Time(1_795_338_000_000_000);
    const REQUEST: RequestId = RequestId(Uuid::from_u128(7));
    const DELIVERY: Uuid = Uuid::from_u128(9);

    fn url(links: &Links, deadline: Option<Time>) -> Option<String> {
        links.url(&bob(), REQUEST, deadline, NOW, DELIVERY)
    }

    fn token(links: &Links, deadline: Option<Time>) -> String {
        let url = url(links, deadline).unwrap();
        url.strip_prefix("https://h/agents/l/").unwrap().to_owned()
    }

    #[test]
    fn link_opens_with_its_sealed_contents_and_does_not_show_them() {
        let links = links(LinkSettings::default());
        // The test asserts that the token does not contain the user id. The id is long, because the
        // characters of a token are random: an id of three letters would appear in the token by
        // chance once in a few thousand runs.
        let person = Person {
            user: "bobjameson1".to_owned(),
            ..bob()
        };
        let url = || links.url(&person, REQUEST, None, NOW, DELIVERY).unwrap();
        let first = url();
        let token = first.strip_prefix("https://h/agents/l/").unwrap();
        let link = links.open(token).unwrap();
        let expected = Link {
            tenant: "acme".to_owned(),
            user: person.user.clone(),
            request_id: REQUEST,
            made_at: NOW,
            expires_at: NOW + Duration::from_hours(72),
            delivery_id: DELIVERY,
        };
        assert_eq!(link, expected);
        assert!(
            token.len() < 200 && !token.contains("bobjameson1"),
            "{token}"
        );
        assert!(!url().ends_with(token), "each link is sealed anew");
    }

    #[test]
    fn link_ends_with_its_time_whatever_the_requests_deadline() {
        let short = LinkSettings {
            expires_in: Duration::from_hours(1),
            ..LinkSettings::default()
        };
        for (settings, deadline, hours) in [
            (LinkSettings::default(), None, 72),
            (LinkSettings::default(), Some(2), 72),
            (LinkSettings::default(), Some(100), 72),
            (short.clone(), Some(2), 1),
            (short, None, 1),
        ] {
            let links = links(settings);
            let deadline = deadline.map(|hours| NOW + Duration::from_hours(hours));
            let token = token(&links, deadline);
            let end = NOW + Duration::from_hours(hours);
            let link = links.open(&token).unwrap();
            assert!(!links.has_ended(&link, Time(end.0 - 1)), "{hours}");
            assert!(links.has_ended(&link, end), "{hours}");
        }
    }

    #[test]
    fn request_whose_deadline_has_passed_gets_no_link() {
        let links = links(LinkSettings::default());
        for passed in [Time(NOW.0 - 1), NOW] {
            assert_eq!(url(&links, Some(passed)), None);
        }
        assert!(url(&links, Some(Time(NOW.0 + 1))).is_some());
    }

    #[test]
    fn link_made_before_the_first_that_works_is_over() {
        let token = token(&links(LinkSettings::default()), None);
        for (first, over) in [(NOW, false), (Time(NOW.0 + 1), true)] {
            let links = links(LinkSettings {
                not_before: Some(first),
                ..LinkSettings::default()
            });
            let link = links.open(&token).unwrap();
            assert_eq!(links.has_ended(&link, NOW), over);
        }
    }

    /// The test replaces each character of the token by every other character. A character of
    /// base64url encodes six bits, so the test changes each bit of the sealed bytes, too.
    #[test]
    fn link_with_another_character_at_any_place_is_unknown() {
        let links = links(LinkSettings::default());
        let token = token(&links, None).into_bytes();
        for place in 0..token.len() {
            for other in (b'!'..=b'~').filter(|other| token[place] != *other) {
                let mut changed = token.clone();
                changed[place] = other;
                let changed = String::from_utf8(changed).unwrap();
                assert_eq!(links.open(&changed), None, "{changed}");
            }
        }
    }

    #[test]
    fn sealed_bytes_that_are_no_link_are_unknown() {
        let links = links(LinkSettings::default());
        let token = token(&links, None);
        let bytes = links.open(&token).unwrap().bytes().unwrap();
        let mut newer = bytes.clone();
        newer[0] = 2;
        let mut cases = vec![newer, Vec::new()];
        cases.extend((0..51 + "acme".len()).map(|length| bytes[..length].to_vec()));
        for bytes in cases {
            let token = links.sealer.seal_link(&bytes).unwrap();
            assert_eq!(links.open(&token), None, "{bytes:?}");
        }
    }
}
