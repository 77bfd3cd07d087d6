//! The median and the spread of samples.

use serde::Serialize;

use crate::number::number;

/// Samples in the order they were taken, and their summary.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SampleSummary {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// The first quartile and, below, the third: half of the samples lie between them.
    pub q1: f64,
    pub q3: f64,
    pub samples: Vec<f64>,
}

impl SampleSummary {
    /// Summarizes samples; `None` if there are none.
    pub fn of(samples: Vec<f64>) -> Option<Self> {
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            median: quantile(&sorted, 0.5)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
            q1: quantile(&sorted, 0.25)?,
            q3: quantile(&sorted, 0.75)?,
            samples,
        })
    }

    /// Formats `5.00 (1.00..9.00)`: the median, the least and the greatest.
    pub fn spread(&self) -> String {
        format!("{} ({}..{})", number(self.median), number(self.min), number(self.max))
    }

    /// Returns the summary in another unit.
    pub fn scaled(&self, by: f64) -> Self {
        let samples = self.samples.iter().map(|sample| sample * by).collect();
        let Self { median, min, max, q1, q3, .. } = *self;
        Self { median: median * by, min: min * by, max: max * by, q1: q1 * by, q3: q3 * by, samples }
    }

    /// Returns the ratio of each sample to the base's sample of the same round; `None` if one side has more samples.
    pub fn ratio(&self, base: &Self) -> Option<Self> {
        if self.samples.len() != base.samples.len() {
            return None;
        }
        let pairs = self.samples.iter().zip(&base.samples);
        Self::of(pairs.map(|(own, base)| own / base).collect())
    }
}

/// Returns the quantile of sorted samples, linear between the two neighbours.
fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = part * last as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    let weight = place - place.floor();
    Some(sorted[below] * (1.0 - weight) + sorted[above] * weight)
}

/// Up to so many samples in each group, the distribution is computed exactly.
const EXACT_MAX: usize = 40;

/// Returns the probability that chance alone separates two such groups as far as `a` and `b`, or farther; 1 if one of
/// them is empty.
pub fn p_value(a: &[f64], b: &[f64]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 1.0;
    }
    let (u, ties) = statistic(a, b);
    let (n, m) = (a.len(), b.len());
    let least = u.min((n * m) as f64 - u);
    if ties == 0.0 && n.max(m) <= EXACT_MAX { exact(n, m, least) } else { normal(n, m, least, ties) }
}

/// Returns the least probability that groups of such sizes can show.
pub fn least_p(n: usize, m: usize) -> f64 {
    if n.max(m) <= EXACT_MAX { exact(n, m, 0.0) } else { normal(n, m, 0.0, 0.0) }
}

/// Returns U of `a`: the number of pairs in which its sample is the larger, equal ones counted half; and the sum of
/// t^3 - t over all groups of t equal samples.
fn statistic(a: &[f64], b: &[f64]) -> (f64, f64) {
    let pairs = a.iter().flat_map(|own| b.iter().map(move |other| own.total_cmp(other)));
    let u = pairs.map(|order| f64::from(order as i8 + 1) / 2.0).sum();
    let mut all: Vec<_> = a.iter().chain(b).copied().collect();
    all.sort_by(f64::total_cmp);
    let groups = all.chunk_by(|one, other| one == other).map(|group| group.len() as f64);
    (u, groups.map(|t| t.powi(3) - t).sum())
}

/// Returns twice the share of all orders of `n` and `m` samples whose U is `least` or less.
fn exact(n: usize, m: usize, least: f64) -> f64 {
    // counts[k] is the number of orders of the first i and of all m with U = k. The recurrence of the paper is the
    // product of (1 - x^(m+i)) / (1 - x^i): each factor takes two passes.
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
    // All samples are equal: nothing separates the groups.
    if variance <= 0.0 {
        return 1.0;
    }
    let z = (n * m / 2.0 - least - 0.5).max(0.0) / variance.sqrt();
    libm::erfc(z / std::f64::consts::SQRT_2)
}

/// Applies Holm's correction: returns the probabilities for asking so many questions at once. S. Holm, "A simple
/// sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979), pages 65 to 70.
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

    #[test]
    fn median_and_quartiles_of_known_samples() {
        let odd = SampleSummary::of(vec![9.0, 1.0, 5.0, 3.0, 7.0]).expect("samples");
        assert_eq!((odd.min, odd.q1, odd.median, odd.q3, odd.max), (1.0, 3.0, 5.0, 7.0, 9.0));
        let even = SampleSummary::of(vec![4.0, 1.0, 3.0, 2.0]).expect("samples");
        assert_eq!((even.q1, even.median, even.q3), (1.75, 2.5, 3.25));
        assert_eq!(even.samples, [4.0, 1.0, 3.0, 2.0]);
    }

    #[test]
    fn one_sample_is_all_of_them_and_none_is_nothing() {
        let one = SampleSummary::of(vec![2.5]).expect("a sample");
        assert_eq!((one.min, one.q1, one.median, one.q3, one.max), (2.5, 2.5, 2.5, 2.5, 2.5));
        assert_eq!(SampleSummary::of(Vec::new()), None);
    }

    #[test]
    fn another_unit_scales_everything() {
        let nanoseconds = SampleSummary::of(vec![3e6, 1e6, 2e6]).expect("samples");
        assert_eq!(nanoseconds.scaled(1e-6), SampleSummary::of(vec![3.0, 1.0, 2.0]).expect("samples"));
    }

    #[test]
    fn a_ratio_is_of_the_pairs_not_of_the_medians() {
        let own = SampleSummary::of(vec![1.0, 20.0, 300.0]).expect("samples");
        let base = SampleSummary::of(vec![10.0, 20.0, 100.0]).expect("samples");
        let ratio = own.ratio(&base).expect("as many");
        assert_eq!(ratio.samples, [0.1, 1.0, 3.0]);
        assert_eq!(ratio.median, 1.0);
        assert_eq!(own.ratio(&SampleSummary::of(vec![1.0]).expect("a sample")), None);
    }

    /// Returns `n` and `m` samples without ties whose U is `u`: `a` is moved up past `u` of `b` in all.
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
            // Of 20 orders, 1 has U = 0, and 1 has the largest U.
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
