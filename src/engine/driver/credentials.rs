//! Credentials of a task: asked for when a call needs one that is missing, sealed with the answer that gives them, opened
//! right before calls are sent.
//! What must stay true: a value is in no fact, and in no memory longer than the call it is for.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::answer::invalid;
use super::drive::Stop;
use super::session::TaskSession;
use super::{Engine, Refusal};
use crate::agent::Agent;
use crate::model::{Answer, AnswerCall};
use crate::secret::{Redactor, Secret};
use crate::store::ReadError;
use crate::task::credential::SealedCredential;
use crate::task::id::CallId;
use crate::task::item::Fact;
use crate::task::request::{RequestSpec, RequestKind};
use crate::task::call_state::CallState;
use crate::task::text::{each_said, pointer};
use crate::task::verdict::{Judgement, Terms};
use crate::tool::credential::{Credentials, sealed};
use crate::tool::human::{Service, credential_form};

impl Engine {
    /// Those that a task has now, its own or from above, where it could have any.
    pub(super) async fn credentials(&self, session: &mut TaskSession) -> Result<Credentials, Stop> {
        if !session.credentials.is_empty() {
            self.save(session, self.take()).await?;
        }
        loop {
            match self.known(session).await {
                Ok(known) => return Ok(known),
                Err(_) => self.pause().await?,
            }
        }
    }

    /// The same, of those that are stored.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    async fn known(&self, session: &TaskSession) -> Result<Credentials, Refusal> {
        let path = session.path();
        let above = path.iter().filter_map(|task| session.tree.task(*task));
        let filled_in = session.own.progress.filled_in || above.into_iter().any(|progress| progress.filled_in);
        let Some(sealer) = self.sealer.as_ref().filter(|_| filled_in) else {
            return Ok(Credentials::default());
        };
        match self.store.credentials(&path).await {
            Ok(rows) => {
                let credentials = Credentials::open(sealer, &session.own.row.tenant, &path, &rows);
                Ok(credentials.searched_but_for(self.catalog.plain_fields()))
            }
            Err(ReadError::Unavailable) => Err(Refusal::Unavailable),
            Err(ReadError::Corrupt(what)) => {
                tracing::warn!(task = %session.task_id(), %what, "credentials cannot be read; they are asked for again");
                Ok(Credentials::default())
            }
        }
    }

    /// What texts of this task are searched for: what the configuration keeps secret, and the credentials that it has.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    pub(super) async fn searched_now(&self, session: &TaskSession) -> Result<Redactor, Refusal> {
        Ok(self.catalog.redactor().and(&self.known(session).await?.redactor()))
    }

    /// Refuses arguments that a person wrote and that hold a secret, each beside the id of its call.
    ///
    /// # Errors
    /// `Invalid` with the first call that has such; `Unavailable` when the database does not answer.
    pub(super) async fn refuse_secrets(&self, session: &TaskSession, edits: Vec<(String, &str)>) -> Result<(), Refusal> {
        if edits.is_empty() {
            return Ok(());
        }
        let redactor = self.searched_now(session).await?;
        match edits.into_iter().find(|(_, text)| redactor.finds(text)) {
            Some((call, _)) => {
                let detail = "arguments without a value that is kept secret: no call is run with one";
                Err(invalid(&format!("{}/arguments", pointer("/decisions", &call)), detail.to_owned()))
            }
            None => Ok(()),
        }
    }

    /// [`Engine::searched_now`] for a driver, which waits for the database.
    pub(super) async fn searched(&self, session: &mut TaskSession) -> Result<Redactor, Stop> {
        Ok(self.catalog.redactor().and(&self.credentials(session).await?.redactor()))
    }

    /// Asks for what these calls need and the task does not have: once for each credential, on behalf of the first call
    /// that needs it. Whether something was missing.
    pub(super) fn ask_for_missing(
        &self,
        session: &mut TaskSession,
        agent: &Agent,
        calls: &[CallId],
        known: &Credentials,
    ) -> bool {
        let (mut asked, mut missing) = (BTreeSet::new(), false);
        for id in calls {
            let Some(state) = session.own.progress.call(*id).cloned() else { continue };
            let Some(entry) = self.offered(agent, &state.call.name) else { continue };
            let services = self.catalog.services(&agent.name);
            let service = |name: &String| services.iter().find(|service| service.name == *name);
            let has = |service: &Service| service.fields.iter().all(|field| known.has(&service.name, &field.name));
            let Some(name) = entry.spec.needs.iter().find(|name| !service(name).is_some_and(has)) else { continue };
            missing = true;
            match service(name) {
                Some(service) if !asked.contains(name) && session.own.progress.room() > 0 => {
                    asked.insert(name);
                    self.ask_for(session, agent, &state, service);
                }
                Some(_) => {}
                None => {
                    let reason = format!("the configuration has no credential {name} for this agent");
                    let (effect, performer) = (state.effect, state.performer);
                    let judgement = Judgement::invalid(reason);
                    session.push(Fact::Judged { tool_call_id: *id, judgement, effect, performer });
                }
            }
        }
        missing
    }

    fn ask_for(&self, session: &mut TaskSession, agent: &Agent, state: &CallState, service: &Service) {
        let calls = vec![self.shown(session, agent, state, true)];
        let asked = self.asked(RequestKind::Credentials, calls, Terms::default());
        let (details, form) = (Some(json!({"service": service.name})), Some(credential_form(service)));
        session.push(Fact::InterventionRequested(RequestSpec { details, form, ..asked }.sealed()));
    }

    /// What a question asks for, as the configuration has it now.
    fn service(&self, agent: &Agent, asked: &RequestSpec) -> Option<&Service> {
        let name = asked.details.as_ref()?.get("service")?.as_str()?;
        self.catalog.services(&agent.name).iter().find(|service| service.name == name)
    }

    /// Whether the configuration still asks for what this question asked, for the same receivers and the same time; in
    /// whichever words.
    pub(super) fn asks_as_before(&self, agent: Option<&Agent>, asked: &RequestSpec) -> bool {
        let now = agent.and_then(|agent| self.service(agent, asked)).map(credential_form);
        now.is_some() && now.map(without_words) == asked.form.clone().map(without_words)
    }

    /// Seals what was filled in for a task. Returns what may be read of it: the names of the fields.
    ///
    /// # Errors
    /// `Internal` where it cannot be sealed: then nothing is stored.
    pub(super) fn seal(
        &self,
        session: &TaskSession,
        agent: &Agent,
        asked: &RequestSpec,
        response: &Secret<Value>,
    ) -> Result<(SealedCredential, Value), Refusal> {
        let unsealed = |why: &str| {
            tracing::error!(task = %session.task_id(), why, "a credential could not be sealed");
            Refusal::Internal
        };
        let (Some(sealer), Some(service)) = (&self.sealer, self.service(agent, asked)) else {
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
        let place = (session.task_id(), asked.request_id);
        sealed(sealer, &session.own.row.tenant, place, (&service.name, &fields), service.expires_in)
            .map(|sealed| (sealed, Value::Object(shown)))
            .map_err(|error| unsealed(&error.to_string()))
    }

    /// A text from the model's side without any secret.
    pub(super) async fn without_secrets(&self, session: &mut TaskSession, text: &str) -> Result<String, Stop> {
        Ok(self.searched(session).await?.clean(text).into_owned())
    }

    /// The model's answer without any secret; a call that held one says so.
    pub(super) async fn cleaned(&self, session: &mut TaskSession, answer: Answer) -> Result<Answer, Stop> {
        let redactor = self.searched(session).await?;
        let clean = |text: &str| redactor.clean(text).into_owned();
        let calls = answer.calls.iter().map(|call| AnswerCall {
            provider_id: clean(&call.provider_id),
            name: clean(&call.name),
            holds_secret: call.holds_secret || redactor.finds(&call.arguments_text),
            arguments_text: clean(&call.arguments_text),
        });
        Ok(Answer {
            text: answer.text.as_deref().map(clean),
            calls: calls.collect(),
            raw: each_said(answer.raw, &clean),
            ..answer
        })
    }
}

/// A form without what is only said of it.
fn without_words(mut form: Value) -> Value {
    if let Some(members) = form.as_object_mut() {
        members.remove("description");
    }
    let fields = form.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut);
    for field in fields.filter_map(Value::as_object_mut) {
        field.remove("description");
    }
    form
}
