//! Shortens a failing list of steps: drops halves, then smaller and smaller parts, as long as the run still fails.

use crate::plan::{Plan, Step};
use crate::run;

/// The maximum number of runs. It is enough to make a list short enough for a person to read, and takes seconds.
const RUNS_MAX: usize = 3000;

/// A shorter list of steps that also fails. `failed_at` is the number of steps after which the run of `steps` failed.
pub fn shrink(plan: &Plan, seed: u64, steps: &[Step], failed_at: usize) -> Vec<Step> {
    let mut runs = 0;
    let mut fails = |steps: &[Step]| {
        runs += 1;
        runs <= RUNS_MAX && run::run(plan, seed, steps, false).is_err()
    };
    let mut steps = steps.to_vec();
    if failed_at < steps.len() && fails(&steps[..failed_at]) {
        steps.truncate(failed_at);
    }
    let mut part_len = steps.len().div_ceil(2);
    while part_len > 0 {
        let mut start = 0;
        let mut dropped = false;
        while start < steps.len() {
            let end = (start + part_len).min(steps.len());
            let mut fewer = steps[..start].to_vec();
            fewer.extend_from_slice(&steps[end..]);
            if fails(&fewer) {
                steps = fewer;
                dropped = true;
            } else {
                start = end;
            }
        }
        part_len = if part_len == 1 && dropped {
            1
        } else {
            part_len / 2
        };
    }
    steps
}
