//! Implements `OpenAI`'s Responses protocol, for any base URL. Each request asks the endpoint to
//! store nothing. Invariant: an answer is rejected if its end has not arrived. Later requests send
//! the items of an answer back byte for byte and in their order, except for parts that the endpoint
//! refuses.

use http::HeaderName;
use http::header::AUTHORIZATION;

use super::clean::Cleaner;
use super::protocol::{AttemptOutcome, BodyParts, Protocol, RequestMode};

mod item;
mod reply;
mod request;
mod stream;
mod turn;

/// The protocol of `POST …/responses`, which `OpenAI` documents and compatible endpoints implement.
pub(super) struct Responses;

impl Protocol for Responses {
    type StreamReader = stream::ResponseStreamReader;
    const BASE_URL: &'static str = "https://api.openai.com/v1";
    const PATH: &'static str = "/responses";
    const RESERVED_MEMBERS: &'static [&'static str] = &[
        "input",
        "instructions",
        "tools",
        "model",
        "stream",
        "store",
        "include",
    ];
    const HEADERS: &'static [(&'static str, &'static str)] = &[];
    const REQUEST_MODES: &'static [RequestMode] = &[RequestMode::Streamed, RequestMode::Unstreamed];

    fn key_header(key: &str) -> (HeaderName, String) {
        (AUTHORIZATION, format!("Bearer {key}"))
    }

    fn body(parts: &BodyParts<'_>) -> serde_json::Result<String> {
        request::body(parts)
    }

    /// Returns whether the error text is about earlier reasoning. There are six cases:
    ///
    /// - The reasoning came from another organization or model, so the endpoint cannot decrypt it
    ///   ("The encrypted content … could not be verified").
    /// - A reasoning item has no encrypted content. The endpoint searches its store for the item's
    ///   id, and finds nothing, because it stores no items ("Item with id 'rs_…' not found").
    /// - The request asks for encrypted reasoning, but the model does not reason ("Encrypted
    ///   content is not supported with this model").
    /// - A reasoning item is sent without the item that followed it, or an item without the
    ///   reasoning item before it ("… was provided without its required 'reasoning' item").
    /// - The request sends reasoning to a model that does not reason ("Reasoning input items can
    ///   only be provided to a reasoning … model").
    /// - A reasoning item of another endpoint has a member that this endpoint does not know
    ///   ("Unknown parameter: 'input…'").
    fn is_about_thinking(error_text: &str) -> bool {
        error_text.contains("ncrypted content")
            || error_text.contains("encrypted_content")
            || error_text.contains("'rs_")
            || error_text.contains("'reasoning'")
            || error_text.contains("Reasoning input items")
            || error_text.contains("Unknown parameter: 'input[")
    }

    fn read_unstreamed(body: &str, cleaner: &Cleaner) -> AttemptOutcome {
        reply::read_unstreamed(body, cleaner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_earlier_reasoning_is_recognized() {
        for text in [
            "The encrypted content gAAA…xYz= could not be verified.",
            "Item with id 'rs_1' not found.",
            "Encrypted content is not supported with this model.",
            "Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item.",
            "Reasoning input items can only be provided to a reasoning or computer use model.",
            "Unknown parameter: 'input[1].status'.",
        ] {
            assert!(Responses::is_about_thinking(text), "{text}");
        }
        for text in [
            "Unsupported parameter: 'reasoning.effort' is not supported with this model.",
            "Unknown parameter: 'verbosity'.",
        ] {
            assert!(!Responses::is_about_thinking(text), "{text}");
        }
    }
}
