//! Tests reads of a tree that has an unreadable task or a gap in a journal.

use std::collections::BTreeSet;

use macro_rules_attribute::apply;

use super::super::store_fixture::{StoreFixture, both};
use super::{grown, read};

#[apply(both)]
async fn unreadable_task_of_a_tree_is_reported(fixture: StoreFixture) {
    let damages = [
        "update agent_task_item set body = '{' where seq = 2 and task_id = ",
        "delete from agent_task_item where seq = 1 and task_id = ",
        "delete from agent_task_item where seq = 2 and task_id = ",
        "update agent_task set agent_path = '[' where task_id = ",
        "update agent_task set last_seq = 7 where task_id = ",
    ];
    for damage in damages {
        let (grown, sound) = (grown(&fixture).await, fixture.task().await);
        let leaf = grown.leaf(7);
        fixture
            .execute(&format!("{damage}{}", fixture.literal(leaf.0)))
            .await;
        let tree = fixture.store.tree(grown.root, 0).await.unwrap().unwrap();
        assert_eq!(tree.unreadable, BTreeSet::from([leaf]), "{damage}");
        assert_eq!(
            (
                tree.rows.len(),
                tree.items.iter().any(|line| line.task_id == grown.root)
            ),
            (40, true)
        );
        assert_eq!(fixture.store.take_unreadable(), [leaf], "{damage}");
        assert!(fixture.store.tree(sound, 0).await.unwrap().is_some());
    }
    assert!(fixture.store.take_unreadable().is_empty());
}

#[apply(both)]
async fn gap_in_a_journal_is_found_and_only_a_damaged_task_stays_reported(fixture: StoreFixture) {
    let grown = grown(&fixture).await;
    let leaf = grown.leaf(7);
    let tree = read(&fixture, grown.root).await;
    let place = |seq| {
        tree.items
            .iter()
            .find(|item| (item.task_id, item.item.seq) == (leaf, seq))
            .unwrap()
            .event
    };
    let id = fixture.literal(leaf.0);
    fixture
        .execute(&format!(
            "delete from agent_task_item where seq = 1 and task_id = {id}"
        ))
        .await;
    // A read that begins after the missing item does not notice the gap.
    assert!(
        fixture
            .store
            .tree(grown.root, place(1))
            .await
            .unwrap()
            .is_some()
    );
    assert!(
        fixture
            .store
            .tree(grown.root, place(1) - 1)
            .await
            .unwrap()
            .is_some()
    );
    let reported = fixture.store.take_unreadable();
    assert!(reported.contains(&leaf));
    for task in reported {
        assert_eq!(
            fixture.store.damaged_task(task).await.unwrap().is_some(),
            task == leaf
        );
    }
    fixture
        .execute(&format!(
            "delete from agent_task_item where seq = 2 and task_id = {id}"
        ))
        .await;
    assert!(
        fixture
            .store
            .tree(grown.root, place(2) - 1)
            .await
            .unwrap()
            .is_some()
    );
    assert!(fixture.store.take_unreadable().contains(&leaf));
}
