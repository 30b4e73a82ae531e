//! Reads a user's message from a body, and the members beside it: context, metadata and session id.
//! The message is a text or a list of parts.

use std::collections::BTreeMap;

use base64::Engine as _;
use serde_json::Value;

use crate::engine::DetailCode;
use crate::http::server::fields::{Fields, pointer, variant};
use crate::http::server::json;
use crate::http::wire::body::NewMessageItem;
use crate::http::wire::item::ContentType;
use crate::task::item::{Part, PartType};
use crate::task::limits::{MAX_CONTEXT_BYTES, MAX_MESSAGE_PARTS};

/// Reads the members `input` and `items`, of which exactly one has the message. If both or neither
/// is present, adds a mistake.
pub(crate) fn message(fields: &mut Fields<'_>) -> (Option<String>, Option<Vec<NewMessageItem>>) {
    let before = fields.errors.0.len();
    let input = fields.text("input");
    let items = fields.take("items");
    if input.is_some() == items.is_some() && fields.errors.0.len() == before {
        fields.errors.add("", "exactly one of `input` and `items`");
    }
    let items = items
        .filter(|_| input.is_none())
        .map(|items| read_items(items, fields));
    (input, items)
}

/// Returns the parts of a message that [`message`] has read.
#[must_use]
pub(crate) fn into_parts(input: Option<String>, items: Option<Vec<NewMessageItem>>) -> Vec<Part> {
    let text = input.map(|content| Part {
        content_type: PartType::Text,
        content,
    });
    let items = items.into_iter().flatten().map(Part::from);
    text.into_iter().chain(items).collect()
}

impl From<NewMessageItem> for Part {
    fn from(item: NewMessageItem) -> Self {
        Self {
            content_type: item.content_type.into(),
            content: item.content,
        }
    }
}

fn read_items(items: Value, fields: &mut Fields<'_>) -> Vec<NewMessageItem> {
    let Value::Array(items) = items else {
        fields.refuse("items", "a list of items");
        return Vec::new();
    };
    if !(1..=MAX_MESSAGE_PARTS).contains(&items.len()) {
        fields.refuse("items", format!("1 to {MAX_MESSAGE_PARTS} items"));
        return Vec::new();
    }
    let at = fields.pointer("items");
    items
        .into_iter()
        .enumerate()
        .filter_map(|(index, item)| {
            let place = pointer(&at, &index.to_string());
            let mut members = Fields::from_value(item, &place, fields.errors)?;
            let item = NewMessageItem::read(&mut members);
            members.finish();
            item
        })
        .collect()
}

impl NewMessageItem {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let word = fields.raw("content_type");
        let content_type: Option<ContentType> =
            word.as_ref().and_then(Value::as_str).and_then(variant);
        if content_type.is_none() {
            fields.refuse("content_type", "`text` or `image`");
        }
        let Some(Value::String(content)) = fields.raw("content") else {
            fields.refuse("content", DetailCode::Text);
            return None;
        };
        if content_type == Some(ContentType::Image) && !is_image(&content) {
            let detail = "a base64 `data:` URI of png, jpeg, gif or webp, or an `https:` URL";
            fields.refuse("content", detail);
        }
        Some(Self {
            content_type: content_type?,
            content,
        })
    }
}

fn is_image(content: &str) -> bool {
    let Some((scheme, rest)) = content.split_once(':') else {
        return false;
    };
    if scheme.eq_ignore_ascii_case("https") {
        let plain = !content.contains(|c: char| c.is_whitespace() || c.is_control());
        return plain
            && rest.starts_with("//")
            && url::Url::parse(content).is_ok_and(|url| url.has_host());
    }
    let Some((kind, data)) = rest.split_once(',') else {
        return false;
    };
    let kind = kind.to_ascii_lowercase();
    let known = [
        "image/png;base64",
        "image/jpeg;base64",
        "image/gif;base64",
        "image/webp;base64",
    ];
    scheme.eq_ignore_ascii_case("data")
        && known.contains(&kind.as_str())
        && !data.is_empty()
        && base64::prelude::BASE64_STANDARD.decode(data).is_ok()
}

/// Reads the member `user_context`, an object whose values are strings.
pub(crate) fn user_context(fields: &mut Fields<'_>) -> Option<BTreeMap<String, String>> {
    let members = fields.object("user_context")?;
    if Value::Object(members.clone()).to_string().len() > MAX_CONTEXT_BYTES {
        let detail = format!("at most {MAX_CONTEXT_BYTES} bytes of JSON");
        fields.refuse("user_context", detail);
    }
    let at = fields.pointer("user_context");
    let mut context = BTreeMap::new();
    for (name, value) in members {
        if let Value::String(text) = value {
            context.insert(name, text);
        } else {
            let place = pointer(&at, &name);
            fields.errors.add(&place, DetailCode::Text);
        }
    }
    Some(context)
}

/// Reads the member `metadata`, which must be an object, and returns its JSON text. `body` is the
/// whole body as it was sent.
pub(crate) fn metadata(body: &[u8], fields: &mut Fields<'_>) -> Option<String> {
    fields.object("metadata")?;
    let text = json::member(body, "metadata")?;
    if text.len() > MAX_CONTEXT_BYTES {
        let detail = format!("at most {MAX_CONTEXT_BYTES} bytes of JSON");
        fields.refuse("metadata", detail);
    }
    Some(text)
}

/// Returns the metadata for a body that has no member `metadata`: the text of an empty object.
#[must_use]
pub(crate) fn no_metadata() -> String {
    "{}".to_owned()
}

/// The description of a valid session id, for error messages.
pub(crate) const SESSION_ID_FORM: &str = "1 to 128 of A-Z a-z 0-9 . _ : -";

#[must_use]
pub(crate) fn is_session_id(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-');
    (1..=128).contains(&text.len()) && text.bytes().all(fits)
}

pub(crate) fn session_id(fields: &mut Fields<'_>) -> Option<String> {
    let session = fields.text("session_id")?;
    if !is_session_id(&session) {
        fields.refuse("session_id", SESSION_ID_FORM);
    }
    Some(session)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::server::fields::Errors;
    use serde_json::json;

    fn places(body: Value) -> Vec<String> {
        let mut errors = Errors::default();
        let text = body.to_string();
        let mut fields = Fields::from_value(body, "", &mut errors).unwrap();
        message(&mut fields);
        user_context(&mut fields);
        metadata(text.as_bytes(), &mut fields);
        session_id(&mut fields);
        fields.finish();
        errors.0.into_iter().map(|error| error.pointer).collect()
    }

    #[test]
    fn fitting_messages_are_accepted() {
        let none: [&str; 0] = [];
        assert_eq!(
            places(
                json!({"input": "hi", "session_id": "a.B_c:9-", "user_context": {"a": "b"}, "metadata": {"n": [1]}})
            ),
            none
        );
        assert_eq!(
            places(json!({"items": [{"content_type": "text", "content": "hi"}], "input": null})),
            none
        );
        assert_eq!(
            places(
                json!({"items": [{"content_type": "image", "content": "data:image/png;base64,iVBORw0="}]})
            ),
            none
        );
        assert_eq!(
            places(
                json!({"items": [{"content_type": "image", "content": "https://x.example/a.png"}]})
            ),
            none
        );
    }

    #[test]
    fn message_that_does_not_fit_is_refused_with_its_place() {
        let many: Vec<Value> = (0..33)
            .map(|_| json!({"content_type": "text", "content": "x"}))
            .collect();
        for (body, expected) in [
            (json!({}), vec![""]),
            (json!({"input": "a", "items": []}), vec![""]),
            (json!({"input": 1}), vec!["/input"]),
            (json!({"items": []}), vec!["/items"]),
            (json!({"items": "x"}), vec!["/items"]),
            (json!({"items": many}), vec!["/items"]),
            (json!({"items": [7]}), vec!["/items/0"]),
            (
                json!({"items": [{"content_type": "video", "content": "x"}]}),
                vec!["/items/0/content_type"],
            ),
            (
                json!({"items": [{"content_type": "text"}]}),
                vec!["/items/0/content"],
            ),
            (
                json!({"items": [{"content_type": "text", "content": "x", "y": 1}]}),
                vec!["/items/0/y"],
            ),
            (
                json!({"input": "a", "session_id": "a b"}),
                vec!["/session_id"],
            ),
            (json!({"input": "a", "session_id": ""}), vec!["/session_id"]),
            (
                json!({"input": "a", "session_id": "x".repeat(129)}),
                vec!["/session_id"],
            ),
            (
                json!({"input": "a", "user_context": {"a": 1}}),
                vec!["/user_context/a"],
            ),
            (
                json!({"input": "a", "user_context": []}),
                vec!["/user_context"],
            ),
            (
                json!({"input": "a", "user_context": {"a": "x".repeat(16 * 1024)}}),
                vec!["/user_context"],
            ),
            (json!({"input": "a", "metadata": "x"}), vec!["/metadata"]),
            (
                json!({"input": "a", "metadata": {"a": "x".repeat(16 * 1024)}}),
                vec!["/metadata"],
            ),
            (json!({"input": "a", "model": "x"}), vec!["/model"]),
        ] {
            assert_eq!(places(body.clone()), expected, "{body}");
        }
    }

    #[test]
    fn image_is_a_known_data_type_or_an_https_url() {
        for content in [
            "http://x.example/a.png",
            "https:",
            "https:/x",
            "ftp://x/a",
            "data:image/svg+xml;base64,AAAA",
            "data:image/png,AAAA",
            "data:image/png;base64,",
            "data:image/png;base64,!!!!",
            "data:text/html;base64,AAAA",
            "hello",
            "file:///etc/passwd",
            "https://x.example/a b",
            " https://x.example/a",
        ] {
            assert!(!is_image(content), "{content}");
        }
        assert!(is_image("DATA:image/WEBP;base64,AAAA"));
    }
}
