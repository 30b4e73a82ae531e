//! Tests the reads of the events that messages are about.

use futures_util::future::join_all;
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
    assert_eq!(claimed.len(), 6);
    let read_all = async || {
        let store = &fixture.store;
        join_all(claimed.iter().map(|one| store.message_event(one.id))).await
    };
    for (one, read) in claimed.iter().zip(read_all().await) {
        let found = read.unwrap().unwrap();
        let event = &found.event;
        assert_eq!(
            (event.task_id, event.number, event.change),
            (one.root, one.event_number, one.change)
        );
        assert_eq!(found.status_after, TaskStatus::Paused);
    }
    let mut all = claimed.iter();
    let restored = all.find(|one| one.kind == "task.paused").unwrap();
    // The first delivery may be alone in a batch, so the test damages the event of a later one.
    let damaged = all.rfind(|one| one.kind == "request.created").unwrap();
    let of_another_change = format!(
        "update delivery set change_id = delivery_id where delivery_id = {}",
        fixture.literal(restored.id)
    );
    fixture.database().execute(&of_another_change).await;
    let row = format!(
        "task_id = {} and event_number = {}",
        fixture.literal(damaged.root.0),
        damaged.event_number
    );
    let text = format!("update agent_task_item set body = '{{' where {row}");
    // With this damage, each statement fails that reads the row.
    let whole = if fixture.is_postgres() {
        format!(
            "alter table agent_task_item rename to item;
             create view agent_task_item as
                select task_id, seq, at, type, root_task_id, event_number, change_id,
                    case when {row} then (1 / (event_number - {}))::text else body end as body
                  from item",
            damaged.event_number
        )
    } else {
        format!("update agent_task_item set body = cast(x'ff' as text) where {row}")
    };
    for damage in [text, whole] {
        fixture.database().execute(&damage).await;
        for (one, read) in claimed.iter().zip(read_all().await) {
            if one.id == damaged.id {
                assert!(read.is_err(), "{damage}");
            } else {
                assert_eq!(read.unwrap().is_none(), one.id == restored.id, "{damage}");
            }
        }
    }
}
