//! Lists the answers that each kind of request accepts, and the effects of each answer.

use super::RAN;

/// All ways to answer: an `action` on the whole request (some with a `response` or a `result`), an
/// answer to one call (`each …`), and the approve and reject endpoints with an empty body.
pub const ANSWERS: [&str; 11] = [
    "approve",
    "reject",
    "respond response",
    "respond result",
    "retry",
    "each approve",
    "each reject",
    "each edit",
    "each respond",
    "/approve",
    "/reject",
];

pub struct Taken {
    pub kind: &'static str,
    pub answer: &'static str,
    pub outcome: &'static str,
    /// The content of the call's result, or a part of that content.
    pub says: &'static str,
    /// The number of tool executions that the answer causes.
    pub runs: usize,
    /// The `action` of the request's `decision`.
    pub action: &'static str,
    pub then: Option<&'static str>,
    pub status: &'static str,
}

#[rustfmt::skip]
#[expect(clippy::too_many_arguments, reason = "one line of the table")]
pub const fn taken(
    kind: &'static str, answer: &'static str, outcome: &'static str, says: &'static str, runs: usize,
    action: &'static str, then: Option<&'static str>, status: &'static str,
) -> Taken {
    Taken { kind, answer, outcome, says, runs, action, then, status }
}

pub const END: Option<&str> = Some("cancel");

pub const ON: Option<&str> = Some("continue");

#[rustfmt::skip]
pub const TAKEN: [Taken; 26] = [
    taken("approval",        "approve",          "succeeded", RAN,                                       1, "approve", None, "Completed"),
    taken("approval",        "reject",           "rejected",  "human rejected",                          0, "reject",  END,  "Canceled"),
    taken("approval",        "each approve",     "succeeded", RAN,                                       1, "approve", None, "Completed"),
    taken("approval",        "each reject",      "rejected",  "human rejected",                          0, "reject",  END,  "Canceled"),
    taken("approval",        "each edit",        "succeeded", RAN,                                       1, "edit",    None, "Completed"),
    taken("approval",        "each respond",     "responded", r#"{"by":"hand"}"#,                        0, "respond", None, "Completed"),
    taken("approval",        "/approve",         "succeeded", RAN,                                       1, "approve", None, "Completed"),
    taken("approval",        "/reject",          "rejected",  "human rejected",                          0, "reject",  END,  "Canceled"),
    taken("guidance",        "respond response", "responded", r#"{"answer":"north"}"#,                   0, "respond", None, "Completed"),
    taken("guidance",        "reject",           "rejected",  "declined",                                0, "reject",  ON,   "Completed"),
    taken("guidance",        "/reject",          "rejected",  "declined",                                0, "reject",  ON,   "Completed"),
    taken("confirmation",    "approve",          "responded", r#"{"confirmed":true}"#,                   0, "approve", None, "Completed"),
    taken("confirmation",    "reject",           "responded", r#"{"confirmed":false}"#,                  0, "reject",  ON,   "Completed"),
    taken("confirmation",    "respond response", "responded", r#"{"comment":"go","confirmed":true}"#,    0, "respond", None, "Completed"),
    taken("confirmation",    "/approve",         "responded", r#"{"confirmed":true}"#,                   0, "approve", None, "Completed"),
    taken("confirmation",    "/reject",          "responded", r#"{"confirmed":false}"#,                  0, "reject",  ON,   "Completed"),
    taken("credentials",     "respond response", "responded", r#""fields":["email","token"]"#,           0, "respond", None, "Completed"),
    taken("credentials",     "reject",           "rejected",  "declined",                                0, "reject",  ON,   "Completed"),
    taken("credentials",     "/reject",          "rejected",  "declined",                                0, "reject",  ON,   "Completed"),
    taken("external_result", "respond result",   "responded", r#"{"by":"hand"}"#,                        0, "respond", None, "Completed"),
    taken("external_result", "reject",           "rejected",  "human",                                   0, "reject",  ON,   "Completed"),
    taken("external_result", "/reject",          "rejected",  "human",                                   0, "reject",  ON,   "Completed"),
    taken("reconcile",       "respond result",   "responded", r#"{"by":"hand"}"#,                        0, "respond", None, "Completed"),
    taken("reconcile",       "reject",           "failed",    "It is unknown",                            0, "reject",  ON,   "Completed"),
    taken("reconcile",       "/reject",          "failed",    "It is unknown",                            0, "reject",  ON,   "Completed"),
    taken("reconcile",       "retry",            "succeeded", RAN,                                       1, "retry",   None, "Completed"),
];

/// The `allowed_actions` that a caller who may decide sees, for each kind of request.
#[rustfmt::skip]
pub const ALLOWED: [(&str, &[&str]); 6] = [
    ("approval",        &["approve", "reject", "edit", "respond"]),
    ("guidance",        &["respond", "reject"]),
    ("confirmation",    &["approve", "reject", "respond"]),
    ("credentials",     &["respond", "reject"]),
    ("external_result", &["respond", "reject"]),
    ("reconcile",       &["retry", "respond", "reject"]),
];

pub fn is_taken(kind: &str, answer: &str) -> bool {
    TAKEN
        .iter()
        .any(|taken| (taken.kind, taken.answer) == (kind, answer))
}
