//! Sends HTTP requests of a test to the service in this process.

use reqwest::Method;
use serde_json::{Value, json};

use super::super::event_stream::{Event, Watch};
use super::{Actor, Reply};

impl Actor<'_> {
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends the header `prefer`, such as `wait=0`.
    #[must_use]
    pub fn prefer(self, preference: &str) -> Self {
        self.header("prefer", preference)
    }

    /// Sends this idempotency key.
    #[must_use]
    pub fn keyed(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    /// Asks for pages, as a browser does.
    #[must_use]
    pub fn accept_html(self) -> Self {
        self.header("accept", "text/html")
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(
            Method::POST,
            path,
            Some(("application/json", body.to_string())),
        )
        .await
    }

    pub async fn hit(&self, path: &str) -> Reply {
        self.send(Method::POST, path, None).await
    }

    /// Approves a request without a body.
    pub async fn approve(&self, request: &str) -> Reply {
        self.hit(&format!("/resume/{request}/approve")).await
    }

    /// Answers a request with one decision, or with a decision for each of its calls.
    pub async fn answer(&self, request: &str, body: &Value) -> Reply {
        self.post(&format!("/resume/{request}"), body).await
    }

    /// Cancels a task.
    pub async fn cancel(&self, task: &str) -> Reply {
        self.hit(&format!("/v1/tasks/{task}/cancel")).await
    }

    /// Sends a message to a task.
    pub async fn message(&self, task: &str, body: &Value) -> Reply {
        self.post(&format!("/v1/tasks/{task}/messages"), body).await
    }

    /// Gets a task.
    pub async fn task(&self, task: &str) -> Reply {
        self.get(&format!("/v1/tasks/{task}")).await
    }

    /// Gets the items of a task's journal.
    pub async fn items(&self, task: &str) -> Reply {
        self.get(&format!("/v1/tasks/{task}/items")).await
    }

    /// Gets a request.
    pub async fn request(&self, request: &str) -> Reply {
        self.get(&format!("/resume/{request}")).await
    }

    /// Creates a task with this input.
    pub async fn create_task(&self, input: &str) -> Reply {
        self.post("/v1/tasks", &json!({"input": input})).await
    }

    /// Posts these fields, as a browser posts a form.
    pub async fn submit(&self, path: &str, fields: &[(&str, &str)]) -> Reply {
        let form = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        let body = Some(("application/x-www-form-urlencoded", form));
        self.send(Method::POST, path, body).await
    }

    /// Sends a POST of any bytes, labelled as JSON.
    pub async fn bytes(&self, path: &str, bytes: Vec<u8>) -> Reply {
        self.exchange(Method::POST, path, Some(("application/json", bytes)))
            .await
    }

    pub async fn send(&self, method: Method, path: &str, body: Option<(&str, String)>) -> Reply {
        self.exchange(
            method,
            path,
            body.map(|(content_type, text)| (content_type, text.into_bytes())),
        )
        .await
    }

    pub async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, Vec<u8>)>,
    ) -> Reply {
        let reply = Reply::read(self.sent(method.clone(), path, body).await).await;
        super::super::api_contract::is_kept(&method, path, &reply);
        reply
    }

    /// Opens the event stream of a task. With `after`, the stream begins after the event with that
    /// number.
    pub async fn watch(&self, task: &str, after: Option<i64>) -> Watch {
        let query = after.map_or(String::new(), |after| format!("?after={after}"));
        let path = format!("/v1/tasks/{task}/events{query}");
        Watch::new(self.sent(Method::GET, &path, None).await)
    }

    pub async fn events(&self, task: &str, after: Option<i64>) -> Vec<Event> {
        let mut watch = self.watch(task, after).await;
        assert_eq!(watch.status, 200);
        watch.rest().await
    }

    /// Sends a POST whose reply is the event stream of the task. The stream begins with the events
    /// that the POST itself commits.
    pub async fn post_and_watch(&self, path: &str, body: &Value) -> Watch {
        let body = Some(("application/json", body.to_string().into_bytes()));
        let asking = Actor {
            app: self.app,
            key: self.key,
            headers: self.headers.clone(),
        };
        Watch::new(
            asking
                .header("accept", "text/event-stream")
                .sent(Method::POST, path, body)
                .await,
        )
    }

    /// Opens the event stream of a task. Returns `None` if the connection was closed before the
    /// service answered.
    pub async fn try_watch(&self, task: &str) -> Option<Watch> {
        self.try_sent(Method::GET, &format!("/v1/tasks/{task}/events"), None)
            .await
            .ok()
            .map(Watch::new)
    }

    pub async fn sent(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, Vec<u8>)>,
    ) -> reqwest::Response {
        self.try_sent(method, path, body).await.unwrap()
    }

    pub async fn try_sent(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, Vec<u8>)>,
    ) -> reqwest::Result<reqwest::Response> {
        let url = if path.starts_with("http") {
            path.to_owned()
        } else {
            format!("{}{path}", self.app.url())
        };
        let mut request = self.app.http.request(method, url);
        if let Some(key) = self.key {
            request = request.bearer_auth(key);
        }
        for (name, value) in &self.headers {
            request = request.header(name, value.as_bytes());
        }
        if let Some((content_type, bytes)) = body {
            request = request.header("content-type", content_type).body(bytes);
        }
        request.send().await
    }
}
