//! Writes the Rust file `migrations.rs`, which `store/open.rs` includes: for each database engine,
//! the number, name and text of every migration. Sets `cfg(failpoints)`, unless the build is a
//! release build without the feature `failpoints`. Links the integration tests at a fixed address.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=migrations");
    println!("cargo::rustc-check-cfg=cfg(failpoints)");
    if variable("PROFILE")? == "debug" || variable("CARGO_FEATURE_FAILPOINTS").is_ok() {
        println!("cargo::rustc-cfg=failpoints");
    }
    if variable("CARGO_CFG_TARGET_ENV")? == "gnu" {
        // Each test is a process, and a program at a fixed address starts without relocations.
        println!("cargo::rustc-link-arg-tests=-no-pie");
    }
    let folder = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("migrations");
    let mut list = String::new();
    for engine in ["postgres", "sqlite"] {
        writeln!(
            list,
            "pub(super) const {}: &[(i64, &str, &str)] = &[",
            engine.to_uppercase()
        )?;
        for file in migrations(&folder.join(engine))? {
            let name = file
                .file_stem()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            let (number, name) = name
                .split_once('_')
                .ok_or("a migration is named NNNN_name.sql")?;
            let (number, name): (i64, _) = (number.parse()?, name.replace('_', " "));
            let path = file.to_str().ok_or("a path that is not UTF-8")?;
            writeln!(list, "({number}, {name:?}, include_str!({path:?})),")?;
        }
        list.push_str("];\n");
    }
    fs::write(Path::new(&variable("OUT_DIR")?).join("migrations.rs"), list)?;
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a build script cannot use the crate's modules"
)]
fn variable(name: &str) -> Result<String, env::VarError> {
    env::var(name)
}

/// Returns the `.sql` files in a folder, sorted by name. Each name begins with the number of the
/// migration.
fn migrations(folder: &Path) -> Result<Vec<PathBuf>, std::io::Error> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "sql") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
