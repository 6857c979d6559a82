//! Shortens a failing list of steps: drops halves, then smaller parts, as long as the run still fails.

use crate::plan::{Plan, Step};
use crate::run;

/// Limit of runs: enough for a list that a person can read, and done in seconds.
const RUNS_MAX: usize = 3000;

/// A shorter list of steps that also fails.
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
    let mut part = steps.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        let mut dropped = false;
        while at < steps.len() {
            let end = (at + part).min(steps.len());
            let mut fewer = steps[..at].to_vec();
            fewer.extend_from_slice(&steps[end..]);
            if fails(&fewer) {
                steps = fewer;
                dropped = true;
            } else {
                at = end;
            }
        }
        part = if part == 1 && dropped { 1 } else { part / 2 };
    }
    steps
}
