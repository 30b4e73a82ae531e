//! Tests `holdpoint notify` for rooms, and the warnings about secrets of rooms.

use super::holdpoint;
use super::served_binary::Folder;
use crate::support::fake_receiver::FakeReceiver;
use crate::support::fake_slack::{FakeSlack, TOKEN};

const SMALL: &str = "models: { m: { provider: openai, model: x, base_url: 'http://127.0.0.1:9/v1' } }\nagents: { a: { model: m } }\n";
/// The last part of the URL of a room's webhook.
const PATH: &str = "path-canary-0123456789";

fn run(folder: &Folder, hook: &FakeReceiver, arguments: &[&str]) -> super::Done {
    let yaml = format!(
        "{SMALL}notify:
  to:
    - {{ name: bot, slack: {{ token: '${{TOKEN}}', channel: C012AB3CD, api_url: '{0}/api' }} }}
    - {{ name: hook, slack: {{ url: '${{SLACK_HOOK}}' }} }}
    - {{ name: teams, teams: {{ url: '${{TEAMS_HOOK}}' }} }}
",
        hook.url
    );
    std::fs::write(folder.file("holdpoint.yaml"), yaml).unwrap();
    let arguments = [arguments, &["--config", "holdpoint.yaml"]].concat();
    let variables = [
        ("TOKEN", TOKEN.to_owned()),
        ("SLACK_HOOK", format!("{}/hook?{PATH}", hook.url)),
        ("TEAMS_HOOK", format!("{}/teams?{PATH}", hook.url)),
    ];
    let variables = variables
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    holdpoint(folder.path(), &arguments, &variables)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ping_of_a_room_says_which_entry_sends_it_and_prints_the_answer() {
    let (hook, folder) = (FakeReceiver::start().await, Folder::new());
    let slack = FakeSlack::serve_on(&hook);
    for (name, status) in [("bot", 200), ("hook", 200), ("teams", 202)] {
        let done = run(&folder, &hook, &["notify", name]);
        assert_eq!(done.code, Some(0), "{}", done.err);
        assert!(
            done.out.starts_with(&format!("{name}: {status} in ")),
            "{}",
            done.out
        );
        let said = hook.all().pop().unwrap().text;
        assert!(
            said.contains(&format!("messages of `{name}` arrive here")),
            "{said}"
        );
    }
    assert_eq!(slack.message().bodies.len(), 1);
    slack.fails("chat.postMessage", "not_in_channel");
    let done = run(&folder, &hook, &["notify", "bot"]);
    assert_eq!((done.code, done.out.as_str()), (Some(1), ""));
    assert!(
        done.err.contains("the bot is not a member of the channel"),
        "{}",
        done.err
    );
    hook.answers(404);
    for name in ["bot", "hook", "teams"] {
        let done = run(&folder, &hook, &["notify", name]);
        assert!(
            done.err.contains("404 in ") && done.err.contains("no 2xx"),
            "{}",
            done.err
        );
        assert!(
            !done.err.contains(TOKEN) && !done.err.contains(PATH),
            "{}",
            done.err
        );
    }
}

#[test]
fn token_and_urls_that_stand_in_the_file_are_warned_about_and_not_repeated() {
    let folder = Folder::new();
    for (room, place) in [
        (
            format!("slack: {{ token: {TOKEN}, channel: C012AB3CD }}"),
            "slack.token",
        ),
        (
            format!("slack: {{ url: 'http://127.0.0.1:9/{PATH}' }}"),
            "slack.url",
        ),
        (
            format!("teams: {{ url: 'http://127.0.0.1:9/{PATH}' }}"),
            "teams.url",
        ),
    ] {
        let yaml = format!("{SMALL}notify: {{ to: [ {{ name: room, {room} }} ] }}\n");
        std::fs::write(folder.file("holdpoint.yaml"), yaml).unwrap();
        let done = holdpoint(folder.path(), &["check", "--config", "holdpoint.yaml"], &[]);
        assert_eq!(done.code, Some(0), "{}", done.err);
        let warning = format!("notify.to[0].{place}: this secret stands in the file");
        assert!(done.err.contains(&warning), "{}", done.err);
        assert!(
            !done.err.contains(TOKEN) && !done.err.contains(PATH),
            "{}",
            done.err
        );
    }
}
