//! Tests of redaction: a secret is found in every encoding, and other text stays unchanged.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::{
    BASE64_STANDARD, BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD,
};
use percent_encoding::percent_decode_str;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn redactor(secret: &str) -> Redactor {
    Redactor::new([("KEY", &Secret::new(secret.to_owned()))])
}

#[test]
fn secret_is_found_plain_percent_encoded_and_in_base64() {
    let secret = Secret::new("s3cr3t/value+1".to_owned());
    let redactor = Redactor::new([("KEY", &secret)]);
    for text in [
        "s3cr3t/value+1",
        "s3cr3t%2Fvalue%2B1",
        "%733cr3t%2fvalue+1",
        &BASE64_STANDARD.encode(secret.reveal()),
    ] {
        assert_eq!(redactor.redact(&format!("x {text} y")), "x [secret KEY] y");
        assert!(redactor.finds_secret_in(text));
    }
    assert_eq!(
        format!("{secret:?} {redactor:?}"),
        "[secret] Redactor(1 values)"
    );
}

#[test]
fn secret_is_found_however_its_characters_are_escaped() {
    let redactor = redactor("a%b/\"c\" dü😀\n-+1");
    for spelled in [
        "a%25b%2F%22c%22%20d%C3%BC%F0%9F%98%80%0A-%2B1",
        "a%25b/%22c%22+d%c3%bc%f0%9f%98%80%0a-%2b1",
        r#"a%b/\"c\" dü😀\n-+1"#,
        r#"a%b\/\"c\" d\u00fc\ud83d\uDE00\n-+1"#,
        r"\u0061%b\u002f\u0022c\u0022 dü😀\u000a-+1",
    ] {
        let text = format!("%2 \\u00 {spelled}{spelled}+ a%25b a");
        assert_eq!(
            redactor.redact(&text),
            "%2 \\u00 [secret KEY][secret KEY]+ a%25b a",
            "{spelled}"
        );
        assert!(spelled.len() <= redactor.max_escaped_secret_len());
    }
    for other in [
        "a%25b/%22c%22+d%c3%bc%f0%9f%98%80%0a-%2b2",
        "%",
        "\\",
        "\\u",
        "%é",
        "a%25b",
        "",
    ] {
        assert_eq!(redactor.redact(other), other);
        assert!(!redactor.finds_secret_in(other));
    }
}

#[test]
fn secret_is_found_in_base64_at_each_offset_in_both_alphabets_padded_wrapped_or_escaped() {
    let secret = "s3cr3t?>value~~12";
    let redactor = redactor(secret);
    for before in ["", "a", "ab", "abc"] {
        for after in ["", "x", "xy"] {
            let text = format!("{before}{secret}{after}");
            for engine in [
                BASE64_STANDARD,
                BASE64_STANDARD_NO_PAD,
                BASE64_URL_SAFE,
                BASE64_URL_SAFE_NO_PAD,
            ] {
                let plain = engine.encode(&text);
                let wrapped: String = plain
                    .chars()
                    .enumerate()
                    .map(|(at, c)| {
                        if at % 9 == 8 {
                            format!("{c}\r\n")
                        } else {
                            c.to_string()
                        }
                    })
                    .collect();
                let percent = encode(&wrapped, Escape::Percent, &[true]);
                let json = encode(&wrapped, Escape::Json, &[false, true]);
                for spelled in [
                    plain,
                    wrapped,
                    percent.clone(),
                    json.clone(),
                    encode(&percent, Escape::Json, &[true]),
                    encode(&json, Escape::Percent, &[true, false]),
                ] {
                    let clean = redactor.redact(&spelled).into_owned();
                    assert!(
                        clean.contains("[secret KEY]") && !holds(&clean, secret),
                        "{spelled}: {clean}"
                    );
                }
            }
        }
    }
    // If the encoded text ends with the secret, the placeholder replaces all of the last base64
    // group.
    assert_eq!(
        redactor.redact(&format!("<{}>", BASE64_STANDARD.encode(secret))),
        "<[secret KEY]>"
    );
}

#[test]
fn secret_is_found_under_two_layers_of_escapes() {
    let redactor = redactor("pass\"wo/rd 1");
    for spelled in [
        r#"pass\\\"wo\\/rd 1"#,
        r"pass\u005c\u0022wo/rd 1",
        "pass%2522wo%252Frd%25201",
        "pass%5C%22wo%5c/rd+1",
        r"pass\u002522wo\u00252frd\u00252b1"
            .replace("252b1", "25201")
            .as_str(),
        "%25%37%30ass%2522wo/rd%2B1",
    ] {
        assert_eq!(
            redactor.redact(&format!("({spelled})")),
            "([secret KEY])",
            "{spelled}"
        );
    }
    assert_eq!(
        redactor.redact("pass%2522wo%252Frd%25202"),
        "pass%2522wo%252Frd%25202"
    );
}

#[test]
fn percent_encoded_secret_in_a_json_string_of_a_json_string_is_found() {
    let redactor = redactor("pass\"wo/rd-1");
    for spelled in [
        r"pass\\u002522wo\\u00252frd-1",
        r#"pass\\\\\\\"wo/rd-1"#,
        "pass%252522wo%25252Frd-1",
    ] {
        assert_eq!(
            redactor.redact(&format!("({spelled})")),
            "([secret KEY])",
            "{spelled}"
        );
    }
}

#[test]
fn overlapping_finds_are_one_and_show_the_longest_name() {
    let (long, short, tail) = ("abcdefghijkl", "abcdefgh", "ghijklmnop");
    let secrets = [long, short, tail].map(|text| Secret::new(text.to_owned()));
    let redactor = Redactor::new(["LONG", "SHORT", "TAIL"].into_iter().zip(&secrets));
    assert_eq!(
        redactor.redact("abcdefgh abcdefghijkl abcdefghijklmnop"),
        "[secret SHORT] [secret LONG] [secret LONG]"
    );
    let both =
        Redactor::new([("ONE", &secrets[0])]).merged_with(&Redactor::new([("TWO", &secrets[2])]));
    assert_eq!(
        both.redact("abcdefghijkl ghijklmnop"),
        "[secret ONE] [secret TWO]"
    );
    let row = Redactor::new([("A", &Secret::new("aaaaaaaa".to_owned()))]);
    assert_eq!(row.redact(&"a".repeat(1000)), "[secret A]");
}

#[test]
fn short_values_are_not_searched_for() {
    let none = redactor("none");
    assert_eq!(none.redact("none of it"), "none of it");
    assert_eq!(none.max_escaped_secret_len(), 0);
    assert_eq!(redactor("seven77").redact("seven77"), "seven77");
    assert_eq!(redactor("eight888").redact("eight888"), "[secret KEY]");
}

#[test]
fn value_is_found_without_the_white_space_at_its_ends() {
    for value in ["Correct-Horse-9 ", "\tCorrect-Horse-9", "Correct-Horse-9\n"] {
        let redactor = redactor(value);
        for (text, clean) in [
            ("is Correct-Horse-9.".to_owned(), "is [secret KEY]."),
            (format!("is {value}."), "is [secret KEY]."),
            (BASE64_STANDARD.encode("Correct-Horse-9"), "[secret KEY]"),
        ] {
            assert_eq!(redactor.redact(&text), clean, "{value:?}");
        }
    }
    assert_eq!(redactor("seven77 ").redact("seven77"), "seven77");
}

#[test]
fn words_without_their_spaces_are_no_find() {
    let redactor = redactor("fraud suspected");
    for other in [
        "fraudsuspected",
        "fraud\nsuspected",
        "fraud-suspected",
        "Fraud suspected",
    ] {
        assert_eq!(redactor.redact(other), other);
    }
}

#[test]
fn value_with_a_line_end_inside_is_another_text() {
    let redactor = redactor("suspected-fraud");
    assert_eq!(redactor.redact("suspected-\nfraud"), "suspected-\nfraud");
}

#[test]
fn search_takes_time_in_proportion_to_the_text() {
    let secrets: Vec<_> = (0..50)
        .map(|n| Secret::new(format!("{n:02}-sk-live-{}", "aB3/+ \"%5C".repeat(3))))
        .collect();
    let names: Vec<_> = (0..50).map(|n| format!("KEY{n}")).collect();
    let redactor = Redactor::new(names.iter().map(String::as_str).zip(&secrets));
    let size = 256 * 1024;
    for piece in [
        "x",
        "00-sk-live-aB3/",
        "\\\\",
        "%25",
        "%5c%5C",
        "\\u005c\\n",
        "+ ",
        "MDAtc2stbGl2ZS\n",
        "aB3/+ \"%5C",
        "\\ud83d",
    ] {
        let text = piece.repeat(size / piece.len());
        let began = std::time::Instant::now();
        let clean = redactor.redact(&text).into_owned();
        assert_eq!(clean, text);
        assert!(redactor.redact_prefix(&text).len() <= text.len());
        assert!(
            began.elapsed() < std::time::Duration::from_mins(1),
            "{piece}"
        );
    }
}

#[test]
fn long_secret_of_one_letter_takes_time_in_proportion_to_its_length() {
    let secret = "a".repeat(60_000);
    let began = std::time::Instant::now();
    let redactor = redactor(&secret);
    assert!(redactor.finds_secret_in(&BASE64_STANDARD.encode(&secret)));
    for text in [format!("x {secret} y"), "a".repeat(59_999)] {
        let mut redacting = StreamRedactor::new(std::sync::Arc::new(redactor.clone()));
        let mut shown = String::new();
        for piece in text.as_bytes().chunks(100) {
            shown += &redacting.push(std::str::from_utf8(piece).unwrap());
        }
        shown += &redacting.finish();
        assert_eq!(shown, redactor.redact(&text));
    }
    assert!(began.elapsed() < std::time::Duration::from_mins(1));
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Escape {
    Percent,
    Form,
    Json,
}

/// Escapes every character that requires an escape. The values of `choices` decide which other
/// characters are escaped.
fn encode(text: &str, escape: Escape, choices: &[bool]) -> String {
    let mut choices = choices.iter().copied().cycle();
    let mut next_choice = move || choices.next().unwrap_or_default();
    let percent = |c: char, lower: bool| {
        let bytes = c.to_string().into_bytes();
        bytes
            .iter()
            .map(|byte| {
                if lower {
                    format!("%{byte:02x}")
                } else {
                    format!("%{byte:02X}")
                }
            })
            .collect::<String>()
    };
    let one = |c: char| match (escape, c) {
        (Escape::Form, ' ') if next_choice() => "+".to_owned(),
        (Escape::Form, '+') | (Escape::Form | Escape::Percent, '%') => percent(c, next_choice()),
        (Escape::Form | Escape::Percent, _) => {
            if next_choice() {
                percent(c, next_choice())
            } else {
                c.to_string()
            }
        }
        (Escape::Json, '"' | '\\' | '/') if next_choice() => format!("\\{c}"),
        (Escape::Json, '\n') if next_choice() => "\\n".to_owned(),
        (Escape::Json, _) if matches!(c, '"' | '\\') || c < ' ' || next_choice() => c
            .encode_utf16(&mut [0; 2])
            .iter()
            .map(|unit| {
                if *unit % 2 == 0 {
                    format!("\\u{unit:04x}")
                } else {
                    format!("\\u{unit:04X}")
                }
            })
            .collect(),
        (Escape::Json, _) => c.to_string(),
    };
    text.chars().map(one).collect()
}

/// Returns the text as a decoder of these escapes reads it.
fn decode(text: &str, escape: Escape) -> String {
    match escape {
        Escape::Percent => percent_decode_str(text).decode_utf8_lossy().into_owned(),
        Escape::Form => percent_decode_str(&text.replace('+', " "))
            .decode_utf8_lossy()
            .into_owned(),
        Escape::Json => {
            // This decoder is independent of the product code: it reads one character at a time and
            // parses escapes with `serde_json`.
            let (mut out, mut rest) = (String::new(), text);
            while let Some(c) = rest.chars().next() {
                let read = [12, 6, 2]
                    .into_iter()
                    .filter(|_| c == '\\')
                    .find_map(|length| {
                        let escape = rest.get(..length)?;
                        let one: String = serde_json::from_str(&format!("\"{escape}\"")).ok()?;
                        (one.chars().count() == 1).then_some((one, length))
                    });
                let (one, length) = read.unwrap_or_else(|| (c.to_string(), c.len_utf8()));
                out.push_str(&one);
                rest = &rest[length..];
            }
            out
        }
    }
}

/// Whether the text contains the secret in plain form, or in base64 at any offset. Searches the
/// text itself, and the results of one and of two unescapings.
fn holds(text: &str, secret: &str) -> bool {
    let all = [Escape::Percent, Escape::Form, Escape::Json];
    let once: Vec<String> = all.iter().map(|escape| decode(text, *escape)).collect();
    let twice: Vec<String> = once
        .iter()
        .flat_map(|text| all.iter().map(|escape| decode(text, *escape)))
        .collect();
    [text.to_owned()]
        .iter()
        .chain(&once)
        .chain(&twice)
        .any(|text| text.contains(secret) || base64_holds(text, secret))
}

fn base64_holds(text: &str, secret: &str) -> bool {
    let lenient = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let engine = GeneralPurpose::new(&alphabet::STANDARD, lenient);
    let joined: String = text
        .chars()
        .filter(|c| !matches!(c, '\r' | '\n'))
        .map(|c| match c {
            '-' => '+',
            '_' => '/',
            c => c,
        })
        .collect();
    let runs = joined.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '/')));
    runs.into_iter().any(|run| {
        (0..4.min(run.len())).any(|offset| {
            let run = &run[offset..];
            let run = if run.len() % 4 == 1 {
                &run[..run.len() - 1]
            } else {
                run
            };
            let bytes = engine.decode(run).unwrap_or_default();
            bytes
                .windows(secret.len())
                .any(|window| window == secret.as_bytes())
        })
    })
}

fn secrets() -> impl Strategy<Value = String> {
    let piece = select(vec![
        "a", "B", "7", "%", "%41", "\\", "\\u0041", "\"", "/", "+", " ", "é", "漢", "😀", "-", "_",
        "=", "\n", "n",
    ]);
    prop::collection::vec(piece, 8..24).prop_map(|pieces| pieces.concat())
}

fn around() -> impl Strategy<Value = String> {
    let piece = select(vec![
        "a", "Z", "%", "%25", "\\", "\\u00", "\"", "é", "😀", "+", " ", "\n", "QUJD", "=",
    ]);
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 768, ..ProptestConfig::default() })]

    #[test]
    fn cleaned_text_reveals_the_secret_to_no_decoder(
        secret in secrets(), (before, after) in (around(), around()), base64 in prop::option::of((0..4_usize, ".{0,5}", ".{0,5}", prop::option::of(5..30_usize))),
        rows in prop::collection::vec(select(vec![Escape::Percent, Escape::Form, Escape::Json]), 0..=2),
        choices in prop::collection::vec(any::<bool>(), 1..40), cut in any::<prop::sample::Index>(),
    ) {
        let inner = match &base64 {
            None => secret.clone(),
            Some((engine, before, after, wrap)) => {
                let engines = [BASE64_STANDARD, BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD];
                let text = engines[*engine].encode(format!("{before}{secret}{after}"));
                let wrap = wrap.unwrap_or(usize::MAX);
                text.chars().enumerate().map(|(at, c)| if at % wrap == wrap - 1 { format!("{c}\n") } else { c.to_string() }).collect()
            }
        };
        // The text around the secret is escaped, too. Otherwise a `\` before the secret could
        // combine with the secret's first escape, so that no decoder would read the secret.
        let text = rows.iter().fold(format!("{before}{inner}{after}"), |text, escape| encode(&text, *escape, &choices));
        prop_assert!(holds(&text, &secret), "the readers of this test read {text:?}");
        let redactor = redactor(&secret);
        let clean = redactor.redact(&text).into_owned();
        prop_assert!(clean.contains("[secret KEY]") && redactor.finds_secret_in(&text), "{clean:?}");
        prop_assert!(!holds(&clean, &secret), "{clean:?}");
        // Cuts the text into two pieces at `at`. For both pieces together, `StreamRedactor` returns
        // `clean`. For the first piece alone, `redact_prefix` returns a prefix of `clean`.
        let at = (0..=cut.index(text.len() + 1)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let mut redacting = StreamRedactor::new(std::sync::Arc::new(redactor.clone()));
        let pieces = redacting.push(&text[..at]) + &redacting.push(&text[at..]) + &redacting.finish();
        prop_assert_eq!(&pieces, &clean);
        let begun = redactor.redact_prefix(&text[..at]);
        prop_assert!(clean.starts_with(&*begun), "{begun:?} of {clean:?}");
    }

    #[test]
    fn text_without_the_secret_stays_as_it_is(text in ".{0,60}", choices in prop::collection::vec(any::<bool>(), 1..20)) {
        let redactor = redactor("Correct-Horse-9");
        for text in [encode(&text, Escape::Json, &choices), encode(&text, Escape::Form, &choices), BASE64_STANDARD.encode(&text), text] {
            prop_assert_eq!(redactor.redact(&text), text.as_str());
        }
    }
}
