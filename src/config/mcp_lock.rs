//! Loads the part of the configuration that the review of MCP servers needs. The other parts are
//! not checked, because they may name tools that only the review adds to the lock file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::environment::Environment;
use super::layers::{self, Flags};
use super::report::ConfigReport;
use super::tree::{self, Kind, MapEntry, Node, Origin};
use super::{
    Config, SECTIONS, Source, complete_servers, expand, lock_path, mcp_tools, read_sections,
    required, schema, secret_values,
};
use crate::mcp::Lock;
use crate::world::{Mistake, Mistakes};

/// Loads the MCP servers and their lock file. Returns a configuration that has these parts and
/// their secret values alone, and the path of the lock file. If the file does not exist yet, the
/// lock is empty.
///
/// # Errors
/// Fails if the servers or the lock file have mistakes. The error is the report of all mistakes.
pub fn load_mcp(
    source: Source,
    environment: &Environment,
    flags: &Flags,
) -> Result<(Config, PathBuf), ConfigReport> {
    let (name, directory, text, _) = source.parts();
    let mut mistakes = Mistakes::default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let parsed = tree::parse(text, None, &mut mistakes);
    let mut root =
        parsed.unwrap_or_else(|| Node::new(Origin::File { line: 1, column: 1 }, Kind::Null));
    let is_file_empty = matches!(root.kind, Kind::Null) && mistakes.is_empty();
    let mut overrides = Mistakes::default();
    layers::apply_variables(&mut root, environment, schema::keys, &mut overrides);
    let found = overrides.found.into_iter().filter(concerns_servers);
    mistakes.found.extend(found);
    layers::apply_flags(&mut root, flags);
    if is_file_empty && root.get("mcp").is_none() {
        // The file may be cut off or not be mounted yet. Without a map, `read_sections` reports a
        // mistake. With an empty map, the review would remove each server from the lock file.
        root.kind = Kind::Null;
    } else if let Kind::Map(entries) = &mut root.kind {
        // Unknown keys are kept, so that they are reported. Otherwise a file with a misspelt `mcp`
        // would have no servers, and the review would remove each server from the lock file.
        entries.retain(|MapEntry { key, .. }| {
            matches!(key.as_str(), "mcp" | "mcp_lock") || !SECTIONS.contains(&key.as_str())
        });
    } else if matches!(root.kind, Kind::Null) {
        root.kind = Kind::Map(Vec::new());
    }
    let inserted = expand(&mut root, environment, &directory, &mut mistakes);
    required::check_sections(&mut root, &mut mistakes);
    let mut config = read_sections(&mut root, &mut mistakes);
    let path = lock_path(&mut root, &directory, &mut mistakes);
    let servers = &mut config.mcp;
    complete_servers(servers, &root, environment, &directory, &mut mistakes);
    for (name, server) in &config.mcp {
        mcp_tools::check_server(name, server, &root, &mut mistakes);
    }
    config.lock = read_lock(environment, &path, &mut mistakes);
    config.secret_values = secret_values::find(&root, &inserted);
    if mistakes.is_empty() {
        Ok((config, path))
    } else {
        let secrets = config.redactor();
        Err(ConfigReport::new(
            &name, &root, &mistakes, &secrets, &inserted,
        ))
    }
}

/// Whether a mistake is in a variable that overrides a key below `mcp` or `mcp_lock`.
fn concerns_servers(mistake: &Mistake) -> bool {
    mistake.place.first().is_some_and(|name| {
        let name = name.to_ascii_uppercase();
        name.starts_with("@HOLDPOINT_MCP__") || name.starts_with("@HOLDPOINT_MCP_LOCK__")
    })
}

/// Reads the lock file. Returns an empty lock if the file does not exist. If the file cannot be
/// read, reports the mistakes and returns an empty lock, too.
fn read_lock(environment: &Environment, path: &Path, mistakes: &mut Mistakes) -> Lock {
    let found = match environment.file(path).map(|text| Lock::read(&text)) {
        Ok(Ok(lock)) => return lock,
        Err(error) if error.kind() == ErrorKind::NotFound => return Lock::default(),
        Ok(Err(found)) => found,
        Err(error) => vec![format!("cannot be read: {error}")],
    };
    for detail in found {
        mistakes.add(
            &["mcp_lock"],
            format!("the lock file `{}` {detail}", path.display()),
        );
    }
    Lock::default()
}
