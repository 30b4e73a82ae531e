//! Tests of content types, idempotency keys, form fields, and parsing on blocking threads.

use super::*;
use serde_json::json;

fn posted(content_type: &str, body: &str) -> PostRequest {
    let mut headers = HeaderMap::new();
    if !content_type.is_empty() {
        headers.insert(CONTENT_TYPE, content_type.parse().unwrap());
    }
    let caller = crate::http::openapi::sample::caller();
    PostRequest {
        caller,
        headers,
        bytes: Bytes::copy_from_slice(body.as_bytes()),
        arrived: Instant::now(),
        key: Ok(None),
    }
}

#[test]
fn wait_of_a_post_begins_when_its_body_has_arrived() {
    let posted = PostRequest {
        arrived: Instant::now().checked_sub(Duration::from_secs(2)).unwrap(),
        ..posted("", "")
    };
    assert!(posted.rest_of(Duration::from_secs(10)) <= Duration::from_secs(8));
    assert_eq!(posted.rest_of(Duration::from_secs(1)), Duration::ZERO);
}

async fn read(posted: &PostRequest) -> Result<Value, Problem> {
    posted
        .json(&BodyParser::default(), |value, _| Ok(value))
        .await
}

#[tokio::test]
async fn body_needs_its_content_type_unless_it_is_empty() {
    assert_eq!(read(&posted("", "")).await.unwrap(), json!({}));
    assert_eq!(read(&posted("text/plain", "")).await.unwrap(), json!({}));
    let empty = posted("", "");
    let parser = BodyParser::default();
    let found = empty
        .json_with_raw_arguments(&parser, |rest, raw, _| Ok((rest, raw)))
        .await;
    assert_eq!(found.unwrap(), (json!({}), None));
    let bytes = empty.read_json(&parser, |bytes| Ok(bytes.to_vec())).await;
    assert_eq!(bytes.unwrap(), b"");
    assert!(
        read(&posted("application/json; charset=utf-8", "{}"))
            .await
            .is_ok()
    );
    for content_type in [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonp",
        "multipart/form-data",
    ] {
        let refused = read(&posted(content_type, "{}")).await.unwrap_err();
        assert_eq!(refused.code, Code::UnsupportedMediaType, "{content_type}");
    }
    for (body, code) in [
        ("{", Code::BadJson),
        (" ", Code::BadJson),
        (r#"{"a":"\u0000"}"#, Code::Invalid),
    ] {
        assert_eq!(
            read(&posted("application/json", body))
                .await
                .unwrap_err()
                .code,
            code,
            "{body}"
        );
    }
    let many = format!("[{}0]", "0,".repeat(json::MAX_VALUES - 1));
    let refused = read(&posted("application/json", &many)).await.unwrap_err();
    let errors = json!([{"pointer": "", "detail": "at most 100000 JSON values"}]);
    let document = json!(refused.document("", uuid::Uuid::nil()));
    assert_eq!(
        (refused.code, &document["errors"]),
        (Code::Invalid, &errors)
    );
}

#[tokio::test]
async fn values_of_an_unparsed_member_count_among_those_of_the_body() {
    let parser = BodyParser::default();
    for (values, code) in [
        (json::MAX_VALUES, None),
        (json::MAX_VALUES + 1, Some(Code::Invalid)),
    ] {
        // The list has `values - 2` elements. The list and the object also count as values.
        let body = format!(r#"{{"arguments":[0{}]}}"#, ",0".repeat(values - 3));
        let posted = posted("application/json", &body);
        let read = posted
            .json_with_raw_arguments(&parser, |_, raw, _| Ok(raw))
            .await;
        assert_eq!(read.err().map(|problem| problem.code), code, "{values}");
    }
}

#[tokio::test]
async fn body_whose_type_is_stated_twice_is_read_only_if_both_are_its_type() {
    for (second, is_read) in [
        ("application/json", true),
        ("Application/JSON; charset=utf-8", true),
        ("text/plain", false),
        ("", false),
    ] {
        let mut twice = posted("application/json", "{}");
        twice.headers.append(CONTENT_TYPE, second.parse().unwrap());
        assert_eq!(read(&twice).await.is_ok(), is_read, "{second}");
    }
}

/// The runtime of this test has one thread. If a large body were parsed on that thread, the test
/// would hang.
#[tokio::test]
async fn large_bodies_are_parsed_off_the_runtime_two_at_once() {
    let parsing = BodyParser::default();
    let thread = || Ok::<_, Problem>(std::thread::current().id());
    let here = std::thread::current().id();
    assert_eq!(parsing.run(MAX_INLINE_SIZE, thread).await.unwrap(), here);
    assert_ne!(
        parsing.run(MAX_INLINE_SIZE + 1, thread).await.unwrap(),
        here
    );

    let (leave, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(std::sync::Mutex::new(wait));
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let mut running = tokio::task::JoinSet::new();
    for number in 0..5 {
        let (parsing, begun, wait) = (parsing.clone(), begun.clone(), Arc::clone(&wait));
        running.spawn(async move {
            let work = move || {
                begun.send(number).unwrap();
                wait.lock().unwrap().recv().unwrap();
                Ok(())
            };
            parsing.run(MAX_INLINE_SIZE + 1, work).await.unwrap();
        });
    }
    begins.recv().await.unwrap();
    begins.recv().await.unwrap();
    // Without the limit of two bodies, the third body would begin during this loop.
    for _ in 0..100 {
        tokio::task::yield_now().await;
        tokio::task::spawn_blocking(|| ()).await.unwrap();
    }
    // A short body needs no permit: it is parsed at once, on the thread of the runtime.
    assert_eq!(parsing.run(MAX_INLINE_SIZE, thread).await.unwrap(), here);
    assert!(
        begins.is_empty() && parsing.permits.available_permits() == 0,
        "only two of five have begun"
    );
    for _ in 0..5 {
        leave.send(()).unwrap();
    }
    while running.join_next().await.is_some() {}
    assert_eq!(begins.len(), 3);
}

#[test]
fn form_fields_may_appear_only_once() {
    let form = |body| posted("application/x-www-form-urlencoded", body).fields();
    let expected = [
        ("action", "reject"),
        ("reason", "a\nb \u{202e}"),
        ("then", ""),
    ];
    assert_eq!(
        form("action=reject&reason=a%0D%0Ab+%E2%80%AE&then=").unwrap(),
        expected
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    );
    assert_eq!(form("a=1&a=2").unwrap_err().code, Code::BadRequest);
    assert_eq!(form("a=%00").unwrap_err().code, Code::Invalid);
    assert_eq!(form("reason=%ff").unwrap_err().code, Code::Invalid);
    assert_eq!(form("%c3=1").unwrap_err().code, Code::Invalid);
    assert_eq!(form("a%00=1").unwrap_err().code, Code::Invalid);
}

#[test]
fn idempotency_key_is_one_visible_header() {
    let read = |keys: &[&[u8]]| {
        let mut headers = HeaderMap::new();
        for key in keys {
            headers.append(
                "idempotency-key",
                http::HeaderValue::from_bytes(key).unwrap(),
            );
        }
        idempotency_key(&headers)
    };
    assert_eq!(read(&[]), Ok(None));
    assert_eq!(read(&[b"\"a\""]), Ok(Some("\"a\"".to_owned())));
    assert!(read(&[&[b'x'; 255]]).is_ok());
    for keys in [
        &[b"".as_slice()][..],
        &[b"a b"],
        &[&[b'x'; 256]],
        &["é".as_bytes()],
        &[b"a", b"b"],
    ] {
        assert!(read(keys).is_err(), "{keys:?}");
    }
}
