//! libFuzzer entry point of `ndjson`, which feeds the JSON lines of a batch publish.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::ndjson(data));
