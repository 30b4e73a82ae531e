//! Tests the reads of requests with their journals, which share statements.

use futures_util::future::join_all;
use holdpoint::store::RequestRow;
use holdpoint::task::change::Journal;
use holdpoint::task::id::RequestId;
use macro_rules_attribute::apply;
use sqlx::Executor as _;

use super::store_fixture::{StoreFixture, both, finance, fresh};
use crate::support::until;

async fn read_at_once(
    fixture: &StoreFixture,
    ids: &[RequestId],
) -> Vec<Option<(RequestRow, Option<Journal>)>> {
    let reads = ids.iter().map(|id| fixture.store.request_with_journal(*id));
    let read = join_all(reads).await;
    read.into_iter().map(Result::unwrap).collect()
}

async fn paused(fixture: &StoreFixture, count: usize) -> Vec<RequestId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(fixture.paused(finance(1)).await.1.request_id);
    }
    ids
}

#[apply(both)]
async fn requests_that_are_read_at_once_have_their_own_rows_and_journals(fixture: StoreFixture) {
    let ids = paused(&fixture, 40).await;
    // Some requests are read by several callers, and some do not exist.
    let missing = [RequestId(fresh()), RequestId(fresh())];
    let asked = [&ids[..], &missing, &ids[..20], &ids[..3], &missing[..1]].concat();
    for _ in 0..5 {
        let read = read_at_once(&fixture, &asked).await;
        for (id, read) in asked.iter().zip(read) {
            let expected = fixture.store.request(*id).await.unwrap();
            let Some((row, journal)) = read else {
                assert!(expected.is_none() && missing.contains(id));
                continue;
            };
            let (expected, journal) = (expected.unwrap(), journal.unwrap());
            let whole = fixture.store.journal(row.task_id).await.unwrap().unwrap();
            assert_eq!((row.spec.request_id, &row), (*id, &expected));
            assert_eq!((journal.row, journal.items), (whole.row, whole.items));
        }
    }
}

#[apply(both)]
async fn damaged_journal_hides_no_request_that_is_read_beside_it(fixture: StoreFixture) {
    let ids = paused(&fixture, 12).await;
    let damaged = fixture.request(ids[5]).await.task_id;
    let key = fixture.literal(damaged.0);
    fixture
        .execute(&format!(
            "update agent_task_item set body = '{{' where task_id = {key} and seq = 1"
        ))
        .await;
    for (id, read) in ids.iter().zip(read_at_once(&fixture, &ids).await) {
        let (row, journal) = read.unwrap();
        assert_eq!(row.spec.request_id, *id);
        assert_eq!(journal.is_none(), *id == ids[5]);
    }
}

/// A lock of the test keeps the first statement waiting, as a long journal would.
#[tokio::test]
async fn requests_behind_a_slow_statement_are_read_by_statements_of_their_own() {
    const WAITING: &str = "select count(*) from pg_stat_activity
        where wait_event_type = 'Lock' and query like '%r.request_id as key%'";
    let fixture = StoreFixture::postgres().await;
    let ids = paused(&fixture, 67).await;
    let mut locking = fixture.connection().await;
    locking.execute("begin").await.unwrap();
    let lock = "lock table intervention_request in access exclusive mode";
    locking.execute(lock).await.unwrap();
    let release = async {
        until("the shared statement and others wait", async || {
            fixture.number(WAITING).await > 4
        })
        .await;
        // The first statement, which reads 64 requests, fails.
        let cancel = "select count(*) from (select pg_cancel_backend(pid) from pg_stat_activity
            where wait_event_type = 'Lock' and query like '%r.request_id as key%' order by query_start limit 1) c";
        fixture.number(cancel).await;
        locking.execute("rollback").await.unwrap();
    };
    let (read, ()) = tokio::join!(read_at_once(&fixture, &ids), release);
    for (id, read) in ids.iter().zip(read) {
        assert_eq!(read.unwrap().0.spec.request_id, *id);
    }
}

/// The reader is a Tokio task that reads requests for all callers. A runtime that ends drops its
/// reader, together with the statement in flight.
#[test]
fn request_is_read_after_the_runtime_of_the_reader_has_ended() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (outer, inner) = (runtime(), runtime());
    let (fixture, ids, mut locking) = outer.block_on(async {
        let fixture = StoreFixture::postgres().await;
        let ids = paused(&fixture, 2).await;
        let mut locking = fixture.connection().await;
        locking.execute("begin").await.unwrap();
        let lock = "lock table intervention_request in access exclusive mode";
        locking.execute(lock).await.unwrap();
        (fixture, ids, locking)
    });
    let read = fixture.store.request_with_journal(ids[0]);
    let short = std::time::Duration::from_millis(30);
    assert!(
        inner
            .block_on(async { tokio::time::timeout(short, read).await })
            .is_err()
    );
    inner.shutdown_background();
    outer.block_on(async {
        locking.execute("rollback").await.unwrap();
        let started = std::time::Instant::now();
        // A read waits at most 100 ms for another reader. If each of these reads waited for the
        // dropped reader, they would take ten seconds.
        for _ in 0..100 {
            let read = fixture.store.request_with_journal(ids[1]).await;
            assert_eq!(read.unwrap().unwrap().0.spec.request_id, ids[1]);
        }
        assert!(
            started.elapsed() < std::time::Duration::from_secs(10),
            "no read waits for another reader"
        );
        drop((fixture, locking));
    });
}
