//! Tests of malformed gRPC frames and messages, and of HTTP bodies that are no tool call.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::task::{Context, Poll};

use http::{HeaderValue, StatusCode};
use hyper::body::{Bytes, Frame};

use super::ext_mcp::{LS, REQUEST};
use super::*;

const HEADERS: [(&str, &str); 2] = [
    ("content-type", "application/grpc"),
    ("authorization", "Bearer edge-key-0123456789a"),
];

/// A request body that consists of these frames, in order.
struct Frames(VecDeque<Frame<Bytes>>);

impl hyper::body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_of_a_check_change_nothing() {
    let app = gateway_app(ENVOY).await;
    let mut grpc = Grpc::to(&app).await;
    let message = framed(&checked(&bash("ls"), &[("x-user", "alice")]));
    let mut trailers = HeaderMap::new();
    for (name, value) in [
        ("authorization", "Bearer nobody-key-0123456789"),
        ("holdpoint-gate", "other"),
        ("grpc-encoding", "gzip"),
    ] {
        trailers.insert(name, HeaderValue::from_static(value));
    }
    let frames = [Frame::data(Bytes::from(message)), Frame::trailers(trailers)];
    let body = Body::new(Frames(VecDeque::from(frames)));
    let answered = grpc.send(CHECK, &HEADERS, body).await.unwrap();
    assert_eq!(answered.status, Some(0));
    let passed = verdict(&answered.message);
    assert!(matches!(passed, Verdict::Passes(Some(_))), "{passed:?}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_lie_are_refused_and_the_connection_lives() {
    let app = gateway_app(ENVOY).await;
    let mut grpc = Grpc::to(&app).await;
    let message = checked(&bash("ls"), &[("x-user", "alice")]);
    let cases: [(&str, Vec<u8>, u32); 9] = [
        ("no frame", vec![], 13),
        ("cut prefix", vec![0, 0], 13),
        (
            "two frames",
            [framed(&message), framed(&message)].concat(),
            13,
        ),
        ("length over the message", vec![0, 0, 0, 0, 9, 1], 13),
        ("largest length", vec![0, 255, 255, 255, 255], 8),
        (
            "compressed",
            [vec![1], framed(&message)[1..].to_vec()].concat(),
            12,
        ),
        ("truncated varint", framed(&[0x80]), 13),
        ("truncated field", framed(&[0x0a, 5, 1]), 13),
        (
            "too large",
            framed(&vec![0; 1024 * 1024 + 64 * 1024 + 1]),
            8,
        ),
    ];
    for (name, body, status) in cases {
        let answered = grpc.send(CHECK, &HEADERS, body).await.unwrap();
        assert_eq!(answered.status, Some(status), "{name}");
        assert_eq!(answered.http, StatusCode::OK, "{name}");
    }
    let twice = checked(&bash("ls"), &[("x-user", "alice"), ("X-User", "bob")]);
    assert_eq!(
        grpc.call(CHECK, EDGE, &twice).await.status,
        Some(13),
        "equal keys"
    );
    // With `encode_raw_headers`, Envoy sends the headers in field 13.
    let value = [field(1, b"x-user"), field(3, b"alice")].concat();
    let raw = field(13, &field(1, &value));
    let http = [
        field(2, b"POST"),
        raw,
        field(11, bash("ls").to_string().as_bytes()),
    ]
    .concat();
    let raw_headers = field(1, &field(4, &field(2, &http)));
    let refused = grpc.call(CHECK, EDGE, &raw_headers).await;
    assert_eq!(refused.status, Some(13), "headers that are not read");
    let unknown = [field(99, b"later"), message, vec![0x28, 1]].concat();
    let answered = grpc.call(CHECK, EDGE, &unknown).await;
    assert!(matches!(
        verdict(&answered.message),
        Verdict::Passes(Some(_))
    ));
    let method = "/envoy.service.auth.v3.Authorization/Else";
    assert_eq!(grpc.call(method, EDGE, &[]).await.status, Some(12));
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_whose_grpc_encoding_is_not_identity_is_unimplemented() {
    let app = gateway_app(ENVOY).await;
    let mut grpc = Grpc::to(&app).await;
    let envoy = checked(&bash("ls"), &[("x-user", "alice")]);
    let agentgateway = ext_mcp::message(&["up"], "tools/call", LS, "alice");
    for (method, message) in [(CHECK, envoy), (REQUEST, agentgateway)] {
        for (encoding, status) in [("gzip", 12), ("identity", 0)] {
            let headers = [HEADERS[0], HEADERS[1], ("grpc-encoding", encoding)];
            let answered = grpc.send(method, &headers, framed(&message)).await;
            assert_eq!(
                answered.unwrap().status,
                Some(status),
                "{method} {encoding}"
            );
        }
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_no_single_call_are_answered_with_400() {
    let app = gateway_app(ENVOY).await;
    let mut grpc = Grpc::to(&app).await;
    let call = bash("ls").to_string();
    let batch = format!("[{call}]");
    let repeated = call.replacen('{', "{\"method\":\"ping\",", 1);
    let part = [("x-user", "alice"), ("x-envoy-auth-partial-body", "true")];
    let user = &part[..1];
    for (method, body, headers) in [
        ("POST", "", user),
        ("POST", "{\"jsonrpc\":", user),
        ("POST", batch.as_str(), user),
        ("POST", repeated.as_str(), user),
        ("PUT", call.as_str(), user),
        ("POST", call.as_str(), &part[..]),
    ] {
        let message = http_request(method, body.as_bytes(), headers);
        let answered = grpc.call(CHECK, EDGE, &message).await;
        let Verdict::Denied(status, body) = verdict(&answered.message) else {
            panic!("{body} passed")
        };
        assert_eq!(
            (status.as_str(), &body["error"]["code"]),
            ("400", &json!(-32600))
        );
    }
    let others = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert_eq!(grpc.check(&others).await, Verdict::Passes(None));
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_upgrades_its_connection_is_denied() {
    let app = gateway_app(ENVOY).await;
    let mut grpc = Grpc::to(&app).await;
    let headers = [("x-user", "alice"), ("Upgrade", "websocket")];
    for (method, body) in [("GET", String::new()), ("POST", bash("ls").to_string())] {
        let plain = http_request(method, body.as_bytes(), &headers[..1]);
        let passed = verdict(&grpc.call(CHECK, EDGE, &plain).await.message);
        assert!(matches!(passed, Verdict::Passes(_)), "{passed:?}");
        let upgraded = http_request(method, body.as_bytes(), &headers);
        let denied = verdict(&grpc.call(CHECK, EDGE, &upgraded).await.message);
        let Verdict::Denied(status, body) = denied else {
            panic!("{method} passed")
        };
        assert_eq!(
            (status.as_str(), &body["error"]["code"]),
            ("400", &json!(-32600))
        );
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_request_that_does_not_pass_is_denied_with_its_id() {
    let strict = ENVOY.replace("x-user }", "x-user, pass_others: false }");
    let app = gateway_app(&strict).await;
    let mut grpc = Grpc::to(&app).await;
    let list = json!({"jsonrpc": "2.0", "id": "a-1", "method": "tools/list"});
    let Verdict::Denied(status, body) = grpc.check(&list).await else {
        panic!("it passed")
    };
    assert_eq!(
        (status.as_str(), &body["id"], &body["error"]["code"]),
        ("403", &json!("a-1"), &json!(-32601))
    );
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn body_that_the_upstream_would_decode_otherwise_is_denied() {
    let app = gateway_app(ENVOY).await;
    let mut grpc = Grpc::to(&app).await;
    let mut check = async |name: &str, value: &str| {
        let message = checked(&bash("ls"), &[("x-user", "alice"), (name, value)]);
        verdict(&grpc.call(CHECK, EDGE, &message).await.message)
    };
    for (name, value) in [
        ("content-encoding", "gzip"),
        ("content-encoding", "br"),
        ("Content-Encoding", "DEFLATE"),
        ("content-encoding", "identity,gzip"),
        ("content-encoding", ""),
        ("content-type", "application/json; charset=utf-16"),
        ("Content-Type", "application/json;Charset=\"UTF-16LE\""),
        (
            "content-type",
            "application/json,application/json; charset=utf-16",
        ),
    ] {
        let Verdict::Denied(status, body) = check(name, value).await else {
            panic!("{name}: {value} passed")
        };
        assert_eq!(
            (status.as_str(), &body["error"]["code"]),
            ("400", &json!(-32600))
        );
    }
    for (name, value) in [
        ("content-encoding", "Identity"),
        ("content-type", "application/json; charset=UTF-8"),
    ] {
        let passed = check(name, value).await;
        assert!(matches!(passed, Verdict::Passes(Some(_))), "{value}");
    }
    app.stop().await;
}

/// Without `pack_as_bytes`, Envoy sends the body as text in field 11. In this text, `!` stands for
/// each byte that is not UTF-8. Envoy forwards the original bytes.
#[tokio::test(flavor = "multi_thread")]
async fn body_of_which_the_gateway_may_have_altered_the_text_is_denied() {
    let app = gateway_app(ENVOY).await;
    let mut grpc = Grpc::to(&app).await;
    let mut check = async |number: usize, id: &str| {
        let mut body = bash("ls");
        body["id"] = json!(id);
        let body = body.to_string();
        let user = field(3, &pair("x-user", b"alice"));
        let http = [field(2, b"POST"), user, field(number, body.as_bytes())].concat();
        let message = field(1, &field(4, &field(2, &http)));
        verdict(&grpc.call(CHECK, EDGE, &message).await.message)
    };
    for (number, id) in [(12, "a!"), (12, "a\u{FFFD}"), (11, "a")] {
        let passed = check(number, id).await;
        assert!(matches!(passed, Verdict::Passes(Some(_))), "{passed:?}");
    }
    for id in ["a!", "a\u{FFFD}"] {
        let Verdict::Denied(status, told) = check(11, id).await else {
            panic!("it passed: {id}")
        };
        let error = &told["error"];
        assert_eq!((status.as_str(), &error["code"]), ("400", &json!(-32600)));
        let why = error["message"].as_str().unwrap();
        assert!(why.contains("pack_as_bytes"), "{why}");
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn call_with_too_short_a_deadline_does_not_wait_and_claims_nothing() {
    let app = gateway_app(ENVOY).await;
    let mut grpc = Grpc::to(&app).await;
    let short = [HEADERS[0], HEADERS[1], ("grpc-timeout", "400m")];
    let message = framed(&checked(&bash("rm"), &[("x-user", "alice")]));
    let held = grpc.send(CHECK, &short, message.clone()).await.unwrap();
    let held = verdict(&held.message);
    assert_eq!(held.state(), "pending");
    decide(&app, &held, "approve").await;
    let late = grpc.send(CHECK, &short, message.clone()).await.unwrap();
    assert_eq!(verdict(&late.message).state(), "approved");
    let in_time = grpc.send(CHECK, &HEADERS, message).await.unwrap();
    assert!(matches!(
        verdict(&in_time.message),
        Verdict::Passes(Some(_))
    ));
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_method_is_unimplemented_and_one_that_is_not_utf_8_is_not_found() {
    let app = gateway_app(ENVOY).await;
    let mut grpc = Grpc::to(&app).await;
    for service in [
        "envoy.service.auth.v3.Authorization",
        "agentgateway.dev.ext_mcp.ExtMcp",
    ] {
        for (method, http, status) in [
            ("Else", StatusCode::OK, Some(12)),
            // Clients take a 404 without a gRPC status for UNIMPLEMENTED (12), and a 400 for
            // INTERNAL (13).
            ("%ff", StatusCode::NOT_FOUND, None),
        ] {
            let path = format!("/{service}/{method}");
            let answered = grpc.call(&path, EDGE, &[]).await;
            assert_eq!((answered.http, answered.status), (http, status), "{path}");
        }
    }
    app.stop().await;
}
