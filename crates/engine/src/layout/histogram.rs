//! Buckets of durations, in memory that others read.

/// Sub-buckets of each power of two in the histogram of breaths.
pub const HISTOGRAM_STEPS: usize = 8;
/// Buckets of the histogram of breaths: up to 2^36 ns.
pub const HISTOGRAM_BUCKETS: usize = 34 * HISTOGRAM_STEPS;

/// The bucket of a duration.
#[inline]
pub fn bucket(ns: u64) -> usize {
    if ns < HISTOGRAM_STEPS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2() as usize;
    let step = (ns >> (power - 3)) as usize & (HISTOGRAM_STEPS - 1);
    ((power - 2) * HISTOGRAM_STEPS + step).min(HISTOGRAM_BUCKETS - 1)
}

/// The least duration in a bucket.
pub fn bucket_floor(bucket: usize) -> u64 {
    if bucket < HISTOGRAM_STEPS {
        return bucket as u64;
    }
    let power = bucket / HISTOGRAM_STEPS + 2;
    ((HISTOGRAM_STEPS + bucket % HISTOGRAM_STEPS) as u64) << (power - 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_lies_in_its_bucket() {
        for ns in (0..5000).chain((12..36).flat_map(|power| [(1 << power) - 1, 1 << power, 3 << (power - 1)]))
        {
            let found = bucket(ns);
            assert!(bucket_floor(found) <= ns, "{ns} in {found}");
            if found + 1 < HISTOGRAM_BUCKETS {
                assert!(ns < bucket_floor(found + 1), "{ns} in {found}");
            }
        }
        assert_eq!(bucket(u64::MAX), HISTOGRAM_BUCKETS - 1);
    }
}
