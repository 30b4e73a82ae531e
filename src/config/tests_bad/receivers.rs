//! Tests of mistakes in the entries of `notify.to` with a webhook or mail.

use super::*;
use crate::config::environment::Environment;
use crate::config::{Config, Source, load};
use crate::world::Mistakes;

const SECRET: &str = "'whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE='";

/// Returns the mistakes in a file with this section `auth` and this entry of `notify.to`. Each line
/// is cut to the text after the word `notify`.
pub(super) fn found(auth: &str, entry: &str) -> Vec<String> {
    let text = format!("{BASE}{TOOL}{auth}notify: {{ to: [ {entry} ] }}\n");
    mistakes_in(text.replace("SECRET", SECRET))
}

/// Returns the mistakes that the module `notify` reports about this file. Each line is cut to the
/// text after the word `notify`, if it has the word.
fn mistakes_in(text: String) -> Vec<String> {
    let source = Source::File("h.yaml".into(), text);
    let rooms = |config: &Config, mistakes: &mut Mistakes| config.notify.check(mistakes);
    let loaded = load(
        source,
        &Environment::new(&[], &[]),
        &Flags::default(),
        rooms,
    );
    let lines = loaded.err().map(|report| report.mistakes);
    let lines = lines.into_iter().flatten().map(|line| line.to_string());
    lines
        .map(|line| {
            line.split_once("notify")
                .map_or(line.clone(), |(_, rest)| rest.to_owned())
        })
        .collect()
}

const HOOK: &str = "webhook: { url: 'https://h/x', secrets: [SECRET] }";

#[test]
fn entry_without_a_name_an_address_or_a_secret_is_refused() {
    for (entry, message) in [
        (format!("{{ {HOOK} }}"), ".to[0]: `name` is missing"),
        (
            "{ name: a }".to_owned(),
            ".to[0]: one of `webhook`, `mail`, `slack`, `teams` is missing: it says how the messages are sent",
        ),
        (
            format!("{{ name: a, {HOOK}, mail: {{}} }}"),
            ".to[0]: only one of `webhook`, `mail`, `slack`, `teams` may be set",
        ),
        (
            "{ name: a, mail: }".to_owned(),
            ".to[0].mail: expected a map, found nothing",
        ),
        (
            "{ name: a, webhook: { secrets: [SECRET] } }".to_owned(),
            ".to[0].webhook: `url` is missing",
        ),
        (
            "{ name: a, webhook: { url: 'https://h/x' } }".to_owned(),
            ".to[0].webhook: `secrets` is missing",
        ),
        (
            "{ name: a, webhook: { url: 'https://h/x', secrets: [] } }".to_owned(),
            ".to[0].webhook.secrets: `secrets` is empty",
        ),
        (
            format!("{{ name: 'a b', {HOOK} }}"),
            ".to[0].name: `a b` cannot be the name of an entry: a name is 1 to 64 of `A-Z a-z 0-9 _ -`",
        ),
        (
            format!("{{ name: a, {HOOK} }}, {{ name: a, {HOOK} }}"),
            ".to[1].name: `a` is the name of an entry above, too",
        ),
        (
            format!("{{ name: a, {HOOK}, post: {{}} }}"),
            ".to[0].post: unknown key `post`; known are `name`, `webhook`, `mail`, `slack`, `teams`, `tenants`, `agents`, `events`, `when`, `gather`, `groups`, `users`",
        ),
    ] {
        assert_eq!(found("", &entry), [message], "{entry}");
    }
    assert_eq!(
        found("", &format!("{{ name: a, {HOOK} }}")),
        Vec::<String>::new()
    );
}

#[test]
fn secret_that_is_short_or_no_whsec_is_refused_and_never_quoted() {
    for secret in [
        "whsec_c2hvcnQ=",
        "0123456789012345678901234567890123456789",
        "whsec_???",
    ] {
        let entry =
            format!("{{ name: a, webhook: {{ url: 'https://h/x', secrets: ['{secret}'] }} }}");
        let found = found("", &entry);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with(".to[0].webhook.secrets[0]: "),
            "{found:?}"
        );
        assert!(
            found[0].contains("`echo \"whsec_$(openssl rand -base64 32)\"`"),
            "{found:?}"
        );
        assert!(!found[0].contains(secret), "{found:?}");
    }
}

#[test]
fn address_and_headers_that_cannot_be_sent_are_refused() {
    for url in ["ftp://h/x", "https://u:p@h/x", "https://h/x#y", "h/x"] {
        let entry = format!("{{ name: a, webhook: {{ url: '{url}', secrets: [SECRET] }} }}");
        let found = found("", &entry);
        assert!(
            found.len() == 1 && found[0].starts_with(".to[0].webhook.url: expected an address"),
            "{found:?}"
        );
    }
    for (header, message) in [
        (
            "webhook-id: x",
            "webhook-id: the service sets `webhook-id` itself",
        ),
        (
            "Content-Type: x",
            "Content-Type: the service sets `Content-Type` itself",
        ),
        ("'a b': x", "'a b': `a b` is not a name of a header"),
        (
            "X-A: \"\\n\"",
            "X-A: `X-A` has a value that no header can have",
        ),
        ("X-A: x, x-a: y", "x-a: `x-a` is there twice"),
    ] {
        let entry = format!(
            "{{ name: a, webhook: {{ url: 'https://h/x', secrets: [SECRET], headers: {{ {header} }} }} }}"
        );
        let found = found("", &entry);
        let message = message.replace('\'', "");
        assert_eq!(
            found,
            [format!(".to[0].webhook.headers.{message}")],
            "{header}"
        );
    }
}

#[test]
fn unknown_names_in_an_entry_are_refused() {
    let rule = rule("groups: [g, none], users: [bob, zoe]");
    for (entry, message) in [
        (
            "events: [task.done]",
            ".to[0].events[0]: unknown event `task.done`; known are ",
        ),
        (
            "events: [request.waiting]",
            ".to[0].events[0]: unknown event `request.waiting`; known are ",
        ),
        (
            "events: []",
            ".to[0].events: `events` is empty: leave it out for the usual ones",
        ),
        ("agents: [zoe]", ".to[0].agents[0]: unknown agent `zoe`"),
        (
            "groups: [none]",
            ".to[0].groups[0]: no account is in the group `none`",
        ),
        (
            "users: [zoe]",
            ".to[0].users[0]: no account has the user `zoe`",
        ),
        (
            "tenants: [none]",
            ".to[0].tenants[0]: no account has the tenant `none`",
        ),
        (
            "groups: [g], events: [task.paused]",
            ".to[0].events[0]: `task.paused` is not an event of a request: ",
        ),
    ] {
        let found = found(
            &format!("{AUTH}{rule}"),
            &format!("{{ name: a, {HOOK}, {entry} }}"),
        );
        assert!(
            found.len() == 1 && found[0].starts_with(message),
            "{entry}: {found:?}"
        );
    }
    let any = format!("{AUTH}{rule}").replace("eve,", "web, act_as: true,");
    for entry in [
        "groups: [none]",
        "users: [zoe]",
        "groups: [g], users: [bob]",
    ] {
        assert_eq!(
            found(&any, &format!("{{ name: a, {HOOK}, {entry} }}")),
            Vec::<String>::new()
        );
    }
}

/// Returns the warnings `no rule lets …` about the groups and users of this entry. Each line is cut
/// to the text after the word `notify`.
fn warned(auth: &str, entry: &str) -> Vec<String> {
    warnings_with(
        "no rule lets",
        &format!("{auth}notify: {{ to: [ {entry} ] }}\n"),
    )
}

/// Returns the warnings about `notify` that contain `words`, for a file with these sections. Each
/// line is cut to the text after the word `notify`.
fn warnings_with(words: &str, sections: &str) -> Vec<String> {
    let text = format!("{BASE}{TOOL}{sections}");
    let (_, report) = load(
        Source::File("h.yaml".into(), text.replace("SECRET", SECRET)),
        &Environment::new(&[], &[]),
        &Flags::default(),
        |config, mistakes| config.notify.check(mistakes),
    )
    .unwrap();
    let lines = report.warnings.iter().map(ToString::to_string);
    lines
        .filter_map(|line| Some(line.split_once("notify")?.1.to_owned()))
        .filter(|line| line.contains(words))
        .collect()
}

/// Returns the section `policy` with a rule whose questions these people may decide.
fn rule(who: &str) -> String {
    format!("policy: [ {{ name: r, tools: [t], decide: hold, approvers: {{ {who} }} }} ]\n")
}

#[test]
fn entry_whose_groups_or_users_may_decide_under_no_rule_is_warned_about() {
    let auth = AUTH.replace("eve,", "eve, groups: [h],");
    let auth = format!("{auth}{}", rule("groups: [g]"));
    for channel in [
        HOOK,
        "slack: { url: 'https://h/x' }",
        "teams: { url: 'https://h/x' }",
    ] {
        for (names, place) in [
            ("groups: [g, h]", "groups[1]: no rule lets `h`"),
            ("users: [eve, bob]", "users[0]: no rule lets `eve`"),
            ("groups: [g], users: [eve]", "users[0]: no rule lets `eve`"),
        ] {
            let message = format!(".to[0].{place} decide a question of this entry");
            let warned = warned(&auth, &format!("{{ name: a, {channel}, {names} }}"));
            assert_eq!(warned, [message], "{channel}, {names}");
        }
        let entry = format!("{{ name: a, {channel}, groups: [g], users: [bob] }}");
        assert_eq!(warned(&auth, &entry), Vec::<String>::new());
    }
    let unreadable = auth.replace("groups: [g] } }", "groups: g } }");
    let found = found(&unreadable, &format!("{{ name: a, {HOOK}, groups: [h] }}"));
    assert!(
        found.len() == 1 && found[0].contains("approvers.groups: rule `r`: expected a list"),
        "{found:?}"
    );
}

#[test]
fn entry_without_a_tenant_among_several_is_refused() {
    let two = AUTH.replace("eve,", "eve, tenant: other,");
    let message = ".to[0]: `tenants` is missing: there are several, and each message goes to the tenants that are named";
    assert_eq!(found(&two, &format!("{{ name: a, {HOOK} }}")), [message]);
    assert_eq!(
        found(&two, &format!("{{ name: a, {HOOK}, tenants: [other] }}")),
        Vec::<String>::new()
    );
}

const PEOPLE: &str = "people: [ { user: eve, email: eve@acme.com } ]";

/// Returns the mistakes in a file with this mail server, this section `policy` and this entry of
/// `notify.to`. Eve is the only person in the file.
fn found_by_mail(server: &str, policy: &str, entry: &str) -> Vec<String> {
    let auth = AUTH.replace("api_keys:", &format!("{PEOPLE}, api_keys:"));
    let notify = format!("notify: {{ mail: {server}, to: [ {entry} ] }}\n");
    mistakes_in(format!("{BASE}{TOOL}{auth}{policy}{notify}"))
}

const SERVER: &str = "{ url: 'smtp://smtp.acme.com', from: h@acme.com }";
const TO_APPROVERS: &str = "{ name: a, mail: { to: approvers } }";

#[test]
fn mail_server_without_an_address_or_a_sender_is_refused() {
    for (server, message) in [
        (
            "{ url: 'http://h', from: h@acme.com }",
            ".mail.url: expected an address such as",
        ),
        (
            "{ url: 'smtp://u:p@h', from: h@acme.com }",
            ".mail.url: expected an address such as",
        ),
        (
            "{ url: 'smtp://h/x', from: h@acme.com }",
            ".mail.url: expected an address such as",
        ),
        (
            "{ url: 'smtp://h', from: nobody }",
            ".mail.from: expected a mail address such as",
        ),
        (
            "{ url: 'smtp://h', from: \"a\\nBcc: b <h@acme.com>\" }",
            ".mail.from: expected a mail address such as",
        ),
        ("{ url: 'smtp://h' }", ".mail: `from` is missing"),
        ("{ from: h@acme.com }", ".mail: `url` is missing"),
        (
            "{ url: 'smtp://h', from: h@acme.com, user: u }",
            ".mail: `user` is set without `password`",
        ),
    ] {
        let found = found_by_mail(server, "", TO_APPROVERS);
        assert!(
            found.len() == 1 && found[0].starts_with(message),
            "{server}: {found:?}"
        );
    }
    assert_eq!(
        found_by_mail(SERVER, "", TO_APPROVERS),
        Vec::<String>::new()
    );
    let without = found("", TO_APPROVERS);
    assert_eq!(
        without,
        [".to[0].mail: `notify.mail` is missing: it names the mail server"]
    );
}

#[test]
fn time_that_never_comes_and_keys_that_do_not_fit_are_refused() {
    for (entry, message) in [
        (
            "mail: {}, when: {}",
            ".when: `before_expiry` or `after` is missing",
        ),
        (
            "mail: {}, when: { after: 1h, before_expiry: 1h }",
            ".when: only one of `before_expiry` and `after` may be set",
        ),
        (
            "mail: {}, when: { after: 0s }",
            ".when: expected more than 0",
        ),
        (
            "mail: {}, when: { before_expiry: 25h }",
            ".when.before_expiry: no question stays open for so long",
        ),
        (
            "mail: {}, when: { after: 2d }",
            ".when.after: no question stays open for so long",
        ),
        (
            "mail: {}, events: [task.failed]",
            ".events: a mail is about a question that waits",
        ),
        (
            "mail: {}, when: { after: 1h }, events: [request.created]",
            ".events: an entry with `when` sends its reminders",
        ),
        (
            "mail: {}, gather: 2d",
            ".gather: questions are gathered for `1d` at most",
        ),
        ("mail: { to: nobody }", ".mail.to: expected `approvers`"),
        (
            "mail: { to: {} }",
            ".mail.to: `groups` or `users` is missing",
        ),
    ] {
        let found = found_by_mail(SERVER, "", &format!("{{ name: a, {entry} }}"));
        let message = format!(".to[0]{message}");
        assert!(
            found.len() == 1 && found[0].starts_with(&message),
            "{entry}: {found:?}"
        );
    }
}

#[test]
fn time_that_equals_the_longest_deadline_is_accepted() {
    for key in ["before_expiry", "after"] {
        let entry = format!("{{ name: a, mail: {{}}, when: {{ {key}: 24h }} }}");
        assert_eq!(
            found_by_mail(SERVER, "", &entry),
            Vec::<String>::new(),
            "{key}"
        );
    }
}

#[test]
fn escalation_to_a_person_who_may_not_decide_is_refused() {
    let entry = "{ name: a, mail: { to: { users: [zoe] } }, when: { after: 1h } }";
    let found = found_by_mail(SERVER, &rule("users: [eve]"), entry);
    assert!(
        found.len() == 1
            && found[0].starts_with(".to[0].mail.to.users[0]: no person here has a mail address"),
        "{found:?}"
    );
    let entry = entry.replace("zoe", "eve");
    assert_eq!(
        found_by_mail(SERVER, &rule("users: [eve]"), &entry),
        Vec::<String>::new()
    );
}

#[test]
fn escalation_to_deciders_without_an_address_is_warned_about() {
    let auth = AUTH.replace("eve,", "eve, groups: [leads],");
    for to in ["groups: [leads]", "users: [eve]"] {
        let entry = format!("{{ name: a, mail: {{ to: {{ {to} }} }}, when: {{ after: 1h }} }}");
        let notify = format!("notify: {{ mail: {SERVER}, to: [ {entry} ] }}\n");
        let sections = format!("{auth}{}{notify}", rule(to));
        assert_eq!(
            mistakes_in(format!("{BASE}{TOOL}{sections}")),
            Vec::<String>::new()
        );
        let warnings = warnings_with("has a mail address", &sections);
        assert!(
            warnings.len() == 1 && warnings[0].starts_with(".to[0].mail.to."),
            "{to}: {warnings:?}"
        );
    }
}

#[test]
fn escalation_to_a_group_without_a_key_that_may_decide_is_refused() {
    let auth = AUTH.replace("eve,", "eve, groups: [leads], may: [read],");
    let entry = "{ name: a, mail: { to: { groups: [leads] } }, when: { after: 1h } }";
    let notify = format!("notify: {{ mail: {SERVER}, to: [ {entry} ] }}\n");
    let policy = rule("groups: [g, leads]");
    let found = mistakes_in(format!("{BASE}{TOOL}{auth}{policy}{notify}"));
    assert!(
        found.len() == 1 && found[0].contains("no person here has a mail address"),
        "{found:?}"
    );
}

#[test]
fn escalation_to_a_person_who_decides_only_as_an_owner_is_refused() {
    let entry = "{ name: a, mail: { to: { users: [eve] } }, when: { after: 1h } }";
    let found = found_by_mail(SERVER, &rule("groups: [g]"), entry);
    assert!(
        found.len() == 1
            && found[0].starts_with(".to[0].mail.to.users[0]: no person here has a mail address"),
        "{found:?}"
    );
    for policy in [rule("groups: [g], owner: true"), String::new()] {
        assert_eq!(
            found_by_mail(SERVER, &policy, entry),
            Vec::<String>::new(),
            "{policy}"
        );
    }
}
