//! Tests of addresses with characters that a parser of URLs skips, and of addresses to listen on
//! that overlap, or to which a service without accounts would not answer.

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
fn service_without_accounts_listens_only_on_addresses_that_it_answers_to() {
    for (auth, ip, is_refused) in [
        ("", "127.0.0.2", true),
        ("", "127.255.255.254", true),
        ("", "127.0.0.1", false),
        ("", "localhost", false),
        ("", "[::1]", false),
        (AUTH, "127.0.0.2", false),
    ] {
        for (key, port) in [("listen", 80), ("metrics_listen", 81)] {
            let text = format!("{BASE}server: {{ {key}: '{ip}:{port}' }}\n{TOOL}{auth}");
            let found = read(&text).err().unwrap_or_default();
            let line = format!(
                "3:11: server.{key}: without `auth` the service answers only to the hosts `localhost`, `127.0.0.1` and `[::1]`: listen on `127.0.0.1` or `[::1]`"
            );
            let expected = if is_refused { vec![line] } else { Vec::new() };
            assert_eq!(found, expected, "{key} {ip}");
        }
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
