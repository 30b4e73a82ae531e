//! Tests that the call is blocked, within the time limit, if the service does not answer with a
//! clear verdict.

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Folder, ServedGate, before, begin, gate, run, text};

/// Starts a server that answers each request with these bytes, or never if `answer` is `None`.
/// Returns the server's URL.
fn server(answer: Option<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut vec![0; 65536]);
            if let Some(answer) = &answer {
                let _ = stream.write_all(answer);
            } else {
                kept.push(stream);
            }
        }
    });
    format!("http://{address}")
}

/// Starts a server that lets each call run, and refuses each report. Returns the server's URL and
/// the number of reports so far.
fn server_that_refuses_reports() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let reports = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&reports);
    std::thread::spawn(move || {
        let allowed = reply("200 OK", ALLOWED);
        let problem = r#"{"code":"not_found","detail":"There is nothing at this address."}"#;
        let refused = reply("404 Not Found", problem);
        for stream in listener.incoming() {
            let (mut stream, mut head) = (stream.unwrap(), vec![0; 65536]);
            let length = stream.read(&mut head).unwrap();
            let is_report = head[..length].starts_with(b"POST /v1/gate/outcomes");
            counter.fetch_add(usize::from(is_report), Ordering::SeqCst);
            let answer = if is_report { &refused } else { &allowed };
            let _ = stream.write_all(answer);
        }
    });
    (format!("http://{address}"), reports)
}

/// Starts a server at which each call stays pending. Returns the server's URL, and the waits in
/// seconds that the requests so far have asked for.
fn server_that_holds_calls() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let waits = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&waits);
    std::thread::spawn(move || {
        let pending = ALLOWED.replace("\"allow\"", "\"pending\"");
        let answer = reply("202 Accepted", &pending);
        for stream in listener.incoming() {
            let (mut stream, mut head) = (stream.unwrap(), vec![0; 65536]);
            let length = stream.read(&mut head).unwrap();
            let head = String::from_utf8_lossy(&head[..length]);
            let wait = head
                .lines()
                .find_map(|line| line.strip_prefix("prefer: wait="));
            seen.lock()
                .unwrap()
                .push(wait.unwrap_or_default().to_owned());
            let _ = stream.write_all(&answer);
        }
    });
    (format!("http://{address}"), waits)
}

/// Starts a server that answers the first request with a permit that has ended, and each later
/// request with an open permit. Returns the server's URL.
fn server_whose_first_permit_has_ended() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut answer = reply("200 OK", &ended_permit());
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut vec![0; 65536]);
            let _ = stream.write_all(&answer);
            answer = reply("200 OK", ALLOWED);
        }
    });
    format!("http://{address}")
}

/// Starts a server that reads its first request, and closes the connection 1.2 s later without an
/// answer. The server answers each later request by allowing the call. Returns the server's URL.
fn server_that_fails_during_the_first_wait() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut rest = vec![0; 65536];
        stream
            .set_read_timeout(Some(Duration::from_millis(1200)))
            .unwrap();
        while stream.read(&mut rest).is_ok_and(|length| length > 0) {}
        drop(stream);
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut rest);
            let _ = stream.write_all(&reply("200 OK", ALLOWED));
        }
    });
    format!("http://{address}")
}

fn ended_permit() -> String {
    ALLOWED.replace("\"expires_in_ms\":60000", "\"expires_in_ms\":0")
}

fn reply(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}").into_bytes()
}

const ALLOWED: &str = r#"{"tool":"Bash","arguments_text":"{\"command\":\"ls\"}","edited":false,"decision":"allow","outcome":null,"message":"Allowed.","by":[],"permit":{"attempt":1,"expires_at":"x","expires_in_ms":60000,"idempotency_key":"k"},"result":null,"request":null}"#;

fn blocked(url: &str, input: &[u8], what: &str) {
    let folder = Folder::new();
    for host in ["claude-code", "codex"] {
        let began = Instant::now();
        let output = run(gate(folder.path(), url, &["hook", host], "1s"), input);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{what}: {}",
            text(&output.stdout)
        );
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{what}"
        );
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
    }
}

#[test]
fn service_that_does_not_answer_clearly_blocks_the_call() {
    let input = before("t", "ls").to_string();
    // The unmodified fake answer lets the call run. So each row below tests the effect of its own
    // change to that answer.
    let folder = Folder::new();
    let url = server(Some(reply("200 OK", ALLOWED)));
    let output = run(
        gate(folder.path(), &url, &["hook", "codex"], "5s"),
        input.as_bytes(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let whole = ALLOWED.len();
    for (what, answer) in [
        ("nothing", Vec::new()),
        ("garbage", b"\0\x01garbage\r\n\r\n".to_vec()),
        ("500", reply("500 Internal Server Error", ALLOWED)),
        ("503", reply("503 Service Unavailable", ALLOWED)),
        ("401", reply("401 Unauthorized", ALLOWED)),
        ("409", reply("409 Conflict", ALLOWED)),
        ("redirect", reply("307 Temporary Redirect", ALLOWED)),
        ("204", reply("204 No Content", "")),
        (
            "pending as 200",
            reply("200 OK", &ALLOWED.replace("\"allow\"", "\"pending\"")),
        ),
        ("allow as 202", reply("202 Accepted", ALLOWED)),
        (
            "unknown decision",
            reply("200 OK", &ALLOWED.replace("\"allow\"", "\"maybe\"")),
        ),
        (
            "another tool",
            reply("200 OK", &ALLOWED.replace("\"Bash\"", "\"Read\"")),
        ),
        (
            "other arguments",
            reply("200 OK", &ALLOWED.replace(r#"\"ls\""#, r#"\"rm\""#)),
        ),
        (
            "a decision twice",
            reply(
                "200 OK",
                &ALLOWED.replace("\"by\"", "\"decision\":\"deny\",\"by\""),
            ),
        ),
        ("truncated JSON", reply("200 OK", &ALLOWED[..whole - 1])),
        ("a page", reply("200 OK", "<html>Sign in</html>")),
        (
            "truncated body",
            reply("200 OK", ALLOWED).split_last().unwrap().1.to_vec(),
        ),
    ] {
        blocked(&server(Some(answer)), input.as_bytes(), what);
    }
    blocked(&server(None), input.as_bytes(), "hang");
    let gone = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    blocked(&format!("http://{gone}"), input.as_bytes(), "no server");
    blocked("ftp://127.0.0.1", input.as_bytes(), "no URL");
}

#[test]
fn permit_that_has_ended_lets_no_call_run() {
    let url = server(Some(reply("200 OK", &ended_permit())));
    let input = before("t", "ls").to_string();
    blocked(&url, input.as_bytes(), "permit that has ended");
    let (folder, ls) = (Folder::new(), "{\"command\":\"ls\"}");
    for call in [
        &["call", "Bash", ls][..],
        &["call", "Bash", ls, "--", "echo", "ran"],
    ] {
        let output = run(gate(folder.path(), &url, call, "1s"), b"");
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(2), ""),
            "{}",
            text(&output.stderr)
        );
    }
}

#[test]
fn permit_that_is_open_when_asked_for_again_lets_the_call_run() {
    let folder = Folder::new();
    let input = before("t", "ls").to_string();
    let call = ["call", "Bash", "{\"command\":\"ls\"}"];
    for (arguments, input) in [(&["hook", "codex"][..], input.as_bytes()), (&call, b"")] {
        let url = server_whose_first_permit_has_ended();
        let output = run(gate(folder.path(), &url, arguments, "1s"), input);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
}

#[test]
fn pending_call_is_waited_for_until_the_whole_wait_is_over() {
    let folder = Folder::new();
    let call = ["call", "Bash", "{\"command\":\"ls\"}"];
    for (wait, seconds) in [("1s", 1), ("2s", 2)] {
        let (url, waits) = server_that_holds_calls();
        let began = Instant::now();
        let output = run(gate(folder.path(), &url, &call, wait), b"");
        assert!(began.elapsed() >= Duration::from_secs(seconds), "{wait}");
        assert_eq!(output.status.code(), Some(11), "{}", text(&output.stderr));
        assert_eq!(waits.lock().unwrap()[0], seconds.to_string());
    }
}

#[test]
fn service_that_fails_during_the_first_wait_is_asked_again() {
    let folder = Folder::new();
    let url = server_that_fails_during_the_first_wait();
    let call = ["call", "Bash", "{\"command\":\"ls\"}"];
    let output = run(gate(folder.path(), &url, &call, "30s"), b"");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn report_that_gets_no_answer_blocks_nothing() {
    let folder = Folder::new();
    let mut after = before("t", "ls");
    after["hook_event_name"] = json!("PostToolUse");
    after["tool_response"] = json!("a.txt");
    let output = run(
        gate(folder.path(), &server(None), &["hook", "codex"], "0s"),
        after.to_string().as_bytes(),
    );
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("The outcome was not reported"), "{stderr}");
}

#[test]
fn report_that_is_refused_is_sent_once() {
    let folder = Folder::new();
    let (url, reports) = server_that_refuses_reports();
    let call = ["call", "Bash", "{\"command\":\"ls\"}", "--", "echo", "ran"];
    let output = run(gate(folder.path(), &url, &call, "5s"), b"");
    let stderr = text(&output.stderr);
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), "ran\n"),
        "{stderr}"
    );
    assert!(stderr.contains("The outcome was not reported"), "{stderr}");
    assert_eq!(reports.load(Ordering::SeqCst), 1);
}

#[test]
fn hook_after_a_call_blocks_nothing_whatever_it_is_given() {
    let folder = Folder::new();
    let after = |event: &str| before("t", "ls").to_string().replace("PreToolUse", event);
    let good = after("PostToolUse");
    let cut = &good[..good.len() - 2];
    let nameless = good.replace("tool_use_id", "tool_use");
    let failed = after("PostToolUseFailure");
    let unreachable = "http://127.0.0.1:9";
    for (what, input, name, value) in [
        ("truncated", cut.as_bytes(), "HOLDPOINT_KEY", "k"),
        ("no id", nameless.as_bytes(), "HOLDPOINT_KEY", "k"),
        ("no service", failed.as_bytes(), "HOLDPOINT_KEY", "k"),
        ("wrong wait", good.as_bytes(), "HOLDPOINT_WAIT", "soon"),
        ("wrong URL", failed.as_bytes(), "HOLDPOINT_URL", "ftp://x"),
    ] {
        let mut command = gate(folder.path(), unreachable, &["hook", "claude-code"], "1s");
        command.env(name, value);
        let output = run(command, input);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{what}: {stderr}");
        assert!(output.stdout.is_empty(), "{what}");
        assert!(
            stderr.contains("The outcome was not reported"),
            "{what}: {stderr}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_is_long_or_not_utf_8_is_reported_and_cut() {
    let service = ServedGate::start("required");
    let long = vec![b'x'; 5 * 1024 * 1024];
    for (usage, output, reported) in [
        ("t1", &long[..], "x".repeat(64 * 1024)),
        ("t2", b"a\xff", "a\u{fffd}".to_owned()),
    ] {
        let asked = before(usage, "ls");
        let allowed = service.hook("codex", &[], &asked, "5s");
        assert_eq!(allowed.status.code(), Some(0), "{}", text(&allowed.stderr));
        let mut input = asked.to_string().replace("PreToolUse", "PostToolUse");
        assert_eq!(input.pop(), Some('}'));
        let input = [input.as_bytes(), b",\"tool_response\":\"", output, b"\"}"].concat();
        let told = run(service.gate(&["hook", "codex"], "5s"), &input);
        assert_eq!(
            (told.status.code(), text(&told.stderr)),
            (Some(0), ""),
            "{usage}"
        );
        let results = service.items("tool_result").await;
        let found = results.iter().any(|result| result["content"] == reported);
        assert!(found, "{usage}");
    }
}

#[test]
fn input_that_is_not_understood_blocks_the_call() {
    let url = server(Some(reply("200 OK", ALLOWED)));
    let good = before("t", "ls").to_string();
    let huge = before("t", &"x".repeat(5 * 1024 * 1024)).to_string();
    let twice = good.replacen('{', r#"{"tool_name":"Read","#, 1);
    let event = good.replace("PreToolUse", "PermissionRequest");
    let usage = good.replace("tool_use_id", "tool_use");
    let list = good.replace(r#"{"command":"ls"}"#, "[]");
    for (what, input) in [
        ("nothing", ""),
        ("no JSON", "rm -rf"),
        ("truncated", &good[..good.len() - 1]),
        ("two values", &format!("{good}{good}")),
        ("huge", &huge),
        ("a member twice", &twice),
        ("another event", &event),
        ("no id", &usage),
        ("a list", &list),
    ] {
        blocked(&url, input.as_bytes(), what);
    }
    blocked(&url, b"{\"session_id\":\"\xff\"}", "no UTF-8");
    let (start, end) = good.split_once("/t.jsonl").unwrap();
    let spoiled = [start.as_bytes(), b"\xff", end.as_bytes()].concat();
    blocked(&url, &spoiled, "no UTF-8 before a call");
    let both = good.replacen('{', r#"{"hook_event_name":"PostToolUse","#, 1);
    blocked(&url, both.as_bytes(), "two events");
}

#[test]
fn standard_input_that_never_ends_blocks_the_call_in_time() {
    let folder = Folder::new();
    let mut command = gate(
        folder.path(),
        "http://127.0.0.1:9",
        &["hook", "codex"],
        "0s",
    );
    let mut child = command.spawn().unwrap();
    let held = child.stdin.take();
    let began = Instant::now();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(2));
    assert!(began.elapsed() < Duration::from_secs(30));
    drop(held);
}

#[test]
fn wrong_use_and_wrong_keys_block_the_call() {
    let service = ServedGate::start("optional");
    let input = before("t", "ls").to_string();
    for arguments in [
        &["hook", "emacs"][..],
        &["hook"],
        &["hook", "codex", "--unknown"],
    ] {
        let output = run(service.gate(arguments, "5s"), input.as_bytes());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    for (name, value) in [
        ("HOLDPOINT_KEY", "wrong-key-0123456789"),
        ("HOLDPOINT_KEY", ""),
        ("HOLDPOINT_GATE", "other"),
        ("HOLDPOINT_WAIT", "soon"),
        ("HOLDPOINT_KEY", super::BOB),
    ] {
        let mut command = service.gate(&["hook", "claude-code"], "5s");
        command.env(name, value);
        let output = begin(command, input.as_bytes()).wait_with_output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}");
        let names_gate = stderr.contains("Set HOLDPOINT_GATE to its name.");
        assert_eq!(names_gate, name == "HOLDPOINT_GATE", "{stderr}");
        let names_key = stderr.contains("Set HOLDPOINT_KEY to a valid key.");
        assert_eq!(
            names_key,
            ["wrong-key-0123456789", ""].contains(&value),
            "{stderr}"
        );
    }
}

#[test]
fn variable_that_is_not_utf_8_blocks_the_call() {
    let service = ServedGate::start("optional");
    let input = before("t", "ls").to_string();
    for name in [
        "HOLDPOINT_URL",
        "HOLDPOINT_KEY",
        "HOLDPOINT_GATE",
        "HOLDPOINT_WAIT",
    ] {
        let mut command = service.gate(&["hook", "codex"], "5s");
        command.env(name, OsStr::from_bytes(b"caf\xe9"));
        let output = run(command, input.as_bytes());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {stderr}");
        let mistake = format!("{name}: the variable's value is not UTF-8");
        assert!(stderr.contains(&mistake), "{stderr}");
    }
}

#[test]
fn refusal_that_cannot_be_written_blocks_the_call() {
    let service = ServedGate::start("optional");
    let input = before("t", "rm").to_string();
    // Every write to `/dev/full` fails. `/dev/null` simulates a start with a closed standard
    // output, because Rust then opens `/dev/null` in its place.
    for path in ["/dev/full", "/dev/null"] {
        let mut command = service.gate(&["hook", "claude-code"], "5s");
        let output = std::fs::OpenOptions::new().write(true).open(path);
        command.stdout(output.unwrap());
        let output = run(command, input.as_bytes());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{path}: {stderr}");
        assert!(stderr.contains("Not this one."), "{path}: {stderr}");
    }
}
