//! Tests of HTTP/2: the limits of a connection, slow clients, and clients that keep a connection open
//! without a request.

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
// The types of frames (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// Returns a HEADERS frame with a request for `path`, which must be shorter than 127 bytes. `method`
/// is an index into the static table of HPACK. `more` is appended; it contains further header fields
/// in the encoding of HPACK.
fn request(method: u8, flags: u8, stream: u32, path: &str, more: &[u8]) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    let block = [
        &[0x80 | method, 0x86, 0x41, 1, b'h', 0x04, length],
        path.as_bytes(),
        more,
    ]
    .concat();
    frame(HEADERS, flags, stream, &block)
}

fn get(stream: u32, path: &str, more: &[u8]) -> Vec<u8> {
    // 0x05 sets the flags END_STREAM and END_HEADERS.
    request(2, 0x05, stream, path, more)
}

/// Returns the head of a POST request, whose body follows in DATA frames.
fn post(stream: u32, path: &str) -> Vec<u8> {
    // 0x04 sets the flag END_HEADERS alone.
    request(3, 0x04, stream, path, &[])
}

/// Returns a header field `a` with a value of `size` bytes, in the encoding of HPACK. The field
/// must fit into a frame of 16 KiB.
fn field(size: usize) -> Vec<u8> {
    let rest = size - 127;
    let seven = |shift: usize| u8::try_from(rest >> shift & 127).unwrap();
    let length = [127, seven(0) | 128, seven(7) | 128, seven(14)];
    [&[0, 1, b'a'][..], &length, &vec![b'x'; size]].concat()
}

fn speaking_http2() -> Setup {
    Setup::speaking(10, Some(PingTimes::default()))
}

struct Frames(Client);

impl Frames {
    async fn open(setup: &Setup) -> Self {
        let mut client = setup.open();
        client.0.write_all(PREFACE).await.unwrap();
        Self(client)
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.0.0.write_all(bytes).await.unwrap();
    }

    /// Returns the next frame: type, flags, stream and payload; `None` at the end of the
    /// connection.
    async fn next(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.0.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.0.0.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some((head[3], head[4], stream, payload))
    }

    /// Sends `GET /`, and checks that the response is 200 and complete.
    async fn asks(&mut self, stream: u32) {
        self.send(&get(stream, "/", &[])).await;
        // 0x88 is the static entry `:status: 200`.
        assert_eq!(self.payload(HEADERS).await.unwrap()[0], 0x88);
        assert_eq!(self.payload(DATA).await.unwrap(), b"127.0.0.1:4711");
    }

    /// Returns the payload of the next frame of type `kind`; `None` if the connection ends first.
    async fn payload(&mut self, kind: u8) -> Option<Vec<u8>> {
        loop {
            let (found, flags, _, payload) = self.next().await?;
            // Skips the acknowledgement of settings, which has no payload.
            if found == kind && !(kind == SETTINGS && flags == 1) {
                return Some(payload);
            }
        }
    }

    /// Returns the stream and the payload of the next `RST_STREAM` frame.
    async fn reset(&mut self) -> (u32, Vec<u8>) {
        loop {
            let (kind, _, stream, payload) = self.next().await.unwrap();
            if kind == RST_STREAM {
                return (stream, payload);
            }
        }
    }
}

#[tokio::test]
async fn limits_are_announced_and_a_stream_over_them_is_refused() {
    let setup = speaking_http2();
    let mut client = Frames::open(&setup).await;
    let settings = client.payload(SETTINGS).await.unwrap();
    let value = |name: u16| {
        let mut entries = settings.chunks(6);
        let found = entries.find(|entry| entry[..2] == name.to_be_bytes())?;
        Some(u32::from_be_bytes(found[2..].try_into().unwrap()))
    };
    assert_eq!(value(3), Some(256), "MAX_CONCURRENT_STREAMS");
    assert_eq!(value(6), Some(16 * 1024), "MAX_HEADER_LIST_SIZE");
    for stream in 0..257 {
        client.send(&get(2 * stream + 1, "/held", &[])).await;
    }
    let reset = client.reset().await;
    assert_eq!(reset, (513, vec![0, 0, 0, 7]), "REFUSED_STREAM");
}

#[tokio::test]
async fn header_list_over_16_kib_is_refused_and_the_connection_lives() {
    let setup = speaking_http2();
    let mut client = Frames::open(&setup).await;
    for (stream, size, refused) in [
        (1, 15 * 1024, false),
        (3, 16_200, true),
        (5, 15 * 1024, false),
    ] {
        let more = field(size);
        client.send(&get(stream, "/", &more)).await;
        let block = client.payload(HEADERS).await.unwrap();
        // 0x88 is the static entry `:status: 200`.
        assert_eq!(block[0] != 0x88, refused, "{size}: {block:?}");
    }
}

#[tokio::test]
async fn streams_that_are_reset_at_once_end_the_connection() {
    let setup = speaking_http2();
    let mut client = Frames::open(&setup).await;
    let mut burst = Vec::new();
    for stream in 0..200 {
        let stream = 2 * stream + 1;
        burst.extend(get(stream, "/held", &[]));
        burst.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
    }
    client.send(&burst).await;
    let payload = client.payload(GOAWAY).await.unwrap();
    assert_eq!(payload[4..8], [0, 0, 0, 11], "ENHANCE_YOUR_CALM");
    assert!(client.payload(GOAWAY).await.is_none(), "it ends");
    speaking_http2().open().asks().await;
}

/// The server answers each malformed request with `RST_STREAM`.
#[tokio::test]
async fn client_that_makes_the_server_reset_over_1024_streams_is_closed() {
    let setup = speaking_http2();
    let mut client = Frames::open(&setup).await;
    // The encoded field `content-length: 1`. The requests below are malformed, because they have
    // this field and no body.
    let malformed = [0x0f, 0x0d, 1, b'1'];
    for number in 0..1024 {
        client.send(&get(2 * number + 1, "/", &malformed)).await;
        let reason = client.payload(RST_STREAM).await.unwrap();
        assert_eq!(reason, [0, 0, 0, 1], "PROTOCOL_ERROR");
    }
    client.send(&get(2049, "/", &malformed)).await;
    let payload = client.payload(GOAWAY).await.unwrap();
    assert_eq!(payload[4..8], [0, 0, 0, 11], "ENHANCE_YOUR_CALM");
    assert!(client.payload(GOAWAY).await.is_none(), "it ends");
}

/// Sends `parts` one by one, and advances the clock by 3 seconds after each part.
async fn send_slowly<'p>(
    setup: &Setup,
    client: &mut Client,
    parts: impl IntoIterator<Item = &'p [u8]>,
) {
    for part in parts {
        client.0.write_all(part).await.unwrap();
        tokio::task::yield_now().await;
        setup.clock.advance(Duration::from_secs(3));
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn partial_preface_or_request_head_is_closed_in_time_however_slowly_it_arrives() {
    let setup = speaking_http2();
    let mut preface = setup.open();
    send_slowly(&setup, &mut preface, PREFACE[..18].chunks(6)).await;
    setup.clock.advance(Duration::from_secs(1));
    assert!(preface.is_closed().await);

    let head = get(1, "/", &[]);
    let (most, last) = head.split_at(head.len() - 1);
    let parts = || most.chunks(most.len().div_ceil(3));
    let mut in_time = Frames::open(&setup).await;
    send_slowly(&setup, &mut in_time.0, parts()).await;
    in_time.send(last).await;
    assert!(in_time.payload(HEADERS).await.is_some());
    let mut late = Frames::open(&setup).await;
    send_slowly(&setup, &mut late.0, parts()).await;
    setup.clock.advance(Duration::from_secs(1));
    assert!(late.payload(HEADERS).await.is_none());

    // On HTTP/2, the head of the next request must be complete within `KEEP_ALIVE_TIMEOUT`.
    let mut kept = Frames::open(&setup).await;
    kept.asks(1).await;
    tokio::task::yield_now().await;
    setup.clock.advance(just_before(KEEP_ALIVE_TIMEOUT));
    kept.send(&get(3, "/", &[])[..most.len()]).await;
    tokio::task::yield_now().await;
    setup.clock.advance(Duration::from_millis(1));
    assert!(kept.payload(HEADERS).await.is_none());
}

#[tokio::test]
async fn body_that_is_still_read_keeps_its_connection() {
    let setup = speaking_http2();
    let mut slow = Frames::open(&setup).await;
    slow.send(&post(1, "/body")).await;
    slow.send(&frame(DATA, 0, 1, b"ab")).await;
    tokio::task::yield_now().await;
    setup.clock.advance(Duration::from_mins(2));
    tokio::task::yield_now().await;
    // 1 is the flag END_STREAM.
    slow.send(&frame(DATA, 1, 1, b"cd")).await;
    assert_eq!(slow.payload(DATA).await.unwrap(), b"4");
    tokio::task::yield_now().await;
    setup.clock.advance(just_before(KEEP_ALIVE_TIMEOUT));
    slow.asks(3).await;
}

#[tokio::test]
async fn longest_idle_connection_makes_room_for_the_next() {
    let setup = Setup::speaking(3, Some(PingTimes::default()));
    let mut first = Frames::open(&setup).await;
    let mut second = Frames::open(&setup).await;
    let mut third = Frames::open(&setup).await;
    for client in [&mut first, &mut second, &mut third] {
        client.asks(1).await;
    }
    first.asks(3).await;
    // `second` has been idle longest, because `first` has just sent another request.
    Frames::open(&setup).await.asks(1).await;
    assert!(second.payload(HEADERS).await.is_none());
    third.asks(3).await;
    // A connection that serves a request of an authenticated caller stays open.
    first.send(&get(5, "/held", &[])).await;
    setup.held.notified().await;
    let mut more = Vec::new();
    for _ in 0..3 {
        let mut client = Frames::open(&setup).await;
        client.asks(1).await;
        more.push(client);
    }
    assert!(third.payload(HEADERS).await.is_none());
    setup.leave.add_permits(1);
    assert_eq!(first.payload(DATA).await.unwrap(), b"held");
    // A connection with an incomplete preface or request head counts as idle.
    for _ in 0..50 {
        let mut half = setup.open();
        half.send("PRI * HTTP/2.0\r\n").await;
        std::mem::forget(half);
        let mut half = Frames::open(&setup).await;
        half.send(&get(1, "/", &[])[..12]).await;
        std::mem::forget(half);
    }
    for _ in 0..5 {
        Frames::open(&setup).await.asks(1).await;
    }
}

#[tokio::test]
async fn unauthenticated_request_with_a_slow_body_makes_room_for_the_next_client() {
    let setup = Setup::speaking(1, Some(PingTimes::default()));
    let mut stranger = Frames::open(&setup).await;
    stranger.send(&post(1, "/sign-in")).await;
    stranger.send(&frame(DATA, 0, 1, b"ab")).await;
    tokio::task::yield_now().await;
    Frames::open(&setup).await.asks(1).await;
    assert!(stranger.payload(HEADERS).await.is_none());
}

/// Lets the server's tasks run until they wait.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

async fn advance(setup: &Setup, by: Duration) {
    setup.clock.advance(by);
    settle().await;
}

async fn is_open(client: &mut Frames) -> bool {
    let ping = frame(PING, 0, 0, &[0; 8]);
    client.0.0.write_all(&ping).await.is_ok()
}

/// Sends a ping and advances the clock by `time`, up to four times. Returns when a ping cannot be
/// sent, because the server has closed the connection. Panics if all four pings can be sent.
async fn closed_within(setup: &Setup, client: &mut Frames, time: Duration) {
    for _ in 0..4 {
        let is_open = is_open(client).await;
        settle().await;
        advance(setup, time).await;
        if !is_open {
            return;
        }
    }
    panic!("the connection lives");
}

#[tokio::test]
async fn connection_that_only_pings_is_closed_in_time() {
    let setup = speaking_http2();
    let mut silent = Frames::open(&setup).await;
    silent.payload(SETTINGS).await.unwrap();
    closed_within(&setup, &mut silent, HEADER_TIMEOUT).await;
    let mut idle = Frames::open(&setup).await;
    idle.send(&get(1, "/", &[])).await;
    idle.payload(HEADERS).await.unwrap();
    closed_within(&setup, &mut idle, KEEP_ALIVE_TIMEOUT).await;
}

#[tokio::test]
async fn client_that_reads_nothing_is_closed() {
    let setup = speaking_http2();
    let mut deaf = Frames::open(&setup).await;
    let window = |stream: u32| frame(WINDOW_UPDATE, 0, stream, &[0x3f, 0, 0, 0]);
    let large = [window(0), get(1, "/large", &[]), window(1)].concat();
    deaf.send(&large).await;
    let mut closed = false;
    for _ in 0..4 {
        settle().await;
        setup.clock.advance(WRITE_TIMEOUT);
        closed |= !is_open(&mut deaf).await;
    }
    assert!(closed);
}

/// Requests `path` on a new connection. The window of each response is `window` bytes.
async fn requested(setup: &Setup, window: u32, path: &str) -> Frames {
    let mut client = Frames::open(setup).await;
    request_with_window(&mut client, 1, window, path).await;
    client
}

async fn request_with_window(client: &mut Frames, stream: u32, window: u32, path: &str) {
    // 4 is SETTINGS_INITIAL_WINDOW_SIZE.
    let entry = [&[0, 4][..], &window.to_be_bytes()].concat();
    client.send(&frame(SETTINGS, 0, 0, &entry)).await;
    client.send(&get(stream, path, &[])).await;
    client.payload(HEADERS).await.unwrap();
    settle().await;
}

/// Advances the clock to just before the end of `WRITE_TIMEOUT`.
async fn until_just_before_the_timeout(setup: &Setup) {
    advance(setup, just_before(WRITE_TIMEOUT)).await;
}

#[tokio::test]
async fn client_that_lets_nothing_of_a_response_through_its_window_is_closed_after_30_seconds() {
    // With a window of 1, the first byte of the response is sent.
    for window in [0, 1] {
        let setup = speaking_http2();
        let mut deaf = requested(&setup, window, "/large").await;
        until_just_before_the_timeout(&setup).await;
        assert!(is_open(&mut deaf).await, "{window}");
        advance(&setup, Duration::from_secs(1)).await;
        assert!(!is_open(&mut deaf).await, "{window}");
    }
}

#[tokio::test]
async fn client_that_takes_nothing_of_a_later_response_is_closed_after_30_seconds() {
    let setup = speaking_http2();
    let mut deaf = Frames::open(&setup).await;
    deaf.asks(1).await;
    // The watchdog then waits for the end of `KEEP_ALIVE_TIMEOUT`.
    advance(&setup, HEADER_TIMEOUT).await;
    request_with_window(&mut deaf, 3, 0, "/large").await;
    until_just_before_the_timeout(&setup).await;
    assert!(is_open(&mut deaf).await);
    advance(&setup, Duration::from_secs(1)).await;
    assert!(!is_open(&mut deaf).await);
}

#[tokio::test]
async fn last_bytes_of_a_response_are_sent_after_another_response_was_not_taken() {
    let setup = speaking_http2();
    let mut proxy = requested(&setup, 0, "/large").await;
    proxy.send(&get(3, "/held", &[])).await;
    setup.held.notified().await;
    until_just_before_the_timeout(&setup).await;
    setup.leave.add_permits(1);
    for (window, data) in [(1, "h"), (3, "eld")] {
        let window = frame(WINDOW_UPDATE, 0, 3, &[0, 0, 0, window]);
        proxy.send(&window).await;
        assert_eq!(proxy.payload(DATA).await.unwrap(), data.as_bytes());
        settle().await;
        // hyper has dropped the body of `/held`. The response `/large` times out.
        advance(&setup, Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn response_that_a_client_does_not_take_ends_and_other_requests_of_its_connection_go_on() {
    let setup = speaking_http2();
    let mut proxy = requested(&setup, 0, "/large").await;
    proxy.send(&get(3, "/held", &[])).await;
    setup.held.notified().await;
    until_just_before_the_timeout(&setup).await;
    advance(&setup, Duration::from_secs(1)).await;
    assert_eq!(proxy.reset().await, (1, vec![0, 0, 0, 8]), "CANCEL");
    let window = frame(WINDOW_UPDATE, 0, 3, &[0, 0, 0x40, 0]);
    proxy.send(&window).await;
    setup.leave.add_permits(1);
    assert_eq!(proxy.payload(DATA).await.unwrap(), b"held");
}

#[tokio::test]
async fn client_that_takes_a_frame_of_a_response_in_30_seconds_is_not_closed() {
    let setup = speaking_http2();
    let mut slow = requested(&setup, 0, "/large").await;
    for _ in 0..3 {
        until_just_before_the_timeout(&setup).await;
        // A window of 16 KiB more.
        let window = frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0x40, 0]);
        slow.send(&window).await;
        let mut taken = 0;
        while taken < 16 * 1024 {
            taken += slow.payload(DATA).await.unwrap().len();
        }
        settle().await;
    }
    advance(&setup, WRITE_TIMEOUT).await;
    advance(&setup, Duration::from_secs(1)).await;
    assert!(!is_open(&mut slow).await);
}

#[tokio::test]
async fn response_without_more_data_is_not_closed_after_30_seconds() {
    let setup = speaking_http2();
    let mut watches = requested(&setup, 1024, "/endless").await;
    assert_eq!(watches.payload(DATA).await.unwrap(), b"first");
    until_just_before_the_timeout(&setup).await;
    advance(&setup, Duration::from_mins(10)).await;
    assert!(is_open(&mut watches).await);
}

#[tokio::test]
async fn client_that_answers_no_ping_is_closed_while_it_waits_for_a_response() {
    let short = Duration::from_millis(20);
    let pings = PingTimes {
        interval: short,
        timeout: short,
    };
    let setup = Setup::speaking(10, Some(pings));
    let mut gone = Frames::open(&setup).await;
    gone.send(&get(1, "/held", &[])).await;
    setup.held.notified().await;
    assert!(gone.payload(PING).await.is_some());
    assert!(gone.payload(PING).await.is_none(), "it ends");
}
