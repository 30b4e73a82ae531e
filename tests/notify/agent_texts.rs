//! Tests that no message contains a name or a summary that an agent has made up, or a question of a
//! tool's server.

use holdpoint::task::request::RequestKind;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::rooms::{HOOK, TEAMS};
use super::{BACKEND, NotifyFixture, store_question, yaml};
use crate::api::approval_cycle::on_both;
use crate::api::gate::AGENT;
use crate::store::store_fixture::{finance, request_spec};
use crate::support::fake_chat_completions::calls;
use crate::support::fake_mail_server::FakeMailServer;
use crate::support::fake_receiver::FakeReceiver;
use crate::support::test_app::{ALICE, On};

const MADE_UP: &str = "https://evil.example/holdpoint/approve";
const RULES: &str = "
  - { name: writes, tools: [Write], decide: hold, approvers: { groups: [finance] } }
  - { name: gives, tools: [clerk], decide: hold, approvers: { groups: [finance] } }
  - { name: others, tools: [\"*\"], decide: hold, approvers: { groups: [finance] } }
gates:
  coding: { description: Coding agents., tools: [], other_tools: judge, report: optional }
";
const AGENTS: &str = "forbidden], sub_agents: [clerk] }\n  clerk: { model: main, tools: [lookup] }\ndefault_agent: billing";
const PEOPLE: &str =
    "    - { user: alice, tenant: acme, groups: [support], key: \"agent-key-0123456789\", may: [gate] }
  people:
    - { user: bob, tenant: acme, email: bob@acme.com }
notify:
  mail: { url: \"smtp://127.0.0.1:{port}\", from: \"Holdpoint <holdpoint@acme.com>\" }";
const BY_MAIL: &str = "    - { name: by-mail, mail: { to: approvers, summaries: true }, gather: 0s, tenants: [acme] }";

/// Starts a service with an entry of each channel, all of which show summaries. The receiver gets
/// the messages of the webhook and of the rooms.
async fn every_channel(on: On) -> (NotifyFixture, FakeMailServer) {
    let with_summaries = |entry: &str| entry.replace(" }, tenants", ", summaries: true }, tenants");
    let teams = TEAMS.replace("name: room", "name: teams");
    let backend = BACKEND.replace("[acme] }", "[acme], events: [request.created] }");
    let entries = [backend.as_str(), HOOK, &teams];
    let entries: Vec<String> = entries.map(with_summaries).into();
    let (hook, mail) = (FakeReceiver::start().await, FakeMailServer::start().await);
    let yaml = yaml(&format!("{}\n{BY_MAIL}", entries.join("\n")), &hook)
        .replace("forbidden] }", AGENTS)
        .replacen("\nauth:", &format!("{RULES}auth:"), 1)
        .replace("notify:", PEOPLE)
        .replace("{port}", &mail.port.to_string());
    (NotifyFixture::configured(on, &yaml, hook).await, mail)
}

async fn propose(fixture: &NotifyFixture, tool: &str) -> String {
    let body = json!({"tool": tool, "arguments": {"path": "x"}});
    let actor = fixture.app.actor(AGENT).header("prefer", "wait=0");
    let reply = actor.post("/v1/gate/calls", &body).await;
    assert_eq!(reply.str("/decision"), "pending", "{}", reply.text);
    reply.str("/request/request_id")
}

/// Returns the brief in the only message of the webhook.
fn brief(fixture: &NotifyFixture) -> Value {
    let [message] = &fixture.server.of("request.created")[..] else {
        panic!("one question")
    };
    message.body["data"]["request"].clone()
}

#[apply(on_both)]
async fn tool_name_that_an_agent_makes_up_at_a_gate_is_in_no_message(on: On) {
    let (fixture, mail) = every_channel(on).await;
    let request = propose(&fixture, MADE_UP).await;
    fixture.counted(&[("sent", 4), ("due", 0)]).await;
    let told = &mail.all()[0];
    assert_eq!(
        told.subject,
        "Waits for you: a tool that the configuration does not name (coding)"
    );
    for text in [&told.text, &told.html] {
        assert!(
            !text.contains("evil") && !text.contains("Summary"),
            "{text}"
        );
    }
    let messages = fixture.server.all();
    assert!(
        messages
            .iter()
            .all(|message| !message.text.contains("evil")),
        "{messages:?}"
    );
    let rooms = messages.iter().filter(|message| message.path != "/backend");
    let words = "A question waits: a tool that the configuration does not name (coding)";
    assert_eq!(
        rooms.filter(|message| message.text.contains(words)).count(),
        2
    );
    let brief = brief(&fixture);
    assert_eq!(
        (&brief["tools"], &brief["calls"], &brief["summaries"]),
        (&json!([]), &json!(1), &json!([]))
    );
    let page = fixture
        .app
        .approver()
        .get(&format!("/resume/{request}"))
        .await;
    assert_eq!(page.str("/tool_calls/0/name"), MADE_UP, "{}", page.text);
}

#[apply(on_both)]
async fn tool_at_a_gate_that_a_rule_lists_is_named_in_messages(on: On) {
    let (fixture, mail) = every_channel(on).await;
    propose(&fixture, "Write").await;
    fixture.counted(&[("sent", 4), ("due", 0)]).await;
    assert_eq!(mail.all()[0].subject, "Waits for you: Write (coding)");
    assert_eq!(
        (&brief(&fixture)["tools"], &brief(&fixture)["summaries"]),
        (&json!(["Write"]), &json!(["Write"]))
    );
}

#[apply(on_both)]
async fn task_of_a_sub_agent_is_in_no_message(on: On) {
    let (fixture, mail) = every_channel(on).await;
    fixture
        .app
        .model
        .then(calls(&[("clerk", r#"{"task":"canary task"}"#)]));
    let reply = fixture
        .app
        .actor(ALICE)
        .post("/v1/tasks", &json!({"input": "please"}))
        .await;
    assert_eq!(reply.str("/status"), "Paused", "{}", reply.text);
    fixture.counted(&[("sent", 4), ("due", 0)]).await;
    let told = &mail.all()[0];
    assert_eq!(told.subject, "Waits for you: clerk (billing)");
    assert!(
        told.text.contains("Summary, not the whole call: clerk\r\n"),
        "{}",
        told.text
    );
    assert!(!told.text.contains("canary") && !told.html.contains("canary"));
    assert!(
        fixture
            .server
            .all()
            .iter()
            .all(|message| !message.text.contains("canary"))
    );
    assert_eq!(brief(&fixture)["summaries"], json!(["clerk"]));
    assert_eq!(
        reply.str("/pending/0/tool_calls/0/summary"),
        "clerk: canary task"
    );
}

#[apply(on_both)]
async fn question_of_a_tools_server_is_in_no_message(on: On) {
    let (fixture, mail) = every_channel(on).await;
    let mut question = request_spec(RequestKind::Elicitation, finance(1), 1);
    question.elicitation = Some(Box::default());
    question.terms.message = Some("files asks: canary".to_owned());
    store_question(fixture.app.store(), question).await;
    fixture.counted(&[("sent", 4), ("due", 0)]).await;
    let told = &mail.all()[0];
    assert!(!told.text.contains("canary") && !told.html.contains("canary"));
    for message in fixture.server.all() {
        assert!(!message.text.contains("canary"), "{}", message.text);
    }
    assert_eq!(brief(&fixture)["message"], "Human intervention required.");
}
