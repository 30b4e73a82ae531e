//! Compares a server's tools with their reviewed definitions. Invariants: a tool counts as changed
//! if the server lists another definition of the tool, lists the tool twice, or does not list the
//! tool. The tool counts as changed until a later comparison finds the reviewed definition. A
//! comparison requests the list of tools with the headers of a call. Its result holds only for
//! calls with the same headers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::Client;
use super::lock::{LockedServer, LockedTool, tool_name};
use crate::task::id::TaskId;
use crate::tool::catalog::definition_digest;
use crate::tool::headers::headers_digest;
use crate::world::Locked;

/// The maximum age of a successful comparison for [`ComparisonReason::Judge`] and
/// [`ComparisonReason::Start`].
const FRESH_FOR: Duration = Duration::from_mins(1);
/// The time after a failed comparison in which [`ComparisonReason::Judge`] requires no new
/// comparison.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(10);
const MAX_TASKS: usize = 1024;

/// The reason for a comparison, which decides how old the comparison may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComparisonReason {
    /// A call is judged for the first time, or shown in a reconcile request. The driver ignores a
    /// failure of this comparison, because a call starts only after a recent comparison has
    /// succeeded.
    Judge,
    /// A repeatable call that a rule allows is about to start.
    Start,
    /// Only a comparison that begins now is recent enough. There are three reasons:
    ///
    /// - A call that must not be repeated is about to start.
    /// - A call is about to start because of a person's decision.
    /// - A decision that lets a call start is about to be stored.
    StartNow,
}

/// The comparisons of one server's tools with their reviewed definitions. Each set of request
/// headers has its own comparison, because a server may list different tools for different users.
/// A comparison is dropped once `Cache::by_task` no longer refers to it.
#[derive(Debug, Default)]
pub(super) struct Comparisons(Locked<Cache>);

#[derive(Debug, Default)]
struct Cache {
    /// For each task: the comparison that the task used last, and the time of that use. If the
    /// headers contain no user's credentials, all tasks share the key `None`.
    by_task: BTreeMap<Option<TaskId>, (Instant, Arc<ToolComparison>)>,
    /// The comparisons by the digest of their headers. The headers are not kept, because they may
    /// contain credentials.
    by_headers: BTreeMap<[u8; 32], Weak<ToolComparison>>,
}

impl Comparisons {
    /// Returns the [`ToolComparison`] that `task` used last; `None` if `task` has used none.
    pub(super) fn last_used_by(&self, task: Option<TaskId>) -> Option<Arc<ToolComparison>> {
        let kept = self.0.lock();
        let (_, comparison) = kept.by_task.get(&task)?;
        Some(Arc::clone(comparison))
    }

    /// Returns the comparison for `headers`, and records this comparison as the last comparison
    /// that `task` used. If more than [`MAX_TASKS`] tasks are recorded, forgets the task whose last
    /// use of a comparison is the oldest.
    pub(super) fn for_headers(
        &self,
        task: Option<TaskId>,
        headers: &HeaderMap,
    ) -> Arc<ToolComparison> {
        let mut kept = self.0.lock();
        let key = headers_digest(headers);
        let known = kept.by_headers.get(&key).and_then(Weak::upgrade);
        let comparison = known.unwrap_or_default();
        kept.by_task
            .insert(task, (Instant::now(), Arc::clone(&comparison)));
        if kept.by_task.len() > MAX_TASKS {
            let least_recent = kept.by_task.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(task) = least_recent.map(|(task, _)| *task) {
                kept.by_task.remove(&task);
            }
        }
        kept.by_headers.retain(|_, kept| kept.strong_count() > 0);
        kept.by_headers.insert(key, Arc::downgrade(&comparison));
        comparison
    }

    /// Whether the comparison for `headers` has succeeded and is recorded as the last comparison
    /// that `task` used.
    pub(super) fn is_compared(&self, task: Option<TaskId>, headers: &HeaderMap) -> bool {
        let kept = self.0.lock();
        let known = kept.by_headers.get(&headers_digest(headers));
        let used = kept.by_task.get(&task);
        known.zip(used).is_some_and(|(known, (_, used))| {
            let is_used = std::ptr::eq(known.as_ptr(), Arc::as_ptr(used));
            is_used && used.state.lock().compared_at.is_some()
        })
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let kept = self.0.lock();
        (kept.by_task.len(), kept.by_headers.len())
    }
}

/// The latest results of comparing the server's tools with their reviewed definitions, for one set
/// of request headers.
#[derive(Debug, Default)]
pub(super) struct ToolComparison {
    state: Locked<State>,
    /// Locked during a comparison. The callers of `compare` that wait for the lock share the next
    /// comparison.
    comparing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The time at which the last successful comparison began; `None` before the first.
    compared_at: Option<Instant>,
    /// The number of `list_changed` notifications when the last successful comparison began.
    notifications: u64,
    /// If the last comparison failed: the time at which it began, the time at which it failed, and
    /// the reason. Otherwise `None`.
    failed: Option<(Instant, Instant, String)>,
    /// By name, the tools that differed from their reviewed definitions at the last successful
    /// comparison.
    changed: BTreeMap<String, Difference>,
    /// The digest of the names of unreviewed tools that the server listed at the last successful
    /// comparison; empty before the first comparison. The names are not kept, because a server may
    /// list long names.
    new_names: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// The digest of the present definition. `gone` if the server does not list the tool, and
    /// `twice` if it lists two tools of this name.
    pub(super) digest: String,
    /// A sentence that describes the difference, for example by the members that differ.
    pub(super) detail: String,
}

impl ToolComparison {
    /// Returns how the tool differed from its reviewed definition at the last successful
    /// comparison; `None` if the tool did not differ.
    pub(super) fn difference(&self, tool: &str) -> Option<Difference> {
        self.state.lock().changed.get(tool).cloned()
    }

    /// Returns whether `reason` requires a call of [`Self::compare`]. While a check of the server's
    /// child process is pending, a call that is about to start requires it, because the next child
    /// may have other tools. A question to people does not wait for the check.
    pub(super) fn is_stale(&self, reason: ComparisonReason, client: &Client) -> bool {
        let state = self.state.lock();
        let is_checked = client.checks().is_some_and(|checks| !checks.is_empty());
        let fresh = reason != ComparisonReason::StartNow
            && !is_checked
            && state.compared_at.is_some_and(|at| at.elapsed() < FRESH_FOR)
            && state.notifications == *client.list_changes().borrow();
        let failed = state.failed.as_ref();
        let has_failed = failed.is_some_and(|(_, at, _)| at.elapsed() < PAUSE_AFTER_FAILURE);
        let paused = reason == ComparisonReason::Judge && (is_checked || has_failed);
        !fresh && !paused
    }

    /// Compares the server's tools with `locked`, unless the last comparison suffices for `reason`.
    /// First waits for the pending checks of the server's child process. Here the wait takes no
    /// time from a call, which is sent only within a limit after its start is committed.
    ///
    /// # Errors
    /// Fails if the server's tools cannot be listed. The error is the reason.
    pub(super) async fn compare(
        &self,
        reason: ComparisonReason,
        server: &str,
        client: &Client,
        locked: &LockedServer,
        headers: &HeaderMap,
    ) -> Result<(), String> {
        if let Some(checks) = client.checks() {
            checks.wait().await;
        }
        let requested_at = Instant::now();
        let _comparing = self.comparing.lock().await;
        if let Some(shared) = self.result_since(requested_at) {
            return shared;
        }
        if !self.is_stale(reason, client) {
            return Ok(());
        }
        let notifications = *client.list_changes().borrow();
        let began = Instant::now();
        let listing = match client.list(headers).await {
            Ok(listing) => listing,
            Err(why) => {
                self.state.lock().failed = Some((began, Instant::now(), why.clone()));
                client.observe_failure(server);
                return Err(why);
            }
        };
        let changed = differences(locked, &listing.tools);
        let names = listing.tools.iter().filter_map(tool_name);
        let new_tools: BTreeSet<&str> = names
            .filter(|name| !locked.tools.contains_key(*name))
            .collect();
        let new_names = definition_digest(&json!(new_tools));
        let count = changed.len() + new_tools.len();
        let mut state = self.state.lock();
        if count > 0 && (state.changed != changed || state.new_names != new_names) {
            tracing::warn!(
                server,
                changed = changed.len(),
                new = new_tools.len(),
                "the server's tools are not those that were reviewed"
            );
        }
        tracing::info!(target: "holdpoint::metric", metric = "mcp_catalogue_changed", server, change = count);
        Client::observe_success(server);
        *state = State {
            compared_at: Some(began),
            notifications,
            failed: None,
            changed,
            new_names,
        };
        Ok(())
    }

    /// Returns the result of the last comparison if this comparison began at `requested_at` or
    /// later; otherwise `None`.
    fn result_since(&self, requested_at: Instant) -> Option<Result<(), String>> {
        let state = self.state.lock();
        let failed = state.failed.as_ref();
        if let Some((_, _, why)) = failed.filter(|(began, _, _)| *began >= requested_at) {
            return Some(Err(why.clone()));
        }
        let succeeded = state.compared_at.is_some_and(|at| at >= requested_at);
        succeeded.then_some(Ok(()))
    }
}

/// Returns, by name, the differences between the reviewed tools and the tools that the server
/// lists.
fn differences(locked: &LockedServer, listed: &[Value]) -> BTreeMap<String, Difference> {
    let mut changed = BTreeMap::new();
    for (name, tool) in &locked.tools {
        let mut now = listed.iter().filter(|tool| tool_name(tool) == Some(name));
        let difference = match (now.next(), now.next()) {
            (Some(now), None) => difference(tool, now),
            (None, _) => Some(Difference {
                digest: "gone".to_owned(),
                detail: "The server does not list it any more.".to_owned(),
            }),
            (Some(_), Some(_)) => Some(Difference {
                digest: "twice".to_owned(),
                detail: "The server lists two tools of this name.".to_owned(),
            }),
        };
        changed.extend(difference.map(|difference| (name.clone(), difference)));
    }
    changed
}

fn difference(locked: &LockedTool, now: &Value) -> Option<Difference> {
    let digest = definition_digest(now);
    if digest == locked.digest {
        return None;
    }
    let members = members_that_differ(&locked.definition, now);
    Some(Difference {
        digest,
        detail: format!("Now different: {}.", members.join(", ")),
    })
}

/// Returns the names of the members in which two definitions differ. A member that the protocol
/// does not define appears as `other members`, because the server can choose any name for it.
pub(super) fn members_that_differ(old: &Value, new: &Value) -> Vec<&'static str> {
    const KNOWN: [&str; 8] = [
        "title",
        "description",
        "inputSchema",
        "outputSchema",
        "annotations",
        "icons",
        "execution",
        "_meta",
    ];
    let mut members: Vec<_> = KNOWN
        .into_iter()
        .filter(|member| old.get(member) != new.get(member))
        .collect();
    let rest = |definition: &Value| -> BTreeMap<String, Value> {
        let all = definition.as_object().into_iter().flatten();
        let rest = all.filter(|(name, _)| !KNOWN.contains(&name.as_str()));
        rest.map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    if rest(old) != rest(new) {
        members.push("other members");
    }
    members
}

#[cfg(test)]
mod tests;
