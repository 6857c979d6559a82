//! Computes statistics of a stream of latencies in one pass: mean and deviation by Welford's recurrence, quantiles from a histogram.
//!
//! Every value is counted and none is stored. Values are nanoseconds.

use serde_json::{Value, json};

/// The binary logarithm of the number of buckets for each power of two. With these 128 buckets a quantile is at most 0.8 % too high.
const STEP_BITS: u32 = 7;
const STEPS: usize = 1 << STEP_BITS;
/// Values from 2^40 ns (18 minutes) on share the last bucket.
const VALUE_BITS: u32 = 40;
const BUCKETS: usize = ((VALUE_BITS - STEP_BITS + 1) as usize) << STEP_BITS;

/// Two-sided 90 % quantile of the normal distribution.
const Z_90: f64 = 1.644_853_626_951;
/// Two-sided 95 % quantile of the normal distribution.
const Z_95: f64 = 1.959_963_984_540;

/// Mean and variance in one pass (Welford 1962), with minimum and maximum.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningStats {
    count: u64,
    mean: f64,
    /// Sum of the squared distances from the mean.
    squares: f64,
    min: u64,
    max: u64,
}

impl Default for RunningStats {
    fn default() -> Self {
        RunningStats {
            count: 0,
            mean: 0.0,
            squares: 0.0,
            min: u64::MAX,
            max: 0,
        }
    }
}

impl RunningStats {
    /// Adds one value.
    pub fn add(&mut self, value: u64) {
        self.count += 1;
        let distance = value as f64 - self.mean;
        self.mean += distance / self.count as f64;
        self.squares += distance * (value as f64 - self.mean);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds the values of another stream (Chan's pairwise form of the same recurrence).
    pub fn merge(&mut self, other: &RunningStats) {
        if other.count == 0 {
            return;
        }
        let count = self.count + other.count;
        let distance = other.mean - self.mean;
        let share = other.count as f64 / count as f64;
        self.squares += other.squares + distance * distance * self.count as f64 * share;
        self.mean += distance * share;
        self.count = count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Sample standard deviation.
    pub fn deviation(&self) -> f64 {
        if self.count < 2 {
            0.0
        } else {
            (self.squares / (self.count - 1) as f64).sqrt()
        }
    }

    /// Half the width of the confidence interval of the mean at normal quantile `z`.
    fn half_interval(&self, z: f64) -> f64 {
        if self.count == 0 {
            0.0
        } else {
            z * self.deviation() / (self.count as f64).sqrt()
        }
    }
}

/// A histogram with log-linear buckets.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64]>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: vec![0; BUCKETS].into(),
            total: 0,
        }
    }
}

/// The bucket of `value`.
fn bucket(value: u64) -> usize {
    let value = value.min((1 << VALUE_BITS) - 1);
    if value < STEPS as u64 {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - STEP_BITS;
    ((shift as usize) << STEP_BITS) + (value >> shift) as usize
}

/// The largest value of `bucket`.
fn bucket_max(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let shift = (bucket >> STEP_BITS) as u32 - 1;
    let step = (bucket - ((shift as usize) << STEP_BITS)) as u64;
    ((step + 1) << shift) - 1
}

impl Histogram {
    /// Counts one value.
    pub fn add(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.total += 1;
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        if other.total == 0 {
            return;
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
    }

    /// The `q` quantile of the values, at most 1/128 too high.
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = ((self.total as f64 * q).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return bucket_max(index);
            }
        }
        0
    }
}

/// The statistics of a stream of latencies.
#[derive(Clone, Default)]
pub struct Latency {
    moments: RunningStats,
    histogram: Histogram,
    last_ns: u64,
}

/// A latency's summary, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Summary {
    pub count: u64,
    pub min_ms: f64,
    pub max_ms: f64,
    pub mean_ms: f64,
    pub deviation_ms: f64,
    /// Half the width of the 90 % confidence interval of the mean.
    pub interval_90_ms: f64,
    /// Half the width of the 95 % confidence interval of the mean.
    pub interval_95_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
}

impl Latency {
    /// Adds one latency, in nanoseconds.
    pub fn add(&mut self, value_ns: u64) {
        self.moments.add(value_ns);
        self.histogram.add(value_ns);
        self.last_ns = value_ns;
    }

    /// The latency that was added last, in milliseconds.
    pub fn last_ms(&self) -> f64 {
        self.last_ns as f64 / 1e6
    }

    /// Adds another stream.
    pub fn merge(&mut self, other: &Latency) {
        self.moments.merge(&other.moments);
        self.histogram.merge(&other.histogram);
        if other.moments.count > 0 {
            self.last_ns = other.last_ns;
        }
    }

    /// The `q` quantile of the latencies, in milliseconds.
    pub fn quantile_ms(&self, q: f64) -> f64 {
        // The upper end of the bucket may be above the largest value.
        self.histogram.quantile(q).min(self.moments.max) as f64 / 1e6
    }

    /// The figures for the report; all zero if there was no value.
    pub fn summary(&self) -> Summary {
        let moments = &self.moments;
        if moments.count == 0 {
            return Summary::default();
        }
        let ms = |ns: f64| ns / 1e6;
        let quantile = |q| self.quantile_ms(q);
        Summary {
            count: moments.count,
            min_ms: ms(moments.min as f64),
            max_ms: ms(moments.max as f64),
            mean_ms: ms(moments.mean),
            deviation_ms: ms(moments.deviation()),
            interval_90_ms: ms(moments.half_interval(Z_90)),
            interval_95_ms: ms(moments.half_interval(Z_95)),
            p50_ms: quantile(0.50),
            p99_ms: quantile(0.99),
            p999_ms: quantile(0.999),
        }
    }
}

impl Summary {
    /// The summary for the JSON report, in milliseconds.
    pub fn json(&self) -> Value {
        json!({
            "min": self.min_ms, "max": self.max_ms, "mean": self.mean_ms,
            "standard_deviation": self.deviation_ms,
            "confidence_90": [self.mean_ms - self.interval_90_ms, self.mean_ms + self.interval_90_ms],
            "confidence_95": [self.mean_ms - self.interval_95_ms, self.mean_ms + self.interval_95_ms],
            "p50": self.p50_ms, "p99": self.p99_ms, "p99_9": self.p999_ms,
        })
    }
}

/// The median of `values`. `NaN` if there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Fits a straight line to the points by least squares: its slope, and its value at 0. Both are NaN if all `x` are equal.
pub fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let along: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let across = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y));
    let slope = across.sum::<f64>() / along;
    (slope, mean_y - slope * mean_x)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1.0)
    }

    #[test]
    fn buckets_are_in_order_and_hold_their_ends() {
        for index in 0..BUCKETS {
            assert_eq!(bucket(bucket_max(index)), index);
            if index > 0 {
                assert_eq!(bucket(bucket_max(index - 1) + 1), index);
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn median_of_odd_and_even() {
        assert!(close(median(&[3.0, 1.0, 2.0]), 2.0));
        assert!(close(median(&[4.0, 1.0, 2.0, 3.0]), 2.5));
        assert!(median(&[]).is_nan());
    }

    proptest! {
        #[test]
        fn one_pass_says_what_two_passes_say(
            values in prop::collection::vec(0u64..10_000_000_000, 2..200),
            cut in 0usize..200,
        ) {
            let cut = cut.min(values.len());
            let (mut left, mut right) = (RunningStats::default(), RunningStats::default());
            values[..cut].iter().for_each(|v| left.add(*v));
            values[cut..].iter().for_each(|v| right.add(*v));
            left.merge(&right);

            let n = values.len() as f64;
            let mean = values.iter().map(|v| *v as f64).sum::<f64>() / n;
            let squares: f64 = values.iter().map(|v| (*v as f64 - mean).powi(2)).sum();
            prop_assert!(close(left.mean, mean));
            prop_assert!(close(left.deviation(), (squares / (n - 1.0)).sqrt()));
            prop_assert_eq!(left.min, *values.iter().min().unwrap());
            prop_assert_eq!(left.max, *values.iter().max().unwrap());
        }

        #[test]
        fn quantiles_are_those_of_the_sorted_list(
            mut values in prop::collection::vec(0u64..100_000_000_000, 1..300),
            q in 0.01f64..1.0,
        ) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|v| histogram.add(*v));
            values.sort_unstable();
            let rank = ((values.len() as f64 * q).ceil() as usize).clamp(1, values.len());
            let exact = values[rank - 1];
            let told = histogram.quantile(q);
            prop_assert!(told >= exact);
            prop_assert!(told <= exact + exact / STEPS as u64 + 1);
        }
    }
}
