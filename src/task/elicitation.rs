//! Questions that the server of a tool asks a person in the middle of a call (`elicitation/create`
//! of MCP, revision 2026-07-28), and the person's answers. Invariant: an attempt at the call ends
//! when the server asks a question that a person must answer. A later attempt, with its own start
//! in the journal, sends the answers to the server and so continues the call.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::decision::{Action, Decision};

/// For each call, the maximum number of attempts that may end with questions of the tool's server.
pub const MAX_ROUNDS: u32 = 10;
/// The maximum number of names in [`Elicitation::declined`].
const MAX_DECLINED: usize = 32;

/// The questions with which a tool's server ended an attempt at a call, and the answers so far. The
/// server's texts are unverified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elicitation {
    /// Name of the server in the configuration.
    pub server: String,
    /// Name of the tool, as the server calls it.
    pub tool: String,
    /// Number of attempts at the call that have ended with questions, including the attempt that
    /// asked these questions.
    pub round: u32,
    /// The questions without an answer, in the server's order. A request to a person asks the first
    /// of them.
    pub questions: Vec<ServerQuestion>,
    /// The answers in the format of MCP, each under the key of its question.
    pub responses: Map<String, Value>,
    /// The names of the form fields in which the server has asked for a secret during this call.
    /// This service declined the questions with these fields, and asked no person.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub declined: Vec<String>,
    /// The opaque state that the server sent, if any. The next attempt sends the state back. The
    /// API does not show the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ServerState>,
}

/// One question of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerQuestion {
    /// Key under which the server expects the answer.
    pub key: String,
    /// The question in the server's words.
    pub message: String,
    /// Flat JSON Schema of the answer. If the question has a `url`, the only property of the schema
    /// is `opened`.
    pub form: Value,
    /// The page that the person is to visit; `None` if the person fills in the form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// The text that a tool's server sent with its questions and wants to get back in the next attempt
/// at the call. This service stores the text until then.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// The text as the server sent it. The journal holds this variant if no sealing key is
    /// configured.
    Plain(String),
    /// The sealed text, which is bound to the task, the call and [`Elicitation::round`].
    Sealed {
        /// Id of the sealing key.
        key_id: String,
        /// Base64 of the nonce and the ciphertext.
        text: String,
    },
}

impl std::fmt::Debug for ServerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerState")
    }
}

impl ServerState {
    /// Returns the text of an unsealed state; `None` if the state is sealed.
    #[must_use]
    pub fn into_plain(self) -> Option<String> {
        match self {
            Self::Plain(text) => Some(text),
            Self::Sealed { .. } => None,
        }
    }
}

impl Elicitation {
    /// Returns the details of the request that asks the first question: `server`, `tool`, `mode`
    /// and `url`.
    #[must_use]
    pub fn details(&self) -> Value {
        let url = self
            .questions
            .first()
            .and_then(|question| question.url.as_ref());
        let mode = if url.is_some() { "url" } else { "form" };
        json!({"server": self.server, "tool": self.tool, "mode": mode, "url": url})
    }

    /// Removes the first question and records the person's decision as the answer to this question.
    pub(super) fn answer_first(&mut self, action: Action, decision: &Decision) {
        if self.questions.is_empty() {
            return;
        }
        let question = self.questions.remove(0);
        let answer = match (action, &question.url) {
            (Action::Respond, Some(_)) => json!({"action": "accept"}),
            (Action::Respond, None) => json!({"action": "accept", "content": decision.response}),
            _ => json!({"action": "decline"}),
        };
        self.responses.insert(question.key, answer);
    }
}

/// The data with which an attempt continues a call after the tool's server has asked questions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// Number of earlier attempts that ended with questions.
    pub round: u32,
    /// The server's state, unsealed; `None` if the server sent none.
    pub request_state: Option<String>,
    /// The answers in the format of MCP, each under the key of its question.
    pub responses: Map<String, Value>,
    /// The names of the form fields in which the server has asked for a secret during this call.
    pub declined: Vec<String>,
}

/// Returns the names in `earlier`, followed by the names in `later` that are new. Drops the last
/// names if there are more than `MAX_DECLINED`.
#[must_use]
pub fn all_declined(mut earlier: Vec<String>, later: Vec<String>) -> Vec<String> {
    for name in later {
        if earlier.len() < MAX_DECLINED && !earlier.contains(&name) {
            earlier.push(name);
        }
    }
    earlier
}

/// Returns a note for the model and for people about the questions that this service declined
/// because their forms ask for secrets. `declined` has the names of the secret form fields. If
/// `declined` is empty, so is the note.
#[must_use]
pub fn declined_note(declined: &[String]) -> String {
    if declined.is_empty() {
        return String::new();
    }
    let fields = declined.join("`, `");
    format!(
        "\n[The server asked the user for a secret in a form (`{fields}`). The question was declined, and the user was not asked.]"
    )
}
