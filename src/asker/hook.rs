//! Builds the hook's answers to a coding agent. Claude Code and Codex block a call on exit code 2
//! and on a well-formed refusal. After any other failure of the hook, Codex and older versions of
//! Claude Code run the call. A hook that gets no verdict therefore ends with exit code 2.

use std::time::Duration;

use clap::ArgAction;
use serde::Serialize;
use serde_json::value::RawValue;

use super::client::{
    AskError, AskerReport, GateClient, ProposedCall, ServiceAnswer, ServiceDecision,
};
use super::hook_input::{HookEvent, HookInput};

pub const BLOCK_EXIT_CODE: u8 = 2;
/// The reason that a denial gives if the service's text about the call is blank. A reason is
/// needed, because Codex runs a call that is denied without a reason.
const BLANK_REASON: &str = "The call was not run. The text of its result is empty.";

/// The program that runs the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Host {
    /// Claude Code, whose hooks may approve a call and change the arguments.
    #[value(help = "Claude Code")]
    ClaudeCode,
    /// Codex, whose hooks may refuse a call but cannot approve or change it.
    #[value(help = "Codex")]
    Codex,
}

/// The options of the command `gate hook`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct HookOptions {
    /// The coding agent that runs the hook.
    pub host: Host,
    // A call that a person approved always skips the permission prompt of Claude Code. The option
    // has no effect on Codex.
    /// If a rule allows the call, also skip the coding agent's own permission prompt.
    #[arg(long = "final")]
    pub is_final: bool,
    /// Report outcomes without the tools' output.
    #[arg(long = "no-content", action = ArgAction::SetFalse)]
    pub includes_content: bool,
}

/// The exit code, standard output and standard error of the hook's process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookAnswer {
    pub exit_code: u8,
    pub stdout: String,
    pub stderr: String,
}

impl HookAnswer {
    /// Returns the answer after which the host proceeds as if there were no hook.
    fn silent() -> Self {
        Self::default()
    }

    /// Returns the answer that blocks the call. `why` is shown on standard error.
    #[must_use]
    pub fn blocked(why: &str) -> Self {
        Self {
            exit_code: BLOCK_EXIT_CODE,
            stderr: format!("Holdpoint blocks this call: {why}\n"),
            ..Self::silent()
        }
    }

    /// Returns the answer of a hook that runs after the call and could not report the call's
    /// outcome. The coding agent proceeds. `why` is shown on standard error.
    #[must_use]
    pub fn unreported(why: &str) -> Self {
        Self {
            stderr: format!("The outcome was not reported: {why}\n"),
            ..Self::silent()
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HookOutput<'o> {
    hook_specific_output: PermissionOutput<'o>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PermissionOutput<'o> {
    hook_event_name: &'static str,
    #[serde(rename = "permissionDecision")]
    decision: &'static str,
    #[serde(rename = "permissionDecisionReason")]
    reason: &'o str,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_input: Option<&'o RawValue>,
}

fn permission_answer(decision: &'static str, reason: &str, input: Option<&RawValue>) -> HookAnswer {
    let output = HookOutput {
        hook_specific_output: PermissionOutput {
            hook_event_name: "PreToolUse",
            decision,
            reason,
            updated_input: input,
        },
    };
    match serde_json::to_string(&output) {
        Ok(text) => HookAnswer {
            stdout: text + "\n",
            ..HookAnswer::silent()
        },
        Err(_) => HookAnswer::blocked("the answer cannot be written"),
    }
}

/// Returns the answer to `text`, which is the JSON that the coding agent writes to the hook. The
/// hook waits at most `wait` for a person to decide a held call.
///
/// # Errors
/// Fails if the input is not understood, if there is no verdict, or if the report is not stored.
/// The error is one line for a person.
pub async fn answer(
    client: &GateClient,
    options: HookOptions,
    wait: Duration,
    text: &str,
) -> Result<HookAnswer, String> {
    let input = HookInput::read(text)?;
    match input.event {
        HookEvent::Before => propose_call(client, options, wait, &input).await,
        HookEvent::Succeeded => report_outcome(client, options, &input, "succeeded").await,
        HookEvent::Failed => report_outcome(client, options, &input, "failed").await,
        HookEvent::Other => Ok(HookAnswer::silent()),
    }
}

async fn propose_call(
    client: &GateClient,
    options: HookOptions,
    wait: Duration,
    input: &HookInput<'_>,
) -> Result<HookAnswer, String> {
    let (tool, session, context) = (input.tool()?, input.session()?, input.context());
    let (key, arguments) = (input.key()?, input.arguments()?);
    let call = ProposedCall {
        gate: client.gate(),
        tool: &tool,
        arguments,
        session_id: Some(&session),
        context: &context,
        attach: true,
    };
    let verdict = client.ask(&call, &key, wait).await;
    let answer = verdict.map_err(|error| error.to_string())?.answer;
    let mut told = answer_for_verdict(options, &answer, arguments)?;
    // A Codex hook denies an edited call although it has the permit. Without this report, the
    // outcome of the call would be unknown once the permit ends.
    if options.host == Host::Codex && answer.edited && answer.permit.is_some() {
        let report = AskerReport {
            key: &key,
            outcome: "failed",
            content: Some("The call was not run: a person changed the arguments."),
        };
        if let Err(error) = client.report(&report).await {
            told.stderr = HookAnswer::unreported(&error.to_string()).stderr;
        }
    }
    Ok(told)
}

/// Translates `answer`, the service's verdict on a call, into the hook's answer to the host.
/// `arguments` are the arguments with which the host proposed the call.
///
/// # Errors
/// Fails if the approved arguments are not JSON.
pub fn answer_for_verdict(
    options: HookOptions,
    answer: &ServiceAnswer,
    arguments: &RawValue,
) -> Result<HookAnswer, String> {
    let deny = |text: &str| {
        let is_blank = text.trim().is_empty();
        let reason = if is_blank { BLANK_REASON } else { text };
        Ok(permission_answer("deny", reason, None))
    };
    match answer.decision {
        ServiceDecision::Deny => match &answer.result {
            Some(result) => deny(&result.content),
            None => deny(&answer.message),
        },
        ServiceDecision::Pending => {
            let url = answer.request.as_ref().map_or("", |request| &request.url);
            // If the call is queued or was started, an equal call may be a new call that runs the
            // tool once more. So this text does not advise to repeat the call. The service's
            // message says what to do.
            let again = if matches!(answer.state.as_deref(), Some("started" | "approved")) {
                ""
            } else {
                " Make the same call again, with the same input, to get the answer."
            };
            deny(format!("{}{again} {url}", answer.message).trim_end())
        }
        ServiceDecision::Allow if answer.permit.is_none() => match &answer.result {
            Some(result) if answer.is_responded() => deny(&result.content),
            Some(result) => deny(&format!(
                "Holdpoint ran this call itself: {}",
                result.content
            )),
            None => deny(&format!(
                "There is no permit for this call. {}",
                answer.message_with_end()
            )),
        },
        ServiceDecision::Allow => answer_for_allow(options, answer, arguments),
    }
}

fn answer_for_allow(
    options: HookOptions,
    answer: &ServiceAnswer,
    arguments: &RawValue,
) -> Result<HookAnswer, String> {
    let approved: &RawValue = serde_json::from_str(&answer.arguments_text)
        .map_err(|_| "the approved arguments are not JSON".to_owned())?;
    let same = approved.get() == arguments.get();
    let by_person = answer.edited || !answer.by.is_empty();
    match options.host {
        // The call is denied, because a Codex hook cannot change the arguments. Codex would run the
        // call with the original arguments, which were not approved.
        Host::Codex if answer.edited => Ok(permission_answer(
            "deny",
            &format!(
                "A person changed the arguments. Make the call with these instead: {}",
                answer.arguments_text
            ),
            None,
        )),
        Host::ClaudeCode if by_person || options.is_final || !same => Ok(permission_answer(
            "allow",
            &answer.message,
            (!same).then_some(approved),
        )),
        Host::Codex | Host::ClaudeCode => Ok(HookAnswer::silent()),
    }
}

async fn report_outcome(
    client: &GateClient,
    options: HookOptions,
    input: &HookInput<'_>,
    outcome: &'static str,
) -> Result<HookAnswer, String> {
    let (key, content) = (input.key()?, input.content());
    let report = AskerReport {
        key: &key,
        outcome,
        content: options.includes_content.then_some(content.as_str()),
    };
    let reported = client.report(&report).await;
    reported.map_err(|error: AskError| error.to_string())?;
    Ok(HookAnswer::silent())
}
