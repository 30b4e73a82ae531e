//! Reads the decimal numbers of JSON without the loss of digits that a double has.

/// Splits a decimal number into three parts: whether it is negative, its digits without zeros at
/// either end, and the power of ten of the last of these digits. Zero is never negative. Equal
/// numbers have equal parts, however they are written. Returns `None` if the exponent is too large.
pub(crate) fn decimal(text: &str) -> Option<(bool, String, i64)> {
    let (negative, text) = text
        .strip_prefix('-')
        .map_or((false, text), |text| (true, text));
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_matches('0');
    if significant.is_empty() {
        return Some((false, String::new(), 0));
    }
    let dropped = digits.len() - digits.trim_end_matches('0').len();
    let exponent: i64 = exponent.parse().ok()?;
    let power = exponent
        .checked_add(i64::try_from(dropped).ok()?)?
        .checked_sub(i64::try_from(fraction.len()).ok()?)?;
    Some((negative, significant.to_owned(), power))
}
