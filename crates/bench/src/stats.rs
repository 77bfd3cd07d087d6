//! Medians and spread of samples.

use serde::Serialize;

use crate::number::number;

/// Samples in the order they were taken, and what they come to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// First and third quartile: half of the samples lie between them.
    pub q1: f64,
    pub q3: f64,
    pub samples: Vec<f64>,
}

impl Summary {
    /// `None` of no samples.
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

    /// `5.00 (1.00..9.00)`: the median, the least and the greatest.
    pub fn spread(&self) -> String {
        format!("{} ({}..{})", number(self.median), number(self.min), number(self.max))
    }

    /// In another unit.
    pub fn scaled(&self, by: f64) -> Self {
        let samples = self.samples.iter().map(|sample| sample * by).collect();
        let Self { median, min, max, q1, q3, .. } = *self;
        Self { median: median * by, min: min * by, max: max * by, q1: q1 * by, q3: q3 * by, samples }
    }

    /// The ratio of each sample to the base's of the same round. `None` where one has more.
    pub fn ratio(&self, base: &Self) -> Option<Self> {
        if self.samples.len() != base.samples.len() {
            return None;
        }
        let pairs = self.samples.iter().zip(&base.samples);
        Self::of(pairs.map(|(own, base)| own / base).collect())
    }
}

/// The quantile of sorted samples, linear between the two it falls among.
fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = part * last as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    let weight = place - place.floor();
    Some(sorted[below] * (1.0 - weight) + sorted[above] * weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_quartiles_of_known_samples() {
        let odd = Summary::of(vec![9.0, 1.0, 5.0, 3.0, 7.0]).expect("samples");
        assert_eq!((odd.min, odd.q1, odd.median, odd.q3, odd.max), (1.0, 3.0, 5.0, 7.0, 9.0));
        let even = Summary::of(vec![4.0, 1.0, 3.0, 2.0]).expect("samples");
        assert_eq!((even.q1, even.median, even.q3), (1.75, 2.5, 3.25));
        assert_eq!(even.samples, [4.0, 1.0, 3.0, 2.0]);
    }

    #[test]
    fn one_sample_is_all_of_them_and_none_is_nothing() {
        let one = Summary::of(vec![2.5]).expect("a sample");
        assert_eq!((one.min, one.q1, one.median, one.q3, one.max), (2.5, 2.5, 2.5, 2.5, 2.5));
        assert_eq!(Summary::of(Vec::new()), None);
    }

    #[test]
    fn another_unit_scales_everything() {
        let nanoseconds = Summary::of(vec![3e6, 1e6, 2e6]).expect("samples");
        assert_eq!(nanoseconds.scaled(1e-6), Summary::of(vec![3.0, 1.0, 2.0]).expect("samples"));
    }

    #[test]
    fn a_ratio_is_of_the_pairs_not_of_the_medians() {
        let own = Summary::of(vec![1.0, 20.0, 300.0]).expect("samples");
        let base = Summary::of(vec![10.0, 20.0, 100.0]).expect("samples");
        let ratio = own.ratio(&base).expect("as many");
        assert_eq!(ratio.samples, [0.1, 1.0, 3.0]);
        assert_eq!(ratio.median, 1.0);
        assert_eq!(own.ratio(&Summary::of(vec![1.0]).expect("a sample")), None);
    }
}
