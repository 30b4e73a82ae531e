//! A person who gets messages, and the check of mail addresses.

use std::fmt;

use super::language::Language;

#[derive(Clone, PartialEq, Eq)]
pub struct Person {
    /// The person's id, spelled as in the configuration file.
    pub user: String,
    pub tenant: String,
    /// The person's groups. A person who has a key gets the key's groups.
    pub groups: Vec<String>,
    /// The person's mail address; `None` if the person gets no mails.
    pub email: Option<String>,
    pub language: Language,
}

/// Omits the mail address, which must not appear in any log.
impl fmt::Debug for Person {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Person({} of {})", self.user, self.tenant)
    }
}

/// The maximum length in bytes of the part before the `@` (RFC 5321, 4.5.3.1.1).
const MAX_LOCAL_BYTES: usize = 64;
/// The maximum length in bytes of a label of the domain (RFC 1035, 2.3.4).
const MAX_LABEL_BYTES: usize = 63;
/// The maximum length in bytes of an address. In SMTP, an address is sent between `<` and `>`. The
/// address and these two characters have at most 256 characters (RFC 5321, 4.5.3.1.3).
const MAX_ADDRESS_BYTES: usize = 254;

/// Whether a text is a mail address: `local@domain` in ASCII, with a dot-atom (RFC 5322, 3.2.3) and
/// a host name. Quoted local parts and address literals are refused, because few servers accept
/// them. An accepted address needs no quoting in a header.
#[must_use]
pub fn is_email(text: &str) -> bool {
    let Some((local, domain)) = text.split_once('@') else {
        return false;
    };
    text.len() <= MAX_ADDRESS_BYTES
        && local.len() <= MAX_LOCAL_BYTES
        && local.split('.').all(is_atom)
        && domain.split('.').all(is_label)
}

fn is_atom(text: &str) -> bool {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_plain)
}

fn is_label(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty()
        && text.len() <= MAX_LABEL_BYTES
        && text.bytes().all(is_plain)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mail_address_is_a_dot_atom_at_a_host_name() {
        for address in [
            "bob@acme.com",
            "Bob.Smith+questions@mail.acme.com",
            "o'neil@acme.com",
            "bob@localhost",
            "bob@xn--bcher-kva.example",
            &format!("{}@{}.com", "b".repeat(64), "a".repeat(63)),
        ] {
            assert!(is_email(address), "{address}");
        }
        for wrong in [
            "",
            "bob",
            "@acme.com",
            "bob@",
            "bob@acme..com",
            "bob@.com",
            "bob@acme.com.",
            ".bob@acme.com",
            "bob.@acme.com",
            "b..b@acme.com",
            "bob@acme@com",
            "bob smith@acme.com",
            "bob@acme.com ",
            "bob@acme.com\r\nBcc: eve@acme.com",
            "bob@acme.com\n",
            "bob\0@acme.com",
            "bob\t@acme.com",
            "\"bob\"@acme.com",
            "bob@[127.0.0.1]",
            "bob@acme_.com",
            "bob@-acme.com",
            "bob@acme-.com",
            "Bob <bob@acme.com>",
            "bob@acme.com,eve@acme.com",
            "bob@acme.com;eve@acme.com",
            "b\u{f6}b@acme.com",
            "bob@\u{430}cme.com",
            &format!("{}@acme.com", "b".repeat(65)),
            &format!("bob@{}.com", "a".repeat(64)),
            &format!("bob@{}com", "a.".repeat(130)),
        ] {
            assert!(!is_email(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn person_is_never_shown_with_their_address() {
        let person = Person {
            user: "bob".to_owned(),
            tenant: "acme".to_owned(),
            groups: Vec::new(),
            email: Some("bob@acme.com".to_owned()),
            language: Language::English,
        };
        assert_eq!(format!("{person:?}"), "Person(bob of acme)");
    }
}
