//! Compares the store's lists of open requests with a list in memory, while random requests with
//! random approvers open and close.

use holdpoint::store::{RequestFilter, Viewer};
use holdpoint::task::decision::Action;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::request::{RequestKind, RequestSpec};
use holdpoint::task::status::RequestStatus;
use holdpoint::task::verdict::{Approvers, Terms};

use super::store_fixture::{StoreFixture, asked, both};
use crate::support::dice::Dice;
use crate::support::repetitions;

const USERS: [&str; 4] = ["alice", "bob", "carol", "dave"];
const GROUPS: [&str; 3] = ["finance", "leads", "ops"];

fn some(dice: &mut Dice, of: &[&str]) -> Vec<String> {
    let drawn = of.iter().filter(|_| dice.one_in(3));
    drawn.map(ToString::to_string).collect()
}

struct Open {
    task: TaskId,
    owner: &'static str,
    asked: RequestSpec,
}

impl Open {
    /// Returns whether the approvers name the person: as the owner, by user id, or through a group.
    fn names(&self, person: &Viewer) -> bool {
        let approvers = &self.asked.terms.approvers;
        let (owner, users, groups) = (approvers.owner, &approvers.users, &approvers.groups);
        let user = person.user_id.as_str();
        (owner && self.owner == user)
            || users.iter().any(|name| name == user)
            || groups.iter().any(|group| person.groups.contains(group))
    }

    /// Returns whether the person may decide the request. If the person owns the task, the rule
    /// must name the owner: a user id or a group is not enough.
    fn is_open_to(&self, person: &Viewer) -> bool {
        let own = self.owner == person.user_id.as_str();
        self.names(person) && (!own || self.asked.terms.approvers.owner)
    }
}

async fn open_one(fixture: &StoreFixture, dice: &mut Dice) -> Open {
    let owner = dice.pick(&USERS);
    let (users, groups) = (some(dice, &USERS), some(dice, &GROUPS));
    let approvers = Approvers {
        // Every request needs an approver.
        owner: dice.one_in(2) || (users.is_empty() && groups.is_empty()),
        users,
        groups,
        required: 1,
        ..Approvers::default()
    };
    let task = fixture.task_of("acme", owner).await;
    let terms = Terms {
        approvers,
        ..Terms::default()
    };
    let asked = asked(RequestKind::Approval, terms, 1);
    fixture.pause(task, &asked).await;
    Open { task, owner, asked }
}

fn ids<'a>(open: impl Iterator<Item = &'a Open>) -> Vec<RequestId> {
    let mut ids: Vec<_> = open.map(|open| open.asked.request_id).collect();
    ids.sort_unstable();
    ids
}

both! {
    async fn lists_hold_exactly_the_open_requests_of_a_person_after_each_commit(fixture) {
        let mut dice = Dice(if fixture.is_postgres() { 1 } else { 2 });
        let mut open: Vec<Open> = Vec::new();
        let mut listed = 0;
        for step in 0..repetitions(300, 10_000) {
            if open.len() < 12 && !dice.one_in(3) {
                open.push(open_one(&fixture, &mut dice).await);
            } else if !open.is_empty() {
                let Open { task, asked, .. } = open.swap_remove(usize::try_from(dice.below(open.len() as u64)).unwrap());
                let action = if dice.one_in(2) { Action::Approve } else { Action::Reject };
                let decided = fixture.deciding(task, &asked, "erin", action).await;
                fixture.write(decided).await.unwrap();
            }
            let person = Viewer {
                user_id: dice.pick(&USERS).into(),
                groups: some(&mut dice, &GROUPS),
                decides_everything: false,
            };
            let filter = RequestFilter {
                tenant: "acme".to_owned(),
                person: Some(person.clone()),
                statuses: vec![RequestStatus::Pending],
                limit: 50,
                ..RequestFilter::default()
            };
            let page = fixture.store.requests(&filter).await.unwrap();
            let found: Vec<_> = page.iter().map(|row| row.spec.request_id).collect();
            assert_eq!(found, ids(open.iter().filter(|open| open.names(&person))), "step {step}, {person:?}");
            let inbox = fixture.store.open_requests(&filter).await.unwrap();
            let found: Vec<_> = inbox.iter().map(|request| request.id).collect();
            assert_eq!(found, ids(open.iter().filter(|open| open.is_open_to(&person))), "step {step}, {person:?}");
            listed += found.len();
        }
        assert!(listed > 300, "{listed} entries were compared");
    }
}
