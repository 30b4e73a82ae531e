//! Tests a person's whole way with a mail client and a browser: the mail, its link, the page, the
//! approval and the result. The replica that opened the request is killed on the way.

use serde_json::{Value, json};

use super::process::Replica;
use super::write_configuration;
use crate::support::database::Database;
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::fake_mail_server::FakeMailServer;
use crate::support::fake_tool::FakeTool;
use crate::support::links::SEALING_KEY;
use crate::support::test_app::{ALICE, refunds};
use crate::support::{http_client, pause};

/// Returns the configuration: bob is a member of finance, and a link in a mail to bob may decide.
fn configuration(mail: &FakeMailServer, url: &str) -> String {
    let notify = format!(
        "  people:
    - {{ user: bob, tenant: acme, email: bob@acme.example }}
notify:
  mail: {{ url: \"smtp://127.0.0.1:{}\", from: \"Holdpoint <holdpoint@acme.example>\" }}
  links: {{ may: decide }}
  to:
    - {{ name: by-mail, mail: {{ to: approvers }}, tenants: [acme] }}
secrets: {{ keys: [ {{ id: k1, key: \"{SEALING_KEY}\" }} ] }}
server: {{ public_url: \"{url}\" }}
",
        mail.port
    );
    refunds("{ groups: [finance] }") + &notify
}

/// Returns the first link to a question in the text of a mail.
fn link(text: &str) -> String {
    let mut words = text.split_whitespace();
    let link = words.find(|word| word.contains("/l/"));
    link.unwrap_or_else(|| panic!("{text}")).to_owned()
}

fn digest(page: &str) -> &str {
    let (_, rest) = page.split_once("name=\"digest\" value=\"").unwrap();
    rest.split_once('"').unwrap().0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mailed_link_leads_to_a_result_although_the_replica_that_asked_is_killed() {
    let (model, tool, mail) = (
        FakeModel::start().await,
        FakeTool::start().await,
        FakeMailServer::start().await,
    );
    let database = Database::postgres().await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("holdpoint.yaml");
    let (asks, stays) = (Replica::new(config.clone()), Replica::new(config));
    let yaml = configuration(&mail, &stays.url());
    write_configuration(folder.path(), &yaml, &model, &tool, &database);
    let browser = http_client();
    let first = asks.serve("", &browser).await;
    let second = stays.serve("", &browser).await;

    model.then(calls(&[("refund", r#"{"order": 17, "amount": 120}"#)]));
    let posted = browser.post(format!("{}/v1/tasks", asks.url()));
    let posted = posted.bearer_auth(ALICE).json(&json!({"input": "please"}));
    let task: Value = posted.send().await.unwrap().json().await.unwrap();
    assert_eq!(task["status"], "Paused", "{task}");
    let mails = mail.reached(1).await;
    first.kill().await;

    let link = link(&mails[0].text);
    assert!(link.starts_with(&stays.url()), "{link}");
    // A scanner opens the link before Bob does.
    assert_eq!(browser.head(&link).send().await.unwrap().status(), 200);
    let page = browser.get(&link).header("accept", "text/html");
    let page = page.send().await.unwrap().text().await.unwrap();
    assert!(page.contains("Refund 120 for order 17"), "{page}");
    assert_eq!(tool.count(), 0);

    model.then(text_answer("Paid back."));
    let press = browser
        .post(&link)
        .header("origin", stays.url())
        .header("accept", "text/html");
    let form = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs([("digest", digest(&page)), ("action", "approve")])
        .finish();
    let press = press.header("content-type", "application/x-www-form-urlencoded");
    let pressed = press.body(form).send().await.unwrap();
    assert_eq!(pressed.status(), 303, "{}", pressed.text().await.unwrap());
    let address = format!(
        "{}/v1/tasks/{}",
        stays.url(),
        task["task_id"].as_str().unwrap()
    );
    let done = loop {
        let asked = browser.get(&address).bearer_auth(ALICE);
        let found: Value = asked.send().await.unwrap().json().await.unwrap();
        if found["status"] == "Completed" {
            break found;
        }
        pause().await;
    };
    assert_eq!(done["output"].as_str(), Some("Paid back."));
    assert_eq!(tool.count(), 1);
    let page = browser.get(&link).header("accept", "text/html");
    let page = page.send().await.unwrap().text().await.unwrap();
    assert!(page.contains("Approved") && page.contains("bob"), "{page}");
    assert!(!page.contains("<button"), "{page}");
    second.kill().await;
}
