//! Redacts a tool's answer with secrets that the tool did not know when it sent the call.

use super::ToolAnswer;
use crate::secret::Redactor;
use crate::task::elicitation::{Elicitation, ServerQuestion, ServerState, declined_note};
use crate::task::text::map_texts;

impl ToolAnswer {
    /// Redacts the texts of the answer. If the answer asks questions, and a secret is in a key, in
    /// a page's address or in the state, returns a failed call instead. These texts must not be
    /// redacted: the server gets keys and state back unchanged, and the person visits the page.
    pub(crate) fn redacted(mut self, redactor: &Redactor) -> Self {
        match &mut self {
            Self::Succeeded { content: text, .. }
            | Self::Failed { content: text, .. }
            | Self::NotSent { content: text }
            | Self::Suspect { content: text }
            | Self::Unknown { problem: text } => *text = redactor.redact(text).into_owned(),
            Self::Elicitation(asked) => {
                if let Err(why) = redact_questions(asked, redactor) {
                    return Self::failed(why);
                }
            }
        }
        self
    }
}

/// Redacts the texts of a server's questions.
///
/// # Errors
/// Fails if a secret is in a text that must stay as the server wrote it. The error is the text for
/// the model.
fn redact_questions(asked: &mut Elicitation, redactor: &Redactor) -> Result<(), String> {
    let clean = |text: &str| redactor.redact(text).into_owned();
    for field in &mut asked.declined {
        *field = clean(field);
    }
    if holds_secret_unchangeably(asked, redactor) {
        let note = declined_note(&asked.declined);
        return Err(format!(
            "The tool asks the user a question that holds a secret.{note}"
        ));
    }
    for question in &mut asked.questions {
        question.message = clean(&question.message);
        question.form = map_texts(question.form.take(), &clean);
    }
    Ok(())
}

/// Whether a secret is in a text that must stay as the server wrote it.
fn holds_secret_unchangeably(asked: &Elicitation, redactor: &Redactor) -> bool {
    let is_found = |text: &str| redactor.finds_secret_in(text);
    let is_in_question = |question: &ServerQuestion| {
        is_found(&question.key) || question.url.as_deref().is_some_and(is_found)
    };
    let is_in_state = match &asked.state {
        Some(ServerState::Plain(state)) => is_found(state),
        Some(ServerState::Sealed { .. }) | None => false,
    };
    is_in_state
        || asked.questions.iter().any(is_in_question)
        || asked.responses.keys().any(|key| is_found(key))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::secret::Secret;

    const SECRET: &str = "tok-0123456789";

    fn redactor() -> Redactor {
        let secret = Secret::new(SECRET.to_owned());
        Redactor::new([("jira.token", &secret)])
    }

    /// Returns an answer with a question of these texts.
    fn asks(key: &str, message: &str, url: Option<&str>, state: &str) -> ToolAnswer {
        ToolAnswer::Elicitation(Box::new(Elicitation {
            questions: vec![ServerQuestion {
                key: key.to_owned(),
                message: message.to_owned(),
                form: json!({"type": "object", "description": message}),
                url: url.map(str::to_owned),
            }],
            declined: vec![message.to_owned()],
            state: Some(ServerState::Plain(state.to_owned())),
            ..Elicitation::default()
        }))
    }

    #[test]
    fn secret_in_any_text_of_an_answer_is_redacted() {
        let answers: [fn(String) -> ToolAnswer; 6] = [
            |content| ToolAnswer::Succeeded {
                content,
                http_status: Some(200),
            },
            |content| ToolAnswer::Failed {
                content,
                http_status: Some(400),
            },
            |content| ToolAnswer::NotSent { content },
            |content| ToolAnswer::Suspect { content },
            |problem| ToolAnswer::Unknown { problem },
            |message| asks("name", &message, Some("https://acme.com/"), "state"),
        ];
        for answer in answers {
            let shown = answer("is [secret jira.token]".to_owned());
            assert_eq!(answer(format!("is {SECRET}")).redacted(&redactor()), shown);
        }
    }

    #[test]
    fn questions_whose_key_page_or_state_holds_a_secret_fail_the_call() {
        let page = format!("https://acme.com/{SECRET}");
        for asking in [
            asks(SECRET, "Which?", None, "state"),
            asks("name", "Which?", Some(&page), "state"),
            asks("name", "Which?", None, SECRET),
        ] {
            let text = "The tool asks the user a question that holds a secret.";
            let note = declined_note(&["Which?".to_owned()]);
            let failed = ToolAnswer::failed(format!("{text}{note}"));
            assert_eq!(asking.redacted(&redactor()), failed);
        }
    }
}
