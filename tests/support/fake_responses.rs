//! A fake Responses endpoint on loopback. It plays the streams in `responses/` and records the
//! bytes of each HTTP request. `scripts/clients` checks these streams with the official `OpenAI`
//! client.

use super::fake_messages::{FakeMessages, Sent};

/// The reasoning item of `held.sse`, byte for byte.
pub const REASONED: &str = r#"{ "id":"rs_11",  "type": "reasoning", "encrypted_content" : "gAAAAABpBxfl\u002bQ3dpz-71I\/0xz==", "summary": [ {"type":"summary_text","text":"Order 17 ≠ order 71.\n\tSo: 120.50 \ud83d\ude00"} ] }"#;
/// The reasoning item of `paid.sse`, byte for byte.
pub const REASONED_AGAIN: &str = r#"{"type":"reasoning","id":"rs_12","summary":[ ],"encrypted_content":"gAAAAABpBxgm_2Zk\u003d\u003d"}"#;

pub struct FakeResponses {
    pub base_url: String,
    endpoint: FakeMessages,
}

impl FakeResponses {
    pub async fn start() -> Self {
        let endpoint = FakeMessages::at("/v1/responses").await;
        Self {
            base_url: format!("{}/v1", endpoint.base_url),
            endpoint,
        }
    }

    pub fn then(&self, name: &str) -> &Self {
        let path = format!(
            "{}/tests/support/responses/{name}.sse",
            env!("CARGO_MANIFEST_DIR")
        );
        let stream =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        self.endpoint.then_streams(stream);
        self
    }

    pub fn sent(&self) -> Vec<Sent> {
        self.endpoint.sent()
    }
}
