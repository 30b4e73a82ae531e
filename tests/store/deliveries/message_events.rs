//! Tests the reads of the events that messages are about.

use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::super::notices::want;
use super::super::store_fixture::{StoreFixture, both, finance};
use super::{claim, spread};

#[apply(both)]
async fn events_of_several_deliveries_are_read_together_and_a_damaged_one_hides_no_other(
    fixture: StoreFixture,
) {
    want(&fixture, &["request.created"]);
    for _ in 0..3 {
        fixture.paused(finance(1)).await;
    }
    spread(&fixture, "backend").await;
    let claimed = claim(&fixture, 9).await;
    let ids: Vec<_> = claimed.iter().map(|one| one.id).collect();
    let read = async || fixture.store.message_events(&ids).await.unwrap();
    let events = read().await;
    assert_eq!(events.len(), 6);
    for one in &claimed {
        let found = events[&one.id].as_ref().unwrap();
        let event = &found.event;
        assert_eq!(
            (event.task_id, event.number, event.change),
            (one.root, one.event_number, one.change)
        );
        assert_eq!(found.status_after, TaskStatus::Paused);
    }
    let first = |kind: &str| claimed.iter().find(|one| one.kind == kind).unwrap();
    let (damaged, restored) = (first("request.created"), first("task.paused"));
    let of_another_change = format!(
        "update delivery set change_id = delivery_id where delivery_id = {}",
        fixture.literal(restored.id)
    );
    fixture.database().execute(&of_another_change).await;
    // On SQLite, a body may also have bytes that are no text. Then the whole statement fails.
    let bodies = ["'{'", "cast(x'ff' as text)"];
    let count = if fixture.is_postgres() { 1 } else { 2 };
    for body in bodies.into_iter().take(count) {
        let damage = format!(
            "update agent_task_item set body = {body} where task_id = {} and event_number = {}",
            fixture.literal(damaged.root.0),
            damaged.event_number
        );
        fixture.database().execute(&damage).await;
        let mut events = read().await;
        let event = events.remove(&damaged.id);
        assert!(event.is_some_and(|event| event.is_err()), "{body}");
        assert!(!events.contains_key(&restored.id));
        assert!(events.len() == 4 && events.values().all(Result::is_ok));
    }
}
