//! The comparison of a server's tools with their reviewed definitions. Invariant: a tool that the
//! server lists with another definition, twice, or not at all counts as changed until a later
//! comparison finds the reviewed definition again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio::time::Instant;

use super::client::Client;
use super::lock::{LockedServer, LockedTool, digest, tool_name};

/// How long a comparison counts where it need not be made anew.
const COUNTS: Duration = Duration::from_mins(1);
/// How long a comparison may take.
const LISTING: Duration = Duration::from_secs(20);
/// How long after a failure no comparison is made that may be left out.
const PAUSE: Duration = Duration::from_secs(10);

/// The reason for a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A call is judged for the first time. Without a comparison, a change is noticed later.
    Judge,
    /// A repeatable call that a rule allows is about to start.
    Start,
    /// A call that a person approved, or that must not be repeated, is about to start: only a
    /// comparison that begins now counts.
    StartNow,
}

/// The result of the comparisons so far.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    state: Mutex<State>,
    /// Held while the server is asked, so that concurrent calls share one comparison.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The time at which the last comparison began.
    compared: Option<Instant>,
    /// The number of `list_changed` notifications before the last comparison.
    notified: u64,
    /// The headers of the last comparison: a server may show each user other tools.
    headers: HeaderMap,
    /// The last comparison, if it failed: when it began and ended, and the reason.
    failed: Option<(Instant, Instant, String)>,
    /// The tools that differ from their reviewed definitions.
    changed: BTreeMap<String, Difference>,
}

/// The difference between a reviewed definition and the server's present one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// The digest of the present definition, or a word if there is none.
    pub(super) digest: String,
    /// A sentence that names the members that differ.
    pub(super) detail: String,
}

impl Comparison {
    /// The difference found by the last comparison; `None` if there is none.
    pub(super) fn difference(&self, tool: &str) -> Option<Difference> {
        self.lock().changed.get(tool).cloned()
    }

    /// Whether the last comparison does not suffice.
    pub(super) fn is_stale(&self, need: Need, client: &Client) -> bool {
        let state = self.lock();
        let fresh = need != Need::StartNow
            && state.compared.is_some_and(|at| at.elapsed() < COUNTS)
            && state.notified == *client.list_changes().borrow();
        let paused = need == Need::Judge
            && state
                .failed
                .as_ref()
                .is_some_and(|(_, at, _)| at.elapsed() < PAUSE);
        !fresh && !paused
    }

    /// Compares the server's tools with `locked`, unless the last comparison suffices.
    ///
    /// # Errors
    /// The reason why the server's tools could not be listed.
    pub(super) async fn compare(
        &self,
        need: Need,
        server: &str,
        client: &Client,
        locked: &LockedServer,
        headers: &HeaderMap,
    ) -> Result<(), String> {
        let asked = Instant::now();
        let _asking = self.asking.lock().await;
        if let Some(shared) = self.shared(asked, headers) {
            return shared;
        }
        if !self.is_stale(need, client) {
            return Ok(());
        }
        let notified = *client.list_changes().borrow();
        let began = Instant::now();
        let listed = tokio::time::timeout(LISTING, client.list(headers)).await;
        let listed = match listed {
            Ok(listed) => listed.map_err(|failure| failure.to_string()),
            Err(_) => Err("it did not list its tools in time".to_owned()),
        };
        let listing = match listed {
            Ok(listing) => listing,
            Err(why) => {
                self.lock().failed = Some((began, Instant::now(), why.clone()));
                client.observe_failure(server);
                return Err(why);
            }
        };
        let changed = differences(locked, &listing.tools);
        let news = listing.tools.iter().filter_map(tool_name);
        let news = news
            .filter(|name| !locked.tools.contains_key(*name))
            .count();
        let mut state = self.lock();
        if (!changed.is_empty() || news > 0) && state.changed != changed {
            tracing::warn!(
                server,
                changed = changed.len(),
                new = news,
                "the server's tools are not those that were reviewed"
            );
        }
        let count = changed.len() + news;
        tracing::info!(target: "holdpoint::metric", metric = "mcp_catalogue_changed", server, change = count);
        Client::observe_success(server);
        *state = State {
            compared: Some(began),
            notified,
            headers: headers.clone(),
            failed: None,
            changed,
        };
        Ok(())
    }

    /// The result of a comparison that began and ended while a call waited since `asked`: a success
    /// counts for the same headers.
    fn shared(&self, asked: Instant, headers: &HeaderMap) -> Option<Result<(), String>> {
        let state = self.lock();
        let failed = state.failed.as_ref();
        if let Some((_, _, why)) = failed.filter(|(began, _, _)| *began >= asked) {
            return Some(Err(why.clone()));
        }
        let succeeded = state.compared.is_some_and(|at| at >= asked);
        (succeeded && state.headers == *headers).then_some(Ok(()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reviewed tools that the server does not list exactly as they were reviewed.
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
    let digest = digest(now);
    if digest == locked.digest {
        return None;
    }
    let members = members_that_differ(&locked.definition, now);
    Some(Difference {
        digest,
        detail: format!("Now different: {}.", members.join(", ")),
    })
}

/// The names of the members in which two definitions differ. A name that the server invented is not
/// quoted.
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
mod tests {
    use serde_json::json;

    use super::super::fake::{Fake, answer, called, endless, modern, said, succeeded};
    use super::*;

    fn locked(tools: &[Value]) -> LockedServer {
        let tools = tools.iter().map(|tool| {
            let name = tool_name(tool).unwrap().to_owned();
            (name, LockedTool::new(tool.clone()))
        });
        LockedServer {
            server: Value::Null,
            protocol: String::new(),
            locked_at: String::new(),
            tools: tools.collect(),
        }
    }

    #[test]
    fn tool_that_is_listed_differently_or_not_at_all_or_twice_has_changed() {
        let same = json!({"name": "a", "description": "x", "inputSchema": {"type": "object"}});
        let locked = locked(std::slice::from_ref(&same));
        assert_eq!(
            differences(&locked, std::slice::from_ref(&same)),
            BTreeMap::new()
        );
        let reordered: Value = serde_json::from_str(
            r#"{"inputSchema": {"type": "object"}, "description": "x", "name": "a"}"#,
        )
        .unwrap();
        assert_eq!(differences(&locked, &[reordered]), BTreeMap::new());
        let with = |member: &str, value: Value| {
            let mut tool = same.clone();
            tool[member] = value;
            tool
        };
        for (listed, detail) in [
            (vec![], "The server does not list it any more."),
            (
                vec![same.clone(), same.clone()],
                "The server lists two tools of this name.",
            ),
            (
                vec![with("description", json!("y"))],
                "Now different: description.",
            ),
            (
                vec![with(
                    "inputSchema",
                    json!({"type": "object", "properties": {}}),
                )],
                "Now different: inputSchema.",
            ),
            (
                vec![with("annotations", json!({"readOnlyHint": true}))],
                "Now different: annotations.",
            ),
            (
                vec![with("x-new", json!(1))],
                "Now different: other members.",
            ),
            (
                vec![with("name", json!("A"))],
                "The server does not list it any more.",
            ),
        ] {
            let found = differences(&locked, &listed);
            assert_eq!(found.len(), 1, "{listed:?}");
            assert_eq!(found["a"].detail, detail);
            assert_ne!(found["a"].digest, locked.tools["a"].digest);
        }
    }

    fn definition(text: &str) -> Value {
        json!({"name": "a", "description": text, "inputSchema": {"type": "object"}})
    }

    /// A server whose only tool has the description that is set.
    async fn listing(text: &tokio::sync::watch::Sender<&'static str>) -> Fake {
        let text = text.subscribe();
        Fake::new(move |seen| {
            if let Some(response) = modern(seen) {
                return Some(response);
            }
            let text = *text.borrow();
            if text == "down" {
                return Some(answer(503, "text/plain", ""));
            }
            let list = json!({"tools": [definition(text)], "resultType": "complete"});
            let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
            let mut texts = vec![seen.result_text(&list)];
            if seen.method() == "tools/call" {
                texts = vec![changed.to_owned(), seen.result_text(&said("done"))];
            }
            Some(endless(&texts))
        })
        .await
    }

    fn lists(server: &Fake) -> usize {
        let methods = server.methods();
        methods
            .iter()
            .filter(|method| *method == "tools/list")
            .count()
    }

    /// Makes the last comparison, and the last failure, older.
    fn age(comparison: &Comparison, by: Duration) {
        let mut state = comparison.lock();
        if let Some(at) = &mut state.compared {
            *at -= by;
        }
        if let Some((_, at, _)) = &mut state.failed {
            *at -= by;
        }
    }

    #[tokio::test]
    async fn comparison_counts_for_a_minute_but_never_for_the_start_of_an_approved_call() {
        let (text, _) = tokio::sync::watch::channel("x");
        let server = listing(&text).await;
        let (client, comparison) = (server.client(), Comparison::default());
        let locked = locked(&[definition("x")]);
        let none = HeaderMap::new();
        let needs = [Need::Judge, Need::Start, Need::StartNow];
        let stale = || needs.map(|need| comparison.is_stale(need, &client));
        assert_eq!(stale(), [true; 3]);
        for need in needs {
            let compared = comparison.compare(need, "s", &client, &locked, &none);
            compared.await.unwrap();
        }
        assert_eq!((lists(&server), stale()), (2, [false, false, true]));
        age(&comparison, Duration::from_secs(58));
        assert_eq!(stale(), [false, false, true]);
        age(&comparison, Duration::from_secs(3));
        assert_eq!(stale(), [true; 3]);
        let compared = comparison.compare(Need::Start, "s", &client, &locked, &none);
        compared.await.unwrap();
        assert_eq!((lists(&server), comparison.difference("a")), (3, None));
    }

    #[tokio::test]
    async fn change_is_found_as_soon_as_the_server_announces_it() {
        let (text, _) = tokio::sync::watch::channel("x");
        let server = listing(&text).await;
        let (client, comparison) = (server.client(), Comparison::default());
        let locked = locked(&[definition("x")]);
        let none = HeaderMap::new();
        let compare = || comparison.compare(Need::Start, "s", &client, &locked, &none);
        compare().await.unwrap();
        text.send_replace("y");
        compare().await.unwrap();
        assert_eq!((lists(&server), comparison.difference("a")), (1, None));
        assert_eq!(called(&client).await, succeeded("done"));
        assert!(comparison.is_stale(Need::Start, &client));
        compare().await.unwrap();
        let detail = comparison.difference("a").unwrap().detail;
        assert_eq!(
            (lists(&server), detail.as_str()),
            (2, "Now different: description.")
        );
        assert!(!comparison.is_stale(Need::Start, &client));
    }

    #[tokio::test]
    async fn start_fails_while_no_comparison_can_be_made_and_judging_waits_a_while() {
        let (text, _) = tokio::sync::watch::channel("down");
        let server = listing(&text).await;
        let (client, comparison) = (server.client(), Comparison::default());
        let locked = locked(&[definition("x")]);
        let none = HeaderMap::new();
        for need in [Need::Judge, Need::Start, Need::StartNow] {
            let compared = comparison.compare(need, "s", &client, &locked, &none).await;
            assert_eq!(compared.unwrap_err(), "the server answered 503");
        }
        assert_eq!((lists(&server), server.calls().len()), (3, 0));
        let judged = comparison
            .compare(Need::Judge, "s", &client, &locked, &none)
            .await;
        assert_eq!((judged, lists(&server)), (Ok(()), 3));
        age(&comparison, PAUSE);
        assert!(comparison.is_stale(Need::Judge, &client));
        text.send_replace("y");
        let started = comparison.compare(Need::StartNow, "s", &client, &locked, &none);
        started.await.unwrap();
        assert!(comparison.difference("a").is_some());
        text.send_replace("down");
        age(&comparison, Duration::from_secs(61));
        let compared = comparison.compare(Need::StartNow, "s", &client, &locked, &none);
        assert!(compared.await.is_err());
        assert!(
            comparison.difference("a").is_some(),
            "the last finding stands"
        );
    }
}
