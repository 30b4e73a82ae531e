//! The guards of a tree that no other check covers: limits that hold when several tasks of the tree
//! ask at once.

use holdpoint::task::status::TaskStatus;

use super::stage::Stage;
use super::tree::{Shape, one_small};
use crate::store::house::{House, both};

both! {
    async fn model_answer_is_kept_when_relatives_commit_first(house) {
        let stage = Stage::of_trees(house, Shape::flat(3), one_small).await;
        let root = stage.grown(&stage.parts(0)).await;
        let row = stage.row(root).await;
        let asked = (row.status, row.model_calls, stage.prompt_count());
        assert_eq!(asked, (TaskStatus::Completed, 8, 8), "{}", stage.told(root).await);
        stage.lawful(root).await;
    }

    async fn three_children_that_ask_at_once_keep_the_limit_of_model_calls(house) {
        // The boss is asked twice and each of its leaves twice.
        for most in 2..=8 {
            let mut stage = Stage::of_trees(House::like(&house).await, Shape::flat(3), one_small).await;
            let limits = format!("sub_agents: [leaf], limits: {{ max_model_calls: {most} }}");
            stage.configure(|yaml| yaml.replace("sub_agents: [leaf]", &limits));
            let root = stage.grown(&stage.parts(0)).await;
            let row = stage.row(root).await;
            let expected = if most == 8 { TaskStatus::Completed } else { TaskStatus::Failed };
            let asked = (row.status, row.model_calls, stage.prompt_count());
            assert_eq!(asked, (expected, most, usize::try_from(most).unwrap()), "{}", stage.told(root).await);
        }
    }

    async fn three_children_that_start_tasks_at_once_keep_the_limit_of_tasks(house) {
        let mut stage = Stage::of_trees(house, Shape { depth: 2, children: 3, wide: 0 }, one_small).await;
        let limits = "sub_agents: [mid], limits: { max_tasks: 4, max_model_calls: 100 }";
        stage.configure(|yaml| yaml.replace("sub_agents: [mid]", limits));
        let root = stage.grown(&stage.parts(0)).await;
        let journals = stage.lawful(root).await;
        assert_eq!(journals[&root].row.status, TaskStatus::Completed, "{}", stage.told(root).await);
        assert_eq!(journals.len(), 5, "the root, and four below: {}", stage.told(root).await);
    }
}
