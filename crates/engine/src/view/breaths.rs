//! How long breaths take: a packet that arrives waits for one, at most for two.

use hdrhistogram::Histogram;

use crate::layout::{HISTOGRAM_BUCKETS, HISTOGRAM_STEPS, bucket_floor};

/// Durations of breaths that moved packets, in nanoseconds. Workers count them in buckets, each an
/// eighth of a power of two wide: a figure is the upper end of its bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Breaths {
    /// How many.
    pub count: u64,
    /// Half of them were no longer.
    pub p50_ns: u64,
    /// 99 of 100 were no longer.
    pub p99_ns: u64,
    /// 999 of 1000 were no longer.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// Digits that count.
const DIGITS: u8 = 3;

impl Breaths {
    /// Those counted in `buckets`.
    pub fn of(buckets: &[u64]) -> Self {
        let top = bucket_floor(HISTOGRAM_BUCKETS) - 1;
        let Ok(mut histogram) = Histogram::<u64>::new_with_bounds(1, top, DIGITS) else {
            return Self::default();
        };
        // A bucket without any would count as the longest all the same.
        let counts = buckets.iter().enumerate().take(HISTOGRAM_BUCKETS).filter(|(_, count)| **count > 0);
        for (bucket, count) in counts {
            histogram.saturating_record_n(upper(bucket), *count);
        }
        if histogram.is_empty() {
            return Self::default();
        }
        // Its own buckets are narrower than ours, and end where ours do.
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self {
            count: histogram.len(),
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: histogram.max(),
        }
    }
}

/// The longest duration in a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < HISTOGRAM_STEPS { bucket as u64 } else { bucket_floor(bucket + 1) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::bucket;

    #[test]
    fn percentiles_are_upper_ends_of_the_right_buckets() {
        let mut buckets = vec![0; HISTOGRAM_BUCKETS];
        for (ns, count) in [(100, 9000), (1000, 985), (70_000, 14), (3_000_000, 1)] {
            buckets[bucket(ns)] += count;
        }
        let breaths = Breaths::of(&buckets);
        assert_eq!(breaths.count, 10_000);
        let figures = [breaths.p50_ns, breaths.p99_ns, breaths.p999_ns, breaths.max_ns];
        for (figure, ns) in figures.into_iter().zip([100, 1000, 70_000, 3_000_000]) {
            assert!(
                figure >= ns && figure < ns + ns / 7 && bucket(figure) == bucket(ns),
                "{figure} for {ns}"
            );
        }
    }

    #[test]
    fn every_bucket_keeps_its_upper_end() {
        for bucket in 1..HISTOGRAM_BUCKETS {
            let mut buckets = vec![0; HISTOGRAM_BUCKETS];
            buckets[bucket] = 1;
            assert_eq!(Breaths::of(&buckets).max_ns, upper(bucket), "{bucket}");
        }
        assert_eq!(Breaths::of(&[]), Breaths::default());
        assert_eq!(Breaths::of(&vec![u64::MAX; HISTOGRAM_BUCKETS]).max_ns, upper(HISTOGRAM_BUCKETS - 1));
    }
}
