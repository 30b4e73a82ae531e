//! Decrypts a task's credentials right before calls are sent, requests missing credentials, and
//! redacts credential values in everything that is stored. Invariant: a value that was decrypted
//! for a tool call or a model's answer is dropped once this call or answer is recorded.

use std::borrow::Cow;
use std::iter;

use serde_json::json;

use super::{Driver, Stop};
use crate::engine::Engine;
use crate::engine::session::TaskSession;
use crate::model::{Answer, AnswerCall};
use crate::secret::Redactor;
use crate::store::ReadError;
use crate::task::call_state::CallState;
use crate::task::id::{CallId, TaskId};
use crate::task::item::Fact;
use crate::task::request::{RequestKind, RequestSpec};
use crate::task::text::map_texts;
use crate::task::tool_spec::ToolSpec;
use crate::task::verdict::{Judgement, Terms};
use crate::tool::ToolAnswer;
use crate::tool::credential::Credentials;
use crate::tool::human::{Service, credential_form};

impl<'e> Driver<'e> {
    /// Returns the `stored_credentials` of the task. First commits pending credentials, because
    /// `stored_credentials` reads the database. Retries while the database does not answer, unless
    /// a client waits (see `Engine::back_off_after_read`).
    pub(crate) async fn credentials(&mut self) -> Result<Credentials, Stop> {
        if !self.session.credentials.is_empty() {
            self.save(self.engine.take_lease()).await?;
        }
        loop {
            match stored_credentials(self.engine, self.session).await {
                Ok(known) => return Ok(known),
                Err(_) => self.engine.back_off_after_read(self.session).await?,
            }
        }
    }

    pub(crate) async fn redactor(&mut self) -> Result<Redactor, Stop> {
        let credentials = self.credentials().await?.redactor();
        Ok(self.engine.catalog.redactor().merged_with(&credentials))
    }

    /// Like [`Self::redactor`], for a text that the model has just sent.
    async fn redactor_after_call(&mut self) -> Result<Redactor, Stop> {
        match self.present_redactor().await? {
            Some(present) => Ok(self.engine.catalog.redactor().merged_with(&present)),
            None => self.redactor().await,
        }
    }

    /// Returns a redactor of the credentials that the tree has now. While a call was in flight, a
    /// person may have given a login to another task of the tree, and the model or the tool may
    /// have repeated this login. Returns `None` if the configuration has no credentials, or if the
    /// task has no relatives: a task that has a call in flight gets no login of its own.
    async fn present_redactor(&self) -> Result<Option<Redactor>, Stop> {
        let (engine, session) = (self.engine, &*self.session);
        if !session.has_tree() || !engine.catalog.has_services() {
            return Ok(None);
        }
        loop {
            match present_credentials(engine, session).await {
                Ok(known) => return Ok(Some(known.redactor())),
                Err(_) => engine.back_off().await?,
            }
        }
    }

    /// Redacts the model's answer. Marks each call whose arguments held a secret.
    pub(crate) async fn redact_answer(&mut self, answer: Answer) -> Result<Answer, Stop> {
        let redactor = self.redactor_after_call().await?;
        let clean = |text: &str| redactor.redact(text).into_owned();
        let calls = answer.calls.iter().map(|call| {
            let arguments_text = redactor.redact(&call.arguments_text);
            AnswerCall {
                provider_id: clean(&call.provider_id),
                name: clean(&call.name),
                // `redact` returns an owned text only if it has redacted a secret.
                holds_secret: call.holds_secret || matches!(arguments_text, Cow::Owned(_)),
                arguments_text: arguments_text.into_owned(),
            }
        });
        Ok(Answer {
            text: answer.text.as_deref().map(clean),
            calls: calls.collect(),
            raw: map_texts(answer.raw, &clean),
            ..answer
        })
    }

    /// Redacts the answers of tools with the credentials that the tree has now. The tools did not
    /// know a login that was given while the calls were in flight, so they did not redact it.
    ///
    /// # Errors
    /// `Lost` when the service goes down before the database answers.
    pub(super) async fn redact_tool_answers(
        &self,
        answers: Vec<ToolAnswer>,
    ) -> Result<Vec<ToolAnswer>, Stop> {
        let Some(redactor) = self.present_redactor().await? else {
            return Ok(answers);
        };
        let answers = answers.into_iter();
        Ok(answers.map(|answer| answer.redacted(&redactor)).collect())
    }

    /// Redacts the detail of a model's error. A detail that ends with `…` was cut, so the beginning
    /// of a secret before the `…` is cut off.
    pub(crate) async fn redact_error(&mut self, detail: &str) -> Result<String, Stop> {
        let redactor = self.redactor_after_call().await?;
        Ok(match detail.strip_suffix('…') {
            Some(kept) => format!("{}…", redactor.redact_prefix(kept).trim_end()),
            None => redactor.redact(detail).into_owned(),
        })
    }

    /// Finds the first missing credential of each of these calls. Opens one request for each
    /// missing credential, about the first call that lacks it. Opens no request beyond the limit on
    /// the tree's open requests. A call becomes invalid if the configuration does not define the
    /// credential for this agent. In that case, opens no request yet, because the journal has the
    /// results of a commit before its requests. Returns `true` if a credential is missing.
    pub(crate) fn request_missing_credentials(
        &mut self,
        calls: &[CallId],
        known: &Credentials,
    ) -> bool {
        let remaining = self.session.own.progress.remaining_requests();
        let mut requested = Vec::<(CallState, &Service)>::new();
        let (mut is_missing, mut is_judged) = (false, false);
        for state in self.states_of(calls) {
            let Some(entry) = self.offered(&state.call.name) else {
                continue;
            };
            let Some(name) = self.missing_credential(&entry.spec, known).cloned() else {
                continue;
            };
            is_missing = true;
            let Some(service) = self.received_service(&name) else {
                let reason = format!("the configuration has no credential {name} for this agent");
                let id = state.call.tool_call_id;
                self.session.push_judgement(id, Judgement::invalid(reason));
                is_judged = true;
                continue;
            };
            let is_requested = requested.iter().any(|(_, other)| other.name == name);
            if !is_requested && requested.len() < remaining {
                requested.push((state, service));
            }
        }
        if is_judged {
            return true;
        }
        for (state, service) in requested {
            self.request_credential(&state, service);
        }
        is_missing
    }

    /// Returns the name of the first credential that the tool needs and does not get: `known` lacks
    /// a field of it, or `received_service` does not find it.
    pub(super) fn missing_credential<'s>(
        &self,
        spec: &'s ToolSpec,
        known: &Credentials,
    ) -> Option<&'s String> {
        let has = |service: &Service| {
            service
                .fields
                .iter()
                .all(|field| known.has(&service.name, &field.name))
        };
        spec.needs
            .iter()
            .find(|name| !self.received_service(name).is_some_and(has))
    }

    /// Returns the service called `name`; `None` if no tool of the agent's current version receives
    /// the service's credential. In a task that is pinned to an earlier version of the agent, a
    /// tool may still need this credential. The result is `None` nevertheless, because a form that
    /// requests the credential must name the tools that receive it, and no such tool is known.
    fn received_service(&self, name: &str) -> Option<&'e Service> {
        let services = self.engine.catalog.services(&self.agent.name);
        let mut received = services
            .iter()
            .filter(|service| !service.receivers.is_empty());
        received.find(|service| service.name == name)
    }

    fn request_credential(&mut self, state: &CallState, service: &Service) {
        let calls = vec![self.requested_call(state, true)];
        let spec = self.new_request(RequestKind::Credentials, calls, Terms::default());
        let (details, form) = (
            Some(json!({"service": service.name})),
            Some(credential_form(service)),
        );
        self.session.push(Fact::InterventionRequested(
            RequestSpec {
                details,
                form,
                ..spec
            }
            .sealed(),
        ));
    }
}

/// Returns the decrypted credentials that the task's calls use: those of the task and of its
/// ancestors. The result also holds the credentials of the other tasks of the tree, which serve
/// only to redact their values. Returns no credentials if the service has no sealing key or the
/// stored rows are corrupt.
///
/// # Errors
/// `Unavailable` when the database does not answer.
pub(in crate::engine) async fn stored_credentials(
    engine: &Engine,
    session: &TaskSession,
) -> Result<Credentials, ReadError> {
    let own = session.task_id();
    let others = session.tree.rows().map(|row| row.task_id);
    let tasks: Vec<_> = iter::once(own)
        .chain(others.filter(|task| *task != own))
        .collect();
    // `has_credential` covers only the session's own task. Another task of the tree may have got a
    // credential, even after the tree was read. So if the tree has other tasks, the database is
    // read whenever the configuration has credentials.
    let may_have_credential =
        session.own.progress.has_credential || (tasks.len() > 1 && engine.catalog.has_services());
    if !may_have_credential {
        return Ok(Credentials::default());
    }
    credentials_of(engine, session, &tasks).await
}

/// Like [`stored_credentials`], for a task with relatives. Includes the credentials of all tasks
/// that the tree has now: a task may have been started since the session read the tree.
async fn present_credentials(
    engine: &Engine,
    session: &TaskSession,
) -> Result<Credentials, ReadError> {
    let root = session.own.row.root_task_id;
    let tree = engine.store.tree_without_items(root).await?;
    let tasks = tree.map_or_else(
        || vec![session.task_id()],
        |tree| tree.rows.iter().map(|row| row.task_id).collect(),
    );
    credentials_of(engine, session, &tasks).await
}

/// Reads and decrypts the credentials of `tasks` for the calls of the session's task, as
/// [`stored_credentials`] says.
async fn credentials_of(
    engine: &Engine,
    session: &TaskSession,
    tasks: &[TaskId],
) -> Result<Credentials, ReadError> {
    let Some(sealer) = &engine.sealer else {
        return Ok(Credentials::default());
    };
    let path = session.path();
    match engine.store.credentials(tasks).await {
        Ok(rows) => {
            let credentials = Credentials::open(sealer, &session.own.row.tenant, &path, &rows);
            Ok(credentials.with_plain_fields(engine.catalog.plain_fields()))
        }
        Err(error @ ReadError::Unavailable) => Err(error),
        Err(ReadError::Corrupt(what)) => {
            tracing::warn!(task = %session.task_id(), %what, "credentials cannot be read; they are requested again");
            Ok(Credentials::default())
        }
    }
}
