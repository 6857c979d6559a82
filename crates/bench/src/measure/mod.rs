//! Measurement: message payloads with send time and sequence number, topic names,
//! statistics, and the kernel's figures for processes.

pub mod add_counters;
pub mod pattern;
pub mod payload;
pub mod sample;
pub mod stats;
pub mod tally;
pub mod units;
