//! Runs the commands of docs/operations.md that back a database up and restore it. The service runs
//! during the backup, and the history after the backup is lost.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::served_binary::{Folder, SERVE, Served};
use crate::documentation::commands_left_out;
use crate::support::postgres::{self, PrivateCluster, run};
use crate::support::test_app::ALICE;

const CONFIGURATION: &str = include_str!("data/older_version.yaml");
const SCRIPT: &str = include_str!("data/older_version_script.yaml");
/// The URL in the commands of the page.
const SHOWN_URL: &str = "postgres://holdpoint@db.internal/holdpoint";

/// Runs the command of the page that begins with `program`, with `url` in place of [`SHOWN_URL`].
fn run_command(program: &str, folder: &Path, url: &str) {
    let commands = commands_left_out("docs/operations.md");
    let command = commands
        .iter()
        .find(|command| command.split(' ').next() == Some(program))
        .unwrap_or_else(|| panic!("the page has no command `{program}`"))
        .replace(SHOWN_URL, url);
    let mut path = OsString::new();
    if program.starts_with("pg_") {
        // `PATH` begins with the programs of the server's version, because `pg_dump` refuses a
        // server that is newer than itself.
        path.push(postgres::bin());
        path.push(":");
    }
    path.push(std::env::var_os("PATH").unwrap());
    let done = Command::new("sh")
        .args(["-e", "-c", &command])
        .env("PATH", path)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command}: {complaint}");
}

/// Backs up the database at `url` while the service runs, writes more, loses the database with
/// `lose`, restores the backup, and serves it with `--restored`. `backup` and `restore` are the
/// programs of the page's commands.
async fn test_backup(url: &str, backup: &str, restore: &str, lose: impl AsyncFnOnce()) {
    let folder = Folder::new();
    std::fs::write(folder.file("holdpoint.yaml"), CONFIGURATION).unwrap();
    std::fs::write(folder.file("script.yaml"), SCRIPT).unwrap();
    let serve = |more: &[&str]| {
        let arguments = [&SERVE[..], &["--database-url", url], more].concat();
        Served::with(folder.path(), &arguments, &[]).bearer(ALICE)
    };
    let mut first = serve(&[]);
    let saved = first.task("refund the order").await;
    run_command(backup, folder.path(), url);
    let unsaved = first.task("refund the order").await;
    assert_eq!(unsaved["status"], "Paused", "{unsaved}");
    first.kill();
    lose().await;
    run_command(restore, folder.path(), url);
    let second = serve(&["--restored"]);
    let listed: Value = serde_json::from_str(&second.get("/v1/tasks").await).unwrap();
    let [task] = &listed["tasks"].as_array().unwrap()[..] else {
        panic!("not the one task of the backup: {listed}");
    };
    assert_eq!(task["task_id"], saved["task_id"], "{listed}");
    let warning = &task["pending"][0]["tool_calls"][0]["warnings"][0]["code"];
    assert_eq!(warning, "may_already_have_run", "{task}");
    let done = second.approve(&saved).await;
    assert_eq!(done["status"], "Completed", "{done}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_file_backed_up_and_restored_by_the_page_has_the_tasks_of_the_backup() {
    test_backup("sqlite://holdpoint.db", "sqlite3", "mkdir", async || {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_database_dumped_and_restored_by_the_page_has_the_tasks_of_the_dump() {
    let cluster = PrivateCluster::start();
    let server = cluster.url("postgres");
    let create = "create database holdpoint owner holdpoint";
    run(&server, "create role holdpoint login".to_owned()).await;
    run(&server, create.to_owned()).await;
    let url = cluster.url("holdpoint").replace("postgres@", "holdpoint@");
    test_backup(&url, "pg_dump", "pg_restore", async || {
        run(&server, "drop database holdpoint with (force)".to_owned()).await;
        run(&server, create.to_owned()).await;
    })
    .await;
}
