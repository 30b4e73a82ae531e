//! A server of Postgres that crashes, freezes and comes back.

use std::time::Duration;

use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::support::postgres::PrivateCluster;

async fn answers(cluster: &PrivateCluster) -> bool {
    let asked = async {
        let mut connection = PgConnection::connect(&cluster.url("postgres")).await?;
        connection.execute("select 1").await
    };
    tokio::time::timeout(Duration::from_secs(1), asked).await.is_ok_and(|answer| answer.is_ok())
}

#[tokio::test]
async fn a_private_cluster_crashes_freezes_and_comes_back() {
    let cluster = PrivateCluster::start();
    assert!(answers(&cluster).await);
    cluster.crash();
    assert!(!answers(&cluster).await);
    cluster.start_again();
    assert!(answers(&cluster).await);
    cluster.freeze();
    assert!(!answers(&cluster).await);
    cluster.thaw();
    assert!(answers(&cluster).await);
}
