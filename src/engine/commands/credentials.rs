//! Handles the credentials that a person provides in a decision: checks that the configuration
//! still asks for these credentials, and seals (encrypts) them for the task. Also keeps stored
//! credentials out of submitted form fields, edited arguments and decisions.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::Decisions;
use super::decide::Decider;
use crate::agent::Agent;
use crate::engine::driver::credentials::stored_credentials;
use crate::engine::session::TaskSession;
use crate::engine::{Engine, Refusal};
use crate::secret::{Redactor, Secret};
use crate::task::credential::SealedCredential;
use crate::task::decision::Decision;
use crate::task::id::TaskId;
use crate::task::request::RequestSpec;
use crate::task::request_kind::{RequestKind, ResponseKind};
use crate::task::text::{map_texts, pointer};
use crate::tool::credential::{Credentials, seal_credential};
use crate::tool::human::{Service, credential_form};

/// A credential that a person provided in an answer.
#[derive(Debug)]
pub(super) struct ProvidedCredential {
    pub sealed: SealedCredential,
    /// Each field's name, with the value `null`. The journaled decision shows this object instead
    /// of the values.
    pub names: Value,
    /// Finds the values of this credential in other texts of the answer, such as the reason.
    pub redactor: Redactor,
}

impl Decisions<'_> {
    /// Returns the fields of a submitted form, without the fields that hold a secret of the task or
    /// of the configuration.
    ///
    /// # Errors
    /// `NotFound` if the task is gone; `Unavailable` when the database does not answer.
    pub async fn without_secrets(
        self,
        task: TaskId,
        mut fields: BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, Refusal> {
        let session = self.engine.load(task).await?.ok_or(Refusal::NotFound)?;
        let redactor = redactor_for(self.engine, &session).await?;
        fields.retain(|_, text| !redactor.finds_secret_in(text));
        Ok(fields)
    }
}

impl<'e> Decider<'e> {
    /// Refuses edited arguments that hold a secret. `edits` pairs the id of each edited call with
    /// the arguments that a person wrote for it.
    ///
    /// # Errors
    /// `Invalid` for the first call with a secret; `Unavailable` when the database does not answer.
    pub(super) async fn refuse_secrets(
        self,
        session: &TaskSession,
        edits: Vec<(String, &str)>,
    ) -> Result<(), Refusal> {
        if edits.is_empty() {
            return Ok(());
        }
        let redactor = redactor_for(self.engine, session).await?;
        match edits
            .into_iter()
            .find(|(_, text)| redactor.finds_secret_in(text))
        {
            Some((call, _)) => {
                let detail =
                    "arguments without a value that is kept secret: no call is run with one";
                let place = format!("{}/arguments", pointer("/decisions", &call));
                Err(Refusal::invalid(place, detail))
            }
            None => Ok(()),
        }
    }

    /// Redacts secrets in a person's reasons, results and filled-in form: the secrets of the task,
    /// the secrets of the configuration, and the credential that this answer provides. `provided`
    /// finds the values of this credential.
    ///
    /// # Errors
    /// `Invalid` if a filled-in form for a tool's server holds a secret: without the secret, the
    /// server would be sent an answer that the person did not give. `Unavailable` when the database
    /// does not answer.
    pub(super) async fn redact_decision(
        self,
        session: &TaskSession,
        kind: RequestKind,
        provided: &Redactor,
        decision: &mut Decision,
    ) -> Result<(), Refusal> {
        let answers = decision.decisions.values_mut();
        let (reasons, results): (Vec<_>, Vec<_>) = answers
            .map(|answer| (&mut answer.reason, &mut answer.result_text))
            .chain([(&mut decision.reason, &mut decision.result_text)])
            .unzip();
        let mut texts = reasons.iter().chain(&results);
        if texts.all(|text| text.is_none()) && decision.response.is_none() {
            return Ok(());
        }
        let stored = redactor_for(self.engine, session).await?;
        let redactor = stored.merged_with(provided);
        for reason in reasons.into_iter().flatten() {
            redact_in_place(&redactor, reason);
        }
        for result in results.into_iter().flatten() {
            redact_json(&redactor, result);
        }
        let Some(form) = &mut decision.response else {
            return Ok(());
        };
        let redacted = map_texts(form.clone(), &|text| redactor.redact(text).into_owned());
        if redacted != *form && kind.properties().response == ResponseKind::ServerForm {
            let detail =
                "an answer without a value that is kept secret: the tool's server is sent none";
            return Err(Refusal::invalid("/response", detail));
        }
        *form = redacted;
        Ok(())
    }

    fn service(self, agent: &Agent, spec: &RequestSpec) -> Option<&'e Service> {
        let name = spec.details.as_ref()?.get("service")?.as_str()?;
        self.engine
            .catalog
            .services(&agent.name)
            .iter()
            .find(|service| service.name == name)
    }

    /// Whether the form of this credentials request equals the form that the configuration
    /// describes now. Compares the fields, the places that the credential is sent to, and the
    /// credential's lifetime, but no descriptions.
    pub(super) fn form_is_unchanged(self, agent: Option<&Agent>, spec: &RequestSpec) -> bool {
        let now = agent
            .and_then(|agent| self.service(agent, spec))
            .map(credential_form);
        now.is_some()
            && now.map(without_descriptions) == spec.form.clone().map(without_descriptions)
    }

    /// Seals the values that a person provided.
    ///
    /// # Errors
    /// `Internal` if the values cannot be sealed. The caller then stores nothing.
    pub(super) fn seal(
        self,
        session: &TaskSession,
        agent: &Agent,
        spec: &RequestSpec,
        response: &Secret<Value>,
    ) -> Result<ProvidedCredential, Refusal> {
        let seal_error = |why: &str| {
            let task = session.task_id();
            Refusal::internal(format_args!(
                "a credential of {task} could not be sealed: {why}"
            ))
        };
        let (Some(sealer), Some(service)) = (&self.engine.sealer, self.service(agent, spec)) else {
            return Err(seal_error("there is no such credential, or no key"));
        };
        let fields: BTreeMap<String, Secret<String>> = service
            .fields
            .iter()
            .filter_map(|field| {
                let value = response.reveal().get(&field.name)?.as_str()?;
                Some((field.name.clone(), Secret::new(value.to_owned())))
            })
            .collect();
        let shown = fields
            .keys()
            .map(|field| (field.clone(), Value::Null))
            .collect();
        let place = (session.task_id(), spec.request_id);
        let credential = seal_credential(
            sealer,
            &session.own.row.tenant,
            place,
            (&service.name, &fields),
            service.expires_in,
        )
        .map_err(|error| seal_error(&error.to_string()))?;
        let mut provided = Credentials::default();
        provided.insert(&service.name, fields);
        let provided = provided.with_plain_fields(self.engine.catalog.plain_fields());
        Ok(ProvidedCredential {
            sealed: credential,
            names: Value::Object(shown),
            redactor: provided.redactor(),
        })
    }
}

async fn redactor_for(engine: &Engine, session: &TaskSession) -> Result<Redactor, Refusal> {
    let credentials = stored_credentials(engine, session).await?.redactor();
    Ok(engine.catalog.redactor().merged_with(&credentials))
}

fn redact_in_place(redactor: &Redactor, text: &mut String) {
    if let Cow::Owned(redacted) = redactor.redact(text) {
        *text = redacted;
    }
}

/// Redacts JSON text. The placeholder of a secret that stood in a number is not valid JSON. The
/// whole redacted text then becomes a JSON string, so that readers do not get null.
fn redact_json(redactor: &Redactor, text: &mut String) {
    if let Cow::Owned(redacted) = redactor.redact(text) {
        *text = if serde_json::from_str::<IgnoredAny>(&redacted).is_ok() {
            redacted
        } else {
            Value::String(redacted).to_string()
        };
    }
}

fn without_descriptions(mut form: Value) -> Value {
    if let Some(members) = form.as_object_mut() {
        members.remove("description");
    }
    let fields = form
        .get_mut("properties")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flat_map(Map::values_mut);
    for field in fields.filter_map(Value::as_object_mut) {
        field.remove("description");
    }
    form
}
