//! Tests of addresses with characters that a parser of URLs skips.

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
