//! Tests of mistakes in `auth.people` and in `notify.links`.

use super::*;

/// The beginning of the section `auth`: the keys of bob, who is in the group `g`, and of eve.
const KEYS: &str = "auth: { api_keys: [ { user: bob, groups: [g], key: '0123456789abcdef' }, { user: eve, key: '0123456789abcdeF' } ], ";
const SECRETS: &str =
    "secrets: { keys: [ { id: a, key: 'MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=' } ] }\n";

fn found(lines: &str) -> Vec<String> {
    let text = format!("{BASE}{TOOL}{lines}\n");
    let found = read(&text).err().unwrap_or_default();
    let path = |line: String| line.split_once(": ").unwrap().1.to_owned();
    found.into_iter().map(path).collect()
}

#[test]
fn person_that_is_written_wrong_is_refused_with_its_place() {
    for (people, expected) in [
        ("{ email: a@b.c }", "[0]: `user` is missing"),
        (
            "{ user: 'a b' }",
            "[0].user: user `a b`: a user is 1 to 128 visible characters without blanks",
        ),
        (
            "{ user: zoe, groups: ['x,y'] }",
            "[0].groups[0]: user `zoe`: a group is 1 to 128 visible characters without commas",
        ),
        (
            "{ user: zoe, tenant: acme }",
            "[0].tenant: user `zoe`: no key has the tenant `acme`",
        ),
        (
            "{ user: zoe, language: de }",
            "[0].language: user `zoe`: expected one of `en`, `zh`",
        ),
        (
            "{ user: zoe }, { user: ZOE }",
            "[1].user: `ZOE` is a person above, too: each person stands here once",
        ),
        (
            "{ user: zoe, email: z@b.c }, { user: max, email: Z@B.C }",
            "[1].email: user `max`: another person of the tenant has this address, too: each person has a mailbox of their own",
        ),
        (
            "{ user: Bob, groups: [g, h] }",
            "[0].groups: the key of `Bob` has other groups: leave `groups` out, a person who has a key has the groups of the key",
        ),
        (
            "{ user: zoe, mail: z@b.c }",
            "[0].mail: user `zoe`: unknown key `mail`; known are `user`, `tenant`, `groups`, `email`, `language`",
        ),
    ] {
        let lines = format!("{KEYS}people: [ {people} ] }}");
        assert_eq!(
            found(&lines),
            [format!("auth.people{expected}")],
            "{people}"
        );
    }
}

#[test]
fn invalid_mail_address_is_refused_and_never_quoted() {
    for wrong in [
        "zoe",
        "zoe@",
        "zoe@b.c\\r\\nBcc: max@b.c",
        "Zoe <zoe@b.c>",
        "zoe b@b.c",
    ] {
        let lines = format!("{KEYS}people: [ {{ user: zoe, email: \"{wrong}\" }} ] }}");
        let expected =
            "auth.people[0].email: user `zoe`: expected an address such as `bob@acme.com`";
        assert_eq!(found(&lines), [expected], "{wrong}");
    }
}

#[test]
fn person_without_a_tenant_is_of_the_only_one_and_refused_among_several() {
    let several = KEYS.replace("eve,", "eve, tenant: acme,");
    let missing = "auth.people[0]: user `zoe`: `tenant` is missing: there are several, and a person is of one";
    assert_eq!(
        found(&format!("{several}people: [ {{ user: zoe }} ] }}")),
        [missing]
    );
    let named =
        "{ user: zoe, tenant: acme, email: z@b.c }, { user: zoe, tenant: default, email: z@b.c }";
    let none: [&str; 0] = [];
    assert_eq!(found(&format!("{several}people: [ {named} ] }}")), none);
    let only = KEYS.replace("user:", "tenant: acme, user:");
    let text = format!("{BASE}{TOOL}{only}people: [ {{ user: zoe }} ] }}\n");
    let directory = read(&text).unwrap().directory().unwrap();
    assert!(directory.person("acme", "zoe").is_some());
}

#[test]
fn person_without_a_key_satisfies_a_rule_only_where_links_decide() {
    let rule = |approvers: &str| {
        format!("policy: [{{ name: x, tools: [t], decide: hold, approvers: {{ {approvers} }} }}]\n")
    };
    let zoe = "{ user: zoe, groups: [h], email: z@b.c }";
    let silent = "{ user: zoe, groups: [h] }";
    let decide = "notify: { links: { may: decide } }\n";
    let open = "notify: { links: { may: open } }\n";
    for (person, links, approvers, satisfied) in [
        (zoe, decide, "groups: [h]", true),
        (zoe, decide, "users: [ZOE]", true),
        (zoe, decide, "groups: [h], links: false", false),
        (zoe, decide, "groups: [g, h], required: 2", false),
        (
            zoe,
            decide,
            "groups: [g, h], required: 2, links: true",
            true,
        ),
        (zoe, open, "groups: [h]", false),
        (zoe, "", "groups: [h]", false),
        (silent, decide, "groups: [h]", false),
    ] {
        let lines = format!(
            "{KEYS}people: [ {person} ] }}\n{SECRETS}{links}{}",
            rule(approvers)
        );
        let found = found(&lines);
        assert_eq!(
            found.is_empty(),
            satisfied,
            "{links} {approvers}: {found:?}"
        );
    }
}

#[test]
fn links_without_a_sealing_key_or_https_are_refused() {
    let unsealed = "notify.links: links need a key under `secrets.keys`, which seals them";
    let plain = "notify.links.may: a link that decides needs `server.public_url` with `https`: on the way of plain \
                 HTTP others can read and use it";
    let time = "notify.links.not_before: expected a time such as `2026-11-22T09:00:00Z`";
    for (lines, expected) in [
        ("notify: { links: {} }".to_owned(), &[unsealed][..]),
        ("notify: { links: { may: decide } }".to_owned(), &[unsealed]),
        (
            format!(
                "{SECRETS}server: {{ public_url: 'http://h' }}\nnotify: {{ links: {{ may: decide }} }}"
            ),
            &[plain],
        ),
        (
            format!(
                "{SECRETS}server: {{ public_url: 'http://h' }}\nnotify: {{ links: {{ may: open }} }}"
            ),
            &[],
        ),
        (
            format!(
                "{SECRETS}server: {{ public_url: 'http://[::1]:8080' }}\nnotify: {{ links: {{ may: decide }} }}"
            ),
            &[],
        ),
        (
            format!(
                "{SECRETS}notify: {{ links: {{ may: decide, expires_in: 1h, not_before: 2026-11-22T09:00:00Z }} }}"
            ),
            &[],
        ),
        (
            format!(
                "{SECRETS}notify: {{ links: {{ may: all, expires_in: 0s, not_before: today }} }}"
            ),
            &[
                "notify.links.may: expected one of `open`, `decide`",
                "notify.links.expires_in: expected more than 0",
                time,
            ],
        ),
    ] {
        assert_eq!(found(&lines), expected, "{lines}");
    }
}
