//! Tests `holdpoint notify`: a ping to one receiver, the receiver's answer and the exit codes.

use super::holdpoint;
use super::served_binary::Folder;
use crate::notify::NEW;
use crate::support::api_contract;
use crate::support::fake_mail_server::FakeMailServer;
use crate::support::fake_receiver::FakeReceiver;

const SMALL: &str = "models: { m: { provider: openai, model: x, base_url: 'http://127.0.0.1:9/v1' } }\nagents: { a: { model: m } }\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ping_is_signed_and_its_answer_is_printed() {
    let (hook, folder) = (FakeReceiver::start().await, Folder::new());
    let entry = format!(
        "{{ name: backend, webhook: {{ url: '{}/x', secrets: ['${{HOOK}}'] }} }}",
        hook.url
    );
    let yaml = format!("{SMALL}notify: {{ to: [ {entry} ] }}\n");
    std::fs::write(folder.file("holdpoint.yaml"), yaml).unwrap();
    let run = |name: &str| {
        let arguments = ["notify", name, "--config", "holdpoint.yaml"];
        holdpoint(folder.path(), &arguments, &[("HOOK", NEW)])
    };
    let sent = run("backend");
    assert_eq!(sent.code, Some(0), "{}", sent.err);
    assert!(
        sent.out.starts_with("backend: 204 in ") && sent.out.ends_with(" ms\n"),
        "{}",
        sent.out
    );
    let message = &hook.all()[0];
    assert!(message.is_signed_with(NEW) && message.id().starts_with("ping_"));
    assert_eq!(
        (message.kind(), &message.body["data"]),
        ("ping", &serde_json::json!({"target": "backend"}))
    );
    assert!(
        api_contract::is_a("WebhookMessage", &message.body),
        "{}",
        message.text
    );
    hook.answers(500);
    let failed = run("backend");
    assert_eq!((failed.code, failed.out.as_str()), (Some(1), ""));
    assert!(
        failed.err.contains("backend: 500 in ") && failed.err.contains("no 2xx"),
        "{}",
        failed.err
    );
    let unknown = run("other");
    assert_eq!(unknown.code, Some(2));
    assert!(
        unknown.err.contains("`other`; known are `backend`"),
        "{}",
        unknown.err
    );
    assert!(!format!("{}{}{}", sent.err, failed.err, unknown.err).contains(NEW));
}

#[test]
fn secret_that_stands_in_the_file_is_warned_about() {
    let folder = Folder::new();
    let entry = format!(
        "{{ name: backend, webhook: {{ url: 'http://127.0.0.1:9/', secrets: ['{NEW}'] }} }}"
    );
    std::fs::write(
        folder.file("holdpoint.yaml"),
        format!("{SMALL}notify: {{ to: [ {entry} ] }}\n"),
    )
    .unwrap();
    let done = holdpoint(folder.path(), &["check", "--config", "holdpoint.yaml"], &[]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(
        done.err
            .contains("notify.to[0].webhook.secrets[0]: this secret stands in the file"),
        "{}",
        done.err
    );
    assert!(!done.err.contains(NEW));
}

#[test]
fn check_says_whom_the_questions_of_each_rule_reach() {
    let folder = Folder::new();
    let yaml = format!(
        "{SMALL}tools: {{ pay: {{ http: {{ url: 'http://127.0.0.1:9/' }} }}, drop: {{ http: {{ url: 'http://127.0.0.1:9/' }} }} }}
auth:
  api_keys: [ {{ user: alice, key: '${{ALICE}}' }}, {{ user: bob, groups: [finance], key: '${{BOB}}' }} ]
  people: [ {{ user: bob, email: bob@acme.com }} ]
policy:
  - {{ name: payments, tools: [pay], decide: hold, approvers: {{ groups: [finance] }} }}
  - {{ name: drops, tools: [drop], decide: hold, approvers: {{ users: [alice] }} }}
notify:
  mail: {{ url: 'smtp://127.0.0.1:9', from: holdpoint@acme.com }}
  to: [ {{ name: by-mail, mail: {{}} }} ]
"
    );
    std::fs::write(folder.file("holdpoint.yaml"), yaml).unwrap();
    let keys = [
        ("ALICE", "alice-key-0123456789"),
        ("BOB", "bob-key-0123456789ab"),
    ];
    let done = holdpoint(
        folder.path(),
        &["check", "--config", "holdpoint.yaml"],
        &keys,
    );
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert_eq!(
        done.out,
        "The configuration is valid. Agents: 1, tools: 2, rules: 2.\n\
         A question of the rule `payments` reaches bob (by-mail).\n\
         A question of the rule `drops` reaches nobody.\n"
    );
    let warned =
        "policy[1].approvers: rule `drops`: no message is sent about this rule's questions";
    assert!(done.err.contains(warned), "{}", done.err);
    assert!(
        !format!("{}{}", done.out, done.err).contains('@'),
        "no address is printed"
    );
}

#[test]
fn check_of_a_file_without_receivers_warns_that_no_person_is_told() {
    let folder = Folder::new();
    let yaml = format!(
        "{SMALL}tools: {{ pay: {{ http: {{ url: 'http://127.0.0.1:9/' }} }} }}
auth: {{ api_keys: [ {{ user: bob, groups: [finance], key: '${{BOB}}' }} ] }}
policy: [ {{ name: payments, tools: [pay], decide: hold, approvers: {{ groups: [finance] }} }} ]
notify: {{ to: [] }}
"
    );
    std::fs::write(folder.file("holdpoint.yaml"), yaml).unwrap();
    let arguments = ["check", "--config", "holdpoint.yaml"];
    let done = holdpoint(
        folder.path(),
        &arguments,
        &[("BOB", "bob-key-0123456789ab")],
    );
    assert_eq!(done.code, Some(0), "{}", done.err);
    let told = "A question of the rule `payments` reaches nobody.\n";
    assert!(done.out.ends_with(told), "{}", done.out);
    let warned = ": notify.to: no entry: nobody is told of the rules' questions";
    assert!(
        done.err.starts_with("warning: ") && done.err.contains(warned),
        "{}",
        done.err
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ping_by_mail_fails_if_nobody_whom_the_entry_names_has_an_address() {
    let (server, folder) = (FakeMailServer::start().await, Folder::new());
    let accounts = "auth:\n  api_keys: [ { user: carol, tenant: acme, key: '${KEY}' } ]\n";
    let entry = "{ name: by-mail, mail: { to: { users: [carol] } } }";
    for (people, code) in [
        ("", 1),
        ("  people: [ { user: carol, tenant: acme } ]\n", 1),
        (
            "  people: [ { user: carol, tenant: acme, email: carol@acme.com } ]\n",
            0,
        ),
    ] {
        let mail = format!(
            "{{ url: 'smtp://127.0.0.1:{}', from: 'Holdpoint <holdpoint@acme.com>' }}",
            server.port
        );
        let yaml = format!(
            "{SMALL}server: {{ public_url: 'http://127.0.0.1:8080' }}\n{accounts}{people}notify: {{ mail: {mail}, to: [ {entry} ] }}\n"
        );
        std::fs::write(folder.file("holdpoint.yaml"), yaml).unwrap();
        let arguments = ["notify", "by-mail", "--config", "holdpoint.yaml"];
        let done = holdpoint(folder.path(), &arguments, &[("KEY", NEW)]);
        assert_eq!(done.code, Some(code), "{people}: {}", done.err);
        let expected = "by-mail: none of the entry's people has an address\n";
        assert_eq!(done.err.contains(expected), code == 1, "{}", done.err);
    }
}
