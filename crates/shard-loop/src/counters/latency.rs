//! A histogram of latencies from 1 microsecond to a minute, with eight buckets for each power of two. So from 8 microseconds on, the upper
//! bound of a bucket is at most 1/8 above its lower bound.

/// The bucket of a value is determined by its highest set bit and this number of bits after it.
const SUB_BUCKET_BITS: u32 = 3;
/// The number of buckets for each power of two.
const SUB_BUCKETS: usize = 1 << SUB_BUCKET_BITS;
/// Longer latencies are in the last bucket: 2^26 us are 67 s.
const HIGHEST_BIT_MAX: u32 = 26;
/// The number of buckets.
pub const BUCKETS: usize = (HIGHEST_BIT_MAX - SUB_BUCKET_BITS + 1) as usize * SUB_BUCKETS;

/// The bucket of a value.
fn bucket_of(us: u64) -> usize {
    if us < SUB_BUCKETS as u64 {
        return us as usize;
    }
    let highest_bit = us.ilog2();
    if highest_bit >= HIGHEST_BIT_MAX {
        return BUCKETS - 1;
    }
    let shift = highest_bit - SUB_BUCKET_BITS;
    (shift as usize + 1) * SUB_BUCKETS + ((us >> shift) as usize & (SUB_BUCKETS - 1))
}

/// The upper bound of a bucket (exclusive), in microseconds.
pub fn bucket_end_us(bucket: usize) -> u64 {
    if bucket < SUB_BUCKETS {
        return bucket as u64 + 1;
    }
    let (shift, sub_bucket) = (bucket / SUB_BUCKETS - 1, bucket % SUB_BUCKETS);
    ((SUB_BUCKETS + sub_bucket + 1) as u64) << shift
}

/// A histogram in the form of `/metrics`, with bounds in seconds.
pub struct MetricHistogram {
    /// The upper bound and the count of each bucket.
    pub buckets: Vec<(f64, u64)>,
    /// Sum of all values, in seconds.
    pub sum: f64,
    /// Number of values.
    pub count: u64,
}

/// A histogram of latencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyHistogram {
    /// The count of each bucket.
    pub counts: Vec<u64>,
    /// The sum of all values in microseconds.
    pub sum_us: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        LatencyHistogram {
            counts: vec![0; BUCKETS],
            sum_us: 0,
        }
    }
}

impl LatencyHistogram {
    /// Counts a value `times` times.
    pub fn count_value(&mut self, us: u64, times: u64) {
        self.counts[bucket_of(us)] += times;
        self.sum_us += us.saturating_mul(times);
    }

    /// Adds the values of another histogram.
    pub fn add(&mut self, other: &LatencyHistogram) {
        for (sum, added) in self.counts.iter_mut().zip(&other.counts) {
            *sum += added;
        }
        self.sum_us += other.sum_us;
    }

    /// The values counted since `earlier`.
    pub fn since(&self, earlier: &LatencyHistogram) -> LatencyHistogram {
        let counts = self.counts.iter().zip(&earlier.counts);
        LatencyHistogram {
            counts: counts
                .map(|(count, earlier_count)| count.saturating_sub(*earlier_count))
                .collect(),
            sum_us: self.sum_us.saturating_sub(earlier.sum_us),
        }
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The quantile (0.5 for the median), in microseconds. None if the histogram has no values.
    pub fn quantile_us(&self, quantile: f64) -> Option<u64> {
        let count = self.count();
        let wanted = ((count as f64 * quantile).ceil() as u64).clamp(1, count.max(1));
        let mut counted = 0;
        let quantile_bucket = self.counts.iter().position(|count| {
            counted += count;
            counted >= wanted && count > &0
        });
        quantile_bucket.map(bucket_end_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_hold_their_values() {
        let mut expected = 0;
        for us in 0..100_000_u64 {
            let bucket = bucket_of(us);
            assert!(bucket == expected || bucket == expected + 1, "{us}");
            expected = bucket;
            assert!(us < bucket_end_us(bucket), "{us}");
            assert!(bucket == 0 || us >= bucket_end_us(bucket - 1), "{us}");
            assert!(
                bucket_end_us(bucket) as f64 <= (us + 1) as f64 * 1.125,
                "{us}"
            );
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_end_us(BUCKETS - 1), 1 << HIGHEST_BIT_MAX);
    }

    #[test]
    fn quantiles_are_those_of_the_deliveries() {
        let mut latency = LatencyHistogram::default();
        for (us, times) in [(100, 90), (1_000, 9), (50_000, 1)] {
            latency.count_value(us, times);
        }
        assert_eq!(latency.count(), 100);
        assert_eq!(latency.sum_us, 9_000 + 9_000 + 50_000);
        let check = |share, us: u64| {
            let quantile_us = latency.quantile_us(share).unwrap();
            assert!(
                (us..=us + us / 8 + 1).contains(&quantile_us),
                "{share}: {quantile_us}"
            );
        };
        check(0.5, 100);
        check(0.9, 100);
        check(0.99, 1_000);
        check(1.0, 50_000);
        assert_eq!(latency.since(&latency).quantile_us(0.5), None);
        assert_eq!(latency.since(&LatencyHistogram::default()), latency);
    }
}
