//! Tests of mistakes in the entries of `notify.to` with Slack or Teams.

use super::receivers::found;

const TOKEN: &str = "token: xoxb-1, channel: C012AB3CD";

#[test]
fn room_of_slack_is_a_bot_or_an_incoming_webhook_and_never_both() {
    for (slack, message) in [
        (
            "summaries: false",
            ".url: `token` and `channel` of a bot, or the `url` of an incoming webhook, are missing",
        ),
        (
            "token: xoxb-1",
            ".channel: `channel` is missing: a bot posts to one",
        ),
        (
            "channel: C012AB3CD",
            ".token: `token` is missing: a bot needs one",
        ),
        (
            &format!("{TOKEN}, url: 'https://h/x'"),
            ".url: `url` is an incoming webhook, `token` and `channel` are a bot: leave one of the two out",
        ),
        (
            "url: 'https://h/x', channel: C012AB3CD",
            ".url: `url` is an incoming webhook, `token` and `channel` are a bot: leave one of the two out",
        ),
        (
            "url: 'https://h/x', api_url: 'https://h/api'",
            ".api_url: an incoming webhook has its address in `url`",
        ),
        (
            &format!("{TOKEN}, to: approvers"),
            ".to: unknown key `to`; known are `token`, `channel`, `api_url`, `url`, `summaries`",
        ),
    ] {
        let found = found("", &format!("{{ name: a, slack: {{ {slack} }} }}"));
        assert_eq!(found, [format!(".to[0].slack{message}")], "{slack}");
    }
    for slack in [
        TOKEN,
        "url: 'https://h/x'",
        &format!("{TOKEN}, api_url: 'http://h:1/api/'"),
    ] {
        let found = found("", &format!("{{ name: a, slack: {{ {slack} }} }}"));
        assert_eq!(found, Vec::<String>::new(), "{slack}");
    }
}

#[test]
fn values_of_a_room_that_cannot_be_used_are_refused_and_never_quoted() {
    for (room, place) in [
        (
            "slack: { token: 'canary one', channel: C012AB3CD }",
            "slack.token",
        ),
        (
            "slack: { token: \"canary\\n\", channel: C012AB3CD }",
            "slack.token",
        ),
        ("slack: { token: '', channel: C012AB3CD }", "slack.token"),
        (
            "slack: { token: xoxb-1, channel: '#canary' }",
            "slack.channel",
        ),
        (
            "slack: { token: xoxb-1, channel: c012ab3cd }",
            "slack.channel",
        ),
        (
            "slack: { token: xoxb-1, channel: U012AB3CD }",
            "slack.channel",
        ),
        (
            "slack: { token: xoxb-1, channel: C012AB3CD, api_url: canary }",
            "slack.api_url",
        ),
        (
            "slack: { token: xoxb-1, channel: C012AB3CD, api_url: 'https://h/?canary' }",
            "slack.api_url",
        ),
        ("slack: { url: 'https://u:canary@h/x' }", "slack.url"),
        ("slack: { url: canary }", "slack.url"),
        ("teams: { url: 'ftp://canary' }", "teams.url"),
        ("teams: { url: '' }", "teams.url"),
        ("teams: { summaries: true }", "teams"),
    ] {
        let found = found("", &format!("{{ name: a, {room} }}"));
        assert_eq!(found.len(), 1, "{room}: {found:?}");
        assert!(
            found[0].starts_with(&format!(".to[0].{place}: ")),
            "{found:?}"
        );
        assert!(!found[0].contains("canary"), "{found:?}");
    }
    let teams = "{ name: a, teams: { url: 'https://h/workflows/x?sig=1' } }";
    assert_eq!(found("", teams), Vec::<String>::new());
}

#[test]
fn room_has_no_events_and_one_channel() {
    for (entry, message) in [
        (
            "teams: { url: 'https://h/x' }, events: [request.created]",
            ".to[0].events: a message to a room is about questions that wait: leave `events` out",
        ),
        (
            "teams: { url: 'https://h/x' }, slack: { url: 'https://h/x' }",
            ".to[0]: only one of `webhook`, `mail`, `slack`, `teams` may be set",
        ),
    ] {
        assert_eq!(found("", &format!("{{ name: a, {entry} }}")), [message]);
    }
}
