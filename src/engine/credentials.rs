//! Credentials of a task: asked for when a call needs one that is missing, sealed with the answer that gives them, opened
//! right before calls are sent.
//! What must stay true: a value is in no fact, and in no memory longer than the call it is for.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::drive::Stop;
use super::live::Live;
use super::{Engine, Refusal};
use crate::agent::Agent;
use crate::model::{Answer, AnswerCall};
use crate::secret::Secret;
use crate::task::credential::SealedCredential;
use crate::task::id::CallId;
use crate::task::item::Fact;
use crate::task::request::{Asked, RequestKind};
use crate::task::standing::Standing;
use crate::task::verdict::{Judgement, Terms};
use crate::tool::credential::{Credentials, sealed};
use crate::tool::human::{Service, credential_form};

impl Engine {
    /// Those that a task has now, where it could have any.
    pub(super) async fn credentials(&self, live: &mut Live) -> Result<Credentials, Stop> {
        let Some(sealer) = self.sealer.as_ref().filter(|_| live.progress.filled_in) else {
            return Ok(Credentials::default());
        };
        if !live.credentials.is_empty() {
            self.save(live, self.take()).await?;
        }
        let path = [live.task_id()];
        loop {
            if let Ok(rows) = self.store.credentials(&path).await {
                return Ok(Credentials::open(sealer, &live.row.tenant, &path, &rows));
            }
            self.pause().await?;
        }
    }

    /// Asks for what these calls need and the task does not have: once for each credential, on behalf of the first call
    /// that needs it. Whether something was missing.
    pub(super) fn ask_for_missing(
        &self,
        live: &mut Live,
        agent: &Agent,
        calls: &[CallId],
        known: &Credentials,
    ) -> bool {
        let (mut asked, mut missing) = (BTreeSet::new(), false);
        for id in calls {
            let Some(standing) = live.progress.call(*id).cloned() else { continue };
            let Some(entry) = self.offered(agent, &standing.call.name) else { continue };
            let services = self.catalog.services(&agent.name);
            let service = |name: &String| services.iter().find(|service| service.name == *name);
            let has = |service: &Service| service.fields.iter().all(|field| known.has(&service.name, &field.name));
            let Some(name) = entry.spec.needs.iter().find(|name| !service(name).is_some_and(has)) else { continue };
            missing = true;
            match service(name) {
                Some(service) if !asked.contains(name) && live.progress.room() > 0 => {
                    asked.insert(name);
                    self.ask_for(live, agent, &standing, service);
                }
                Some(_) => {}
                None => {
                    let reason = format!("the configuration has no credential {name} for this agent");
                    let (effect, performer) = (standing.effect, standing.performer);
                    let judgement = Judgement::invalid(reason);
                    live.push(Fact::Judged { tool_call_id: *id, judgement, effect, performer });
                }
            }
        }
        missing
    }

    fn ask_for(&self, live: &mut Live, agent: &Agent, standing: &Standing, service: &Service) {
        let calls = vec![self.shown(live, agent, standing, true)];
        let asked = self.asked(RequestKind::Credentials, calls, Terms::default());
        let (details, form) = (Some(json!({"service": service.name})), Some(credential_form(service)));
        live.push(Fact::InterventionRequested(Asked { details, form, ..asked }.sealed()));
    }

    /// Seals what was filled in for a task. Returns what may be read of it: the names of the fields.
    ///
    /// # Errors
    /// `Internal` where it cannot be sealed: then nothing is stored.
    pub(super) fn seal(
        &self,
        live: &Live,
        agent: &Agent,
        asked: &Asked,
        response: &Secret<Value>,
    ) -> Result<(SealedCredential, Value), Refusal> {
        let unsealed = |why: &str| {
            tracing::error!(task = %live.task_id(), why, "a credential could not be sealed");
            Refusal::Internal
        };
        let name = asked.details.as_ref().and_then(|details| details.get("service")).and_then(Value::as_str);
        let services = self.catalog.services(&agent.name);
        let service = services.iter().find(|service| Some(service.name.as_str()) == name);
        let (Some(sealer), Some(service)) = (&self.sealer, service) else {
            return Err(unsealed("there is no such credential, or no key"));
        };
        let fields: BTreeMap<String, Secret<String>> = service
            .fields
            .iter()
            .filter_map(|field| {
                let value = response.reveal().get(&field.name)?.as_str()?;
                Some((field.name.clone(), Secret::new(value.to_owned())))
            })
            .collect();
        let shown = fields.keys().map(|field| (field.clone(), Value::Null)).collect();
        let place = (live.task_id(), asked.request_id);
        sealed(sealer, &live.row.tenant, place, (&service.name, &fields), service.expires_in)
            .map(|sealed| (sealed, Value::Object(shown)))
            .map_err(|error| unsealed(&error.to_string()))
    }

    /// A text of the model's endpoint without any value of a credential that the task has.
    pub(super) async fn cleaned_text(&self, live: &mut Live, text: String) -> Result<String, Stop> {
        Ok(self.credentials(live).await?.redactor().clean(&text).into_owned())
    }

    /// The model's answer without any value of a credential that the task has.
    pub(super) async fn cleaned(&self, live: &mut Live, answer: Answer) -> Result<Answer, Stop> {
        let known = self.credentials(live).await?;
        if known.is_empty() {
            return Ok(answer);
        }
        let redactor = known.redactor();
        let clean = |text: String| redactor.clean(&text).into_owned();
        let calls = answer.calls.into_iter().map(|call| AnswerCall {
            provider_id: clean(call.provider_id),
            name: clean(call.name),
            arguments_text: clean(call.arguments_text),
        });
        Ok(Answer { text: answer.text.map(&clean), calls: calls.collect(), raw: cleaned(answer.raw, &clean), ..answer })
    }
}

/// JSON whose texts, names and numbers are cleaned one by one: so it stays JSON, whatever is found in it.
fn cleaned(value: Value, clean: &impl Fn(String) -> String) -> Value {
    match value {
        Value::Null | Value::Bool(_) => value,
        Value::Number(number) => {
            let text = number.to_string();
            let found = clean(text.clone());
            if found == text { Value::Number(number) } else { Value::String(found) }
        }
        Value::String(text) => Value::String(clean(text)),
        Value::Array(values) => values.into_iter().map(|value| cleaned(value, clean)).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(name, value)| (clean(name), cleaned(value, clean))).collect()
        }
    }
}
