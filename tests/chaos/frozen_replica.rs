//! Tests a replica that is frozen between the commit of a call's start and the call itself, and
//! that wakes up after the task has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::chaos_run::{configure, journals, statuses};
use super::checker::{Evidence, check, report};
use super::process::Replica;
use super::scripted_model::Model;
use super::simulated_people::People;
use super::tool_server::ToolServer;
use crate::support::database::Database;
use crate::support::pause;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(not(failpoints), ignore = "needs failpoints")]
async fn replica_frozen_before_a_call_neither_sends_nor_overwrites_when_it_wakes() {
    let (tool_server, model) = (Arc::new(ToolServer::start().await), Model::start().await);
    let database = Database::postgres().await;
    let folder = tempfile::tempdir().unwrap();
    let config = configure(folder.path(), &model, &tool_server, database.url(), 8);
    let (first, second) = (Replica::new(config.clone()), Replica::new(config));
    let until = Instant::now() + Duration::from_mins(20);
    let at =
        |replica: &Replica| People::new(vec![replica.url()], Arc::clone(&tool_server), 0, until);
    let (of_first, of_second) = (at(&first), at(&second));
    let armed = "lease=6s;call.before=freeze@1";
    let mut replica = first.serve(armed, of_first.http()).await;
    // The replica may freeze before it answers the POST, so the test stops waiting for the reply
    // once the replica is frozen.
    {
        let frozen = async {
            while !replica.frozen() {
                of_first.in_time("its freezing");
                pause().await;
            }
        };
        tokio::pin!(frozen);
        tokio::select! {
            () = &mut frozen => {}
            _ = of_first.create("small 1") => frozen.await,
        }
    }
    let other = second.serve("lease=6s", of_second.http()).await;
    let task = of_second.listed().await.remove(0);
    // The second replica takes the task over and opens a reconcile request. The auditor answers
    // that the call was not executed, so the second replica sends the call.
    assert_eq!(of_second.settle(&task).await, "Completed");
    assert_eq!(tool_server.ledger().len(), 1);
    replica.signal(Signal::CONT);
    assert!(
        replica.ready(of_first.http()).await,
        "{}",
        first.last_log_lines()
    );
    // While the woken replica drives another task to its end, it has time to send the first task's
    // call wrongly. The ledger would then have a third execution.
    let next = of_first.create("small 2").await;
    assert_eq!(of_first.settle(&next).await, "Completed");
    assert_eq!(tool_server.ledger().len(), 2);
    let said = statuses(&of_first, &[task, next]).await;
    replica.kill().await;
    other.kill().await;
    let told = journals(database.url(), said).await;
    let history = [of_first.history(), of_second.history()].concat();
    let (ledger, attempted) = (tool_server.ledger(), of_second.attempted());
    let evidence = Evidence {
        tasks: &told,
        ledger: &ledger,
        history: &history,
        attempted: &attempted,
        one_clock: true,
    };
    let findings = check(&evidence);
    assert!(
        findings.wrong.is_empty(),
        "{}",
        report(&findings, &evidence)
    );
    assert_eq!(
        (findings.to_human, findings.takeovers),
        (1, 1),
        "the other replica asked, and ran the call"
    );
}
