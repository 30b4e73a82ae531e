//! Tests requests and decisions: who is asked, who has answered, and when a decision is too late.

use std::time::Duration;

use holdpoint::store::{CommitError, ReadError, RequestFilter, RequestRow, UpgradeCursor};
use holdpoint::task::change::Counters;
use holdpoint::task::decision::Action;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{CloseReason, Fact};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use holdpoint::task::user::Viewer;
use holdpoint::task::verdict::Terms;
use macro_rules_attribute::apply;

use super::store_fixture::{
    StoreFixture, change, child_task, decided, every_statement, finance, fresh, request_spec,
    status,
};
use crate::support::allocator::limit_further_bytes;

fn person(user: &str, groups: &[&str]) -> Viewer {
    let groups = groups.iter().map(ToString::to_string).collect();
    Viewer {
        user_id: user.into(),
        groups,
        decides_everything: false,
    }
}

#[apply(every_statement)]
async fn request_is_read_with_its_question_and_its_deadline(fixture: StoreFixture) {
    let (id, question) = fixture.paused(finance(1)).await;
    let row = fixture.request(question.request_id).await;
    assert_eq!(
        (&row.spec, row.task_id, row.root_task_id),
        (&question, id, id)
    );
    assert_eq!(
        (
            row.tenant.as_str(),
            row.owner.as_str(),
            row.session_id.as_str()
        ),
        ("acme", "alice", "s")
    );
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
    assert_eq!(
        (row.answers[0].0, row.answers[0].1.by.as_str()),
        (at, "bob")
    );
    // The third decision is refused even with the right version, because the request is no
    // longer pending.
    let third = fixture
        .deciding(id, &question, "carol", Action::Reject)
        .await;
    assert_eq!(fixture.write(third).await, Err(CommitError::Stale));
    assert_eq!(
        fixture
            .number("select count(*) from decision where final")
            .await,
        1
    );
}

#[apply(every_statement)]
async fn responded_request_becomes_resumed_with_a_later_change(fixture: StoreFixture) {
    let (id, question) = fixture.paused(finance(1)).await;
    let decide = fixture
        .deciding(id, &question, "bob", Action::Approve)
        .await;
    fixture.write(decide).await.unwrap();
    let row = fixture.request(question.request_id).await;
    assert_eq!(row.status, RequestStatus::Responded);
    let mut later = change(id, vec![fixture.next(id).await]);
    later.resumed = vec![question.request_id];
    fixture.store.commit(later).await.unwrap();
    let row = fixture.request(question.request_id).await;
    assert_eq!(row.status, RequestStatus::Resumed);
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
    assert_eq!(
        fixture
            .number("select count(*) from request_approver")
            .await,
        2
    );
    assert_eq!(fixture.number("select count(*) from inbox").await, 0);
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
        tenant: "acme".to_owned(),
        statuses: vec![status],
        limit: 9,
        ..RequestFilter::default()
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
    let decide = fixture
        .deciding(id, &question, "bob", Action::Approve)
        .await;
    fixture.write(decide).await.unwrap();
}

#[apply(every_statement)]
async fn approval_is_final_only_with_the_last_of_two_required(fixture: StoreFixture) {
    let (id, question) = fixture.paused(finance(2)).await;
    let mut first = fixture.next(id).await;
    first.facts = vec![decided(&question, "bob", Action::Approve, false)];
    fixture.write(first).await.unwrap();
    assert_eq!(
        fixture
            .number("select count(*) from decision where final")
            .await,
        0
    );
    let mut again = fixture.next(id).await;
    again.facts = vec![decided(&question, "bob", Action::Approve, true)];
    assert_eq!(
        fixture.write(again).await,
        Err(CommitError::Refused),
        "one person decides twice"
    );
    let second = fixture
        .deciding(id, &question, "carol", Action::Approve)
        .await;
    fixture.write(second).await.unwrap();
    assert_eq!(fixture.number("select count(*) from decision").await, 2);
    assert_eq!(
        fixture
            .number("select count(*) from decision where final")
            .await,
        1
    );
    let row = fixture.request(question.request_id).await;
    assert_eq!(
        row.answers
            .iter()
            .map(|(_, answer)| answer.by.as_str())
            .collect::<Vec<_>>(),
        ["bob", "carol"]
    );
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

#[apply(every_statement)]
async fn requests_decided_by_anyone_are_listed_newest_first_without_those_that_wait(
    fixture: StoreFixture,
) {
    let local = Viewer {
        decides_everything: true,
        ..person("local", &[])
    };
    let mut decided = Vec::new();
    for by in ["bob", "carol"] {
        let id = fixture.task().await;
        let question = request_spec(RequestKind::Approval, finance(1), 2);
        fixture.pause(id, &question).await;
        let decide = fixture.deciding(id, &question, by, Action::Approve).await;
        fixture.write(decide).await.unwrap();
        decided.insert(0, question.request_id);
        fixture.paused(finance(1)).await;
    }
    for (tenant, all, before, limit, expected) in [
        ("acme", true, None, 10, &decided[..]),
        ("acme", true, None, 1, &decided[..1]),
        ("acme", true, Some(decided[0]), 10, &decided[1..]),
        ("acme", false, None, 10, &decided[2..]),
        ("globex", true, None, 10, &decided[2..]),
    ] {
        let listed = fixture
            .store
            .decided_requests(tenant, &local, all, before, limit)
            .await;
        assert_eq!(
            listed.unwrap(),
            expected,
            "{tenant} {all} {before:?} {limit}"
        );
    }
}

#[apply(every_statement)]
async fn pending_lists_a_subtrees_open_requests_in_the_order_they_were_asked(
    fixture: StoreFixture,
) {
    let root = fixture.task().await;
    let (left, right, below) = (TaskId(fresh()), TaskId(fresh()), TaskId(fresh()));
    for (child, parent) in [(left, root), (right, root), (below, left)] {
        fixture
            .store
            .commit(change(root, vec![child_task(child, parent)]))
            .await
            .unwrap();
    }
    // The order of the ids differs from the order in which the requests were asked.
    let mut questions: Vec<_> = (0..3)
        .map(|_| request_spec(RequestKind::Approval, finance(1), 1))
        .collect();
    questions.reverse();
    for (task, question) in [below, right, root].into_iter().zip(&questions) {
        let mut ask = fixture.next(task).await;
        ask.facts = vec![Fact::InterventionRequested(question.clone())];
        ask.counters.open_requests = 1;
        fixture.store.commit(change(root, vec![ask])).await.unwrap();
    }
    let ids = |of: Vec<RequestRow>| {
        of.into_iter()
            .map(|row| row.spec.request_id)
            .collect::<Vec<_>>()
    };
    let asked: Vec<_> = questions
        .iter()
        .map(|question| question.request_id)
        .collect();
    assert_eq!(ids(fixture.store.pending(root, root).await.unwrap()), asked);
    assert_eq!(
        ids(fixture.store.pending(root, left).await.unwrap()),
        asked[..1]
    );
    assert_eq!(
        ids(fixture.store.pending(root, right).await.unwrap()),
        asked[1..2]
    );
    let row = fixture.request(asked[0]).await;
    assert_eq!(row.agent_path, ["billing", "analyst"]);
}

#[apply(every_statement)]
async fn inbox_lists_requests_a_person_may_decide_or_has_decided(fixture: StoreFixture) {
    let (id, by_group) = fixture.paused(finance(1)).await;
    let (_, by_owner) = fixture.paused(Terms::default()).await;
    let filter = |person, statuses| RequestFilter {
        tenant: "acme".to_owned(),
        person,
        statuses,
        limit: 50,
        ..RequestFilter::default()
    };
    let pending = vec![RequestStatus::Pending];
    for (who, expected) in [
        (person("bob", &["finance"]), vec![by_group.request_id]),
        (person("carol", &[]), vec![by_group.request_id]),
        (person("alice", &[]), vec![by_owner.request_id]),
        (person("dave", &["support"]), vec![]),
        (
            Viewer {
                decides_everything: true,
                ..Viewer::default()
            },
            vec![by_group.request_id, by_owner.request_id],
        ),
    ] {
        let found = fixture
            .store
            .requests(&filter(Some(who.clone()), pending.clone()))
            .await
            .unwrap();
        let found: Vec<_> = found.iter().map(|row| row.spec.request_id).collect();
        assert_eq!(found, expected, "{who:?}");
        assert_eq!(
            fixture.store.is_involved("acme", id, &who).await.unwrap(),
            expected.contains(&by_group.request_id),
            "{who:?}"
        );
    }
    let other = RequestFilter {
        tenant: "globex".to_owned(),
        limit: 9,
        ..RequestFilter::default()
    };
    assert!(fixture.store.requests(&other).await.unwrap().is_empty());

    let decide = fixture
        .deciding(id, &by_group, "zoe", Action::Approve)
        .await;
    fixture.write(decide).await.unwrap();
    let zoe = person("zoe", &[]);
    assert!(
        fixture
            .store
            .requests(&filter(Some(zoe.clone()), pending))
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        fixture
            .store
            .requests(&filter(Some(zoe.clone()), vec![]))
            .await
            .unwrap()
            .len(),
        1
    );
    assert!(fixture.store.is_involved("acme", id, &zoe).await.unwrap());
}

#[apply(every_statement)]
async fn damaged_request_is_left_out_of_lists_and_hides_no_other(fixture: StoreFixture) {
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(fixture.paused(finance(1)).await);
    }
    let asked: Vec<_> = all
        .iter()
        .map(|(_, question)| question.request_id)
        .collect();
    let body = if fixture.is_postgres() {
        "'{'"
    } else {
        "cast(x'ff' as text)"
    };
    for damaged in [asked[0], asked[2], asked[4]] {
        let id = damaged.to_string().replace('-', "");
        let id = if fixture.is_postgres() {
            format!("'{damaged}'")
        } else {
            format!("x'{id}'")
        };
        fixture
            .numbers(&format!(
                "update agent_task_item set body = {body} where request_id = {id}"
            ))
            .await
            .unwrap();
        assert!(matches!(
            fixture.store.request(damaged).await,
            Err(ReadError::Corrupt(_))
        ));
    }
    let ids = |rows: Vec<RequestRow>| {
        rows.into_iter()
            .map(|row| row.spec.request_id)
            .collect::<Vec<_>>()
    };
    let readable = [asked[1], asked[3]];
    assert_eq!(
        ids(fixture.store.requests_by_id("acme", &asked).await.unwrap()),
        readable
    );
    let roots: Vec<_> = all.iter().map(|(root, _)| *root).collect();
    assert_eq!(
        ids(fixture.store.pending_of("acme", &roots).await.unwrap()),
        readable
    );
    for limit in 1..=5 {
        let mut filter = RequestFilter {
            tenant: "acme".to_owned(),
            limit,
            ..RequestFilter::default()
        };
        let mut seen = Vec::new();
        loop {
            let page = fixture.store.requests(&filter).await.unwrap();
            let next = page.next(|row| row.spec.request_id.0);
            seen.extend(ids(page.rows));
            let Some(next) = next else { break };
            filter.after = Some(RequestId(next));
        }
        assert_eq!(seen, readable, "pages of {limit}");
    }
}

#[apply(every_statement)]
async fn large_requests_that_a_person_has_answered_are_read_a_few_at_a_time(fixture: StoreFixture) {
    let mut answered = Vec::new();
    for _ in 0..64 {
        let id = fixture.task().await;
        let mut question = request_spec(RequestKind::Approval, finance(2), 1);
        question.pending_tool_calls[0].arguments_text = "x".repeat(1024 * 1024);
        fixture.pause(id, &question).await;
        let mut answer = fixture.next(id).await;
        answer.facts = vec![decided(&question, "bob", Action::Approve, false)];
        fixture.write(answer).await.unwrap();
        answered.push(question.request_id);
    }
    let open_to = |user| RequestFilter {
        tenant: "acme".to_owned(),
        person: Some(person(user, &["finance"])),
        statuses: vec![RequestStatus::Pending],
        limit: 100,
        ..RequestFilter::default()
    };
    // All requests together have 64 MiB, so a read that holds all of them at once exceeds the
    // limit.
    limit_further_bytes(48 * 1024 * 1024);
    let id = |row: RequestRow| Some(row.spec.request_id);
    let read = fixture
        .store
        .filter_map_requests("acme", &answered, id)
        .await
        .unwrap();
    let of_bob = fixture.store.open_requests(&open_to("bob")).await.unwrap();
    let of_dave = fixture.store.open_requests(&open_to("dave")).await.unwrap();
    limit_further_bytes(usize::MAX);
    assert_eq!((read.len(), of_bob.len(), of_dave.len()), (64, 0, 64));
    assert_eq!(read, answered);
}

#[apply(every_statement)]
async fn requests_are_filtered_and_paged_by_id(fixture: StoreFixture) {
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(fixture.paused(finance(1)).await);
    }
    let mut filter = RequestFilter {
        tenant: "acme".to_owned(),
        limit: 2,
        ..RequestFilter::default()
    };
    let mut seen = Vec::new();
    loop {
        let page = fixture.store.requests(&filter).await.unwrap();
        let Some(last) = page.last() else { break };
        filter.after = Some(last.spec.request_id);
        seen.extend(page.iter().map(|row| row.spec.request_id));
    }
    assert_eq!(
        seen,
        all.iter()
            .map(|(_, question)| question.request_id)
            .collect::<Vec<_>>()
    );
    let base = RequestFilter {
        tenant: "acme".to_owned(),
        limit: 9,
        ..RequestFilter::default()
    };
    for (filter, expected) in [
        (
            RequestFilter {
                kinds: vec!["guidance".to_owned()],
                ..base.clone()
            },
            0,
        ),
        (
            RequestFilter {
                kinds: vec!["approval".to_owned()],
                ..base.clone()
            },
            5,
        ),
        (
            RequestFilter {
                agents: vec!["billing".to_owned()],
                ..base.clone()
            },
            5,
        ),
        (
            RequestFilter {
                agents: vec!["other".to_owned()],
                ..base.clone()
            },
            0,
        ),
        (
            RequestFilter {
                sessions: vec!["s".to_owned()],
                ..base.clone()
            },
            5,
        ),
        (
            RequestFilter {
                roots: vec![all[1].0, all[3].0],
                ..base.clone()
            },
            2,
        ),
    ] {
        for statuses in [vec![], vec![RequestStatus::Pending]] {
            let filter = RequestFilter {
                statuses,
                ..filter.clone()
            };
            assert_eq!(
                fixture.store.requests(&filter).await.unwrap().len(),
                expected,
                "{filter:?}"
            );
        }
    }
}

#[tokio::test]
async fn filtered_list_looks_at_2000_requests_and_says_where_it_goes_on() {
    let fixture = StoreFixture::postgres().await;
    fixture.paused(finance(1)).await;
    let agent = "'agent', case when ids.n = 20000 then 'billing' else 'other' end";
    fixture.many_requests(agent).await;
    let dave = person("dave", &["many"]);
    let everybody = Viewer {
        decides_everything: true,
        ..dave.clone()
    };
    for (person, status) in [
        (&dave, RequestStatus::Pending),
        (&dave, RequestStatus::Responded),
        (&everybody, RequestStatus::Pending),
        (&everybody, RequestStatus::Responded),
    ] {
        let mut filter = RequestFilter {
            tenant: "acme".to_owned(),
            person: Some(person.clone()),
            statuses: vec![status],
            agents: vec!["billing".to_owned()],
            limit: 50,
            ..RequestFilter::default()
        };
        // Two requests match the agent, and both are open: the last of the 20,000 copies, and the
        // original request. Dave may decide the copies, but not the original.
        let (mut listed, mut open) = (Vec::new(), Vec::new());
        loop {
            let page = fixture.store.requests(&filter).await.unwrap();
            listed.push(page.len());
            if status == RequestStatus::Pending {
                let counted = fixture.store.open_requests(&filter).await.unwrap();
                assert_eq!(
                    (counted.more, counted.scanned_to),
                    (page.more, page.scanned_to)
                );
                open.push(counted.len());
            }
            filter.after = page.scanned_to.map(RequestId);
            if !page.more {
                break;
            }
        }
        let last = usize::from(status == RequestStatus::Pending);
        let copied = usize::from(last == 1 && person.decides_everything);
        let expected = [0, 0, 0, 0, 0, 0, 0, 0, 0, last, copied];
        assert_eq!(listed, expected, "{person:?}, {status:?}");
        assert!(open.is_empty() || open == expected, "{person:?}: {open:?}");
    }
}

#[tokio::test]
async fn request_that_an_older_replica_opened_or_closed_is_listed_right_after_an_upgrade() {
    let fixture = StoreFixture::postgres().await;
    let (_, question) = fixture.paused(finance(1)).await;
    let filter = RequestFilter {
        tenant: "acme".to_owned(),
        person: Some(person("bob", &["finance"])),
        statuses: vec![RequestStatus::Pending],
        limit: 50,
        ..RequestFilter::default()
    };
    let forget = "with gone as (delete from inbox returning 1) select count(*) from gone";
    assert!(fixture.number(forget).await > 0);
    assert!(fixture.store.requests(&filter).await.unwrap().is_empty());
    let mut cursor = UpgradeCursor::default();
    fixture.store.upgrade(&mut cursor).await.unwrap();
    assert_eq!(
        fixture.store.requests(&filter).await.unwrap()[0]
            .spec
            .request_id,
        question.request_id
    );
    let stale = "insert into inbox select tenant, kind, name, request_id from request_approver
        on conflict do nothing returning 1::bigint";
    crate::support::postgres::run(
        fixture.settings.url.reveal(),
        "delete from inbox; update intervention_request set status = 'withdrawn'".to_owned(),
    )
    .await;
    assert!(!fixture.numbers(stale).await.unwrap().is_empty());
    assert!(fixture.store.requests(&filter).await.unwrap().is_empty());
    let mut cursor = UpgradeCursor::default();
    fixture.store.upgrade(&mut cursor).await.unwrap();
    assert_eq!(fixture.number("select count(*) from inbox").await, 0);
}

#[tokio::test]
async fn search_for_new_requests_goes_on_after_a_thousand_that_are_shown() {
    let fixture = StoreFixture::postgres().await;
    fixture.paused(finance(1)).await;
    fixture.many_requests("'user_id', 'carol'").await;
    let state = async |shown: &[RequestId], after: RequestId| {
        let state = fixture.store.inbox_state("acme", shown, after).await;
        state.unwrap()
    };
    let first = state(&[], RequestId(uuid::Uuid::nil())).await;
    assert_eq!(first.new.len(), 1000);
    assert_eq!(first.more_after, first.new.last().copied());
    let again = state(&first.new, RequestId(uuid::Uuid::nil())).await;
    assert_eq!((again.open.len(), again.new.len()), (1000, 0));
    assert_eq!(
        again.more_after, first.more_after,
        "the search goes on from there"
    );
    let (newest, all) = (
        RequestId(uuid::Uuid::max()),
        state(&[], first.more_after.unwrap()).await,
    );
    assert!(all.new[0] > first.new[999]);
    assert_eq!(state(&[], newest).await.more_after, None);
}
