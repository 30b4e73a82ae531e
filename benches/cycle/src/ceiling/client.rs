//! An HTTP client for the model endpoint and the tool.

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde_json::value::RawValue;

const SYSTEM: &str = r#"{"role":"system","content":"You handle refunds."}"#;
const TOOLS: &str = r#"[{"type":"function","function":{"name":"refund_payment","description":"Refund a payment of an order.","parameters":{"type":"object","properties":{"order_id":{"type":"string"},"amount_cents":{"type":"integer"}},"required":["order_id","amount_cents"]}}}]"#;

pub struct Client {
    http: hyper_util::client::legacy::Client<HttpConnector, Full<Bytes>>,
    chat: String,
    tool: String,
}

/// The model's answer, put together from the events of a stream.
#[derive(Default)]
pub struct Streamed {
    pub text: String,
    pub call_id: String,
    pub arguments: String,
}

#[derive(Deserialize)]
struct Whole {
    choices: [WholeChoice; 1],
}

#[derive(Deserialize)]
struct WholeChoice {
    message: Box<RawValue>,
}

#[derive(Deserialize)]
struct Piece {
    choices: Vec<PieceChoice>,
}

#[derive(Deserialize)]
struct PieceChoice {
    delta: Delta,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    #[serde(default)]
    tool_calls: Vec<CallPiece>,
}

#[derive(Deserialize)]
struct CallPiece {
    id: Option<String>,
    function: FunctionPiece,
}

#[derive(Deserialize)]
struct FunctionPiece {
    arguments: String,
}

impl Client {
    pub fn new(model: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(1024)
            .build(connector);
        Self {
            http,
            chat: format!("http://{model}/v1/chat/completions"),
            tool: format!("http://{model}/tool"),
        }
    }

    /// Asks the model for an answer without streaming. Returns the raw JSON of the answer's
    /// message.
    pub async fn ask(&self, messages: &[String]) -> Box<RawValue> {
        let body = self.post(&self.chat, prompt(messages, "")).await;
        let body = body.collect().await.expect("an answer").to_bytes();
        let Whole { choices: [choice] } = serde_json::from_slice(&body).expect("a completion");
        choice.message
    }

    /// Asks the model for a streamed answer, and returns the answer once the stream has ended.
    pub async fn ask_for_stream(&self, messages: &[String]) -> Streamed {
        const STREAM: &str = r#","stream":true,"stream_options":{"include_usage":true}"#;
        let mut body = self.post(&self.chat, prompt(messages, STREAM)).await;
        let mut buffer = BytesMut::new();
        let mut answer = Streamed::default();
        while let Some(frame) = body.frame().await {
            let frame = frame.expect("a whole stream").into_data();
            buffer.extend_from_slice(&frame.expect("no trailers"));
            while let Some(end) = buffer.windows(2).position(|end| end == b"\n\n") {
                let event = buffer.split_to(end + 2);
                answer.add(event[..end].strip_prefix(b"data: ").expect("an event"));
            }
        }
        answer
    }

    pub async fn run_tool(&self, arguments: String) -> String {
        let body = self.post(&self.tool, arguments).await;
        let body = body.collect().await.expect("an answer").to_bytes();
        String::from_utf8(body.into()).expect("text")
    }

    async fn post(&self, url: &str, body: String) -> Incoming {
        let request = http::Request::post(url)
            .header("content-type", "application/json")
            .header("authorization", "Bearer none")
            .body(Full::new(Bytes::from(body)))
            .expect("a valid request");
        let response = self.http.request(request).await.expect("a response");
        assert!(response.status().is_success(), "{}", response.status());
        response.into_body()
    }
}

impl Streamed {
    fn add(&mut self, data: &[u8]) {
        if data == b"[DONE]" {
            return;
        }
        let piece: Piece = serde_json::from_slice(data).expect("a chunk");
        for PieceChoice { delta } in piece.choices {
            self.text += delta.content.as_deref().unwrap_or_default();
            for call in delta.tool_calls {
                self.call_id += call.id.as_deref().unwrap_or_default();
                self.arguments += &call.function.arguments;
            }
        }
    }
}

fn prompt(messages: &[String], options: &str) -> String {
    let messages = messages.join(",");
    format!(r#"{{"model":"fake","messages":[{SYSTEM},{messages}],"tools":{TOOLS}{options}}}"#)
}
