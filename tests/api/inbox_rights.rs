//! Tests which people learn of a request, for each way in which a rule can name approvers. The test
//! checks the event stream, the list and its count for each caller of a table. It checks the mails
//! for each person with an address.

use std::collections::BTreeSet;
use std::time::Duration;

use macro_rules_attribute::apply;

use super::approval_cycle::on_both;
use super::endpoint_rights::{
    ALICE, BOB, FINANCE, NONE, PEOPLE, Person, Reads, SUPPORT, TABLE, TURNS, actor, ask, yaml,
};
use super::inbox_stream::{ids, next, soon, stream};
use crate::support::event_stream::{StreamBlock, Watch};
use crate::support::fake_mail_server::FakeMailServer;
use crate::support::test_app::{On, TestApp};
use crate::support::test_clock::TestClock;
use crate::support::until;

/// The people with a mail address: the user, the tenant, the groups of a person without a key, and
/// for each rule whether the person may decide its requests.
const ADDRESSES: [(&str, &str, &str, [bool; 6]); 9] = [
    ("alice", "acme", "", ALICE),
    ("bob", "acme", "", BOB),
    ("fay", "acme", "", FINANCE),
    ("sam", "acme", "", SUPPORT),
    ("root", "acme", "", NONE),
    ("ops", "acme", "", NONE),
    ("carol", "acme", "", NONE),
    ("zoe", "acme", "finance", NONE),
    ("bob", "other", "", NONE),
];

fn address(user: &str, tenant: &str) -> String {
    format!("{user}@{tenant}.com")
}

/// Returns the configuration with the people of [`ADDRESSES`] and an entry that mails each request
/// to its approvers.
fn mailing(server: &FakeMailServer) -> String {
    let people = ADDRESSES.map(|(user, tenant, groups, _)| {
        let email = address(user, tenant);
        format!("    - {{ user: {user}, tenant: {tenant}, groups: [{groups}], email: {email} }}\n")
    });
    let port = server.port;
    format!(
        "{}{}  people:\n{}notify:
  mail: {{ url: \"smtp://127.0.0.1:{port}\", from: \"Holdpoint <holdpoint@acme.com>\" }}
  to: [ {{ name: by-mail, mail: {{ to: approvers }}, gather: 0s, tenants: [acme] }} ]
",
        yaml(),
        PEOPLE,
        people.concat()
    )
}

/// Returns the requests that a person may decide. `all` has the rule and the id of each request.
fn decidable(decides: [bool; 6], all: &[(usize, String)]) -> BTreeSet<&str> {
    let own = all.iter().filter(|(rule, _)| decides[*rule]);
    own.map(|(_, request)| request.as_str()).collect()
}

/// Asserts that a stream reports these requests, each in an event of its own, and that the member
/// `open` of these events counts up from 1.
async fn hears(who: &str, watch: &mut Watch, expected: &BTreeSet<&str>) {
    let mut heard = BTreeSet::new();
    for open in 1..=expected.len() {
        let created = next(watch, "request.created").await.data;
        assert_eq!(created["open"], open, "{who}: {created}");
        let id = created["request"]["request_id"].as_str().unwrap();
        heard.insert(id.to_owned());
    }
    let heard: BTreeSet<&str> = heard.iter().map(String::as_str).collect();
    assert_eq!(heard, *expected, "{who}");
}

/// Asserts that the streams report nothing. A stream writes a comment only if it has nothing to
/// report, so each stream must write three comments. A single comment would prove nothing, because
/// a stream on a slow machine may have written it before the call of this function.
async fn are_silent(streams: &mut [(&Person, Watch)], clock: &TestClock) {
    for _ in 0..3 {
        clock.advance(Duration::from_secs(16));
        for (person, watch) in &mut *streams {
            assert_eq!(
                soon(watch.said()).await,
                Some(StreamBlock::Comment),
                "{}",
                person.0
            );
        }
    }
}

/// Asserts that the list, its count and a new stream have these requests and no others.
async fn lists(app: &TestApp, person: &Person, expected: &BTreeSet<&str>) {
    let who = person.0;
    let list = actor(app, person).get("/v1/requests?limit=200").await;
    let listed = list.body["requests"].as_array().unwrap().iter();
    let listed: BTreeSet<_> = listed
        .map(|one| one["request_id"].as_str().unwrap())
        .collect();
    assert_eq!(
        (&listed, &list.body["open"]),
        (expected, &expected.len().into()),
        "{who}"
    );
    let mut watch = stream(&actor(app, person), "").await;
    let inbox = next(&mut watch, "inbox").await;
    let begun: BTreeSet<_> = ids(&inbox).into_iter().collect();
    assert_eq!(
        (&begun, &inbox.data["open"]),
        (expected, &expected.len().into()),
        "{who}"
    );
}

/// Asserts that each person gets a mail about each request that they may decide, and no other mail.
/// `all` has the rule and the id of each request.
async fn mails(app: &TestApp, server: &FakeMailServer, all: &[(usize, String)]) {
    let mut expected = BTreeSet::new();
    for (user, tenant, _, decides) in ADDRESSES {
        let own = decidable(decides, all).into_iter();
        expected.extend(own.map(|id| (address(user, tenant), format!("<{id}@acme.com>"))));
    }
    // The caller advances the clock afterwards, and a mail in flight would then time out. So the
    // function waits until all mails are sent.
    let are_sent = async || {
        let root = app.actor("root-key-0123456789");
        let listed = root.get("/v1/deliveries?limit=200").await;
        let listed = listed.body["deliveries"].as_array().unwrap();
        listed.len() >= expected.len() && listed.iter().all(|one| one["state"] == "sent")
    };
    until("the mails are sent", are_sent).await;
    let all = server.all();
    let told = all
        .iter()
        .map(|mail| (mail.to.clone(), mail.header("References")));
    assert_eq!(told.collect::<BTreeSet<_>>(), expected);
    assert_eq!(all.len(), expected.len(), "each mail once");
}

#[apply(on_both)]
async fn only_people_who_may_decide_a_request_hear_of_it_by_stream_list_count_and_mail(on: On) {
    let (server, clock) = (FakeMailServer::start().await, TestClock::new());
    let app = TestApp::timed(on, &mailing(&server), clock.clone()).await;
    let mut streams: Vec<(&Person, Watch)> = Vec::new();
    for person in TABLE {
        let mut watch = stream(&actor(&app, person), "").await;
        let status = if person.4 == Reads::Nothing { 403 } else { 200 };
        assert_eq!(watch.status, status, "{}", person.0);
        if status == 200 {
            assert_eq!(
                next(&mut watch, "inbox").await.data["open"],
                0,
                "{}",
                person.0
            );
            streams.push((person, watch));
        }
    }
    let owner = app.actor("alice-key-0123456789");
    let mut all = Vec::new();
    for turn in TURNS {
        all.extend(ask(&app, &owner, turn).await.questions);
    }
    for (person, watch) in &mut streams {
        hears(person.0, watch, &decidable(person.3, &all)).await;
    }
    mails(&app, &server, &all).await;
    are_silent(&mut streams, &clock).await;
    for (person, _) in &streams {
        lists(&app, person, &decidable(person.3, &all)).await;
    }
    app.stop().await;
}
