//! The script of the inbox.

use super::script::SCRIPT;

#[test]
fn script_makes_no_markup_from_text_and_decides_nothing() {
    for way in [
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval",
        "Function(",
        "DOMParser",
        "POST",
        "fetch(",
        "submit",
    ] {
        assert!(!SCRIPT.contains(way), "{way}");
    }
    assert!(SCRIPT.len() < 12 * 1024, "{} bytes", SCRIPT.len());
}
