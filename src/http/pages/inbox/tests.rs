//! Checks that the script of the inbox turns no text into markup and sends no decision.

use super::script::SCRIPT;
use crate::http::pages::follow::assert_makes_no_markup;

#[test]
fn script_makes_no_markup_from_text_and_decides_nothing() {
    assert_makes_no_markup(SCRIPT);
    for way in ["POST", "fetch(", "submit"] {
        assert!(!SCRIPT.contains(way), "{way}");
    }
    assert!(SCRIPT.len() < 12 * 1024, "{} bytes", SCRIPT.len());
}
