//! Makes sealed links as the service makes them for its messages, with the sealing key of the
//! test's configuration.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use holdpoint::people::language::Language;
use holdpoint::people::link::{LinkSettings, Links};
use holdpoint::people::person::Person;
use holdpoint::secret::Secret;
use holdpoint::secret::seal::Sealer;
use holdpoint::world::{Clock as _, SystemClock};

/// The sealing key of the test's configuration, in base64.
pub const SEALING_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
/// A sealing key that no test configures, in base64.
pub const OTHER_KEY: &str = "MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI=";

/// The people in the tests of links. bob, dora and emil are in finance and decide by link; bob also
/// has a key. fred, alice and mallory may not decide. mallory belongs to another tenant.
pub const PEOPLE: &str = "  people:
    - { user: bob, tenant: acme, email: bob@acme.example }
    - { user: dora, tenant: acme, groups: [finance], email: dora@acme.example }
    - { user: emil, tenant: acme, groups: [finance], email: emil@acme.example, language: zh }
    - { user: fred, tenant: acme, groups: [sales], email: fred@acme.example }
    - { user: alice, tenant: acme, email: alice@acme.example }
    - { user: mallory, tenant: other, email: mallory@other.example }
";

pub const DECIDING: &str = "notify: { links: { may: decide } }\n";

/// A link, with the parts that tests vary.
pub struct LinkSpec<'a> {
    pub tenant: &'a str,
    pub user: &'a str,
    pub request: &'a str,
    pub key: &'a str,
    pub life: Duration,
}

impl LinkSpec<'_> {
    pub fn path(&self) -> String {
        let key: [u8; 32] = BASE64_STANDARD
            .decode(self.key)
            .unwrap()
            .try_into()
            .unwrap();
        let sealer = Sealer::new(vec![("k1".to_owned(), Secret::new(key))]).unwrap();
        let settings = LinkSettings {
            expires_in: self.life,
            ..LinkSettings::default()
        };
        let person = Person {
            user: self.user.to_owned(),
            tenant: self.tenant.to_owned(),
            groups: Vec::new(),
            email: None,
            language: Language::English,
        };
        let (request, delivery) = (self.request.parse().unwrap(), uuid::Uuid::nil());
        let links = Links::new(settings, sealer, "");
        let url = links.url(&person, request, None, SystemClock.now(), delivery);
        url.unwrap()
    }
}

/// Returns the path of a link that opens a request for this user of the tenant acme.
pub fn link(user: &str, request: &str) -> String {
    link_spec(user, request).path()
}

/// Returns the parts of the link that [`link`] makes. A test changes some of these parts.
pub fn link_spec<'a>(user: &'a str, request: &'a str) -> LinkSpec<'a> {
    LinkSpec {
        tenant: "acme",
        user,
        request,
        key: SEALING_KEY,
        life: Duration::from_hours(72),
    }
}
