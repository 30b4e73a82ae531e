//! Tests requests and decisions: who is asked, who has answered, and when a decision is too late.

mod lists;

use std::time::Duration;

use holdpoint::store::{CommitError, RequestFilter};
use holdpoint::task::change::Counters;
use holdpoint::task::decision::Action;
use holdpoint::task::id::RequestId;
use holdpoint::task::item::{CloseReason, Fact};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use holdpoint::task::verdict::Terms;
use macro_rules_attribute::apply;

use super::store_fixture::{
    StoreFixture, acme_requests, change, decided, every_statement, finance, fresh, request_spec,
    status,
};

const CLOSED_SEQ: &str = "select closed_seq from intervention_request";

#[apply(every_statement)]
async fn request_is_read_with_its_question_and_its_deadline(fixture: StoreFixture) {
    let (id, question) = fixture.paused(finance(1)).await;
    let row = fixture.request(question.request_id).await;
    assert_eq!(
        (&row.spec, row.task_id, row.root_task_id),
        (&question, id, id)
    );
    assert_eq!(row.tenant.as_str(), "acme");
    assert_eq!(row.owner.as_str(), "alice");
    assert_eq!(row.session_id.as_str(), "s");
    assert_eq!((row.status, row.expired), (RequestStatus::Pending, false));
    assert_eq!(
        row.expires_at,
        Some(row.created_at + Duration::from_hours(24))
    );
    assert!(row.answers.is_empty());
    assert_eq!(
        fixture.store.request(RequestId(fresh())).await.unwrap(),
        None
    );
}

#[apply(every_statement)]
async fn first_answer_wins_and_the_second_is_stale(fixture: StoreFixture) {
    let (id, question) = fixture.paused(finance(1)).await;
    let first = fixture
        .deciding(id, &question, "bob", Action::Approve)
        .await;
    let second = fixture
        .deciding(id, &question, "carol", Action::Reject)
        .await;
    let mut commit = change(id, vec![first]);
    commit.resumed = vec![question.request_id];
    let at = fixture.store.commit(commit).await.unwrap().at;
    assert_eq!(fixture.write(second).await, Err(CommitError::Stale));
    let row = fixture.request(question.request_id).await;
    assert_eq!(row.status, RequestStatus::Resumed);
    assert_eq!(row.answers.len(), 1);
    assert_eq!(row.answers[0].0, at);
    assert_eq!(row.answers[0].1.by.as_str(), "bob");
    // The third decision is refused even with the right version, because the request is no
    // longer pending.
    let third = fixture
        .deciding(id, &question, "carol", Action::Reject)
        .await;
    assert_eq!(fixture.write(third).await, Err(CommitError::Stale));
    assert_eq!(fixture.count("decision where final").await, 1);
}

#[apply(every_statement)]
async fn responded_request_becomes_resumed_with_a_later_change(fixture: StoreFixture) {
    let (id, question) = fixture.paused(finance(1)).await;
    fixture.decide(id, &question, "bob", Action::Approve).await;
    let row = fixture.request(question.request_id).await;
    assert_eq!(row.status, RequestStatus::Responded);
    let mut later = change(id, vec![fixture.next(id).await]);
    later.resumed = vec![question.request_id];
    fixture.store.commit(later).await.unwrap();
    let row = fixture.request(question.request_id).await;
    assert_eq!(row.status, RequestStatus::Resumed);
    assert_eq!(fixture.number(CLOSED_SEQ).await, 5);
    assert!(
        fixture
            .numbers("update intervention_request set status = 'pending'")
            .await
            .is_err(),
        "it never comes back"
    );
}

#[apply(every_statement)]
async fn exactly_one_of_64_simultaneous_answers_is_stored(fixture: StoreFixture) {
    for _ in 0..5 {
        let (id, question) = fixture.paused(finance(1)).await;
        let mut answers = tokio::task::JoinSet::new();
        for number in 0..64 {
            let decide = fixture
                .deciding(id, &question, &format!("user{number}"), Action::Approve)
                .await;
            let store = fixture.store.clone();
            answers.spawn(async move { store.commit(change(id, vec![decide])).await });
        }
        let results = answers.join_all().await;
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        assert!(
            results
                .iter()
                .all(|result| matches!(result, Ok(_) | Err(CommitError::Stale)))
        );
        let row = fixture.request(question.request_id).await;
        assert_eq!(row.answers.len(), 1);
    }
}

#[apply(every_statement)]
async fn request_that_one_change_opens_and_closes_is_in_no_inbox(fixture: StoreFixture) {
    let id = fixture.task().await;
    let question = request_spec(RequestKind::Approval, finance(1), 1);
    let mut both = fixture.next(id).await;
    both.facts = vec![
        Fact::InterventionRequested(question.clone()),
        Fact::RequestClosed {
            request_id: question.request_id,
            status: RequestStatus::Withdrawn,
            reason: CloseReason::Canceled,
        },
    ];
    fixture.write(both).await.unwrap();
    let row = fixture.request(question.request_id).await;
    assert_eq!(row.status, RequestStatus::Withdrawn);
    assert_eq!(fixture.number(CLOSED_SEQ).await, 4);
    assert_eq!(fixture.count("request_approver").await, 2);
    assert_eq!(fixture.count("inbox").await, 0);
}

#[apply(every_statement)]
async fn request_leaves_the_inbox_in_the_commit_that_closes_it(fixture: StoreFixture) {
    let other = fixture.paused(finance(1)).await.1.request_id;
    let others = format!("inbox where request_id = {}", fixture.literal(other.0));
    for reason in [
        None,
        Some(CloseReason::Expired),
        Some(CloseReason::Superseded),
        Some(CloseReason::Canceled),
        Some(CloseReason::ToolChanged),
        Some(CloseReason::AnsweredLate),
    ] {
        let is_expired = reason == Some(CloseReason::Expired);
        let terms = Terms {
            expires_in: is_expired.then_some(Duration::ZERO),
            ..finance(1)
        };
        let (id, question) = fixture.paused(terms).await;
        assert_eq!(fixture.count("inbox").await, 4, "{reason:?}");
        let mut close = fixture
            .deciding(id, &question, "bob", Action::Approve)
            .await;
        if let Some(reason) = reason {
            let status = if is_expired {
                RequestStatus::Expired
            } else {
                RequestStatus::Withdrawn
            };
            close.facts[0] = Fact::RequestClosed {
                request_id: question.request_id,
                status,
                reason,
            };
        }
        fixture.write(close).await.unwrap();
        assert_eq!(fixture.count("inbox").await, 2, "{reason:?}");
        assert_eq!(fixture.count(&others).await, 2, "{reason:?}");
    }
}

#[apply(every_statement)]
async fn overdue_request_cannot_be_answered_only_expired(fixture: StoreFixture) {
    let terms = Terms {
        expires_in: Some(Duration::from_mins(1)),
        ..finance(1)
    };
    let (id, question) = fixture.paused(terms).await;
    let mut expire = fixture.next(id).await;
    let closed = Fact::RequestClosed {
        request_id: question.request_id,
        status: RequestStatus::Expired,
        reason: CloseReason::Expired,
    };
    expire.facts = vec![closed, status(TaskStatus::Running)];
    expire.counters = Counters {
        busy: 1,
        open_requests: -1,
        ..Counters::default()
    };
    assert_eq!(
        fixture.write(expire.clone()).await,
        Err(CommitError::Stale),
        "not yet"
    );
    assert!(fixture.store.overdue(0, 10).await.unwrap().is_empty());

    fixture.forward(Duration::from_mins(1));
    let decide = fixture
        .deciding(id, &question, "bob", Action::Approve)
        .await;
    assert_eq!(
        fixture.write(decide).await,
        Err(CommitError::Stale),
        "too late, swept or not"
    );
    let row = fixture.request(question.request_id).await;
    assert_eq!((row.status, row.expired), (RequestStatus::Pending, true));
    let overdue = fixture.store.overdue(0, 10).await.unwrap();
    assert_eq!(overdue, [(question.request_id, id)]);
    assert!(fixture.store.overdue(1, 10).await.unwrap().is_empty());
    let filter = |status| RequestFilter {
        statuses: vec![status],
        ..acme_requests(9)
    };
    assert!(
        fixture
            .store
            .requests(&filter(RequestStatus::Pending))
            .await
            .unwrap()
            .is_empty()
    );
    assert!(
        fixture
            .store
            .requests(&filter(RequestStatus::Expired))
            .await
            .unwrap()
            .is_empty(),
        "not closed yet"
    );
    let late = RequestFilter {
        overdue: true,
        ..filter(RequestStatus::Pending)
    };
    assert_eq!(fixture.store.requests(&late).await.unwrap().len(), 1);

    fixture.write(expire).await.unwrap();
    let row = fixture.request(question.request_id).await;
    assert_eq!(row.status, RequestStatus::Expired);
    assert_eq!(
        fixture
            .store
            .requests(&filter(RequestStatus::Expired))
            .await
            .unwrap()
            .len(),
        1
    );
    assert!(fixture.store.overdue(0, 10).await.unwrap().is_empty());
}

#[apply(every_statement)]
async fn request_without_a_deadline_never_expires(fixture: StoreFixture) {
    let (id, question) = fixture
        .paused(Terms {
            expires_in: None,
            ..finance(1)
        })
        .await;
    fixture.forward(Duration::from_hours(24 * 400));
    assert!(!fixture.request(question.request_id).await.expired);
    fixture.decide(id, &question, "bob", Action::Approve).await;
}

#[apply(every_statement)]
async fn approval_is_final_only_with_the_last_of_two_required(fixture: StoreFixture) {
    let (id, question) = fixture.paused(finance(2)).await;
    let mut first = fixture.next(id).await;
    first.facts = vec![decided(&question, "bob", Action::Approve, false)];
    fixture.write(first).await.unwrap();
    assert_eq!(fixture.count("decision where final").await, 0);
    let mut again = fixture.next(id).await;
    again.facts = vec![decided(&question, "bob", Action::Approve, true)];
    assert_eq!(
        fixture.write(again).await,
        Err(CommitError::Refused),
        "one person decides twice"
    );
    fixture
        .decide(id, &question, "carol", Action::Approve)
        .await;
    assert_eq!(fixture.count("decision").await, 2);
    assert_eq!(fixture.count("decision where final").await, 1);
    let row = fixture.request(question.request_id).await;
    assert_eq!(
        row.answers
            .iter()
            .map(|(_, answer)| answer.by.as_str())
            .collect::<Vec<_>>(),
        ["bob", "carol"]
    );
    // The question is item 3, the answers are the items 5 and 6.
    assert_eq!(fixture.number(CLOSED_SEQ).await, 6);
}

/// A version before migration 0031 does not set `closed_seq`.
#[apply(every_statement)]
async fn request_that_an_older_version_closed_is_read_with_its_answer(fixture: StoreFixture) {
    let (id, question) = fixture.paused(finance(1)).await;
    fixture.decide(id, &question, "bob", Action::Approve).await;
    let row = fixture.request(question.request_id).await;
    fixture
        .execute("update intervention_request set closed_seq = null")
        .await;
    assert_eq!(fixture.request(question.request_id).await, row);
    assert_eq!(row.answers.len(), 1);
}

#[apply(every_statement)]
async fn call_has_one_final_answer_even_if_its_request_stays_open(fixture: StoreFixture) {
    let (id, question) = fixture.paused(finance(1)).await;
    let mut first = fixture.next(id).await;
    first.facts = vec![decided(&question, "bob", Action::Approve, false)];
    fixture.write(first).await.unwrap();
    let mut second = fixture.next(id).await;
    second.facts = vec![decided(&question, "carol", Action::Reject, false)];
    assert_eq!(fixture.write(second).await, Err(CommitError::Refused));
}

#[apply(every_statement)]
async fn whole_answer_belongs_to_the_call_that_asks(fixture: StoreFixture) {
    let id = fixture.task().await;
    let question = request_spec(RequestKind::Guidance, finance(3), 1);
    fixture.pause(id, &question).await;
    let mut answer = fixture
        .deciding(id, &question, "bob", Action::Respond)
        .await;
    if let Some(Fact::Decision { decision, .. }) = answer.facts.first_mut() {
        decision.decisions.clear();
    }
    fixture.write(answer).await.unwrap();
    let joined = "select count(*) from decision d join intervention_request r
            on r.request_id = d.request_id and r.call_id = d.tool_call_id where d.final";
    assert_eq!(fixture.number(joined).await, 1);
}
