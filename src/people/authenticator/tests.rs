//! Tests of the authentication of requests by key, header and session.

use super::*;
use crate::people::directory::hash_key;

fn keys() -> KeyAuthenticator {
    let account = |user: &str, act_as, admin| Account {
        user: user.to_owned(),
        tenant: "acme".to_owned(),
        groups: vec!["own".to_owned()],
        act_as,
        admin,
        permissions: if user == "ops" {
            Permissions {
                create: false,
                read: true,
                decide: false,
                gate: false,
            }
        } else {
            Permissions::ALL
        },
        key_sha256: hash_key(&format!("{user}-key")),
    };
    KeyAuthenticator::new(Directory::new(vec![
        account("alice", false, false),
        account("web", true, true),
        account("ops", false, true),
    ]))
}

fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
    all.iter()
        .map(|(name, value)| {
            (
                http::HeaderName::from_static(name),
                http::HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            )
        })
        .fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(name, value);
            map
        })
}

#[test]
fn key_authenticates_its_user() {
    for value in ["Bearer alice-key", "bearer alice-key", "BEARER  alice-key "] {
        let caller = keys()
            .authenticate(&headers(&[("authorization", value)]))
            .unwrap();
        assert_eq!(
            (caller.user_id.as_str(), caller.tenant.as_str()),
            ("alice", "acme")
        );
        assert_eq!(
            (caller.groups, caller.via, caller.without_accounts),
            (vec!["own".to_owned()], None, false)
        );
    }
    let ops = keys()
        .authenticate(&headers(&[("authorization", "Bearer ops-key")]))
        .unwrap();
    assert_eq!(
        (ops.admin, ops.permissions),
        (
            true,
            Permissions {
                create: false,
                read: true,
                decide: false,
                gate: false,
            }
        )
    );
}

#[test]
fn unknown_or_malformed_key_is_refused() {
    let wrong = [
        "Bearer nobody",
        "Bearer ",
        "Bearer",
        "Basic alice-key",
        "alice-key",
        "Bearer alice-key, Bearer web-key",
        "",
    ];
    for value in wrong {
        let found = keys().authenticate(&headers(&[("authorization", value)]));
        assert_eq!(found, Err(AuthError::UnknownKey), "{value}");
    }
    assert_eq!(keys().authenticate(&headers(&[])), Err(AuthError::Missing));
    let two = headers(&[
        ("authorization", "Bearer alice-key"),
        ("authorization", "Bearer alice-key"),
    ]);
    assert_eq!(keys().authenticate(&two), Err(AuthError::UnknownKey));
    let unknown = headers(&[
        ("authorization", "Bearer nobody"),
        ("holdpoint-user", "bob"),
    ]);
    assert_eq!(keys().authenticate(&unknown), Err(AuthError::UnknownKey));
}

#[test]
fn key_with_act_as_speaks_for_the_named_user() {
    let web = ("authorization", "Bearer web-key");
    let all = headers(&[
        web,
        ("holdpoint-user", "bob"),
        ("holdpoint-groups", "finance, support,,Data Team,finance"),
    ]);
    let caller = keys().authenticate(&all).unwrap();
    assert_eq!(
        (caller.user_id.as_str(), caller.via.as_deref()),
        ("bob", Some("web"))
    );
    assert_eq!(caller.groups, ["finance", "support", "Data Team"]);
    assert!(caller.admin, "admin is the key's");
    let no_groups = keys()
        .authenticate(&headers(&[web, ("holdpoint-user", "bob")]))
        .unwrap();
    assert_eq!(
        no_groups.groups,
        Vec::<String>::new(),
        "without Holdpoint-Groups he has none"
    );
    let own = keys().authenticate(&headers(&[web])).unwrap();
    assert_eq!((own.user_id.as_str(), own.via), ("web", None));
}

#[test]
fn unreadable_header_is_refused() {
    let web = ("authorization", "Bearer web-key");
    let long = "x".repeat(129);
    let bad: &[&[(&'static str, &str)]] = &[
        &[("holdpoint-user", "")],
        &[("holdpoint-user", "a b")],
        &[("holdpoint-user", "a\u{200b}b")],
        &[("holdpoint-user", &long)],
        &[("holdpoint-user", "a"), ("holdpoint-user", "b")],
        &[
            ("holdpoint-user", "a"),
            ("holdpoint-groups", "x"),
            ("holdpoint-groups", "admin"),
        ],
        &[("holdpoint-groups", "finance")],
        &[("holdpoint-user", "a,b")],
        &[("holdpoint-user", "jose\u{301}")],
        &[("holdpoint-user", "\u{212a}elvin")],
        &[("holdpoint-user", "\u{a0}a")],
        &[("holdpoint-user", "a"), ("holdpoint-user", "a")],
        &[
            ("holdpoint-user", "a"),
            ("holdpoint-groups", "\u{3000}finance"),
        ],
        &[("holdpoint-user", "a"), ("holdpoint-tenant", "other")],
        &[("holdpoint-as", "a")],
    ];
    for rest in bad {
        let all: Vec<_> = std::iter::once(web).chain(rest.iter().copied()).collect();
        let found = keys().authenticate(&headers(&all));
        assert!(
            matches!(found, Err(AuthError::BadHeader(_))),
            "{rest:?}: {found:?}"
        );
    }
}

#[test]
fn unknown_holdpoint_header_is_refused_and_gateway_headers_are_not() {
    let alice = ("authorization", "Bearer alice-key");
    for (name, fine) in [
        ("holdpoint-runner", true),
        ("holdpoint-session", true),
        ("holdpoint-usr", false),
    ] {
        let found = keys().authenticate(&headers(&[alice, (name, "x")]));
        assert_eq!(found.is_ok(), fine, "{name}: {found:?}");
        assert!(
            fine || matches!(found, Err(AuthError::BadHeader(_))),
            "{name}: {found:?}"
        );
    }
    let wrong = headers(&[("authorization", "Bearer nobody"), ("holdpoint-usr", "x")]);
    assert_eq!(
        keys().authenticate(&wrong),
        Err(AuthError::UnknownKey),
        "a key comes first"
    );
}

#[test]
fn named_user_is_shown_as_the_file_spells_it() {
    let named = |user| {
        keys().authenticate(&headers(&[
            ("authorization", "Bearer web-key"),
            ("holdpoint-user", user),
        ]))
    };
    assert_eq!(named("ALICE").unwrap().user_id.as_str(), "alice");
    assert_eq!(
        named("ALICE").unwrap().user_id,
        named("alice").unwrap().user_id
    );
    assert_eq!(named("Zoe").unwrap().user_id.as_str(), "Zoe");
}

#[test]
fn key_without_act_as_that_sends_either_header_is_forbidden() {
    for name in ["holdpoint-user", "holdpoint-groups"] {
        let all = headers(&[("authorization", "Bearer alice-key"), (name, "alice")]);
        assert!(
            matches!(keys().authenticate(&all), Err(AuthError::Forbidden(_))),
            "{name}"
        );
    }
}

#[test]
fn session_is_the_user_of_its_key_and_speaks_for_no_other_user() {
    let token = Token::from_bytes([9; 32]);
    let binding = keys().session_binding(&token, "web-key").unwrap();
    let caller = keys()
        .authenticate_session(&headers(&[]), &token, &binding)
        .unwrap();
    assert_eq!(
        (caller.user_id.as_str(), caller.tenant.as_str(), caller.via),
        ("web", "acme", None)
    );
    let ops = keys().session_binding(&token, "ops-key").unwrap();
    assert!(
        !keys()
            .authenticate_session(&headers(&[]), &token, &ops)
            .unwrap()
            .permissions
            .create,
        "what the key may, no more"
    );
    for name in [
        "holdpoint-user",
        "holdpoint-groups",
        "holdpoint-runner",
        "holdpoint-anything",
    ] {
        let found = keys().authenticate_session(&headers(&[(name, "bob")]), &token, &binding);
        assert!(matches!(found, Err(AuthError::Forbidden(_))), "{name}");
    }
    assert_eq!(keys().session_binding(&token, "nobody"), None);
    let other = Token::from_bytes([8; 32]);
    assert_eq!(
        keys().authenticate_session(&headers(&[]), &other, &binding),
        Err(AuthError::Missing)
    );
    let without = KeyAuthenticator::new(Directory::default());
    assert_eq!(
        without.authenticate_session(&headers(&[]), &token, &binding),
        Err(AuthError::Missing),
        "dead with its key"
    );
    assert_eq!(OpenAuthenticator.session_binding(&token, "web-key"), None);
    assert_eq!(
        OpenAuthenticator.authenticate_session(&headers(&[]), &token, &binding),
        Err(AuthError::Missing)
    );
}

#[test]
fn every_caller_is_local_without_accounts_and_may_name_no_user() {
    let caller = OpenAuthenticator
        .authenticate(&headers(&[("authorization", "Bearer whatever")]))
        .unwrap();
    assert_eq!(
        (caller.user_id.as_str(), caller.tenant.as_str()),
        ("local", "default")
    );
    assert_eq!(
        (caller.without_accounts, caller.admin, caller.permissions),
        (true, false, Permissions::ALL)
    );
    for name in ["holdpoint-user", "holdpoint-groups"] {
        assert!(
            matches!(
                OpenAuthenticator.authenticate(&headers(&[(name, "x")])),
                Err(AuthError::Forbidden(_))
            ),
            "{name}"
        );
    }
    for name in ["holdpoint-tenant", "holdpoint-anything"] {
        assert!(
            matches!(
                OpenAuthenticator.authenticate(&headers(&[(name, "x")])),
                Err(AuthError::BadHeader(_))
            ),
            "{name}"
        );
    }
}
