//! Tests of URLs with arguments and credentials filled in, and of refused values.

use percent_encoding::percent_decode_str;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::secret::Secret;

impl UrlTemplate {
    fn read(text: &str) -> Result<Self, String> {
        let mut mistakes = Vec::new();
        let template = Self::parse(text, &mut mistakes);
        template
            .filter(|_| mistakes.is_empty())
            .ok_or_else(|| mistakes.join("; "))
    }
}

fn url(template: &str, arguments: &Value) -> Result<String, String> {
    UrlTemplate::read(template)?
        .fill(arguments, &Credentials::default(), true)
        .map(String::from)
}

#[test]
fn argument_is_one_path_segment_whatever_it_holds() {
    for (id, expected) in [
        ("17", "17"),
        ("a/b", "a%2Fb"),
        ("a..b/..c", "a..b%2F..c"),
        ("a b?c#d&e=f", "a%20b%3Fc%23d%26e%3Df"),
        ("%2e%2e%2e", "%252e%252e%252e"),
        ("a\\b", "a%5Cb"),
        ("@evil.com:80", "%40evil.com%3A80"),
        ("é", "%C3%A9"),
        ("...", "..."),
        (";v=1", "%3Bv%3D1"),
        ("\n", "%0A"),
    ] {
        let found = url("http://h/orders/{id}/x", &json!({"id": id}));
        assert_eq!(found, Ok(format!("http://h/orders/{expected}/x")));
    }
    assert_eq!(
        url("http://h/{a}-{b}", &json!({"a": 1, "b": true})),
        Ok("http://h/1-true".to_owned())
    );
    assert_eq!(
        url("http://h/{a}", &json!({"a": 17.0})),
        Ok("http://h/17".to_owned())
    );
    assert_eq!(
        url("http://h/{a}", &json!({"a": 0.5})),
        Ok("http://h/0.5".to_owned())
    );
}

#[test]
fn argument_that_would_leave_its_segment_is_refused() {
    for (template, arguments) in [
        ("http://h/orders/{id}", json!({"id": "."})),
        ("http://h/orders/{id}", json!({"id": ".."})),
        ("http://h/orders/{id}/x", json!({"id": ""})),
        ("http://h/orders/.{id}", json!({"id": "."})),
        ("http://h/orders/%2e{id}", json!({"id": "."})),
        ("http://h/orders/{a}{b}", json!({"a": ".", "b": "."})),
        ("http://h/orders/{id}", json!({})),
        ("http://h/orders/{id}", json!({"id": null})),
        ("http://h/orders/{id}", json!({"id": ["a"]})),
        ("http://h/orders/{id}", json!({"id": {"a": 1}})),
    ] {
        assert!(url(template, &arguments).is_err(), "{template} {arguments}");
    }
}

#[test]
fn shown_address_has_the_arguments_as_they_are_sent_and_no_query() {
    let shown = |template: &str, arguments: &Value| {
        UrlTemplate::read(template)
            .unwrap()
            .display_address(arguments)
    };
    for (template, arguments, expected) in [
        (
            "http://h/refunds/{id}",
            json!({"id": 17}),
            "http://h/refunds/17",
        ),
        (
            "HTTP://H:80/refunds/{id}?k=1&x={id}",
            json!({"id": "17"}),
            "http://h/refunds/17",
        ),
        ("http://h", json!({}), "http://h/"),
        (
            "http://h/{a}-{b}/x",
            json!({"a": "a/b", "b": "\u{202e}"}),
            "http://h/a%2Fb-%E2%80%AE/x",
        ),
        (
            "http://h/{id}",
            json!({"id": "../admin?x#y"}),
            "http://h/{id}",
        ),
        (
            "http://h/é/{id}",
            json!({"id": "א"}),
            "http://h/%C3%A9/%D7%90",
        ),
        ("http://h/{id}/x", json!({}), "http://h/{id}/x"),
        ("http://h/{id}/x", json!({"id": ".."}), "http://h/{id}/x"),
        (
            "http://h/{id}/{x}",
            json!({"id": ["a"], "x": 1}),
            "http://h/{id}/1",
        ),
        ("http://h/.{id}/x", json!({"id": "."}), "http://h/.{id}/x"),
        (
            "http://h/a/.%2{id}/x",
            json!({"id": "e"}),
            "http://h/a/.%2{id}/x",
        ),
        (
            "http://h/{{credential:jira.token}}/{id}?k={{credential:jira.token}}",
            json!({"id": "{{credential:jira.token}}'0'"}),
            "http://h/{{credential:jira.token}}/%7B%7Bcredential%3Ajira.token%7D%7D%270%27",
        ),
    ] {
        assert_eq!(
            shown(template, &arguments),
            expected,
            "{template} {arguments}"
        );
    }
}

#[test]
fn remaining_arguments_go_into_the_query() {
    let arguments = json!({"id": "7", "q": "a&b=c d", "n": 2, "yes": false, "none": null});
    assert_eq!(
        url("http://h/x/{id}", &arguments),
        Ok("http://h/x/7?n=2&q=a%26b%3Dc%20d&yes=false".to_owned())
    );
    assert_eq!(
        url("http://h?k=1", &json!({"a": 1})),
        Ok("http://h/?k=1&a=1".to_owned())
    );
    assert_eq!(
        url("http://h/?k={id}", &json!({"id": "", "a": "#"})),
        Ok("http://h/?k=&a=%23".to_owned())
    );
    assert!(url("http://h/?k=1", &json!({"K": 2})).is_err());
    assert!(url("http://h/", &json!({"a": [1]})).is_err());
    let post = UrlTemplate::read("http://h/{id}").unwrap();
    assert_eq!(
        post.fill(&json!({"id": 1, "a": 2}), &Credentials::default(), false)
            .map(String::from),
        Ok("http://h/1".to_owned())
    );
}

#[test]
fn template_with_an_open_host_is_a_mistake() {
    for template in [
        "http://{host}/x",
        "http://h:{port}/x",
        "{scheme}://h/x",
        "{url}",
        "ftp://h/",
        "h/x",
        "",
        "http://",
        "http:///x",
        "http://u:p@h/",
        "http://h/x#y",
        "http://h/a b",
        "http://h/{",
        "http://h/}",
        "http://h/{}",
        "http://h/{a{b}}",
        "http://h\\{x}",
        "http://h/../x",
        "http://h/./x",
        "http://h:99999/",
        "http://h/{{credential:jira}}",
        "http://{{credential:jira.host}}/x",
        "http://h:{{credential:jira.port}}/x",
        "{{credential:jira.scheme}}://h/x",
        "http://{{credential:jira.user}}@h/x",
        "http://h/?{{credential:jira.token}}",
        "http://h/?{{credential:jira.token}}=1",
        "http://h/?a=1&{{credential:jira.token}}",
        "http://h/?a=1&b{{credential:jira.token}}=2",
        "http://h/#{{credential:jira.token}}",
        "builtin:other/x",
        "file:///etc/passwd",
    ] {
        assert!(UrlTemplate::read(template).is_err(), "{template}");
    }
    let template =
        UrlTemplate::read("HTTPS://H:443/a/{x}?y={z}&k={{credential:jira.token}}").unwrap();
    assert_eq!(template.origin, "https://h");
    assert_eq!(template.credential_names().collect::<Vec<_>>(), ["jira"]);
    assert_eq!(template.arguments().collect::<Vec<_>>(), ["x", "z"]);
}

fn holding(value: &str) -> Credentials {
    let mut credentials = Credentials::default();
    credentials.insert(
        "jira",
        BTreeMap::from([("token".to_owned(), Secret::new(value.to_owned()))]),
    );
    credentials
}

#[test]
fn credential_fills_one_path_segment_or_query_value_whatever_it_holds() {
    let fill = |template: &str, value: &str| {
        UrlTemplate::read(template)
            .unwrap()
            .fill(&json!({"id": "7"}), &holding(value), false)
            .map(String::from)
    };
    let (path, query) = (
        "http://h/{id}/{{credential:jira.token}}/x",
        "http://h/{id}?a=-{{credential:jira.token}}&b={id}",
    );
    for (value, expected) in [
        ("plain", "plain"),
        ("a/b?c#d@evil", "a%2Fb%3Fc%23d%40evil"),
        ("a/b/c", "a%2Fb%2Fc"),
        ("%2e%2x", "%252e%252x"),
        ("a&b=c", "a%26b%3Dc"),
        ("{id}", "%7Bid%7D"),
        (
            "{{credential:jira.token}}",
            "%7B%7Bcredential%3Ajira.token%7D%7D",
        ),
        ("clé 中", "cl%C3%A9%20%E4%B8%AD"),
        ("\\\\evil", "%5C%5Cevil"),
    ] {
        assert_eq!(
            fill(path, value),
            Ok(format!("http://h/7/{expected}/x")),
            "{value}"
        );
        assert_eq!(
            fill(query, value),
            Ok(format!("http://h/7?a=-{expected}&b=7")),
            "{value}"
        );
    }
    for value in ["", ".", "..", "../../admin", "%2e%2e", "a%252f..\\b"] {
        assert!(fill(path, value).is_err(), "{value}");
        assert!(fill(query, value).is_ok(), "{value}");
    }
    assert!(fill("http://h/.{{credential:jira.token}}", ".").is_err());
    for value in ["a\r\nb", "\0", "\u{7f}"] {
        assert!(fill(path, value).is_err() && fill(query, value).is_err());
    }
    for template in [path, query] {
        let missing = UrlTemplate::read(template).unwrap().fill(
            &json!({"id": "7"}),
            &Credentials::default(),
            false,
        );
        assert_eq!(missing.unwrap_err(), "the credential `jira` is missing");
    }
}

/// Asserts that `text` is the second of the three path segments, and that the rest of the URL is
/// unchanged. Returns the query.
fn in_its_segment(url: &Url, text: &str) -> Vec<(String, String)> {
    assert_eq!(
        (url.scheme(), url.host_str(), url.port(), url.fragment()),
        ("http", Some("h"), Some(81), None)
    );
    let segments: Vec<&str> = url.path_segments().unwrap().collect();
    assert_eq!((segments.len(), segments[0], segments[2]), (3, "a", "b"));
    assert_eq!(percent_decode_str(segments[1]).decode_utf8().unwrap(), text);
    url.query_pairs().into_owned().collect()
}

/// Whether `.` or `..` stands between slashes, backslashes or the ends of a text, at any level of
/// percent-decoding.
fn climbs(text: &str) -> bool {
    let dots = |part: &[u8]| part == b"." || part == b"..";
    if text
        .as_bytes()
        .split(|byte| matches!(byte, b'/' | b'\\'))
        .any(dots)
    {
        return true;
    }
    let decoded: Vec<u8> = percent_decode_str(text).collect();
    // This function looks only for dots, slashes and escapes, which are ASCII. So `?` can replace
    // every other byte, which need not be valid UTF-8.
    let decoded: String = decoded
        .into_iter()
        .map(|byte| {
            if byte.is_ascii() {
                char::from(byte)
            } else {
                '?'
            }
        })
        .collect();
    decoded.len() < text.len() && climbs(&decoded)
}

#[test]
fn argument_with_dots_between_slashes_or_ends_is_refused_however_often_it_is_encoded() {
    for id in [
        ".",
        "..",
        "../admin",
        "a/..",
        "a/../b",
        "./a",
        "a/.",
        "..\\a",
        "a\\..\\b",
        "%2e%2e",
        "%2E%2e/a",
        "..%2Fa",
        "..%5ca",
        "%252e%252e",
        "a%252f..",
        "%25252e%25252E%25252f",
        "%%32e%2e",
        "%2%65%2%65",
        "%25%32%65%25%32%65",
        "a%2f%2e%2e",
        "\\.",
    ] {
        for template in [
            "http://h/orders/{id}",
            "http://h/{id}/x",
            "http://h/a/{id}?k={n}",
        ] {
            let template = UrlTemplate::read(template).unwrap();
            let arguments = json!({"id": id, "n": 1});
            assert!(
                template
                    .refusal_reason(&arguments, false)
                    .unwrap()
                    .contains("the argument `id`"),
                "{id}"
            );
            assert!(
                template
                    .fill(&arguments, &Credentials::default(), false)
                    .is_err(),
                "{id}"
            );
        }
        // A text that is refused in the path is accepted as a value in the query.
        assert!(url("http://h/a?k={id}", &json!({"id": id})).is_ok(), "{id}");
        assert!(climbs(id), "{id}");
    }
    for (template, arguments) in [
        ("http://h/.{id}", json!({"id": "%2e"})),
        ("http://h/{a}{b}", json!({"a": "%2e%2", "b": "e"})),
        ("http://h/{a}{b}", json!({"a": "x%2", "b": "f..", "c": 1})),
        ("http://h/..%2F{a}", json!({"a": "x"})),
    ] {
        assert!(url(template, &arguments).is_err(), "{template} {arguments}");
    }
    for id in [
        "...",
        "a..",
        "..a",
        "a.b",
        "..a/b..",
        ".a",
        "%2e%2e%2e",
        "%",
        "%2",
        "..%zz",
        "a%2e.b",
    ] {
        assert!(
            url("http://h/orders/{id}", &json!({"id": id})).is_ok(),
            "{id}"
        );
    }
    let long = format!("%{}2e%2e", "25".repeat(100_000));
    assert!(
        url("http://h/orders/{id}", &json!({"id": long})).is_err(),
        "in time that grows with the text"
    );
}

proptest! {
    #[test]
    fn credential_value_stays_in_its_place_in_the_url(token in any::<String>(), other in "[./%2eE\\\\?#@:&=]{0,6}") {
        for text in [token, other] {
            let template = UrlTemplate::read("http://h:81/a/{{credential:jira.token}}/b?x={{credential:jira.token}}").unwrap();
            let Ok(url) = template.fill(&json!({}), &holding(&text), false) else {
                prop_assert!(text.is_empty() || climbs(&text) || text.chars().any(char::is_control));
                continue;
            };
            let query = in_its_segment(&url, &text);
            prop_assert_eq!(query, [("x".to_owned(), text.clone())]);
        }
    }

    #[test]
    fn filled_in_argument_is_shown_as_it_is_sent(id in any::<String>(), other in "[./%2eE\\\\?#@:'0-9{}]{0,6}") {
        for text in [id, other] {
            let template = UrlTemplate::read("http://h:81/a'1''3'/{id}/b.{id}?x={id}").unwrap();
            let arguments = json!({"id": text});
            let shown = template.display_address(&arguments);
            match template.fill(&arguments, &Credentials::default(), false) {
                Ok(url) => prop_assert_eq!(shown, format!("http://h:81{}", url.path())),
                Err(_) => prop_assert!(shown.contains("{id}"), "{}", shown),
            }
        }
    }

    #[test]
    fn filled_in_argument_stays_in_its_path_segment(id in any::<String>(), other in "[./%2eE\\\\?#@:]{0,6}") {
        for text in [id, other] {
            let template = UrlTemplate::read("http://h:81/a/{id}/b?x={id}").unwrap();
            let Ok(url) = template.fill(&json!({"id": text, "n": text}), &Credentials::default(), true) else {
                prop_assert!(text.is_empty() || climbs(&text));
                continue;
            };
            let query = in_its_segment(&url, &text);
            prop_assert_eq!(query, [("x".to_owned(), text.clone()), ("n".to_owned(), text.clone())]);
        }
    }
}
