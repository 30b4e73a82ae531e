//! Tests that the committed `openapi/openapi.json` is the document that the code generates.

#[test]
fn committed_openapi_document_matches_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/openapi.json");
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == holdpoint::app::openapi(),
        "openapi/openapi.json is stale: run scripts/openapi and commit it"
    );
}
