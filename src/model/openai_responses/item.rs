//! Parses and writes an item of an answer: a message, a function call, reasoning, or a kind that
//! this version does not know. The exact text of the item is kept beside the parsed members,
//! because encrypted reasoning is sent back byte for byte.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::model::AnswerCall;
use crate::model::clean::Cleaner;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ResponseItem {
    /// The JSON text of the item. If the endpoint sent the item, the text is as received, except
    /// that escapes of lone surrogates are replaced. If this service built the item, the text is
    /// written from `members`.
    text: String,
    members: Map<String, Value>,
}

impl ResponseItem {
    /// Parses an item; `None` if the text is not a JSON object.
    pub(super) fn read(text: &str) -> Option<Self> {
        Some(Self {
            text: text.to_owned(),
            members: serde_json::from_str(text).ok()?,
        })
    }

    pub(super) fn new(members: Map<String, Value>) -> Self {
        Self {
            text: json!(members).to_string(),
            members,
        }
    }

    pub(super) fn members(&self) -> &Map<String, Value> {
        &self.members
    }

    pub(super) fn is_call(&self) -> bool {
        self.str("type") == "function_call"
    }

    pub(super) fn is_incomplete(&self) -> bool {
        self.str("status") == "incomplete"
    }

    pub(super) fn is_reasoning(&self) -> bool {
        self.str("type") == "reasoning"
    }

    /// Returns the text of a member; empty if the member is missing or not a text.
    pub(super) fn str(&self, member: &str) -> &str {
        self.members
            .get(member)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Returns the arguments of a call. Returns an empty text if there are no arguments, and `None`
    /// if the arguments are not a text.
    pub(super) fn arguments(&self) -> Option<&str> {
        match self.members.get("arguments") {
            None | Some(Value::Null) => Some(""),
            Some(arguments) => arguments.as_str(),
        }
    }

    /// Returns a key that only items with the same type and id have; `None` if the item has no id.
    pub(super) fn id_key(&self) -> Option<String> {
        let (kind, id) = (self.str("type"), self.str("id"));
        (!id.is_empty()).then(|| json!({"type": kind, "id": id}).to_string())
    }

    /// Returns the `call_id` of a call; `None` for any other item, and for a call without it.
    pub(super) fn call_id_key(&self) -> Option<String> {
        let id = self.str("call_id");
        (self.is_call() && !id.is_empty()).then(|| id.to_owned())
    }

    /// Returns a key that only items with the same type and content have. The key of a call or a
    /// message does not contain the item's ids. The content of any other item is its whole text.
    pub(super) fn content_key(&self) -> String {
        let kind = self.str("type");
        let content = match kind {
            "function_call" => json!([kind, self.str("name"), self.arguments()]),
            "message" => json!([kind, self.message_texts().collect::<String>()]),
            _ => json!([kind, self.text]),
        };
        content.to_string()
    }

    /// Returns the parts of a message; empty for any other item.
    fn parts(&self) -> impl Iterator<Item = &Value> {
        let is_message = self.str("type") == "message";
        let content = self.members.get("content").filter(|_| is_message);
        content.and_then(Value::as_array).into_iter().flatten()
    }

    /// Returns the texts of a message's parts, refusals included.
    pub(super) fn message_texts(&self) -> impl Iterator<Item = &str> {
        self.parts().filter_map(|part| {
            let member = match part.get("type").and_then(Value::as_str) {
                Some("output_text") => "text",
                Some("refusal") => "refusal",
                Some(_) | None => return None,
            };
            part.get(member).and_then(Value::as_str)
        })
    }

    pub(super) fn refuses(&self) -> bool {
        self.parts()
            .any(|part| part.get("type").is_some_and(|kind| kind == "refusal"))
    }

    /// Returns the JSON of the item as it is stored. If the item holds no secret and no U+0000, the
    /// JSON is the item's exact text. Otherwise the JSON is redacted. The arguments of a call then
    /// come from `call`, which is the parsed call and is already redacted. Returns `None` if the
    /// redacted text is not valid JSON.
    pub(super) fn stored_json(
        &self,
        call: Option<&AnswerCall>,
        cleaner: &Cleaner,
    ) -> Option<String> {
        let mut clean = cleaner.json(Value::Object(self.members.clone()));
        if let (Some(call), Some(arguments @ Value::String(_))) = (call, clean.get_mut("arguments"))
        {
            *arguments = json!(call.arguments_text);
        }
        let same = clean.as_object() == Some(&self.members);
        if same && cleaner.text(&self.text) == self.text {
            return Some(self.text.clone());
        }
        let text = cleaner.text(&clean.to_string());
        Self::read(&text).is_some().then_some(text)
    }
}

impl Serialize for ResponseItem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serde_json::from_str::<&RawValue>(&self.text) {
            Ok(exact) => exact.serialize(serializer),
            Err(_) => self.members.serialize(serializer),
        }
    }
}
