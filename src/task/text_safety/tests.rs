//! Tests that invisible characters become visible, and that each warning has the right code and
//! place.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn found(text: &str) -> Vec<(String, String)> {
    warnings(text)
        .into_iter()
        .map(|warning| (warning.code, warning.pointer))
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected
        .iter()
        .map(|(code, pointer)| ((*code).to_owned(), (*pointer).to_owned()))
        .collect()
}

#[test]
fn invisible_characters_are_shown_as_their_code() {
    assert!(HIDDEN.is_some());
    for (text, shown) in [
        ("a b é 漢 <&>", "a b é 漢 <&>"),
        (
            "a\u{202e}b\u{200b}c\0\t",
            "a\\u{202e}b\\u{200b}c\\u{0}\\u{9}",
        ),
        (
            "a\nb\u{a0}c\u{2028}\u{2029}",
            "a\\u{a}\nb\\u{a0}c\\u{2028}\\u{2029}",
        ),
        (
            "\u{e0041}\u{3164}\u{fe0f}\u{e000}",
            "\\u{e0041}\\u{3164}\\u{fe0f}\\u{e000}",
        ),
        (
            "\u{34f}\u{61c}\u{115f}\u{1160}\u{17b4}\u{17b5}",
            "\\u{34f}\\u{61c}\\u{115f}\\u{1160}\\u{17b4}\\u{17b5}",
        ),
        (
            "\u{180b}\u{180e}\u{180f}\u{2065}\u{2800}\u{ffa0}",
            "\\u{180b}\\u{180e}\\u{180f}\\u{2065}\\u{2800}\\u{ffa0}",
        ),
        (
            "\u{feff}\u{fff0}\u{1d173}\u{e01ef}\u{e0fff}",
            "\\u{feff}\\u{fff0}\\u{1d173}\\u{e01ef}\\u{e0fff}",
        ),
        (
            "\u{85}\u{378}\u{3000}\u{10ffff}",
            "\\u{85}\\u{378}\\u{3000}\\u{10ffff}",
        ),
    ] {
        assert_eq!(visible(text), shown);
    }
}

#[test]
fn hidden_character_is_found_wherever_it_stands() {
    for (text, pointer) in [
        ("{\"a\":\"x\u{202e}y\"}", "/a"),
        (r#"{"a":"x\u202ey"}"#, "/a"),
        (r#"{"a":[1,{"b/c~":"\u200b"}]}"#, "/a/1/b~1c~0"),
        (r#"{"a\u200b":1}"#, "/a\u{200b}"),
        (r#"{"a":"\udb40\udc41"}"#, "/a"),
        (r#"{"a":"1\r2"}"#, "/a"),
        (r#"{"a":"\u2800"}"#, "/a"),
        ("\"\u{feff}\"", ""),
        ("{\"a\":\"x\u{202e}y\"", ""),
        (r#"{"a":"x\u202ey""#, ""),
        (r#"{"a":"\ud800 \udb40\udc41"}"#, ""),
        (r#"{"a":1e999,"b":"\u202e"}"#, ""),
    ] {
        assert_eq!(
            found(text),
            pairs(&[(HIDDEN_CHARACTERS, pointer)]),
            "{text}"
        );
    }
    for plain in [
        "",
        "{}",
        "nonsense",
        r#"{"a":"two\nlines\tand\r\nmore","b":null,"c":[true,1.5,-1]}"#,
        r#""\\u202e""#,
        r"\\u202e",
    ] {
        assert_eq!(found(plain), [], "{plain}");
    }
}

#[test]
fn repeated_member_is_inspected_twice() {
    assert_eq!(
        found(r#"{"a":"\u202e","a":"fine"}"#),
        pairs(&[(HIDDEN_CHARACTERS, "/a")])
    );
}

#[test]
fn word_of_several_scripts_is_found() {
    for (word, mixed) in [
        ("p\u{430}ypal", true),
        ("\u{440}aypal", true),
        ("p\u{200b}\u{430}", true),
        ("p\u{301}\u{430}", true),
        ("\u{3b1}dmin", true),
        ("\u{13a0}pple", true),
        ("pay pa\u{301}l é ß ﬁ ª", false),
        ("latin и кириллица, also и1a", false),
        ("日本語のテキストー々", false),
        ("한국漢字", false),
        ("漢ㄅㄆ字", false),
        ("ㄅの", true),
        ("한の", true),
        ("日本語w", true),
        ("हिन्दी ไทย ελληνικά", false),
        ("x\u{b5}m 2\u{2126}", false),
    ] {
        let expected = if mixed {
            pairs(&[(MIXED_SCRIPTS, "/a")])
        } else {
            Vec::new()
        };
        let texts = found(&json!({"a": word}).to_string());
        let texts: Vec<_> = texts
            .into_iter()
            .filter(|(code, _)| code != HIDDEN_CHARACTERS)
            .collect();
        assert_eq!(texts, expected, "{word}");
    }
    let told = warnings(&json!({"p\u{430}y": 1}).to_string());
    assert_eq!(
        told[0].detail,
        "In the member's name: A word has letters of Latin and Cyrillic, which may look alike: U+0430 is Cyrillic."
    );
}

#[test]
fn right_to_left_text_is_found_but_its_marks_alone_are_not() {
    for (text, found_it) in [
        ("from-\u{5d0}", true),
        ("\u{627}", true),
        ("\u{661}, \u{662}", true),
        ("\u{10800}", true),
        ("\u{1e900}", true),
        ("\u{5be}", true),
        ("a\u{5b0}", false),
        ("a, 100, 200-b é 漢 я", false),
    ] {
        let expected = if found_it {
            pairs(&[(RIGHT_TO_LEFT, "/a")])
        } else {
            Vec::new()
        };
        assert_eq!(found(&json!({"a": text}).to_string()), expected, "{text}");
    }
    for mark in ["\u{200f}", "\u{61c}"] {
        assert_eq!(
            found(&json!({"a": mark}).to_string()),
            pairs(&[(HIDDEN_CHARACTERS, "/a")]),
            "{mark:?}"
        );
    }
    let escaped = r#"["from-\u05d1","200","100","\u05d0-to"]"#;
    assert_eq!(
        found(escaped),
        pairs(&[(RIGHT_TO_LEFT, "/0"), (RIGHT_TO_LEFT, "/3")])
    );
    let told = warnings(escaped).remove(0).detail;
    assert!(
        told.starts_with("Text that is written from right to left, U+05D1 for one"),
        "{told}"
    );
}

#[test]
fn marks_drawn_over_text_are_found() {
    for c in "\u{335}\u{336}\u{337}\u{338}\u{20d0}\u{20dd}\u{20e3}\u{20f0}\u{20ff}".chars() {
        let told = found(&json!({"a": format!("1{c}00")}).to_string());
        assert!(
            told.contains(&(OVERLAY.to_owned(), "/a".to_owned())),
            "{c:?}: {told:?}"
        );
    }
    for plain in ["e\u{301}", "a\u{334}", "x\u{339}", "1\u{fe0f}\u{20e3}"] {
        assert_eq!(found(&json!({"a": plain}).to_string()), [], "{plain}");
    }
}

#[test]
fn emoji_joiner_is_found_everywhere_but_inside_an_emoji() {
    for text in [
        "👩\u{200d}👩\u{200d}👧 at home",
        "👩🏽\u{200d}💻",
        "❤\u{fe0f}\u{200d}🔥",
        "☎\u{fe0e} ☎\u{fe0f} ok",
        "#\u{fe0f}\u{20e3}",
        "🏳\u{fe0f}\u{200d}🌈",
    ] {
        assert_eq!(found(&json!({"a": text}).to_string()), [], "{text}");
    }
    for text in [
        "pay\u{200d}pal",
        "👩\u{200d}pal",
        "a\u{200d}👩",
        "👩\u{200d}\u{200d}👩",
        "👩\u{200d}",
        "👩\u{fe0f}\u{fe0e}",
        "1\u{fe0f}",
        "\u{200d}",
        "👩\u{200c}👩",
        "\r👩\u{fe0f}\n",
    ] {
        assert_eq!(
            found(&json!({"a": text}).to_string()),
            pairs(&[(HIDDEN_CHARACTERS, "/a")]),
            "{text}"
        );
    }
}

#[test]
fn word_in_letters_of_one_other_script_that_all_look_latin_is_found() {
    for (text, alike) in [
        ("\u{441}\u{43e}\u{441}\u{43e}", true),
        ("send it to \u{440}\u{430}\u{443}\u{440}\u{430} now", true),
        ("\u{440}\u{430}\u{443}@example.com", true),
        ("send \u{430} dollar", true),
        ("\u{39d}\u{395}\u{3a4}", true),
        ("pay \u{1d429}\u{1d41a}\u{1d432} \u{1d426}\u{1d41e}", true),
        ("\u{13a0}\u{13b3}", true),
        ("Ах, роса! Она хороша, а сор – нет", false),
        ("Отправить отчёт о продажах со склада в Excel", false),
        ("Πες μου το όνομα του, το νο 5", false),
        ("the angle α and σ = 5", false),
        ("the word кот in Latin text", false),
        ("café, naïve, Ångström 漢字 ไทย", false),
    ] {
        let expected = if alike {
            pairs(&[(LOOK_ALIKE, "/a")])
        } else {
            Vec::new()
        };
        assert_eq!(found(&json!({"a": text}).to_string()), expected, "{text}");
    }
    let told = warnings(&json!({"\u{441}\u{43e}\u{441}\u{43e}": 1}).to_string())
        .remove(0)
        .detail;
    assert_eq!(
        told,
        "In the member's name: A word looks like \"coco\", but its letters are of Cyrillic: U+0441 is its first."
    );
}

#[test]
fn long_run_of_blanks_is_found_inside_and_outside_strings() {
    let nine = " ".repeat(9);
    for (text, pointer) in [
        (format!(r#"{{"a":"ls{nine}; rm -rf /"}}"#), "/a"),
        (r#"{"a":"\n\n\n\n\n\n\n\n\n"}"#.to_owned(), "/a"),
        (r#"{"a":"    \u0020\u0020\u0020\t\nx"}"#.to_owned(), "/a"),
        (format!(r#"{{"{nine}":1}}"#), "/         "),
        (format!(r#"{{"a":1,{nine}"b":2}}"#), ""),
        (format!("{nine}{{}}"), ""),
        (format!(r#"{{"a\"":1}}{nine}"#), ""),
        (format!("{{{nine}"), ""),
    ] {
        assert_eq!(found(&text), pairs(&[(LONG_BLANKS, pointer)]), "{text}");
    }
    assert_eq!(
        found(&format!(r#"{{ "a" : "x{}" , "b":"y" }}"#, " ".repeat(8))),
        []
    );
    let held_apart = json!({"a": "    \u{200b}     \u{2800}"}).to_string();
    assert_eq!(
        found(&held_apart),
        pairs(&[(HIDDEN_CHARACTERS, "/a"), (LONG_BLANKS, "/a")])
    );
}

#[test]
fn long_arguments_are_warned_about() {
    let text = |length: usize| json!({"a": "x".repeat(length - 8)}).to_string();
    assert_eq!((text(4096).len(), found(&text(4096))), (4096, Vec::new()));
    assert_eq!(found(&text(4097)), pairs(&[(LARGE, "")]));
    assert!(warnings(&text(5000))[0].detail.contains("5000 bytes"));
}

#[test]
fn warnings_are_bounded_and_no_code_crowds_out_another() {
    let many: Vec<Value> = (0..500)
        .map(|_| json!(format!("p\u{430}{}", " ".repeat(20))))
        .collect();
    let hidden = (0..500)
        .map(|n| char::from_u32(0xe0100 + n % 200).unwrap())
        .collect::<String>();
    let text = json!({"many": many, "z": hidden, "long": {"k".repeat(3000): {"x": "\u{202e}"}}})
        .to_string();
    let told = warnings(&text);
    assert!(told.len() <= 50, "{}", told.len());
    for warning in &told {
        assert!(
            warning.detail.len() <= 200 && warning.pointer.len() <= 1024,
            "{warning:?}"
        );
    }
    let has =
        |code: &str, pointer: &str| told.iter().any(|w| w.code == code && w.pointer == pointer);
    assert!(has(HIDDEN_CHARACTERS, "/z") && has(LARGE, "") && has(MIXED_SCRIPTS, "/many/0"));
    assert!(
        has(HIDDEN_CHARACTERS, "/long"),
        "of a pointer that is too long, the place around it"
    );
    assert!(told[1].detail.ends_with("and others."), "{told:?}");
    let more = told
        .iter()
        .find(|w| w.code == LONG_BLANKS && w.pointer.is_empty())
        .unwrap();
    assert_eq!(more.detail, "There are more such places.");
}

#[test]
fn inspection_takes_time_in_proportion_to_the_text() {
    let name = "k".repeat(1000);
    let texts = [
        json!({name: vec!["\u{202e}"; 20_000]}).to_string(),
        "[".repeat(200_000),
        format!("\"{}", "\\".repeat(200_000)),
        format!("\"{}\"", "\\u0430a".repeat(25_000)),
        format!("\"{}\"", "\u{430} \u{5d0}\u{336}👩\u{200d}".repeat(10_000)),
        format!("{{{}\"a\":1}}", "\"a\":\"\\u202e\",".repeat(15_000)),
    ];
    for text in texts {
        let began = std::time::Instant::now();
        let _ = warnings(&text);
        assert!(
            began.elapsed() < std::time::Duration::from_secs(10),
            "{}",
            text.len()
        );
    }
}

fn odd() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        any::<char>().prop_map(String::from),
        "[a-zа-я漢の \t\n]{0,12}",
        Just("\\u202e".to_owned()),
        Just("\\".to_owned()),
        Just("\"".to_owned()),
        Just("\u{200b}".to_owned()),
        Just("\\ud83d\\ude00".to_owned()),
        Just("{\"a\":".to_owned()),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn visible_text_hides_no_character(text in odd()) {
        let shown = visible(&text);
        prop_assert!(shown.chars().all(|c| c == '\n' || !is_hidden(c)), "{shown:?}");
        if !text.chars().any(is_hidden) {
            prop_assert_eq!(shown, text);
        }
    }

    #[test]
    fn warning_never_panics_and_misses_no_hidden_character(text in odd(), name in odd()) {
        let _ = warnings(&text);
        let usual = |c: char| matches!(c, '\n' | '\t' | '\r');
        let json = json!({name.clone(): [text.clone()]}).to_string();
        let told = warnings(&json);
        let hides = |text: &str| without_emoji(text).chars().any(|c| is_hidden(c) && !usual(c));
        if hides(&text) || hides(&name) {
            prop_assert!(told.iter().any(|warning| warning.code == HIDDEN_CHARACTERS));
        }
        let value: Value = serde_json::from_str(&json).unwrap();
        for warning in told {
            prop_assert!(value.pointer(&warning.pointer).is_some(), "{warning:?}");
        }
    }
}
