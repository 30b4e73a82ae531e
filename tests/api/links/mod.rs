//! Tests of sealed links: decisions by link, answers that a link cannot give, links that are
//! refused, and links as they are mailed.

mod deciding;
mod keeping;
mod mailed;
mod refused;
mod scanned;
mod states;

use crate::support::links::{DECIDING, PEOPLE, SEALING_KEY};
use crate::support::test_app::{ACCOUNTS, On, REFUNDS, Reply, TestApp};

/// Starts a service with the refund agent. The agent's rule has these approvers, and links may be
/// used to decide.
async fn linked(on: On, approvers: &str) -> TestApp {
    TestApp::with(on, &yaml(approvers)).await
}

fn yaml(approvers: &str) -> String {
    let refunds = REFUNDS.replace("{approvers}", approvers);
    format!("{refunds}{ACCOUNTS}{PEOPLE}{}", sealed())
}

fn sealed() -> String {
    format!("secrets: {{ keys: [ {{ id: k1, key: \"{SEALING_KEY}\" }} ] }}\n{DECIDING}")
}

/// Gets the page of a link, as a browser without a key and without a cookie does.
async fn page(app: &TestApp, path: &str) -> Reply {
    page_in(app, path, "en").await
}

async fn page_in(app: &TestApp, path: &str, language: &str) -> Reply {
    let browser = app.anonymous().header("accept", "text/html,*/*;q=0.8");
    browser.header("accept-language", language).get(path).await
}

fn digest(page: &Reply) -> String {
    let (_, rest) = page.text.split_once("name=\"digest\" value=\"").unwrap();
    rest.split_once('"').unwrap().0.to_owned()
}

/// Posts fields to a link, as the form on the link's page does in a browser.
async fn press(app: &TestApp, path: &str, fields: &[(&str, &str)]) -> Reply {
    press_from(app, path, fields, &app.url()).await
}

async fn press_from(app: &TestApp, path: &str, fields: &[(&str, &str)], origin: &str) -> Reply {
    let browser = app.anonymous().header("accept", "text/html,*/*;q=0.8");
    let browser = if origin.is_empty() {
        browser
    } else {
        browser.header("origin", origin)
    };
    browser.submit(path, fields).await
}

/// Waits until a task has ended, because the reply to an answer by link does not wait for the end.
/// Asserts the task's status.
async fn ended(app: &TestApp, task: &str, status: &str) {
    app.owner().events(task, None).await;
    let task = app.owner().task(task).await;
    assert_eq!(task.str("/status"), status, "{}", task.text);
}

/// Opens the page of a link and sends its form with this action; `more` are further fields.
async fn answer(app: &TestApp, path: &str, action: &str, more: &[(&str, &str)]) -> Reply {
    let digest = digest(&page(app, path).await);
    let fields = [("digest", digest.as_str()), ("action", action)];
    press(app, path, &[&fields[..], more].concat()).await
}
