//! The lists of open requests, compared with a list in memory while random requests of random
//! approvers open and close.

use holdpoint::store::{Person, RequestFilter};
use holdpoint::task::decision::Action;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::request::{RequestKind, RequestSpec};
use holdpoint::task::status::RequestStatus;
use holdpoint::task::verdict::{Approvers, Terms};

use super::store_fixture::{StoreFixture, asked, both};
use crate::support::repetitions;

const USERS: [&str; 4] = ["alice", "bob", "carol", "dave"];
const GROUPS: [&str; 3] = ["finance", "leads", "ops"];

/// Numbers that repeat with their seed (Steele, Lea and Flood, `SplitMix64`).
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap()
    }

    fn some(&mut self, of: &[&str]) -> Vec<String> {
        let drawn = of.iter().filter(|_| self.below(3) == 0);
        drawn.map(ToString::to_string).collect()
    }
}

struct Open {
    task: TaskId,
    owner: &'static str,
    asked: RequestSpec,
}

impl Open {
    /// Whether one of the person's keys is among the approvers.
    fn names(&self, person: &Person) -> bool {
        let approvers = &self.asked.terms.approvers;
        let (owner, users, groups) = (approvers.owner, &approvers.users, &approvers.groups);
        let user = person.user_id.as_str();
        (owner && self.owner == user)
            || users.iter().any(|name| name == user)
            || groups.iter().any(|group| person.groups.contains(group))
    }

    /// Whether the person may decide: the owner only where the rule says so.
    fn is_open_to(&self, person: &Person) -> bool {
        let own = self.owner == person.user_id.as_str();
        self.names(person) && (!own || self.asked.terms.approvers.owner)
    }
}

async fn open_one(fixture: &StoreFixture, draws: &mut Draws) -> Open {
    let owner = USERS[draws.below(USERS.len())];
    let (users, groups) = (draws.some(&USERS), draws.some(&GROUPS));
    let approvers = Approvers {
        // A request has an approver.
        owner: draws.below(2) == 0 || (users.is_empty() && groups.is_empty()),
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
        let mut draws = Draws(if fixture.is_postgres() { 1 } else { 2 });
        let mut open: Vec<Open> = Vec::new();
        let mut listed = 0;
        for step in 0..repetitions(300, 10_000) {
            if open.len() < 12 && draws.below(3) > 0 {
                open.push(open_one(&fixture, &mut draws).await);
            } else if !open.is_empty() {
                let Open { task, asked, .. } = open.swap_remove(draws.below(open.len()));
                let action = if draws.below(2) == 0 { Action::Approve } else { Action::Reject };
                let decided = fixture.deciding(task, &asked, "erin", action).await;
                fixture.write(decided).await.unwrap();
            }
            let person = Person {
                user_id: USERS[draws.below(USERS.len())].into(),
                groups: draws.some(&GROUPS),
                everything: false,
            };
            let filter = RequestFilter {
                tenant: "acme".to_owned(),
                person: Some(person.clone()),
                statuses: vec![RequestStatus::Pending],
                limit: 50,
                ..RequestFilter::default()
            };
            let page = fixture.store.requests(&filter).await.unwrap();
            let found: Vec<_> = page.iter().map(|row| row.asked.request_id).collect();
            assert_eq!(found, ids(open.iter().filter(|open| open.names(&person))), "step {step}, {person:?}");
            let inbox = fixture.store.open_requests(&filter, 50).await.unwrap();
            let found: Vec<_> = inbox.requests.iter().map(|request| request.id).collect();
            assert_eq!(found, ids(open.iter().filter(|open| open.is_open_to(&person))), "step {step}, {person:?}");
            listed += found.len();
        }
        assert!(listed > 300, "{listed} entries were compared");
    }
}
