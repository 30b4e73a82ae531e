//! Answers a credential request in every way that the service must refuse. Each answer contains
//! values of its own, for which the test searches later.

use serde_json::{Value, json};

use super::fixture::{PlantedSecrets, SecrecyFixture};
use super::{FORM, HTML, JSON};
use crate::support::test_app::{ALICE, BOB, CAROL};

/// Puts one defect into the body of an answer.
type Change = fn(&mut Value, &PlantedSecrets);
/// The path, the headers, the body and the expected status of an answer.
type Case<'c> = (
    &'c str,
    &'c [(&'c str, &'c str)],
    &'c dyn Fn(&PlantedSecrets) -> String,
    u16,
);

const DEFECTS: [(Change, u16); 9] = [
    (
        |body, planted| body["response"]["extra"] = planted.long.clone().into(),
        422,
    ),
    (
        |body, planted| body["extra"] = planted.json.clone().into(),
        422,
    ),
    (
        |body, planted| body["response"]["long"] = format!("{}\r\n", planted.long).into(),
        422,
    ),
    (
        |body, planted| body["response"]["json"] = json!([planted.json]),
        422,
    ),
    (
        |body, planted| body["response"] = planted.percent.clone().into(),
        422,
    ),
    (
        |body, planted| body["action"] = planted.percent.clone().into(),
        422,
    ),
    (|body, _| body["action"] = "approve".into(), 422),
    (
        |body, planted| body["decisions"] = json!({"x": {"action": planted.long}}),
        422,
    ),
    (
        |body, _| body["digest"] = format!("sha256:{}", "0".repeat(64)).into(),
        412,
    ),
];
fn whole(planted: &PlantedSecrets) -> String {
    planted.answer().to_string()
}

fn cut(planted: &PlantedSecrets) -> String {
    whole(planted).trim_end_matches('}').to_owned()
}

fn twice(planted: &PlantedSecrets) -> String {
    format!(r#"{{"action":{0},"action":{0}}}"#, json!(planted.json))
}

fn large(planted: &PlantedSecrets) -> String {
    format!("{}{}", planted.answer(), " ".repeat(1 << 20))
}

fn stale_form(planted: &PlantedSecrets) -> String {
    planted.form(&[("digest", "sha256:0")])
}

fn repeated_field(planted: &PlantedSecrets) -> String {
    planted.form(&[("field.long", &planted.json)])
}

fn missing_field(planted: &PlantedSecrets) -> String {
    planted.form(&[]).replace("field.long=", "field.gone=")
}

fn odd_fields(planted: &PlantedSecrets) -> String {
    planted.form(&[("field.none", &planted.json), ("odd", &planted.percent)])
}

impl SecrecyFixture {
    /// Sends every kind of answer that the service refuses, to a request that is not yet answered.
    pub async fn refused(&mut self, request: &str) {
        let path = format!("/resume/{request}");
        let bearers = [ALICE, BOB, CAROL].map(|key| format!("Bearer {key}"));
        let people = [0, 1, 2].map(|one| ("authorization", bearers[one].as_str()));
        self.refused_for_defects(&path, people[0]).await;
        self.refused_as_json(&path, people).await;
        self.refused_as_forms(&path, people[0]).await;
        self.refused_in_the_url(&path, people[0]).await;
    }

    async fn refused_for_defects(&mut self, path: &str, alice: (&str, &str)) {
        let json = ("content-type", JSON);
        for (at, (change, status)) in DEFECTS.into_iter().enumerate() {
            let key = format!("refused-{at}");
            let planted = self.plant();
            let mut body = planted.answer();
            change(&mut body, planted);
            let body = body.to_string().into_bytes();
            let reply = self
                .send(
                    "POST",
                    path,
                    &[alice, json, ("idempotency-key", &key)],
                    body,
                )
                .await;
            assert_eq!(reply.status, status, "{at}: {}", reply.text);
        }
    }

    /// Sends JSON answers that are malformed, too large, mislabelled or sent by a person who may
    /// not answer.
    async fn refused_as_json(&mut self, path: &str, people: [(&str, &str); 3]) {
        let [alice, bob, carol] = people;
        let json = ("content-type", JSON);
        let cases: [Case<'_>; 12] = [
            (path, &[alice, json], &cut, 400),
            (path, &[alice, json], &twice, 400),
            (path, &[alice, json], &large, 413),
            (path, &[alice, ("content-type", "text/plain")], &whole, 415),
            (
                path,
                &[alice, ("content-type", "multipart/form-data; boundary=x")],
                &whole,
                415,
            ),
            (path, &[json], &whole, 401),
            (
                path,
                &[("authorization", "Bearer nobody-0123456789"), json],
                &whole,
                401,
            ),
            (path, &[carol, json], &whole, 403),
            (path, &[bob, json], &whole, 403),
            (
                path,
                &[alice, json, ("origin", "https://evil.example")],
                &whole,
                403,
            ),
            (
                "/resume/01890000-0000-7000-8000-000000000000",
                &[alice, json],
                &whole,
                404,
            ),
            ("/v1/tasks", &[alice, json], &whole, 422),
        ];
        self.all_refused(&cases).await;
    }

    async fn refused_as_forms(&mut self, path: &str, alice: (&str, &str)) {
        let page = [alice, ("content-type", FORM), ("accept", HTML)];
        let cases: [Case<'_>; 6] = [
            (path, &page, &stale_form, 412),
            (path, &page, &repeated_field, 400),
            (path, &page, &missing_field, 422),
            (path, &page, &odd_fields, 422),
            // JSON that is labelled as a form, as `curl -d` labels it by default.
            (path, &page, &whole, 422),
            (&format!("{path}/reject"), &page[..2], &whole, 422),
        ];
        self.all_refused(&cases).await;
    }

    async fn all_refused(&mut self, cases: &[Case<'_>]) {
        for (at, (path, headers, body, status)) in cases.iter().enumerate() {
            let body = body(self.plant()).into_bytes();
            let reply = self.send("POST", path, headers, body).await;
            assert_eq!(reply.status, *status, "{at}: {}", reply.text);
        }
    }

    /// Sends a value in the URL, where no value belongs.
    async fn refused_in_the_url(&mut self, path: &str, alice: (&str, &str)) {
        let json = ("content-type", JSON);
        let place =
            url::form_urlencoded::byte_serialize(self.plant().json.as_bytes()).collect::<String>();
        for headers in [&[json][..], &[alice, json], &[alice, ("accept", HTML)]] {
            let headers = [headers, &[("origin", "https://evil.example")]].concat();
            self.served
                .exchange("POST", &format!("{path}?response={place}"), &headers, "")
                .await;
            self.served
                .exchange("GET", &format!("{path}?response={place}"), &headers, "")
                .await;
        }
    }
}
