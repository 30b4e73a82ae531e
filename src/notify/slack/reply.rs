//! Reads the answers of Slack's API. An answer may have the HTTP status 200 although the request
//! failed. The body then states the failure, for example `{"ok": false, "error": "not_authed"}`.
//!
//! Invariants: the message's id is all that is kept of an answer's body, and the id consists of
//! digits and a dot. The text of a problem never contains a part of the answer. A failure is
//! permanent if the same message would surely fail again. Every other failure is retried.

use std::fmt;

use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};

use crate::notify::attempt_result::AttemptResult;

/// The members that are read from the body of an answer. All other members are ignored, because
/// they only repeat the message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SlackReply {
    ok: Option<bool>,
    error: Option<String>,
    ts: Option<String>,
}

impl SlackReply {
    /// Reads the members of a body. The body may be cut off.
    pub(super) fn parse(body: &[u8]) -> Self {
        let mut reply = Self::default();
        let mut json = serde_json::Deserializer::from_slice(body);
        // A body that is cut off gives a parse error. The error is ignored, because `reply` already
        // has the members before the cut.
        let _ = json.deserialize_map(ReplyVisitor(&mut reply));
        reply
    }

    /// Returns the result of the attempt, as the body of the answer states it. Takes only the HTTP
    /// status and `retry_after` from `result`.
    pub(super) fn attempt_result(self, result: &AttemptResult) -> AttemptResult {
        let (problem, is_permanent_failure) = match (self.ok, self.error.as_deref()) {
            (Some(true), _) => ("", false),
            (Some(false), error) => explain_error(error.unwrap_or_default()),
            (None, _) => ("the answer is not one of Slack's API", false),
        };
        let is_accepted = problem.is_empty();
        AttemptResult {
            status: result.status,
            retry_after: result.retry_after,
            problem,
            is_permanent_failure,
            reference: self.ts.filter(|ts| is_accepted && is_message_id(ts)),
        }
    }
}

/// Returns a fixed text for an error code of Slack. The `bool` says whether Slack would refuse the
/// same message again.
fn explain_error(error: &str) -> (&'static str, bool) {
    match error {
        "ratelimited" | "rate_limited" | "message_limit_exceeded" => ("Slack asks to wait", false),
        "invalid_auth"
        | "not_authed"
        | "account_inactive"
        | "token_revoked"
        | "token_expired"
        | "not_allowed_token_type"
        | "org_login_required"
        | "ekm_access_denied" => ("Slack does not accept the token", false),
        "missing_scope" | "no_permission" | "access_denied" | "restricted_action" => {
            ("the bot lacks a right in Slack", false)
        }
        "channel_not_found" => (
            "Slack does not know the channel, or the bot may not see it",
            false,
        ),
        "not_in_channel" => ("the bot is not a member of the channel", false),
        "is_archived" => ("the channel is archived", false),
        "msg_too_long"
        | "msg_blocks_too_long"
        | "invalid_blocks"
        | "invalid_blocks_format"
        | "no_text" => ("Slack does not accept a message like this", true),
        "message_not_found" => (MESSAGE_DELETED, true),
        "cant_update_message" | "edit_window_closed" => {
            ("the message can no longer be changed in Slack", true)
        }
        "internal_error"
        | "fatal_error"
        | "service_unavailable"
        | "request_timeout"
        | "team_added_to_org" => ("Slack had an error of its own", false),
        _ => ("Slack refused the message", false),
    }
}

/// The `problem` of a failed update, if the posted message was deleted in Slack.
pub(in crate::notify) const MESSAGE_DELETED: &str = "the message was deleted in Slack";

fn is_message_id(ts: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_valid = |(seconds, rest): (&str, &str)| digits(seconds) && digits(rest);
    ts.len() <= 32 && ts.split_once('.').is_some_and(is_valid)
}

struct ReplyVisitor<'r>(&'r mut SlackReply);

impl<'de> Visitor<'de> for ReplyVisitor<'_> {
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

    fn result_of(body: &str) -> AttemptResult {
        SlackReply::parse(body.as_bytes()).attempt_result(&AttemptResult {
            status: Some(200),
            ..AttemptResult::success()
        })
    }

    #[test]
    fn answer_that_is_ok_is_a_success_with_the_id_of_its_message() {
        let result = result_of(
            r#"{"ok":true,"channel":"C012AB3CD","ts":"1503435956.000247","message":{"text":"x"}}"#,
        );
        assert!(result.is_success());
        assert_eq!(result.reference.as_deref(), Some("1503435956.000247"));
        let cut = result_of(
            r#"{"ok":true,"channel":"C012AB3CD","ts":"1503435956.000247","message":{"te"#,
        );
        assert_eq!(cut, result);
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
            let result = result_of(&format!(r#"{{"ok":true,"ts":"{ts}"}}"#));
            assert!(result.is_success() && result.reference.is_none(), "{ts}");
        }
        let long = result_of(&format!(r#"{{"ok":true,"ts":"1.{}"}}"#, "2".repeat(64)));
        assert!(long.is_success() && long.reference.is_none());
        assert_eq!(
            result_of(r#"{"ok":false,"error":"x","ts":"1.2"}"#).reference,
            None
        );
    }

    #[test]
    fn error_is_told_in_fixed_words_and_tried_again_unless_it_would_surely_return() {
        for (error, problem, is_permanent_failure) in [
            ("ratelimited", "Slack asks to wait", false),
            ("rate_limited", "Slack asks to wait", false),
            ("invalid_auth", "Slack does not accept the token", false),
            ("token_revoked", "Slack does not accept the token", false),
            ("missing_scope", "the bot lacks a right in Slack", false),
            (
                "not_in_channel",
                "the bot is not a member of the channel",
                false,
            ),
            ("is_archived", "the channel is archived", false),
            (
                "msg_too_long",
                "Slack does not accept a message like this",
                true,
            ),
            (
                "invalid_blocks",
                "Slack does not accept a message like this",
                true,
            ),
            ("message_not_found", MESSAGE_DELETED, true),
            (
                "edit_window_closed",
                "the message can no longer be changed in Slack",
                true,
            ),
            ("fatal_error", "Slack had an error of its own", false),
            ("xoxb-canary <script>", "Slack refused the message", false),
        ] {
            let result = result_of(&format!(r#"{{"ok":false,"error":"{error}"}}"#));
            assert_eq!(
                (result.problem, result.is_permanent_failure),
                (problem, is_permanent_failure),
                "{error}"
            );
        }
        let found = result_of(r#"{"ok":false,"error":"channel_not_found"}"#);
        assert!(!found.is_success() && !found.is_permanent_failure);
    }

    #[test]
    fn wait_that_slack_asks_for_is_kept_whatever_its_status() {
        let retry_after = Some(std::time::Duration::from_secs(30));
        let result = SlackReply::parse(br#"{"ok":false,"error":"ratelimited"}"#).attempt_result(
            &AttemptResult {
                status: Some(200),
                retry_after,
                ..AttemptResult::success()
            },
        );
        assert_eq!(
            (result.status, result.retry_after),
            (Some(200), retry_after)
        );
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
            let result = result_of(body);
            assert_eq!(
                result.problem, "the answer is not one of Slack's API",
                "{body}"
            );
            assert!(!result.is_permanent_failure && result.reference.is_none());
        }
        assert_eq!(
            result_of(r#"{"ok":false}"#).problem,
            "Slack refused the message"
        );
    }
}
