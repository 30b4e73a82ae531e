//! Compares the store's lists of requests with a list in memory and with the statement of an older
//! version, while random requests with random approvers open, get answers and close.

mod old_statement;

use std::time::Duration;

use holdpoint::store::RequestFilter;
use holdpoint::task::change::Guard;
use holdpoint::task::decision::Action;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{CloseReason, Fact};
use holdpoint::task::request::{RequestKind, RequestSpec};
use holdpoint::task::status::RequestStatus;
use holdpoint::task::user::Viewer;
use holdpoint::task::verdict::{Approvers, Terms};
use macro_rules_attribute::apply;

use self::old_statement::OldStatements;
use super::store_fixture::{StoreFixture, decided, every_statement, fresh, new_task, request_spec};
use crate::support::repetitions;
use crate::support::rng::SeededRng;

const USERS: [&str; 4] = ["alice", "bob", "carol", "dave"];
const GROUPS: [&str; 3] = ["finance", "leads", "ops"];
const TENANTS: [&str; 3] = ["acme", "acme", "globex"];
const AGENTS: [&str; 2] = ["billing", "support"];
const SESSIONS: [&str; 2] = ["s", "t"];
/// Requests of these kinds may require several approvals.
const KINDS: [RequestKind; 2] = [RequestKind::Approval, RequestKind::Reconcile];

fn some(rng: &mut SeededRng, of: &[&str]) -> Vec<String> {
    let drawn = of.iter().filter(|_| rng.one_in(3));
    drawn.map(ToString::to_string).collect()
}

struct Open {
    task: TaskId,
    tenant: &'static str,
    owner: &'static str,
    spec: RequestSpec,
    /// The people who have approved, although their approvals do not suffice yet.
    approved_by: Vec<&'static str>,
}

impl Open {
    /// Returns whether the request is not overdue and its approvers name the person: as the owner,
    /// by user id, or through a group. A person who decides everything counts as named.
    fn names(&self, person: &Viewer) -> bool {
        let approvers = &self.spec.terms.approvers;
        let (owner, users, groups) = (approvers.owner, &approvers.users, &approvers.groups);
        let user = person.user_id.as_str();
        let listed = (owner && self.owner == user)
            || users.iter().any(|name| name == user)
            || groups.iter().any(|group| person.groups.contains(group));
        (listed || person.decides_everything) && !self.is_overdue()
    }

    fn is_overdue(&self) -> bool {
        self.spec.terms.expires_in == Some(Duration::ZERO)
    }

    /// Returns whether `names` is true for the person, and the person has not approved the request
    /// yet. If the person owns the task, `approvers.owner` must also be true, unless the person
    /// decides everything.
    fn is_open_to(&self, person: &Viewer) -> bool {
        let user = person.user_id.as_str();
        let own = self.owner == user && !person.decides_everything;
        self.names(person)
            && (!own || self.spec.terms.approvers.owner)
            && !self.approved_by.contains(&user)
    }
}

async fn open_one(fixture: &StoreFixture, rng: &mut SeededRng) -> Open {
    let owner = rng.pick(&USERS);
    let (users, groups) = (some(rng, &USERS), some(rng, &GROUPS));
    let approvers = Approvers {
        // Every request needs an approver.
        owner: rng.one_in(2) || (users.is_empty() && groups.is_empty()),
        users,
        groups,
        required: if rng.one_in(3) { 5 } else { 1 },
        ..Approvers::default()
    };
    let (task, tenant) = (TaskId(fresh()), rng.pick(&TENANTS));
    let mut new = new_task(task, tenant, owner);
    if let Guard::New(columns) = &mut new.guard {
        rng.pick(&AGENTS).clone_into(&mut columns.agent);
        rng.pick(&SESSIONS).clone_into(&mut columns.session_id);
    }
    fixture.write(new).await.unwrap();
    let expires_in = [None, Some(Duration::from_hours(1)), Some(Duration::ZERO)];
    let terms = Terms {
        approvers,
        expires_in: rng.pick(&expires_in),
        ..Terms::default()
    };
    let calls = if rng.one_in(3) { 2 } else { 1 };
    let spec = request_spec(rng.pick(&KINDS), terms, calls);
    fixture.pause(task, &spec).await;
    if rng.one_in(4) {
        forget_terms(fixture, spec.request_id).await;
    }
    Open {
        task,
        tenant,
        owner,
        spec,
        approved_by: Vec::new(),
    }
}

/// Changes the rows of a request into the rows that a replica of an older version writes.
async fn forget_terms(fixture: &StoreFixture, RequestId(request): RequestId) {
    let id = fixture.literal(request);
    let sql = format!(
        "update inbox set owner = null, expires_at = null, one_answer = null where request_id = {id};
         update intervention_request set one_answer = null where request_id = {id}"
    );
    fixture.database().execute(&sql).await;
}

/// Adds an approval that does not close the request, if the request requires several.
async fn approve_partly(fixture: &StoreFixture, rng: &mut SeededRng, open: &mut Open) {
    let user = rng.pick(&USERS);
    let several = open.spec.terms.approvers.required > 1;
    if several && !open.is_overdue() && !open.approved_by.contains(&user) {
        let mut change = fixture.next(open.task).await;
        change.facts = vec![decided(&open.spec, user, Action::Approve, false)];
        fixture.write(change).await.unwrap();
        open.approved_by.push(user);
    }
}

async fn close(fixture: &StoreFixture, rng: &mut SeededRng, open: Open) {
    let action = rng.pick(&[Action::Approve, Action::Reject]);
    let mut change = fixture
        .deciding(open.task, &open.spec, "erin", action)
        .await;
    if open.is_overdue() {
        change.facts[0] = Fact::RequestClosed {
            request_id: open.spec.request_id,
            status: RequestStatus::Expired,
            reason: CloseReason::Expired,
        };
    }
    fixture.write(change).await.unwrap();
}

fn ids<'a>(open: impl Iterator<Item = &'a Open>) -> Vec<RequestId> {
    let mut ids: Vec<_> = open.map(|open| open.spec.request_id).collect();
    ids.sort_unstable();
    ids
}

/// Draws a filter without trees. The page may begin after one of the requests in `opened`.
fn draw_filter(rng: &mut SeededRng, person: &Viewer, opened: &[RequestId]) -> RequestFilter {
    let statuses: [&[RequestStatus]; 4] = [
        &[],
        &[RequestStatus::Pending],
        &[RequestStatus::Responded],
        &[RequestStatus::Pending, RequestStatus::Expired],
    ];
    RequestFilter {
        tenant: rng.pick(&TENANTS).to_owned(),
        person: (!rng.one_in(4)).then(|| person.clone()),
        statuses: rng.pick(&statuses).to_vec(),
        kinds: some(rng, &KINDS.map(RequestKind::as_str)),
        agents: some(rng, &AGENTS),
        sessions: some(rng, &SESSIONS),
        overdue: rng.one_in(2),
        after: (!opened.is_empty() && rng.one_in(2)).then(|| rng.pick(opened)),
        limit: rng.pick(&[1, 3, 50]),
        ..RequestFilter::default()
    }
}

/// Lists the requests of a page, and one more if another page follows. Reads further pages where
/// the page ends early.
async fn list(fixture: &StoreFixture, mut filter: RequestFilter) -> Vec<RequestId> {
    let wanted = usize::try_from(filter.limit).unwrap() + 1;
    let mut listed = Vec::new();
    loop {
        let page = fixture.store.requests(&filter).await.unwrap();
        listed.extend(page.iter().map(|row| row.spec.request_id));
        let next = page.next(|row| row.spec.request_id.0);
        let Some(next) = next.filter(|_| listed.len() < wanted) else {
            break;
        };
        filter.after = Some(RequestId(next));
    }
    listed.truncate(wanted);
    listed
}

#[apply(every_statement)]
async fn lists_hold_exactly_the_open_requests_of_a_person_after_each_commit(fixture: StoreFixture) {
    let mut rng = SeededRng(if fixture.is_postgres() { 1 } else { 2 });
    let mut old = OldStatements::new(&fixture).await;
    let (mut open, mut opened): (Vec<Open>, Vec<RequestId>) = (Vec::new(), Vec::new());
    let (steps, mut listed, mut compared) = (repetitions(200, 10_000), 0, 0);
    for step in 0..steps {
        if open.len() < 12 && !rng.one_in(3) {
            let new = open_one(&fixture, &mut rng).await;
            opened.push(new.spec.request_id);
            open.push(new);
        } else if !open.is_empty() {
            let drawn = usize::try_from(rng.below(open.len() as u64)).unwrap();
            approve_partly(&fixture, &mut rng, &mut open[drawn]).await;
            if rng.one_in(2) {
                close(&fixture, &mut rng, open.swap_remove(drawn)).await;
            }
        }
        let person = Viewer {
            user_id: rng.pick(&USERS).into(),
            groups: some(&mut rng, &GROUPS),
            decides_everything: rng.one_in(5),
        };
        let filter = RequestFilter {
            tenant: rng.pick(&TENANTS).to_owned(),
            person: Some(person.clone()),
            statuses: vec![RequestStatus::Pending],
            limit: 50,
            ..RequestFilter::default()
        };
        let of_tenant = open.iter().filter(|open| open.tenant == filter.tenant);
        let page = fixture.store.requests(&filter).await.unwrap();
        let found: Vec<_> = page.iter().map(|row| row.spec.request_id).collect();
        assert_eq!(
            found,
            ids(of_tenant.clone().filter(|open| open.names(&person))),
            "step {step}, {filter:?}"
        );
        assert_eq!(found, old.list(&filter).await, "step {step}, {filter:?}");
        let inbox = fixture.store.open_requests(&filter).await.unwrap();
        let found: Vec<_> = inbox.iter().map(|request| request.id).collect();
        assert_eq!(
            found,
            ids(of_tenant.filter(|open| open.is_open_to(&person))),
            "step {step}, {filter:?}"
        );
        listed += found.len();
        let filter = draw_filter(&mut rng, &person, &opened);
        let found = list(&fixture, filter.clone()).await;
        assert_eq!(found, old.list(&filter).await, "step {step}, {filter:?}");
        compared += found.len();
    }
    assert!(
        listed > steps && compared > steps,
        "{listed} and {compared} entries were compared in {steps} steps"
    );
}
