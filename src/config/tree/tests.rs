//! Tests of reading YAML into the tree.

use super::*;

fn read(text: &str) -> (Option<Node>, Mistakes) {
    let mut mistakes = Mistakes::default();
    let node = parse(text, None, &mut mistakes);
    (node, mistakes)
}

#[test]
fn scalars_are_read_by_the_core_schema() {
    let (node, mistakes) = read(
        "[~, true, no, 12, -3, 0x1f, 0o17, 1.5, 1e3, '12', 2024-10-21, 1.2.3, .inf, 10s, +7, ., 18446744073709551615]",
    );
    assert!(mistakes.is_empty(), "{mistakes:?}");
    assert_eq!(
        node.unwrap().to_json(),
        serde_json::json!([
            null,
            true,
            "no",
            12,
            -3,
            31,
            15,
            1.5,
            1000.0,
            "12",
            "2024-10-21",
            "1.2.3",
            ".inf",
            "10s",
            7,
            ".",
            u64::MAX
        ])
    );
}

#[test]
fn nodes_know_their_line_and_column() {
    let (node, _) = read("a:\n  b: 1\n  c: [x, y]\n");
    let node = node.unwrap();
    assert_eq!(
        *node.origin_of(&["a", "b"]),
        Origin::File { line: 2, column: 3 }
    );
    assert_eq!(
        *node.origin_of(&["a", "c", "1"]),
        Origin::File {
            line: 3,
            column: 10
        }
    );
    assert_eq!(
        *node.origin_of(&["a", "nothing"]),
        Origin::File { line: 1, column: 1 }
    );
}

#[test]
fn every_repeated_key_is_reported_and_the_first_value_counts() {
    let (node, mistakes) = read("a: 1\nb: {c: 1, c: 2}\na: 3\n");
    assert_eq!(
        node.unwrap().to_json(),
        serde_json::json!({"a": 1, "b": {"c": 1}})
    );
    let places: Vec<_> = mistakes
        .found
        .iter()
        .map(|mistake| mistake.place.join(" "))
        .collect();
    assert_eq!(places, ["@2:11 b c", "@3:1 a"]);
}

#[test]
fn key_that_would_be_a_number_or_a_word_as_a_value_keeps_its_spelling() {
    let (node, mistakes) =
        read("{007: a, 7: b, 1e3: c, 0x1f: d, +1: e, True: f, null: g, in: {01: h}}");
    assert!(mistakes.is_empty(), "{mistakes:?}");
    assert_eq!(
        node.unwrap().to_json(),
        serde_json::json!({
            "007": "a",
            "7": "b",
            "1e3": "c",
            "0x1f": "d",
            "+1": "e",
            "True": "f",
            "null": "g",
            "in": {"01": "h"}
        })
    );
}

#[test]
fn tag_outside_the_core_schema_is_reported_and_those_inside_are_read() {
    let text = "a: !paid\nb: ! x\nc: !paid == y\nd: [!t [1], !t {e: 2}]\nf: '!x'\ng: !!str 5\nh: !!int 5\n";
    let (node, mistakes) = read(text);
    let paths: Vec<_> = mistakes
        .found
        .iter()
        .map(|mistake| mistake.place[1..].join(" "))
        .collect();
    assert_eq!(paths, ["a", "b", "c", "d 0", "d 1"]);
    assert!(!format!("{mistakes:?}").contains("paid"), "{mistakes:?}");
    let node = node.unwrap();
    for key in ["a", "b", "c"] {
        assert!(node.get(key).unwrap().broken, "{key}");
    }
    let json = node.to_json();
    let read = serde_json::json!([json["f"], json["g"], json["h"]]);
    assert_eq!(read, serde_json::json!(["!x", "5", 5]));
}

#[test]
fn anchor_without_a_value_is_reported() {
    let (node, mistakes) = read("a: &sk-secret\nb: {c: &d , e: &f 1}\n");
    let paths: Vec<_> = mistakes
        .found
        .iter()
        .map(|mistake| mistake.place[1..].join(" "))
        .collect();
    assert_eq!(paths, ["a", "b c"]);
    assert!(!format!("{mistakes:?}").contains("secret"), "{mistakes:?}");
    assert!(node.unwrap().get("a").unwrap().broken);
}

#[test]
fn merge_key_is_reported_and_not_kept_as_a_key() {
    let (node, mistakes) = read("a: &x {b: 1}\nc: {<<: *x, d: 2}\n");
    assert_eq!(
        node.unwrap().to_json(),
        serde_json::json!({"a": {"b": 1}, "c": {"d": 2}})
    );
    let places: Vec<_> = mistakes
        .found
        .iter()
        .map(|mistake| mistake.place.join(" "))
        .collect();
    assert_eq!(places, ["@2:5 c <<"]);
}

#[test]
fn aliases_are_written_out_but_not_without_bound() {
    let (node, _) = read("a: &x [1]\nb: *x\n");
    assert_eq!(
        node.unwrap().to_json(),
        serde_json::json!({"a": [1], "b": [1]})
    );
    let mut bomb = String::from("a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n");
    for level in 1..9 {
        use std::fmt::Write as _;
        let refs = vec![format!("*a{}", level - 1); 10].join(",");
        let _ = writeln!(bomb, "a{level}: &a{level} [{refs}]");
    }
    let (node, mistakes) = read(&bomb);
    assert!(node.is_none());
    assert_eq!(mistakes.found.len(), 1);
}

#[test]
fn alias_in_its_own_anchor_and_key_that_is_no_text_are_reported() {
    for text in ["a: &x [*x]\n", "x: &l [1]\n? *l\n: 2\n"] {
        let (node, mistakes) = read(text);
        assert!(node.is_none() && mistakes.found.len() == 1, "{mistakes:?}");
    }
}

#[test]
fn invalid_yaml_is_reported_with_its_place() {
    let (node, mistakes) = read("a: 1\nb: [1, 2\nkey: sk-secret\n");
    assert!(node.is_none());
    assert!(mistakes.found[0].place[0].starts_with('@'), "{mistakes:?}");
    assert!(!format!("{mistakes:?}").contains("secret"));
}
