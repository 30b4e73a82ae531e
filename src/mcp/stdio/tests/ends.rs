//! Tests in which the process of a server, or its guard process, ends.

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// The log message for a child that is ended because it does not answer.
const SILENT: &str = "an MCP server did not answer and was ended";

/// A line of a script that writes a note with the process ids of the server and of its guard.
const IDS: &str = "note('pid %d %d' % (os.getpid(), os.getppid()))\n";

/// Returns the process ids of the server that started last, and of this server's guard.
fn ids(directory: &Path) -> (Pid, Pid) {
    let notes = notes(directory);
    let last = notes
        .iter()
        .rev()
        .find_map(|note| note.strip_prefix("pid "));
    let mut ids = last
        .unwrap()
        .split(' ')
        .map(|id| Pid::from_raw(id.parse().unwrap()).unwrap());
    (ids.next().unwrap(), ids.next().unwrap())
}

async fn kill_child(server: &Served) {
    let (child, _) = ids(server.directory.path());
    let session = server.stdio.running.lock().await.session.clone().unwrap();
    kill_process(child, Signal::KILL).unwrap();
    until("the child has ended", || session.child.has_ended()).await;
}

fn lives(pid: Pid) -> bool {
    // A zombie has ended, but its new parent has not reaped the zombie yet. A zombie does not count
    // as alive.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test]
async fn child_killed_between_calls_is_started_again_for_the_next() {
    let server = Served::running(IDS);
    assert_eq!(server.called().await, succeeded("ticket.close"));
    kill_child(&server).await;
    assert_eq!(server.called().await, succeeded("ticket.close"));
    assert_eq!(
        (server.count("started"), server.count("tools/call")),
        (2, 2)
    );
}

#[tokio::test]
async fn child_killed_before_the_write_is_started_again_and_the_call_sent_once() {
    let server = Arc::new(Served::running(IDS));
    assert_eq!(server.called().await, succeeded("ticket.close"));
    let (decision, permit) = AttemptPermit::undecided();
    let asking = OwnedCall {
        permit,
        ..OwnedCall::default()
    };
    let killing = async {
        kill_child(&server).await;
        decision.permit_while(|| true);
    };
    let (outcome, ()) = tokio::join!(server.call(&asking, LONG), killing);
    assert_eq!(outcome, succeeded("ticket.close"));
    assert_eq!(
        (server.count("started"), server.count("tools/call")),
        (2, 2)
    );
}

#[tokio::test]
async fn later_request_of_an_attempt_whose_child_has_ended_is_not_sent_and_starts_no_child() {
    let server = Served::running(IDS);
    let asking = OwnedCall::default();
    assert_eq!(server.call(&asking, LONG).await, succeeded("ticket.close"));
    kill_child(&server).await;
    let later = server.stdio.call(&asking.call(), None, LONG, 1).await;
    assert_eq!(later, McpOutcome::NotSent(PROCESS_ENDED.to_owned()));
    assert_eq!(server.count("started"), 1);
}

#[tokio::test]
async fn child_killed_after_the_write_leaves_its_calls_unknown() {
    let server = Served::running("def call(m): os.kill(os.getpid(), signal.SIGKILL)");
    assert_eq!(
        server.called().await,
        McpOutcome::Unknown(ANSWER_LOST.to_owned())
    );
    assert_eq!(
        (server.count("started"), server.count("tools/call")),
        (1, 1)
    );
}

#[tokio::test]
async fn child_that_never_starts_is_tried_again_after_pauses_and_sends_nothing() {
    for program in [
        &["/nowhere/at/all"][..],
        &["/bin/false"],
        &["/bin/sh", "-c", "echo no"],
    ] {
        let mut server = Served::by(program);
        let mut reason = String::new();
        for failures in 1..=FAILURES_UNTIL_DOWN {
            let McpOutcome::NotSent(why) = server.called().await else {
                panic!("sent")
            };
            let is_missing = why.contains("could not be started: No such file or directory");
            assert_eq!(is_missing, program == ["/nowhere/at/all"], "{why}");
            assert_eq!(server.stdio.running.lock().await.failures, failures);
            reason = why;
        }
        server.stdio.limits.pause = Duration::from_secs(1);
        let McpOutcome::NotSent(why) = server.called().await else {
            panic!("sent")
        };
        let later = format!("it did not start ({reason}), and is started again later");
        assert_eq!(why, later);
        let mut running = server.stdio.running.lock().await;
        assert_eq!(running.failures, FAILURES_UNTIL_DOWN);
        running.failed_at = Instant::now().checked_sub(Duration::from_secs(17));
        drop(running);
        assert!(matches!(server.called().await, McpOutcome::NotSent(_)));
        assert_eq!(
            server.stdio.running.lock().await.failures,
            FAILURES_UNTIL_DOWN + 1
        );
    }
}

#[tokio::test]
async fn program_that_cannot_be_started_is_named_in_its_reason_and_in_the_log_without_secrets() {
    for (secret, name) in [
        ("/elsewhere", "`/nowhere/at/all`"),
        ("nowhere/at", "`/[secret KEY]/all`"),
    ] {
        let secret = Secret::new(secret.to_owned());
        let mut server = Served::by(&["/nowhere/at/all"]);
        server.stdio.redactor = Arc::new(Redactor::new([("KEY", &secret)]));
        let captured = Captured::default();
        let printing = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(captured.writer());
        let _printing = tracing::subscriber::set_default(printing.finish());
        let McpOutcome::NotSent(why) = server.called().await else {
            panic!("sent")
        };
        let start = format!("{name}: the program could not be started: ");
        assert!(why.starts_with(&start), "{why}");
        let logged = captured.text();
        assert_eq!(logged.matches(&start).count(), 1, "{logged}");
    }
}

#[tokio::test]
async fn line_over_16_mib_ends_the_child_and_leaves_its_calls_unknown() {
    // When the client stops reading, the script's write fails with a broken pipe. The script
    // ignores this error and goes on, so the child ends only if the client ends it.
    let long = "def call(m):\n    try: sys.stdout.write('x' * 17000000); sys.stdout.flush()\n    except OSError: pass\n    while True: signal.pause()";
    let server = Served::running(&format!("{IDS}{long}"));
    assert_eq!(
        server.called().await,
        McpOutcome::Unknown(ANSWER_LOST.to_owned())
    );
    let (child, guard) = ids(server.directory.path());
    until("both have ended", || !lives(child) && !lives(guard)).await;
}

#[tokio::test]
async fn child_that_answers_nothing_after_a_timeout_is_ended() {
    let script = format!("{IDS}{IGNORE_TERM}deaf = True\ndef call(m): pass");
    let (observed, _observing) = observed();
    let mut server = Served::running(&script);
    server.stdio.limits.alive = SHORT;
    server.stdio.session().await.unwrap();
    let calls = [1, 2].map(|id| OwnedCall {
        id,
        ..OwnedCall::default()
    });
    let late = || McpOutcome::Unknown(NO_ANSWER_IN_TIME.to_owned());
    let outcomes = join_all(calls.iter().map(|call| server.call(call, SHORT))).await;
    assert_eq!(outcomes, [late(), late()]);
    let (child, _) = ids(server.directory.path());
    until("the child has ended", || !lives(child)).await;
    server.stdio.checks.wait().await;
    assert_eq!(server.count("end of input"), 1);
    assert_eq!(observed.text().matches(SILENT).count(), 1);
}

#[tokio::test]
async fn outcome_of_a_timed_out_call_and_a_shutdown_do_not_wait_for_the_check_of_the_child() {
    let (observed, _observing) = observed();
    let server = Served::running(&format!("{IDS}deaf = True\ndef call(m): pass"));
    let late = McpOutcome::Unknown(NO_ANSWER_IN_TIME.to_owned());
    assert_eq!(server.call(&OwnedCall::default(), SHORT).await, late);
    until("the check has begun", || server.count("ping") == 1).await;
    let began = Instant::now();
    let (child, guard) = ids(server.directory.path());
    assert!(lives(child));
    server.stdio.close().await;
    assert!(!lives(child) && !lives(guard));
    server.stdio.checks.wait().await;
    assert!(began.elapsed() < LONG / 2, "the time limit of the check");
    assert!(!observed.text().contains(SILENT));
}

#[tokio::test]
async fn call_during_the_check_of_a_hung_child_is_sent_to_the_next_child() {
    let script = "deaf = not os.path.exists('hung')\nopen('hung', 'w').close()\ndef call(m):\n    if not deaf: say(m['id'], 'done')";
    let mut server = Served::running(&format!("{IGNORE_TERM}{script}"));
    server.stdio.limits.alive = SHORT;
    let late = McpOutcome::Unknown(NO_ANSWER_IN_TIME.to_owned());
    assert_eq!(server.call(&OwnedCall::default(), SHORT).await, late);
    assert_eq!(server.called().await, succeeded("done"));
    assert_eq!(
        (server.count("started"), server.count("tools/call")),
        (2, 2)
    );
}

#[tokio::test]
async fn call_after_the_check_of_a_hung_child_is_prepared_with_the_tools_of_the_next_child() {
    let script = "deaf = not os.path.exists('hung')\nopen('hung', 'w').close()\ndef call(m): pass";
    let mut server = Served::running(script);
    server.stdio.limits.alive = SHORT;
    let (client, comparison) = (server.client(), ToolComparison::default());
    prepared(&client, &comparison).await;
    let late = McpOutcome::Unknown(NO_ANSWER_IN_TIME.to_owned());
    assert_eq!(called(&client).await, late);
    prepared(&client, &comparison).await;
    assert_eq!(
        (server.count("started"), server.count("tools/list")),
        (2, 2)
    );
}

#[tokio::test]
async fn child_whose_list_is_late_and_that_answers_the_check_in_time_goes_on() {
    let slow = "import time\nanswer = send\ndef send(m):\n    while 'tools' in m.get('result', {}) and not os.path.exists('go'): time.sleep(0.01)\n    answer(m)";
    let mut server = Served::running(slow);
    server.stdio.session().await.unwrap();
    server.stdio.limits = TimeLimits {
        list: SHORT,
        alive: Duration::ZERO,
        ..server.stdio.limits
    };
    assert!(server.stdio.list().await.is_err());
    assert_eq!(server.stdio.checks.len(), 1);
    std::fs::write(server.directory.path().join("go"), "").unwrap();
    server.stdio.limits.list = LONG;
    assert_eq!(server.stdio.list().await.unwrap().tools.len(), 1);
    assert_eq!(server.count("started"), 1);
}

#[tokio::test]
async fn child_that_lists_no_tools_and_answers_no_check_is_ended_unless_a_call_is_in_flight() {
    let silent = "deaf = True\nanswer = send\ndef send(m):\n    if 'tools' not in m.get('result', {}): answer(m)\ndef call(m): note('busy')";
    let mut server = Served::running(&format!("{IDS}{silent}"));
    server.stdio.session().await.unwrap();
    server.stdio.limits = TimeLimits {
        start: Duration::from_hours(1),
        list: SHORT,
        after_list: SHORT,
        ..server.stdio.limits
    };
    let asking = OwnedCall::default();
    let listing = async {
        until("the server is busy", || server.count("busy") == 1).await;
        assert!(server.stdio.list().await.is_err());
        assert!(server.stdio.checks.is_empty());
    };
    tokio::select! {
        outcome = server.call(&asking, LONG) => panic!("{outcome:?}"),
        () = listing => {}
    }
    assert!(server.stdio.list().await.is_err());
    let (child, _) = ids(server.directory.path());
    until("the child has ended", || !lives(child)).await;
}

#[tokio::test]
async fn child_that_does_not_read_is_ended_at_the_timeout_of_a_write() {
    let script = format!("{IDS}def call(m):\n    note('busy')\n    while True: signal.pause()");
    let server = Served::running(&script);
    let first = OwnedCall::default();
    let big = OwnedCall {
        arguments: json!({"x": "x".repeat(1_000_000)}).to_string(),
        id: 4,
        ..OwnedCall::default()
    };
    let unwritten = async {
        until("the server is busy", || server.count("busy") == 1).await;
        let outcome = server.call(&big, SHORT).await;
        server.stdio.checks.wait().await;
        assert_eq!(*server.changes.borrow(), 1);
        outcome
    };
    let outcomes = tokio::join!(server.call(&first, LONG), unwritten);
    let lost = || McpOutcome::Unknown(ANSWER_LOST.to_owned());
    assert_eq!(outcomes, (lost(), lost()));
    let (child, guard) = ids(server.directory.path());
    until("both have ended", || !lives(child) && !lives(guard)).await;
}

#[tokio::test]
async fn child_of_a_killed_guard_ends() {
    let script = format!("{IDS}def call(m):\n    note('busy')\n    while True: signal.pause()");
    let server = Served::running(&script);
    let asking = OwnedCall::default();
    let killing = async {
        until("the server is busy", || server.count("busy") == 1).await;
        let (_, guard) = ids(server.directory.path());
        kill_process(guard, Signal::KILL).unwrap();
    };
    let (outcome, ()) = tokio::join!(server.call(&asking, LONG), killing);
    assert_eq!(outcome, McpOutcome::Unknown(ANSWER_LOST.to_owned()));
    let (child, _) = ids(server.directory.path());
    until("the child has ended", || !lives(child)).await;
}

#[tokio::test]
async fn closed_child_gets_the_end_of_its_input_then_a_signal_and_is_killed_with_all_it_started() {
    let server = Served::running(&format!("{IDS}{IGNORE_TERM}"));
    assert_eq!(server.called().await, succeeded("ticket.close"));
    server.stdio.close().await;
    assert_eq!(server.count("end of input"), 1);
    let (child, guard) = ids(server.directory.path());
    assert!(!lives(child) && !lives(guard));

    let stubborn = "signal.signal(signal.SIGTERM, lambda *_: note('TERM'))\nother_pid = os.fork()\nif other_pid == 0:\n    while True: signal.pause()\nnote('other %d' % other_pid)\ndef call(m):\n    say(m['id'], 'busy')\n    while True: signal.pause()";
    let server = Served::running(&format!("{IDS}{stubborn}"));
    assert_eq!(server.called().await, succeeded("busy"));
    let began = Instant::now();
    server.stdio.close().await;
    assert!(
        began.elapsed() >= Duration::from_secs(4),
        "two seconds, then three"
    );
    let (child, guard) = ids(server.directory.path());
    assert!(!lives(child) && !lives(guard));
    assert!(server.count("TERM") >= 1);
    let notes = server.notes();
    let other = notes
        .iter()
        .find_map(|note| note.strip_prefix("other "))
        .unwrap();
    // The guard kills the process group, but waits only for the server's own process. The process
    // that the server forked may end a moment later.
    let other = Pid::from_raw(other.parse().unwrap()).unwrap();
    until("the other process has ended", || !lives(other)).await;
}

#[tokio::test]
async fn start_has_its_own_time_and_a_list_its_own() {
    let (changes, _) = watch::channel(0);
    for (timeout, start) in [(SHORT, 60), (Duration::from_mins(10), 600)] {
        let command = (Vec::new(), String::new(), BTreeMap::new());
        let log = (Arc::default(), false);
        let stdio = Stdio::new("files", command, None, timeout, changes.clone(), log);
        assert_eq!(stdio.limits.start, Duration::from_secs(start));
        assert_eq!(stdio.limits.after_list, Duration::from_mins(1));
    }
    let lists_nothing =
        "answer = send\ndef send(m):\n    if 'tools' not in m.get('result', {}): answer(m)";
    let mut server = Served::running(lists_nothing);
    server.stdio.limits.list = Duration::ZERO;
    assert!(server.stdio.list().await.is_err());
    assert!(server.stdio.running.lock().await.session.is_some());
    assert_eq!(server.called().await, succeeded("ticket.close"));
    assert_eq!(server.count("started"), 1);

    let mut silent = Served::by(&["/bin/sh", "-c", "cat >/dev/null"]);
    silent.stdio.limits = TimeLimits {
        start: SHORT,
        probe: SHORT,
        ..silent.stdio.limits
    };
    let late = McpOutcome::NotSent(NO_ANSWER_IN_TIME.to_owned());
    assert_eq!(silent.called().await, late);
}

#[tokio::test]
async fn server_that_was_not_up_when_it_was_discovered_is_discovered_again() {
    let stateless = r#"
import json, sys
silent = True
for line in sys.stdin:
    m = json.loads(line)
    if m["method"] == "server/discover" and silent: silent = False; continue
    if "id" not in m: continue
    answer = {"error": {"code": -32601, "message": "no"}}
    if m["method"] == sys.argv[1]: answer = {"result": {"protocolVersion": "2025-11-25"}}
    if m["method"] == "server/discover": answer = {"result": {"supportedVersions": ["2026-07-28"]}}
    if m["method"] == "tools/list": answer = {"result": {"tools": [], "resultType": "complete"}}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], **answer}), flush=True)
"#;
    // The first server speaks only the stateless revision. The second can also be initialized.
    let servers = ["", "initialize"].map(|also| async move {
        let mut server = Served::by(&["/usr/bin/env", "python3", "-c", stateless, also]);
        // The server ignores the first `server/discover`. Even on a busy machine, the server must
        // answer the second `server/discover` within this time.
        server.stdio.limits.probe = Duration::from_secs(6);
        let listing = server.stdio.list().await.unwrap();
        assert_eq!(listing.revision, Revision::July2026, "{also}");
    });
    join_all(servers).await;
}

#[tokio::test]
async fn start_that_its_caller_gives_up_ends_the_child_and_counts_as_a_failure() {
    let script = format!("{IDS}note('waits')\nwhile True: signal.pause()");
    let mut server = Served::running(&script);
    server.stdio.limits.pause = Duration::from_mins(1);
    let asking = OwnedCall::default();
    let waits = until("the child waits", || server.count("waits") == 1);
    tokio::select! {
        outcome = server.call(&asking, LONG) => panic!("{outcome:?}"),
        () = waits => {}
    }
    let (child, guard) = ids(server.directory.path());
    until("both have ended", || !lives(child) && !lives(guard)).await;
    assert_eq!(server.stdio.running.lock().await.failures, 1);
    let McpOutcome::NotSent(why) = server.called().await else {
        panic!("sent")
    };
    let later = format!("it did not start ({GIVEN_UP}), and is started again later");
    assert_eq!(why, later);
}

#[tokio::test]
async fn close_gives_up_a_start_and_no_child_starts_afterwards() {
    let script = format!("{IDS}note('waits')\nwhile True: signal.pause()");
    let server = Served::running(&script);
    let closing = async {
        until("the child waits", || server.count("waits") == 1).await;
        server.stdio.close().await;
    };
    let both = async { tokio::join!(server.called(), closing) };
    let (outcome, ()) = tokio::time::timeout(LONG, both).await.unwrap();
    assert_eq!(outcome, McpOutcome::NotSent(CLOSED.to_owned()));
    let (child, guard) = ids(server.directory.path());
    until("both have ended", || !lives(child) && !lives(guard)).await;
    let outcome = server.called().await;
    assert_eq!(outcome, McpOutcome::NotSent(CLOSED.to_owned()));
    assert_eq!(server.count("waits"), 1);
}

#[tokio::test]
async fn end_of_a_child_counts_as_a_change_of_its_tools() {
    let server = Served::running(IDS);
    assert_eq!(server.called().await, succeeded("ticket.close"));
    assert_eq!(*server.changes.borrow(), 0);
    let (child, _) = ids(server.directory.path());
    kill_process(child, Signal::KILL).unwrap();
    until("the change is known", || *server.changes.borrow() == 1).await;
}
