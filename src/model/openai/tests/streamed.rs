//! Tests of streamed answers, and of endpoints that do not stream.

use tokio::io::AsyncReadExt as _;
use tokio::sync::Semaphore;

use super::*;
use crate::model::test_sinks::CollectingSink;
use crate::model::{Piece, PieceSink};

const HELLO: [&str; 4] = [
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"hel\"},\"finish_reason\":null}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"lo\"},\"finish_reason\":null}]}\n\n",
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6,\"total_tokens\":11}}\n\n",
];
const DONE: &str = "data: [DONE]\n\n";
/// The end of a chunked body.
const END: &str = "0\r\n\r\n";

fn head(kind: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n")
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// Returns a stream of these events, without the end of its body.
fn open_stream(events: &[&str]) -> String {
    head("text/event-stream; charset=utf-8")
        + &events.iter().map(|event| chunk(event)).collect::<String>()
}

fn streamed() -> String {
    open_stream(&HELLO) + &chunk(DONE) + END
}

/// Starts an endpoint that answers each connection with one text, and leaves the connection open
/// until the client closes it.
async fn patient(answers: Vec<String>) -> Endpoint {
    in_parts(
        answers.into_iter().map(|answer| vec![answer]).collect(),
        Arc::new(Semaphore::new(0)),
    )
    .await
}

/// Starts an endpoint that answers each connection in parts, and waits for a permit before each
/// part but the first.
async fn in_parts(answers: Vec<Vec<String>>, permits: Arc<Semaphore>) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let record = Arc::clone(&seen);
    #[expect(clippy::disallowed_methods, reason = "the fake endpoint of a test")]
    tokio::spawn(async move {
        for answer in answers {
            let (mut peer, _) = listener.accept().await.unwrap();
            let request = receive(&mut peer).await;
            record.lock().unwrap().push(request);
            for (at, part) in answer.iter().enumerate() {
                if at > 0 {
                    permits.acquire().await.unwrap().forget();
                }
                let _ = peer.write_all(part.as_bytes()).await;
            }
            let _ = peer.read(&mut [0]).await;
        }
    });
    Endpoint { url, seen }
}

async fn heard(answers: Vec<String>) -> (Result<Answer, ModelError>, CollectingSink, Endpoint) {
    let endpoint = Endpoint::new(answers).await;
    let (model, _) = client(settings(&endpoint.url));
    let heard = CollectingSink::default();
    let answer = model.answer(&prompt(vec![user("hi")]), &heard).await;
    (answer, heard, endpoint)
}

#[tokio::test]
async fn answer_is_reported_while_it_comes() {
    let (answer, heard, endpoint) = heard(vec![streamed()]).await;
    let answer = answer.unwrap();
    assert_eq!(answer.text.as_deref(), Some("hello"));
    assert_eq!(
        answer.usage,
        Usage {
            prompt_tokens: 5,
            completion_tokens: 6,
            total_tokens: 11
        }
    );
    assert_eq!(answer.raw, Value::Null, "it has nothing but the text");
    heard.assert_adds_up_to(&answer);
    assert_eq!((heard.collected().pieces, heard.collected().resets), (2, 0));
    let seen = endpoint.seen().remove(0);
    assert_eq!(
        (&seen.body["stream"], &seen.body["stream_options"]),
        (&json!(true), &json!({"include_usage": true}))
    );
    assert!(
        seen.head
            .contains("accept: text/event-stream, application/json"),
        "{}",
        seen.head
    );
}

#[tokio::test]
async fn answer_is_complete_at_the_end_marker_before_the_body_ends() {
    let endpoint = patient(vec![open_stream(&HELLO) + &chunk(DONE)]).await;
    let (model, _) = client(Settings {
        timeout: Duration::from_hours(1),
        ..settings(&endpoint.url)
    });
    let answer = model
        .answer(&prompt(vec![user("hi")]), &DiscardingSink)
        .await
        .unwrap();
    assert_eq!(answer.text.as_deref(), Some("hello"));
}

#[tokio::test]
async fn connection_of_a_stream_is_reused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    #[expect(clippy::disallowed_methods, reason = "the fake endpoint of a test")]
    tokio::spawn(async move {
        let (mut peer, _) = listener.accept().await.unwrap();
        for _ in 0..3 {
            receive(&mut peer).await;
            peer.write_all(streamed().as_bytes()).await.unwrap();
        }
    });
    let (model, _) = client(settings(&url));
    for _ in 0..3 {
        assert_eq!(
            model
                .answer(&prompt(vec![user("hi")]), &DiscardingSink)
                .await
                .unwrap()
                .text
                .as_deref(),
            Some("hello")
        );
    }
}

#[tokio::test]
async fn mislabelled_body_is_recognized_by_its_content() {
    let events = HELLO.concat() + DONE;
    let plain =
        "\n {\"choices\":[{\"message\":{\"content\":\"hello\"},\"finish_reason\":\"stop\"}]}\n";
    let kinds = [
        "content-type: text/plain\r\n",
        "",
        "content-type: application/json\r\n",
    ];
    let mislabelled = kinds
        .iter()
        .flat_map(|kind| [http("200 OK", kind, &events), http("200 OK", kind, plain)]);
    // `long` is longer than the other bodies, so the client reads it in several parts.
    let long = format!("{}{plain}", " ".repeat(300 * 1024));
    let called_stream = [plain, &plain.trim_end().replace('\n', ""), &long]
        .map(|plain| http("200 OK", "content-type: Text/Event-Stream\r\n", plain));
    for answer in mislabelled.chain(called_stream) {
        let (read, heard, endpoint) = heard(vec![answer.clone()]).await;
        let read = read.unwrap_or_else(|error| panic!("{error}: {answer}"));
        assert_eq!(
            (read.text.as_deref(), endpoint.seen().len()),
            (Some("hello"), 1),
            "{answer}"
        );
        if heard.collected().pieces > 0 {
            heard.assert_adds_up_to(&read);
        }
    }
    let error = "{\"error\":{\"message\":\"no credit\",\"code\":402}}";
    let (answer, ..) = heard(vec![http(
        "200 OK",
        "content-type: text/event-stream\r\n",
        error,
    )])
    .await;
    assert!(
        answer
            .unwrap_err()
            .detail
            .ends_with("it reported an error: no credit")
    );
}

#[tokio::test]
async fn lost_stream_is_reset_and_retried() {
    let lost = open_stream(&HELLO[..2]);
    let lost_after_finish = open_stream(&HELLO[..3]);
    let ended_early = open_stream(&HELLO[..2]) + END;
    let broken = open_stream(&[
        HELLO[0],
        "data: {\"error\":{\"message\":\"overloaded\",\"code\":529}}\n\n",
    ]) + END;
    for void in [lost, lost_after_finish, ended_early, broken] {
        let (answer, heard, endpoint) = heard(vec![void.clone(), streamed()]).await;
        let answer = answer.unwrap();
        heard.assert_adds_up_to(&answer);
        assert_eq!(
            (heard.collected().resets, endpoint.seen().len()),
            (1, 2),
            "{void}"
        );
    }
    let silent = open_stream(&[]);
    let (answer, heard, _) = heard(vec![silent, streamed()]).await;
    assert!(answer.is_ok());
    assert_eq!(
        heard.collected().resets,
        0,
        "nothing was told that could be taken back"
    );
}

#[tokio::test]
async fn stream_that_only_lacks_its_usage_is_an_answer() {
    let closed = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{}",
        HELLO[..3].concat() + DONE
    );
    for whole in [open_stream(&HELLO[..3]) + &chunk(DONE) + END, closed] {
        let (answer, heard, endpoint) = heard(vec![whole]).await;
        let answer = answer.unwrap();
        heard.assert_adds_up_to(&answer);
        assert_eq!(
            (answer.text.as_deref(), answer.usage.total_tokens),
            (Some("hello"), 0)
        );
        assert_eq!(endpoint.seen().len(), 1);
    }
}

#[tokio::test]
async fn stream_that_ends_right_after_its_end_marker_is_an_answer() {
    let declared = |end: &str| open_stream(&HELLO) + &chunk(end) + END;
    let undeclared = http("200 OK", "", &(HELLO.concat() + "data: [DONE]"));
    let ends = ["data: [DONE]\n", "data: [DONE]"].map(declared);
    for whole in ends.into_iter().chain([undeclared]) {
        let (answer, heard, endpoint) = heard(vec![whole]).await;
        let answer = answer.unwrap();
        heard.assert_adds_up_to(&answer);
        assert_eq!(
            (answer.text.as_deref(), endpoint.seen().len()),
            (Some("hello"), 1)
        );
    }
    for cut in [declared("data: [DON"), declared("\n")] {
        let (answer, heard, endpoint) = heard(vec![cut, streamed()]).await;
        heard.assert_adds_up_to(&answer.unwrap());
        assert_eq!((heard.collected().resets, endpoint.seen().len()), (1, 2));
    }
}

#[tokio::test]
async fn error_that_ends_a_stream_without_an_empty_line_is_read() {
    let error = "data: {\"error\":{\"message\":\"no credit\",\"code\":402}}";
    for events in [&["retry: 9\n", error][..], &[HELLO[0], error][..]] {
        let (answer, _, endpoint) = heard(vec![open_stream(events) + END]).await;
        let detail = answer.unwrap_err().detail;
        assert!(
            detail.ends_with("it reported an error: no credit"),
            "{detail}"
        );
        assert_eq!(endpoint.seen().len(), 1);
    }
}

#[tokio::test]
async fn reported_text_is_reset_when_there_is_no_answer_in_the_end() {
    let endpoint = Endpoint::new(vec![open_stream(&HELLO[..2]); 2]).await;
    let (model, _) = client(Settings {
        retries: 1,
        ..settings(&endpoint.url)
    });
    let heard = CollectingSink::default();
    let detail = failure(&model, &heard).await;
    assert!(
        detail.ends_with("the connection was lost before there was a complete answer"),
        "{detail}"
    );
    assert_eq!(
        (heard.collected().text.as_str(), heard.collected().resets),
        ("", 2)
    );
}

#[tokio::test]
async fn stalled_stream_is_given_up_after_the_timeout() {
    let endpoint = patient(vec![open_stream(&HELLO[..2])]).await;
    let (model, _) = client(Settings {
        retries: 0,
        // The endpoint must send the first pieces within this time, even on a busy machine.
        timeout: Duration::from_secs(2),
        ..settings(&endpoint.url)
    });
    let heard = CollectingSink::default();
    let detail = failure(&model, &heard).await;
    assert_eq!(
        detail,
        "Model `main` gave no usable answer: there was no complete answer within the timeout"
    );
    assert_eq!(
        (heard.collected().text.as_str(), heard.collected().resets),
        ("", 1)
    );
}

/// A sink that makes the answer slow: for each piece, it advances the test's clock by the duration,
/// and then adds a permit to the semaphore, so that the endpoint sends the next part.
struct Slow(Arc<Quick>, Duration, Arc<Semaphore>);

impl PieceSink for Slow {
    fn receive(&self, _: Piece<'_>) {
        *self.0.up.lock().unwrap() += self.1;
        self.2.add_permits(1);
    }
}

#[tokio::test]
async fn answer_may_take_longer_than_the_timeout_but_not_without_end() {
    let parts = vec![
        open_stream(&HELLO[..1]),
        chunk(HELLO[1]),
        chunk(&(HELLO[2..].concat() + DONE)) + END,
    ];
    for (timeouts, in_time) in [(4, true), (6, false)] {
        let permits = Arc::new(Semaphore::new(0));
        let endpoint = in_parts(vec![parts.clone()], Arc::clone(&permits)).await;
        let settings = Settings {
            retries: 0,
            ..settings(&endpoint.url)
        };
        let (timeout, (model, clock)) = (settings.timeout, client(settings));
        let slow = Slow(clock, timeout * timeouts, permits);
        let answer = model.answer(&prompt(vec![user("hi")]), &slow).await;
        assert_eq!(answer.is_ok(), in_time, "{answer:?}");
    }
}

#[tokio::test]
async fn endless_answer_is_given_up() {
    let event = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n",
        "x".repeat(1 << 20)
    );
    let one = format!("data: {}", "x".repeat(9 << 20));
    for endless in [open_stream(&[event.as_str(); 9]), open_stream(&[&one])] {
        let endpoint = patient(vec![endless]).await;
        let (model, _) = client(settings(&endpoint.url));
        let detail = failure(&model, &DiscardingSink).await;
        assert_eq!(
            detail,
            "Model `main` gave no usable answer: its answer is longer than 8 MiB"
        );
    }
}

#[tokio::test]
async fn endpoint_without_streaming_is_asked_more_plainly_and_that_is_remembered() {
    let no_options = http(
        "400 Bad Request",
        "",
        r#"{"error":{"message":"Unknown parameter: 'stream_options'."}}"#,
    );
    let no_stream = http(
        "422 Unprocessable",
        "",
        r#"{"detail":[{"loc":["body","stream"],"msg":"extra"}]}"#,
    );
    for (answers, last) in [
        (
            vec![no_options.clone(), streamed(), streamed()],
            json!({"stream": true}),
        ),
        (
            vec![no_options.clone(), no_stream.clone(), hello(), hello()],
            json!({}),
        ),
        (
            vec![no_stream.clone(), no_stream, hello(), hello()],
            json!({}),
        ),
    ] {
        let asked = answers.len();
        let endpoint = Endpoint::new(answers).await;
        let (model, clock) = client(Settings {
            retries: 0,
            ..settings(&endpoint.url)
        });
        for _ in 0..2 {
            let answer = model
                .answer(&prompt(vec![user("hi")]), &DiscardingSink)
                .await
                .unwrap();
            assert_eq!(answer.text.as_deref(), Some("hello"));
        }
        let seen = endpoint.seen();
        assert_eq!(seen.len(), asked, "the second time it is asked once");
        for one in &seen[asked - 2..] {
            assert_eq!(
                (one.body.get("stream"), one.body.get("stream_options")),
                (last.get("stream"), None)
            );
        }
        assert!(clock.slept.lock().unwrap().is_empty());
    }
}

#[tokio::test]
async fn refusal_for_another_reason_is_not_remembered() {
    let refused = http(
        "400 Bad Request",
        "",
        r#"{"error":{"message":"too many words about streams"}}"#,
    );
    let endpoint = Endpoint::new(vec![refused.clone(), refused.clone(), refused, streamed()]).await;
    let (model, _) = client(settings(&endpoint.url));
    let detail = failure(&model, &DiscardingSink).await;
    assert_eq!(
        detail,
        "Model `main` gave no usable answer (after 3 attempts): it answered with status 400: too many words about streams"
    );
    assert!(
        model
            .answer(&prompt(vec![user("hi")]), &DiscardingSink)
            .await
            .is_ok()
    );
    let asked = endpoint
        .seen()
        .into_iter()
        .map(|seen| seen.body.get("stream_options").is_some());
    assert_eq!(asked.collect::<Vec<_>>(), [true, false, false, true]);
}

#[tokio::test]
async fn refusal_whose_text_has_no_word_stream_leaves_the_next_request_streamed_with_usage() {
    for (body, text) in [
        (r#"{"error":"Upstream timeout"}"#, "Upstream timeout"),
        (r#"{"message":"a 'livestream'"}"#, "a 'livestream'"),
        (r#"{"message":"no","request":{"stream":true}}"#, "no"),
    ] {
        let refused = http("400 Bad Request", "", body);
        let endpoint = Endpoint::new(vec![refused, streamed(), streamed()]).await;
        let (model, _) = client(settings(&endpoint.url));
        let detail = failure(&model, &DiscardingSink).await;
        assert_eq!(
            detail,
            format!("Model `main` gave no usable answer: it answered with status 400: {text}")
        );
        let asked = prompt(vec![user("hi")]);
        assert!(model.answer(&asked, &DiscardingSink).await.is_ok());
        let seen = endpoint.seen();
        assert_eq!(seen.len(), 2);
        assert_eq!(
            seen[1].body["stream_options"],
            json!({"include_usage": true})
        );
    }
}

#[tokio::test]
async fn plainer_request_is_not_remembered_after_a_refusal_that_names_no_parameter() {
    let odd = http(
        "400 Bad Request",
        "",
        r#"{"error":{"message":"stream error"}}"#,
    );
    let endpoint = Endpoint::new(vec![odd, streamed(), streamed()]).await;
    let (model, _) = client(settings(&endpoint.url));
    let asked = prompt(vec![user("hi")]);
    for _ in 0..2 {
        assert!(model.answer(&asked, &DiscardingSink).await.is_ok());
    }
    let asked = endpoint
        .seen()
        .into_iter()
        .map(|seen| seen.body.get("stream_options").is_some());
    assert_eq!(asked.collect::<Vec<_>>(), [true, false, true]);
}

#[tokio::test]
async fn refusal_that_names_stream_after_a_line_break_is_repeated_unstreamed() {
    let refused = http(
        "422 Unprocessable",
        "",
        r#"{"detail":"1 validation error for Body\nstream\n  Extra inputs"}"#,
    );
    let (answer, endpoint, _) = ask(vec![refused.clone(), refused, hello()]).await;
    assert_eq!(answer.unwrap().text.as_deref(), Some("hello"));
    assert_eq!(endpoint.seen()[2].body.get("stream"), None);
}
