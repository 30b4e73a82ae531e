//! `holdpoint mcp lock`: the review of MCP servers' tools.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{CommandFailure, CommonOptions, FAILED, OK, USAGE_ERROR, print, run_to_end, source};
use crate::app::{self, ReviewResult};
use crate::config::environment::Environment;
use crate::config::layers::NOT_UTF_8;
use crate::config::{self, Source};

#[derive(Debug, Subcommand)]
pub(super) enum Mcp {
    /// List the servers' tools, show the differences from the lock file, and write the lock file.
    Lock(LockOptions),
}

#[derive(Debug, Args)]
pub(super) struct LockOptions {
    /// Review only the server with this name.
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Write nothing; exit with 1 if the servers' tools or revisions differ from the lock file.
    #[arg(long)]
    check: bool,
    /// Write the lock file without asking.
    #[arg(long)]
    yes: bool,
    /// Add a header to the requests. The environment variable VARIABLE holds the value.
    #[arg(long, value_name = "NAME=VARIABLE")]
    header: Vec<String>,
    #[command(flatten)]
    common: CommonOptions,
}

const NO_CONFIGURATION: &str =
    "no configuration is named and there is no ./holdpoint.yaml: name the file with --config";

pub(super) fn run(command: &Mcp, environment: &Environment) -> Result<u8, CommandFailure> {
    let Mcp::Lock(options) = command;
    let wrong = |why: String| (USAGE_ERROR, why);
    let (source, note) = source(&options.common, environment).map_err(wrong)?;
    // The demonstration has no MCP servers, so its review would remove every server from a lock
    // file in the working directory.
    if matches!(source, Source::Demo) {
        return Err(wrong(NO_CONFIGURATION.to_owned()));
    }
    if let Some(note) = note {
        let _ = writeln!(std::io::stderr(), "{note}");
    }
    let loaded = config::load_mcp(source, environment, &options.common.flags);
    let (config, path) = loaded.map_err(|report| wrong(report.to_string()))?;
    if let Some(name) = &options.server
        && !config.mcp.contains_key(name)
    {
        return Err(wrong(format!("no MCP server is called `{name}`")));
    }
    if config.mcp.is_empty() && config.lock.servers.is_empty() {
        return Err(wrong(
            "the configuration has no MCP servers under `mcp`".to_owned(),
        ));
    }
    let headers = headers(&options.header, environment).map_err(wrong)?;
    let only = options.server.as_deref();
    let reviewed = run_to_end(app::review_mcp_tools(&config, only, &headers))?;
    if print(&reviewed.text) != OK {
        return Ok(FAILED);
    }
    finish(options, &path, &reviewed)
}

/// Writes the lock file if the servers differ from it and the person agrees, by `--yes` or at the
/// prompt. Returns an error if the person does not agree. With `--check`, writes nothing and
/// returns an error if there is a difference.
fn finish(
    options: &LockOptions,
    path: &Path,
    reviewed: &ReviewResult,
) -> Result<u8, CommandFailure> {
    let file = path.display();
    if !reviewed.differs {
        return Ok(print(&format!("{file} is up to date.\n")));
    }
    if options.check {
        return Err((FAILED, format!("{file} is not up to date.")));
    }
    if !options.yes && !confirm_write(path)? {
        return Err((FAILED, format!("{file} was not changed.")));
    }
    write(path, &reviewed.lock.text())
        .map_err(|error| (FAILED, format!("{file} cannot be written: {error}")))?;
    Ok(print(&format!(
        "Wrote {file}. Keep it with the configuration, under version control.\n"
    )))
}

fn confirm_write(path: &Path) -> Result<bool, CommandFailure> {
    if !std::io::stdin().is_terminal() {
        let why = "nothing was written: there is no terminal to ask at; read the differences, then pass --yes";
        return Err((FAILED, why.to_owned()));
    }
    let _ = write!(
        std::io::stderr(),
        "Write this to {}? [y/N] ",
        path.display()
    );
    let mut answer = String::new();
    let _ = std::io::stdin().read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Writes a new file and renames it, so that a reader never sees a part of the new text.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    std::fs::write(&temporary, text)?;
    std::fs::rename(&temporary, path)
}

/// Returns the headers of the `--header` options, with the values of their variables. An error
/// quotes only the name of a variable that is set: in the place of any other name, a person may
/// have written the secret value.
fn headers(written: &[String], environment: &Environment) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for pair in written {
        let malformed = || "`--header` is `NAME=VARIABLE`".to_owned();
        let (name, variable) = pair.split_once('=').ok_or_else(malformed)?;
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| malformed())?;
        if environment.is_undecodable(variable) {
            return Err(format!("{variable}: {NOT_UTF_8}"));
        }
        let value = environment.variable(variable).ok_or_else(|| {
            "`--header NAME=VARIABLE` names no environment variable that is set".to_owned()
        })?;
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| format!("the variable `{variable}` holds what no header can hold"))?;
        value.set_sensitive(true);
        headers.insert(parsed, value);
    }
    Ok(headers)
}
