//! Adds decimal numbers exactly, without the rounding errors of binary fractions.

/// The maximum number of digits after the decimal point, and of zeros that an exponent appends
/// (`5e3` appends three).
const MAX_DIGITS: i32 = 18;

/// Returns the sum of JSON numbers. The sum has as many decimal places as the number with the most
/// decimal places. `None` if a text is not a number or has too many digits, or if the sum is too
/// large.
#[must_use]
pub(super) fn sum<'t>(texts: impl Iterator<Item = &'t str>) -> Option<String> {
    let numbers: Vec<(i128, i32)> = texts.map(decimal).collect::<Option<_>>()?;
    let places = numbers.iter().map(|(_, places)| *places).max()?.max(0);
    let total = numbers
        .iter()
        .try_fold(0_i128, |total, (digits, own_places)| {
            let shift = u32::try_from(places - own_places).ok()?;
            total.checked_add(digits.checked_mul(10_i128.checked_pow(shift)?)?)
        })?;
    let places = usize::try_from(places).ok()?;
    let sign = if total < 0 { "-" } else { "" };
    let digits = format!("{:0>1$}", total.unsigned_abs(), places + 1);
    let (whole, fraction) = digits.split_at(digits.len() - places);
    let point = if places > 0 { "." } else { "" };
    Some(format!("{sign}{whole}{point}{fraction}"))
}

/// Splits a JSON number into its digits, as an integer, and its number of decimal places. `1.20`
/// gives (120, 2), and `5e3` gives (5, -3). `None` for any other text, and for too many digits.
fn decimal(text: &str) -> Option<(i128, i32)> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let places = i32::try_from(fraction.len()).ok()?.checked_sub(exponent)?;
    if places.abs() > MAX_DIGITS || mantissa.len() > 20 {
        return None;
    }
    let digits = format!("{whole}{fraction}");
    let number = digits
        .bytes()
        .skip(usize::from(digits.starts_with('-')))
        .all(|digit| digit.is_ascii_digit());
    let digits = digits.parse().ok().filter(|_| number)?;
    Some((digits, places))
}

#[cfg(test)]
mod tests {
    use super::sum;

    #[test]
    fn decimals_are_added_digit_by_digit() {
        for (texts, expected) in [
            (&["0.1", "0.2"][..], "0.3"),
            (&["120", "80", "30"], "230"),
            (&["20.10", "-5"], "15.10"),
            (&["-0.5", "0.25"], "-0.25"),
            (&["1E2", "1e-2"], "100.01"),
            (&["9007199254740993", "1"], "9007199254740994"),
            (&["-1", "1"], "0"),
        ] {
            assert_eq!(sum(texts.iter().copied()).as_deref(), Some(expected));
        }
    }

    #[test]
    fn text_without_a_number_or_with_too_many_digits_has_no_sum() {
        for texts in [
            &["1", "x"][..],
            &["true"],
            &["null"],
            &["1e300"],
            &["1e-300"],
            &["--1"],
            &["1+1"],
            &[],
        ] {
            assert_eq!(sum(texts.iter().copied()), None, "{texts:?}");
        }
    }
}
