//! Tests of the log of a child's standard error.

use super::*;
use crate::secret::Secret;
use crate::world::captured::Captured;

/// Returns the log of `output`, which a child writes to standard error. Removes from `output` the
/// bytes that are read.
async fn logged(output: &mut &[u8], secret: &Secret<String>) -> String {
    let captured = Captured::default();
    let printing = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(captured.writer());
    let _printing = tracing::subscriber::set_default(printing.finish());
    let redactor = Arc::new(Redactor::new([("KEY", secret)]));
    log_lines("files".to_owned(), output, redactor).await;
    captured.text()
}

#[tokio::test]
async fn standard_error_without_a_line_feed_is_logged_and_read_to_its_end() {
    let parts = 1100;
    let part = "x".repeat(usize::try_from(MAX_STDERR_LINE_BYTES).unwrap());
    let output = part.repeat(parts);
    assert!(output.len() > MAX_MESSAGE_BYTES);
    let mut unread = output.as_bytes();
    // The value is too short for the redactor, so the search of the output takes no time.
    let logged = logged(&mut unread, &Secret::new("short".to_owned())).await;
    let counts = ["wrote to standard error", "kind=\"stderr\""];
    let counts = counts.map(|text| logged.matches(text).count());
    assert!(counts[0] > 0, "{counts:?}");
    assert_eq!((counts[0] + counts[1], unread.len()), (parts, 0));
}

#[tokio::test]
async fn secret_with_a_character_that_is_cut_into_two_parts_of_a_line_is_not_logged() {
    let part = usize::try_from(MAX_STDERR_LINE_BYTES).unwrap();
    let secret = Secret::new(format!("{}é-canary", "x".repeat(part - 1)));
    // The redactor searches the text that it holds back only once its length has doubled.
    let more = "y".repeat(2 * part);
    let output = format!("{}\nafter\n{more}\n", secret.reveal());
    let logged = logged(&mut output.as_bytes(), &secret).await;
    for text in ["[secret KEY]", "after"] {
        assert_eq!(logged.matches(text).count(), 1, "{text}: {logged}");
    }
    assert!(!logged.contains("xx"), "{logged}");
}

#[tokio::test]
async fn secret_of_several_lines_on_standard_error_is_not_logged() {
    for end in ["\n", "\r\n"] {
        let secret = Secret::new(["first-of-key", "second-of-key", "", "last-of-key"].join(end));
        let whole = secret.reveal();
        let output = format!("before\n{whole}\nafter\nfirst-of-key{end}second");
        let logged = logged(&mut output.as_bytes(), &secret).await;
        for text in ["before", "[secret KEY]", "after"] {
            assert_eq!(logged.matches(text).count(), 1, "{text}: {logged}");
        }
        assert!(!logged.contains("of-key"), "{logged}");
    }
}

#[tokio::test]
async fn standard_error_that_never_stops_looking_like_a_secret_is_counted_and_read_to_its_end() {
    // The escapes of the backslashes overlap those of their percent-decoded form, so the redactor
    // cannot show any of these backslashes before the line feed.
    let unclear = format!("%5c{}\n", "\\".repeat(2 * MAX_HELD_STDERR_BYTES));
    // The redactor searches the text that it holds back only once its length has doubled.
    let output = format!("{unclear}after\n{}\n", "y".repeat(2 * unclear.len()));
    let mut unread = output.as_bytes();
    let secret = Secret::new("sk-very-secret/1+2".to_owned());
    let logged = logged(&mut unread, &secret).await;
    let counts = ["wrote to standard error", "kind=\"stderr\""];
    let counts = counts.map(|text| logged.matches(text).count());
    assert!(counts[0] == 0 && counts[1] > 0, "{counts:?}");
    assert_eq!(unread.len(), 0);
}
