//! libFuzzer entry point of `tcp`, which feeds segments to a table of connections.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::tcp(data));
