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
    slowest_sent_once_s: f64,
}

impl Pause {
    /// The waits for the answers that arrived between these times.
    fn between(answers: &[Answer], start_ns: u64, end_ns: u64) -> Pause {
        let first = answers.partition_point(|answer| answer.answered_ns < start_ns);
        let last = answers.partition_point(|answer| answer.answered_ns < end_ns);
        // The silence may begin at the last answer before these times, and end at the first answer after them.
        let answers_around = &answers[first.saturating_sub(1)..(last + 1).min(answers.len())];
        let silences = answers_around
            .windows(2)
            .map(|pair| pair[1].answered_ns - pair[0].answered_ns);
        let answers_during = &answers[first..(last + 1).min(answers.len())];
        let wait_ns = |answer: &Answer| answer.answered_ns - answer.start_ns;
        let sent_once = answers_during.iter().filter(|answer| !answer.was_retried);
        Pause {
            silence_s: seconds(silences.max()),
            slowest_s: seconds(answers_during.iter().map(wait_ns).max()),
            slowest_sent_once_s: seconds(sent_once.map(wait_ns).max()),
        }
    }
}

fn seconds(ns: Option<u64>) -> f64 {
    ns.unwrap_or(0) as f64 / 1e9
}

/// The waits of each kind of fault, for the result.
pub fn by_fault(fault_records: &[FaultRecord], answers: &[Answer]) -> Value {
    let mut by_kind = serde_json::Map::new();
    for &kind in Fault::ALL {
        let records: Vec<_> = fault_records
            .iter()
            .filter(|record| record.fault == kind)
            .collect();
        if records.is_empty() {
            continue;
        }
        let pauses: Vec<Pause> = records
            .iter()
            .map(|record| Pause::between(answers, record.start_ns, record.recovered_ns))
            .collect();
        let pause_spread = |value: fn(&Pause) -> f64| spread(pauses.iter().map(value));
        let duration_spread = |start: fn(&FaultRecord) -> u64, end: fn(&FaultRecord) -> u64| {
            spread(
                records
                    .iter()
                    .map(|record| (end(record) - start(record)) as f64 / 1e9),
            )
        };
        let value = json!({
            "times": records.len(),
            "lasted_s": duration_spread(|record| record.start_ns, |record| record.repaired_ns),
            "all_back_after_s": duration_spread(|record| record.repaired_ns, |record| record.recovered_ns),
            "nobody_answered_s": pause_spread(|record| record.silence_s),
            "slowest_publish_s": pause_spread(|record| record.slowest_s),
            "slowest_publish_sent_once_s": pause_spread(|record| record.slowest_sent_once_s),
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
        let answer = |start_s: u64, answered_s: u64, was_retried| Answer {
            start_ns: start_s * 1_000_000_000,
            answered_ns: answered_s * 1_000_000_000,
            was_retried,
        };
        let answers = [
            answer(0, 40, true),
            answer(49, 50, false),
            answer(50, 57, true),
            answer(54, 58, false),
            answer(60, 90, false),
        ];
        let pause = Pause::between(&answers, 51_000_000_000, 57_500_000_000);
        assert_eq!(pause.silence_s, 7.0);
        assert_eq!(pause.slowest_s, 7.0);
        assert_eq!(pause.slowest_sent_once_s, 4.0);
        let no_pause = Pause::between(&answers, 91_000_000_000, 92_000_000_000);
        assert_eq!((no_pause.silence_s, no_pause.slowest_s), (0.0, 0.0));
    }
}
