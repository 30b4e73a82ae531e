//! A database for each test, in the shared cluster or on the server at `TEST_DATABASE_URL`.
//! [`Removal`] says which test drops the database.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::{
    TEMPLATE, migrate, migrate_only, other_database, run, run_each, shared_cluster, unique,
};

pub struct TestDatabase {
    pub url: String,
    name: String,
    removal: Removal,
}

/// The way in which the database of an ended test is dropped.
enum Removal {
    /// The ended test adds its database to the list in this file. The next test that creates a
    /// database in the shared cluster drops the listed databases on the same connection, because a
    /// further connection costs more than a further statement.
    ByNextTest(PathBuf),
    /// The ended test itself drops its database, on the server at this URL.
    AtOnce(String),
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // Ignores errors. A database that remains harms no other test. A panic here would abort the
        // process if the test has already panicked.
        match &self.removal {
            Removal::ByNextTest(list) => {
                let _ = lock(list).and_then(|mut list| writeln!(list, "{}", self.name));
            }
            Removal::AtOnce(admin) => {
                let (admin, sql) = (admin.clone(), drop_statement(&self.name));
                let dropped = std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .unwrap();
                    runtime.block_on(run(&admin, sql));
                });
                let _ = dropped.join();
            }
        }
    }
}

fn drop_statement(name: &str) -> String {
    format!("drop database if exists \"{name}\" with (force)")
}

/// Opens a file, and locks it until the returned value is dropped.
fn lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file = options.read(true).append(true).create(true).open(path)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Empties the list of the databases to drop. Returns their names.
fn take_names(list: &Path) -> Vec<String> {
    let mut list = lock(list).unwrap();
    let mut names = String::new();
    list.read_to_string(&mut names).unwrap();
    list.set_len(0).unwrap();
    names.lines().map(str::to_owned).collect()
}

pub async fn database() -> TestDatabase {
    let name = format!("t_{}", unique());
    if let Some(admin) = std::env::var_os("TEST_DATABASE_URL") {
        let admin = admin.into_string().unwrap();
        run(&admin, format!("create database \"{name}\"")).await;
        let url = other_database(&admin, &name);
        migrate(&url).await;
        return TestDatabase {
            url,
            name,
            removal: Removal::AtOnce(admin),
        };
    }
    let cluster = shared_cluster().await;
    let list = cluster.folder.join("ended");
    let ended = take_names(&list);
    let mut statements: Vec<_> = ended.iter().map(|ended| drop_statement(ended)).collect();
    let strategy = cluster.copy_strategy();
    statements.push(format!(
        "create database \"{name}\" template {TEMPLATE} {strategy}"
    ));
    run_each(&cluster.url("postgres"), statements).await;
    TestDatabase {
        url: cluster.url(&name),
        name,
        removal: Removal::ByNextTest(list),
    }
}

/// Creates a database with the product's schema, but without the constraints of `nets.sql`.
pub async fn database_without_nets() -> TestDatabase {
    let database = empty_database().await;
    migrate_only(&database.url).await;
    database
}

pub async fn empty_database() -> TestDatabase {
    let database = database().await;
    let drop_all = "drop schema public cascade; create schema public";
    run(&database.url, drop_all.to_owned()).await;
    database
}
