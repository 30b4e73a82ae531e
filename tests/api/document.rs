//! The committed document of the API. That every answer is one of those it describes is checked wherever a test talks to
//! the service (`support/document.rs`).

#[test]
fn the_committed_document_is_what_the_code_says() {
    let committed = include_str!("../../openapi/openapi.json");
    assert!(
        committed == holdpoint::http::openapi::openapi_json(),
        "run scripts/openapi and commit openapi/openapi.json"
    );
}
