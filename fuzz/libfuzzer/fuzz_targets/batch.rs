//! libFuzzer entry point of `batch`, which feeds batches of records as a node of a cluster reads them from the log.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::batch(data));
