//! Tests of gateways that ask over gRPC: Envoy's `ext_authz` and agentgateway's guardrails. The
//! tests' HTTP/2 client encodes its messages itself.

mod approvals;
mod counted;
mod ext_mcp;
mod ext_mcp_reports;
mod frames;
mod outages;
mod required_reports;
mod restarts;
mod results;
mod rights;
mod waits;

use std::pin::Pin;

use axum::body::Body;
use http::{HeaderMap, Request, StatusCode};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use super::gate;
use crate::support::test_app::{On, TestApp};

/// The key of a gateway that may speak for users.
const EDGE: &str = "edge-key-0123456789a";
const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

/// Starts a service with a gate that gateways may use.
async fn gateway_app(settings: &str) -> TestApp {
    TestApp::with(On::Sqlite, &gateway_yaml(settings)).await
}

fn gateway_yaml(settings: &str) -> String {
    let key = format!(
        "    - {{ user: edge, tenant: acme, key: \"{EDGE}\", act_as: true, may: [gate] }}\n"
    );
    gate::yaml(settings) + &key
}

const ENVOY: &str = "report: optional\n    ext_authz: { user_header: x-user }";

#[derive(Clone)]
struct Grpc {
    sender: SendRequest<Body>,
    authority: String,
}

struct Answered {
    http: StatusCode,
    status: Option<u32>,
    message: Vec<u8>,
}

impl Grpc {
    async fn to(app: &TestApp) -> Self {
        Self::at(&app.url()).await
    }

    /// Connects to the service at this URL.
    async fn at(url: &str) -> Self {
        let authority = url.strip_prefix("http://").unwrap().to_owned();
        let stream = TcpStream::connect(&authority).await.unwrap();
        let io = TokioIo::new(stream);
        let (sender, connection) = handshake(TokioExecutor::new(), io).await.unwrap();
        TaskTracker::new().spawn(connection);
        Self { sender, authority }
    }

    async fn send(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Result<Answered, hyper::Error> {
        let mut request = Request::post(format!("http://{}{path}", self.authority));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body: Body = body.into();
        let request = request.body(body).unwrap();
        self.sender.ready().await?;
        let (head, mut body) = self.sender.send_request(request).await?.into_parts();
        let (mut data, mut trailers) = (Vec::new(), head.headers);
        read(&mut body, &mut data, &mut trailers).await;
        let status = trailers.get("grpc-status");
        Ok(Answered {
            http: head.status,
            status: status.map(|status| status.to_str().unwrap().parse().unwrap()),
            message: data.get(5..).unwrap_or_default().to_vec(),
        })
    }

    /// Waits until the service has closed the connection. Sends no request to find this out:
    /// hyper's client might queue the request on the closing connection and never answer it.
    async fn is_closed(&self) {
        let is_closed = async || self.sender.is_closed();
        crate::support::until("the service closes the connection", is_closed).await;
    }

    /// Sends a well-formed gRPC call with the API key `key`.
    async fn call(&mut self, path: &str, key: &str, message: &[u8]) -> Answered {
        let key = format!("Bearer {key}");
        let headers = [
            ("content-type", "application/grpc"),
            ("authorization", key.as_str()),
        ];
        self.send(path, &headers, framed(message)).await.unwrap()
    }

    /// Checks a tool call for Alice, as Envoy does. Asserts that the gRPC status is 0.
    async fn check(&mut self, body: &Value) -> Verdict {
        let answered = self
            .call(CHECK, EDGE, &checked(body, &[("x-user", "alice")]))
            .await;
        assert_eq!(answered.status, Some(0));
        verdict(&answered.message)
    }
}

async fn read(body: &mut Incoming, data: &mut Vec<u8>, trailers: &mut HeaderMap) {
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        match frame.unwrap().into_data() {
            Ok(piece) => data.extend_from_slice(&piece),
            Err(frame) => trailers.extend(frame.into_trailers().unwrap()),
        }
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut body = vec![0];
    body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    body.extend_from_slice(message);
    body
}

fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 128 {
        bytes.push(u8::try_from(number % 128).unwrap() + 128);
        number /= 128;
    }
    bytes.push(u8::try_from(number).unwrap());
    bytes
}

fn field(number: usize, bytes: &[u8]) -> Vec<u8> {
    [varint(number * 8 + 2), varint(bytes.len()), bytes.to_vec()].concat()
}

fn pair(key: &str, value: &[u8]) -> Vec<u8> {
    [field(1, key.as_bytes()), field(2, value)].concat()
}

/// Decodes the fields of a protobuf message. The value of a field is its bytes or, for a number,
/// the number's decimal digits.
fn fields(mut message: &[u8]) -> Vec<(usize, Vec<u8>)> {
    fn number(message: &mut &[u8]) -> usize {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = message[0];
            *message = &message[1..];
            number |= usize::from(byte & 127) << shift;
            shift += 7;
            if byte < 128 {
                return number;
            }
        }
    }
    let mut found = Vec::new();
    while !message.is_empty() {
        let tag = number(&mut message);
        let value = number(&mut message);
        if tag % 8 == 2 {
            found.push((tag / 8, message[..value].to_vec()));
            message = &message[value..];
        } else {
            found.push((tag / 8, value.to_string().into_bytes()));
        }
    }
    found
}

/// Returns the value of the field at the end of a path of field numbers.
fn at(message: &[u8], path: &[usize]) -> Option<Vec<u8>> {
    path.iter().try_fold(message.to_vec(), |message, number| {
        let mut found = fields(&message).into_iter();
        Some(found.find(|(known, _)| known == number)?.1)
    })
}

fn http_request(method: &str, body: &[u8], headers: &[(&str, &str)]) -> Vec<u8> {
    let mut http = field(2, method.as_bytes());
    for (name, value) in headers {
        http.extend(field(3, &pair(name, value.as_bytes())));
    }
    http.extend(field(12, body));
    field(1, &field(4, &field(2, &http)))
}

fn checked(body: &Value, headers: &[(&str, &str)]) -> Vec<u8> {
    http_request("POST", body.to_string().as_bytes(), headers)
}

fn bash(command: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "Bash", "arguments": {"command": command}}})
}

/// The service's answer when Envoy asks whether an HTTP request may pass.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// The request passes; the text is the value of the header `holdpoint-call`, if the header is
    /// set.
    Passes(Option<String>),
    Denied(String, Value),
}

impl Verdict {
    /// Returns the text of the result that the gateway returns instead of the upstream's result.
    fn text(&self) -> &str {
        let Self::Denied(status, body) = self else {
            panic!("{self:?}")
        };
        assert_eq!(status, "200", "{body}");
        assert_eq!(body["id"], 7);
        body["result"]["content"][0]["text"].as_str().unwrap()
    }

    fn state(&self) -> &str {
        let Self::Denied(_, body) = self else {
            panic!("{self:?}")
        };
        body["result"]["_meta"]["holdpoint/gate"]["state"]
            .as_str()
            .unwrap()
    }
}

fn verdict(message: &[u8]) -> Verdict {
    let text = |bytes: Option<Vec<u8>>| bytes.map(|bytes| String::from_utf8(bytes).unwrap());
    if let Some(denied) = at(message, &[2]) {
        assert_eq!(text(at(message, &[1, 1])).unwrap(), "7");
        let body = text(at(&denied, &[3])).unwrap();
        return Verdict::Denied(
            text(at(&denied, &[1, 1])).unwrap(),
            serde_json::from_str(&body).unwrap(),
        );
    }
    let allowed = at(message, &[3]).unwrap();
    Verdict::Passes(text(at(&allowed, &[2, 1, 2])))
}

/// Answers the open request of Alice's call as Alice; `verb` is `approve` or `reject`.
async fn decide(app: &TestApp, verdict: &Verdict, verb: &str) {
    let Verdict::Denied(_, body) = verdict else {
        panic!("{verdict:?}")
    };
    let request = body["result"]["_meta"]["holdpoint/gate"]["request_id"]
        .as_str()
        .unwrap();
    let owner = app.owner().prefer("wait=0");
    let reply = owner.hit(&format!("/resume/{request}/{verb}")).await;
    assert!(reply.status < 300, "{}", reply.text);
}
