//! Numbers as Redis reads and writes them.

/// Reads an integer in its one canonical form: no `+`, no leading zero, no space.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_canonical = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !is_canonical {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The decimals that INCRBYFLOAT keeps, as in Redis.
const DECIMALS: usize = 17;

/// The largest number of digits before the point for which decimals are added exactly.
const WHOLE_DIGITS_MAX: usize = 20;

/// Why two decimals have no sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SumError {
    /// One of them is no number.
    NoNumber,
    /// The sum is not finite.
    NotFinite,
}

/// Returns the sum of two numbers as text. Decimals of up to 20 digits before the point and 17 behind it are added exactly;
/// Redis adds them in the processor's `long double`. Larger ones are added as `f64`.
pub(crate) fn sum(left: &[u8], right: &[u8]) -> Result<String, SumError> {
    if let (Some(left), Some(right)) = (scaled(left), scaled(right)) {
        return Ok(unscaled(left + right));
    }
    let sum = float(left)? + float(right)?;
    if sum.is_finite() { Ok(format!("{sum}")) } else { Err(SumError::NotFinite) }
}

fn float(text: &[u8]) -> Result<f64, SumError> {
    let text = std::str::from_utf8(text).map_err(|_| SumError::NoNumber)?;
    let value: f64 = text.parse().map_err(|_| SumError::NoNumber)?;
    if value.is_nan() { Err(SumError::NoNumber) } else { Ok(value) }
}

/// Returns a decimal times ten to the power of [`DECIMALS`], `None` if it has an exponent or more digits than that takes.
fn scaled(text: &[u8]) -> Option<i128> {
    let is_negative = text.first() == Some(&b'-');
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    let point = digits.iter().position(|byte| *byte == b'.').unwrap_or(digits.len());
    let (whole, fraction) = (&digits[..point], digits.get(point + 1..).unwrap_or_default());
    let is_exact = whole.len() <= WHOLE_DIGITS_MAX && fraction.len() <= DECIMALS;
    if !is_exact || whole.len() + fraction.len() == 0 {
        return None;
    }
    let mut value = 0_i128;
    for digit in whole.iter().chain(fraction) {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value * 10 + i128::from(digit - b'0');
    }
    value *= 10_i128.pow((DECIMALS - fraction.len()) as u32);
    Some(if is_negative { -value } else { value })
}

fn unscaled(value: i128) -> String {
    let one = 10_u128.pow(DECIMALS as u32);
    let (whole, fraction) = (value.unsigned_abs() / one, value.unsigned_abs() % one);
    let sign = if value < 0 { "-" } else { "" };
    if fraction == 0 {
        return format!("{sign}{whole}");
    }
    let fraction = format!("{fraction:0width$}", width = DECIMALS);
    format!("{sign}{whole}.{}", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_has_one_form() {
        for (text, value) in [("0", 0), ("-1", -1), ("9223372036854775807", i64::MAX)] {
            assert_eq!(integer(text.as_bytes()), Some(value));
        }
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        for text in ["", "-", "-0", "01", "+1", " 1", "1 ", "1a", "9223372036854775808", "1.0"] {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn decimals_are_added_exactly() {
        for (left, right, expected) in [
            ("3.0", "1.1", "4.1"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("1", "-1.1", "-0.1"),
            ("-1", "1", "0"),
            ("17179869184", "1.5", "17179869185.5"),
            ("1e30", "1", "1000000000000000000000000000000"),
        ] {
            assert_eq!(sum(left.as_bytes(), right.as_bytes()).as_deref(), Ok(expected));
        }
        for text in ["", ".", "-", "1 ", " 1", "abc", "nan", "1\0"] {
            assert_eq!(sum(text.as_bytes(), b"1"), Err(SumError::NoNumber), "{text}");
        }
        assert_eq!(sum(b"1", b"inf"), Err(SumError::NotFinite));
    }
}
