//! HTTP tools. Invariant: an attempt sends at most one request.
//!
//! - An attempt that provably sent nothing is `NotSent`.
//! - A complete answer with a status of 2xx is `Succeeded`. A complete answer with any other status
//!   is `Failed`, except for 502 and 504. An answer also counts as complete if it breaks off after
//!   `BodyLimits::enough_bytes`.
//! - If the answer is incomplete or missing, or if a gateway answers with 502 or 504, the outcome
//!   is `Unknown`, because the request may have had an effect.
//!
//! Known secrets are redacted from the text of an outcome. The text consists of Holdpoint's own
//! words and the server's answer. Holdpoint's own words contain no URL and no header's value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Request, StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::builtin::{self, BuiltinEndpoint};
use super::headers::{Headers, headers_digest};
use super::url_template::UrlTemplate;
use super::{Invocation, Tool, ToolAnswer, measure_attempt, output};
use crate::net::{
    BodyLimits, ConnectionUse, NOT_PERMITTED, Net, NetFailure, SendPermit, is_redirect,
};
use crate::secret::{Redactor, Secret};
use crate::task::tool_spec::ToolSpec;
use crate::task::units::duration_text;
use crate::world::Mistakes;

/// The maximum number of bytes that the text of a failure contains from the answer's body.
const MAX_FAILURE_BYTES: usize = 2 * 1024;
const MAX_TIMEOUT: Duration = Duration::from_mins(10);
/// The ASCII characters that are percent-encoded in Holdpoint's own headers. `utf8_percent_encode`
/// also encodes every character outside ASCII. So a header can carry any text, and different texts
/// have different encodings.
const HEADER_ESCAPES: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// A tool that is an HTTP request.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "HttpTool", extend("required" = ["url"]))]
pub struct Settings {
    /// The method. POST, PUT and PATCH send the arguments as the JSON body, GET and DELETE in the
    /// query.
    #[serde(with = "method")]
    #[schemars(with = "method::Name")]
    pub method: Method,
    /// The URL. `{NAME}` is replaced by the argument `NAME`, percent-encoded as one path segment.
    pub url: String,
    /// The headers of each request. `{{credential:NAME.FIELD}}` stands for a field of a credential
    /// of the task's user.
    pub headers: BTreeMap<String, Secret<String>>,
    /// How long one attempt may take; at most `10m`.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            method: Method::POST,
            url: String::new(),
            headers: BTreeMap::new(),
            timeout: Duration::from_secs(30),
        }
    }
}

mod method {
    use reqwest::Method;
    use schemars::JsonSchema;
    use serde::{Deserialize, Deserializer, Serializer};

    /// An HTTP method that a tool may use.
    #[derive(Deserialize, JsonSchema)]
    #[schemars(rename = "Method")]
    #[serde(rename_all = "UPPERCASE")]
    pub(super) enum Name {
        Get,
        Post,
        Put,
        Patch,
        Delete,
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Method, D::Error> {
        Ok(match Name::deserialize(from)? {
            Name::Get => Method::GET,
            Name::Post => Method::POST,
            Name::Put => Method::PUT,
            Name::Patch => Method::PATCH,
            Name::Delete => Method::DELETE,
        })
    }

    pub(super) fn serialize<S: Serializer>(method: &Method, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(method.as_str())
    }
}

#[derive(Clone, Debug)]
pub(super) enum Destination {
    Url(UrlTemplate),
    Builtin(BuiltinEndpoint),
}

#[derive(Clone, Debug)]
pub(super) struct CheckedSettings {
    pub(super) method: Method,
    pub(super) destination: Destination,
    headers: Headers,
    pub(super) timeout: Duration,
}

impl Settings {
    /// Returns the checked settings and the mistakes, each with the path of a key.
    /// Settings with mistakes must not be used to send a request. The settings are `None` if the
    /// `url` neither begins with `http://` or `https://` nor names a built-in endpoint.
    pub(super) fn checked(&self) -> (Option<CheckedSettings>, Mistakes) {
        let mut mistakes = Mistakes::default();
        if self.timeout.is_zero() || self.timeout > MAX_TIMEOUT {
            mistakes.add(&["timeout"], "must be more than 0 and at most 10m");
        }
        let mut of_url = Vec::new();
        let destination = if self.url.starts_with(builtin::PREFIX) {
            let endpoint = BuiltinEndpoint::from_url(&self.url);
            let endpoint = endpoint.map_err(|detail| of_url.push(detail)).ok();
            endpoint.map(Destination::Builtin)
        } else {
            UrlTemplate::parse(&self.url, &mut of_url).map(Destination::Url)
        };
        for detail in of_url {
            mistakes.add(&["url"], detail);
        }
        let headers = Headers::read(&self.headers, &mut mistakes);
        let (method, timeout) = (self.method.clone(), self.timeout);
        (
            destination.map(|destination| CheckedSettings {
                method,
                destination,
                headers,
                timeout,
            }),
            mistakes,
        )
    }
}

impl CheckedSettings {
    pub(super) fn credential_names(&self) -> BTreeSet<String> {
        let url = match &self.destination {
            Destination::Url(template) => Some(template.credential_names()),
            Destination::Builtin(_) => None,
        };
        let headers = self.headers.credential_names();
        headers
            .chain(url.into_iter().flatten())
            .map(str::to_owned)
            .collect()
    }

    pub(super) fn has_body(&self) -> bool {
        self.method != Method::GET && self.method != Method::DELETE
    }

    /// Returns the target of the tool's calls, which the digest of each call covers. The target is
    /// the method and the origin (scheme, host and port) of the `url`. For a built-in endpoint,
    /// `builtin:refunds` stands in place of the origin. The path is no part of the target, because
    /// the digest of the tool's definition covers the whole `url`.
    pub(super) fn target(&self) -> String {
        match &self.destination {
            Destination::Url(template) => format!("{} {}", self.method, template.origin),
            Destination::Builtin(_) => format!("{} builtin:refunds", self.method),
        }
    }
}

pub(super) struct HttpTool {
    pub(super) spec: ToolSpec,
    pub(super) settings: CheckedSettings,
    pub(super) net: Net,
    pub(super) redactor: Arc<Redactor>,
}

#[async_trait]
impl Tool for HttpTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn refusal_reason(&self, arguments: &Value) -> Option<String> {
        let Destination::Url(template) = &self.settings.destination else {
            return None;
        };
        template.refusal_reason(arguments, !self.settings.has_body())
    }

    fn address(&self, arguments: &Value) -> Option<String> {
        let address = match &self.settings.destination {
            Destination::Url(template) => template.display_address(arguments),
            Destination::Builtin(endpoint) => endpoint.url().to_owned(),
        };
        Some(format!("{} {address}", self.settings.method))
    }

    fn connects_first(&self) -> bool {
        matches!(self.settings.destination, Destination::Url(_))
    }

    async fn call(&self, call: &Invocation) -> ToolAnswer {
        measure_attempt(&self.spec.name, &call.permit, self.attempt(call)).await
    }
}

impl HttpTool {
    async fn attempt(&self, call: &Invocation) -> ToolAnswer {
        let redactor = call.redactor(&self.redactor);
        let headers = match self.settings.headers.fill(&call.credentials) {
            Ok(headers) => headers,
            Err(why) => return self.not_sent(&why),
        };
        let template = match &self.settings.destination {
            Destination::Url(template) => template,
            Destination::Builtin(_) if !call.permit.holds() => return self.not_sent(NOT_PERMITTED),
            Destination::Builtin(endpoint) => {
                let (status, body) = endpoint.answer(&call.call_id.to_string(), &call.arguments);
                return self.read(&redactor, status, body.as_bytes(), true);
            }
        };
        let connection = self.connection_use(call, &headers);
        let request = match self.request(template, call, headers) {
            Ok(request) => request,
            Err(why) => return self.not_sent(&why),
        };
        let limits = |status: StatusCode| {
            let enough = if status.is_success() {
                output::MAX_RESULT_BYTES
            } else {
                MAX_FAILURE_BYTES
            };
            BodyLimits {
                enough_bytes: enough,
                max_bytes: output::bytes_to_read(&redactor, enough),
            }
        };
        let within = self.settings.timeout;
        let (decided, permit) = (call.permit.clone(), call.permit.clone());
        let send_permit = SendPermit {
            decision: async move { decided.decided().await }.boxed(),
            may_send: Arc::new(move || permit.holds()),
        };
        match self
            .net
            .send_single(request, within, send_permit, connection, limits)
            .await
        {
            Ok(answer) => self.read(
                &redactor,
                answer.status.as_u16(),
                &answer.body,
                !answer.is_truncated,
            ),
            Err(failure) => self.failed(failure),
        }
    }

    /// Returns the kind of connection for an attempt. The server may close a kept connection just
    /// as an attempt sends its request. The outcome of this attempt is then unknown. Therefore only
    /// an attempt that may be repeated uses a kept connection: the first attempt at a repeatable
    /// call. Every other attempt opens its own connection. Only calls of one user with the same
    /// credentials in their headers share a kept connection.
    fn connection_use(&self, call: &Invocation, filled: &HeaderMap) -> ConnectionUse {
        if !call.may_be_lost || !self.spec.effect.is_repeatable() {
            return ConnectionUse::Own;
        }
        let mut hash = Sha256::new_with_prefix(headers_digest(filled));
        for text in [&call.tenant, &call.owner] {
            hash.update(text.len().to_be_bytes());
            hash.update(text);
        }
        ConnectionUse::Kept(hash.finalize().into())
    }

    fn request(
        &self,
        template: &UrlTemplate,
        call: &Invocation,
        filled: HeaderMap,
    ) -> Result<Request, String> {
        let has_body = self.settings.has_body();
        let url = template.fill(&call.arguments, &call.credentials, !has_body)?;
        let mut request = Request::new(self.settings.method.clone(), url);
        let headers = request.headers_mut();
        if has_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        headers.extend(filled);
        let (task, id) = (call.task_id.to_string(), call.call_id.to_string());
        let mut own_headers = vec![
            ("idempotency-key", id.as_str()),
            ("holdpoint-user", call.owner.as_str()),
            ("holdpoint-tenant", call.tenant.as_str()),
            ("holdpoint-task-id", task.as_str()),
            ("holdpoint-tool-call-id", id.as_str()),
        ];
        own_headers.extend(
            call.decided_by
                .as_deref()
                .map(|by| ("holdpoint-decided-by", by)),
        );
        for (name, value) in own_headers {
            let value = utf8_percent_encode(value, HEADER_ESCAPES).to_string();
            let value = HeaderValue::from_str(&value)
                .map_err(|_| "a header could not be written".to_owned())?;
            headers.insert(HeaderName::from_static(name), value);
        }
        if let Some(value) = HeaderValue::from_str(&call.traceparent)
            .ok()
            .filter(|value| !value.is_empty())
        {
            headers.insert(HeaderName::from_static("traceparent"), value);
        }
        if has_body {
            // A blank argument text counts as `{}` (see `arguments.rs`).
            let text = if call.arguments_text.trim_ascii().is_empty() {
                "{}"
            } else {
                &call.arguments_text
            };
            *request.body_mut() = Some(text.to_owned().into());
        }
        Ok(request)
    }

    fn read(&self, redactor: &Redactor, status: u16, body: &[u8], complete: bool) -> ToolAnswer {
        let name = &self.spec.name;
        if (200..300).contains(&status) {
            let content = output::result(redactor, body, complete);
            return ToolAnswer::Succeeded {
                content,
                http_status: Some(status),
            };
        }
        if matches!(status, 502 | 504) {
            let problem = format!(
                "The tool `{name}` was called and a gateway answered with status {status}: whether it did what was asked is not known."
            );
            return ToolAnswer::Unknown { problem };
        }
        let (body, cut) = output::clean(redactor, body, complete, MAX_FAILURE_BYTES);
        let redirect = if is_redirect(status) {
            " (a redirect, which is not followed)"
        } else {
            ""
        };
        let mut content =
            format!("The tool `{name}` failed: it answered with status {status}{redirect}.");
        if !body.is_empty() {
            content.push('\n');
            content.push_str(&body);
        }
        if cut {
            let kibibytes = MAX_FAILURE_BYTES / 1024;
            let note = format!("\n[cut: the first {kibibytes} KiB of the answer]");
            content.push_str(&note);
        }
        ToolAnswer::Failed {
            content,
            http_status: Some(status),
        }
    }

    fn failed(&self, failure: NetFailure) -> ToolAnswer {
        match failure {
            NetFailure::NotSent(why) => self.not_sent(why),
            NetFailure::Lost(why) => ToolAnswer::Unknown {
                problem: format!(
                    "The tool `{}` was called, but {why}: whether it did what was asked is not known.",
                    self.spec.name
                ),
            },
        }
    }

    fn not_sent(&self, why: &str) -> ToolAnswer {
        let name = &self.spec.name;
        ToolAnswer::NotSent {
            content: format!("The tool `{name}` failed before anything was sent: {why}."),
        }
    }
}

#[cfg(test)]
mod tests;
