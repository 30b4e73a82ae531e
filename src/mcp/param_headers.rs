//! stub
use serde_json::Value;
pub(crate) fn invalid_param_headers(_schema: &Value) -> Option<String> {
    None
}
