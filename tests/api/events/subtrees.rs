//! Tests of the event stream of a sub-agent's task: the events of the root's stream that belong to
//! the sub-agent's task or to the task's descendants.

use macro_rules_attribute::apply;
use serde_json::Value;

use super::super::approval_cycle::on_both;
use super::super::trees::{does, give, id, of, open, paused, pays, still, trees};
use crate::support::event_stream::{Event, durable, names, numbers};
use crate::support::test_app::On;

fn of_tasks(events: &[Event], tasks: &[String]) -> Vec<Event> {
    let own = |event: &&Event| tasks.iter().any(|task| event.data["task_id"] == **task);
    durable(events).iter().filter(own).cloned().collect()
}

#[apply(on_both)]
async fn sub_agent_stream_is_its_part_of_the_root_stream(on: On) {
    let app = trees(on, "").await;
    // The root has two sub-agents `analyst`; the first of them starts the sub-agent `clerk`.
    let first = give("analyst", &does(&[pays("clerk", 1)], "first"));
    let root = paused(&app, &does(&[first, pays("analyst", 2)], "end")).await;
    let root_id = root.str("/task_id");
    let (analysts, clerks) = (
        of(&app, &root_id, "analyst").await,
        of(&app, &root_id, "clerk").await,
    );
    let parent = clerks[0]["parent"]["task_id"].as_str().unwrap();
    let (above, beside): (Vec<_>, Vec<_>) = analysts
        .iter()
        .map(id)
        .partition(|analyst| analyst == parent);
    let (above, beside, clerk) = (above[0].clone(), beside[0].clone(), id(&clerks[0]));
    let mut live = app.owner().watch(&above, None).await;
    let mut told = live.until("caught_up").await;
    let head = app
        .owner()
        .watch(&root_id, None)
        .await
        .until("caught_up")
        .await
        .pop()
        .unwrap();
    assert_eq!(
        told.pop().unwrap().data,
        head.data,
        "the position is counted in the root's numbers"
    );
    for (_, request) in open(&root) {
        app.owner().approve(&request).await;
    }
    still(&app, &root_id).await;
    told.extend(live.rest().await);
    let whole = app.owner().events(&root_id, None).await;
    let parts = [
        (&above, vec![above.clone(), clerk.clone()]),
        (&beside, vec![beside.clone()]),
        (&clerk, vec![clerk.clone()]),
    ];
    assert_eq!(
        durable(&told),
        of_tasks(&whole, &parts[0].1),
        "as it happened"
    );
    for (task, tasks) in parts {
        let expected = of_tasks(&whole, &tasks);
        let own = app.owner().events(task, None).await;
        assert_eq!(durable(&own), expected);
        assert_eq!(
            (names(&expected)[0], *names(&expected).last().unwrap()),
            ("sub_agent.created", "sub_agent.completed")
        );
        let last = *numbers(&expected).last().unwrap();
        let from = app.owner().events(task, Some(numbers(&expected)[1])).await;
        assert_eq!(durable(&from), expected[2..]);
        assert_eq!(app.owner().watch(task, Some(last)).await.status, 204);
        assert_eq!(app.owner().watch(task, Some(last - 1)).await.status, 200);
    }
    let expected: Vec<Value> = durable(&whole)
        .into_iter()
        .map(|event| event.data)
        .collect();
    assert!(expected.iter().all(|data| data["root_task_id"] == *root_id));
    app.stop().await;
}
