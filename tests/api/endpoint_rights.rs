//! Tests of the permissions to read and to decide a request. Each caller of a table tries each
//! endpoint of the request, for each way in which a rule can name approvers. Each turn has two
//! calls under different rules, so the turn opens two requests with different approvers. A usual
//! run divides the callers between the two databases.

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::calls;
use crate::support::test_app::{Actor, On, TestApp};

/// The accounts. Alice, who creates the tasks, is in the group `support`, which the rule `named`
/// names.
pub(super) const PEOPLE: &str = r#"
auth:
  api_keys:
    - { user: alice, tenant: acme, groups: [support], key: "alice-key-0123456789" }
    - { user: alice, tenant: acme, groups: [support], key: "alice-read-0123456789", may: [read] }
    - { user: alice, tenant: acme, groups: [support], key: "alice-decide-01234567", may: [decide] }
    - { user: alice, tenant: acme, groups: [support], key: "alice-create-01234567", may: [create] }
    - { user: bob, tenant: acme, key: "bob-key-0123456789ab" }
    - { user: fay, tenant: acme, groups: [finance], key: "fay-key-0123456789ab" }
    - { user: fay, tenant: acme, groups: [finance], key: "fay-read-0123456789", may: [read] }
    - { user: fay, tenant: acme, groups: [finance], key: "fay-decide-0123456789", may: [decide] }
    - { user: sam, tenant: acme, groups: [support], key: "sam-key-0123456789ab" }
    - { user: root, tenant: acme, key: "root-key-0123456789", admin: true }
    - { user: ops, tenant: acme, key: "ops-key-0123456789ab", admin: true, may: [read] }
    - { user: carol, tenant: acme, key: "carol-key-0123456789" }
    - { user: web, tenant: acme, key: "web-key-0123456789ab", act_as: true }
    - { user: bob, tenant: other, groups: [finance, support], key: "other-key-0123456789" }
    - { user: alice, tenant: other, admin: true, key: "other-alice-012345678" }
"#;

/// The rules, one for each way to name approvers: (name, `approvers` as YAML). Each rule is for one
/// tool with the same name.
const RULES: [(&str, &str); 6] = [
    ("owner", ""),
    ("users", "approvers: { users: [bob] }, "),
    ("groups", "approvers: { groups: [finance] }, "),
    ("two", "approvers: { groups: [finance], required: 2 }, "),
    ("also", "approvers: { groups: [finance], owner: true }, "),
    ("named", "approvers: { groups: [support] }, "),
];

/// The two tools that each turn calls, as indexes into [`RULES`].
pub(super) const TURNS: [[usize; 2]; 3] = [[0, 1], [2, 3], [4, 5]];

/// A caller: name, API key, headers, rights to decide, and rights to read. The rights to decide say
/// for each rule in [`RULES`] whether the caller may decide the rule's requests.
pub(super) struct Person(
    pub &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
    pub [bool; 6],
    pub Reads,
);

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Reads {
    /// The caller owns the task or is an admin, and the key may read.
    Everything,
    /// The caller reads the tree if they may decide one of its requests.
    What(Decides),
    /// The scope of the key does not include reading.
    Nothing,
    /// The task belongs to another tenant, so the status is 404.
    OfAnotherTenant,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Decides {
    /// The caller may decide with this key, under the rules that the [`Person`] lists.
    Here,
    /// The caller may not decide with this key. With another key of the same user, they may decide
    /// under these rules.
    Elsewhere([bool; 6]),
}

const Y: bool = true;
const N: bool = false;
pub(super) const ALICE: [bool; 6] = [Y, N, N, N, Y, N];
pub(super) const BOB: [bool; 6] = [N, Y, N, N, N, N];
pub(super) const FINANCE: [bool; 6] = [N, N, Y, Y, Y, N];
pub(super) const SUPPORT: [bool; 6] = [N, N, N, N, N, Y];
pub(super) const NONE: [bool; 6] = [N; 6];
const DECIDED: Reads = Reads::What(Decides::Here);
const WEB: &str = "web-key-0123456789ab";

#[rustfmt::skip]
pub(super) const TABLE: &[Person] = &[
    Person("the owner",                 "alice-key-0123456789",  &[],                                             ALICE,   Reads::Everything),
    Person("the owner, reads",          "alice-read-0123456789", &[],                                             NONE,    Reads::Everything),
    Person("the owner, decides",        "alice-decide-01234567", &[],                                             ALICE,   DECIDED),
    Person("the owner, creates",        "alice-create-01234567", &[],                                             NONE,    Reads::Nothing),
    Person("the owner by web",          WEB, &[("holdpoint-user", "alice")],                                      ALICE,   Reads::Everything),
    Person("the owner by web, groups",  WEB, &[("holdpoint-user", "alice"), ("holdpoint-groups", "finance,support")], ALICE, Reads::Everything),
    Person("the named user",            "bob-key-0123456789ab",  &[],                                             BOB,     DECIDED),
    Person("the named user by web",     WEB, &[("holdpoint-user", "bob")],                                        BOB,     DECIDED),
    Person("a member",                  "fay-key-0123456789ab",  &[],                                             FINANCE, DECIDED),
    Person("a member, reads",           "fay-read-0123456789",   &[],                                             NONE,    Reads::What(Decides::Elsewhere(FINANCE))),
    Person("a member, decides",         "fay-decide-0123456789", &[],                                             FINANCE, DECIDED),
    Person("a member by web",           WEB, &[("holdpoint-user", "zoe"), ("holdpoint-groups", "x, finance")],    FINANCE, DECIDED),
    Person("fay by web, no groups",     WEB, &[("holdpoint-user", "fay")],                                        NONE,    DECIDED),
    Person("of the owner's group",      "sam-key-0123456789ab",  &[],                                             SUPPORT, DECIDED),
    Person("an admin",                  "root-key-0123456789",   &[],                                             NONE,    Reads::Everything),
    Person("an admin, reads",           "ops-key-0123456789ab",  &[],                                             NONE,    Reads::Everything),
    Person("a stranger",                "carol-key-0123456789",  &[],                                             NONE,    DECIDED),
    Person("web itself",                WEB, &[],                                                                 NONE,    DECIDED),
    Person("a namesake elsewhere",      "other-key-0123456789",  &[],                                             NONE,    Reads::OfAnotherTenant),
    Person("the owner's namesake",      "other-alice-012345678", &[],                                             NONE,    Reads::OfAnotherTenant),
];

pub(super) fn yaml() -> String {
    let mut yaml = r#"
models:
  main: { provider: openai, base_url: "{model}", model: fake, api_key: "${MODEL_KEY}", retries: 1 }
agents:
  billing: { description: Asks., model: main, tools: [owner, users, groups, two, also, named] }
"#
    .to_owned();
    let lines =
        |line: &dyn Fn(&str, &str) -> String| RULES.map(|(name, terms)| line(name, terms)).concat();
    yaml += "tools:\n";
    yaml += &lines(&|name, _| {
        format!(
            "  {name}: {{ parameters: {{ type: object }}, http: {{ method: POST, url: \"{{tool}}/{name}\" }} }}\n"
        )
    });
    yaml += "policy:\n";
    yaml += &lines(&|name, terms| {
        format!("  - {{ name: {name}, tools: [{name}], decide: hold, {terms}reason: Look. }}\n")
    });
    yaml
}

/// A task of one turn, with its two requests: (index into [`RULES`], request id).
pub(super) struct RequestSpec {
    task: String,
    pub questions: Vec<(usize, String)>,
}

pub(super) async fn ask(app: &TestApp, owner: &Actor<'_>, turn: [usize; 2]) -> RequestSpec {
    app.model
        .then(calls(&turn.map(|rule| (RULES[rule].0, "{}"))));
    let reply = owner.create_task("go").await;
    let pending = reply.body["pending"]
        .as_array()
        .unwrap_or_else(|| panic!("{}", reply.text));
    assert_eq!(
        pending.len(),
        2,
        "each request has its own approvers: {}",
        reply.text
    );
    let question = |rule: usize| {
        let own = |request: &&Value| {
            request["tool_calls"]
                .as_array()
                .unwrap()
                .iter()
                .any(|call| call["needs_decision"] == true && call["name"] == RULES[rule].0)
        };
        (
            rule,
            pending.iter().find(own).unwrap()["request_id"]
                .as_str()
                .unwrap()
                .to_owned(),
        )
    };
    RequestSpec {
        task: reply.str("/task_id"),
        questions: turn.map(question).to_vec(),
    }
}

pub(super) fn actor<'a>(app: &'a TestApp, person: &Person) -> Actor<'a> {
    person
        .2
        .iter()
        .fold(app.actor(person.1), |actor, (name, value)| {
            actor.header(name, value)
        })
}

/// Returns the statuses of POSTs to the three endpoints that decide a request. Every body is
/// invalid, so 422 means that the caller may decide.
async fn deciding(app: &TestApp, person: &Person, request: &str) -> Vec<u16> {
    let (json, form) = ("application/json", "application/x-www-form-urlencoded");
    let mut statuses = Vec::new();
    for suffix in ["", "/approve", "/reject"] {
        for (kind, body) in [(json, r#"{"zzz":1}"#), (form, "zzz=1")] {
            let path = format!("/resume/{request}{suffix}");
            let reply = actor(app, person)
                .send(Method::POST, &path, Some((kind, body.to_owned())))
                .await;
            statuses.push(reply.status);
        }
    }
    statuses
}

/// Returns the statuses of GETs of the request: as JSON, then as each of its three pages. Also
/// returns, for each page, whether it has a form or button that posts to the page's own address.
async fn looking(app: &TestApp, person: &Person, request: &str) -> (Vec<u16>, Vec<bool>) {
    let (mut statuses, mut buttons) = (Vec::new(), Vec::new());
    statuses.push(actor(app, person).request(request).await.status);
    for suffix in ["", "/approve", "/reject"] {
        let path = format!("/resume/{request}{suffix}");
        let page = actor(app, person).accept_html().get(&path).await;
        statuses.push(page.status);
        buttons.push(
            page.text.contains(&format!("action=\"{path}\""))
                || page
                    .text
                    .contains(&format!("action=\"{}{path}\"", app.url())),
        );
    }
    (statuses, buttons)
}

async fn everything(
    app: &TestApp,
    people: impl Iterator<Item = &'static Person>,
    asked: &RequestSpec,
) {
    for person in people {
        let Person(who, _, _, decides, reads) = person;
        let involved = |rules: &[bool; 6]| asked.questions.iter().any(|(rule, _)| rules[*rule]);
        let may_read = match reads {
            Reads::Everything => true,
            Reads::What(Decides::Here) => involved(decides),
            Reads::What(Decides::Elsewhere(rules)) => involved(rules),
            Reads::Nothing | Reads::OfAnotherTenant => false,
        };
        let no = if *reads == Reads::OfAnotherTenant {
            404
        } else {
            403
        };
        let read = if may_read { 200 } else { no };
        for path in ["", "/items"] {
            let reply = actor(app, person)
                .get(&format!("/v1/tasks/{}{path}", asked.task))
                .await;
            assert_eq!(reply.status, read, "{who} {path}: {}", reply.text);
        }
        let tree = actor(app, person)
            .get(&format!("/v1/requests?task_id={}", asked.task))
            .await;
        assert_eq!(tree.status, read, "{who}: {}", tree.text);
        if may_read {
            assert_eq!(tree.count("requests"), 2, "{who}: {}", tree.text);
        }
        let inbox = actor(app, person).get("/v1/requests?limit=200").await;
        assert_eq!(
            inbox.status,
            if *reads == Reads::Nothing { 403 } else { 200 },
            "{who}: {}",
            inbox.text
        );
        for (rule, request) in &asked.questions {
            let (may, about) = (decides[*rule], format!("{who}, {}", RULES[*rule].0));
            let listed = inbox.text.contains(&format!(r#""request_id":"{request}""#));
            assert_eq!(listed, may, "{about}: {}", inbox.text);
            assert_eq!(
                deciding(app, person, request).await,
                [if may { 422 } else { no }; 6],
                "{about}"
            );
            let (statuses, buttons) = looking(app, person, request).await;
            assert_eq!(statuses, [read; 4], "{about}");
            assert_eq!(
                buttons[1..],
                [may; 2],
                "{about}: a button only for a caller who may decide"
            );
            if may_read {
                let shown = actor(app, person).request(request).await;
                assert_eq!(shown.body["can_decide"], may, "{about}");
                assert_eq!(
                    shown.body["allowed_actions"].as_array().unwrap().is_empty(),
                    !may,
                    "{about}"
                );
            }
        }
    }
}

#[apply(on_both)]
async fn each_endpoint_of_a_request_serves_only_the_people_its_rule_names(on: On) {
    let app = TestApp::with(on, &(yaml() + PEOPLE)).await;
    let owner = app.actor("alice-key-0123456789");
    let mut all = Vec::new();
    for turn in TURNS {
        all.push(ask(&app, &owner, turn).await);
    }
    for asked in &all {
        let before = owner.items(&asked.task).await.text;
        everything(&app, on.share(TABLE), asked).await;
        assert_eq!(
            owner.items(&asked.task).await.text,
            before,
            "reading changes nothing"
        );
    }
    assert!(app.tool.ledger().is_empty());
    app.stop().await;
}

#[apply(on_both)]
async fn each_request_is_answered_by_its_people_and_records_the_decider(on: On) {
    let app = TestApp::with(on, &(yaml() + PEOPLE)).await;
    let owner = app.actor("alice-key-0123456789");
    // (index into `TURNS`, index into `RULES`, caller, expected `by` and `via` of the
    // decision). The calls of a turn run once both requests of the turn are answered.
    let answers: [(usize, usize, Actor<'_>, &str, Value); 6] = [
        (0, 0, app.on_behalf_of("alice", ""), "alice", json!("web")),
        (0, 1, app.actor("bob-key-0123456789ab"), "bob", Value::Null),
        (1, 2, app.actor("fay-decide-0123456789"), "fay", Value::Null),
        (
            1,
            3,
            app.on_behalf_of("zoe", "finance"),
            "zoe",
            json!("web"),
        ),
        (
            2,
            4,
            app.actor("alice-decide-01234567"),
            "alice",
            Value::Null,
        ),
        (2, 5, app.actor("sam-key-0123456789ab"), "sam", Value::Null),
    ];
    let mut all = Vec::new();
    for turn in TURNS {
        all.push(ask(&app, &owner, turn).await);
    }
    let (_, two) = &all[1].questions[1];
    let path = format!("/resume/{two}/approve");
    let fay = app.actor("fay-key-0123456789ab");
    assert_eq!(fay.hit(&path).await.str("/status"), "Paused");
    let again = fay.hit(&path).await;
    again.assert_text(409, "/decision/by", "fay");
    let shown = fay.request(two).await;
    assert_eq!(
        (&shown.body["can_decide"], &shown.body["status"]),
        (&json!(false), &json!("pending"))
    );
    assert!(
        !fay.get("/v1/requests").await.text.contains(two.as_str()),
        "she has answered it"
    );
    for (turn, rule, actor, by, via) in answers {
        let (known, request) = &all[turn].questions[rule % 2];
        assert_eq!(*known, rule);
        let done = actor.approve(request).await;
        let status = if rule % 2 == 0 { "Paused" } else { "Completed" };
        done.about(&by).assert_status(200, status);
        let shown = owner.request(request).await;
        assert_eq!(
            (
                shown.str("/decision/by").as_str(),
                &shown.body["decision"]["via"]
            ),
            (by, &via),
            "{}",
            shown.text
        );
        assert_eq!(shown.str("/decision/door"), "key", "{}", shown.text);
        let seen = actor.request(request).await;
        assert_eq!(seen.status, 200, "a decider still reads it: {}", seen.text);
    }
    let ledger = app.tool.ledger();
    let ran: Vec<_> = ledger
        .iter()
        .map(|run| (run.uri.as_str(), run.header("holdpoint-decided-by")))
        .collect();
    assert_eq!(
        ran,
        [
            ("/owner", "alice"),
            ("/users", "bob"),
            ("/groups", "fay"),
            ("/two", "fay,zoe"),
            ("/also", "alice"),
            ("/named", "sam")
        ]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn every_endpoint_is_open_and_one_approval_suffices_without_accounts(on: On) {
    let app = TestApp::with(on, &yaml()).await;
    // Without accounts, one approval is enough, even under the rule `two`, which requires two.
    for turn in [[0, 1], [3, 4], [2, 5]] {
        let asked = ask(&app, &app.anonymous(), turn).await;
        let inbox = app.anonymous().get("/v1/requests").await;
        for (rule, request) in &asked.questions {
            assert!(inbox.text.contains(request.as_str()), "{}", RULES[*rule].0);
            let shown = app.anonymous().request(request).await;
            assert_eq!(
                (shown.status, &shown.body["can_decide"]),
                (200, &json!(true))
            );
            for (kind, body) in [
                ("application/json", r#"{"zzz":1}"#),
                ("application/x-www-form-urlencoded", "zzz=1"),
            ] {
                let reply = app
                    .anonymous()
                    .send(
                        Method::POST,
                        &format!("/resume/{request}"),
                        Some((kind, body.to_owned())),
                    )
                    .await;
                assert_eq!(reply.status, 422, "{}", reply.text);
            }
        }
        for (_, request) in &asked.questions {
            assert_eq!(app.anonymous().approve(request).await.status, 200);
        }
    }
    assert_eq!(
        app.tool.ledger().len(),
        6,
        "also where two approvals are required"
    );
    app.stop().await;
}
