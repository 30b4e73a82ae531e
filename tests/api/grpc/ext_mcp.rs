//! agentgateway's guardrails: requests that pass, and requests that are refused.

use super::*;

const REQUEST: &str = "/agentgateway.dev.ext_mcp.ExtMcp/CheckRequest";
const JUDGE: &str = "hold: 0s\n    other_tools: judge\n    ext_authz: { user_header: x-user }";

fn request(service: &str, params: &str) -> Vec<u8> {
    [
        field(1, service.as_bytes()),
        field(2, b"tools/call"),
        field(4, params.as_bytes()),
        field(5, &pair("x-user", b"alice")),
    ]
    .concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_whose_name_is_ambiguous_is_refused_and_other_methods_pass() {
    let app = gateway_app(JUDGE).await;
    let mut grpc = Grpc::to(&app).await;
    let params = r#"{"name":"pay"}"#;
    let refused = grpc.call(REQUEST, EDGE, &request("a__b", params)).await;
    assert_eq!(at(&refused.message, &[3, 1]).unwrap(), b"3", "INVALID");
    let list = [field(2, b"tools/list"), field(5, &pair("x-user", b"alice"))].concat();
    let passes = grpc.call(REQUEST, EDGE, &list).await;
    assert!(at(&passes.message, &[1]).is_some());
    app.stop().await;
}
