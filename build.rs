//! Rebuilds when a migration is added: `sqlx::migrate!` does not notice new files by itself.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
