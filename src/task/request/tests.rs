//! Tests that the digests of a request cover its content, and that this service can read requests
//! that an earlier version stored.

use uuid::Uuid;

use super::*;

fn call(task: TaskId) -> CallSpec {
    let mut call = CallSpec {
        tool_call_id: CallId(Uuid::from_u128(3)),
        name: "refund".to_owned(),
        arguments_text: r#"{"order":1,"amount":120}"#.to_owned(),
        effect: Effect::Once,
        target: "POST http://payments.internal".to_owned(),
        address: None,
        summary: "Refund 120".to_owned(),
        operator_text: OperatorText::default(),
        warnings: Vec::new(),
        needs_decision: true,
        verdict: Verdict::Hold,
        rule: Some("large".to_owned()),
        reason: None,
        parameters: Value::Null,
        digest: String::new(),
        editor: None,
        bars_editor: false,
        offer: None,
        definition: Some("sha256:ab".to_owned()),
    };
    let tool = DigestedTool {
        name: "refund",
        definition: "sha256:ab",
        target: &call.target,
        effect: Effect::Once,
    };
    call.digest = call_digest(
        "acme",
        task,
        call.tool_call_id,
        tool,
        &call.arguments_text,
        Some("large"),
    );
    call.address = Some(Address::new(
        &call.digest,
        "POST http://payments.internal/refunds/1".to_owned(),
    ));
    call
}

fn request_spec(task: TaskId) -> RequestSpec {
    let call = call(task);
    RequestSpec {
        request_id: RequestId(Uuid::from_u128(1)),
        kind: RequestKind::Approval,
        digest: digest_of_texts([call.digest.as_str()].into_iter()),
        pending_tool_calls: vec![call],
        terms: Terms::default(),
        question: None,
        details: None,
        form: None,
        elicitation: None,
        seal: None,
    }
    .sealed()
}

type Member = fn(&mut RequestSpec) -> &mut String;

#[test]
fn changed_byte_of_a_request_is_always_noticed() {
    let task = TaskId(Uuid::from_u128(2));
    assert!(request_spec(task).has_valid_digests("acme", task));
    let members: [Member; 9] = [
        |asked| &mut asked.digest,
        |asked| &mut asked.pending_tool_calls[0].digest,
        |asked| &mut asked.pending_tool_calls[0].name,
        |asked| &mut asked.pending_tool_calls[0].arguments_text,
        |asked| &mut asked.pending_tool_calls[0].target,
        |asked| &mut asked.pending_tool_calls[0].address.as_mut().unwrap().text,
        |asked| &mut asked.pending_tool_calls[0].address.as_mut().unwrap().seal,
        |asked| asked.pending_tool_calls[0].definition.as_mut().unwrap(),
        |asked| asked.pending_tool_calls[0].rule.as_mut().unwrap(),
    ];
    for member in members {
        for at in 0..member(&mut request_spec(task)).len() {
            let mut changed = request_spec(task);
            let text = member(&mut changed);
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            *text = String::from_utf8(bytes).unwrap();
            assert!(!changed.has_valid_digests("acme", task), "{changed:?}");
        }
    }
    let mut changed = request_spec(task);
    changed.pending_tool_calls[0].effect = Effect::Idempotent;
    assert!(!changed.has_valid_digests("acme", task));
    assert!(
        !request_spec(task).has_valid_digests("other", task)
            && !request_spec(task).has_valid_digests("acme", TaskId(Uuid::from_u128(4)))
    );
}

#[test]
fn call_stored_before_addresses_is_read_and_shows_its_target() {
    let task = TaskId(Uuid::from_u128(2));
    let mut stored = serde_json::to_value(request_spec(task)).unwrap();
    stored["pending_tool_calls"][0]
        .as_object_mut()
        .unwrap()
        .remove("address")
        .unwrap();
    let asked: RequestSpec = serde_json::from_value(stored).unwrap();
    assert!(asked.has_valid_digests("acme", task));
    assert_eq!(
        asked.pending_tool_calls[0].shown_target(),
        "POST http://payments.internal"
    );
}

#[test]
fn call_stored_before_definitions_is_still_read() {
    let task = TaskId(Uuid::from_u128(2));
    let mut stored = serde_json::to_value(request_spec(task)).unwrap();
    stored["pending_tool_calls"][0]
        .as_object_mut()
        .unwrap()
        .remove("definition")
        .unwrap();
    let asked: RequestSpec = serde_json::from_value(stored).unwrap();
    assert!(
        asked.pending_tool_calls[0].definition.is_none() && asked.has_valid_digests("acme", task)
    );
}
