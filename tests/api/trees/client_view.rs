//! Tests of a tree of tasks as a client sees it: the tasks that show a request, the data that each
//! task reports, and the prompts of the models.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::inbox_pages::timeline;
use super::super::request_kinds::items;
use super::{
    approve, assert_invariants, begin, call, completed, give, id, of, only, open, outcomes, paused,
    pays, prompts, refund, scripted_answer, statuses, still, task, text, tree, trees, turn, typed,
};
use crate::support::eventually;
use crate::support::test_app::{On, TestApp};

/// Returns the supervisor's turns. The first turn calls the analyst, whose refund is held, and the
/// clerk, which completes at once.
fn analyst_asks() -> Vec<Value> {
    vec![
        turn(&[
            pays("analyst", 17),
            give("clerk", &[json!("clerk: nothing to do")]),
        ]),
        json!("supervisor: all done"),
    ]
}

/// Returns the numbers of tokens and of model calls, summed over the journals of a tree.
async fn spent(app: &TestApp, root: &str) -> (i64, i64) {
    let (mut tokens, mut asked) = (0, 0);
    for task in tree(app, root).await {
        for answer in typed(&items(app, &id(&task)).await, "assistant_message") {
            tokens += answer["usage"]["total_tokens"].as_i64().unwrap();
            asked += 1;
        }
    }
    (tokens, asked)
}

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

/// Returns the beginning of the line that a timeline has for an event. The tree's root is the
/// supervisor.
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
    let analyst = give(
        "analyst",
        &[turn(&[pays("clerk", 17)]), json!("analyst: paid")],
    );
    let scribe = give("scribe", &[json!("scribe: noted")]);
    let root = paused(&app, &[turn(&[analyst, scribe]), json!("all done")]).await;
    let root_id = root.str("/task_id");
    let end = approve(&app.owner(), &open(&root)[0].1).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    let journal = journal(&app, &root_id).await;
    let numbers: Vec<i64> = journal.iter().map(|event| event.number).collect();
    let shown = async |task: &str| {
        app.owner()
            .header("accept", "text/html")
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
    app.stop().await;
}

#[apply(on_both)]
async fn page_of_a_sub_agents_request_keeps_the_users_message_while_the_root_goes_on(on: On) {
    let app = trees(on, "").await;
    let turns = [turn(&[pays("analyst", 17)]), json!("supervisor: first")];
    let root = paused(&app, &turns).await;
    let request = open(&root)[0].1.clone();
    let message = async || {
        let path = format!("/resume/{request}");
        let page = app
            .owner()
            .header("accept", "text/html")
            .get(&path)
            .await
            .text;
        let figure = page.split_once("<figure class=\"said\">");
        let (_, figure) = figure.unwrap_or_else(|| panic!("no message: {page}"));
        figure.split_once("</figure>").unwrap().0.to_owned()
    };
    let before = message().await;
    assert!(before.contains("supervisor: first"), "{before}");
    let end = approve(&app.owner(), &request).await;
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
async fn request_of_a_sub_agent_is_shown_at_its_root(on: On) {
    let app = trees(on, "").await;
    let root = paused(&app, &analyst_asks()).await;
    let root_id = root.str("/task_id");
    let (analyst, clerk) = (
        only(&app, &root_id, "analyst").await,
        only(&app, &root_id, "clerk").await,
    );
    let [(asking, request)] = &open(&root)[..] else {
        panic!("{}", root.text)
    };
    assert_eq!(*asking, id(&analyst));
    let asked = &root.body["pending"][0];
    assert_eq!(asked["agent_path"], json!(["supervisor", "analyst"]));
    assert_eq!(
        (&asked["root_task_id"], &asked["session_id"]),
        (&root.body["task_id"], &root.body["session_id"])
    );
    assert_eq!(asked["tool_calls"][0]["summary"], "Refund 120 for order 17");
    assert_eq!(
        (&asked["kind"], &asked["can_decide"]),
        (&json!("approval"), &json!(true))
    );
    assert_eq!(analyst["status"], "Paused");
    assert_eq!(
        (&analyst["pending"][0], &clerk["pending"]),
        (asked, &json!([]))
    );
    assert_eq!(
        (&clerk["status"], &clerk["output"]),
        (&json!("Completed"), &json!("clerk: nothing to do"))
    );
    for child in [&id(&analyst), &id(&clerk)] {
        let shown = task(&app, child).await;
        assert_eq!(
            shown.body,
            only(&app, &root_id, shown.body["agent"].as_str().unwrap()).await
        );
    }
    for task in [&root_id, &id(&clerk)] {
        let page = app
            .owner()
            .header("accept", "text/html")
            .get(&format!("/tasks/{task}"))
            .await;
        assert!(page.text.contains("tree of 3"), "{}", page.text);
    }

    let inbox = app.owner().get("/v1/requests").await;
    assert_eq!(
        inbox.body["requests"].as_array().unwrap().len(),
        1,
        "{}",
        inbox.text
    );
    assert_eq!(inbox.body["requests"][0], *asked);
    for of_tree in [&root_id, &id(&analyst), &id(&clerk)] {
        let found = app
            .owner()
            .get(&format!("/v1/requests?task_id={of_tree}"))
            .await;
        assert_eq!(
            found.body["requests"].as_array().unwrap().len(),
            1,
            "{}",
            found.text
        );
    }
    let by_agent = |agent: &str| format!("/v1/requests?agent={agent}");
    assert_eq!(
        app.owner().get(&by_agent("analyst")).await.body["requests"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let page = app
        .owner()
        .header("accept", "text/html")
        .get(&format!("/resume/{request}"))
        .await;
    assert!(page.text.contains("supervisor › analyst"), "{}", page.text);

    let end = approve(&app.owner(), request).await;
    end.assert_status(200, "Completed");
    assert_eq!(
        (end.str("/task_id"), end.str("/output")),
        (root_id.clone(), "supervisor: all done".to_owned())
    );
    let ledger = app.tool.ledger();
    assert_eq!(ledger.len(), 1);
    assert_eq!(
        (
            ledger[0].header("holdpoint-task-id"),
            ledger[0].header("holdpoint-user")
        ),
        (id(&analyst).as_str(), "alice")
    );
    assert_eq!(ledger[0].header("holdpoint-decided-by"), "alice");
    let decided = app.owner().get(&format!("/resume/{request}")).await;
    assert_eq!(
        (decided.str("/status"), decided.str("/decision/action")),
        ("resumed".to_owned(), "approve".to_owned())
    );
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn parent_is_told_only_the_final_output_of_its_sub_agent(on: On) {
    let app = trees(on, "").await;
    app.tool.answers(200, "the-tools-own-words");
    let root = paused(&app, &analyst_asks()).await;
    let end = approve(&app.owner(), &open(&root)[0].1).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    let told = prompts(&app, "supervisor");
    assert_eq!(
        told.len(),
        2,
        "the model is asked again only when all calls have results: {told:#?}"
    );
    let messages = told[1]["messages"].as_array().unwrap();
    let roles: Vec<_> = messages
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "tool"]);
    assert_eq!(
        (text(&messages[3]), text(&messages[4])),
        (
            "analyst paid 17".to_owned(),
            "clerk: nothing to do".to_owned()
        )
    );
    assert!(!json!(told).to_string().contains("the-tools-own-words"));
    let analyst = prompts(&app, "analyst");
    assert_eq!(analyst.len(), 2);
    let roles: Vec<_> = analyst[1]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["role"].clone())
        .collect();
    assert_eq!(
        roles,
        ["system", "user", "assistant", "tool"],
        "a sub-agent sees nothing of its parent's conversation"
    );
    assert_eq!(
        text(&analyst[1]["messages"][1]),
        json!([[refund(17)], "analyst paid 17"]).to_string()
    );
    assert_eq!(text(&analyst[1]["messages"][3]), "the-tools-own-words");
    app.stop().await;
}

#[apply(on_both)]
async fn task_of_a_sub_agent_names_its_parent_root_and_owner(on: On) {
    let app = trees(on, "").await;
    let body = json!({"input": json!(analyst_asks()).to_string(), "session_id": "desk-7", "metadata": {"ticket": "T-1"}});
    let root = app.owner().post("/v1/tasks", &body).await;
    let root_id = root.str("/task_id");
    let started = items(&app, &root_id).await;
    let starts = typed(&started, "sub_agent_started");
    assert_eq!(starts.len(), 2, "{started:#?}");
    let agents = app.owner().get("/v1/agents").await;
    for start in starts {
        let child = task(&app, start["child_task_id"].as_str().unwrap())
            .await
            .body;
        assert_eq!(child["agent"], start["agent"]);
        assert_eq!(
            child["parent"],
            json!({"task_id": root_id, "tool_call_id": start["tool_call_id"]})
        );
        assert_eq!(
            (
                &child["root_task_id"],
                &child["session_id"],
                &child["user_id"]
            ),
            (&json!(root_id), &json!("desk-7"), &json!("alice"))
        );
        let card = agents.body["agents"]
            .as_array()
            .unwrap()
            .iter()
            .find(|card| card["name"] == child["agent"])
            .unwrap()
            .clone();
        assert_eq!(child["agent_version"], card["agent_version"]);
        let journal = items(&app, &id(&child)).await;
        assert_eq!(
            (
                &journal[0]["type"],
                &journal[0]["status"],
                &journal[1]["type"]
            ),
            (
                &json!("task_status"),
                &json!("Running"),
                &json!("user_message")
            )
        );
        assert_eq!(journal[1]["by"], "alice");
        assert_eq!(
            journal[0]["at"], start["at"],
            "the child's journal begins in the commit that starts it"
        );
    }
    let end = approve(&app.owner(), &open(&root)[0].1).await;
    let spent = spent(&app, &root_id).await;
    assert_eq!(
        (
            end.body["usage"]["total_tokens"].as_i64(),
            end.body["usage"]["model_calls"].as_i64()
        ),
        (Some(spent.0), Some(spent.1))
    );
    assert_eq!(app.model.sent().len(), 5);
    assert_eq!(spent.1, 5);
    assert_eq!(
        only(&app, &root_id, "analyst").await["usage"]["model_calls"],
        2
    );
    assert_eq!(
        only(&app, &root_id, "clerk").await["usage"]["model_calls"],
        1
    );
    app.stop().await;
}

#[apply(on_both)]
async fn status_reaches_the_root_in_the_commit_that_changes_it(on: On) {
    let app = trees(on, "").await;
    let clerk = pays("clerk", 17);
    let root = paused(
        &app,
        &[
            turn(&[give("analyst", &[turn(&[clerk]), json!("analyst: paid")])]),
            json!("ok"),
        ],
    )
    .await;
    let root_id = root.str("/task_id");
    let path = [
        root_id.clone(),
        id(&only(&app, &root_id, "analyst").await),
        id(&only(&app, &root_id, "clerk").await),
    ];
    assert_eq!(
        root.body["pending"][0]["agent_path"],
        json!(["supervisor", "analyst", "clerk"])
    );
    for one in &path {
        let shown = task(&app, one).await;
        assert_eq!(
            (shown.str("/status").as_str(), &shown.body["pending"]),
            ("Paused", &root.body["pending"])
        );
    }
    let end = approve(&app.owner(), &open(&root)[0].1).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    let mut journals = Vec::new();
    for one in &path {
        journals.push(items(&app, one).await);
    }
    let at = |journal: &[Value], nth: usize| typed(journal, "task_status")[nth]["at"].clone();
    for journal in &journals {
        assert_eq!(
            statuses(journal),
            ["Running", "Paused", "Running", "Completed"],
            "{journal:#?}"
        );
        assert_eq!(at(journal, 1), at(&journals[2], 1), "paused together");
        assert_eq!(at(journal, 2), at(&journals[2], 2), "resumed together");
    }
    assert_eq!(
        at(&journals[2], 1),
        typed(&journals[2], "intervention_requested")[0]["at"]
    );
    assert_eq!(
        at(&journals[2], 2),
        typed(&journals[2], "decision")[0]["at"]
    );
    assert_eq!(outcomes(&journals[0]), [("analyst", "succeeded")]);
    assert_eq!(outcomes(&journals[1]), [("clerk", "succeeded")]);
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn lists_show_only_roots_unless_a_tree_is_asked_for(on: On) {
    let app = trees(on, "").await;
    let (one, other) = (
        paused(&app, &analyst_asks()).await,
        completed(&app, &[json!("nothing")]).await,
    );
    let listed = app.owner().get("/v1/tasks").await;
    let ids: Vec<_> = listed.body["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(id)
        .collect();
    assert_eq!(ids, [other.str("/task_id"), one.str("/task_id")]);
    assert_eq!(listed.body["tasks"][1], one.body);
    let tree = tree(&app, &one.str("/task_id")).await;
    let agents: Vec<_> = tree
        .iter()
        .map(|task| task["agent"].as_str().unwrap())
        .collect();
    assert_eq!((agents[0], agents.len()), ("supervisor", 3));
    assert!(
        tree.iter()
            .all(|task| task["root_task_id"] == one.body["task_id"])
    );
    let path = format!(
        "/v1/tasks?root_task_id={}&status=Completed",
        one.str("/task_id")
    );
    let filtered = app.owner().get(&path).await;
    assert_eq!(
        filtered.body["tasks"].as_array().unwrap().len(),
        1,
        "{}",
        filtered.text
    );
    assert_eq!(filtered.str("/tasks/0/agent"), "clerk");
    app.stop().await;
}

#[apply(on_both)]
async fn client_waits_for_a_sub_agent_as_for_a_root(on: On) {
    let app = trees(on, "").await;
    app.tool.close();
    let slow = turn(&[call("lookup", &json!({"order": 1}))]);
    let program = [
        turn(&[
            give("analyst", &[slow, json!("analyst: looked")]),
            pays("clerk", 17),
        ]),
        json!("ok"),
    ];
    let body = json!({"input": json!(program).to_string()});
    let root = app
        .owner()
        .header("prefer", "respond-async")
        .post("/v1/tasks", &body)
        .await;
    root.assert_status(202, "Running");
    let root_id = root.str("/task_id");
    app.tool.reached(1).await;
    let started = async || of(&app, &root_id, "clerk").await.first().map(id);
    let clerk = eventually("the clerk is started", started).await;
    assert_eq!(still(&app, &clerk).await.str("/status"), "Paused");
    let shown = task(&app, &root_id).await;
    assert_eq!(
        shown.str("/status"),
        "Running",
        "one of its sub-agents works"
    );
    assert_eq!(shown.body["pending"].as_array().unwrap().len(), 1);
    let analyst = id(&only(&app, &root_id, "analyst").await);
    let zero = app
        .owner()
        .header("prefer", "wait=0")
        .get(&format!("/v1/tasks/{analyst}"))
        .await;
    assert_eq!(zero.str("/status"), "Running");
    let (waited, ()) = tokio::join!(still(&app, &analyst), async { app.tool.open() });
    assert_eq!(
        (waited.str("/status"), waited.str("/output")),
        ("Completed".to_owned(), "analyst: looked".to_owned())
    );
    assert_eq!(still(&app, &root_id).await.str("/status"), "Paused");
    app.stop().await;
}

#[apply(on_both)]
async fn decision_is_taken_while_a_sibling_works(on: On) {
    let app = trees(on, "").await;
    app.tool.close();
    let slow = turn(&[call("lookup", &json!({"order": 1}))]);
    let held = turn(&[call(
        "request_human_guidance",
        &json!({"question": "Which?"}),
    )]);
    let program = [
        turn(&[
            give("analyst", &[slow]),
            give("clerk", &[held, json!("clerk: heard")]),
        ]),
        json!("ok"),
    ];
    let body = json!({"input": json!(program).to_string()});
    let root = app
        .owner()
        .header("prefer", "respond-async")
        .post("/v1/tasks", &body)
        .await;
    let root_id = root.str("/task_id");
    app.tool.reached(1).await;
    let asked = async || open(&task(&app, &root_id).await).pop();
    let (_, request) = eventually("the clerk asks", asked).await;
    let body = json!({"action": "respond", "response": {"answer": "north"}});
    let taken = app
        .owner()
        .header("prefer", "wait=0")
        .post(&format!("/resume/{request}"), &body)
        .await;
    taken.assert_status(202, "Running");
    let clerk = id(&only(&app, &root_id, "clerk").await);
    assert_eq!(still(&app, &clerk).await.str("/output"), "clerk: heard");
    app.tool.open();
    let end = still(&app, &root_id).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    assert_eq!(
        statuses(&items(&app, &root_id).await),
        ["Running", "Completed"],
        "something ran all the time"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn page_of_a_sub_agent_names_no_unreadable_event_outside_the_page(on: On) {
    let app = trees(on, "").await;
    let root = paused(&app, &analyst_asks()).await;
    let analyst = id(&only(&app, &root.str("/task_id"), "analyst").await);
    // After the approval, the event number of the root's pause lies between the numbers of the
    // analyst's events before and after the approval.
    approve(&app.owner(), &open(&root)[0].1).await;
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
            .header("accept", "text/html")
            .get(&format!("/tasks/{analyst}{query}"))
            .await;
        page.text.matches("This entry cannot be read.").count()
    };
    assert_eq!(of_page(format!("?before={after}")).await, 0);
    assert_eq!(of_page(format!("?before={}", after + 1)).await, 1);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tree_goes_on_after_a_restart_and_on_another_replica() {
    let mut app = trees(On::Postgres, "").await;
    let clerk = pays("clerk", 17);
    let root = paused(&app, &[turn(&[give("analyst", &[turn(&[clerk])])])]).await;
    app.restart().await;
    let other = app.replica().await;
    other.model.otherwise(scripted_answer);
    let shown = task(&other, &root.str("/task_id")).await;
    assert_eq!(
        shown.body["pending"][0]["request_id"],
        root.body["pending"][0]["request_id"]
    );
    let end = approve(&other.owner(), &open(&root)[0].1).await;
    assert_eq!(
        (end.str("/status"), end.str("/output")),
        (
            "Completed".to_owned(),
            "supervisor: analyst: clerk paid 17".to_owned()
        )
    );
    assert_eq!(app.tool.ledger().len(), 1);
    assert_invariants(&app, &root.str("/task_id")).await;
    other.stop().await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_waiting_for_a_running_tree_is_answered_when_it_pauses() {
    let app = trees(On::Sqlite, "").await;
    let root = begin(
        &app,
        &[turn(&[give(
            "analyst",
            &[turn(&[pays("clerk", 1), pays("clerk", 2)])],
        )])],
    )
    .await;
    root.assert_status(201, "Paused");
    assert_eq!(open(&root).len(), 2);
    app.stop().await;
}
