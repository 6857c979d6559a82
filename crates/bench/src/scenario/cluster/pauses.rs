//! Computes how long publishes waited during a fault and during the recovery after the fault.

use serde_json::{Value, json};

use super::fault_schedule::FaultRecord;
use super::testbed::Fault;
use crate::scenario::chaos::Answer;

/// The waits of one fault, in seconds.
struct Pause {
    /// The longest time without any answer.
    silence_s: f64,
    /// The longest publish, from its first attempt to its answer.
    slowest_s: f64,
    /// The longest publish among those that were sent only once.
    slowest_at_once_s: f64,
}

impl Pause {
    /// The waits for the answers that arrived between these times.
    fn of(answers: &[Answer], from_ns: u64, to_ns: u64) -> Pause {
        let first = answers.partition_point(|answer| answer.answered_ns < from_ns);
        let last = answers.partition_point(|answer| answer.answered_ns < to_ns);
        // The silence may begin at the last answer before these times, and end at the first answer after them.
        let around = &answers[first.saturating_sub(1)..(last + 1).min(answers.len())];
        let silences = around
            .windows(2)
            .map(|two| two[1].answered_ns - two[0].answered_ns);
        let answered_during = &answers[first..(last + 1).min(answers.len())];
        let wait_ns = |answer: &Answer| answer.answered_ns - answer.begun_ns;
        let at_once = answered_during.iter().filter(|answer| !answer.retried);
        Pause {
            silence_s: seconds(silences.max()),
            slowest_s: seconds(answered_during.iter().map(wait_ns).max()),
            slowest_at_once_s: seconds(at_once.map(wait_ns).max()),
        }
    }
}

fn seconds(ns: Option<u64>) -> f64 {
    ns.unwrap_or(0) as f64 / 1e9
}

/// The waits of each kind of fault, for the result.
pub fn by_fault(happened: &[FaultRecord], answers: &[Answer]) -> Value {
    let mut by_kind = serde_json::Map::new();
    for &kind in Fault::ALL {
        let records: Vec<_> = happened.iter().filter(|one| one.fault == kind).collect();
        if records.is_empty() {
            continue;
        }
        let pauses: Vec<Pause> = records
            .iter()
            .map(|one| Pause::of(answers, one.begun_ns, one.back_ns))
            .collect();
        let pause_spread = |value: fn(&Pause) -> f64| spread(pauses.iter().map(value));
        let duration_spread = |from: fn(&FaultRecord) -> u64, to: fn(&FaultRecord) -> u64| {
            spread(records.iter().map(|one| (to(one) - from(one)) as f64 / 1e9))
        };
        let value = json!({
            "times": records.len(),
            "lasted_s": duration_spread(|one| one.begun_ns, |one| one.repaired_ns),
            "all_back_after_s": duration_spread(|one| one.repaired_ns, |one| one.back_ns),
            "nobody_answered_s": pause_spread(|one| one.silence_s),
            "slowest_publish_s": pause_spread(|one| one.slowest_s),
            "slowest_publish_sent_once_s": pause_spread(|one| one.slowest_at_once_s),
        });
        by_kind.insert(kind.name().into(), value);
    }
    Value::Object(by_kind)
}

/// The median and the largest of the values, for the result.
fn spread(values: impl Iterator<Item = f64>) -> Value {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let rounded = |value: f64| (value * 1e3).round() / 1e3;
    json!({
        "p50": rounded(sorted[sorted.len() / 2]),
        "max": rounded(sorted[sorted.len() - 1]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_that_of_its_fault() {
        let answer = |begun_s: u64, answered_s: u64, retried| Answer {
            begun_ns: begun_s * 1_000_000_000,
            answered_ns: answered_s * 1_000_000_000,
            retried,
        };
        let answers = [
            answer(0, 40, true),
            answer(49, 50, false),
            answer(50, 57, true),
            answer(54, 58, false),
            answer(60, 90, false),
        ];
        let pause = Pause::of(&answers, 51_000_000_000, 57_500_000_000);
        assert_eq!(pause.silence_s, 7.0);
        assert_eq!(pause.slowest_s, 7.0);
        assert_eq!(pause.slowest_at_once_s, 4.0);
        let none = Pause::of(&answers, 91_000_000_000, 92_000_000_000);
        assert_eq!((none.silence_s, none.slowest_s), (0.0, 0.0));
    }
}
