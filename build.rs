//! Rebuilds when a migration is added: `sqlx::migrate!` does not see new files by itself.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
