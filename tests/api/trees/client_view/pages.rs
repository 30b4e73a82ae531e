//! Tests the pages of a tree: the timeline of its events, and the message above a request.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::{call, does, give, id, only, open, paused, pays, trees, turn};
use super::analyst_asks;
use crate::api::approval_cycle::on_both;
use crate::api::inbox_pages::timeline;
use crate::support::test_app::{On, TestApp};

/// An event of a tree, as the journal has it.
struct JournalEvent {
    number: i64,
    agent: String,
    is_first_of_task: bool,
    item: Value,
}

/// Returns the events of a tree in the order of the journal.
async fn journal(app: &TestApp, root: &str) -> Vec<JournalEvent> {
    let sql = format!(
        "select cast(i.event_number as text) || ' ' || t.agent || ' ' || cast(i.seq as text) || ' ' || i.body
           from agent_task_item i join agent_task t on t.task_id = i.task_id
          where i.root_task_id = {} order by i.event_number",
        app.database.id(root)
    );
    let rows = app.database.texts(&sql).await;
    let events = rows.iter().map(|row| {
        let parts: Vec<_> = row.splitn(4, ' ').collect();
        JournalEvent {
            number: parts[0].parse().unwrap(),
            agent: parts[1].to_owned(),
            is_first_of_task: parts[2] == "1",
            item: serde_json::from_str(parts[3]).unwrap(),
        }
    });
    events.collect()
}

/// Returns the text with which the line for this event begins in the timeline of the root's page.
/// The root is a task of the supervisor.
fn line(event: &JournalEvent) -> String {
    let path = match event.agent.as_str() {
        "supervisor" => "",
        "analyst" => "<bdi>supervisor › analyst</bdi>: ",
        "clerk" => "<bdi>supervisor › analyst › clerk</bdi>: ",
        "scribe" => "<bdi>supervisor › scribe</bdi>: ",
        other => panic!("no agent {other}"),
    };
    let word = |name: &str| event.item[name].as_str().unwrap();
    let words = match word("type") {
        "task_status" if event.is_first_of_task => "Started.".to_owned(),
        "task_status" => match word("status") {
            "Running" => "Continues.".to_owned(),
            "Paused" => "Waits for a person.".to_owned(),
            ended => format!("{ended}."),
        },
        "user_message" => match event.agent.as_str() {
            "supervisor" => "<bdi>Message of the user alice</bdi>".to_owned(),
            "clerk" => "<bdi>Task from the agent analyst</bdi>".to_owned(),
            _ => "<bdi>Task from the agent supervisor</bdi>".to_owned(),
        },
        "assistant_message" => "The agent answers.".to_owned(),
        "judged" => "Judged: ".to_owned(),
        "sub_agent_started" => {
            let (child, agent) = (word("child_task_id"), word("agent"));
            format!("<a href=\"/tasks/{child}\">Hands work over to the agent {agent}.</a>")
        }
        "intervention_requested" => "A person is asked: approval ".to_owned(),
        "decision" => "<bdi>Approved by alice.</bdi> ".to_owned(),
        "tool_started" => format!("<bdi>{} was started.</bdi>", word("name")),
        "tool_result" => format!("<bdi>{}: done</bdi>", word("name")),
        other => panic!("no item {other}"),
    };
    path.to_owned() + &words
}

#[apply(on_both)]
async fn timeline_of_a_tree_is_the_journal_of_all_its_tasks_in_order(on: On) {
    let app = trees(on, "").await;
    let analyst = give("analyst", &does(&[pays("clerk", 17)], "analyst: paid"));
    let scribe = give("scribe", &[json!("scribe: noted")]);
    let root = paused(&app, &does(&[analyst, scribe], "all done")).await;
    let root_id = root.str("/task_id");
    let end = app.owner().approve(&open(&root)[0].1).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    let journal = journal(&app, &root_id).await;
    let numbers: Vec<i64> = journal.iter().map(|event| event.number).collect();
    let shown = async |task: &str| {
        app.owner()
            .accept_html()
            .get(&format!("/tasks/{task}"))
            .await
            .text
    };
    let page = shown(&root_id).await;
    let entries = timeline(&page);
    assert_eq!(
        entries.iter().map(|entry| entry.number).collect::<Vec<_>>(),
        numbers,
        "{page}"
    );
    assert_eq!(
        numbers,
        (1..=numbers.len())
            .map(|number| i64::try_from(number).unwrap())
            .collect::<Vec<_>>()
    );
    for (entry, event) in entries.iter().zip(&journal) {
        assert_eq!(
            entry.is_below,
            event.agent != "supervisor",
            "{}",
            entry.line
        );
        assert!(
            entry.line.starts_with(&line(event)),
            "#{}: {} instead of {}",
            event.number,
            entry.line,
            line(event)
        );
    }
    let analyst = shown(&id(&only(&app, &root_id, "analyst").await)).await;
    let part = journal
        .iter()
        .filter(|event| ["analyst", "clerk"].contains(&event.agent.as_str()));
    let part: Vec<i64> = part.map(|event| event.number).collect();
    assert_eq!(
        timeline(&analyst)
            .iter()
            .map(|entry| entry.number)
            .collect::<Vec<_>>(),
        part,
        "{analyst}"
    );
    for page in [page, analyst] {
        assert!(page.contains("tree of 4"), "{page}");
    }
    app.stop().await;
}

#[apply(on_both)]
async fn page_of_a_sub_agents_request_keeps_the_users_message_while_the_root_goes_on(on: On) {
    let app = trees(on, "").await;
    let turns = does(&[pays("analyst", 17)], "supervisor: first");
    let root = paused(&app, &turns).await;
    let request = open(&root)[0].1.clone();
    let message = async || {
        let path = format!("/resume/{request}");
        let page = app.owner().accept_html().get(&path).await.text;
        let figure = page.split_once("<figure class=\"said\">");
        let (_, figure) = figure.unwrap_or_else(|| panic!("no message: {page}"));
        figure.split_once("</figure>").unwrap().0.to_owned()
    };
    let before = message().await;
    assert!(before.contains("supervisor: first"), "{before}");
    let end = app.owner().approve(&request).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    let lookup = |order: u32| call("lookup", &json!({"order": order}));
    let lookups = |first: u32| turn(&(first..first + 8).map(lookup).collect::<Vec<_>>());
    let mut turns: Vec<Value> = (0..6).map(|turn| lookups(8 * turn)).collect();
    turns.push(json!("supervisor: second"));
    let body = json!({"input": json!(turns).to_string()});
    let path = format!("/v1/tasks/{}/messages", root.str("/task_id"));
    let end = app.owner().post(&path, &body).await;
    assert_eq!(end.str("/output"), "supervisor: second", "{}", end.text);
    assert_eq!(message().await, before);
    app.stop().await;
}

#[apply(on_both)]
async fn page_of_a_sub_agent_names_no_unreadable_event_outside_the_page(on: On) {
    let app = trees(on, "").await;
    let root = paused(&app, &analyst_asks()).await;
    let analyst = id(&only(&app, &root.str("/task_id"), "analyst").await);
    // The analyst's events after the approval have higher numbers than the root's pause, and the
    // earlier ones have lower numbers. So the numbers of the analyst's events have a gap.
    app.owner().approve(&open(&root)[0].1).await;
    let of_analyst = format!("where task_id = {}", app.database.id(&analyst));
    let numbers = format!(
        "select cast(event_number as text) from agent_task_item {of_analyst} order by event_number"
    );
    let numbers: Vec<i64> = app
        .database
        .texts(&numbers)
        .await
        .iter()
        .map(|number| number.parse().unwrap())
        .collect();
    let gap = numbers.windows(2).find(|pair| pair[1] > pair[0] + 1);
    let after = gap.expect("numbers of other tasks between those of the analyst")[1];
    app.database
        .execute(&format!(
            "update agent_task_item set body = 'x' {of_analyst} and event_number = {after}"
        ))
        .await;
    let of_page = async |query: String| {
        let page = app
            .owner()
            .accept_html()
            .get(&format!("/tasks/{analyst}{query}"))
            .await;
        page.text.matches("This entry cannot be read.").count()
    };
    assert_eq!(of_page(format!("?before={after}")).await, 0);
    assert_eq!(of_page(format!("?before={}", after + 1)).await, 1);
    app.stop().await;
}
