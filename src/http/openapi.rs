pub fn openapi_json() -> String { String::new() }
