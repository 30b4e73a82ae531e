//! The review of MCP servers' tools: compares the tools that the servers list with the definitions
//! in the lock file.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::Config;
use crate::config::secret_values::header_credential;
use crate::mcp::{self, Lock, Review};
use crate::net::Net;
use crate::secret::{Redactor, Secret};
use crate::world::{Clock, SystemClock};

#[derive(Debug)]
pub struct ReviewResult {
    /// The differences, as text for the person who reviews the tools.
    pub text: String,
    /// Whether the servers' tools or protocol revisions differ from the lock file.
    pub differs: bool,
    /// The new content of the lock file; [`review`] does not write the file.
    pub lock: Lock,
}

/// Returns a redactor for the values of `headers`. If a value is a scheme such as `Bearer` and a
/// credential, the redactor also redacts the credential without the scheme.
fn header_redactor(headers: &http::HeaderMap) -> Redactor {
    let mut secrets = Vec::new();
    for (name, value) in headers {
        let value = value.to_str().unwrap_or_default();
        let credential = header_credential(name.as_str(), value);
        for text in [Some(value), credential].into_iter().flatten() {
            secrets.push((name.as_str(), Secret::new(text.to_owned())));
        }
    }
    Redactor::new(secrets.iter().map(|(name, value)| (*name, value)))
}

/// Lists the tools of the MCP server `only`, or of every MCP server if `only` is `None`. Compares
/// the tools with the lock file. Each request to a server gets the additional headers `headers`.
///
/// # Errors
/// Fails if a server cannot list its tools. The error names each such server and the reason.
pub async fn review(
    config: &Config,
    only: Option<&str>,
    headers: &http::HeaderMap,
) -> anyhow::Result<ReviewResult> {
    let net = Net::new()?;
    let mut redactor = config.redactor().merged_with(&header_redactor(headers));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut lock = config.lock.clone();
    let (mut text, mut differs) = (String::new(), false);
    if only.is_none() {
        let locked_names: Vec<String> = lock.servers.keys().cloned().collect();
        for name in locked_names
            .iter()
            .filter(|name| !config.mcp.contains_key(*name))
        {
            lock.servers.remove(name);
            text.push_str(&mcp::removal_report(name));
            differs = true;
        }
    }
    let mut names = names_in(&lock);
    // All servers are asked for their tools before the first review, because the review of one
    // server's texts needs the names of all other servers' tools.
    let (mut listings, mut failures) = (Vec::new(), Vec::new());
    let servers = config.mcp.iter();
    for (name, settings) in servers.filter(|(name, _)| only.is_none_or(|only| only == *name)) {
        match mcp::list(name, settings, &net, &redactor, &clock, headers).await {
            Ok((listing, tokens)) => {
                redactor = redactor.merged_with(&tokens);
                names.insert(name.clone(), listing.tool_names());
                listings.push((name, listing));
            }
            Err(error) => {
                let why = format!("`{name}` could not be asked for its tools: {error:#}");
                failures.push(why);
            }
        }
    }
    anyhow::ensure!(failures.is_empty(), "{}", failures.join("\n"));
    for (name, listing) in listings {
        let others = tools_of_others(name, &names, config);
        let old = lock.servers.get(name);
        let Review {
            text: report,
            differs: server_differs,
            locked,
        } = mcp::review(name, old, listing, &others, &redactor, clock.now());
        text.push_str(&redactor.redact(&report));
        differs |= server_differs;
        lock.servers.insert(name.clone(), locked);
    }
    Ok(ReviewResult {
        text,
        differs,
        lock,
    })
}

/// Returns the names of the tools in a lock file, by server.
fn names_in(lock: &Lock) -> BTreeMap<String, Vec<String>> {
    let servers = lock.servers.iter();
    let named =
        servers.map(|(name, locked)| (name.clone(), locked.tools.keys().cloned().collect()));
    named.collect()
}

/// Returns the tools in `names` of all servers except `server`, each with its server. The result
/// has each tool under its name at its server. If the server is configured, the result also has the
/// tool under the name that models see.
fn tools_of_others(
    server: &str,
    names: &BTreeMap<String, Vec<String>>,
    config: &Config,
) -> BTreeMap<String, String> {
    let mut tools = BTreeMap::new();
    for (other, names) in names.iter().filter(|(other, _)| *other != server) {
        let settings = config.mcp.get(other);
        for tool in names {
            let exposed = settings.map(|settings| settings.exposed_name(other, tool));
            let both = exposed.into_iter().chain([tool.clone()]);
            tools.extend(both.map(|name| (name, other.clone())));
        }
    }
    tools
}
