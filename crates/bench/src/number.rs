//! Numbers for people.

/// Formats a number with three significant digits, and with all digits before the point.
pub fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => thousands(value.round() as i128),
        large if large >= 99.95 => format!("{value:.0}"),
        middle if middle >= 9.995 => format!("{value:.1}"),
        small if small >= 0.0995 || small == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn thousands(value: i128) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::from(if value < 0 { "-" } else { "" });
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats bytes in decimal units with three digits: `0`, `640`, `1.23M`.
pub fn bytes(value: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(size, _)| value >= *size) {
        Some((size, unit)) if value / size >= 99.95 => format!("{:.0}{unit}", value / size),
        Some((size, unit)) if value / size >= 9.995 => format!("{:.1}{unit}", value / size),
        Some((size, unit)) => format!("{:.2}{unit}", value / size),
        None => format!("{value:.0}"),
    }
}

/// Formats bytes in units of 1,024, as memory is measured: `640 B`, `512 KiB`, `1.1 MiB`.
pub fn binary(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) => {
            let tenths = (bytes as f64 / (1_u64 << shift) as f64 * 10.0).round() / 10.0;
            format!("{tenths} {unit}")
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let values = [0.0, 0.0671, 0.28, 1.234, 12.34, 99.96, 123.4, 999.6, 1234.0, 1_234_567.0];
        let texts = values.map(number);
        let expected = ["0.00", "0.067", "0.28", "1.23", "12.3", "100", "123", "1000", "1,234", "1,234,567"];
        assert_eq!(texts, expected);
    }

    #[test]
    fn bytes_have_three_digits_and_a_unit() {
        let texts = [0.0, 640.0, 1234.0, 65_536.0, 123_400_000.0, 2.5e9].map(bytes);
        assert_eq!(texts, ["0", "640", "1.23k", "65.5k", "123M", "2.50G"]);
    }

    #[test]
    fn memory_is_in_units_of_1024() {
        let texts = [640, 512 << 10, 1_100_000, 8 << 20, 3 << 40].map(binary);
        assert_eq!(texts, ["640 B", "512 KiB", "1 MiB", "8 MiB", "3 TiB"]);
    }
}
