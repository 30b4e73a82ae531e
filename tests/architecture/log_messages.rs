//! Checks that `docs/operations.md` explains every message that the product logs at the levels
//! `warn` and `error`, with its level. Also checks that the product's code contains every message
//! that the page explains, at any level.

use super::{Source, root, sources};

/// Messages without a fixed text, each with its file. The page describes them outside of its
/// tables.
const WITHOUT_TEXT: [(&str, &str); 2] =
    [("src/app/database.rs", "{error}"), ("src/cli.rs", "{why}")];

/// A row of a table of messages. An entry that ends with `…` explains every message that begins
/// with the text before the `…`.
struct Row {
    messages: Vec<String>,
    levels: String,
}

impl Row {
    fn explains(&self, level: &str, message: &str) -> bool {
        let is_same = |written: &String| match written.strip_suffix('…') {
            Some(begins) => message.starts_with(begins),
            None => written == message,
        };
        self.levels.contains(level) && self.messages.iter().any(is_same)
    }
}

/// Returns the text of a source without its tests.
fn product_code(source: &Source) -> &str {
    let code = source.text.split("#[cfg(test)]\nmod tests {").next();
    code.filter(|_| !source.is_of_tests()).unwrap_or_default()
}

/// Returns the level and the message of each `warn!` and each `error!` in `code`. The message is
/// the last argument of the macro.
fn logged(code: &str) -> Vec<(String, String)> {
    let text = r#""(?:[^"\\]|\\.)*""#;
    let call = format!(r#"(?s)\b(warn|error)!\((?:[^"]|{text})*?({text})\s*,?\s*\)"#);
    let call = regex::Regex::new(&call).expect("a pattern");
    let line_end = regex::Regex::new(r"\\\n\s*").expect("a pattern");
    let messages = call.captures_iter(code).map(|found| {
        let message = line_end.replace_all(found[2].trim_matches('"'), "");
        (found[1].to_owned(), message.into_owned())
    });
    messages.collect()
}

/// Returns the rows of the tables of messages.
fn rows(page: &str) -> Vec<Row> {
    let section = page.split("\n## ").find(|part| part.starts_with("Logs\n"));
    let lines = section.expect("the section").lines();
    lines
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').collect();
            let messages = cells[1].split('`').skip(1).step_by(2);
            Row {
                messages: messages.map(str::to_owned).collect(),
                levels: cells[2].to_owned(),
            }
        })
        .collect()
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/operations.md")).expect("the page")
}

#[test]
fn every_warning_and_error_of_the_product_is_explained_to_operators() {
    let (page, mut count) = (page(), 0);
    let rows = rows(&page);
    let mut missing = Vec::new();
    for source in sources("src") {
        let code = product_code(&source);
        let messages = logged(code);
        let calls = ["warn!(", "error!("].map(|call| code.matches(call).count());
        assert_eq!(
            messages.len(),
            calls.iter().sum::<usize>(),
            "{}: a warning or an error without a message",
            source.path
        );
        count += messages.len();
        for (level, message) in messages {
            let has_text = !WITHOUT_TEXT.contains(&(source.path.as_str(), message.as_str()));
            if has_text && !rows.iter().any(|row| row.explains(&level, &message)) {
                missing.push(format!("{}: {level}: {message}", source.path));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(count > 50, "{count}");
}

#[test]
fn every_message_that_operators_read_about_is_in_the_code() {
    let sources = sources("src");
    for message in rows(&page()).iter().flat_map(|row| &row.messages) {
        let text = format!("\"{}", message.trim_end_matches('…'));
        assert!(
            sources
                .iter()
                .any(|source| product_code(source).contains(&text)),
            "no code logs: {message}"
        );
    }
}

#[test]
fn message_of_a_log_line_is_the_last_text_of_its_macro() {
    let code = "
        tracing::warn!(error = %failure(1), target = \"a\", \"one; two\");
        tracing::error!(
            \"a long \\
             message\",
        );
        tracing::info!(\"neither\");
        #[cfg(test)]\nmod tests {
            tracing::warn!(\"of a test\");";
    let source = Source {
        path: "src/a.rs".to_owned(),
        text: code.to_owned(),
    };
    let found = logged(product_code(&source));
    let expected = [("warn", "one; two"), ("error", "a long message")];
    let expected = expected.map(|(level, message)| (level.to_owned(), message.to_owned()));
    assert_eq!(found, expected);
    let row = Row {
        messages: vec!["one: …".to_owned()],
        levels: " warn ".to_owned(),
    };
    assert!(row.explains("warn", "one: two") && !row.explains("error", "one: two"));
}
