//! Whether two groups of samples differ by more than chance: the Mann-Whitney U test, two-sided.
//!
//! H. B. Mann and D. R. Whitney, "On a test of whether one of two random variables is stochastically
//! larger than the other", Annals of Mathematical Statistics 18 (1947), pages 50 to 60: U's exact
//! distribution by their recurrence where no two samples are equal and there are not too many; else
//! the normal distribution, with the correction of its variance for ties and that for continuity.
//! The test asks nothing of the samples' distribution, which for times is never the normal one.

/// Up to so many samples in each group the distribution is counted out.
const EXACT_MAX: usize = 40;

/// The probability that chance alone parts two such groups as far as `a` and `b`, or farther. 1 if
/// one of them is empty.
pub fn p_value(a: &[f64], b: &[f64]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 1.0;
    }
    let (u, ties) = statistic(a, b);
    let (n, m) = (a.len(), b.len());
    let least = u.min((n * m) as f64 - u);
    if ties == 0.0 && n.max(m) <= EXACT_MAX { exact(n, m, least) } else { normal(n, m, least, ties) }
}

/// The least probability that groups of such sizes can show.
pub fn least_p(n: usize, m: usize) -> f64 {
    if n.max(m) <= EXACT_MAX { exact(n, m, 0.0) } else { normal(n, m, 0.0, 0.0) }
}

/// U of `a`: pairs in which its sample is the larger, equal ones counted half; and the sum of t^3 - t
/// over all groups of t equal samples.
fn statistic(a: &[f64], b: &[f64]) -> (f64, f64) {
    let pairs = a.iter().flat_map(|own| b.iter().map(move |other| own.total_cmp(other)));
    let u = pairs.map(|order| f64::from(order as i8 + 1) / 2.0).sum();
    let mut all: Vec<_> = a.iter().chain(b).copied().collect();
    all.sort_by(f64::total_cmp);
    let groups = all.chunk_by(|one, other| one == other).map(|group| group.len() as f64);
    (u, groups.map(|t| t.powi(3) - t).sum())
}

/// Twice the part of all orders of `n` and `m` samples whose U is `least` or less.
fn exact(n: usize, m: usize, least: f64) -> f64 {
    // counts[k]: orders of the first i and of all m with U = k. The recurrence of the paper is the
    // product of (1 - x^(m+i)) / (1 - x^i): each factor in two passes.
    let mut counts = vec![0.0; n * m + 1];
    counts[0] = 1.0;
    for i in 1..=n {
        for k in (m + i..counts.len()).rev() {
            counts[k] -= counts[k - m - i];
        }
        for k in i..counts.len() {
            counts[k] += counts[k - i];
        }
    }
    let all: f64 = counts.iter().sum();
    let tail: f64 = counts[..=least as usize].iter().sum();
    (2.0 * tail / all).min(1.0)
}

fn normal(n: usize, m: usize, least: f64, ties: f64) -> f64 {
    let (n, m) = (n as f64, m as f64);
    let all = n + m;
    let variance = n * m / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
    // All samples are equal: nothing parts the groups.
    if variance <= 0.0 {
        return 1.0;
    }
    let z = (n * m / 2.0 - least - 0.5).max(0.0) / variance.sqrt();
    libm::erfc(z / std::f64::consts::SQRT_2)
}

/// Holm's correction: the probabilities as they are when so many questions are asked at once.
/// S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
/// Statistics 6 (1979), pages 65 to 70.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<_> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut adjusted = vec![0.0; p_values.len()];
    let mut largest = 0.0_f64;
    for (rank, &place) in order.iter().enumerate() {
        let left = (p_values.len() - rank) as f64;
        largest = largest.max((p_values[place] * left).min(1.0));
        adjusted[place] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `n` and `m` samples without ties of which U is `u`: `a` is moved up past `u` of `b` in all.
    fn groups(n: usize, m: usize, mut u: usize) -> (Vec<f64>, Vec<f64>) {
        let b: Vec<_> = (0..m).map(|place| place as f64 * 100.0).collect();
        let a = (0..n).map(|i| {
            let past = u.min(m);
            u -= past;
            past as f64 * 100.0 - 50.0 + (n - i) as f64 * 0.1
        });
        (a.collect(), b)
    }

    /// The largest U that is significant at 5 % and at 1 %, two-sided: the table in every book of
    /// statistics (first in D. Auble, Bulletin of the Institute of Educational Research at
    /// Indiana University 1, 1953).
    #[test]
    fn critical_values_are_those_of_the_published_table() {
        for (n, m, five, one) in [
            (5, 5, 2, Some(0)),
            (6, 6, 5, Some(2)),
            (7, 7, 8, Some(4)),
            (8, 8, 13, Some(7)),
            (9, 9, 17, Some(11)),
            (10, 10, 23, Some(16)),
            (20, 20, 127, Some(105)),
            (5, 8, 6, Some(2)),
            (9, 12, 26, Some(18)),
            (4, 4, 0, None),
        ] {
            let p = |u| {
                let (a, b) = groups(n, m, u);
                p_value(&a, &b)
            };
            assert!(p(five) <= 0.05 && p(five + 1) > 0.05, "{n} and {m}: {} {}", p(five), p(five + 1));
            match one {
                Some(one) => assert!(p(one) <= 0.01 && p(one + 1) > 0.01, "{n} and {m}: {}", p(one)),
                None => assert!(least_p(n, m) > 0.01),
            }
        }
    }

    #[test]
    fn exact_probabilities_are_fractions_of_all_orders() {
        let table = [
            // Of 20 orders 1 has U = 0, and 1 has the largest.
            (vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0], 2.0 / 20.0),
            (vec![4.0, 5.0, 6.0], vec![1.0, 2.0, 3.0], 2.0 / 20.0),
            // U = 17 of 20, that is 3: 7 of 126 orders have 3 or less.
            (vec![19.0, 22.0, 16.0, 29.0, 24.0], vec![20.0, 11.0, 17.0, 12.0], 14.0 / 126.0),
            (vec![1.0], vec![2.0], 1.0),
            (vec![], vec![2.0], 1.0),
        ];
        for (a, b, p) in table {
            assert!((p_value(&a, &b) - p).abs() < 1e-12, "{a:?} {b:?}: {}", p_value(&a, &b));
        }
        assert!((least_p(9, 9) - 2.0 / 48_620.0).abs() < 1e-12);
    }

    #[test]
    fn the_normal_distribution_agrees_with_the_exact_one_and_knows_ties() {
        // The groups above without their exact distribution: z = 6.5 / sqrt(50 / 3).
        assert!((normal(5, 4, 3.0, 0.0) - 0.111_346_886_533).abs() < 1e-9, "{}", normal(5, 4, 3.0, 0.0));
        for (n, m, least) in [(20, 20, 130.0), (30, 25, 270.0), (40, 40, 600.0)] {
            let (exact, normal) = (exact(n, m, least), normal(n, m, least, 0.0));
            assert!((exact - normal).abs() < 0.003, "{n} and {m}: {exact} {normal}");
        }
        assert_eq!(p_value(&[5.0; 9], &[5.0; 9]), 1.0);
        // U = 1 of 9; groups of 3 and of 2 equal ones: the sum of t^3 - t is 24 + 6.
        let p = p_value(&[1.0, 2.0, 2.0], &[2.0, 3.0, 3.0]);
        let (u, ties) = statistic(&[1.0, 2.0, 2.0], &[2.0, 3.0, 3.0]);
        assert_eq!((u, ties), (1.0, 30.0));
        let z = 3.0 / (0.75_f64 * (7.0 - 30.0 / 30.0)).sqrt();
        assert!((p - libm::erfc(z / 2_f64.sqrt())).abs() < 1e-12, "{p}");
    }

    #[test]
    fn holm_asks_more_of_the_first() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.5]);
        for (adjusted, expected) in adjusted.iter().zip([0.04, 0.09, 0.09, 0.5]) {
            assert!((adjusted - expected).abs() < 1e-12, "{adjusted}");
        }
        assert_eq!(holm(&[]), Vec::<f64>::new());
    }
}
