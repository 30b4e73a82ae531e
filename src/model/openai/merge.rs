//! Merges the deltas of a streamed message, including unknown members, into the message that the
//! endpoint would have sent unstreamed.

use serde_json::{Map, Value};

/// The members with identifying texts, such as names and ids. The text of a later delta replaces
/// the earlier text. For any other member, the text of a later delta is appended.
const REPLACED_MEMBERS: [&str; 7] = ["role", "type", "id", "name", "format", "provider", "model"];
/// The maximum number of elements of a list that [`element`] compares, from the end of the list, to
/// find an element with a given `index`.
const MAX_SEARCHED_ELEMENTS: usize = 64;

/// Merges the members `piece` of a delta into `merged`. If `merged` does not have a member yet, the
/// member is inserted. Otherwise the new value is combined with the value that `merged` has:
/// - A text is appended to a text. If `REPLACED_MEMBERS` has the member's name, the new text
///   replaces the text in `merged`, unless the new text is empty.
/// - The elements of a list are added to a list (see [`element`]).
/// - An object is merged into an object.
/// - A `null` changes nothing. Any other value replaces the value in `merged`.
pub(super) fn members(merged: &mut Map<String, Value>, piece: Map<String, Value>) {
    for (name, value) in piece {
        match (merged.get_mut(&name), value) {
            (None, value) => {
                merged.insert(name, value);
            }
            (Some(_), Value::Null) => {}
            (Some(Value::String(known)), Value::String(more)) => text(&name, known, &more),
            (Some(Value::Array(all)), Value::Array(more)) => {
                for piece in more {
                    element(all, piece);
                }
            }
            (Some(Value::Object(merged)), Value::Object(piece)) => members(merged, piece),
            (Some(known), value) => *known = value,
        }
    }
}

fn text(name: &str, known: &mut String, more: &str) {
    if !REPLACED_MEMBERS.contains(&name) {
        known.push_str(more);
    } else if !more.is_empty() {
        more.clone_into(known);
    }
}

/// Adds an element to a list. An element with an `index` is merged into the list's element with the
/// same `index`, if their types agree. An element without an `index` is merged into the list's last
/// element if it [`continues`] that element. Any other element is appended.
fn element(all: &mut Vec<Value>, piece: Value) {
    let place = match piece.get("index").filter(|index| index.is_u64()) {
        Some(index) => {
            let mut recent = all.iter().enumerate().rev().take(MAX_SEARCHED_ELEMENTS);
            let same = |one: &Value| one.get("index") == Some(index) && same_type(one, &piece);
            recent.find(|(_, one)| same(one)).map(|(at, _)| at)
        }
        None => all
            .len()
            .checked_sub(1)
            .filter(|last| all.get(*last).is_some_and(|last| continues(last, &piece))),
    };
    match (place.and_then(|at| all.get_mut(at)), piece) {
        (Some(Value::Object(merged)), Value::Object(piece)) => members(merged, piece),
        (_, piece) => all.push(piece),
    }
}

fn kind(value: &Value) -> Option<&str> {
    value.get("type").and_then(Value::as_str)
}

fn same_type(one: &Value, other: &Value) -> bool {
    let (one, other) = (kind(one), kind(other));
    one.is_none() || other.is_none() || one == other
}

/// Returns whether a delta continues the last element of a list. A text can always be continued.
/// Thinking can be continued until it is signed.
fn continues(last: &Value, piece: &Value) -> bool {
    let is_text = |value: &Value| value.get("text").is_some_and(Value::is_string);
    let signed = last
        .get("signature")
        .and_then(Value::as_str)
        .is_some_and(|signature| !signature.is_empty());
    match (kind(last), kind(piece)) {
        (Some("text"), Some("text")) => is_text(last) && is_text(piece),
        (Some("thinking"), Some("thinking")) => !signed,
        _ => false,
    }
}

/// Adds `piece` to the message's `content`. A content is a text or a list of parts. When parts
/// follow a text, the text becomes the first part of the list.
pub(super) fn content(message: &mut Map<String, Value>, piece: Value) {
    let content = message.entry("content").or_insert(Value::Null);
    match (&mut *content, piece) {
        (_, Value::Null) => {}
        (Value::String(known), Value::String(more)) => known.push_str(&more),
        (Value::Array(parts), Value::String(more)) => {
            if !more.is_empty() {
                element(parts, text_part(&more));
            }
        }
        (Value::Array(parts), Value::Array(more)) => {
            for part in more {
                element(parts, part);
            }
        }
        (Value::String(known), Value::Array(more)) => {
            let known = std::mem::take(known);
            let mut parts: Vec<_> = Some(known)
                .filter(|known| !known.is_empty())
                .map(|known| text_part(&known))
                .into_iter()
                .collect();
            for part in more {
                element(&mut parts, part);
            }
            *content = Value::Array(parts);
        }
        (_, piece) => *content = piece,
    }
}

fn text_part(text: &str) -> Value {
    serde_json::json!({"type": "text", "text": text})
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(pieces: Value) -> Value {
        let mut merged = Map::new();
        for piece in serde_json::from_value::<Vec<Map<String, Value>>>(pieces).unwrap() {
            members(&mut merged, piece);
        }
        Value::Object(merged)
    }

    fn contents(pieces: Value) -> Value {
        let mut message = Map::new();
        serde_json::from_value::<Vec<Value>>(pieces)
            .unwrap()
            .into_iter()
            .for_each(|piece| content(&mut message, piece));
        message.remove("content").unwrap()
    }

    #[test]
    fn texts_are_appended_and_identifiers_are_kept_once() {
        let pieces = json!([{"role": "assistant", "reasoning": "I ", "x": null, "n": 1, "deep": {"a": "1", "id": "i"}},
            {"role": "assistant", "reasoning": "see", "x": "y", "n": 2, "deep": {"a": "2", "id": "i"}},
            {"role": "", "reasoning": null, "x": null}]);
        let whole = json!({"role": "assistant", "reasoning": "I see", "x": "y", "n": 2, "deep": {"a": "12", "id": "i"}});
        assert_eq!(merged(pieces), whole);
    }

    #[test]
    fn list_elements_are_merged_by_index_or_appended() {
        let details = json!([
            {"d": [{"index": 0, "type": "reasoning.text", "text": "a"}]},
            {"d": [{"index": 1, "type": "reasoning.text", "text": "b"}, {"index": 0, "text": "A", "signature": null}]},
            {"d": [{"index": 0, "type": "reasoning.encrypted", "data": "x"}, {"index": 0, "signature": "s"}]}]);
        assert_eq!(
            merged(details)["d"],
            json!([{"index": 0, "type": "reasoning.text", "text": "aA", "signature": null},
                {"index": 1, "type": "reasoning.text", "text": "b"},
                {"index": 0, "type": "reasoning.encrypted", "data": "x", "signature": "s"}])
        );
        let blocks = json!([{"b": [{"type": "thinking", "thinking": "a"}]},
            {"b": [{"type": "thinking", "thinking": "b", "signature": "s"}]},
            {"b": [{"type": "thinking", "thinking": "c"}, {"type": "text", "text": "d"}, {"type": "text", "text": "e"}]},
            {"b": [{"type": "note"}, {"type": "note"}]}]);
        assert_eq!(
            merged(blocks)["b"],
            json!([{"type": "thinking", "thinking": "ab", "signature": "s"}, {"type": "thinking", "thinking": "c"},
                {"type": "text", "text": "de"}, {"type": "note"}, {"type": "note"}])
        );
    }

    #[test]
    fn content_is_text_or_parts_or_becomes_parts() {
        assert_eq!(contents(json!(["", "a", null, "b"])), json!("ab"));
        assert_eq!(contents(json!([null])), json!(null));
        let thinking =
            |text: &str| json!({"type": "thinking", "thinking": [{"type": "text", "text": text}]});
        assert_eq!(
            contents(json!(["", [thinking("a")], [thinking("b")], "c", "", "d"])),
            json!([thinking("ab"), {"type": "text", "text": "cd"}])
        );
        assert_eq!(
            contents(json!(["a", [{"type": "text", "text": "b"}, {"type": "image", "x": 1}]])),
            json!([{"type": "text", "text": "ab"}, {"type": "image", "x": 1}])
        );
    }
}
