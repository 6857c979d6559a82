//! libFuzzer entry point of `topic`, which feeds a topic filter and a topic name.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::topic(data));
