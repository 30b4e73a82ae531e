//! Tests of addresses with characters that a parser of URLs skips, and of addresses to listen on
//! that overlap.

use super::*;

#[test]
fn own_page_with_a_blank_or_a_line_break_is_refused() {
    for (url, is_refused) in [
        ("https://app.acme.com/approvals/{request_id}", false),
        (
            "https://app.acme.com/{request_id}?via={request_id}#x",
            false,
        ),
        (" https://app.acme.com/{request_id}", true),
        ("https://app.acme.com/{request_id}\\n", true),
        ("https://app.acme.com/a b/{request_id}", true),
        ("https://app.acme.com/\\t{request_id}", true),
    ] {
        let text = format!("{BASE}server: {{ request_url: \"{url}\" }}\n{TOOL}");
        let found = read(&text).err().unwrap_or_default();
        let of_key = found
            .iter()
            .filter(|line| line.starts_with("3:11: server.request_url: expected an address"));
        let expected = usize::from(is_refused);
        assert_eq!(
            (of_key.count(), found.len()),
            (expected, expected),
            "{url:?}"
        );
    }
}

#[test]
fn metrics_may_not_listen_where_the_main_listener_does() {
    for (listen, metrics, is_refused) in [
        ("127.0.0.1:80", "127.0.0.1:80", true),
        ("0.0.0.0:80", "127.0.0.1:80", true),
        ("127.0.0.1:80", "0.0.0.0:80", true),
        ("[::]:80", "[::1]:80", true),
        ("0.0.0.0:80", "127.0.0.1:81", false),
        ("127.0.0.1:80", "127.0.0.2:80", false),
        ("0.0.0.0:0", "0.0.0.0:0", false),
    ] {
        let text = format!(
            "{BASE}{TOOL}{AUTH}server: {{ metrics_listen: '{metrics}', listen: '{listen}', public_url: 'https://h' }}\n"
        );
        let found = read(&text).err().unwrap_or_default();
        let line = "5:11: server.metrics_listen: this is `server.listen`: give the metrics an address of their own";
        let expected: &[&str] = if is_refused { &[line] } else { &[] };
        assert_eq!(found, expected, "{listen} {metrics}");
    }
}
