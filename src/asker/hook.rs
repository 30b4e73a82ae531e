//! The answers of a coding agent's hook. Claude Code and Codex block a tool only on exit code 2 or
//! on a well-formed refusal, and run the tool if the hook fails in another way. Every failure to
//! get a verdict is therefore exit code 2.

use serde::Serialize;
use serde_json::value::RawValue;

use super::client::{Answer, AskError, Call, Decision, GateClient, Report};
use super::hook_input::{Event, HookInput};

/// The exit code that blocks the call.
pub const BLOCK: u8 = 2;

/// The program that runs the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// Claude Code, whose hooks may approve a call and change the arguments.
    ClaudeCode,
    /// Codex, whose hooks may only refuse a call.
    Codex,
}

/// The options of the command `gate hook`.
#[derive(Clone, Copy, Debug)]
pub struct HookOptions {
    pub host: Host,
    /// Whether an allow by a rule skips the host's own permission prompt, as a person's approval
    /// does.
    pub is_final: bool,
    /// Whether reports contain the tool's output.
    pub content: bool,
}

/// The exit code, standard output and standard error of the hook's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookAnswer {
    pub code: u8,
    pub out: String,
    pub err: String,
}

impl HookAnswer {
    /// Returns the answer after which the host proceeds as if there were no hook.
    fn silent() -> Self {
        Self {
            code: 0,
            out: String::new(),
            err: String::new(),
        }
    }

    /// Returns the answer that blocks the call. `why` is shown on standard error.
    #[must_use]
    pub fn blocked(why: &str) -> Self {
        Self {
            code: BLOCK,
            out: String::new(),
            err: format!("Holdpoint blocks this call: {why}\n"),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Output<'o> {
    hook_specific_output: Permission<'o>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Permission<'o> {
    hook_event_name: &'static str,
    #[serde(rename = "permissionDecision")]
    decision: &'static str,
    #[serde(rename = "permissionDecisionReason")]
    reason: &'o str,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_input: Option<&'o RawValue>,
}

fn permission(decision: &'static str, reason: &str, input: Option<&RawValue>) -> HookAnswer {
    let output = Output {
        hook_specific_output: Permission {
            hook_event_name: "PreToolUse",
            decision,
            reason,
            updated_input: input,
        },
    };
    match serde_json::to_string(&output) {
        Ok(text) => HookAnswer {
            out: text + "\n",
            ..HookAnswer::silent()
        },
        Err(_) => HookAnswer::blocked("the answer cannot be written"),
    }
}

/// Returns the answer to `text`, the JSON that the host writes to the hook.
pub async fn answer(client: &GateClient, ask: &Ask<'_>, text: &str) -> HookAnswer {
    let input = match HookInput::read(text) {
        Ok(input) => input,
        Err(why) => return HookAnswer::blocked(&why),
    };
    match input.event {
        Event::Before => match before(client, ask, &input).await {
            Ok(answer) => answer,
            Err(why) => HookAnswer::blocked(&why),
        },
        // The call is over: a report that fails must not look like a refusal.
        Event::Succeeded | Event::Failed => {
            let err = match report(client, ask.options, &input).await {
                Ok(()) => String::new(),
                Err(why) => format!("The outcome was not reported: {why}\n"),
            };
            HookAnswer {
                err,
                ..HookAnswer::silent()
            }
        }
        Event::Other => HookAnswer::silent(),
    }
}

/// The settings of one hook.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub options: HookOptions,
    /// The name of the gate. May be `None` if only one gate is open to the key.
    pub gate: Option<&'a str>,
    /// How long the hook waits for the verdict on a held call.
    pub wait: std::time::Duration,
}

async fn before(
    client: &GateClient,
    ask: &Ask<'_>,
    input: &HookInput<'_>,
) -> Result<HookAnswer, String> {
    let (tool, session, context) = (input.tool()?, input.session()?, input.context());
    let arguments = input.arguments()?;
    let call = Call {
        gate: ask.gate,
        tool: &tool,
        arguments,
        session_id: Some(&session),
        context: &context,
        attach: true,
    };
    let verdict = client.ask(&call, &input.key()?, ask.wait).await;
    let verdict = verdict.map_err(|error| error.to_string())?;
    told(ask.options, &verdict.answer, arguments)
}

/// Returns the answer to the host for the verdict `answer` on a call with `arguments`.
///
/// # Errors
/// The approved arguments are not JSON.
pub fn told(
    options: HookOptions,
    answer: &Answer,
    arguments: &RawValue,
) -> Result<HookAnswer, String> {
    let deny = |reason: &str| Ok(permission("deny", reason, None));
    match answer.decision {
        Decision::Deny => match &answer.result {
            Some(result) => deny(&result.content),
            None => deny(&answer.message),
        },
        Decision::Pending => {
            let url = answer.request.as_ref().map_or("", |request| &request.url);
            let again = "Make the same call again, with the same input, to get the answer.";
            deny(format!("{} {again} {url}", answer.message).trim_end())
        }
        Decision::Allow if answer.permit.is_none() => match &answer.result {
            Some(result) => deny(&format!(
                "Holdpoint ran this call itself: {}",
                result.content
            )),
            None => deny("The call has already run, or another process has its permit."),
        },
        Decision::Allow => allowed(options, answer, arguments),
    }
}

fn allowed(
    options: HookOptions,
    answer: &Answer,
    arguments: &RawValue,
) -> Result<HookAnswer, String> {
    let approved: &RawValue = serde_json::from_str(&answer.arguments_text)
        .map_err(|_| "the approved arguments are not JSON".to_owned())?;
    let same = approved.get() == arguments.get();
    let by_person = answer.edited || !answer.by.is_empty();
    match options.host {
        // A Codex hook cannot change the arguments: Codex would not run the approved call.
        Host::Codex if answer.edited => Ok(permission(
            "deny",
            &format!(
                "A person changed the arguments. Make the call with these instead: {}",
                answer.arguments_text
            ),
            None,
        )),
        Host::ClaudeCode if by_person || options.is_final || !same => Ok(permission(
            "allow",
            &answer.message,
            (!same).then_some(approved),
        )),
        Host::Codex | Host::ClaudeCode => Ok(HookAnswer::silent()),
    }
}

async fn report(
    client: &GateClient,
    options: HookOptions,
    input: &HookInput<'_>,
) -> Result<(), String> {
    let (key, content) = (input.key()?, input.content());
    let report = Report {
        key: &key,
        outcome: match input.event {
            Event::Failed => "failed",
            Event::Succeeded | Event::Before | Event::Other => "succeeded",
        },
        content: options.content.then_some(content.as_str()),
    };
    let reported = client.report(&report).await;
    reported.map_err(|error: AskError| error.to_string())
}
