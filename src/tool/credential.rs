//! `{{credential:NAME.FIELD}}` in a tool's headers, `url` and `env`: how it is written. What stands there is filled in
//! right before sending, by whoever has the sealed credentials; until then such a tool is not called.

/// How a reference begins.
pub(super) const OPEN: &str = "{{credential:";

/// The (credential, field) pairs that a text refers to, in its order.
///
/// # Errors
/// What is wrong with a reference.
pub fn references(text: &str) -> Result<Vec<(&str, &str)>, String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(OPEN) {
        let (reference, tail) = split(rest.get(at..).unwrap_or_default())?;
        found.push(reference);
        rest = tail;
    }
    Ok(found)
}

/// The reference that a text begins with, and what follows it.
pub(super) fn split(text: &str) -> Result<((&str, &str), &str), String> {
    let inside = text.strip_prefix(OPEN).and_then(|after| after.split_once("}}"));
    let Some((reference, tail)) = inside else { return Err("has a `{{credential:` without its `}}`".to_owned()) };
    let name = |word: &str| {
        !word.is_empty()
            && word.len() <= 64
            && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
    };
    match reference.split_once('.').filter(|(credential, field)| name(credential) && name(field)) {
        Some(pair) => Ok((pair, tail)),
        None => Err("names a credential otherwise than `{{credential:NAME.FIELD}}`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::references;

    #[test]
    fn references_are_found_and_misspelt_ones_refused() {
        assert_eq!(references("Bearer {{credential:jira.token}}"), Ok(vec![("jira", "token")]));
        assert_eq!(references("{{credential:a.b}}{{credential:c.d}}"), Ok(vec![("a", "b"), ("c", "d")]));
        assert_eq!(references("{{other}}"), Ok(vec![]));
        for wrong in ["{{credential:jira}}", "{{credential:.x}}", "{{credential:a.b}", "{{credential:a.b.c}}"] {
            assert!(references(wrong).is_err(), "{wrong}");
        }
    }
}
