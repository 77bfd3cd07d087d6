//! Numbers from nano to tera with their units.

const PREFIXES: [(f64, &str); 9] = [
    (1e15, "P"),
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "u"),
    (1e-9, "n"),
];
const TIMES: [(f64, &str); 7] =
    [(86_400.0, "days"), (3_600.0, "h"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"), (1e-12, "ps")];

/// Formats a rate with so many significant digits: `1.28 GB/s`.
pub fn rate(value: f64, unit: &str, digits: usize) -> String {
    let value = rounded(value, digits);
    let (size, prefix) = choose(value, &PREFIXES);
    format!("{} {prefix}{unit}", plain(value / size, digits))
}

/// Formats a time with three significant digits: `95.2 ns`, `40 days`.
pub fn time(seconds: f64) -> String {
    let seconds = rounded(seconds, 3);
    let (size, unit) = choose(seconds, &TIMES);
    format!("{} {unit}", plain(seconds / size, 3))
}

/// Formats the bytes of a block: a power of two in units of 1,024, any other number in units of 1,000.
pub fn block(bytes: f64) -> String {
    match bytes {
        bit if bit < 1.0 => format!("{} bit", bit * 8.0),
        small if small < 1000.0 => format!("{small} B"),
        whole if (whole as u64).is_power_of_two() => crate::number::binary(whole as u64),
        other => rate(other, "B", 3),
    }
}

fn choose(value: f64, units: &[(f64, &'static str)]) -> (f64, &'static str) {
    let fits = units.iter().find(|(size, _)| value >= *size * (1.0 - 1e-9));
    fits.or(units.last()).copied().unwrap_or((1.0, ""))
}

fn rounded(value: f64, digits: usize) -> f64 {
    format!("{value:.*e}", digits.saturating_sub(1)).parse().unwrap_or(value)
}

/// Formats without an exponent and without zeros behind the last digit that says something.
fn plain(value: f64, digits: usize) -> String {
    let before = if value < 1.0 { 1 } else { value.log10().floor() as usize + 1 };
    let text = format!("{value:.*}", digits.saturating_sub(before));
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_a_prefix_and_their_digits() {
        for (value, digits, expected) in [
            (289.35e-9, 3, "289 nX"),
            (74.07e9, 2, "74 GX"),
            (1.4815e12, 2, "1.5 TX"),
            (102.4e9, 4, "102.4 GX"),
            (999_999.0, 3, "1 MX"),
            (0.0, 3, "0 nX"),
            (100.0, 3, "100 X"),
            (2e16, 3, "20 PX"),
        ] {
            assert_eq!(rate(value, "X", digits), expected);
        }
    }

    #[test]
    fn times_and_blocks_have_units() {
        assert_eq!(
            [40.0 * 86_400.0, 0.01, 95.24e-9, 10e-12].map(time),
            ["40 days", "10 ms", "95.2 ns", "10 ps"]
        );
        assert_eq!(
            [0.125, 8.0, 512.0, 4096.0, 8e3, 8_388_608.0, 256e15].map(block),
            ["1 bit", "8 B", "512 B", "4 KiB", "8 kB", "8 MiB", "256 PB"]
        );
    }
}
