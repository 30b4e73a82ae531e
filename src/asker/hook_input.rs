//! Reads the JSON that a coding agent writes to its hook. Invariants: an input with a repeated
//! member at its top level, or with a second value, is refused, because two parsers could read it
//! differently. `tool_input` is kept byte for byte.

use std::fmt;

use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::task::json_members::Members;
use crate::task::request::digest_of_texts;
use crate::task::text::cut;

/// The maximum size in bytes of the input of a hook that may block a call, and of the arguments
/// that `gate call` reads. Longer standard input is refused.
pub const MAX_INPUT_BYTES: usize = 4 * 1024 * 1024;
/// The maximum size of the input of a hook after a call, in bytes. It exceeds [`MAX_INPUT_BYTES`],
/// because this input also has the output of the tool.
pub const MAX_REPORT_INPUT_BYTES: usize = 64 * 1024 * 1024;
const MAX_CONTENT_BYTES: usize = 64 * 1024;
/// The maximum length of a `session_id` that the API accepts, in bytes.
const MAX_SESSION_ID_BYTES: usize = 128;

/// The event for which the host runs the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookEvent {
    /// A call is about to run: the hook may block it.
    Before,
    /// The host reports that a call ran.
    Succeeded,
    /// The host reports that a call failed.
    Failed,
    /// Any other event: the hook makes no decision and sends no report.
    Other,
}

impl HookEvent {
    const fn is_after_call(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

fn event(name: &str) -> Option<HookEvent> {
    match name {
        "PreToolUse" => Some(HookEvent::Before),
        "PostToolUse" => Some(HookEvent::Succeeded),
        "PostToolUseFailure" => Some(HookEvent::Failed),
        _ => None,
    }
}

/// Collects the value of each member `hook_event_name`. If the input is damaged or cut, the values
/// before the damage are still collected.
struct EventNames<'n>(&'n mut Vec<String>);

impl<'t> Visitor<'t> for EventNames<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if name == "hook_event_name" {
                self.0.push(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct HookInput<'t> {
    members: Vec<(String, &'t RawValue)>,
    pub event: HookEvent,
}

impl<'t> HookInput<'t> {
    /// Parses the input. If the event is unknown, refuses an input that has a `tool_input` and no
    /// result, because the host may be about to run this call.
    ///
    /// # Errors
    /// Fails if the input is malformed or refused. The error is one line for a person.
    pub fn read(text: &'t str) -> Result<Self, String> {
        let Members(members) = serde_json::from_str(text)
            .map_err(|error| format!("the hook's input cannot be read: {error}"))?;
        let input = Self {
            members,
            event: HookEvent::Other,
        };
        let event = match event(&input.text("hook_event_name")?) {
            Some(event) => event,
            None if input.member("tool_input").is_some() && input.result().is_none() => {
                return Err("the hook's event is not known; use PreToolUse".to_owned());
            }
            None => HookEvent::Other,
        };
        Ok(Self { event, ..input })
    }

    /// Whether the hook's input `text` says that the call has already run: `text` has exactly one
    /// `hook_event_name`, which names an event after a call. The hook must not block such a call.
    #[must_use]
    pub fn is_after_call(text: &str) -> bool {
        let mut names = Vec::new();
        let mut deserializer = serde_json::Deserializer::from_str(text);
        // A parse error is ignored, because the names before the error are already collected.
        let _ = deserializer.deserialize_map(EventNames(&mut names));
        matches!(names.as_slice(), [name] if event(name).is_some_and(HookEvent::is_after_call))
    }

    fn member(&self, name: &str) -> Option<&'t RawValue> {
        let found = self.members.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| *value)
    }

    /// Returns a member that must be a non-empty string.
    fn text(&self, name: &str) -> Result<String, String> {
        self.member(name)
            .and_then(|value| serde_json::from_str::<String>(value.get()).ok())
            .filter(|text| !text.is_empty())
            .ok_or_else(|| format!("the hook's input has no `{name}`"))
    }

    /// Returns the name of the tool.
    ///
    /// # Errors
    /// Fails if the input has no `tool_name`.
    pub fn tool(&self) -> Result<String, String> {
        self.text("tool_name")
    }

    /// Returns the arguments, byte for byte as in the input.
    ///
    /// # Errors
    /// Fails if `tool_input` is missing or is not an object.
    pub fn arguments(&self) -> Result<&'t RawValue, String> {
        self.member("tool_input")
            .filter(|value| value.get().starts_with('{'))
            .ok_or_else(|| "the hook's input has no object `tool_input`".to_owned())
    }

    /// Returns the `session_id` for the API: the host's session id if the API accepts that id, else
    /// a hash of the host's session id.
    ///
    /// # Errors
    /// Fails if the input has no `session_id`.
    pub fn session(&self) -> Result<String, String> {
        let session = self.text("session_id")?;
        let fits = session.len() <= MAX_SESSION_ID_BYTES
            && session.bytes().all(|byte| is_plain(byte, b":"));
        Ok(if fits { session } else { hash(&[&session]) })
    }

    /// Returns the idempotency key of the call. The proposal and the report have the same key.
    ///
    /// # Errors
    /// Fails if `session_id` or `tool_use_id` is missing.
    pub fn key(&self) -> Result<String, String> {
        let (session, tool_use) = (self.text("session_id")?, self.text("tool_use_id")?);
        let key = format!("{session}:{tool_use}");
        // The ids are hashed if the API might refuse the key (it accepts at most 255 visible ASCII
        // characters). The ids are also hashed if one of them has a colon: without the hash, two
        // different pairs of ids could give the same key.
        let fits = key.len() <= 200
            && session
                .bytes()
                .chain(tool_use.bytes())
                .all(|byte| is_plain(byte, b""));
        Ok(if fits {
            key
        } else {
            hash(&[&session, &tool_use])
        })
    }

    /// Returns the working folder and the permission mode of the host, as text for approvers.
    #[must_use]
    pub fn context(&self) -> String {
        [("cwd", "Folder"), ("permission_mode", "Permission mode")]
            .iter()
            .filter_map(|(name, words)| Some(format!("{words}: {}", self.text(name).ok()?)))
            .map(|line| cut(&line, 4096).to_owned())
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn result(&self) -> Option<&'t RawValue> {
        self.member("tool_response")
            .or_else(|| self.member("error"))
    }

    /// Returns the call's result, with each NUL replaced by U+FFFD, cut to 64 KiB. A string is
    /// decoded, and any other value stays JSON. The text is empty if there is no result.
    #[must_use]
    pub fn content(&self) -> String {
        let Some(result) = self.result() else {
            return String::new();
        };
        let text = serde_json::from_str(result.get()).unwrap_or_else(|_| result.get().to_owned());
        cut(&text.replace('\0', "\u{FFFD}"), MAX_CONTENT_BYTES).to_owned()
    }
}

fn is_plain(byte: u8, also: &[u8]) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte) || also.contains(&byte)
}

/// Returns a hash of the parts, in characters that the API accepts in session ids and keys.
fn hash(parts: &[&str]) -> String {
    digest_of_texts(parts.iter().copied()).replace(':', "-")
}
