//! Tests which sealed values and links can be opened, and which fingerprints match.

use super::*;

const BOUND: [&[u8]; 3] = [b"acme", b"task", b"jira"];
const PLAIN: &[u8] = b"{\"token\":\"hunter2-hunter2\"}";

fn sealer(keys: &[(&str, u8)]) -> Sealer {
    Sealer::new(
        keys.iter()
            .map(|(id, byte)| ((*id).to_owned(), Secret::new([*byte; 32])))
            .collect(),
    )
    .unwrap()
}

#[test]
fn sealed_value_opens_only_in_the_place_it_was_sealed_for() {
    let with_key = sealer(&[("k1", 1)]);
    let sealed = with_key.seal(&BOUND, PLAIN).unwrap();
    assert_eq!(with_key.open(&BOUND, &sealed).unwrap().reveal(), PLAIN);
    let elsewhere: [&[&[u8]]; 7] = [
        &[b"acme", b"task", b"mail"],
        &[b"globex", b"task", b"jira"],
        &[b"acme", b"other", b"jira"],
        &[b"acm", b"etask", b"jira"],
        &[b"acme", b"task", b"jira", b""],
        &[b"acme", b"taskjira"],
        &[],
    ];
    for bound in elsewhere {
        assert_eq!(
            with_key.open(bound, &sealed).unwrap_err(),
            SealError::OpeningFailed,
            "{bound:?}"
        );
    }
    assert!(!format!("{with_key:?} {sealed:?}").contains(&sealed.text));
}

#[test]
fn same_value_is_never_sealed_alike() {
    let with_key = sealer(&[("k1", 1)]);
    assert_ne!(with_key.seal(&BOUND, PLAIN), with_key.seal(&BOUND, PLAIN));
}

#[test]
fn sealed_text_with_any_bit_changed_or_missing_does_not_open() {
    let with_key = sealer(&[("k1", 1)]);
    let sealed = with_key.seal(&BOUND, PLAIN).unwrap();
    let broken = |text: String| {
        let sealed = Sealed {
            text,
            ..sealed.clone()
        };
        assert_eq!(
            with_key.open(&BOUND, &sealed).unwrap_err(),
            SealError::OpeningFailed,
            "{}",
            sealed.text
        );
    };
    let bytes = BASE64_STANDARD.decode(&sealed.text).unwrap();
    assert_eq!(bytes.len(), NONCE_BYTES + PLAIN.len() + 16);
    for place in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[place / 8] ^= 1 << (place % 8);
        broken(BASE64_STANDARD.encode(changed));
    }
    for place in 0..sealed.text.len() * 8 {
        let mut changed = sealed.text.clone().into_bytes();
        changed[place / 8] ^= 1 << (place % 8);
        if let Ok(changed) = String::from_utf8(changed) {
            broken(changed);
        }
    }
    for length in 0..sealed.text.len() {
        broken(sealed.text[..length].to_owned());
    }
    for length in 0..bytes.len() {
        broken(BASE64_STANDARD.encode(&bytes[..length]));
    }
    broken(format!("{}AAAA", sealed.text));
}

#[test]
fn other_key_opens_nothing_even_under_the_same_id() {
    let sealed = sealer(&[("k1", 1)]).seal(&BOUND, PLAIN).unwrap();
    assert_eq!(
        sealer(&[("k1", 2)]).open(&BOUND, &sealed).unwrap_err(),
        SealError::OpeningFailed
    );
    let both = sealer(&[("k1", 1), ("k2", 1)]);
    let renamed = Sealed {
        key_id: "k2".to_owned(),
        ..sealed.clone()
    };
    assert_eq!(
        both.open(&BOUND, &renamed).unwrap_err(),
        SealError::OpeningFailed,
        "the id is bound, too"
    );
    assert!(both.open(&BOUND, &sealed).is_ok());
}

#[test]
fn first_key_seals_all_keys_open_and_a_removed_key_opens_nothing() {
    let old = sealer(&[("k1", 1)]);
    let sealed = old.seal(&BOUND, PLAIN).unwrap();
    let rotated = sealer(&[("k2", 2), ("k1", 1)]);
    assert_eq!(rotated.open(&BOUND, &sealed).unwrap().reveal(), PLAIN);
    let anew = rotated.seal(&BOUND, PLAIN).unwrap();
    assert_eq!(anew.key_id, "k2");
    assert_eq!(old.open(&BOUND, &anew).unwrap_err(), SealError::UnknownKey);
    assert_eq!(
        sealer(&[("k2", 2)]).open(&BOUND, &sealed).unwrap_err(),
        SealError::UnknownKey
    );
    assert!(Sealer::new(Vec::new()).is_none());
}

#[test]
fn link_opens_with_its_key_alone_and_is_no_sealed_value() {
    let (old, rotated) = (sealer(&[("k1", 1)]), sealer(&[("k2", 2), ("k1", 1)]));
    let token = old.seal_link(PLAIN).unwrap();
    assert_eq!(rotated.open_link(&token).unwrap().reveal(), PLAIN);
    let anew = rotated.seal_link(PLAIN).unwrap();
    assert!(anew.starts_with("k2."), "{anew}");
    assert_eq!(old.open_link(&anew).unwrap_err(), SealError::UnknownKey);
    let (key_id, text) = token.split_once('.').unwrap();
    let as_sealed = Sealed {
        key_id: key_id.to_owned(),
        text: BASE64_STANDARD.encode(BASE64_URL_SAFE_NO_PAD.decode(text).unwrap()),
    };
    for bound in [LINK, &BOUND] {
        assert_eq!(
            old.open(bound, &as_sealed).unwrap_err(),
            SealError::OpeningFailed,
            "a link has a key of its own"
        );
    }
    let sealed = old.seal(LINK, PLAIN).unwrap();
    let bytes = BASE64_STANDARD.decode(&sealed.text).unwrap();
    let as_link = format!("k1.{}", BASE64_URL_SAFE_NO_PAD.encode(bytes));
    assert_eq!(
        old.open_link(&as_link).unwrap_err(),
        SealError::OpeningFailed
    );
}

#[test]
fn link_with_any_character_changed_or_missing_does_not_open() {
    let with_key = sealer(&[("k1", 1)]);
    let token = with_key.seal_link(PLAIN).unwrap();
    for place in 0..token.len() {
        let original = token.as_bytes()[place];
        for other in (0_u8..128).filter(|other| *other != original) {
            let mut changed = token.clone().into_bytes();
            changed[place] = other;
            let changed = String::from_utf8(changed).unwrap();
            assert!(with_key.open_link(&changed).is_err(), "{changed}");
        }
        assert!(with_key.open_link(&token[..place]).is_err(), "{place}");
    }
    for longer in ["=", "A", "AAAA", ".", " "] {
        assert!(with_key.open_link(&format!("{token}{longer}")).is_err());
    }
}

#[test]
fn body_is_recognized_by_the_form_it_was_kept_in() {
    let body = |sealer: Option<&Sealer>, bytes: &'static [u8]| {
        DigestedBody::new(Bytes::from_static(bytes), sealer)
    };
    let (old, rotated) = (sealer(&[("k1", 1)]), sealer(&[("k2", 2), ("k1", 1)]));
    let (bare, by_old, by_new) = (
        body(None, PLAIN).digest,
        body(Some(&old), PLAIN).digest,
        body(Some(&rotated), PLAIN).digest,
    );
    assert_eq!(bare.len(), 64);
    assert!(
        by_old.starts_with("k1:") && by_old.len() == 67 && by_new.starts_with("k2:"),
        "{by_old} {by_new}"
    );
    assert_ne!(by_old[3..], by_new[3..]);
    assert_ne!(by_old[3..], bare);
    let now = body(Some(&rotated), PLAIN);
    for digest in [&bare, &by_old, &by_new] {
        assert!(now.matches_digest(digest), "{digest}");
        assert!(
            !body(Some(&rotated), b"{}").matches_digest(digest),
            "{digest}"
        );
    }
    assert!(
        !body(Some(&old), PLAIN).matches_digest(&by_new),
        "its key is gone"
    );
    assert!(!body(None, PLAIN).matches_digest(&by_old));
    for digest in ["", ":", "k1:", &by_old[..66], &by_old[3..]] {
        assert!(!now.matches_digest(digest), "{digest}");
    }
    assert!(!format!("{now:?}").contains("hunter2"));
}
