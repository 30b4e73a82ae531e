//! Tests of servers that run as child processes under a guard process. The servers are scripts. The
//! guard process is this test program, as in the tests of shell tools.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering as Order};

use futures_util::future::join_all;
use reqwest::header::HeaderMap;
use serde_json::json;

use super::super::client::{Client, Connection};
use super::super::comparison::{ComparisonReason, ToolComparison};
use super::super::content::NO_RESULT;
use super::super::fake::{NET, OwnedCall, Quick, called, succeeded};
use super::super::lock::LockedServer;
use super::super::settings::Transport;
use super::*;
use crate::tool::AttemptPermit;
use crate::world::Clock;
use crate::world::captured::Captured;

mod ends;

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

/// The Python script of a server that speaks an older revision. Its function `call(m)` answers a
/// call. Its function `say(id, text)` sends a result.
const SERVER: &str = r#"
import json, os, sys, signal
def send(m): sys.stdout.write(json.dumps(m) + "\n"); sys.stdout.flush()
def say(id, text): send({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}})
def note(text): open("notes", "a").write(text + "\n")
def call(m): say(m["id"], m["params"]["name"])
def other(m): pass
exec(sys.argv[1])
note("started")
for line in iter(sys.stdin.readline, ""):
    m = json.loads(line); method = m.get("method")
    note(method or "reply")
    if method == "server/discover": send({"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32601, "message": "no"}})
    elif method == "initialize": send({"jsonrpc": "2.0", "id": m["id"], "result": {"protocolVersion": "2025-11-25"}})
    elif method == "ping" and not globals().get("deaf"): send({"jsonrpc": "2.0", "id": m["id"], "result": {}})
    elif method == "tools/list": send({"jsonrpc": "2.0", "id": m["id"], "result": {"tools": [{"name": "a"}]}})
    elif method == "tools/call": call(m)
    else: other(m)
note("end of input")
"#;

/// A line of a server's script that makes the server ignore SIGTERM. The guard sends SIGTERM two
/// seconds after the end of the input. On a slow machine, SIGTERM could otherwise end the server
/// before the server has written the note `end of input`.
const IGNORE_TERM: &str = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n";

/// A server, and the directory in which the server writes notes.
struct Served {
    stdio: Stdio,
    directory: tempfile::TempDir,
    changes: watch::Receiver<u64>,
}

impl Served {
    fn by(program: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = program.iter().map(|text| Secret::new((*text).to_owned()));
        let path = "/usr/local/bin:/usr/bin:/bin".to_owned();
        let environment = BTreeMap::from([("PATH".to_owned(), Secret::new(path))]);
        let place = directory.path().to_str().unwrap().to_owned();
        let (changes, seen) = watch::channel(0);
        let command = (program.collect(), place, environment);
        let log = (Arc::default(), false);
        let mut stdio = Stdio::new("files", command, None, SHORT, changes, log);
        stdio.guard = crate::tool::shell::tests::this_program();
        stdio.limits = TimeLimits {
            start: LONG,
            list: LONG,
            // An answer to `server/discover` after its time limit would be dropped, and the request
            // would be sent again.
            probe: LONG,
            alive: LONG,
            after_list: LONG,
            pause: Duration::ZERO,
        };
        Self {
            stdio,
            directory,
            changes: seen,
        }
    }

    /// Creates a server whose script runs `script` before it reads the first message.
    fn running(script: &str) -> Self {
        Self::by(&["/usr/bin/env", "python3", "-c", SERVER, script])
    }

    fn notes(&self) -> Vec<String> {
        notes(self.directory.path())
    }

    fn count(&self, note: &str) -> usize {
        self.notes().iter().filter(|found| *found == note).count()
    }

    async fn call(&self, asking: &OwnedCall, within: Duration) -> McpOutcome {
        self.stdio.call(&asking.call(), None, within, 0).await
    }

    async fn called(&self) -> McpOutcome {
        self.call(&OwnedCall::default(), LONG).await
    }

    /// Creates a client that starts a child of its own. Its calls have the timeout [`SHORT`].
    fn client(&self) -> Client {
        let transport = Transport::Stdio(self.stdio.command.clone());
        let clock: Arc<dyn Clock> = Arc::new(Quick::default());
        let log = (Arc::default(), false);
        let mut client = Client::new("files", transport, SHORT, None, &NET, &clock, log);
        if let Connection::Stdio(stdio) = &mut client.connection {
            stdio.guard = self.stdio.guard.clone();
            stdio.limits = self.stdio.limits;
        }
        client
    }
}

/// Compares the server's tools like the driver before the start of a repeatable call.
async fn prepared(client: &Client, comparison: &ToolComparison) {
    let locked = LockedServer {
        server: Value::Null,
        protocol: String::new(),
        locked_at: String::new(),
        tools: BTreeMap::new(),
    };
    let none = HeaderMap::new();
    let compared = comparison.compare(ComparisonReason::Start, "files", client, &locked, &none);
    compared.await.unwrap();
}

fn notes(directory: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(directory.join("notes")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Captures the `tracing` output of this thread until the returned guard is dropped.
fn observed() -> (Captured, tracing::subscriber::DefaultGuard) {
    let captured = Captured::default();
    let printing = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(captured.writer());
    let guard = tracing::subscriber::set_default(printing.finish());
    (captured, guard)
}

/// Returns the value of the metric `mcp_dropped` for the label `kind`: the number of dropped
/// messages, or of dropped lines of standard error.
fn dropped(observed: &Captured, kind: &str) -> i64 {
    let counted = format!(r#"metric="mcp_dropped" server="files" kind="{kind}" change="#);
    let text = observed.text();
    let counts = text.lines().filter_map(|line| line.split_once(&counted));
    counts.map(|(_, count)| count.parse::<i64>().unwrap()).sum()
}

/// Waits until `holds` returns true. Panics after five minutes.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    for _ in 0..15_000 {
        tick.tick().await;
        if holds() {
            return;
        }
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn call_is_one_line_with_the_approved_bytes_and_gets_its_answer() {
    let server = Served::running("def call(m): say(m['id'], line)");
    let asking = OwnedCall {
        arguments: r#"{ "a" : 1.0,"b":"\u00e9" }"#.to_owned(),
        ..OwnedCall::default()
    };
    let McpOutcome::Succeeded(line) = server.call(&asking, LONG).await else {
        panic!("no success")
    };
    assert!(
        line.contains(r#""arguments":{ "a" : 1.0,"b":"\u00e9" },"#),
        "{line}"
    );
    assert!(line.contains(r#""holdpoint/call":"00000000-0000-0000-0000-000000000002""#));
    let begun = [
        "started",
        "server/discover",
        "initialize",
        "notifications/initialized",
        "tools/call",
    ];
    assert_eq!(server.notes(), begun);
    let listing = server.stdio.list().await.unwrap();
    assert_eq!(
        (listing.revision, listing.tools),
        (Revision::November2025, vec![json!({"name": "a"})])
    );
}

#[tokio::test]
async fn later_request_of_an_attempt_has_the_rest_of_the_timeout() {
    let answers_slowly = "import time\ndef call(m): time.sleep(0.05); say(m['id'], 'late')";
    let (server, rest) = (Served::running(answers_slowly), Duration::from_secs(3));
    let asking = OwnedCall::default();
    let decided = asking.permit.decided().await.unwrap();
    let first = server.call(&asking, LONG).await;
    assert!(matches!(first, McpOutcome::Succeeded(_)), "{first:?}");
    until("more time has passed than is left", || {
        decided.elapsed() > rest
    })
    .await;
    let later = server.stdio.call(&asking.call(), None, rest, 1).await;
    assert!(matches!(later, McpOutcome::Succeeded(_)), "{later:?}");
}

#[tokio::test]
async fn later_request_of_an_attempt_is_not_sent_after_the_end_of_the_attempt() {
    let server = Served::running("");
    let asking = OwnedCall::default();
    assert_eq!(server.call(&asking, LONG).await, succeeded("ticket.close"));
    let ended = Duration::ZERO;
    let later = server.stdio.call(&asking.call(), None, ended, 1).await;
    assert_eq!(later, McpOutcome::NotSent(BUSY.to_owned()));
    assert_eq!(server.called().await, succeeded("ticket.close"));
    assert_eq!(server.count("tools/call"), 2);
}

#[tokio::test]
async fn sixteen_calls_at_once_get_their_own_answers_in_any_order() {
    let script = "waiting = []\ndef call(m):\n    waiting.append(m)\n    if len(waiting) == 16:\n        for m in reversed(waiting): say(m['id'], m['params']['arguments']['n'])";
    let server = Served::running(script);
    let calls = (0..16_u128).map(|id| {
        let server = &server;
        async move {
            let asking = OwnedCall {
                arguments: json!({"n": id.to_string()}).to_string(),
                id: 100 + id,
                ..OwnedCall::default()
            };
            let outcome = server.call(&asking, LONG).await;
            assert_eq!(outcome, succeeded(&id.to_string()));
        }
    });
    join_all(calls).await;
    assert_eq!(server.count("started"), 1);
}

#[tokio::test]
async fn program_gets_its_arguments_its_environment_and_no_more() {
    let told = "def call(m): say(m['id'], json.dumps([sys.argv[2:], sorted(os.environ)]))\nsys.stderr.write('x' * 200000)";
    let odd = ["$(id) ; 'a b'", "\"c\"", "", "*"];
    let program: Vec<_> = ["/usr/bin/env", "python3", "-c", SERVER, told]
        .into_iter()
        .chain(odd)
        .collect();
    let server = Served::by(&program);
    let McpOutcome::Succeeded(text) = server.called().await else {
        panic!("no success")
    };
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(told[0], json!(odd));
    let own = ["PATH", "LC_CTYPE", "PYENV_"];
    for name in told[1].as_array().unwrap() {
        let name = name.as_str().unwrap();
        assert!(own.iter().any(|known| name.starts_with(known)), "{name}");
    }
    let server = Served::by(&[
        "/bin/sh",
        "-c",
        "tr '\\0' '\\n' </proc/$$/environ >notes; exit 1",
    ]);
    assert!(matches!(server.called().await, McpOutcome::NotSent(_)));
    assert_eq!(server.notes(), ["PATH=/usr/local/bin:/usr/bin:/bin"]);
}

#[tokio::test]
async fn refused_permit_writes_no_line() {
    let server = Served::running("");
    let (decision, undecided) = AttemptPermit::undecided();
    drop(decision);
    for permit in [AttemptPermit::permitted_while(|| false), undecided] {
        let asking = OwnedCall {
            permit,
            ..OwnedCall::default()
        };
        let outcome = server.call(&asking, LONG).await;
        assert_eq!(outcome, McpOutcome::NotSent(NOT_PERMITTED.to_owned()));
    }
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let permit = AttemptPermit::permitted_while(move || count.fetch_add(1, Order::SeqCst) == 0);
    let asking = OwnedCall {
        permit,
        ..OwnedCall::default()
    };
    assert_eq!(server.call(&asking, LONG).await, succeeded("ticket.close"));
    assert_eq!(asked.load(Order::SeqCst), 1);
    let later = server.stdio.call(&asking.call(), None, LONG, 1).await;
    assert_eq!(later, succeeded("ticket.close"));
    assert_eq!(
        (asked.load(Order::SeqCst), server.count("tools/call")),
        (1, 2)
    );
}

#[tokio::test]
async fn messages_that_answer_nothing_are_left_out_and_requests_are_replied_to() {
    let script = "def call(m):\n    say('unknown', 'x'); say(7, 'x'); print('no json', flush=True)\n    send({'jsonrpc': '2.0', 'method': 'notifications/tools/list_changed'})\n    send({'jsonrpc': '2.0', 'id': 1, 'method': 'roots/list'})\n    global open_call; open_call = m\ndef other(m):\n    if 'error' in m: say(open_call['id'], str(m['error']['code']))";
    let server = Served::running(script);
    assert_eq!(server.called().await, succeeded("-32601"));
    assert_eq!(*server.changes.borrow(), 1);
    assert_eq!(server.stdio.list().await.unwrap().tools.len(), 1);
}

#[tokio::test]
async fn messages_and_lines_of_standard_error_that_are_dropped_are_counted_by_their_kind() {
    let (observed, _observing) = observed();
    let script = "def call(m):\n    sys.stderr.write('one\\ntwo\\n' + 'x' * 100000 + '\\n'); sys.stderr.flush()\n    say('unknown', 'x'); say(7, 'x'); print('no json', flush=True)\n    say(m['id'], 'done'); say(m['id'], 'again')\n    send({'jsonrpc': '2.0', 'method': 'notifications/message'})";
    let server = Served::running(script);
    assert_eq!(server.called().await, succeeded("done"));
    until("all messages and lines are read", || {
        dropped(&observed, "answer") == 3 && dropped(&observed, "stderr") == 3
    })
    .await;
    let others = ["unreadable", "request"].map(|kind| dropped(&observed, kind));
    assert_eq!(others, [1, 0]);
}

#[tokio::test]
async fn answer_that_cannot_be_read_ends_its_call_at_once_with_an_unknown_outcome() {
    let server = Served::running(
        "def call(m): print('{\"jsonrpc\":\"2.0\",\"id\":\"%s\",\"result\":{\"a\":1,\"a\":2}}' % m['id'], flush=True)",
    );
    let unknown = McpOutcome::Unknown(NO_RESULT.to_owned());
    assert_eq!(server.called().await, unknown);
    assert_eq!(server.count("notifications/cancelled"), 0);
}

#[tokio::test]
async fn characters_that_no_text_can_hold_are_replaced_in_an_answer() {
    let server = Served::running(
        "def call(m):\n    text = json.dumps({'jsonrpc': '2.0', 'id': m['id'], 'result': {'content': [{'type': 'text', 'text': 'a\\ud83d?'}]}})\n    sys.stdout.buffer.write(text.encode().replace(b'?', b'\\xff') + b'\\n'); sys.stdout.flush()",
    );
    let outcome = server.called().await;
    assert_eq!(outcome, succeeded("a\u{FFFD}\u{FFFD}"));
}

#[tokio::test]
async fn call_in_time_out_is_canceled_and_a_server_that_lives_goes_on() {
    let server = Served::running(
        "def call(m):\n    if m['params']['arguments'].get('n'): say(m['id'], 'done')",
    );
    let late = McpOutcome::Unknown(NO_ANSWER_IN_TIME.to_owned());
    assert_eq!(server.call(&OwnedCall::default(), SHORT).await, late);
    let asking = OwnedCall {
        arguments: r#"{"n":1}"#.to_owned(),
        id: 3,
        ..OwnedCall::default()
    };
    assert_eq!(server.call(&asking, LONG).await, succeeded("done"));
    assert_eq!(
        (
            server.count("notifications/cancelled"),
            server.count("started")
        ),
        (1, 1)
    );
}

#[tokio::test]
async fn preparation_of_a_call_waits_for_the_check_of_a_busy_child_and_lists_no_tools_again() {
    let script = "import time\ndef call(m):\n    while not os.path.exists('go'): time.sleep(0.01)";
    let server = Served::running(script);
    let (client, comparison) = (server.client(), ToolComparison::default());
    prepared(&client, &comparison).await;
    let late = McpOutcome::Unknown(NO_ANSWER_IN_TIME.to_owned());
    assert_eq!(called(&client).await, late);
    let stale = [ComparisonReason::Judge, ComparisonReason::Start]
        .map(|reason| comparison.is_stale(reason, &client));
    assert_eq!(stale, [false, true]);
    let releasing = async { std::fs::write(server.directory.path().join("go"), "").unwrap() };
    tokio::join!(prepared(&client, &comparison), releasing);
    assert!(!comparison.is_stale(ComparisonReason::Start, &client));
    let counts = ["ping", "tools/list", "started"].map(|note| server.count(note));
    assert_eq!(counts, [1, 1, 1]);
}

#[tokio::test]
async fn arguments_with_line_breaks_are_one_message_and_call_one_tool() {
    let server = Served::running(
        "def call(m): note('called ' + m['params']['name']); say(m['id'], json.dumps(m['params']['arguments']))",
    );
    let second = r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"other","arguments":{}}}"#;
    for (id, end) in [(1, "\n"), (2, "\r\n"), (3, "\r")] {
        let asking = OwnedCall {
            arguments: format!("{{\"x\":{end}{second}{end}}}"),
            id,
            ..OwnedCall::default()
        };
        let McpOutcome::Succeeded(text) = server.call(&asking, LONG).await else {
            panic!("{end:?} is a call");
        };
        assert!(text.contains("tools/call"), "{text}");
    }
    let called: Vec<_> = server
        .notes()
        .into_iter()
        .filter(|note| note.starts_with("called"))
        .collect();
    assert_eq!(called, ["called ticket.close"; 3]);
}

/// A script that answers the first call only once the second call arrives.
const ANSWER_BOTH_AT_THE_SECOND: &str = "seen = []\ndef call(m):\n    seen.append(m['id'])\n    if len(seen) == 2: say(seen[0], 'first'); say(seen[1], 'second')";

#[tokio::test]
async fn answer_after_the_timeout_is_kept_and_is_no_answer_to_a_later_attempt() {
    let server = Served::running(ANSWER_BOTH_AT_THE_SECOND);
    let first = OwnedCall::default();
    let unknown = McpOutcome::Unknown(NO_ANSWER_IN_TIME.to_owned());
    assert_eq!(server.call(&first, SHORT).await, unknown);
    assert_eq!(server.called().await, succeeded("second"));
    let late = first.late.take().expect("it may come");
    assert_eq!(late.await, succeeded("first").settled().ok());
}

#[tokio::test]
async fn answer_after_the_timeout_of_a_call_in_which_a_secret_was_declined_says_so() {
    let server = Served::running(ANSWER_BOTH_AT_THE_SECOND);
    let first = OwnedCall::default();
    let resume = Resume {
        declined: vec!["pin".to_owned()],
        ..Resume::default()
    };
    let call = first.call();
    let asked = server.stdio.call(&call, Some(&resume), SHORT, 0);
    assert_eq!(
        asked.await,
        McpOutcome::Unknown(NO_ANSWER_IN_TIME.to_owned())
    );
    assert_eq!(server.called().await, succeeded("second"));
    let late = first.late.take().expect("it may come");
    let noted = "[The server asked the user for a secret in a form (`pin`). The question was declined, and the user was not asked.]\nfirst";
    assert_eq!(late.await, succeeded(noted).settled().ok());
}

#[tokio::test]
async fn requests_of_a_child_that_reads_no_replies_are_left_out_beyond_a_bound() {
    // During its first call, the child sends 3000 requests and reads no reply. Its input pipe of
    // 64 KiB holds about 200 replies, because each reply repeats an id of 250 digits. After the
    // first call, the child reads and counts the replies.
    let script = "import select\ndef call(m):\n    if 'n' not in m['params']['arguments']:\n        for n in range(3000): send({'jsonrpc': '2.0', 'id': '%0250d' % n, 'method': 'roots/list'})\n        return say(m['id'], 'done')\n    got = b''\n    while select.select([0], [], [], 1)[0]: got += os.read(0, 65536)\n    say(m['id'], str(got.count(b'\\n')))";
    let (observed, _observing) = observed();
    let server = Served::running(script);
    assert_eq!(server.called().await, succeeded("done"));
    let unanswered = dropped(&observed, "request");
    assert!((2000..3000).contains(&unanswered), "{unanswered}");
    let asking = OwnedCall {
        arguments: r#"{"n":1}"#.to_owned(),
        id: 3,
        ..OwnedCall::default()
    };
    let McpOutcome::Succeeded(later) = server.call(&asking, LONG).await else {
        panic!("no success")
    };
    let replies = server.count("reply") + later.parse::<usize>().unwrap();
    assert!((1..1000).contains(&replies), "{replies}");
}
