//! Tests which requests the store's lists have, and in which order and pages.

use holdpoint::store::{ReadError, RequestFilter, RequestRow, UpgradeCursor};
use holdpoint::task::decision::Action;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::Fact;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::RequestStatus;
use holdpoint::task::user::Viewer;
use holdpoint::task::verdict::Terms;
use macro_rules_attribute::apply;

use super::super::store_fixture::{
    StoreFixture, acme_requests, child_task, decided, every_statement, finance, fresh, request_spec,
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
        fixture.decide(id, &question, by, Action::Approve).await;
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
        fixture.commit(root, vec![child_task(child, parent)]).await;
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
        fixture.commit(root, vec![ask]).await;
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
        person,
        statuses,
        ..acme_requests(50)
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

    fixture.decide(id, &by_group, "zoe", Action::Approve).await;
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
            .execute(&format!(
                "update agent_task_item set body = {body} where request_id = {id}"
            ))
            .await;
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
        let mut filter = acme_requests(limit);
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
    for _ in 0..40 {
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
        person: Some(person(user, &["finance"])),
        statuses: vec![RequestStatus::Pending],
        ..acme_requests(100)
    };
    // All requests together have 40 MiB, so a read that holds all of them at once exceeds the
    // limit.
    limit_further_bytes(30 * 1024 * 1024);
    let id = |row: RequestRow| Some(row.spec.request_id);
    let read = fixture
        .store
        .filter_map_requests("acme", &answered, id)
        .await
        .unwrap();
    let of_bob = fixture.store.open_requests(&open_to("bob")).await.unwrap();
    let of_dave = fixture.store.open_requests(&open_to("dave")).await.unwrap();
    limit_further_bytes(usize::MAX);
    assert_eq!((read.len(), of_bob.len(), of_dave.len()), (40, 0, 40));
    assert_eq!(read, answered);
}

#[apply(every_statement)]
async fn requests_are_filtered_and_paged_by_id(fixture: StoreFixture) {
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(fixture.paused(finance(1)).await);
    }
    let mut filter = acme_requests(2);
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
    let base = acme_requests(9);
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
    let agent = "'agent', case when ids.n = 6000 then 'billing' else 'other' end";
    fixture.many_requests(6_000, agent).await;
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
            person: Some(person.clone()),
            statuses: vec![status],
            agents: vec!["billing".to_owned()],
            ..acme_requests(50)
        };
        // Two requests match the agent, and both are open: the last of the 6,000 copies, and the
        // original request. Dave may decide the copies, but not the original.
        let (mut listed, mut open) = (Vec::new(), Vec::new());
        loop {
            let page = fixture.store.requests(&filter).await.unwrap();
            listed.push(page.len());
            if status == RequestStatus::Pending {
                let counted = fixture.store.open_requests(&filter).await.unwrap();
                assert_eq!(counted.more, page.more);
                assert_eq!(counted.scanned_to, page.scanned_to);
                open.push(counted.len());
            }
            filter.after = page.scanned_to.map(RequestId);
            if !page.more {
                break;
            }
        }
        let last = usize::from(status == RequestStatus::Pending);
        let copied = usize::from(last == 1 && person.decides_everything);
        let expected = [0, 0, last, copied];
        assert_eq!(listed, expected, "{person:?}, {status:?}");
        assert!(open.is_empty() || open == expected, "{person:?}: {open:?}");
    }
}

#[tokio::test]
async fn request_that_an_older_replica_opened_or_closed_is_listed_right_after_an_upgrade() {
    let fixture = StoreFixture::postgres().await;
    let (_, question) = fixture.paused(finance(1)).await;
    let filter = RequestFilter {
        person: Some(person("bob", &["finance"])),
        statuses: vec![RequestStatus::Pending],
        ..acme_requests(50)
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
        "delete from inbox; update intervention_request set status = 'withdrawn', closed_seq = seq"
            .to_owned(),
    )
    .await;
    assert!(!fixture.numbers(stale).await.unwrap().is_empty());
    assert!(fixture.store.requests(&filter).await.unwrap().is_empty());
    let mut cursor = UpgradeCursor::default();
    fixture.store.upgrade(&mut cursor).await.unwrap();
    assert_eq!(fixture.count("inbox").await, 0);
}

#[tokio::test]
async fn search_for_new_requests_goes_on_after_a_thousand_that_are_shown() {
    let fixture = StoreFixture::postgres().await;
    fixture.paused(finance(1)).await;
    fixture.many_requests(3_000, "'user_id', 'carol'").await;
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
