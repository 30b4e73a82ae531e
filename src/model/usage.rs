//! Reads the token counts of an answer. Invariant: a count is at most `u32::MAX`, whatever the
//! endpoint reports, so that the sums over a task and its tree do not overflow.

use serde_json::{Map, Value};

use crate::task::item::Usage;

/// Reads the token counts from the endpoint's report `reported`. The other parameters are names of
/// members. The count of the prompt is the sum of the members in `prompt`. A missing or invalid
/// member of `prompt` or `completion` counts as 0. If the member `total` is missing or invalid, the
/// total is the sum of prompt and completion. Each count is at most `u32::MAX`.
pub(super) fn read_usage(
    reported: Option<&Map<String, Value>>,
    prompt: &[&str],
    completion: &str,
    total: Option<&str>,
) -> Usage {
    let count = |name: &str| {
        let tokens = reported?.get(name)?.as_u64()?;
        Some(u32::try_from(tokens).unwrap_or(u32::MAX))
    };
    let prompt_tokens = prompt
        .iter()
        .filter_map(|name| count(name))
        .fold(0, u32::saturating_add);
    let completion_tokens = count(completion).unwrap_or(0);
    let total_tokens = total
        .and_then(count)
        .unwrap_or_else(|| prompt_tokens.saturating_add(completion_tokens));
    Usage {
        prompt_tokens: prompt_tokens.into(),
        completion_tokens: completion_tokens.into(),
        total_tokens: total_tokens.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn token_count_that_is_too_large_is_bounded_and_an_invalid_count_is_zero() {
        let most = i64::from(u32::MAX);
        for (tokens, read) in [
            (json!(u32::MAX), most),
            (json!(i64::from(u32::MAX) + 1), most),
            (json!(i64::MAX), most),
            (json!(u64::MAX), most),
            (json!(i64::MIN), 0),
            (json!("7"), 0),
            (Value::Null, 0),
        ] {
            let reported = json!({"in": tokens, "cached": tokens, "out": tokens, "all": tokens});
            for total in [Some("all"), Some("missing"), None] {
                let usage = read_usage(reported.as_object(), &["in", "cached"], "out", total);
                let all = [
                    usage.prompt_tokens,
                    usage.completion_tokens,
                    usage.total_tokens,
                ];
                assert_eq!(all, [read; 3], "{tokens} {total:?}");
            }
        }
    }
}
