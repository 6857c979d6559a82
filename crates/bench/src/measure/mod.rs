//! Measurement: messages with their times and numbers, the names of topics,
//! statistics, and the kernel's figures of processes.

pub mod add;
pub mod pattern;
pub mod payload;
pub mod sample;
pub mod stats;
pub mod tally;
pub mod units;
