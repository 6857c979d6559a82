//! libFuzzer entry point of `head`, which feeds the head of an HTTP request.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::head(data));
