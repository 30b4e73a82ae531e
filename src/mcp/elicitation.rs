//! The questions that a server asks in the middle of a call (`elicitation/create`, MCP revision
//! 2026-07-28). Invariants: a form that asks for a secret is declined and never shown to a person.
//! The page to which a question sends the user is never fetched. Each text of the server is
//! searched for secrets before it is stored.

use serde_json::{Map, Value, json};
use url::Url;

use crate::net::is_loopback;
use crate::secret::Redactor;
use crate::task::elicitation::{Elicitation, ServerQuestion, ServerState, all_declined};
use crate::task::text::{cut, map_texts, without_nul};
use crate::tool::human::server_form::{FormError, page_visit_form, read_server_form};

/// The maximum number of questions in one request for input.
const MAX_QUESTIONS: usize = 8;
/// The maximum number of bytes of a question's text that are shown to a person.
const MAX_MESSAGE_BYTES: usize = 4 * 1024;
/// The maximum length of a question's key, in bytes. The names of secret form fields and the flaws
/// of forms are cut to this length.
const MAX_KEY_BYTES: usize = 256;
const MAX_URL_BYTES: usize = 2 * 1024;
/// The maximum size, in bytes, of the state that the server asks to get back with the answers.
const MAX_STATE_BYTES: usize = 64 * 1024;

/// A server's request for input, not yet checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct InputRequest {
    /// The questions, each with the key under which the client sends the answer. Empty if the
    /// server has no question, and only asks the client to send `request_state` back.
    pub(super) requests: Vec<(String, InputQuestion)>,
    /// The state that the server asks to get back with the answers.
    pub(super) request_state: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum InputQuestion {
    /// The user fills in a form. `schema` describes the form's fields as JSON Schema.
    Form {
        message: String,
        schema: Value,
    },
    Url {
        message: String,
        url: String,
    },
}

/// Checks the questions of a server, declines forms that ask for a secret, and redacts the texts.
/// Returns the questions that a person must answer, and the answers that decline the other
/// questions. Fails with a text for the model if a question or the server's state cannot be stored
/// or shown.
pub(super) fn check(input: InputRequest, redactor: &Redactor) -> Result<Elicitation, String> {
    let refused = |why: &str| Err(format!("The tool asks the user a question {why}."));
    if input.requests.len() > MAX_QUESTIONS {
        return refused("too many at once");
    }
    let state = input.request_state.as_deref().unwrap_or_default();
    if state.len() > MAX_STATE_BYTES || state.contains('\0') {
        return Err("The tool keeps more state than is stored here.".to_owned());
    }
    if redactor.finds_secret_in(state) {
        return Err("The tool keeps a state that holds a secret.".to_owned());
    }
    let clean = |text: &str| without_nul(redactor.redact(text).into_owned());
    // Redaction comes before the cut, so that no part of a secret remains at the cut.
    let clean_cut = |text: &str, bytes| cut(&clean(text), bytes).to_owned();
    let (mut questions, mut responses, mut declined) = (Vec::new(), Map::new(), Vec::new());
    for (key, question) in input.requests {
        if key.len() > MAX_KEY_BYTES
            || key.chars().any(char::is_control)
            || redactor.finds_secret_in(&key)
        {
            return refused("under a key that is not a name");
        }
        let (message, form, url) = match question {
            InputQuestion::Form { message, schema } => match read_server_form(&schema) {
                Ok(form) => (message, map_texts(form, &clean), None),
                Err(FormError::AsksForSecret(field)) => {
                    responses.insert(key, json!({"action": "decline"}));
                    declined.push(clean_cut(&field, MAX_KEY_BYTES));
                    continue;
                }
                Err(FormError::NotRenderable(why)) => {
                    let why = clean_cut(&why, MAX_KEY_BYTES);
                    return refused(&format!("with a form that cannot be shown: {why}"));
                }
            },
            InputQuestion::Url { message, url } => {
                match page_url(&url).filter(|url| !redactor.finds_secret_in(url)) {
                    Some(url) => (message, page_visit_form(), Some(url)),
                    None => return refused("with a page that is not a plain https address"),
                }
            }
        };
        questions.push(ServerQuestion {
            key,
            message: clean_cut(&message, MAX_MESSAGE_BYTES),
            form,
            url,
        });
    }
    Ok(Elicitation {
        questions,
        responses,
        declined: all_declined(Vec::new(), declined),
        state: input.request_state.map(ServerState::Plain),
        ..Elicitation::default()
    })
}

/// Returns the complete address of a page, with its host in ASCII. The scheme must be `https`; for
/// a page on this machine, `http` is accepted, too. Returns `None` for any other address, for an
/// address that is too long, and for an address with a user or password.
fn page_url(written: &str) -> Option<String> {
    let url = Url::parse(written).ok()?;
    let plain = url.username().is_empty() && url.password().is_none();
    let scheme = url.scheme() == "https" || (url.scheme() == "http" && is_loopback(&url));
    (plain && scheme && url.as_str().len() <= MAX_URL_BYTES).then(|| url.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(schema: Value) -> InputQuestion {
        InputQuestion::Form {
            message: "Which?".to_owned(),
            schema,
        }
    }

    fn input_request(requests: Vec<(&str, InputQuestion)>) -> InputRequest {
        let named = |(key, question): (&str, InputQuestion)| (key.to_owned(), question);
        InputRequest {
            requests: requests.into_iter().map(named).collect(),
            request_state: Some("s".to_owned()),
        }
    }

    fn field(name: &str) -> Value {
        json!({"type": "object", "properties": {name: {"type": "string"}}})
    }

    #[test]
    fn form_with_a_secret_is_declined_and_the_other_question_is_asked() {
        let requests = vec![("a", form(field("password"))), ("b", form(field("folder")))];
        let read = check(input_request(requests), &Redactor::default()).unwrap();
        assert_eq!(read.declined, ["password"]);
        assert_eq!(read.responses["a"], json!({"action": "decline"}));
        assert_eq!(read.questions.len(), 1);
        let only = check(
            input_request(vec![("a", form(field("pin")))]),
            &Redactor::default(),
        );
        assert!(only.unwrap().questions.is_empty());
    }

    #[test]
    fn page_is_taken_only_with_a_plain_encrypted_address_or_on_this_machine() {
        for (url, shown) in [
            ("https://acme.com/a?b=c", Some("https://acme.com/a?b=c")),
            (
                "https://bücher.example",
                Some("https://xn--bcher-kva.example/"),
            ),
            ("http://localhost:8/x", Some("http://localhost:8/x")),
            ("http://127.0.0.1/x", Some("http://127.0.0.1/x")),
            ("http://acme.com/", None),
            ("https://me:pw@acme.com/", None),
            ("javascript:alert(1)", None),
            ("data:text/html,x", None),
            ("file:///etc/passwd", None),
            ("/x", None),
        ] {
            assert_eq!(page_url(url).as_deref(), shown, "{url}");
        }
        assert_eq!(
            page_url(&format!("https://h/{}", "x".repeat(MAX_URL_BYTES))),
            None
        );
    }

    #[test]
    fn questions_that_cannot_be_stored_or_shown_fail_the_call() {
        let secret = crate::secret::Secret::new("canary-0123456789".to_owned());
        let redactor = Redactor::new([("KEY", &secret)]);
        let many = (0..=MAX_QUESTIONS)
            .map(|_| ("k", form(field("a"))))
            .collect();
        let mut held = input_request(vec![("k", form(field("a")))]);
        held.request_state = Some("x canary-0123456789".to_owned());
        let mut large = input_request(vec![("k", form(field("a")))]);
        large.request_state = Some("x".repeat(MAX_STATE_BYTES + 1));
        for refused in [
            input_request(many),
            held,
            large,
            input_request(vec![("a\n", form(field("a")))]),
            input_request(vec![("k", form(json!({"type": "array"})))]),
        ] {
            assert!(check(refused, &redactor).is_err());
        }
        let told = InputQuestion::Form {
            message: "canary-0123456789".to_owned(),
            schema: field("a"),
        };
        let read = check(input_request(vec![("k", told)]), &redactor).unwrap();
        assert_eq!(read.questions[0].message, "[secret KEY]");
    }

    #[test]
    fn form_that_cannot_be_shown_fails_the_call_with_its_flaw() {
        let nested = json!({"type": "object", "properties": {"o": {"type": "object"}}});
        for (schema, flaw) in [
            (
                nested,
                "the field `o` must be of one type: string, number, integer, boolean, array",
            ),
            (json!({"type": "array"}), "must say `type: object`"),
        ] {
            let requests = vec![("k", form(schema))];
            let refused = check(input_request(requests), &Redactor::default());
            let text = format!(
                "The tool asks the user a question with a form that cannot be shown: {flaw}."
            );
            assert_eq!(refused, Err(text));
        }
    }

    #[test]
    fn state_that_cannot_be_stored_fails_a_call_that_asks_nothing_with_its_own_reason() {
        let secret = crate::secret::Secret::new("canary-0123456789".to_owned());
        let redactor = Redactor::new([("KEY", &secret)]);
        for (state, why) in [
            (
                "x".repeat(MAX_STATE_BYTES + 1),
                "more state than is stored here",
            ),
            (secret.reveal().clone(), "a state that holds a secret"),
        ] {
            let mut input = input_request(Vec::new());
            input.request_state = Some(state);
            let text = format!("The tool keeps {why}.");
            assert_eq!(check(input, &redactor), Err(text));
        }
    }

    #[test]
    fn secret_across_the_cut_of_a_text_leaves_nothing_behind() {
        let secret = crate::secret::Secret::new("canary-0123456789".to_owned());
        let redactor = Redactor::new([("KEY", &secret)]);
        let checked = |question| check(input_request(vec![("k", question)]), &redactor);
        for before in 1..=20 {
            let text = |limit: usize| "x".repeat(limit - before) + secret.reveal();
            let asked = InputQuestion::Form {
                message: text(MAX_MESSAGE_BYTES),
                schema: field("a"),
            };
            let asked = checked(asked).unwrap();
            let message = &asked.questions[0].message;
            assert!(!message.contains("can") && message.len() <= MAX_MESSAGE_BYTES);
            let declined = checked(form(field(&(text(MAX_KEY_BYTES - 9) + "-password"))));
            let declined = declined.unwrap().declined;
            assert!(!declined[0].contains("can"), "{declined:?}");
        }
    }
}
