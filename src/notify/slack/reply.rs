//! Reads the answers of Slack's API. Slack answers failures with the status 200, too, and with a
//! body such as `{"ok": false, "error": …}`.
//!
//! Invariant: of an answer, only the message's id is kept, which has only digits and a dot; a
//! problem is in fixed words. A failure is retried unless the same message would surely fail again.

use std::fmt;

use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};

use crate::notify::answer::Answer;

/// The members of an answer that are read. The other members repeat the message, and may be cut
/// off.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reply {
    ok: Option<bool>,
    error: Option<String>,
    ts: Option<String>,
}

impl Reply {
    /// Reads the members of a body, which may be cut off.
    pub(super) fn read(body: &[u8]) -> Self {
        let mut reply = Self::default();
        let mut json = serde_json::Deserializer::from_slice(body);
        // An error is ignored: the members before it count.
        let _ = json.deserialize_map(Members(&mut reply));
        reply
    }

    /// Returns the result of the attempt. `answer` is the result by the HTTP status alone.
    pub(super) fn answer(self, answer: &Answer) -> Answer {
        let (problem, unwanted) = match (self.ok, self.error.as_deref()) {
            (Some(true), _) => ("", false),
            (Some(false), error) => meaning(error.unwrap_or_default()),
            (None, _) => ("what came was no answer of Slack's", false),
        };
        let taken = problem.is_empty();
        Answer {
            status: answer.status,
            asked: answer.asked,
            problem,
            unwanted,
            reference: self.ts.filter(|ts| taken && is_id(ts)),
        }
    }
}

/// Returns fixed words for an error code of Slack, and whether Slack would refuse the same message
/// again.
fn meaning(error: &str) -> (&'static str, bool) {
    match error {
        "ratelimited" | "rate_limited" | "message_limit_exceeded" => ("Slack asks to wait", false),
        "invalid_auth"
        | "not_authed"
        | "account_inactive"
        | "token_revoked"
        | "token_expired"
        | "not_allowed_token_type"
        | "org_login_required"
        | "ekm_access_denied" => ("Slack does not take the token", false),
        "missing_scope" | "no_permission" | "access_denied" | "restricted_action" => {
            ("the bot lacks a right in Slack", false)
        }
        "channel_not_found" => (
            "Slack knows no such channel, or the bot may not see it",
            false,
        ),
        "not_in_channel" => ("the bot is not a member of the channel", false),
        "is_archived" => ("the channel is archived", false),
        "msg_too_long"
        | "msg_blocks_too_long"
        | "invalid_blocks"
        | "invalid_blocks_format"
        | "no_text" => ("Slack does not take a message like this", true),
        "message_not_found" => (GONE, true),
        "cant_update_message" | "edit_window_closed" => {
            ("Slack lets nobody change the message any more", true)
        }
        "internal_error"
        | "fatal_error"
        | "service_unavailable"
        | "request_timeout"
        | "team_added_to_org" => ("Slack had an error of its own", false),
        _ => ("Slack refused the message", false),
    }
}

/// The problem of an update of a message that was deleted in Slack.
pub(in crate::notify) const GONE: &str = "the message was deleted in Slack";

/// Whether a text has the form of a message's id.
fn is_id(ts: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let sound = |(seconds, rest): (&str, &str)| digits(seconds) && digits(rest);
    ts.len() <= 32 && ts.split_once('.').is_some_and(sound)
}

struct Members<'r>(&'r mut Reply);

impl<'de> Visitor<'de> for Members<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "ok" => self.0.ok = Some(map.next_value()?),
                "error" => self.0.error = Some(map.next_value()?),
                "ts" => self.0.ts = Some(map.next_value()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> Answer {
        Reply::read(body.as_bytes()).answer(&Answer {
            status: Some(200),
            ..Answer::taken()
        })
    }

    #[test]
    fn answer_that_is_ok_is_a_success_with_the_id_of_its_message() {
        let answer = of(
            r#"{"ok":true,"channel":"C012AB3CD","ts":"1503435956.000247","message":{"text":"x"}}"#,
        );
        assert!(answer.is_success());
        assert_eq!(answer.reference.as_deref(), Some("1503435956.000247"));
        let cut = of(r#"{"ok":true,"channel":"C012AB3CD","ts":"1503435956.000247","message":{"te"#);
        assert_eq!(cut, answer);
    }

    #[test]
    fn id_that_is_not_digits_and_a_dot_is_not_kept() {
        for ts in [
            "",
            "1503435956",
            "a.b",
            "1.",
            ".1",
            "1.2.3",
            "1.2'",
            "１.２",
            "xoxb-canary",
        ] {
            let answer = of(&format!(r#"{{"ok":true,"ts":"{ts}"}}"#));
            assert!(answer.is_success() && answer.reference.is_none(), "{ts}");
        }
        let long = of(&format!(r#"{{"ok":true,"ts":"1.{}"}}"#, "2".repeat(64)));
        assert!(long.is_success() && long.reference.is_none());
        assert_eq!(of(r#"{"ok":false,"error":"x","ts":"1.2"}"#).reference, None);
    }

    #[test]
    fn error_is_told_in_fixed_words_and_tried_again_unless_it_would_surely_return() {
        for (error, problem, unwanted) in [
            ("ratelimited", "Slack asks to wait", false),
            ("rate_limited", "Slack asks to wait", false),
            ("invalid_auth", "Slack does not take the token", false),
            ("token_revoked", "Slack does not take the token", false),
            ("missing_scope", "the bot lacks a right in Slack", false),
            (
                "not_in_channel",
                "the bot is not a member of the channel",
                false,
            ),
            ("is_archived", "the channel is archived", false),
            (
                "msg_too_long",
                "Slack does not take a message like this",
                true,
            ),
            (
                "invalid_blocks",
                "Slack does not take a message like this",
                true,
            ),
            ("message_not_found", GONE, true),
            (
                "edit_window_closed",
                "Slack lets nobody change the message any more",
                true,
            ),
            ("fatal_error", "Slack had an error of its own", false),
            ("xoxb-canary <script>", "Slack refused the message", false),
        ] {
            let answer = of(&format!(r#"{{"ok":false,"error":"{error}"}}"#));
            assert_eq!(
                (answer.problem, answer.unwanted),
                (problem, unwanted),
                "{error}"
            );
        }
        let found = of(r#"{"ok":false,"error":"channel_not_found"}"#);
        assert!(!found.is_success() && !found.unwanted);
    }

    #[test]
    fn wait_that_slack_asks_for_is_kept_whatever_its_status() {
        let asked = Some(std::time::Duration::from_secs(30));
        let answer = Reply::read(br#"{"ok":false,"error":"ratelimited"}"#).answer(&Answer {
            status: Some(200),
            asked,
            ..Answer::taken()
        });
        assert_eq!((answer.status, answer.asked), (Some(200), asked));
    }

    #[test]
    fn body_that_is_no_answer_of_slack_is_a_failure() {
        for body in [
            "",
            "ok",
            "<html>",
            "[]",
            "{}",
            r#"{"ok":"true"}"#,
            r#"{"ts":"1.2"}"#,
        ] {
            let answer = of(body);
            assert_eq!(
                answer.problem, "what came was no answer of Slack's",
                "{body}"
            );
            assert!(!answer.unwanted && answer.reference.is_none());
        }
        assert_eq!(of(r#"{"ok":false}"#).problem, "Slack refused the message");
    }
}
